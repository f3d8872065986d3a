"""When the cuda backend waits for the device, by a driver that only writes down what it is told. Runs without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparserl.backends import cuda_memory, cuda_pool, cuda_post
from sparserl.backends.backend import Part
from sparserl.backends.cuda_executable import CudaBuffer
from sparserl.backends.cuda_memory import CudaMemory
from sparserl.backends.cuda_pool import Pool
from sparserl.backends.cuda_post import Post
from sparserl.backends.driver import StickyError
from sparserl.errors import BackendError, NoRoomError

STREAM = 7
PAGES, HOSTED = np.zeros(cuda_post.ROOM_BYTES, np.uint8), "cuMemAllocHost"
WAITS = ("cuCtxSynchronize", "cuStreamSynchronize")
Said = list[tuple[Any, ...]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    found: Said = []

    def call(*given: Any) -> Any:
        found.append(given)
        return (len(found) << 20) if given[0] == "cuMemAllocAsync" else None

    monkeypatch.setattr(cuda_memory, "call", call)
    monkeypatch.setattr(cuda_pool, "call", call)
    monkeypatch.setattr(cuda_post, "call", lambda *given: PAGES.ctypes.data if given[0] == HOSTED else call(*given))
    monkeypatch.setattr(
        cuda_memory, "_from_torch", lambda total, _: SimpleNamespace(data_ptr=lambda: 1 << 20, numel=lambda: total)
    )
    return found


def memory_of(said: Said, solo: bool) -> CudaMemory:
    """Without a device: allocations are numbers, kernels say that they were launched, and on which stream."""
    made = CudaMemory.__new__(CudaMemory)
    made._solo, made.stream, made._context, made.device_index = solo, STREAM, 1, 0
    made._table = buffer()

    def kernel(name: str) -> Any:
        def call(*given: Any, stream: int | None = None) -> Any:
            return SimpleNamespace(launch=lambda: said.append((name, given[-1] if stream is None else stream)))

        return call

    made.instruments = SimpleNamespace(**{name: kernel(name) for name in ("pad", "scatter", "inspect", "pick")})
    made._pool, made._post = (pool(), Post(STREAM)) if solo else (None, None)
    return made


def pool() -> Pool:
    made = Pool.__new__(Pool)
    made._stream, made.dead, made._pool, made._sizes = STREAM, [], "the pool", {}
    made._held_bytes = made._most_bytes = 0
    return made


def buffer(size: int = 1024) -> CudaBuffer:
    return CudaBuffer(SimpleNamespace(data_ptr=lambda: 4096, numel=lambda: size + 1024), size)


def check(memory: CudaMemory) -> None:
    """What the judge asks for around one product."""
    vals, x, y, slots = buffer(), buffer(), buffer(), buffer()
    memory.scatter(vals, np.ones(64, np.float32), slots, np.array(-0.0, np.float32))
    memory.scatter(vals, np.ones(64, np.float32), slots, np.array(-0.0, np.float32), staged=x)
    memory.scatter(vals, np.ones(64, np.float32), None, np.array(-0.0, np.float32), staged=x)
    memory.write(x, np.ones(64, np.float32))
    memory.write(x, np.ones(1, np.float32), 252)
    memory.copy(x, vals)
    memory.fill(y, 0xFF)
    memory.upload({"a": np.ones(9), "b": np.ones(9)})
    before, after = memory.inspect_later([], [vals]), memory.inspect_later([x, y], [vals])
    out = memory.read_later(y, np.dtype(np.float32), 64)
    assert len(after()[0]) == 2 and len(before()[1]) == 1 and out().shape == (64,)


def test_alone_it_waits_once_for_all_answers_and_all_is_on_one_stream(said: Said) -> None:
    check(memory_of(said, solo=True))
    names = [each[0] for each in said]
    assert [name for name in names if name in WAITS] == ["cuStreamSynchronize"]
    assert names.index("cuMemcpyDtoHAsync") < names.index("cuStreamSynchronize")
    at_work = [each for each in said if each[0] not in ("cuCtxSetCurrent", *WAITS)]
    assert {each[-1] for each in at_work} == {STREAM}, "what is on another stream comes in no order"


def test_among_others_everything_is_waited_for_before_and_after(said: Said) -> None:
    memory = memory_of(said, solo=False)
    for act in (
        lambda: memory.write(buffer(), np.ones(64, np.float32)),
        lambda: memory.fill(buffer(), 0),
        lambda: memory.copy(buffer(), buffer()),
    ):
        said.clear()
        act()
        names = [each[0] for each in said if each[0] != "cuCtxSetCurrent"]
        assert names[0] == names[-1] == "cuCtxSynchronize" and len(names) == 3
    check(memory)


def test_a_library_with_streams_of_its_own_is_waited_for(said: Said) -> None:
    memory = memory_of(said, solo=True)
    with memory.among_others():
        assert said[-1] == ("cuCtxSynchronize",)
        memory.fill(buffer(), 0)
        assert said[-1] == ("cuCtxSynchronize",)
    said.clear()
    memory.fill(buffer(), 0)
    assert all(each[0] not in WAITS for each in said)


def test_part_of_a_result_is_put_together_on_the_device_and_fetched_alone(said: Said) -> None:
    memory = memory_of(said, solo=True)
    found = memory.read(buffer(), np.dtype(np.float32), 64, Part((1, 5), 16, "row"))
    assert found.shape == (2 * 64 // 16,)
    names = [each[0] for each in said]
    assert names.index("pick") < names.index("cuMemcpyDtoHAsync") and names[-1] == "cuStreamSynchronize"
    (fetched,) = [each for each in said if each[0] == "cuMemcpyDtoHAsync"]
    assert fetched[3] == found.nbytes


def test_what_nobody_holds_is_freed_with_the_next_allocation_and_in_the_order_of_the_stream(said: Said) -> None:
    driver = pool()
    first, second = driver.take(100), driver.take(200)
    addresses = [first.data_ptr(), second.data_ptr()]
    assert first.numel() == 100 and addresses[0] != addresses[1]
    said.clear()
    del first, second  # perhaps in the middle of a capture: nothing may be asked of the driver
    assert said == [] and sorted(driver.dead) == sorted(addresses)
    driver.take(300)
    assert sorted(said[:2]) == [("cuMemFreeAsync", address, STREAM) for address in sorted(addresses)]
    assert said[2] == ("cuMemAllocAsync", 300, STREAM) and len(driver.dead) <= 1


def test_the_most_that_was_taken_is_told_once_and_counts_on_from_what_is_still_held(said: Said) -> None:
    driver = pool()
    kept = driver.take(100)
    large = driver.take(1000)
    del large
    driver.take(10)
    assert driver.most_bytes() == 1100, "what is freed doesn't count twice"
    assert driver.most_bytes() == 100 == kept.numel(), "a large matrix before says nothing of the next"
    small = driver.take(20)
    assert driver.most_bytes() == 120 and small.numel() == 20


def test_no_room_is_said_in_gigabytes_and_a_broken_device_as_it_is(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(said, solo=True)

    def fails(error: Exception) -> Any:
        def take(_: int) -> Any:
            raise error

        return take

    monkeypatch.setattr(memory._pool, "take", fails(BackendError("cuMemAllocAsync failed: OUT_OF_MEMORY")))
    with pytest.raises(NoRoomError, match=r"no room for 3\.00 GB"):
        memory.alloc(3_000_000_000)
    monkeypatch.setattr(memory._pool, "take", fails(StickyError("cuMemFreeAsync failed: ILLEGAL_ADDRESS")))
    with pytest.raises(StickyError, match="ILLEGAL"):
        memory.alloc(8)


def test_what_nobody_holds_is_given_back_once_the_stream_has_freed_it(said: Said) -> None:
    memory = memory_of(said, solo=True)
    held = memory.alloc(100)
    freed = memory.alloc(200)
    address = freed.start
    said.clear()
    del freed
    memory.give_back()
    assert said[-3:] == [("cuMemFreeAsync", address, STREAM), ("cuStreamSynchronize", STREAM),
                         ("cuMemPoolTrimTo", "the pool", cuda_pool.SPARED_BYTES)]  # fmt: skip
    assert held.size_bytes == 100
    said.clear()
    memory_of(said, solo=False).give_back()  # torch's, which serves the caller's own arrays too
    assert not any(each[0].startswith("cuMem") for each in said)
