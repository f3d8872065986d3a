"""What tuning costs where one process has the machine to itself: seconds, and products until they have paid.

By the number of candidates and by decade of nonzeros. A matrix on which tuning fails has no seconds and never pays.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from sparserl.bench import breakeven
from sparserl.bench.bars import Bar
from sparserl.bench.digest import figure
from sparserl.bench.figures import Standing, paid_after
from sparserl.bench.tables import geometric_mean
from sparserl.bench.wanted import Known

PROBLEM, MODE = "spmv float32", "solver"
"""in which costs are measured"""
CANDIDATES = (16, 4, 1)
TUNING_S, BREAK_EVEN = 2.0, 1e6
MILLION = (5e5, 2e6)
"""nonzeros of a matrix that counts as one of a million"""
HEAD = ("candidates", "nonzeros", "matrices", "speed-up", "tuning s (median)", "at most", "to pay (median)")
Tunings = Mapping[str, Standing]
"""by matrix"""


def tunings(found: Sequence[Standing]) -> Tunings:
    """Of a benchmark in which one process was alone; none of one where several shared the machine."""
    here = [s for s in found if s.problem == PROBLEM and s.mode == MODE]
    return {s.matrix: s for s in here} if any(s.tuning_s is not None for s in here) else {}


def bars(alone: Tunings, listed: Known) -> list[Bar]:
    """The goals: seconds for a million nonzeros, and when tuning has paid for itself."""
    here = [alone[name] for name in listed if name in alone]
    among = [name for name, s in listed.items() if MILLION[0] <= s.nonzeros <= MILLION[1]]
    million = [alone[name] for name in among if name in alone]
    seconds = _seconds(million)
    worst = f"at most {max(seconds):.1f} s" if seconds else ""
    return [
        Bar(PROBLEM, "a tune of a million nonzeros, seconds (median)", _median(seconds), TUNING_S, least=False,
            beside=worst, count=len(million), expected=len(among)),
        Bar(PROBLEM, "products until tuning has paid (median)", paid_after(here), BREAK_EVEN, least=False,
            count=len(here), expected=len(listed)),
    ]  # fmt: skip


def rows(by_candidates: Mapping[int, Tunings], listed: Known) -> list[list[str]]:
    """By candidates and decade of nonzeros, '–' where nothing was measured; the first row is the head."""
    made = [list(HEAD)]
    sizes = breakeven.by_size(listed.values())
    for candidates in (*CANDIDATES, *sorted(by_candidates.keys() - set(CANDIDATES))):
        alone = by_candidates.get(candidates, {})
        for decade, members in sizes.items():
            here = [alone[s.matrix] for s in members if s.matrix in alone]
            seconds = _seconds(here)
            made.append([
                str(candidates), f"10^{decade} to 10^{decade + 1}", f"{len(here)}/{len(members)}",
                figure(geometric_mean(s.speedup for s in here)), figure(_median(seconds)),
                figure(max(seconds, default=None)), _products(paid_after(here)),
            ])  # fmt: skip
    return made


def _seconds(found: Sequence[Standing]) -> list[float]:
    return [s.tuning_s for s in found if s.tuning_s is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _products(value: float | None) -> str:
    return "–" if value is None else "never" if math.isinf(value) else f"{value:,.0f}"
