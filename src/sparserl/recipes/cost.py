"""A simple cost model: launches, dependent round trips, serial steps, bytes. It ranks recipes; it is not a prediction.

The constants are in one frozen dataclass. Not covered: bank conflicts, register pressure, the L1's luck.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sparserl.layouts.diagonals import measure as measure_diagonals
from sparserl.layouts.lengths import Lengths, row_lengths
from sparserl.layouts.slices import slots_by_sigma
from sparserl.matrix import Pattern
from sparserl.recipes.writer import Recipe
from sparserl.records import LayoutLine, Problem

SAMPLE = 200_000
"""nonzeros looked at for gathers and block fill"""


@dataclass(frozen=True)
class CostModel:
    """Microseconds and terabytes a second, for an H200-like machine."""

    launch_us: float = 1.2
    more_launch_us: float = 0.9
    pdl_gain_us: float = 0.35
    trip_us: float = 0.35
    """one dependent round trip to memory"""
    step_us: float = 0.45
    """one serial step of a lane's loop, if nothing overlaps it"""
    l2_tb_s: float = 5.0
    memory_tb_s: float = 4.1
    l2_bytes: float = 45e6
    gather_tb_s: float = 4.6
    """32-byte sectors of x, from the L2"""
    narrow_penalty: float = 1.6
    """a thread walking its own row reads A in pieces smaller than a sector"""
    thread_us: float = 2.2e-6
    """issue time of one entry on one of 132 multiprocessors, all lanes busy"""


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
    """The summary of a matrix; it computes what is asked for, once."""
    return Summary(pattern, problem, sms)


def _index_bytes(recipe: Recipe) -> float:
    """Bytes of column index an entry carries."""
    if recipe.layout.name == "diagonals":
        return 0.0
    wide = 4.0 if recipe.layout.index == "int32" else 2.0
    if recipe.layout.name in ("blocks", "blockslices"):
        return wide / recipe.layout.number("b") ** 2
    return wide


def _serial_steps(recipe: Recipe, s: Summary) -> float:
    """Loop steps of the busiest lane."""
    lanes, name = int(recipe.setting("lanes", 1)), recipe.layout.name
    if name == "tiles":
        return 1.0
    if name == "bins":
        longest = min(s.longest, recipe.layout.number("long"))
        lane_steps = max(recipe.layout.number("per"), longest / 32)
        return max(lane_steps, recipe.layout.number("segment") / recipe.layout.number("threads"))
    if name in ("merge", "chunks", "colblocks"):
        return 8.0
    if name in ("blocks", "blockslices"):
        b = recipe.layout.number("b")
        return s.longest / b / int(recipe.setting("spread", 1))
    if name == "diagonals":
        return 1.0
    if name == "hybrid":
        return s.row_quantile(recipe.layout.number("cover"))
    if recipe.family == "row_block":
        return s.longest / int(recipe.setting("threads"))
    if recipe.family == "spmm_row":
        return s.longest * 0.3
    group = int(recipe.layout.get("group", "1"))
    return s.longest / (lanes if lanes > 1 else group)


def estimate_us(recipe: Recipe, s: Summary, model: CostModel = CostModel()) -> float:  # noqa: B008
    """Estimated microseconds of one product."""
    slots, value_bytes = s.slots(recipe.layout), s.problem.value_bytes
    wide = s.problem.columns
    packed = slots * (value_bytes + _index_bytes(recipe)) + 4.0 * s.pattern.rows
    dense = (s.pattern.rows + s.pattern.columns) * value_bytes * wide
    bandwidth = model.l2_tb_s if packed + dense < model.l2_bytes else model.memory_tb_s
    lanes = int(recipe.setting("lanes", 1))
    narrow = recipe.layout.name in ("rows", "nonempty") and lanes * value_bytes < 32 and s.mean > lanes
    moved = (packed * (model.narrow_penalty if narrow else 1.0) + dense) / bandwidth / 1e6
    gathers = s.gather_bytes * max(1.0, wide / 8) / model.gather_tb_s / 1e6
    overlap = max(1, int(recipe.setting("early", 0)), int(recipe.setting("unroll", 1)), 2)
    if recipe.setting("full"):
        overlap = 32
    steps = _serial_steps(recipe, s)
    trips = {"ell": 2, "tiles": 2, "diagonals": 1, "hybrid": 2}.get(recipe.layout.name, 3)
    waste = 1.0 if recipe.layout.name not in ("rows", "nonempty") else max(1.0, 0.6 * lanes / max(1.0, s.mean))
    issue = slots * wide * waste * model.thread_us / s.sms * (1 if wide == 1 else 0.3)
    launches = recipe.text.count("// launch:")
    fixed = model.launch_us + (launches - 1) * model.more_launch_us - (model.pdl_gain_us if recipe.pdl else 0.0)
    latency = trips * model.trip_us + model.step_us * max(0.0, steps / overlap - 1.0)
    return fixed + max(latency, moved, gathers, issue) + 0.3 * (latency + moved + gathers + issue) / 2
