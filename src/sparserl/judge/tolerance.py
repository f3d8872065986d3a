"""How far a result may lie from the float64 reference, row by row (SpMM: entry by entry).

    |y_i - ref_i| <= (4 + 2 ceil(sqrt(n_i))) eps_acc (|A||x|)_i + eps_out |ref_i|

with n_i the entries of row i, eps_acc the accumulator's machine epsilon and eps_out the storage type's. Rows without
entries must be exactly 0. float16 alone gets one subnormal step more, because below 2^-14 its spacing no longer shrinks
with the number.

The square root stands for the random walk of rounding errors; a program that sums a row of 10^6 entries one by one in
float32 passes, one that drops an entry or accumulates in half precision doesn't.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparserl.judge.product import in_threads
from sparserl.matrix import Pattern
from sparserl.records import Problem
from sparserl.values import EPSILON

Array = np.ndarray[Any, np.dtype[Any]]

SUBNORMAL_STEP = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-24, "bfloat16": 0.0}
BLOCK = 1 << 18
"""results looked at at a time: what the caches hold"""


def row_blocks(rows: int, n: int) -> list[slice]:
    """Slices of rows with about BLOCK results each."""
    each = max(1, BLOCK // n)
    return [slice(first, min(first + each, rows)) for first in range(0, rows, each)]


def allowance(pattern: Pattern, problem: Problem, rows: slice = slice(None)) -> Array:
    """(4 + 2 ceil(sqrt(n_i))) eps_acc, as a column: (rows, 1)."""
    steps = 4 + 2 * np.ceil(np.sqrt(pattern.row_lengths[rows]))
    return np.asarray(steps * EPSILON[problem.accumulator])[:, None]


def bound(problem: Problem, slack: Array, lengths: Array, expected: Array, magnitude: Array) -> Array:
    """How far the results of rows with these lengths and allowances may lie from the reference: (rows, n)."""
    limit = slack * magnitude + EPSILON[problem.dtype] * np.abs(expected)
    limit += SUBNORMAL_STEP[problem.dtype]
    limit[lengths == 0] = 0.0
    return np.asarray(limit)


def limits(pattern: Pattern, problem: Problem, expected: Array, magnitude: Array) -> Array:
    """The same for all rows, written over `magnitude`; NaN where the reference is not finite, nor may the result be."""

    def work(rows: slice) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            slack, lengths = allowance(pattern, problem, rows), pattern.row_lengths[rows]
            limit = bound(problem, slack, lengths, expected[rows], magnitude[rows])
        finite = np.isfinite(expected[rows]) & np.isfinite(magnitude[rows])
        magnitude[rows] = limit if finite.all() else np.where(finite, limit, np.nan)

    in_threads(work, row_blocks(*expected.shape))
    return magnitude
