"""The `cuda` backend: memory between guard zones (`cuda_memory`), NVRTC's code, the driver's launches.

One backend a device and process; all methods block, unless nobody else works on the device (`solo`). Everything it
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
from importlib import metadata
from weakref import WeakValueDictionary

from sparserl.backends import driver, nvrtc
from sparserl.backends.backend import Binary, Buffer, Device, Executable, Job, RunReport, TimingPlan
from sparserl.backends.cuda_executable import CudaBuffer, CudaExecutable
from sparserl.backends.cuda_memory import CudaMemory, arch_of
from sparserl.backends.cuda_timing import Bench, clock_mhz
from sparserl.backends.driver import Graph, Module, call, call_text
from sparserl.errors import BackendError

log = logging.getLogger(__name__)

MEMORY_TB_S = {"GH200": 4.9, "H200": 4.8, "H100 NVL": 3.9, "H100": 3.35, "B200": 8.0, "A100": 2.04}
"""datasheets, the first part of a name that fits; of others, what clock and bus width say"""


def why_not(device: int = 0, solo: bool = False) -> str | None:
    """None where a CUDA device is usable, else the reason and what to do. `solo`: without torch."""
    try:
        ctypes.CDLL("libcuda.so.1")  # a look before torch, whose import takes seconds
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1 can't be loaded): install it, or check LD_LIBRARY_PATH"
    if solo:
        return _why_not_driver(device)
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


def _why_not_driver(device: int) -> str | None:
    try:
        call("cuInit", 0)
        count = int(call("cuDeviceGetCount"))
    except BackendError as error:
        return str(error)
    if device >= count:
        return f"the driver has {count} CUDA devices, none with the number {device}: check CUDA_VISIBLE_DEVICES"
    return None


def _torch_version() -> str:
    """Without importing it."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def device_name(device: int) -> str:
    return call_text("cuDeviceGetName", 256, call("cuDeviceGet", device))


def identity(device: int = 0) -> tuple[str, str, str] | None:
    """('cuda', its name, its arch), as the driver alone tells it, in milliseconds; None where it has no such device."""
    if why_not(device, solo=True) is not None:
        return None
    return "cuda", device_name(device), arch_of(device)


def _cusparse_version() -> str:
    from sparserl.backends import cusparse

    try:
        return cusparse.version()
    except BackendError as error:
        return f"none ({error})"


class CudaBackend(CudaMemory):
    """One CUDA device, behind the Protocol of `backend.py`."""

    name = "cuda"

    def __init__(self, device: int = 0, solo: bool = False) -> None:
        """`solo`: nothing else in this process works on the device (see `CudaMemory`)."""
        reason = why_not(device, solo)
        if reason is not None:
            raise BackendError(f"The cuda backend can't be used: {reason}; or use the simulator: --device sim.")
        super().__init__(device, solo)
        self._ruin_shared = self.instruments.ruin_shared(self.stream)
        self._modules: WeakValueDictionary[str, Module] = WeakValueDictionary()

    @cached_property
    def bench(self) -> Bench:
        """What times things."""
        return Bench(self.stream, self.instruments, self.alloc, self.l2_bytes)

    @cached_property
    def _device(self) -> Device:
        version = int(call("cuDriverGetVersion"))
        name = device_name(self.device_index)
        versions = {
            "driver": f"{version // 1000}.{version % 1000 // 10}",
            "nvrtc": nvrtc.version(),
            "torch": _torch_version(),
            "cusparse": _cusparse_version(),
        }
        known = [speed for part, speed in MEMORY_TB_S.items() if part in name]
        return Device(
            backend="cuda",
            name=name,
            arch=self.arch,
            sms=self.sms,
            l2_bytes=self.l2_bytes,
            memory_tb_s=known[0] if known else self._bus_tb_s(),
            l2_tb_s=self.bench.l2_tb_s(),
            versions=versions,
        )

    def _bus_tb_s(self) -> float:
        kilohertz, bits = self._attribute("MEMORY_CLOCK_RATE"), self._attribute("GLOBAL_MEMORY_BUS_WIDTH")
        return 2e3 * kilohertz * bits / 8 / 1e12

    def device(self) -> Device:
        self.enter()
        return self._device

    def clock_mhz(self) -> int:
        """The SM clock now; 0 where NVML can't tell."""
        return clock_mhz(call_text("cuDeviceGetPCIBusId", 32, self.device_index))

    def compile(self, source: str, kernels: Sequence[str]) -> Binary:
        return nvrtc.compile(source, kernels, self.arch)

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

    def run(self, executable: Executable, x: Buffer, y: Buffer, *, plain: bool = True, wait: bool = True) -> RunReport:
        """A launch that is refused is reported; a fault raises StickyError, because the process is lost."""
        self._in_order()
        if isinstance(executable, CudaExecutable):
            executable.plain_next = plain
        began = time.perf_counter()
        try:
            self._ruin_shared.launch()
            executable.launch(x.pointer, y.pointer, self.stream)
            if wait or not self._solo:
                call("cuStreamSynchronize", self.stream)
        except BackendError as error:
            self.settle()  # raises where the refusal was only the echo of a fault
            return RunReport(False, str(error))
        return RunReport(True, host_us=(time.perf_counter() - began) * 1e6)

    def run_chain(
        self, executable: Executable, buffers: Sequence[Buffer], steps: int, *, wait: bool = True
    ) -> RunReport:
        first, second, source = buffers[0], buffers[1], buffers[-1]
        if len(buffers) != 3 or source.size_bytes != first.size_bytes:
            raise ValueError(
                "The 'buffers' of a chain must be x, y and a source of x's size. "
                f"Got sizes {[buffer.size_bytes for buffer in buffers]}."
            )
        swap = first.size_bytes == second.size_bytes
        self._in_order()
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
                if wait or not self._solo:
                    call("cuStreamSynchronize", self.stream)
            finally:
                graph.close()  # one that is under way is freed when it is done
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
