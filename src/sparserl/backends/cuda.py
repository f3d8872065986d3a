"""The `cuda` backend: torch's memory between guard zones, NVRTC's code, the driver's launches.

One backend a device and process; all methods block and wait for the whole device where they touch memory. Everything it
runs or times goes through one stream of its own, so a program's workspaces are the same in every check. An Executable
may be launched on any stream; two threads must not launch one Executable on the same stream at once.

Not covered: several devices in one process, hanging kernels (the sandbox ends the process).
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from sparserl.backends import driver, nvrtc
from sparserl.backends.backend import Binary, Buffer, Device, Executable, Job, Part, RunReport, TimingPlan
from sparserl.backends.cuda_executable import GUARD_BYTES, CudaBuffer, CudaExecutable
from sparserl.backends.cuda_timing import Bench, clock_mhz
from sparserl.backends.driver import Graph, Module, call
from sparserl.backends.instruments import Instruments
from sparserl.errors import BackendError
from sparserl.values import store

log = logging.getLogger(__name__)

GUARD_BYTE = 0xA5
ZONES = 64
"""looked over at once"""
MEMORY_TB_S = {"GH200": 4.9, "H200": 4.8, "H100 NVL": 3.9, "H100": 3.35, "B200": 8.0, "A100": 2.04}
"""datasheets, the first part of a name that fits; of others, what clock and bus width say"""

Array = np.ndarray[Any, np.dtype[Any]]


def why_not(device: int = 0) -> str | None:
    """None where a CUDA device is usable, else the reason and what to do."""
    try:
        ctypes.CDLL("libcuda.so.1")  # a look before torch, whose import takes seconds
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1 can't be loaded): install it, or check LD_LIBRARY_PATH"
    try:
        import torch
    except ImportError as error:
        return f"torch can't be imported ({error}): pip install torch"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA: install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device: check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES"
    if device >= torch.cuda.device_count():
        return f"there is no CUDA device {device}: choose one in 0..{torch.cuda.device_count() - 1}"
    try:
        driver.bindings()
    except BackendError as error:
        return str(error)
    return None


def _cusparse_version() -> str:
    from sparserl.backends import cusparse

    try:
        return cusparse.version()
    except BackendError as error:
        return f"none ({error})"


class CudaBackend:
    """One CUDA device, behind the Protocol of `backend.py`."""

    name = "cuda"

    def __init__(self, device: int = 0) -> None:
        reason = why_not(device)
        if reason is not None:
            raise BackendError(f"The cuda backend can't be used: {reason}; or use the simulator: --device sim.")
        import torch

        self._torch = torch
        self.device_index = device
        with torch.cuda.device(device):
            torch.empty(1, dtype=torch.uint8, device="cuda")  # torch makes the context that everything here shares
            self._context = call("cuCtxGetCurrent")
        self.enter()
        self._properties = torch.cuda.get_device_properties(device)
        self.arch = f"sm_{self._properties.major}{self._properties.minor}"
        self.sms = int(self._properties.multi_processor_count)
        non_blocking = driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream_owner = call("cuStreamCreate", int(non_blocking))
        self.stream = int(self._stream_owner)
        self.instruments = Instruments(self.arch, self.sms, self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
        self._ruin_shared = self.instruments.ruin_shared(self.stream)
        self._modules: WeakValueDictionary[str, Module] = WeakValueDictionary()
        self._table = self.alloc(4 * 8 * ZONES)

    def enter(self) -> None:
        """Make the device's context this thread's."""
        call("cuCtxSetCurrent", self._context)

    @cached_property
    def bench(self) -> Bench:
        """What times things; the first use measures the L2."""
        return Bench(self.stream, self.instruments, self.alloc, int(self._properties.L2_cache_size))

    @cached_property
    def _device(self) -> Device:
        name, version = str(self._properties.name), int(call("cuDriverGetVersion"))
        versions = {
            "driver": f"{version // 1000}.{version % 1000 // 10}",
            "nvrtc": nvrtc.version(),
            "torch": str(self._torch.__version__),
            "cusparse": _cusparse_version(),
        }
        known = [speed for part, speed in MEMORY_TB_S.items() if part in name]
        return Device(
            backend="cuda",
            name=name,
            arch=self.arch,
            sms=self.sms,
            l2_bytes=int(self._properties.L2_cache_size),
            memory_tb_s=known[0] if known else self._bus_tb_s(),
            l2_tb_s=self.bench.l2_tb_s(),
            versions=versions,
        )

    def _bus_tb_s(self) -> float:
        kilohertz, bits = self._attribute("MEMORY_CLOCK_RATE"), self._attribute("GLOBAL_MEMORY_BUS_WIDTH")
        return 2e3 * kilohertz * bits / 8 / 1e12

    def _attribute(self, name: str) -> int:
        which = getattr(driver.bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", which, call("cuDeviceGet", self.device_index)))

    def device(self) -> Device:
        self.enter()
        return self._device

    def clock_mhz(self) -> int:
        """The SM clock now; 0 where NVML can't tell."""
        return clock_mhz(str(call("cuDeviceGetPCIBusId", 32, self.device_index).rstrip(b"\0").decode()))

    def compile(self, source: str, kernels: Sequence[str]) -> Binary:
        return nvrtc.compile(source, kernels, self.arch)

    # ---- memory

    def alloc(self, size_bytes: int) -> CudaBuffer:
        buffer = self._room(size_bytes)
        self.settle()
        return buffer

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, Buffer]:
        self.settle()
        buffers: dict[str, Buffer] = {}
        for name, array in arrays.items():
            data = np.ascontiguousarray(array)
            buffers[name] = self._room(data.nbytes)
            if data.nbytes:
                call("cuMemcpyHtoD", buffers[name].pointer, data.ctypes.data, data.nbytes)
        self.settle()
        return buffers

    def _room(self, size_bytes: int) -> CudaBuffer:
        """A buffer whose guard zones are about to be filled."""
        if size_bytes < 0:
            raise ValueError(f"The 'size_bytes' of a buffer must not be negative. Got {size_bytes}.")
        self.enter()
        total = GUARD_BYTES + -(-size_bytes // 256) * 256 + GUARD_BYTES
        try:
            raw = self._torch.empty(total, dtype=self._torch.uint8, device=f"cuda:{self.device_index}")
        except self._torch.cuda.OutOfMemoryError as error:
            raise BackendError(
                f"The device has no room for {size_bytes / 1e9:.2f} GB: free some memory or take a smaller matrix."
            ) from error
        buffer = CudaBuffer(raw, size_bytes)
        call("cuMemsetD8", buffer.start, GUARD_BYTE, GUARD_BYTES)
        call("cuMemsetD8", buffer.pointer + size_bytes, GUARD_BYTE, buffer.end - buffer.pointer - size_bytes)
        return buffer

    def room_bytes(self) -> int:
        self.enter()
        return int(call("cuMemGetInfo")[0])

    def write(self, buffer: Buffer, array: Array) -> None:
        data = np.ascontiguousarray(array)
        self._fits(buffer, data.nbytes, "write")
        self.settle()
        if data.nbytes:
            call("cuMemcpyHtoD", buffer.pointer, data.ctypes.data, data.nbytes)
        self._tell(buffer)

    def copy(self, target: Buffer, source: Buffer) -> None:
        self._fits(target, source.size_bytes, "copy")
        self.settle()
        if source.size_bytes:
            call("cuMemcpyDtoD", target.pointer, source.pointer, source.size_bytes)
        self._tell(target)

    def read(self, buffer: Buffer, dtype: np.dtype[Any], count: int, part: Part | None = None) -> Array:
        self._fits(buffer, count * np.dtype(dtype).itemsize, "read")
        self.settle()
        if part is not None and count:
            return self._read_part(buffer, np.dtype(dtype), count, part)
        data = np.empty(count, dtype=dtype)
        if data.nbytes:
            call("cuMemcpyDtoH", data.ctypes.data, buffer.pointer, data.nbytes)
        return data

    def _read_part(self, buffer: Buffer, dtype: np.dtype[Any], count: int, part: Part) -> Array:
        """Put together on the device: the way to the host is what a wide C costs."""
        assert isinstance(buffer, CudaBuffer)
        torch, size = self._torch, dtype.itemsize
        whole = buffer.bytes[: count * size].view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
        columns = torch.from_numpy(np.asarray(part.columns, dtype=np.int64)).to(whole.device)
        by_row = part.order == "row"
        kept = whole.view(-1, part.wide) if by_row else whole.view(part.wide, -1)
        found: Array = kept.index_select(int(by_row), columns).cpu().numpy()
        return found.ravel().view(dtype)

    def fill(self, buffer: Buffer, byte: int) -> None:
        self.settle()
        if buffer.size_bytes:
            call("cuMemsetD8", buffer.pointer, byte, buffer.size_bytes)
        self._tell(buffer)

    def scatter(self, buffer: Buffer, values: Array, slot_of: Buffer | None, padding: Array) -> None:
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
        self.settle()
        if slots > data.size:
            self.instruments.pad(width, buffer.pointer, bits, slots, 0).launch()
        if slot_of is None:
            self.write(buffer, data)
            return
        staged = self.alloc(data.nbytes)
        if data.size:
            call("cuMemcpyHtoD", staged.pointer, data.ctypes.data, data.nbytes)
        slot, count = slot_of.pointer, data.size
        self.instruments.scatter(width, buffer.pointer, staged.pointer, slot, count, stream=0).launch()
        self._tell(buffer)  # waits, so `staged` may go

    def inspect(self, guarded: Sequence[Buffer], digested: Sequence[Buffer]) -> tuple[list[bool], list[str]]:
        zones = [(buffer.pointer, buffer.size_bytes, 0) for buffer in digested]
        for buffer in guarded:
            assert isinstance(buffer, CudaBuffer)
            after = buffer.pointer + buffer.size_bytes
            zones += [(buffer.start, buffer.pointer - buffer.start, 1), (after, buffer.end - after, 1)]
        sums = self._looked_over(zones)
        hashes = [f"{buffer.size_bytes:x}-{each:016x}" for buffer, each in zip(digested, sums, strict=False)]
        strange = sums[len(digested) :]
        return [not (strange[2 * at] or strange[2 * at + 1]) for at in range(len(guarded))], hashes

    def _looked_over(self, zones: Sequence[tuple[int, int, int]]) -> list[int]:
        """Of each zone (address, bytes, kind) a hash or, of kind 1, how many bytes are not the guard's."""
        self.settle()
        sums: list[int] = []
        for begin in range(0, len(zones), ZONES):
            some = zones[begin : begin + ZONES]
            table = np.concatenate([np.zeros(len(some), np.uint64), np.array(some, np.uint64).ravel()])
            call("cuMemcpyHtoD", self._table.pointer, table.ctypes.data, table.nbytes)
            self.instruments.inspect(self._table.pointer, [size for _, size, _ in some], GUARD_BYTE, 0).launch()
            call("cuMemcpyDtoH", table.ctypes.data, self._table.pointer, 8 * len(some))
            sums += table[: len(some)].tolist()
        return sums

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

    def _tell(self, buffer: Buffer) -> None:
        call("cuCtxSynchronize")  # a copy from pageable memory may return before it has arrived
        assert isinstance(buffer, CudaBuffer)
        for watcher in list(buffer.watchers):
            watcher.changed()

    # ---- products

    def prepare(self, binary: Binary, job: Job, arrays: Mapping[str, Buffer]) -> CudaExecutable:
        self.enter()
        module = self._modules.get(binary.key)
        if module is None:
            module = self._modules[binary.key] = Module(binary.code)
        held: dict[str, CudaBuffer] = {}
        for name, buffer in arrays.items():
            assert isinstance(buffer, CudaBuffer)
            held[name] = buffer
        return CudaExecutable(self, binary, module, job, held)

    def workspaces(self, executable: Executable) -> Mapping[str, Buffer]:
        return executable.ready(self.stream).workspaces if isinstance(executable, CudaExecutable) else {}

    def run(self, executable: Executable, x: Buffer, y: Buffer, *, plain: bool = True) -> RunReport:
        """A launch that is refused is reported; a fault raises StickyError, because the process is lost."""
        self.settle()
        if isinstance(executable, CudaExecutable):
            executable.plain_next = plain
        began = time.perf_counter()
        try:
            self._ruin_shared.launch()
            executable.launch(x.pointer, y.pointer, self.stream)
            call("cuStreamSynchronize", self.stream)
        except BackendError as error:
            self.settle()  # raises where the refusal was only the echo of a fault
            return RunReport(False, str(error))
        return RunReport(True, host_us=(time.perf_counter() - began) * 1e6)

    def run_chain(self, executable: Executable, buffers: Sequence[Buffer], steps: int) -> RunReport:
        first, second, source = buffers[0], buffers[1], buffers[-1]
        if len(buffers) != 3 or source.size_bytes != first.size_bytes:
            raise ValueError(
                "The 'buffers' of a chain must be x, y and a source of x's size. "
                f"Got sizes {[buffer.size_bytes for buffer in buffers]}."
            )
        swap = first.size_bytes == second.size_bytes
        self.settle()
        writer = self.instruments.slow_copy(first.pointer, source.pointer, first.size_bytes, self.stream)
        if isinstance(executable, CudaExecutable):
            executable.ready(self.stream)
            executable.plain_next = False

        def products() -> None:
            self._ruin_shared.launch()
            for step in range(steps):
                if step == 0 or not swap:
                    writer.launch()
                x, y = (second, first) if swap and step % 2 else (first, second)
                executable.launch(x.pointer, y.pointer, self.stream)

        try:
            graph = Graph(self.stream, products)
            try:
                graph.launch(self.stream)
                call("cuStreamSynchronize", self.stream)
            finally:
                graph.close()
        except BackendError as error:
            self.settle()  # raises where the refusal was only the echo of a fault
            return RunReport(False, str(error))
        return RunReport(True)

    def time(self, executables: Sequence[Executable], plan: TimingPlan) -> list[list[float]]:
        self.settle()
        times = self.bench.time([executable.launch for executable in executables], plan)
        log.debug("%s: %d sides, SM clock %d MHz", plan.mode, len(executables), self.clock_mhz())
        return times

    @property
    def repetitions(self) -> tuple[int, ...]:
        """Products in the graphs of the last timing, by side."""
        return self.bench.repetitions

    def floor_us(self, plan: TimingPlan) -> float:
        self.settle()
        return self.bench.floor_us(plan)

    def close(self) -> None:
        """Give the stream back; after a sticky error there is nothing to give back."""
        with suppress(BackendError):
            self.settle()
            call("cuStreamDestroy", self._stream_owner)
