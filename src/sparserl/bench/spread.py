"""Where a geometric mean lies when its matrices are drawn anew: a bootstrap over groups of matrices, not over matrices.

Matrices of one origin or one family are alike: fifty of them say less than fifty strangers do. So whole groups are
drawn, with replacement, and a mean over few groups has no interval at all.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
LEVEL = 0.95
FEWEST = 5
"""groups from which on there is an interval"""


@dataclass(frozen=True)
class Interval:
    """A geometric mean and the bounds of its interval, which are NaN where there are too few groups to know them."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        return not math.isnan(self.low)

    @property
    def spread(self) -> str:
        """'1.52–1.71'; '' where it is not known."""
        return f"{self.low:.2f}–{self.high:.2f}" if self.known else ""

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.spread})" if self.known else f"{self.value:.2f}"


def interval(
    values: Sequence[float], groups: Sequence[Hashable] | None = None, draws: int = DRAWS, seed: int = 0
) -> Interval | None:
    """Of values, one a matrix; percentiles. groups: the group of each, where they are not all strangers."""
    if not values:
        return None
    logs = np.log(np.asarray(values, dtype=np.float64))
    place = {group: at for at, group in enumerate(dict.fromkeys(groups or range(len(values))))}
    at = np.asarray([place[group] for group in groups or range(len(values))])
    value = math.exp(float(logs.mean()))
    if len(place) < FEWEST:
        return Interval(value)
    sums, counts = np.bincount(at, logs), np.bincount(at)
    picks = np.random.default_rng(seed).integers(0, len(place), (draws, len(place)))
    means = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = np.exp(np.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
    return Interval(value, float(low), float(high))
