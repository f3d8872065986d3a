"""Right or wrong: what came out of a run against the float64 reference, within `tolerance`.

NaN never passes, and where the reference is not finite the result must not be either.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparserl.judge.product import in_threads
from sparserl.judge.reference import Array, Reference, ValueSet, as_rows
from sparserl.judge.tolerance import allowance, bound, row_blocks
from sparserl.matrix import Pattern
from sparserl.records import Problem
from sparserl.values import widen


def compare(pattern: Pattern, problem: Problem, check: ValueSet, y: Array) -> str:
    """'' if `y` is right, else what is wrong and where.

    y: storage type, memory order; where the set looks at some columns of C, all of C or these columns alone.
    """
    alone = check.columns is not None and y.size == pattern.rows * len(check.columns)
    columns = problem.columns if check.columns is None or not alone else len(check.columns)
    if y.size != pattern.rows * columns:
        return f"{y.size} results came back instead of {pattern.rows * columns}"
    results = y.reshape(pattern.rows, columns) if problem.c_order == "row" else y.reshape(columns, pattern.rows).T
    if check.columns is not None and not alone:
        results = results[:, check.columns]
    wrong: dict[int, Array] = {}

    def look(rows: slice) -> None:
        good = _good(problem, check, results, rows)
        if not good.all():
            wrong[rows.start] = np.argwhere(~good)

    in_threads(look, row_blocks(*results.shape))
    if not wrong:
        return ""
    first = min(wrong)
    row, column = (int(i) for i in wrong[first][0])
    count = sum(map(len, wrong.values()))
    return _describe(pattern, problem, check, results, count=count, where=(first + row, column))


def _good(problem: Problem, check: ValueSet, results: Array, rows: slice) -> Array:
    """Which results of these rows are right."""
    got, limit = widen(results[rows], problem.dtype), check.limit[rows]
    with np.errstate(invalid="ignore", over="ignore"):
        near: Array = np.abs(got - check.expected[rows]) <= limit  # False where either is NaN
    return near if near.all() else np.asarray(np.where(np.isnan(limit), ~np.isfinite(got), near))


def _describe(
    pattern: Pattern, problem: Problem, check: ValueSet, results: Array, *, count: int, where: tuple[int, int]
) -> str:
    row, column = where
    named = column if check.columns is None else int(check.columns[column])
    place = f"row {row}" + (f", column {named}" if problem.op == "spmm" else "")
    entries = int(pattern.row_lengths[row])
    value = widen(results[row : row + 1], problem.dtype)[0, column]
    expected, limit = check.expected[row, column], check.limit[row, column]
    head = f"{count} of {results.size} results are wrong; {place} ({entries} entries) is {value:.9g}, "
    if np.isnan(limit):
        return head + "but x holds a NaN or Inf at one of its columns and that must show"
    if not np.isfinite(value) and not np.isfinite(widen(check.x, problem.dtype)).all():
        return head + f"expected {expected:.9g}: a NaN or Inf of x that lies outside the row's entries leaked into it"
    return head + f"expected {expected:.9g} within {limit:.3g}"


def chain_bounds(reference: Reference, start: ValueSet) -> tuple[Array, Array]:
    """Where a chain of products from this set ends, and how far from there it may."""
    if start.key in reference.chains:
        return reference.chains[start.key]
    pattern, problem, product = reference.pattern, reference.problem, reference.product
    values = widen(start.values, problem.dtype)
    absolute_values = np.abs(values)
    b = reference.dense(start.x, start.columns)
    error: Array = np.zeros_like(b)
    slack, lengths = allowance(pattern, problem), pattern.row_lengths
    for _ in range(reference.bounded_steps):
        carried = product.times(absolute_values, error)
        magnitude = product.times(absolute_values, np.abs(b)) + carried
        b = product.times(values, b)
        error = carried + bound(problem, slack, lengths, np.abs(b) + carried, magnitude)
    if start.key:
        reference.chains[start.key] = b, error
    return b, error


def compare_chain(reference: Reference, start: ValueSet, y: Array) -> str:
    """'' if `y` is what `bounded_steps` products of a set with |A| row sums of at most 1 may give.

    The bound is carried from product to product: what an error of the input can become, and the product's own.
    """
    pattern, problem = reference.pattern, reference.problem
    b, error = chain_bounds(reference, start)
    got = as_rows(widen(y, problem.dtype), pattern.rows, problem.columns, problem.c_order)
    got = got if start.columns is None else got[:, start.columns]
    with np.errstate(invalid="ignore"):
        good = np.abs(got - b) <= error
    if good.all():
        return ""
    row, column = (int(i) for i in np.argwhere(~good)[0])
    return (
        f"after {reference.bounded_steps} dependent products row {row} is {got[row, column]:.9g}, "
        f"expected {b[row, column]:.9g} within {error[row, column]:.3g}: "
        "x, y or a workspace was touched before the wait"
    )


def bits(array: Array) -> Array:
    """The bytes of an array, to compare results that must be identical (NaN equals the same NaN)."""
    return np.ascontiguousarray(array).view(np.uint8)


def same_bits(one: Any, other: Any) -> bool:
    return bool(np.array_equal(bits(one), bits(other)))
