"""The reference's products: the same in blocks and threads as in one piece, and after a change as if drawn anew."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.sparse

from sparserl.backends.backend import Part
from sparserl.judge import product as product_module
from sparserl.judge import reference as reference_module
from sparserl.judge import tolerance
from sparserl.judge.product import Product
from sparserl.judge.reference import Reference, ValueSet
from sparserl.judge.trial import FIRST_CHECKS
from sparserl.judge.verify import compare
from sparserl.matrix import Pattern
from sparserl.records import DType, Problem
from sparserl.values import store, widen


def pattern_of(rows: int = 200, columns: int = 90, seed: int = 0) -> Pattern:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 30, rows)
    lengths[::9], lengths[5] = 0, columns
    col = np.concatenate([random.choice(columns, size, replace=False) for size in lengths])
    return Pattern.from_coordinates(rows, columns, np.repeat(np.arange(rows), lengths), col)


def in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_module, "BLOCK_WORK", 64)
    monkeypatch.setattr(tolerance, "BLOCK", 32)


@pytest.mark.parametrize(("share", "threads"), [(16, 4), (2, 2), (1, 0)])
def test_a_process_takes_no_more_threads_than_its_share(
    share: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight cores, for four pieces; a single thread is not worth starting."""
    monkeypatch.setattr(product_module.Share, "threads", share)
    monkeypatch.setattr(product_module.os, "cpu_count", lambda: 8)
    names: set[str] = set()
    together = threading.Barrier(max(1, threads), timeout=5)

    def work(_: int) -> None:
        names.add(threading.current_thread().name)
        together.wait()

    product_module.in_threads(work, range(4))
    assert len(names - {threading.current_thread().name}) == threads


@pytest.mark.parametrize("n", [1, 5])
def test_blocks_and_threads_change_no_bit(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, random = pattern_of(), np.random.default_rng(1)
    data, b = random.standard_normal(pattern.nonzeros), random.standard_normal((pattern.columns, n))
    wanted = scipy.sparse.csr_matrix((data, pattern.cols, pattern.row_start), shape=pattern.shape) @ b
    whole = Product(pattern, n).times(data, b)
    in_small_blocks(monkeypatch)
    parts = Product(pattern, n)
    assert len(parts._blocks) > 10
    np.testing.assert_array_equal(whole, wanted)
    np.testing.assert_array_equal(parts.times(data, b), wanted)
    out, magnitude = parts.with_magnitude(data, "float64", b)
    np.testing.assert_array_equal(out, wanted)
    csr = scipy.sparse.csr_matrix((np.abs(data), pattern.cols, pattern.row_start), shape=pattern.shape)
    np.testing.assert_allclose(magnitude, csr @ np.abs(b), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("few", [0, 256])
def test_neighbours_expect_what_a_whole_product_gives(
    dtype: DType, n: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_module, "FEW_ROWS", few)
    pattern, problem = pattern_of(), Problem("spmm" if n > 1 else "spmv", dtype, n)
    reference = Reference(pattern, problem, seed=2)
    for changed in reference.neighbours(reference.draw("narrow")):
        whole = reference._finish("", changed.values, changed.x)
        np.testing.assert_allclose(changed.expected, whole.expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(changed.limit, whole.limit, rtol=1e-4)


@pytest.mark.parametrize("c_order", ["row", "col"])
def test_every_result_is_looked_at_in_every_block(c_order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)
    pattern, problem = pattern_of(), Problem("spmm", "float32", 3, c_order=c_order)  # type: ignore[arg-type]
    check = Reference(pattern, problem, seed=3).draw("wide")
    right = store(check.expected if c_order == "row" else check.expected.T, "float32").reshape(-1)
    assert compare(pattern, problem, check, right) == ""
    for place in range(right.size):
        wrong = right.copy()
        wrong[place] += 1.0 + abs(wrong[place])
        row, column = divmod(place, 3) if c_order == "row" else divmod(place, pattern.rows)[::-1]
        assert f"1 of {right.size} results are wrong; row {row}, column {column} " in compare(
            pattern, problem, check, wrong
        )


def test_limits_are_the_bound_and_nan_where_the_reference_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)
    pattern, problem = pattern_of(), Problem()
    check: ValueSet = Reference(pattern, problem, seed=4).draw("isolation")
    finite = np.isfinite(check.expected)
    assert not finite.all() and np.array_equal(np.isnan(check.limit), ~finite)
    lengths, slack = pattern.row_lengths, tolerance.allowance(pattern, problem)
    values = np.abs(widen(check.values, "float32"))
    csr = scipy.sparse.csr_matrix((values, pattern.cols, pattern.row_start), shape=pattern.shape)
    with np.errstate(invalid="ignore"):
        magnitude = csr @ np.abs(check.x.astype(np.float64))[:, None]
        wanted = tolerance.bound(problem, slack, lengths, check.expected, magnitude)
    np.testing.assert_allclose(check.limit[finite], wanted[finite], rtol=1e-5)
    assert (check.limit[lengths == 0] == 0).all()


# ---- huge problems: a set looks at a share of the columns


def huge(monkeypatch: pytest.MonkeyPatch, order: str = "row") -> Reference:
    monkeypatch.setattr(reference_module, "FRESH_BELOW", 1)
    monkeypatch.setattr(reference_module, "HUGE", 1)
    return Reference(pattern_of(), Problem("spmm", "float32", 16, b_order=order, c_order=order), seed=5)  # type: ignore[arg-type]


def test_the_checks_of_a_huge_problem_look_at_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = huge(monkeypatch)
    for _ in range(5):  # whichever sets of the pool are drawn
        looked = {kind: reference.draw(kind).columns for kind in FIRST_CHECKS}
        assert set(np.concatenate(list(looked.values())).tolist()) == set(range(16))  # type: ignore[arg-type]
        assert {len(looked[kind]) for kind in ("narrow", "wide", "timed", "fed")} == {4}  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["row", "col"])
def test_a_huge_set_expects_what_the_whole_product_gives_in_its_columns(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = huge(monkeypatch, order)
    check = reference.draw("wide")
    assert check.columns is not None
    whole = reference.product.times(widen(check.values, "float32"), reference.dense(check.x))
    np.testing.assert_allclose(check.expected, whole[:, check.columns], rtol=1e-12)
    right = store(whole if order == "row" else whole.T, "float32").reshape(-1)
    assert compare(reference.pattern, reference.problem, check, right) == ""
    part = Part(check.columns, 16, reference.problem.c_order)
    assert compare(reference.pattern, reference.problem, check, part.of(right)) == ""
    wrong = right.reshape(whole.shape) if order == "row" else right.reshape(whole.T.shape).T
    row, column = int(np.argmax(reference.pattern.row_lengths)), int(check.columns[-1])
    wrong[row, column] += 1.0 + abs(wrong[row, column])
    for seen in (right, part.of(right)):
        assert f"row {row}, column {column} " in compare(reference.pattern, reference.problem, check, seen)


def test_a_huge_set_sees_its_traps_and_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = huge(monkeypatch)
    check = reference.draw("isolation")
    spoilt = np.unique(np.flatnonzero(~np.isfinite(check.x)) % 16)
    assert check.columns is not None and set(spoilt) <= set(check.columns.tolist())
    narrow = reference.draw("narrow")
    assert all((changed.expected != narrow.expected).any() for changed in reference.neighbours(narrow))
