"""How many rows have each length: what most layouts need to know of a pattern before they look at a nonzero.

There are few distinct lengths (fewer than the square root of twice the nonzeros, and one), so sums over rows become
sums over a short list, and millions of rows cost one pass for all layouts and parameters together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sparserl.layouts.memo import remembered
from sparserl.matrix import Pattern


@dataclass(frozen=True)
class Lengths:
    """The distinct lengths of some runs of entries, ascending, and how many runs have each."""

    values: np.ndarray
    """int64"""
    counts: np.ndarray
    """int64"""

    @classmethod
    def of(cls, lengths: np.ndarray) -> Lengths:
        counts = np.bincount(lengths, minlength=1)
        values = np.flatnonzero(counts)
        return cls(values, counts[values])

    @property
    def longest(self) -> int:
        return int(self.values[-1]) if len(self.values) else 0

    @property
    def empty(self) -> int:
        """Runs without entries."""
        return int(self.counts[0]) if len(self.values) and self.values[0] == 0 else 0

    def total(self, measures: np.ndarray) -> int:
        """The sum over all runs of what `measures` says of each distinct length."""
        return int((measures * self.counts).sum(dtype=np.int64))

    def no_longer_than(self, limit: int) -> Lengths:
        """The same runs, those past the limit empty."""
        short = self.values <= limit
        out = dict(zip(self.values[short].tolist(), self.counts[short].tolist(), strict=True))
        out[0] = out.get(0, 0) + int(self.counts[~short].sum())
        values = np.array(sorted(out), dtype=np.int64)
        return Lengths(values, np.array([out[value] for value in values.tolist()], dtype=np.int64))

    def pieces(self, long: int, size: int) -> tuple[int, int]:
        """Rows longer than `long` cut into pieces of `size`: the most pieces that one has, and all pieces."""
        cut = self.values > long
        pieces = -(-self.values[cut] // size)
        return int(pieces.max(initial=0)), int((pieces * self.counts[cut]).sum())

    def padded(self, groups: Iterable[int]) -> dict[int, int]:
        """Entries and padding by `group`, if every run is filled up to a multiple of it."""
        return {group: self.total(-(-self.values // group) * group) for group in groups}


def row_lengths(pattern: Pattern) -> Lengths:
    return remembered(pattern, "row lengths", lambda: Lengths.of(pattern.row_lengths))
