"""The judge as the search's Referee: one matrix, one problem, one timing mode.

The library's variants are timed briefly with the first programs; those far behind the fastest of them there are not
raced at the end, where they would take most of the time. What a tuning says of them is that brief time.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from sparserl.backends.backend import Device
from sparserl.errors import SparseRLError
from sparserl.judge.evaluate import Case, Judge
from sparserl.matrix import Pattern
from sparserl.records import Mode, Outcome, Problem, Timing

QUICK_MS, FULL_MS = 0.5, 1.0
"""how long one timed graph lasts, in a first look and in a race"""
FAR = 1.25
"""times slower than the fastest of the library's variants in a brief timing: not raced"""
KEPT_S = 60.0
"""how long a judge waits for another tuning: its worker holds a CUDA context, half a gigabyte of the GPU's memory"""


class JudgeReferee:
    """Implements `search.Referee`."""

    def __init__(self, case: Case, mode: Mode, worker_s: Callable[[], dict[str, float]] = dict) -> None:
        """worker_s: what its worker has spent since last asked, by command."""
        self.case, self.mode, self.worker_s = case, mode, worker_s
        self.repeatable = case.device.backend == "sim"

    def judge(self, texts: Sequence[str], rounds: int, told: Callable[[int, Outcome], None]) -> None:
        self.case.judge(texts, (self.mode,), rounds, QUICK_MS, told, beside=self.case.baselines)

    def race(self, texts: Sequence[str], rounds: int, baselines: bool) -> tuple[list[Outcome], dict[str, Timing]]:
        names = self.case.baselines() if baselines else ()
        brief = self._far(names)
        near = [name for name in names if name not in brief]
        named = {f"candidate {i}": text for i, text in enumerate(texts)}
        race = self.case.race(named, near, (self.mode,), rounds, FULL_MS, verify="after" if baselines else "not")
        outcomes = [race.outcomes[f"candidate {i}"] for i in range(len(texts))]
        timings = brief | {name: race[name][self.mode] for name in near if name in race}
        return outcomes, {name: timings[name] for name in names if name in timings}

    def _far(self, names: Sequence[str]) -> dict[str, Timing]:
        """Of these baselines those that need no race, with their brief times."""
        known = {name: self.case.beside[name][self.mode] for name in names if name in self.case.beside}
        fastest_us = min((timing.median_us for timing in known.values()), default=0.0)
        return {name: timing for name, timing in known.items() if timing.median_us > FAR * fastest_us}


class _Warm:
    """Judges that outlive a tuning, so that the next one in this process need not start a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._judges: dict[str, Judge] = {}
        self._timer: threading.Timer | None = None

    def take(self, device: str) -> Judge:
        """The judge of this device, the caller's until `give`; a new one where there is none, or another has it."""
        with self._lock:
            kept = self._judges.pop(device, None)
            if self._timer is not None:
                self._timer.cancel()
        return kept if kept is not None else Judge(device)  # type: ignore[arg-type]  # 'cuda' or 'sim', from a Device

    def give(self, device: str, judge: Judge) -> None:
        """Keep it for a while."""
        with self._lock:
            spare = self._judges.setdefault(device, judge)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(KEPT_S, self.close)
            self._timer.daemon = True
            self._timer.start()
        if spare is not judge:  # two tunings side by side: one judge is enough
            judge.close()

    def close(self) -> None:
        with self._lock:
            judges, self._judges = list(self._judges.values()), {}
        for judge in judges:
            judge.close()


_warm = _Warm()
atexit.register(_warm.close)


Asked = tuple[Pattern, Problem, int]
"""what a case is opened for: a matrix, a problem, a seed"""


class Ahead:
    """A judge that starts in the background, while candidates are made: its worker and its compilers take seconds.

    Then it opens the case, puts the library's variants there and draws the numbers that programs are checked with
    first, which takes tenths of one.
    """

    def __init__(self, device: str, programs: int, asked: Asked) -> None:
        """`programs` will be compiled side by side."""
        self.device, self._taken, self._dropped = device, False, threading.Event()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="sparserl-judge")
        self._started = self._threads.submit(self._start, programs)
        self._opened = self._threads.submit(self._open, asked)

    def machine(self) -> Device:
        """What it judges on, once it is up. Its worker measures the GPU when it starts, and must be alone on it.

        Raises what its start did.
        """
        return self._started.result().device

    def take(self) -> tuple[Judge, Case]:
        """The judge and its case, the caller's from now on. Raises what their start did."""
        self._taken = True
        try:
            judge = self._started.result()
            try:
                return judge, self._opened.result()
            except BaseException:
                judge.close()
                raise
        finally:
            self._threads.shutdown(wait=False)

    def most_bytes(self) -> int | None:
        """The most of the GPU's memory that the judge's worker had at one moment since it opened the case, if known."""
        with suppress(SparseRLError):  # a judge that was closed can't say
            return self._started.result().most_bytes()
        return None

    def drop(self) -> None:
        """Keep it for the next one, unless somebody took it."""
        if not self._taken:
            self._dropped.set()
            with suppress(SparseRLError):
                judge, case = self.take()
                case.close()
                _warm.give(self.device, judge)

    def _start(self, programs: int) -> Judge:
        judge = _warm.take(self.device)
        judge.warm(programs)
        return judge

    def _open(self, asked: Asked) -> Case:
        judge = self._started.result()
        judge.turns_s()  # what was before counts for others
        judge.most_bytes()
        case = judge.open(*asked)
        with suppress(SparseRLError):  # then it is told when they are asked for
            case.baselines()
        case.foresee(lambda: not self._dropped.is_set())
        return case


@contextmanager
def ahead_of(device: str, programs: int, asked: Asked) -> Iterator[Ahead]:
    """A judge that starts now; if nobody takes it, it stays for the next tuning."""
    ahead = Ahead(device, programs, asked)
    try:
        yield ahead
    finally:
        ahead.drop()


@contextmanager
def open_referee(mode: Mode, ahead: Ahead) -> Iterator[JudgeReferee]:
    """A judge for one tuning, the one that was started ahead. It stays for the next one, for a minute, unless something
    went wrong."""
    judge, case = ahead.take()
    try:
        yield JudgeReferee(case, mode, judge.turns_s)
        case.close()
    except BaseException:
        judge.close()
        raise
    _warm.give(ahead.device, judge)
