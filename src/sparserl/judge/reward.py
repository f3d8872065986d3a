"""The reward: how far a program came, and, where it is right, how fast it is. Pure.

    unreadable < screened < inadmissible < uncompilable < failed < wrong < correct

A right program earns `correct` and `slope` times the logarithm of its speed-up over the baseline of the same process
and mode. Speed-ups are put into steps of the tie width, so a difference inside the noise is none; they are clipped
below, so that a right program stays above a wrong one however slow it is, and above, so that one odd baseline can't
outweigh everything else. A program that is faster than the machine can be (IMPLAUSIBLE) earns the least of all: it must
never pay to cheat.

The numbers stand in for the scoring rules of `sparserl eval`, where a failure counts as a quarter of the baseline's
speed: `correct` is 0 at the baseline's speed, and every failure lies below log(1/4). Only differences matter to
learning. Not covered: how the rewards of several turns are put together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sparserl.records import Verdict

Form = Literal["hierarchical", "speed", "correctness"]
FORMS: tuple[Form, ...] = ("hierarchical", "speed", "correctness")
LEVELS = ("unreadable", "screened", "inadmissible", "uncompilable", "failed", "wrong")
"""the failures, the worst first: fields of `RewardWeights` and, in capitals, verdicts"""


@dataclass(frozen=True)
class RewardWeights:
    """What each level earns, and what speed adds."""

    unreadable: float = -2.4
    """no program; an implausible one earns this too"""
    screened: float = -2.2
    """holds something that may not be in a program"""
    inadmissible: float = -2.0
    """the layout refuses the matrix"""
    uncompilable: float = -1.9
    """the compiler refuses the source"""
    failed: float = -1.7
    """crashed, raced, hung or ran past the time limit"""
    wrong: float = -1.5
    """ran, with wrong results"""
    correct: float = 0.0
    """right, at the baseline's speed"""
    slope: float = 1.0
    """a nat of the speed-up's logarithm"""
    slowest: float = 0.25
    """speed-ups below this count as this"""
    fastest: float = 64.0
    """speed-ups above this count as this"""
    tie: float = 0.02
    """width of a step of the speed-up's logarithm: about the noise of a brief timing; 0: no steps"""
    form: Form = "hierarchical"
    """or 'speed': every failure earns `wrong`; or 'correctness': every right program earns `correct`"""

    def __post_init__(self) -> None:
        for name in (*LEVELS, "correct", "slope", "slowest", "fastest", "tie"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"The '{name}' of RewardWeights must be finite. Got {getattr(self, name)}.")
        if not self.slope > 0 or self.tie < 0:
            raise ValueError(
                "The 'slope' of RewardWeights must be above 0 and the 'tie' not below 0. "
                f"Got {self.slope} and {self.tie}."
            )
        if not 0 < self.slowest < 1 < self.fastest:
            raise ValueError(
                "The 'slowest' of RewardWeights must lie between 0 and 1, the 'fastest' above 1. "
                f"Got {self.slowest} and {self.fastest}."
            )
        if self.form not in FORMS:
            raise ValueError(f"The 'form' of RewardWeights must be one of {', '.join(FORMS)}. Got {self.form!r}.")
        rungs = [(name, getattr(self, name)) for name in LEVELS]
        rungs.append(("correct at the slowest speed-up", self.correct + self.slope * math.log(self.slowest)))
        for (below, low), (above, high) in itertools.pairwise(rungs):
            if not low < high:
                raise ValueError(
                    f"RewardWeights must rise from level to level: '{below}' ({low:g}) is not below '{above}' "
                    f"({high:g}). Lower the one, or raise the other ('correct', 'slowest' and 'slope' make the last)."
                )


DEFAULT = RewardWeights()


def reward(verdict: Verdict, speedup: float | None, weights: RewardWeights = DEFAULT) -> float:
    """Of one program. speedup: baseline time over its time; None unless it is right, as a failure's earns nothing."""
    if verdict is not Verdict.CORRECT:
        if weights.form == "speed":
            return weights.wrong
        least = verdict is Verdict.IMPLAUSIBLE
        return weights.unreadable if least else float(getattr(weights, verdict.name.lower()))
    if weights.form == "correctness":
        return weights.correct
    if speedup is None or not (math.isfinite(speedup) and speedup > 0):
        raise ValueError(f"The 'speedup' of a right program must be a finite number above 0. Got {speedup}.")
    return weights.correct + weights.slope * _stepped(math.log(speedup), weights)


def _stepped(log_speedup: float, weights: RewardWeights) -> float:
    """The middle of the step that it lies in, inside the clips; no step of a monotone chain turns it round."""
    if weights.tie:
        log_speedup = weights.tie * math.floor(log_speedup / weights.tie + 0.5)
    return min(max(log_speedup, math.log(weights.slowest)), math.log(weights.fastest))


def mean_speedup(times_us: Mapping[str, float], baseline_us: Mapping[str, float], modes: Sequence[str]) -> float:
    """Over the baseline in the same mode; the geometric mean where several modes count."""
    missing = [mode for mode in modes if not (times_us.get(mode, 0) > 0 and baseline_us.get(mode, 0) > 0)]
    if missing or not modes:
        raise ValueError(
            f"A speed-up needs a time and a baseline above 0 us in every mode. Got modes {list(modes)}, times "
            f"{dict(times_us)} and baselines {dict(baseline_us)}."
        )
    return math.exp(math.fsum(math.log(baseline_us[mode] / times_us[mode]) for mode in modes) / len(modes))
