"""`SimBackend`: the simulator behind the Protocol of backends/backend.py.

The compile verdict is NVRTC's. The first product of an executable runs under the watch (watch.h); further ones do too
where a product is small, so that a program can't behave for the first numbers it sees alone, and run the plain build
where it isn't. Times are modelled and the same on every run. Not covered: what model.py does not know of an H200, and
streams (launches run to their end, in the order they come).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from sparserl.backends.backend import (
    Binary,
    Buffer,
    Device,
    Executable,
    Inspected,
    Job,
    Later,
    Part,
    RunReport,
    TimingPlan,
)
from sparserl.backends.sim import model, toolchain
from sparserl.backends.sim.executable import SimExecutable
from sparserl.backends.sim.memory import SimMemory
from sparserl.backends.sim.model import ModelConstants
from sparserl.backends.sim.native import Library
from sparserl.errors import BackendError, CompileError

ARCH = "sm_90"
WATCHED_SECTORS = 1 << 14
"""sectors a product asks for up to which every product is watched: a few milliseconds each"""
ROOM_BYTES = 8 << 30
"""of the host's memory, which other processes use too"""
KEPT_LIBRARIES = 32
"""pairs of host libraries that stay loaded without an executable that holds them"""


class SimBackend:
    """An H200 that is modelled, on the CPU that is there."""

    name: str = "sim"
    bounded: bool = True

    def __init__(
        self,
        *,
        nvrtc: bool = True,
        watch: Literal["first", "always", "never"] = "first",
        limit_s: float = 30.0,
        seed: int = 0,
        constants: ModelConstants | None = None,
    ) -> None:
        """`nvrtc=False` skips NVRTC's verdict (for tests of the simulator itself); `limit_s` is CPU time a launch."""
        if watch not in ("first", "always", "never"):
            raise BackendError(f"The 'watch' of a SimBackend must be 'first', 'always' or 'never'. Got {watch!r}.")
        self.repetitions: tuple[int, ...] = ()
        self._nvrtc = nvrtc
        self._watch = watch
        self._limit_s = limit_s
        self._seed = seed
        self._constants = constants or ModelConstants()
        self._libraries: dict[str, tuple[Library, Library]] = {}

    def device(self) -> Device:
        versions = {"compiler": toolchain.compiler(), "processor": platform.machine()}
        return Device("sim", "simulated H200", ARCH, self._constants.sms, 60_000_000, 4.8, 7.0, versions)

    def compile(self, source: str, kernels: Sequence[str]) -> Binary:
        registers, log = 32, ""
        if self._nvrtc:
            from sparserl.backends import nvrtc

            verdict = nvrtc.compile(source, kernels, ARCH)
            registers, log = verdict.registers, verdict.log
        code = toolchain.build(source, kernels)
        return Binary(toolchain.content_key(code), code, {name: name for name in kernels}, log, registers)

    def alloc(self, size_bytes: int) -> SimMemory:
        return SimMemory(size_bytes)

    def upload(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Buffer]:
        buffers: dict[str, Buffer] = {name: self.alloc(array.nbytes) for name, array in arrays.items()}
        for name, array in arrays.items():
            self.write(buffers[name], array)
        return buffers

    def room_bytes(self) -> int:
        return ROOM_BYTES

    def give_back(self) -> None:
        """Python does it."""

    def most_bytes(self) -> None:
        """It has no memory of its own."""

    def write(self, buffer: Buffer, array: np.ndarray, first_byte: int = 0) -> None:
        _own(buffer).write(array, first_byte)

    def copy(self, target: Buffer, source: Buffer) -> None:
        _own(target).write(_own(source).data)

    def read(self, buffer: Buffer, dtype: np.dtype, count: int, part: Part | None = None) -> np.ndarray:
        whole = _own(buffer).view(dtype, count)
        return whole.copy() if part is None else part.of(whole)

    def read_later(self, buffer: Buffer, dtype: np.dtype, count: int, part: Part | None = None) -> Later[np.ndarray]:
        found = self.read(buffer, dtype, count, part)
        return lambda: found

    def fill(self, buffer: Buffer, byte: int) -> None:
        _own(buffer).data[:] = byte

    def scatter(
        self, buffer: Buffer, values: np.ndarray, slot_of: Buffer | None, padding: np.ndarray,
        staged: Buffer | None = None,
    ) -> None:  # fmt: skip
        given = values if staged is None else _own(staged).view(values.dtype, values.size)
        flat = np.ascontiguousarray(given).reshape(-1)
        slots = _own(buffer).view(flat.dtype, _own(buffer).size_bytes // flat.itemsize)
        if slot_of is None:
            slots[: flat.size] = flat
            slots[flat.size :] = padding
            return
        slots[:] = padding
        slots[_own(slot_of).view(np.dtype(np.int32), flat.size)] = flat

    def inspect(self, guarded: Sequence[Buffer], digested: Sequence[Buffer]) -> Inspected:
        return [self.guards_intact(buffer) for buffer in guarded], [self.digest(buffer) for buffer in digested]

    def inspect_later(self, guarded: Sequence[Buffer], digested: Sequence[Buffer]) -> Later[Inspected]:
        found = self.inspect(guarded, digested)
        return lambda: found

    def guards_intact(self, buffer: Buffer) -> bool:
        return _own(buffer).guards_intact()

    def digest(self, buffer: Buffer) -> str:
        return _own(buffer).digest()

    def prepare(self, binary: Binary, job: Job, arrays: Mapping[str, Buffer]) -> SimExecutable:
        libraries = self._libraries.get(binary.key)
        if libraries is None:
            plain, checked = toolchain.unpack(binary.code)
            names = tuple(binary.kernels)
            libraries = self._libraries[binary.key] = (Library(plain, names), Library(checked, names))
            while len(self._libraries) > KEPT_LIBRARIES:
                self._libraries.pop(next(iter(self._libraries)))
        for kernel, arity in libraries[0].arity.items():
            if arity != len(job.params):
                raise CompileError(f"Kernel '{kernel}' has {arity} parameters; its contract has {len(job.params)}.")
        owned = {name: _own(buffer) for name, buffer in arrays.items()}
        return SimExecutable(libraries, job, owned, registers=binary.registers, limit_s=self._limit_s, seed=self._seed)

    def workspaces(self, executable: Executable) -> Mapping[str, SimMemory]:
        return _ours(executable).workspaces

    def run(self, executable: Executable, x: Buffer, y: Buffer, *, plain: bool = True, wait: bool = True) -> RunReport:
        return self._product(_ours(executable), _own(x), _own(y), pdl=not plain)

    def _product(self, product: SimExecutable, x: SimMemory, y: SimMemory, *, pdl: bool) -> RunReport:
        pdl = pdl and product.job.waits
        done = product.counts.get(pdl)
        small = done is not None and sum(count.total("requested") for count in done) <= WATCHED_SECTORS
        if self._watch == "always" or (self._watch == "first" and (done is None or small)):
            return product.run_checked(x, y, pdl, self._constants)
        reason = product.run_plain(x.pointer, y.pointer)
        if reason or done is None:
            return RunReport(not reason, reason)
        sectors = sum(count.total("requested") for count in done)
        return RunReport(True, "", sectors, model.modelled_us(done, "chain", self._constants))

    def run_chain(
        self, executable: Executable, buffers: Sequence[Buffer], steps: int, *, wait: bool = True
    ) -> RunReport:
        """As the Protocol says. The watch sees any touch before the wait, so the writer need not be slow here."""
        product, memory = _ours(executable), [_own(buffer) for buffer in buffers]
        feed_back = len({m.size_bytes for m in memory}) == 1
        last = RunReport(True)
        for step in range(steps):
            if step == 0 or not feed_back:
                memory[0].data[:] = memory[-1].data
            x, y = (memory[step % 2], memory[(step + 1) % 2]) if feed_back else (memory[0], memory[1])
            last = self._product(product, x, y, pdl=True)
            if not last.ok:
                return RunReport(False, f"product {step} of the chain: {last.reason}" if step else last.reason)
        return last

    def time(self, executables: Sequence[Executable], plan: TimingPlan) -> list[list[float]]:
        self.repetitions = (1,) * len(executables)
        return [[self._modelled_us(_ours(each), plan)] * plan.rounds for each in executables]

    def _modelled_us(self, product: SimExecutable, plan: TimingPlan) -> float:
        pdl = product.job.waits
        if pdl not in product.counts:
            x, y = SimMemory(plan.x_elements * plan.value_bytes), SimMemory(plan.y_elements * plan.value_bytes)
            x.data[:] = 0
            y.data[:] = 0
            report = product.run_checked(x, y, pdl, self._constants)
            if not report.ok:
                raise BackendError(f"A program that fails can't be timed: {report.reason}.")
        return model.modelled_us(product.counts[pdl], plan.mode, self._constants)

    def clock_mhz(self) -> int:
        return 0

    def floor_us(self, plan: TimingPlan) -> float:
        return model.floor_us(plan.mode, self._constants)

    def close(self) -> None:
        self._libraries.clear()


def _own(buffer: Buffer) -> SimMemory:
    if not isinstance(buffer, SimMemory):
        raise BackendError(
            f"A buffer of the simulator is wanted, made by SimBackend.alloc. Got {type(buffer).__name__}."
        )
    return buffer


def _ours(executable: Executable) -> SimExecutable:
    if not isinstance(executable, SimExecutable):
        raise BackendError(f"An executable made by SimBackend.prepare is wanted. Got {type(executable).__name__}.")
    return executable
