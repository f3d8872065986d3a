"""Right or wrong: what came out of a run against the float64 reference, row by row (SpMM: entry by entry).

    |y_i - ref_i| <= (4 + 2 ceil(sqrt(n_i))) eps_acc (|A||x|)_i + eps_out |ref_i|

with n_i the entries of row i, eps_acc the accumulator's machine epsilon and eps_out the storage type's. Rows without
entries must be exactly 0, NaN never passes, and where the reference is not finite the result must not be either.
float16 alone gets one subnormal step more, because below 2^-14 its spacing no longer shrinks with the number.

The square root stands for the random walk of rounding errors; a program that sums a row of 10^6 entries one by one in
float32 passes, one that drops an entry or accumulates in half precision doesn't.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparserl.judge.reference import CHAIN_STEPS, Array, Reference, ValueSet, as_rows
from sparserl.matrix import Pattern
from sparserl.records import Problem
from sparserl.values import widen

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SUBNORMAL_STEP = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-24, "bfloat16": 0.0}


def allowance(pattern: Pattern, problem: Problem) -> Array:
    """(4 + 2 ceil(sqrt(n_i))) eps_acc, as a column: (rows, 1)."""
    steps = 4 + 2 * np.ceil(np.sqrt(pattern.row_lengths))
    return np.asarray(steps * EPSILON[problem.accumulator])[:, None]


def bound(pattern: Pattern, problem: Problem, expected: Array, magnitude: Array) -> Array:
    """How far each result may lie from the reference: (rows, n)."""
    limit = allowance(pattern, problem) * magnitude + EPSILON[problem.dtype] * np.abs(expected)
    limit += SUBNORMAL_STEP[problem.dtype]
    limit[pattern.row_lengths == 0] = 0.0
    return np.asarray(limit)


def compare(pattern: Pattern, problem: Problem, check: ValueSet, y: Array) -> str:
    """'' if `y` (storage type, memory order) is right, else what is wrong and where."""
    if y.size != pattern.rows * problem.columns:
        return f"{y.size} results came back instead of {pattern.rows * problem.columns}"
    got = as_rows(widen(y, problem.dtype), pattern.rows, problem.columns, problem.c_order)
    with np.errstate(invalid="ignore", over="ignore"):
        limit = bound(pattern, problem, check.expected, check.magnitude)
        finite = np.isfinite(check.expected) & np.isfinite(check.magnitude)
        near = np.abs(got - check.expected) <= limit  # False where got is NaN
    good = np.where(finite, near, ~np.isfinite(got))
    return "" if good.all() else _describe(pattern, problem, check, got, limit=limit, good=good)


def _describe(pattern: Pattern, problem: Problem, check: ValueSet, got: Array, *, limit: Array, good: Array) -> str:
    wrong = int(np.size(good) - np.count_nonzero(good))
    row, column = (int(i) for i in np.argwhere(~good)[0])
    where = f"row {row}" + (f", column {column}" if problem.op == "spmm" else "")
    entries = int(pattern.row_lengths[row])
    value, expected = got[row, column], check.expected[row, column]
    head = f"{wrong} of {good.size} results are wrong; {where} ({entries} entries) is {value:.9g}, "
    if not np.isfinite(expected):
        return head + "but x holds a NaN or Inf at one of its columns and that must show"
    if not np.isfinite(value) and not np.isfinite(check.x.astype(np.float64)).all() and problem.dtype != "bfloat16":
        return head + f"expected {expected:.9g}: a NaN or Inf of x that lies outside the row's entries leaked into it"
    return head + f"expected {expected:.9g} within {limit[row, column]:.3g}"


def compare_chain(reference: Reference, start: ValueSet, y: Array) -> str:
    """'' if `y` is what `CHAIN_STEPS` products of a set with |A| row sums of at most 1 may give.

    The bound is carried from product to product: what an error of the input can become, and the product's own.
    """
    pattern, problem = reference.pattern, reference.problem
    values = widen(start.values, problem.dtype)
    absolute_values = np.abs(values)
    b = reference.dense(start.x)
    error: Array = np.zeros_like(b)
    for _ in range(CHAIN_STEPS):
        absolute = reference.matrix(absolute_values)
        carried = absolute @ error
        magnitude = absolute @ np.abs(b) + carried
        b = reference.matrix(values) @ b
        error = carried + bound(pattern, problem, np.abs(b) + carried, magnitude)
    got = as_rows(widen(y, problem.dtype), pattern.rows, problem.columns, problem.c_order)
    with np.errstate(invalid="ignore"):
        good = np.abs(got - b) <= error
    if good.all():
        return ""
    row, column = (int(i) for i in np.argwhere(~good)[0])
    return (
        f"after {CHAIN_STEPS} dependent products row {row} is {got[row, column]:.9g}, expected {b[row, column]:.9g} "
        f"within {error[row, column]:.3g}: x, y or a workspace was touched before the wait"
    )


def bits(array: Array) -> Array:
    """The bytes of an array, to compare results that must be identical (NaN equals the same NaN)."""
    return np.ascontiguousarray(array).view(np.uint8)


def same_bits(one: Any, other: Any) -> bool:
    return bool(np.array_equal(bits(one), bits(other)))
