"""How sure a ratio of times is: one observation a process, side by side inside it. Pure.

Programs are timed in turns inside a process, so what disturbs one disturbs all; what is left differs from process to
process (where the memory lies, which clocks). So a process gives one number, the logarithm of a ratio of medians, and
the bounds come from the spread of these numbers with Student's distribution: wide for three processes, and honest.
Where several programs had a chance to be the one that is reported, the error is shared out among them (Bonferroni).

Not covered: programs chosen by the same times that they are then reported with; choose them in another race.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Bound:
    """A ratio with its one-sided bounds: above `low` with 95 % confidence, and below `high` with 95 %."""

    ratio: float
    low: float
    high: float
    processes: int


def bound(logs: Sequence[float], comparisons: int = 1, level: float = LEVEL) -> Bound:
    """Of the logarithms of one ratio, one a process; comparisons: programs that might have been reported."""
    if len(logs) < 2 or comparisons < 1:
        raise ValueError(
            f"A bound needs at least 2 processes and 1 comparison. Got {len(logs)} processes and {comparisons}."
        )
    from scipy.stats import t

    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(t.ppf(1 - (1 - level) / comparisons, len(logs) - 1)) * error
    return Bound(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(logs))


def share(hits: int, count: int) -> tuple[float, float, float]:
    """A share with its 95 % interval (Wilson): what a sample of matrices says of all of them."""
    if not 0 <= hits <= count or count < 1:
        raise ValueError(f"A share needs 0 <= hits <= count and a count above 0. Got {hits} and {count}.")
    z = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)
    p, weight = hits / count, 1 + z * z / count
    middle = (p + z * z / (2 * count)) / weight
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count)) / weight
    return p, max(0.0, middle - half), min(1.0, middle + half)
