"""The reference and the bound, in NumPy alone: what must pass passes, what must not doesn't."""

from __future__ import annotations

import numpy as np
import pytest

from sparserl.judge.reference import AFTER, FEW_COLUMNS, FRESH_BELOW, LOOKED_AT, SHARED, Reference, as_rows
from sparserl.judge.verify import allowance, compare, compare_chain
from sparserl.matrix import Pattern
from sparserl.records import DType, Problem
from sparserl.values import store, widen

DTYPES: tuple[DType, ...] = ("float32", "float64", "float16", "bfloat16")


def pattern_of(rows: int = 90, columns: int = 70, seed: int = 0) -> Pattern:
    """Rows of 0 to 40 entries, one full row, some empty."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, min(columns, 40), rows)
    lengths[::7], lengths[3] = 0, columns
    row = np.repeat(np.arange(rows), lengths)
    col = np.concatenate([random.choice(columns, size, replace=False) for size in lengths])
    return Pattern.from_coordinates(rows, columns, row, col)


def multiply(pattern: Pattern, problem: Problem, check, drop: int = -1, accumulate=None) -> np.ndarray:
    """An honest product in the accumulator's type, entry by entry, then rounded to the storage type."""
    kind = accumulate or np.dtype(problem.accumulator).type
    values = widen(check.values, problem.dtype).astype(kind)
    b = as_rows(widen(check.x, problem.dtype), pattern.columns, problem.columns, problem.b_order).astype(kind)
    out = np.zeros((pattern.rows, problem.columns), dtype=kind)
    with np.errstate(invalid="ignore"):
        for row in range(pattern.rows):
            for j in range(pattern.row_start[row], pattern.row_start[row + 1]):
                if j != drop:
                    out[row] = (out[row] + values[j] * b[pattern.cols[j]]).astype(kind)
    rounded = store(out.astype(np.float64), problem.dtype)
    return (rounded if problem.c_order == "row" else rounded.T).reshape(-1).copy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["wide", "narrow", "isolation"])
@pytest.mark.parametrize("shape", [(1, "row", "row"), (3, "row", "col"), (3, "col", "row")])
def test_an_honest_product_passes(dtype, kind, shape):
    columns, b_order, c_order = shape
    problem = Problem("spmm" if columns > 1 else "spmv", dtype, columns, b_order, c_order)
    pattern = pattern_of()
    check = Reference(pattern, problem, seed=1).draw(kind)
    assert compare(pattern, problem, check, multiply(pattern, problem, check)) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dropped_entry_is_wrong(dtype):
    pattern, problem = pattern_of(), Problem(dtype=dtype)
    check = Reference(pattern, problem, seed=2).draw("narrow")
    for drop in range(0, pattern.nonzeros, 97):
        reason = compare(pattern, problem, check, multiply(pattern, problem, check, drop))
        assert reason.startswith("1 of 90 results are wrong")


def test_accumulating_in_a_lower_precision_is_wrong():
    for dtype, low in (("float32", np.float16), ("float64", np.float32)):
        pattern, problem = pattern_of(), Problem(dtype=dtype)
        check = Reference(pattern, problem, seed=3).draw("narrow")
        assert compare(pattern, problem, check, multiply(pattern, problem, check, accumulate=low))


def test_nan_never_passes_and_empty_rows_are_exactly_zero():
    pattern, problem = pattern_of(), Problem()
    check = Reference(pattern, problem, seed=4).draw("wide")
    right = multiply(pattern, problem, check)
    full, empty = int(np.argmax(pattern.row_lengths)), int(np.argmin(pattern.row_lengths))
    for row, value in ((full, np.nan), (full, np.inf), (empty, np.nan), (empty, 1e-40)):
        y = right.copy()
        y[row] = value
        assert f"row {row} " in compare(pattern, problem, check, y)


def test_isolation_wants_nan_where_it_belongs_and_nowhere_else():
    pattern, problem = pattern_of(), Problem()
    check = Reference(pattern, problem, seed=5).draw("isolation")
    right = multiply(pattern, problem, check)
    touched = np.flatnonzero(~np.isfinite(check.expected[:, 0]))
    clean = np.flatnonzero(np.isfinite(check.expected[:, 0]) & (pattern.row_lengths > 0))
    assert len(touched) and len(clean)
    hidden, leaked = right.copy(), right.copy()
    hidden[touched[0]] = 0.0
    leaked[clean[0]] = np.nan
    assert "must show" in compare(pattern, problem, check, hidden)
    assert "leaked" in compare(pattern, problem, check, leaked)


