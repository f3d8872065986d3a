"""Exploring: time many recipe programs on one matrix, briefly, on a machine in this process.

Layout by layout: arrays go up once, values are scattered on the device, every program of the layout is run and looked
at. The first that is right is timed alone, the others some at a time, of several layouts: a timing has the GPU alone,
and where other processes share it, each such turn is waited for. A program far behind the best so far is not timed in
the second mode. These times choose finalists; they are not reported: finalists go to the judge and are verified and
timed again beside cuSPARSE.

Not covered: protection from hostile programs. Only recipes come here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse

from sparserl.backends.backend import Backend, Binary, Buffer, Executable, Job, TimingPlan
from sparserl.bench.packing import PackPool
from sparserl.errors import BackendError, CompileError
from sparserl.judge import timing
from sparserl.layouts import padding_value
from sparserl.matrix import Pattern
from sparserl.recipes import Recipe
from sparserl.records import DType, Mode, Packed, Problem
from sparserl.values import STORAGE, store, widen


@dataclass(frozen=True)
class Effort:
    """How long a program is timed."""

    modes: tuple[Mode, ...] = ("solver", "chain")
    rounds: int = 3
    graph_ms: float = 0.08
    far_behind: float = 1.5
    """a program this much slower than the best so far is not timed in the other modes"""
    hopeless: float = 6.0
    """on a GPU, a program this much slower is timed once and never again"""


BRIEF = Effort()
FEWEST, LONG_US = 4, 200.0
"""products in a graph; one is enough where the best so far takes this long"""
HOST_US = 300.0
"""what the host's clock may add to a run: launch and synchronisation, beside other processes"""
PERIOD = 1_000_003
"""numbers after which those of A and x repeat: a prime, so that no row or column meets itself"""
TOGETHER, HELD_BYTES = 24, 4 << 30
"""programs that are timed together, and what their layouts may take on the device"""
LOOKED_AT = 1_000_000
"""numbers of y that are read back for a look at the result, from its beginning"""


@dataclass(frozen=True)
class Measured:
    """One program on one matrix."""

    recipe: Recipe
    times_us: dict[str, float] = field(default_factory=dict)
    """by mode"""
    fault: str = ""
    registers: int = 0
    least_bytes: int = 0
    """what one product of it must move"""
    code: str = ""
    """hash of its machine code; '' where it didn't get as far as being loaded"""


@dataclass(frozen=True)
class _Loaded:
    """A program that gave the right result, with the arrays it reads, waiting to be timed."""

    known: Measured
    executable: Executable
    arrays: dict[str, Buffer]


def _numbers(rng: np.random.Generator, count: int, dtype: DType) -> np.ndarray:
    """Ordinary numbers as stored; many of them repeat, because drawing them would take longer than timing them."""
    return np.resize(store(rng.standard_normal(min(count, PERIOD)), dtype), count)


