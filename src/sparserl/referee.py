"""The judge as the search's Referee: one matrix, one problem, one timing mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sparserl.judge.evaluate import Case, Judge
from sparserl.matrix import Pattern
from sparserl.records import Mode, Outcome, Problem, Timing

QUICK_MS, FULL_MS = 0.5, 2.0
"""how long one timed graph lasts, in a first look and in a race"""


class JudgeReferee:
    """Implements `search.Referee`."""

    def __init__(self, case: Case, mode: Mode) -> None:
        self.case, self.mode = case, mode
        self.repeatable = case.device.backend == "sim"

    def judge(self, texts: Sequence[str], rounds: int, told: Callable[[int, Outcome], None]) -> None:
        self.case.judge(texts, (self.mode,), rounds, QUICK_MS, told)

    def race(self, texts: Sequence[str], rounds: int, baselines: bool) -> tuple[list[Outcome], dict[str, Timing]]:
        names = self.case.baselines() if baselines else ()
        named = {f"candidate {i}": text for i, text in enumerate(texts)}
        race = self.case.race(named, names, (self.mode,), rounds, FULL_MS)
        outcomes = [race.outcomes[f"candidate {i}"] for i in range(len(texts))]
        return outcomes, {name: race[name][self.mode] for name in names if name in race}


@contextmanager
def open_referee(pattern: Pattern, problem: Problem, mode: Mode, device: str, seed: int) -> Iterator[JudgeReferee]:
    """A judge for one tuning."""
    with Judge(device) as judge:  # type: ignore[arg-type]  # 'cuda' or 'sim', from a Device
        yield JudgeReferee(judge.open(pattern, problem, seed), mode)
