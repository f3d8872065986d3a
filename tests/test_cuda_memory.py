"""When the cuda backend waits for the device, by a driver that only writes down what it is told. Runs without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparserl.backends import cuda_memory
from sparserl.backends.cuda_executable import CudaBuffer
from sparserl.backends.cuda_memory import CudaMemory

STREAM = 7
WAITS = ("cuCtxSynchronize", "cuStreamSynchronize")
Said = list[tuple[Any, ...]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    found: Said = []
    monkeypatch.setattr(cuda_memory, "call", lambda *given: found.append(given))
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

    made.instruments = SimpleNamespace(**{name: kernel(name) for name in ("pad", "scatter", "inspect")})
    empty = lambda total, **_: SimpleNamespace(data_ptr=lambda: 1 << 20, numel=lambda: total)  # noqa: E731
    made._torch = SimpleNamespace(empty=empty, uint8=None, cuda=SimpleNamespace(OutOfMemoryError=MemoryError))
    return made


def buffer(size: int = 1024) -> CudaBuffer:
    return CudaBuffer(SimpleNamespace(data_ptr=lambda: 4096, numel=lambda: size + 1024), size)


def check(memory: CudaMemory) -> None:
    """What the judge asks for around one product."""
    vals, x, y, slots = buffer(), buffer(), buffer(), buffer()
    memory.scatter(vals, np.ones(64, np.float32), slots, np.array(-0.0, np.float32))
    memory.write(x, np.ones(64, np.float32))
    memory.copy(x, vals)
    memory.fill(y, 0xFF)
    memory.upload({"a": np.ones(9), "b": np.ones(9)})
    memory.inspect([x, y], [vals])
    memory.read(y, np.dtype(np.float32), 64)


def test_alone_it_waits_for_answers_only_and_all_is_on_one_stream(said: Said) -> None:
    check(memory_of(said, solo=True))
    names = [each[0] for each in said]
    assert [name for name in names if name in WAITS] == ["cuStreamSynchronize"] * 2
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


def test_part_of_a_result_is_put_together_by_torch_once_all_is_done(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = memory_of(said, solo=True)
    monkeypatch.setattr(memory, "_read_part", lambda *given: said.append(("part",)))
    memory.read(buffer(), np.dtype(np.float32), 64, SimpleNamespace())  # type: ignore[arg-type]
    assert said[-2:] == [("cuCtxSynchronize",), ("part",)]
