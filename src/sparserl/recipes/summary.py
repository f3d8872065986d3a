"""What the cost model and the limits know of a matrix: sizes, row lengths, gathers, fill. Computed when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sparserl.layouts.diagonals import measure as measure_diagonals
from sparserl.layouts.lengths import Lengths, row_lengths
from sparserl.layouts.slices import slots_by_sigma
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Problem

SAMPLE = 200_000
"""nonzeros looked at for gathers and block fill"""


@dataclass(frozen=True)
class Summary:
    """What the cost model knows of a matrix."""

    pattern: Pattern
    problem: Problem
    sms: int
    memo: dict[str, float] = field(default_factory=dict, compare=False)

    @cached_property
    def lengths(self) -> Lengths:
        """How many rows have each length."""
        return row_lengths(self.pattern)

    @cached_property
    def longest(self) -> int:
        return self.lengths.longest

    def row_quantile(self, per_cent: int) -> float:
        """The length that this many rows in a hundred don't exceed."""
        if not self.pattern.rows:
            return 0.0
        at = (self.pattern.rows - 1) * per_cent / 100
        ends = np.cumsum(self.lengths.counts)
        low, high = self.lengths.values[np.searchsorted(ends, [int(at), np.ceil(at)], side="right")]
        return float(low + (high - low) * (at - int(at)))

    @cached_property
    def mean(self) -> float:
        return self.pattern.nonzeros / max(1, self.pattern.rows)

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the row lengths."""
        lengths = self.lengths.values.astype(np.float64)
        return float(np.sqrt((self.lengths.counts * (lengths - self.mean) ** 2).sum() / max(1, self.pattern.rows)))

    @cached_property
    def gather_bytes(self) -> float:
        """Bytes of x that warps of 32 neighbouring rows fetch, by sectors, from a sample."""
        cols = self.pattern.cols
        if len(cols) == 0:
            return 0.0
        stride = max(1, len(cols) // SAMPLE)
        windows = np.arange(0, max(1, len(cols) - 256), 256 * stride)[:, None] + np.arange(min(256, len(cols)))
        sectors = np.sort(cols[np.minimum(windows, len(cols) - 1)] * self.problem.value_bytes // 32, axis=1)
        distinct = 1 + (np.diff(sectors, axis=1) != 0).sum(axis=1).mean()
        return float(distinct / windows.shape[1] * len(cols) * 32)

    @cached_property
    def sampled_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of a contiguous sample."""
        start = self.pattern.row_start
        end_row = int(np.searchsorted(start, SAMPLE, side="right")) - 1
        end_row = max(1, min(self.pattern.rows, end_row)) if self.pattern.rows else 0
        rows = np.repeat(np.arange(end_row), np.diff(start[: end_row + 1]))
        return rows, self.pattern.cols[: len(rows)].astype(np.int64)

    def block_fill(self, b: int) -> float:
        rows, cols = self.sampled_rows
        if not len(rows):
            return 1.0
        keys = (rows // b) * (self.pattern.columns // b + 1) + cols // b
        return len(rows) / (b * b * len(np.unique(keys)))

    def diagonals(self, fill: int) -> tuple[int, int]:
        """How many diagonals are filled to `fill` per cent, and how many entries lie outside them."""
        return measure_diagonals(self.pattern, fill)

    def slots(self, line: LayoutLine) -> float:
        """Entries stored, padding included."""
        key = f"{line.name} {line.params}"
        if key not in self.memo:
            self.memo[key] = self._slots(line)
        return self.memo[key]

    def _slots(self, line: LayoutLine) -> float:
        rows, nonzeros = self.pattern.rows, float(self.pattern.nonzeros)
        if line.name in ("slices", "ell"):
            c, group = line.number("c"), line.number("group")
            sigma = int(line.get("sigma", "1"))
            if line.name == "ell":
                return float(-(-self.longest // group) * group) * rows
            if sigma > 1:
                return nonzeros * 1.03
            return float(slots_by_sigma(self.pattern, 1)[c, group])
        if line.name == "tiles":
            steps, threads = line.number("steps"), line.number("threads")
            lengths = self.lengths.values
            lanes = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(1, -(-lengths // steps)))), threads)
            blocks = np.maximum(1, np.ceil(lengths / (threads * steps)))
            return float((lanes * steps * blocks * self.lengths.counts).sum())
        if line.name in ("blocks", "blockslices"):
            return nonzeros / max(1e-3, self.block_fill(line.number("b")))
        if line.name == "diagonals":
            kept, outside = self.diagonals(line.number("fill"))
            return float(kept) * rows + outside
        return nonzeros


def summarise(pattern: Pattern, problem: Problem, sms: int = 132) -> Summary:
    """The summary of a matrix."""
    return Summary(pattern, problem, sms)
