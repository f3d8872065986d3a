"""Peers that launch their product on a stream of ours, timed beside the operator in this process.

All that can be captured in a CUDA graph are timed as the judge times programs: same vectors, same number of products a
graph, round by round in turns, the operator among them. A library that refuses to be captured is timed by events around
products on the stream, back to back in every mode: that includes what its host code costs where that is longer, and
leaves out the rewriting of x. `how` in the record says which; `beside_us` is the operator's time in the same graphs.
Every side is verified before and after it is timed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from sparserl.backends.backend import Backend, Buffer, Executable
from sparserl.backends.driver import StickyError, Stopwatch
from sparserl.bench.peers import OPERATOR, Reading, Subject, faults
from sparserl.engine import make_engine
from sparserl.errors import SparseRLError
from sparserl.judge import timing
from sparserl.judge.reference import reordered
from sparserl.matrix import Array
from sparserl.records import Mode, Problem, Timing
from sparserl.values import STORAGE

log = logging.getLogger(__name__)

POISON = 0xFF
"""as bytes of any storage type: NaN"""
GRAPH_MS = 2.0
STREAMED = 50
"""products between two events"""
REFUSALS = (SparseRLError, RuntimeError, NotImplementedError, TypeError, ValueError, MemoryError)
"""how the libraries say that they can't do something"""


class Launched(Protocol):
    """A library's sparse product."""

    @property
    def name(self) -> str:
        """Of its side, such as 'torch:csr'."""

    def why_not(self) -> str:
        """'' where it is installed, else what is missing."""

    def orders(self, problem: Problem) -> Problem:
        """The same problem in the memory order that it multiplies in."""

    def prepare(self, subject: Subject) -> Executable:
        """The matrix with the values of `subject.check` on the device, ready to launch in that order."""


@dataclass(frozen=True)
class _Side:
    executable: Executable
    problem: Problem
    """in its own memory order"""
    captured: bool = False
    """whether it can be part of a CUDA graph"""


class SideBySide:
    """Implements `peers.Peer` for several `Launched` at once."""

    def __init__(
        self, backend: Backend, members: Sequence[Launched], alone: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`alone` is held while products are timed outside of graphs, where other processes use the GPU too."""
        self.name = ", ".join(member.name for member in members)
        self._backend, self._members, self._alone = backend, members, alone

    def why_not(self) -> str:
        return ""

    def measure(self, subject: Subject) -> Iterator[Reading]:
        sides: dict[str, _Side] = {}
        x, y = self._vectors(subject)
        for member in self._members:
            try:
                side = _Side(member.prepare(subject), member.orders(subject.problem))
                fault = self._wrong(side, subject, x, y)
                if not fault:
                    captured = self._can_be_captured(side.executable, subject)
                    sides[member.name] = replace(side, captured=captured)
            except StickyError:
                raise  # nothing in this process works any more
            except REFUSALS as error:
                fault = _said(error)
            if fault:
                yield from faults([member.name], subject, "gpu", fault)
        for mode in subject.modes if sides else ():
            yield from self._in_mode(sides, subject, mode, (x, y))

    def _in_mode(
        self, sides: Mapping[str, _Side], subject: Subject, mode: Mode, vectors: tuple[Buffer, Buffer]
    ) -> Iterator[Reading]:
        x, y = vectors
        together = {name: side.executable for name, side in sides.items() if side.captured}
        timed: dict[str, Timing] = {}
        try:
            timed = self._together(together, subject, mode) if together else {}
        except StickyError:
            raise
        except REFUSALS as error:
            for name in together:
                yield Reading(name, mode, "gpu", fault=_said(error))
        beside = timed.pop(OPERATOR, None)
        for name, side in sides.items():
            if side.captured and name not in timed:
                continue
            how = "in CUDA graphs" if side.captured else "on a stream, back to back"
            more = {"how": how} | ({"beside_us": round(beside.median_us, 4)} if beside and side.captured else {})
            try:
                if not side.captured and mode == "cold":
                    yield Reading(name, mode, "gpu", fault="it can't be captured, and cold needs a graph", more=more)
                    continue
                found = timed.get(name) or self._streamed(side.executable, subject, mode, vectors)
                fault = self._wrong(side, subject, x, y)
                yield Reading(name, mode, "gpu", found, verified=not fault, fault=fault, more=more)
            except StickyError:
                raise
            except REFUSALS as error:
                yield Reading(name, mode, "gpu", fault=_said(error), more=more)

    def _together(self, sides: Mapping[str, Executable], subject: Subject, mode: Mode) -> dict[str, Timing]:
        """All in one call, the operator too, so that every side sees the same clocks."""
        backend = self._backend
        plan = timing.plan(subject.matrix.pattern, subject.problem, mode, subject.rounds, GRAPH_MS)
        named = dict(sides)
        if text := subject.programs.get(mode):
            engine = make_engine(subject.matrix, subject.problem, text, backend, generated=True)
            named[OPERATOR] = engine.executable
        readings = backend.time(list(named.values()), plan)
        clock, products = backend.clock_mhz(), backend.repetitions
        floor, device = backend.floor_us(plan), backend.device()  # a timing of its own
        return {
            name: replace(timing.summarise(mode, times, floor, device), clock_mhz=clock, repetitions=count)
            for name, times, count in zip(named, readings, products, strict=True)
        }

    def _streamed(self, executable: Executable, subject: Subject, mode: Mode, vectors: tuple[Buffer, Buffer]) -> Timing:
        x, y = vectors
        stream = int(getattr(self._backend, "stream", 0))
        watch, times = Stopwatch(), []
        try:
            with self._alone():
                for _ in range(subject.rounds + 1):
                    with watch.around(stream):
                        for _ in range(STREAMED):
                            executable.launch(x.pointer, y.pointer, stream)
                    times.append(1000 * watch.elapsed_ms / STREAMED)
        finally:
            watch.close()
        found = timing.summarise(mode, times[1:], 0.0, self._backend.device())  # the first one warms up
        log.debug("%s mode, streamed: %.2f us", mode, median(times[1:]))
        return replace(found, repetitions=STREAMED)

    def _can_be_captured(self, executable: Executable, subject: Subject) -> bool:
        plan = timing.plan(subject.matrix.pattern, subject.problem, "chain", 1, GRAPH_MS)
        try:
            self._backend.time([executable], replace(plan, repetitions=2))
        except StickyError:
            raise
        except REFUSALS as error:
            log.info("%s can't be captured: %s", type(executable).__name__, _said(error))
            return False
        return True

    def _vectors(self, subject: Subject) -> tuple[Buffer, Buffer]:
        check, problem = subject.check, subject.problem
        x = self._backend.alloc(max(check.x.nbytes, 1))
        return x, self._backend.alloc(max(subject.matrix.pattern.rows * problem.columns * problem.value_bytes, 1))

    def _wrong(self, side: _Side, subject: Subject, x: Buffer, y: Buffer) -> str:
        """'' where one product into poisoned memory is right."""
        backend, pattern, problem = self._backend, subject.matrix.pattern, subject.problem
        if subject.check.x.size:
            backend.write(x, reordered(subject.check.x, pattern.columns, problem.b_order, side.problem.b_order))
        backend.fill(y, POISON)
        report = backend.run(side.executable, x, y)
        if not report.ok:
            return report.reason or "it failed without a reason"
        result: Array = backend.read(y, STORAGE[problem.dtype], pattern.rows * problem.columns)
        return subject.wrong(reordered(result, pattern.rows, side.problem.c_order, problem.c_order))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
