"""One product on the simulator: arguments bound, launches in order, run either plainly or under the watch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparserl.backends.backend import Job, RunReport
from sparserl.backends.sim import native
from sparserl.backends.sim.memory import SimMemory
from sparserl.backends.sim.model import (
    COLUMNS,
    OUTPUT,
    STRUCTURE,
    VALUES,
    VECTOR,
    WORKSPACE,
    LaunchCounts,
    ModelConstants,
    l1_sectors,
    modelled_us,
    resident_blocks,
)
from sparserl.backends.sim.native import Library, NativeBuffer, NativeRequest
from sparserl.errors import BackendError
from sparserl.records import Launch

CELL_BYTES = 48
"""sizeof(Cell) in races.h: what is remembered of each 4-byte word that kernels may write"""


class SimExecutable:
    """Made by `SimBackend.prepare`. `launch` runs the plain build to its end before it returns."""

    def __init__(
        self,
        libraries: tuple[Library, Library],
        job: Job,
        arrays: Mapping[str, SimMemory],
        *,
        registers: int,
        limit_s: float,
        seed: int,
    ) -> None:
        self.plain, self.checked = libraries
        self.job = job
        self.registers = registers
        self.limit_s = limit_s
        self.seed = seed
        self.workspaces = {name: SimMemory(size) for name, (size, _) in job.workspaces.items()}
        for name, (_, kind) in job.workspaces.items():
            self.workspaces[name].data[:] = 0 if kind == "zeroed" else 0xFF
        self.arrays = dict(arrays)
        self.counts: dict[bool, list[LaunchCounts]] = {}
        """what a checked product counted, by whether it ran with the pdl attribute"""
        self._values: dict[str, Any] = {}
        self._arguments = self._bind()
        self.runs = 0

    def _bind(self) -> Any:
        pointers = (ctypes.c_void_p * max(1, len(self.job.params)))()
        for i, param in enumerate(self.job.params):
            if not param.is_array:
                self._values[param.name] = ctypes.c_int(self.job.scalars[param.name])
            elif param.name in self.job.vector_names:
                self._values[param.name] = ctypes.c_uint64(0)
            else:
                memory = self.workspaces.get(param.name) or self.arrays.get(param.name)
                if memory is None:
                    raise BackendError(
                        f"The program wants an array '{param.name}', but only {sorted(self.arrays)} are given."
                    )
                self._values[param.name] = ctypes.c_uint64(memory.pointer)
            pointers[i] = ctypes.addressof(self._values[param.name])
        return pointers

    def launch(self, x: int, y: int, stream: int = 0) -> None:
        reason = self.run_plain(x, y)
        if reason:
            raise BackendError(f"The kernel failed on the simulator: {reason}.")

    def run_plain(self, x: int, y: int) -> str:
        """One product with the plain build; '' or what went wrong."""
        for launch in self.job.launches:
            reason = refusal(launch) or self.plain.launch(self._request(self.plain, launch, x, y))
            if reason:
                return reason
        return ""

    def run_checked(self, x: SimMemory, y: SimMemory, pdl: bool, constants: ModelConstants) -> RunReport:
        """One product under the watch; `pdl` launches with the attribute those that ask for it."""
        table = WatchedArrays(self, x, y)
        counts = []
        for launch in self.job.launches:
            if reason := refusal(launch):
                return RunReport(False, reason)
            resident = resident_blocks(launch.block, launch.shared_bytes, self.registers)
            counters = np.zeros((launch.grid, len(native.COUNTERS)), dtype=np.uint32)
            table.forget_touched()
            request = self._request(self.checked, launch, x.pointer, y.pointer)
            request.buffers = ctypes.addressof(table.native)
            request.buffer_count = len(table.native)
            request.counters = counters.ctypes.data
            request.pdl = int(launch.pdl and pdl)
            request.l1_sectors = l1_sectors(resident, launch.shared_bytes)
            reason = self.checked.launch(request)
            if reason:
                return RunReport(False, reason)
            attribute = launch.pdl and pdl
            counts.append(LaunchCounts.of(counters, launch.block, resident, table.distinct_bytes(), attribute))
        counts = self.counts.setdefault(pdl, counts)  # the first: blocks come in another order each time
        sectors = sum(count.total("requested") for count in counts)
        return RunReport(True, "", sectors, modelled_us(counts, "chain", constants))

    def _request(self, library: Library, launch: Launch, x: int, y: int) -> NativeRequest:
        x_name, y_name = self.job.vector_names
        self._values[x_name].value, self._values[y_name].value = x, y
        self.runs += 1
        return NativeRequest(
            entry=library.entries[launch.kernel],
            arguments=ctypes.addressof(self._arguments),
            kernel=launch.kernel.encode(),
            seed=self.seed + self.runs,
            limit_s=self.limit_s,
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
        )


class WatchedArrays:
    """The table of arrays that the watch knows, with the shadow of what was written and by whom."""

    def __init__(self, executable: SimExecutable, x: SimMemory, y: SimMemory) -> None:
        job = executable.job
        x_name, y_name = job.vector_names
        named = [(p.name, p.ctype, executable.arrays.get(p.name)) for p in job.params if p.is_array]
        self._shadows: list[np.ndarray] = []
        rows = []
        for name, ctype, memory in named:
            if name == x_name:
                rows.append((name, x, native.BUFFER_AFTER_WAIT, VECTOR, False))
            elif name == y_name:
                rows.append((name, y, native.BUFFER_AFTER_WAIT | native.BUFFER_WRITABLE, OUTPUT, True))
            elif name in executable.workspaces:
                garbage = job.workspaces[name][1] == "scratch"
                flags = native.BUFFER_AFTER_WAIT | native.BUFFER_WRITABLE
                rows.append((name, executable.workspaces[name], flags, WORKSPACE, garbage))
            elif memory is not None:
                role = VALUES if name == "vals" else COLUMNS if "index_t" in ctype or "cols" in name else STRUCTURE
                rows.append((name, memory, 0, role, False))
        self.native = (NativeBuffer * max(1, len(rows)))()
        sector = 0
        for entry, (name, buffer, flags, role, garbage) in zip(self.native, rows, strict=False):
            size = buffer.size_bytes
            entry.base, entry.size, entry.virtual_sector = buffer.pointer, size, sector
            entry.flags = flags | role << native.ROLE_SHIFT
            entry.name = name.encode()[:31]
            entry.touched = self._shadow(size // 1024 + 1, np.uint32)
            if garbage:
                entry.initialised = self._shadow(size + 1, np.uint8)
            if flags & native.BUFFER_WRITABLE:
                entry.cells = self._shadow((size // 4 + 1) * CELL_BYTES, np.uint8)
            sector += size // 32 + 8

    def _shadow(self, count: int, dtype: Any) -> int:
        array = np.zeros(count, dtype=dtype)
        self._shadows.append(array)
        return int(array.ctypes.data)

    def forget_touched(self) -> None:
        for entry in self.native:
            entry.distinct = 0
            if entry.touched:
                ctypes.memset(entry.touched, 0, (entry.size // 1024 + 1) * 4)

    def distinct_bytes(self) -> int:
        return 32 * sum(int(entry.distinct) for entry in self.native)


def refusal(launch: Launch) -> str:
    """Why the machine would not start this launch, or ''."""
    if not 1 <= launch.block <= 1024:
        return f"kernel {launch.kernel}: a block of {launch.block} threads can't be launched; it must have 1..1024"
    if not 1 <= launch.grid < 2**31:
        return f"kernel {launch.kernel}: a grid of {launch.grid} blocks can't be launched; it must have 1..2147483647"
    if not 0 <= launch.shared_bytes <= native.SHARED_LIMIT:
        limit = native.SHARED_LIMIT
        return f"kernel {launch.kernel}: {launch.shared_bytes} bytes of dynamic shared memory; an SM has {limit}"
    return ""
