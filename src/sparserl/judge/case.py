"""One matrix and one problem before the judge: texts go in, Outcomes and timings come out.

Programs are prepared in windows; while the worker runs one window, the compilers have the next. Data is put again
whenever the worker was replaced, so a program that kills its worker costs only itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise
from typing import Literal, TypeVar

from sparserl.errors import BackendError
from sparserl.judge import plain, timing
from sparserl.judge.baselines import Baselines
from sparserl.judge.compiling import Compiled, Compiler
from sparserl.judge.desk import Desk, Entry, Watcher, entries_of
from sparserl.judge.prepare import Packs, Prepared, prepare
from sparserl.judge.race import Clocking, Race, Timings, over_timing
from sparserl.judge.reference import Reference
from sparserl.judge.sandbox import Sandbox, WorkerError
from sparserl.judge.trial import Stopped, Trial, foresee
from sparserl.judge.twin import Twins
from sparserl.matrix import Pattern
from sparserl.phases import phase
from sparserl.records import Mode, Outcome, Problem, Verdict

log = logging.getLogger(__name__)

TOGETHER, POOLED = 8, 16
"""programs that a GPU times in one go. Where several processes share it, as in training (a pooled case), each timing
waits until the others are out: fewer, longer ones are better"""
SHOWN = 16
"""programs that a GPU shows the same numbers, at most"""

Key = TypeVar("Key", int, str)
"""of a program: its place among the texts, or its name"""


class Case:
    """Made by `Judge.open`. `close` frees the worker's memory."""

    def __init__(
        self, pattern: Pattern, problem: Problem, sandbox: Sandbox, compiler: Compiler, *, seed: int | None,
        pooled: bool = False,
    ) -> None:  # fmt: skip
        self.pattern, self.problem = pattern, problem
        self.device = sandbox.device
        self.reference = Reference(pattern, problem, seed, pooled)
        self._modelled = self.device.backend == "sim"
        self._together = POOLED if pooled else TOGETHER
        self._pooled = pooled
        self._compiler, self._packs = compiler, Packs(pattern)
        self._desk = Desk(problem, self._packs, sandbox)
        self._twins = Twins(pattern, problem, self.device.sms, seed)
        self._floors: dict[Mode, float] = {}
        self.beside = Race()
        """timings of the baselines that programs were judged beside"""
        steady = self.reference.draw_chain(row_sums=False)
        self._steady = steady if steady.key else replace(steady, key="steady")
        self._baselines = Baselines(pattern, problem, self._desk, self._steady)
        self._foreseen = False

    def judge(
        self,
        texts: Sequence[str],
        modes: Sequence[Mode] = ("chain",),
        rounds: int = 3,
        graph_ms: float = 0.5,
        on_outcome: Watcher | None = None,
        *,
        beside: Callable[[], Sequence[str]] = tuple,
    ) -> list[Outcome]:
        """Verify every program and time it briefly, or, without modes, verify it alone.

        `on_outcome` is told each index and Outcome as it is known: on a GPU some at a time. beside: baselines that the
        first of them to be timed side by side are timed with, for `self.beside`: a turn alone on the GPU less. It is
        called when those have passed (what is put before is lost to the first that fails), and once a case has them
        no more.
        """
        outcomes: dict[int, Outcome] = {}

        def known(index: int, outcome: Outcome) -> None:
            outcomes[index] = outcome
            if on_outcome is not None:
                on_outcome(index, outcome)

        clocking = Clocking(tuple(modes), rounds, graph_ms)
        compiled = self._compiled(list(texts), known)
        shown = SHOWN
        while some := dict(islice(compiled, 1 if self._modelled or not modes else self._together)):
            if self._modelled or shown + len(some) > SHOWN:
                self._begin()
                shown = 0
            shown += len(some)
            self._judge_some(some, clocking, known, beside)
        return [outcomes[i] for i in range(len(texts))]

    def foresee(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Draw the numbers that the next programs will be shown: for who has time before they are there.

        wanted: looked at in between, as a set of a large problem takes seconds.
        """
        self._begin()
        foresee(self.reference, wanted)
        if self.reference.fresh and wanted():
            self._twins.foresee()
        self._foreseen = True

    def baselines(self, every_order: bool = False) -> tuple[str, ...]:
        """The names of what a user has without us: cuSPARSE's variants on cuda, a plain CSR program on sim.

        every_order: of an SpMM also those on row-major and on column-major B and C, whichever the problem has; their
        names end in '@row' or '@col'. A library that is faster in the other order is the stronger baseline.
        """
        if self._modelled:
            return (plain.NAME,)
        self._desk.attend()
        try:
            return self._baselines.put(every_order)
        except WorkerError as error:
            raise BackendError(f"The baselines can't be loaded: {error}") from error

    def race(
        self,
        texts: Sequence[str] | Mapping[str, str],
        baselines: Sequence[str] = (),
        modes: Sequence[Mode] = ("solver", "chain"),
        rounds: int = 7,
        graph_ms: float = 2.0,
        *,
        verify: Literal["around", "after", "not"] = "around",
    ) -> Race:
        """Time programs and baselines side by side, round by round, and verify the programs before and after.

        Names: the mapping's keys, or the texts. verify: 'after' what was judged before, 'not' what is raced again too.
        """
        race = Race()
        named = dict(texts) if isinstance(texts, Mapping) else {text: text for text in texts}
        if plain.NAME in baselines:
            named[plain.NAME] = plain.plain(self.problem)
        names, library = list(named), [name for name in baselines if name != plain.NAME]
        refused: Watcher = lambda index, outcome: race.outcomes.update({names[index]: outcome})  # noqa: E731
        entries = {names[index]: entry for index, entry in self._compiled(list(named.values()), refused)}
        self._begin()
        self._verify_all(entries if verify == "around" else {}, race.outcomes.__setitem__)
        clocking = Clocking(tuple(modes), rounds, graph_ms)
        readings = self._time_together(entries, library, clocking, race)
        for name, timings in readings.items():
            if name in entries:
                race.outcomes[name] = self._settled(entries[name], timings, clocking, verify != "not")
            if name in library or race.outcomes[name].correct:
                race[name] = timings
        return race

    def close(self) -> None:
        """Free what the worker holds for the case."""
        self._desk.close()

    # ---- before the run

    def _compiled(self, texts: list[str], refused: Watcher) -> Iterator[tuple[int, Entry]]:
        """Prepare and compile in windows, one ahead; what doesn't get that far is told to `refused`."""
        size = max(4, 2 * self._compiler.workers)
        borders = [0, *range(min(size, TOGETHER), len(texts), size), len(texts)]  # the worker soon has the first
        waiting: tuple[list[tuple[int, Prepared]], Future[list[Compiled]]] | None = None
        for first, last in [*pairwise(borders), (0, 0)]:
            following = None
            if first < last:
                window = self._prepared(first, texts[first:last], refused)
                sources = [(ready.job.source, tuple(ready.job.kernels)) for _, ready in window]
                following = (window, self._compiler.submit(sources))
                for _, ready in window if self.reference.fresh else ():
                    self._twins.of(ready)  # packed while the compilers work
            if waiting is not None:
                yield from entries_of(*waiting, refused)
            waiting = following

    def _prepared(self, start: int, texts: Sequence[str], refused: Watcher) -> list[tuple[int, Prepared]]:
        out = []
        for index, text in enumerate(texts, start):
            ready = prepare(text, self.problem, self._packs, self.device.sms, self.pattern.used_columns)
            if isinstance(ready, Outcome):
                refused(index, ready)
            else:
                out.append((index, ready))
        return out

    # ---- the verdict

    def _judge_some(
        self, entries: dict[int, Entry], clocking: Clocking, known: Watcher, beside: Callable[[], Sequence[str]]
    ) -> None:
        """Verify each and time those that are right side by side; if that fails, one by one: whose fault is it?"""
        timed: dict[str, Timings] = {}
        took: dict[str, float] = {}
        if len(entries) > 1:
            self._verify_all(entries, known)
            with suppress(WorkerError, Stopped, BackendError):
                library = beside() if entries and not self.beside else ()
                with phase(took, "time"):
                    timed = self._time({str(index): entry for index, entry in entries.items()}, library, clocking)
                self.beside.update({name: timed[name] for name in library})
        for index, entry in entries.items():
            if timed:
                entry.phases_s["time"] = took["time"] / len(entries)
                known(index, self._settled(entry, timed[str(index)], clocking))
            else:
                known(index, self._judged(entry, clocking))

    def _judged(self, entry: Entry, clocking: Clocking) -> Outcome:
        """Load, verify, time, verify again."""
        try:
            self._verify(entry)
            with phase(entry.phases_s, "time"):
                timings = self._time({"": entry}, (), clocking)[""]
            return self._settled(entry, timings, clocking)
        except Stopped as stopped:
            return self._stopped(entry, stopped)
        except WorkerError as error:
            return self._stopped(entry, over_timing(error))
        finally:
            self._desk.unload(entry)

    def _begin(self) -> None:
        """What is judged from here on is shown the same numbers, which nobody has seen before."""
        if self._foreseen:
            self._foreseen = False
            return
        self.reference.begin()
        self._twins.begin()
        self._desk.forget_shared()

    def _verify(self, entry: Entry) -> None:
        self._desk.load(entry)
        trial = self._trial(entry)
        with phase(entry.phases_s, "verify"):
            trial.verify()
            self._verify_on_twin(entry)
        entry.sectors = trial.sectors

    def _verify_on_twin(self, entry: Entry) -> None:
        """Where a product is cheap enough to afford another pattern. Raises Stopped."""
        found = self._twins.of(entry.prepared) if self.reference.fresh else None
        if found is None:
            return
        packed, reference = found
        try:
            name = self._desk.load_beside(entry, packed)
            Trial(self._desk, reference, name, waits=False).verify_twin()
        except WorkerError as error:
            raise Stopped(Verdict.FAILED, f"on another pattern of the same sizes: {error}") from error
        finally:
            self._desk.drop_beside()

    def _verify_all(self, entries: dict[Key, Entry], told: Callable[[Key, Outcome], None]) -> None:
        """Verify each; those that fail leave, and their verdict is told."""
        for key, entry in list(entries.items()):
            try:
                self._verify(entry)
            except Stopped as stopped:
                told(key, self._stopped(entry, stopped))
                self._desk.unload(entries.pop(key))
            if self._modelled:
                self._desk.unload(entry)

    def _settled(self, entry: Entry, timings: Timings, clocking: Clocking, recheck: bool = True) -> Outcome:
        """After timing: verified once more, and the times themselves looked at."""
        try:
            if recheck:
                if not self._modelled and not self._desk.holds(entry):
                    # one that was timed beside it failed since, and what the timing left behind went with that
                    self._time({"": entry}, (), clocking)
                self._desk.load(entry)
                with phase(entry.phases_s, "verify"):
                    self._trial(entry).recheck()
        except Stopped as stopped:
            return self._stopped(entry, stopped)
        except WorkerError as error:
            return self._stopped(entry, over_timing(error))
        finally:
            self._desk.unload(entry)
        if any(map(timing.implausible, timings.values())):  # the floor is measured too: look at it once more
            with suppress(WorkerError):
                floors = {mode: self._floor_us(entry.prepared, timings[mode].mode, again=True) for mode in timings}
                timings = {mode: replace(timings[mode], floor_us=floors[mode]) for mode in timings}
        reason = next(filter(None, map(timing.implausible, timings.values())), "")
        return self._outcome(entry, Verdict.IMPLAUSIBLE if reason else Verdict.CORRECT, reason, timings)

    def _stopped(self, entry: Entry, stopped: Stopped) -> Outcome:
        self._desk.clear_after(stopped)
        return self._outcome(entry, stopped.verdict, str(stopped), {})

    @staticmethod
    def _outcome(entry: Entry, verdict: Verdict, reason: str, timings: Timings) -> Outcome:
        return Outcome(
            verdict,
            reason,
            timings,
            registers=entry.binary.registers,
            packed_bytes=entry.prepared.packed_bytes,
            phases_s=entry.phases_s,
            sectors=entry.sectors,
        )

    def _trial(self, entry: Entry) -> Trial:
        return Trial(self._desk, self.reference, entry.name, entry.prepared.job.waits)

    # ---- the clock

    def _time_together(
        self, entries: dict[str, Entry], library: Sequence[str], clocking: Clocking, race: Race
    ) -> dict[str, Timings]:
        """A worker that dies over it, or has something broken after it, is tried once more, with those that still pass.

        Then each is timed alone: who breaks something there has failed.
        """
        if self._modelled:  # the same alone as in company, and a simulator worker has room for few programs
            return {name: self._time_alone(name, entry, clocking) for name, entry in entries.items()}
        try:
            return self._time(entries, library, clocking)
        except (WorkerError, Stopped) as error:
            log.warning("A race of %d programs is done again: %s", len(entries), error)
            self._begin()
            self._verify_all(entries, race.outcomes.__setitem__)
        try:
            try:
                return self._time(entries, library, clocking)
            except (WorkerError, Stopped):
                self._leave_out(entries, clocking, race)
                return self._time(entries, library, clocking)
        except (WorkerError, Stopped) as error:
            raise BackendError(f"The worker failed twice while it timed {len(entries)} programs: {error}") from error

    def _leave_out(self, entries: dict[str, Entry], clocking: Clocking, race: Race) -> None:
        """Those that break something, or fail, when they are timed alone."""
        for name, entry in list(entries.items()):
            try:
                self._time({name: entry}, (), clocking)
            except (Stopped, WorkerError) as error:
                stopped = error if isinstance(error, Stopped) else over_timing(error)
                race.outcomes[name] = self._stopped(entries.pop(name), stopped)

    def _time_alone(self, name: str, entry: Entry, clocking: Clocking) -> Timings:
        try:
            return self._time({name: entry}, (), clocking)[name]
        except (WorkerError, Stopped) as error:
            raise BackendError(f"The worker failed while it timed a program that had passed: {error}") from error
        finally:
            self._desk.unload(entry)

    def _time(self, entries: dict[str, Entry], library: Sequence[str], clocking: Clocking) -> dict[str, Timings]:
        """All in one call a mode, so that every side sees the same clocks. Raises WorkerError, Stopped after damage."""
        desk = self._desk
        desk.attend()
        self._baselines.put_named(library)
        for entry in entries.values():
            desk.load(entry)
            desk.call("place", name=entry.name, check=desk.handed(self._steady))
        if not all(map(desk.holds, entries.values())):
            raise BackendError(f"The layouts of {len(entries)} programs don't fit in the worker together: race fewer.")
        if not self._modelled and not self._pooled:  # beside a pooled one the spares of other processes start, too
            desk.sandbox.settle()
        names = [entry.name for entry in entries.values()] + list(library)
        out: dict[str, Timings] = {name: {} for name in [*entries, *library]}
        for mode in clocking.modes if names else ():
            plan = timing.plan(self.pattern, self.problem, mode, clocking.rounds, clocking.graph_ms)
            answer = desk.call("time", desk.timing_limit_s(len(names)), names=names, plan=plan)
            readings, clock_mhz, repetitions = answer
            for name, readings_us, products in zip(out, readings, repetitions, strict=True):
                floor = self._floor_us(entries[name].prepared if name in entries else None, mode)
                summary = timing.summarise(mode, readings_us, floor, self.device)
                out[name][mode] = replace(summary, clock_mhz=clock_mhz, repetitions=products)
        if entries and clocking.modes and not self._modelled and (damage := desk.call("damage")):
            stopped = Stopped(Verdict.FAILED, f"while it was timed: {damage}")
            desk.clear_after(stopped)  # of several it can't be said which: they are timed again, or one by one
            raise stopped
        return out

    def _floor_us(self, prepared: Prepared | None, mode: Mode, again: bool = False) -> float:
        """The longer of the empty kernel (the shortest of its measurements) and the traffic a product can't avoid."""
        if mode not in self._floors or again:
            plan = timing.floor_plan(self.pattern, self.problem, mode, again)
            measured = float(self._desk.call("floor_us", plan=plan))
            self._floors[mode] = min(measured, self._floors.get(mode, measured))
        least = timing.traffic_floor_us(prepared.least_bytes, self.device, mode) if prepared else 0.0
        return max(self._floors[mode], least)