class Explorer:
    """Times programs of one pattern and problem."""

    def __init__(self, backend: Backend, pool: PackPool, pattern: Pattern, problem: Problem, seed: int = 0) -> None:
        self._backend, self._pool, self._pattern, self._problem = backend, pool, pattern, problem
        rng = np.random.default_rng(seed)
        wide = problem.columns
        self._values = _numbers(rng, pattern.nonzeros, problem.dtype)
        right = _numbers(rng, pattern.columns * wide, problem.dtype).reshape(pattern.columns, wide)
        self._x = self._upload(right if problem.b_order == "row" else np.ascontiguousarray(right.T))
        self._y = backend.alloc(max(1, pattern.rows * wide * problem.value_bytes))
        self._head = pattern.rows if problem.c_order == "col" else min(pattern.rows, max(1, LOOKED_AT // wide))
        self._rows = self._probe_rows(rng)
        self._expected, self._scale = self._reference(right)
        self._empty_us: dict[Mode, float] = {}
        self.best_us: dict[str, float] = {}

    def _probe_rows(self, rng: np.random.Generator) -> np.ndarray:
        """The rows that are looked at: all of a small matrix, a sample of a large one's first with their longest."""
        if self._pattern.nonzeros * self._problem.columns <= 2_000_000:
            return np.arange(self._head)
        some = rng.integers(0, self._head, 2000)
        return np.unique(np.append(some, int(np.argmax(self._pattern.row_lengths[: self._head]))))

    def _reference(self, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a = scipy.sparse.csr_array(
            (widen(self._values, self._problem.dtype), self._pattern.cols, self._pattern.row_start),
            shape=self._pattern.shape,
        )[self._rows]
        used, places = np.unique(a.indices, return_inverse=True)
        a = scipy.sparse.csr_array((a.data, places, a.indptr), shape=(len(self._rows), len(used)))
        seen = widen(right[used], self._problem.dtype)
        expected = a @ seen
        a.data = np.abs(a.data)
        return expected, a @ np.abs(seen) + 1e-30

    def measure(self, recipes: Sequence[Recipe], effort: Effort = BRIEF) -> Iterator[Measured]:
        """Every recipe, about in the order in which their layouts get ready."""
        waiting: list[_Loaded] = []
        held_bytes = 0
        for ready in self._pool.prepare(self._pattern, self._problem, [(r.layout, r.text) for r in recipes]):
            for at, reason in ready.refused:
                yield Measured(recipes[at], fault=reason)
            if ready.packed is None:
                continue
            arrays = self._placed(ready.packed)
            held_bytes += sum(buffer.size_bytes for buffer in arrays.values())
            least = timing.least_bytes(ready.packed, self._problem, self._pattern.used_columns)
            for at, job, binary in ready.programs:
                found = self._looked_at(Measured(recipes[at], least_bytes=least), job, binary, arrays, effort)
                if isinstance(found, Measured):
                    yield found
                else:
                    waiting.append(found)
                full = len(waiting) == (TOGETHER if self.best_us else 1)  # who is hopeless is known from the first on
                if full or (held_bytes > HELD_BYTES and waiting):
                    yield from self._timed(waiting, effort)
                    waiting, held_bytes = [], 0
        yield from self._timed(waiting, effort)

    def floor_us(self, mode: Mode, least_bytes: int) -> float:
        """What no program that moves so much can beat: that traffic, or the empty kernel."""
        if mode not in self._empty_us:
            self._empty_us[mode] = self._backend.floor_us(timing.plan(self._pattern, self._problem, mode, 3, 0.3))
        return max(self._empty_us[mode], timing.traffic_floor_us(least_bytes, self._backend.device(), mode))

    def plan(self, mode: Mode, effort: Effort) -> TimingPlan:
        """Enough products for the best program so far are enough for all, and need not be found out."""
        plan = timing.plan(self._pattern, self._problem, mode, effort.rounds, effort.graph_ms)
        if mode not in self.best_us:
            return plan
        fitting = math.ceil(1000 * effort.graph_ms / max(0.2, self.best_us[mode]))
        return replace(plan, repetitions=max(FEWEST if self.best_us[mode] < LONG_US else 1, fitting))

    def _placed(self, packed: Packed) -> dict[str, Buffer]:
        arrays = self._backend.upload(packed.arrays)
        slot_of = None if packed.slot_of is None else self._upload(packed.slot_of)
        arrays["vals"] = self._backend.alloc(max(1, packed.slots * self._problem.value_bytes))
        self._backend.scatter(arrays["vals"], self._values, slot_of, padding_value(self._problem.dtype))
        return arrays

    def _looked_at(
        self, known: Measured, job: Job, binary: Binary | str, arrays: dict[str, Buffer], effort: Effort
    ) -> Measured | _Loaded:
        """Run once: a fault or a hopeless time ends it here."""
        try:
            made = self._backend.compile(job.source, job.kernels) if binary == "" else binary
        except CompileError as error:
            made = f"does not compile: {error}"
        if isinstance(made, str):
            return replace(known, fault=made)
        known = replace(known, registers=made.registers, code=made.code_hash)
        executable = self._backend.prepare(made, job, arrays)
        self._backend.fill(self._y, 0xFF)
        fault, host_us = self._run(executable)
        fault = fault or self._wrong()
        if fault:
            return replace(known, fault=fault)
        first = effort.modes[0]
        limit_us = effort.hopeless * self.best_us.get(first, np.inf)
        if host_us > HOST_US + limit_us:  # by the host's clock, which the first run's loading and others disturb
            host_us = self._run(executable)[1]
        if host_us > HOST_US + limit_us:
            once = replace(timing.plan(self._pattern, self._problem, first, 1, effort.graph_ms), repetitions=1)
            alone_us = self._backend.time([executable], once)[0][0]
            if alone_us > limit_us:
                return replace(known, times_us={first: alone_us})
        return _Loaded(known, executable, arrays)

    def _timed(self, loaded: Sequence[_Loaded], effort: Effort) -> list[Measured]:
        """All of them side by side, mode by mode; where that fails, one by one, to see whose fault it is."""
        times: list[dict[str, float]] = [{} for _ in loaded]
        going = list(range(len(loaded)))
        for mode in effort.modes if loaded else ():
            try:
                readings = self._backend.time([loaded[at].executable for at in going], self.plan(mode, effort))
            except BackendError as error:
                if len(loaded) == 1:
                    return [replace(loaded[0].known, times_us=times[0], fault=str(error))]
                return [measured for each in loaded for measured in self._timed([each], effort)]
            for at, side in zip(going, readings, strict=True):
                times[at][mode] = float(np.median(side))
            best_us = min(times[at][mode] for at in going)
            self.best_us[mode] = min(best_us, self.best_us.get(mode, np.inf))
            going = [at for at in going if times[at][mode] <= effort.far_behind * self.best_us[mode]]
            if not going:
                break
        return [replace(each.known, times_us=found) for each, found in zip(loaded, times, strict=True)]

    def _run(self, executable: Executable) -> tuple[str, float]:
        """One product: what went wrong, and microseconds by the host's clock."""
        report = self._backend.run(executable, self._x, self._y)
        return "" if report.ok else report.reason or "failed", report.host_us

    def _wrong(self) -> str:
        """'' or what is wrong with y. A rough look: the judge has the last word on finalists."""
        wide, dtype = self._problem.columns, self._problem.dtype
        y = self._backend.read(self._y, STORAGE[dtype], self._head * wide)
        y = y.reshape(self._head, wide) if self._problem.c_order == "row" else y.reshape(wide, -1).T
        error = np.abs(widen(y[self._rows], dtype) - self._expected) / self._scale
        worst = float(np.max(error, initial=0.0))
        return "" if worst < {"float64": 1e-12, "float32": 1e-4}.get(dtype, 2e-2) else f"off by {worst:.2g}"

    def _upload(self, array: np.ndarray) -> Buffer:
        return self._backend.upload({"": array})[""]
