"""From the clock's readings to a Timing, and the floor under it: what no machine of this kind can beat.

The floor of a product is the longer of two times. One is the empty kernel, timed in the same mode. The other is the
least traffic a right program can have (structure, every nonzero's value and index once, every column of x that occurs,
all of y) over what the machine can move: the L2 bandwidth where all of it fits, the memory's otherwise. Between one
and two sizes of the L2 a part may stay there from product to product, so only the rest counts as moved from memory.
A time below the floor means that something was not done or not measured: the verdict is IMPLAUSIBLE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sparserl.backends.backend import Device, TimingPlan
from sparserl.matrix import Pattern
from sparserl.records import Mode, Packed, Problem, Timing

NOISE = 0.95
"""a median may lie this much below a floor that was itself measured"""


def plan(pattern: Pattern, problem: Problem, mode: Mode, rounds: int, graph_ms: float) -> TimingPlan:
    """How a product of this problem is timed in this mode."""
    return TimingPlan(
        mode=mode,
        rounds=rounds,
        graph_ms=graph_ms,
        x_elements=pattern.columns * problem.columns,
        y_elements=pattern.rows * problem.columns,
        value_bytes=problem.value_bytes,
        feed_back=mode == "chain" and feeds_back(pattern, problem),
    )


def floor_plan(pattern: Pattern, problem: Problem, mode: Mode, again: bool = False) -> TimingPlan:
    """How the empty kernel is timed: briefly, at the next power of two of the sizes, so that a worker which measured it
    for one matrix has it for others like it; `again`, longer and at the very sizes.
    """
    if again:
        return plan(pattern, problem, mode, 9, 1.0)
    asked = plan(pattern, problem, mode, 3, 0.5)
    x, y = (1 << max(0, count - 1).bit_length() for count in (asked.x_elements, asked.y_elements))
    return replace(asked, x_elements=x, y_elements=y)


def feeds_back(pattern: Pattern, problem: Problem) -> bool:
    """Whether y of one product can be x of the next."""
    return pattern.rows == pattern.columns and problem.b_order == problem.c_order


def least_bytes(packed: Packed, problem: Problem, used_columns: int) -> int:
    """What one product must move at least. Padding is left out: a kernel may know where it lies."""
    share = packed.nonzeros / packed.slots if packed.slots else 1.0
    structure = sum(
        array.nbytes * (share if name in ("cols", "tail_cols") else 1.0) for name, array in packed.arrays.items()
    )
    vectors = (used_columns + packed.shape[0]) * problem.columns * problem.value_bytes
    return int(structure) + packed.nonzeros * problem.value_bytes + vectors


def traffic_floor_us(size_bytes: int, device: Device, mode: Mode) -> float:
    """The time to move this much once."""
    from_memory = size_bytes / (device.memory_tb_s * 1e6)
    if mode == "cold":
        return from_memory
    from_l2 = size_bytes / (device.l2_tb_s * 1e6)
    if size_bytes <= device.l2_bytes:
        return from_l2
    if size_bytes < 2 * device.l2_bytes:
        return max(from_l2, (size_bytes - device.l2_bytes) / (device.memory_tb_s * 1e6))
    return from_memory


def summarise(mode: Mode, readings_us: Sequence[float], floor_us: float, device: Device) -> Timing:
    """Median and quantiles over the rounds."""
    low, lower, median, upper, high = (float(q) for q in np.quantile(readings_us, (0.1, 0.25, 0.5, 0.75, 0.9)))
    return Timing(
        mode=mode,
        source="gpu" if device.backend == "cuda" else "modelled",
        median_us=median,
        quantiles_us=(low, lower, upper, high),
        rounds=len(readings_us),
        floor_us=floor_us,
    )


def implausible(timing: Timing) -> str:
    """'' or why this time can't be."""
    return implausible_us(timing.median_us, timing.floor_us, timing.mode)


def implausible_us(time_us: float, floor_us: float, mode: str) -> str:
    """'' or why a time can't be where nothing is faster than this floor."""
    if not np.isfinite(time_us) or time_us <= 0:
        return f"took {time_us} us in {mode} mode"
    if time_us < NOISE * floor_us:
        return f"took {time_us:.3f} us in {mode} mode; an empty kernel or the bytes alone take {floor_us:.3f} us"
    return ""
