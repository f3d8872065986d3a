"""The scoring rules of `sparserl eval`, fixed: from verdicts and times of 16 samples a matrix to figures and intervals.

speed      baseline time over program time, in one mode; the baseline is the fastest variant of cuSPARSE (on the
           simulator the plain CSR program) in the same process. A sample that fails in any way (unreadable, screened,
           inadmissible, uncompilable, failed, wrong, implausible) has the speed 0.25. A right program counts as
           measured, even below that. A text that was written twice is judged once and counts twice.
@1         the geometric mean of the speed over all samples of a matrix, then the geometric mean over matrices. Samples
           are drawn at the shipped temperature, without masks and without a filter.
@k         the best of k: the mean logarithm of the best speed over all choices of k among the n samples, which is an
           unbiased estimate for k < n; at k = n it is the best sample. Geometric mean over matrices.
compile@k, correct@k
           the chance that at least one of k samples compiles (is right): 1 - C(n - c, k) / C(n, k), mean over matrices
intervals  bootstrap of 95 % over matrices (percentiles of 10 000 resampled means, seeded). Two policies are compared on
           the matrices that both have, one by one: the ratio of their figures, its interval from paired logarithms.
entropy    minus the mean log-probability of what was written, in nats a token, by part of the program

Pure functions over numbers; who measures is `assess`. Not covered: correction for many comparisons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparserl.records import Verdict

SAMPLES = 16
"""programs a matrix"""
FAILURE = 0.25
"""the speed of a sample that fails, as a share of the baseline's"""
BUDGETS = (1, 2, 4, 8, 16)
"""the k of @k"""
DRAWS = 10_000
LEVEL = 0.95
PARTS = ("layout", "bake", "workspace", "launch", "code")


@dataclass(frozen=True)
class Interval:
    """A figure and what the bootstrap over matrices leaves open."""

    value: float
    low: float
    high: float
    count: int
    """matrices"""


# ---- one matrix


def speed(baseline_us: float, time_us: float | None) -> float:
    """Of one sample; None: it failed."""
    if time_us is None:
        return FAILURE
    if not (baseline_us > 0 and time_us > 0):
        raise ValueError(f"Times must be above 0 us. Got the baseline {baseline_us} and the program {time_us}.")
    return baseline_us / time_us


def log_best_of(speeds: Sequence[float], k: int) -> float:
    """The expected logarithm of the best of k samples drawn without replacement from these."""
    count = len(speeds)
    if not 1 <= k <= count:
        raise ValueError(f"The k of @k must be 1..{count}, the number of samples. Got {k}.")
    ordered = sorted(math.log(each) for each in speeds)
    choices = math.comb(count, k)
    return math.fsum(math.comb(place, k - 1) / choices * value for place, value in enumerate(ordered))


def pass_at(count: int, passed: int, k: int) -> float:
    """The chance that at least one of k samples passes, where `passed` of `count` did."""
    if not (0 <= passed <= count and 1 <= k <= count):
        raise ValueError(f"pass@k needs 0 <= passed <= count and 1 <= k <= count. Got {passed}, {count}, {k}.")
    return 1.0 - math.comb(count - passed, k) / math.comb(count, k)


def compiles(verdict: Verdict) -> bool:
    return verdict > Verdict.UNCOMPILABLE


# ---- over matrices


def bootstrap(values: Sequence[float], draws: int = DRAWS, seed: int = 0) -> Interval:
    """The mean of one figure a matrix, with the percentile interval of the mean over resampled matrices."""
    if not values:
        raise ValueError("A bootstrap needs at least one matrix. Got none.")
    data = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [data[rng.integers(0, len(data), (many, len(data)))].mean(axis=1) for many in _portions(draws)]
    )
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(data.mean()), float(low), float(high), len(data))


def _portions(draws: int, most: int = 1000) -> list[int]:
    """So that a thousand matrices don't need a gigabyte."""
    return [min(most, draws - begin) for begin in range(0, draws, most)]


def geometric(logs: Sequence[float]) -> Interval:
    """The geometric mean of figures whose logarithms are given, one a matrix."""
    found = bootstrap(logs)
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.count)


def at_k(speeds: Iterable[Sequence[float]], k: int) -> Interval:
    """@k over matrices; each gives the speeds of its samples."""
    return geometric([log_best_of(each, k) for each in speeds])


def passes_at_k(passed: Iterable[Sequence[bool]], k: int) -> Interval:
    """compile@k or correct@k over matrices; each gives which of its samples passed."""
    return bootstrap([pass_at(len(each), sum(each), k) for each in passed])


def ratio(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Interval | None:
    """Ours over theirs, paired by matrix: logarithms by name go in, the geometric mean ratio comes out."""
    both = sorted(ours.keys() & theirs.keys())
    return geometric([ours[name] - theirs[name] for name in both]) if both else None


# ---- what was written


@dataclass(frozen=True)
class PartSum:
    """Tokens of one part of the programs, and the sums of their log-probabilities."""

    tokens: int = 0
    log_prob: float = 0.0
    """under the model itself"""
    sampled: float = 0.0
    """under the distribution drawn from (temperature, top-p)"""

    def __add__(self, other: PartSum) -> PartSum:
        return PartSum(
            self.tokens + other.tokens, self.log_prob + other.log_prob, self.sampled + other.sampled
        )

    @property
    def entropy(self) -> float:
        """Of the distribution drawn from, nats a token: an estimate from the samples."""
        return -self.sampled / self.tokens if self.tokens else 0.0

    @property
    def surprise(self) -> float:
        """Of the model over its own samples, nats a token; the entropy where the temperature is 1."""
        return -self.log_prob / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class Line:
    """The tokens of one sample with their log-probabilities; the first `given` were not the policy's choice."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    sampled: Sequence[float]
    given: int


def by_part(line: Line, special: Mapping[str, int]) -> dict[str, PartSum]:
    """A sample's tokens by part: a special token ends one part and begins the next, and counts to the one it ends.

    Which part follows is a choice made at the end of the last; the first is a choice of the header ('layout').
    """
    begins = {special[f"<{part}>"]: part for part in PARTS}
    sums: dict[str, PartSum] = {}
    part = PARTS[0]
    for place, token in enumerate(line.ids):
        if place >= line.given:
            here = PartSum(1, line.log_probs[place], line.sampled[place])
            sums[part] = sums.get(part, PartSum()) + here
        part = begins.get(token, part)
    return sums


def failures(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many samples ended how, by the verdict's name, the worst first."""
    counts = Counter(verdicts)
    return {verdict.name: counts[verdict] for verdict in Verdict if counts[verdict]}