def test_isolation_has_a_zero_entry_that_only_its_column_makes_nan():
    for seed in range(20):
        pattern, problem = pattern_of(), Problem()
        check = Reference(pattern, problem, seed).draw("isolation")
        kept = check.values != 0
        skipping = check.values.copy()
        skipping[~kept] = 1
        x = check.x.copy()
        x[~np.isfinite(x)] = 1
        row_of = pattern.row_index()
        bad_column = ~np.isfinite(check.x)[pattern.cols]
        only_by_zero = set(row_of[bad_column & ~kept]) - set(row_of[bad_column & kept])
        assert only_by_zero


def test_the_allowance_grows_with_the_root_of_the_row():
    pattern = Pattern(3, 9, np.array([0, 0, 4, 13], np.int32), np.r_[0:4, 0:9].astype(np.int32))
    np.testing.assert_allclose(allowance(pattern, Problem())[:, 0] / 2.0**-23, [4, 8, 10])


def test_sets_are_fresh_below_the_limit_and_pooled_above():
    problem = Problem()
    small = Reference(pattern_of(), problem)
    assert not np.array_equal(small.draw("wide").values, small.draw("wide").values)
    rows = FRESH_BELOW // 4
    pattern = Pattern(rows, 8, np.arange(rows + 1, dtype=np.int32) * 4, np.tile(np.arange(4, dtype=np.int32), rows))
    large = Reference(pattern, problem)
    keys = {large.draw(kind).key for kind in ("wide", "narrow") for _ in range(40)}
    assert 2 <= len(keys) <= 6 and "" not in keys
    asked = Reference(pattern_of(), problem, pooled=True)
    assert 2 <= len({asked.draw("wide").key for _ in range(40)}) <= 3


