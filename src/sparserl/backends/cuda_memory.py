"""Device memory of the `cuda` backend, between guard zones, written and read on one stream.

It is torch's, and everything blocks and waits for the whole device, because users' streams don't wait for ours; or,
`solo`, it is the driver's (`cuda_pool`) and only answers are waited for, several at once (`cuda_post`): where nothing
but this backend works on the device in this process, what it is told to do comes in order on its stream. Among
processes that share a GPU every wait may last until the others had their slices, and a check of the judge had twenty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparserl.backends import driver
from sparserl.backends.backend import Buffer, Inspected, Later, Part
from sparserl.backends.cuda_executable import GUARD_BYTES, CudaBuffer
from sparserl.backends.cuda_pool import Pool
from sparserl.backends.cuda_post import Post
from sparserl.backends.driver import StickyError, call
from sparserl.backends.instruments import Instruments, Picked
from sparserl.errors import BackendError, NoRoomError
from sparserl.values import store

GUARD_BYTE = 0xA5
ZONES = 1024
"""looked over in one launch"""

Array = np.ndarray[Any, np.dtype[Any]]


def _attribute_of(device: int, name: str) -> int:
    which = getattr(driver.bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", which, call("cuDeviceGet", device)))


def arch_of(device: int) -> str:
    """'sm_90' of a device, by the driver alone."""
    numbers = [_attribute_of(device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR")]
    return "sm_" + "".join(map(str, numbers))


def _primary_context(device: int) -> Any:
    """The one that libraries share."""
    call("cuInit", 0)
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", device))


def _context_of_torch(device: int) -> Any:
    import torch

    with torch.cuda.device(device):
        torch.empty(1, dtype=torch.uint8, device="cuda")  # torch makes the context that everything here shares
        return call("cuCtxGetCurrent")


def _from_torch(size_bytes: int, device: int) -> Any:
    import torch

    try:
        return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError from error


class CudaMemory:
    """One device's context, a stream of its own, and the memory half of the Protocol of `backend.py`."""

    bounded = False

    def __init__(self, device: int, solo: bool) -> None:
        """`solo`: nothing in this process works on the device but this backend, on its one stream."""
        self.device_index, self._solo = device, solo
        self._context = _primary_context(device) if solo else _context_of_torch(device)
        self.enter()
        self.arch = arch_of(device)
        self.sms = self._attribute("MULTIPROCESSOR_COUNT")
        self.l2_bytes = self._attribute("L2_CACHE_SIZE")
        non_blocking = driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream_owner = call("cuStreamCreate", int(non_blocking))
        self.stream = int(self._stream_owner)
        self._pool = Pool(device, self.stream) if solo else None
        self._post = Post(self.stream) if solo else None
        self.instruments = Instruments(self.arch, self.sms, self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
        self._table = self.alloc(4 * 8 * ZONES)

    def enter(self) -> None:
        """Make the device's context this thread's."""
        call("cuCtxSetCurrent", self._context)

    def _attribute(self, name: str) -> int:
        return _attribute_of(self.device_index, name)

    def alloc(self, size_bytes: int) -> CudaBuffer:
        buffer = self._room(size_bytes)
        self._in_order()
        return buffer

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, Buffer]:
        self._in_order()
        buffers: dict[str, Buffer] = {}
        for name, array in arrays.items():
            data = np.ascontiguousarray(array)
            buffers[name] = self._room(data.nbytes)
            self._bring(buffers[name].pointer, data)
        self._in_order()
        return buffers

    def _room(self, size_bytes: int) -> CudaBuffer:
        """A buffer whose guard zones are about to be filled."""
        if size_bytes < 0:
            raise ValueError(f"The 'size_bytes' of a buffer must not be negative. Got {size_bytes}.")
        self.enter()
        total = GUARD_BYTES + -(-size_bytes // 256) * 256 + GUARD_BYTES
        try:
            raw = _from_torch(total, self.device_index) if self._pool is None else self._pool.take(total)
        except StickyError:
            raise
        except (BackendError, MemoryError) as error:
            raise NoRoomError(
                f"The device has no room for {size_bytes / 1e9:.2f} GB: free some memory or take a smaller matrix."
            ) from error
        buffer = CudaBuffer(raw, size_bytes)
        after = buffer.pointer + size_bytes
        call("cuMemsetD8Async", buffer.start, GUARD_BYTE, GUARD_BYTES, self.stream)
        call("cuMemsetD8Async", after, GUARD_BYTE, buffer.end - after, self.stream)
        return buffer

    def _bring(self, address: int, data: Array) -> None:
        """On the stream; when it returns `data` may go."""
        if self._post is not None:
            self._post.send(address, data)
        elif data.nbytes:
            call("cuMemcpyHtoDAsync", address, data.ctypes.data, data.nbytes, self.stream)

    def _fetch(self, data: Array, address: int) -> Later[Array]:
        """What stands there when all is done that the stream was told before."""
        if self._post is not None:
            return self._post.ask(data, address)
        if data.nbytes:
            call("cuMemcpyDtoHAsync", data.ctypes.data, address, data.nbytes, self.stream)
            call("cuStreamSynchronize", self.stream)
        return lambda: data

    def room_bytes(self) -> int:
        self.enter()
        return int(call("cuMemGetInfo")[0])

    def give_back(self) -> None:
        self.enter()
        if self._pool is not None:
            self._pool.give_back()

    def most_bytes(self) -> int | None:
        return None if self._pool is None else self._pool.most_bytes()

    def write(self, buffer: Buffer, array: Array, first_byte: int = 0) -> None:
        data = np.ascontiguousarray(array)
        self._fits(buffer, first_byte + data.nbytes, "write")
        self._in_order()
        self._bring(buffer.pointer + first_byte, data)
        self._tell(buffer)

    def copy(self, target: Buffer, source: Buffer) -> None:
        self._fits(target, source.size_bytes, "copy")
        self._in_order()
        if source.size_bytes:
            call("cuMemcpyDtoDAsync", target.pointer, source.pointer, source.size_bytes, self.stream)
        self._tell(target)

    def read(self, buffer: Buffer, dtype: np.dtype[Any], count: int, part: Part | None = None) -> Array:
        return self.read_later(buffer, dtype, count, part)()

    def read_later(self, buffer: Buffer, dtype: np.dtype[Any], count: int, part: Part | None = None) -> Later[Array]:
        self._fits(buffer, count * np.dtype(dtype).itemsize, "read")
        self._in_order()
        if part is not None and count:
            return self._read_part(buffer, np.dtype(dtype), count, part)
        return self._fetch(np.empty(count, dtype=dtype), buffer.pointer)

    def _read_part(self, buffer: Buffer, dtype: np.dtype[Any], count: int, part: Part) -> Later[Array]:
        """Put together on the device: the way to the host is what a wide C costs."""
        columns = np.asarray(part.columns, dtype=np.int32)
        found = np.empty(count // part.wide * len(columns), dtype=dtype)
        which, kept = self.upload({"columns": columns})["columns"], self.alloc(found.nbytes)
        shape = Picked(count // part.wide, part.wide, len(columns), part.order == "row")
        places = kept.pointer, buffer.pointer, which.pointer
        self.instruments.pick(dtype.itemsize, *places, shape, stream=self.stream).launch()
        return self._fetch(found, kept.pointer)

    def fill(self, buffer: Buffer, byte: int) -> None:
        self._in_order()
        if buffer.size_bytes:
            call("cuMemsetD8Async", buffer.pointer, byte, buffer.size_bytes, self.stream)
        self._tell(buffer)

    def scatter(
        self, buffer: Buffer, values: Array, slot_of: Buffer | None, padding: Array, staged: Buffer | None = None
    ) -> None:
        data = np.ascontiguousarray(values)
        width = data.dtype.itemsize
        if width not in (2, 4, 8):
            raise ValueError(f"The 'values' of a scatter must be 2, 4 or 8 bytes wide. Got {data.dtype}.")
        if slot_of is not None:
            self._fits(slot_of, 4 * data.size, "read")
        pad = np.asarray(padding)
        if data.dtype == np.uint16 and pad.dtype.kind == "f":
            pad = store(pad, "bfloat16")
        bits = int.from_bytes(pad.astype(data.dtype).tobytes()[:width], "little")
        slots = buffer.size_bytes // width
        self._fits(buffer, data.nbytes, "write")
        if staged is not None:
            self._fits(staged, data.nbytes, "read")
        self._in_order()
        if slots > data.size:
            self.instruments.pad(width, buffer.pointer, bits, slots, self.stream).launch()
        if slot_of is None:
            self.write(buffer, data) if staged is None else self.copy(buffer, staged)
            return
        if staged is None:
            staged = self.alloc(data.nbytes)
            self._bring(staged.pointer, data)
        slot, count = slot_of.pointer, data.size
        self.instruments.scatter(width, buffer.pointer, staged.pointer, slot, count, stream=self.stream).launch()
        self._tell(buffer)  # `staged` may go: it is waited for, or who gets its memory comes behind on the stream

    def inspect(self, guarded: Sequence[Buffer], digested: Sequence[Buffer]) -> Inspected:
        return self.inspect_later(guarded, digested)()

    def inspect_later(self, guarded: Sequence[Buffer], digested: Sequence[Buffer]) -> Later[Inspected]:
        whole = [(buffer.pointer, buffer.size_bytes, 0) for buffer in digested]
        around: list[tuple[int, int, int]] = []
        for buffer in guarded:
            assert isinstance(buffer, CudaBuffer)
            after = buffer.pointer + buffer.size_bytes
            around += [(buffer.start, buffer.pointer - buffer.start, 1), (after, buffer.end - after, 1)]
        looked_over, sizes = self._looked_over(whole, around), [buffer.size_bytes for buffer in digested]

        def found() -> Inspected:
            sums = looked_over()
            hashes = [f"{size:x}-{each:016x}" for size, each in zip(sizes, sums, strict=False)]
            strange = sums[len(sizes) :]
            return [not (strange[at] or strange[at + 1]) for at in range(0, len(strange), 2)], hashes

        return found

    def _looked_over(self, *groups: Sequence[tuple[int, int, int]]) -> Later[list[int]]:
        """Of each zone (address, bytes, kind) a hash or, of kind 1, how many bytes are not the guard's.

        One group is large zones, the other small ones: a launch has blocks for the largest of its zones.
        """
        self._in_order()
        parts = [group[at : at + ZONES] for group in groups for at in range(0, len(group), ZONES)]
        if not parts:
            return list
        table = np.concatenate(
            [each for some in parts for each in (np.zeros(len(some), np.uint64), np.array(some, np.uint64).ravel())]
        )
        room = self._table if table.nbytes <= self._table.size_bytes else self.alloc(table.nbytes)
        self._bring(room.pointer, table)
        begins = np.cumsum([0, *(4 * len(some) for some in parts)]).tolist()
        for some, at in zip(parts, begins, strict=False):
            sizes = [size for _, size, _ in some]
            self.instruments.inspect(room.pointer + 8 * at, sizes, GUARD_BYTE, self.stream).launch()
        answer = self._fetch(np.empty(len(table), np.uint64), room.pointer)
        spans = [slice(at, at + len(some)) for some, at in zip(parts, begins, strict=False)]
        return lambda: [each for span in spans for each in answer()[span].tolist()]

    def guards_intact(self, buffer: Buffer) -> bool:
        return self.inspect([buffer], [])[0][0]

    def digest(self, buffer: Buffer) -> str:
        return self.inspect([], [buffer])[1][0]

    def _fits(self, buffer: Buffer, size_bytes: int, what: str) -> None:
        if size_bytes > buffer.size_bytes:
            raise ValueError(f"Can't {what} {size_bytes} bytes: the buffer has {buffer.size_bytes}.")

    def settle(self) -> None:
        """Wait for everything on the device: streams of ours and of users do not wait for the default one."""
        self.enter()
        call("cuCtxSynchronize")

    def _in_order(self) -> None:
        """Nothing before is still under way, or it comes first by itself."""
        self.enter()
        if not self._solo:
            call("cuCtxSynchronize")

    @contextmanager
    def among_others(self) -> Iterator[None]:
        """For a library that works on streams of its own: everything is waited for meanwhile."""
        solo, self._solo = self._solo, False
        self.settle()
        try:
            yield
        finally:
            self._solo = solo

    def _tell(self, buffer: Buffer) -> None:
        self._in_order()
        assert isinstance(buffer, CudaBuffer)
        for watcher in list(buffer.watchers):
            watcher.changed()