def test_in_training_a_set_looks_at_fewer_columns_where_there_are_many_rows():
    problem = Problem("spmm", columns=64)
    for rows, looked_at in ((100, 16), (LOOKED_AT // 8, 8), (LOOKED_AT, FEW_COLUMNS)):
        pattern = Pattern(rows, 4, np.arange(rows + 1, dtype=np.int32), np.zeros(rows, np.int32))
        columns = Reference(pattern, problem, pooled=True).draw("narrow").columns
        assert columns is not None and len(columns) == looked_at
        assert Reference(pattern, problem).draw("narrow").columns is None


def test_what_is_judged_together_is_shown_the_same_sets_and_nothing_of_before():
    reference = Reference(pattern_of(64, 64), Problem(), seed=11)
    alone = [reference.draw("wide", "first 1") for _ in range(2)]
    assert not np.array_equal(alone[0].values, alone[1].values), "nothing is shared before a group begins"
    assert not any(check.shared for check in alone)
    seen = []
    for _ in range(2):
        reference.begin()
        places = [("wide", "first 1"), ("wide", "first 3"), ("fed", "first 5"), ("fed", AFTER)]
        first = [reference.draw(*place) for place in places] + [reference.draw_chain(row_sums=False)]
        again = [reference.draw(*place) for place in places] + [reference.draw_chain(row_sums=False)]
        assert all(one is other for one, other in zip(first, again, strict=True))
        assert reference.draw("wide") is not reference.draw("wide")
        assert len({check.shared for check in first}) == len(first), "each has a name of its own"
        assert all(check.shared.startswith(SHARED) and not check.key for check in first)
        mine, others = (reference.neighbours(first[3]) for _ in range(2))
        assert not any(check.shared or check.key for check in (*mine, *others)), "and what is one's own has none"
        assert any(not np.array_equal(a.x, b.x) for a, b in zip(mine, others, strict=True)), "changed for each alone"
        sizes = [np.abs(widen(check.x, "float32")).max() for check in first[2:4]]
        assert min(sizes) < 2.0**-6 and max(sizes) > 2.0**6, "a program sees small numbers and large ones"
        seen.append((first, sizes[0] < sizes[1]))
    values = [check.values.tobytes() for first, _ in seen for check in first]
    assert len(set(values)) == len(values) and seen[0][1] != seen[1][1]


def test_two_references_without_a_seed_never_agree():
    pattern, problem = pattern_of(), Problem()
    assert not np.array_equal(Reference(pattern, problem).draw().x, Reference(pattern, problem).draw().x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_have_both_signs_and_many_magnitudes(dtype):
    check = Reference(pattern_of(), Problem(dtype=dtype), seed=6).draw("wide")
    x = widen(check.x, dtype)
    assert (x < 0).any() and (x > 0).any()
    assert np.log2(np.abs(x)).max() - np.log2(np.abs(x)).min() > 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_of_twenty_products_stays_in_range(dtype):
    pattern, problem = pattern_of(64, 64), Problem(dtype=dtype)
    reference = Reference(pattern, problem, seed=7)
    for row_sums in (False, True):
        start = reference.draw_chain(row_sums)
        x = start
        for _ in range(20):
            y = multiply(pattern, problem, x)
            x = reference._finish("", start.values, y)
        assert np.isfinite(widen(y, dtype)).all()
        if row_sums:
            assert compare_chain(reference, start, y) == ""
        else:
            assert np.abs(widen(y, dtype)).max() > 1e-3


def test_a_chain_that_read_an_old_x_is_wrong():
    pattern, problem = pattern_of(64, 64), Problem()
    reference = Reference(pattern, problem, seed=8)
    start = reference.draw_chain(row_sums=True)
    x = start
    for step in range(20):
        y = multiply(pattern, problem, x)
        x = reference._finish("", start.values, start.x if step == 10 else y)
    assert "before the wait" in compare_chain(reference, start, y)


def test_neighbours_differ_from_their_set_in_one_value_and_in_one_entry_of_x():
    pattern, problem = pattern_of(), Problem("spmm", "float32", 4)
    reference = Reference(pattern, problem, seed=9)
    check = reference.draw("narrow")
    by_value, by_x = reference.neighbours(check)
    assert (by_value.values != check.values).sum() == 1 and np.array_equal(by_value.x, check.x)
    assert (by_x.x != check.x).sum() == 1 and np.array_equal(by_x.values, check.values)
    old = multiply(pattern, problem, check)
    assert compare(pattern, problem, by_value, old) and compare(pattern, problem, by_x, old)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (4, 4)])
def test_a_matrix_without_entries_wants_zeros(shape):
    pattern = Pattern(*shape, np.zeros(shape[0] + 1, np.int32), np.zeros(0, np.int32))
    problem = Problem()
    reference = Reference(pattern, problem, seed=10)
    for kind in ("wide", "isolation"):
        check = reference.draw(kind)
        assert compare(pattern, problem, check, np.zeros(shape[0], np.float32)) == ""
    reference.neighbours(check)
    if shape[0] == shape[1]:
        reference.draw_chain(row_sums=False)


@pytest.mark.parametrize("order", ["row", "col"])
def test_what_is_changed_in_a_neighbour_is_seen_where_half_of_x_is_zeros(order):
    """The sign of a zero, or of what meets one, tells nobody from a program that remembers its last result."""
    pattern, problem = pattern_of(), Problem("spmm", "float32", 4, order, order)
    for seed in range(20):
        reference = Reference(pattern, problem, seed=seed, pooled=True)
        check = reference.draw("fed")
        x = check.x.copy()
        x[reference._random.random(len(x)) < 0.5] = 0
        check = reference._finish("", check.values, x)
        by_value, by_x = reference.neighbours(check)
        old = multiply(pattern, problem, check)
        assert compare(pattern, problem, by_value, old) and compare(pattern, problem, by_x, old), seed


def test_neighbours_of_a_set_of_zeros_are_drawn_all_the_same():
    pattern, problem = pattern_of(), Problem()
    reference = Reference(pattern, problem, seed=1)
    check = reference.draw("narrow")
    none = reference._finish("", check.values, np.zeros_like(check.x))
    for changed in reference.neighbours(none):
        assert not compare(pattern, problem, changed, multiply(pattern, problem, changed))
