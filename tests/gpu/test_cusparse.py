"""Every cuSPARSE variant against SciPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse

from sparserl.backends import cusparse, open_backend
from sparserl.backends.backend import Buffer, TimingPlan
from sparserl.backends.cuda import CudaBackend
from sparserl.backends.cusparse import CusparseExecutable
from sparserl.matrix import Pattern
from sparserl.records import VALUE_BYTES, DType, Order, Problem
from sparserl.values import STORAGE, store, widen

pytestmark = pytest.mark.gpu

EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
MUST_RUN = ("csr", "coo", "sell")


@pytest.fixture(scope="module")
def backend() -> Iterator[CudaBackend]:
    opened = open_backend("cuda")
    assert isinstance(opened, CudaBackend)
    yield opened
    opened.close()


def blocks_of_three(count: int, seed: int = 0) -> Pattern:
    """Full 3×3 blocks, four a block row: SELL and BSR fit."""
    rng = np.random.default_rng(seed)
    block_rows = np.repeat(np.arange(count), 4)
    pairs = np.unique(np.stack([block_rows, rng.integers(0, count, 4 * count)], axis=1), axis=0)
    row = (pairs[:, :1, None] * 3 + np.arange(3)[None, :, None] + np.zeros((1, 1, 3), int)).ravel()
    col = (pairs[:, 1:, None] * 3 + np.zeros((1, 3, 1), int) + np.arange(3)[None, None, :]).ravel()
    return Pattern.from_coordinates(3 * count, 3 * count, row, col)


def uneven(rows: int, columns: int, seed: int = 1) -> Pattern:
    """Empty rows, one long row, the rest short."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, rows)
    lengths[rows // 2] = columns // 2
    row = np.repeat(np.arange(rows), lengths)
    return Pattern.from_coordinates(rows, columns, row, rng.integers(0, columns, len(row)))


PATTERNS = {"blocks": blocks_of_three(400), "uneven": uneven(1001, 700), "wide": uneven(5, 3000)}


def upload(backend: CudaBackend, array: np.ndarray) -> Buffer:
    buffer = backend.alloc(array.nbytes)
    backend.write(buffer, array)
    return buffer


def dense(rows: int, columns: int, dtype: DType, seed: int) -> np.ndarray:
    return store(np.random.default_rng(seed).standard_normal((rows, columns)), dtype)


def flat(array: np.ndarray, order: Order) -> np.ndarray:
    return np.ascontiguousarray(array if order == "row" else array.T).reshape(-1)


def check(backend: CudaBackend, pattern: Pattern, problem: Problem, seed: int = 2) -> list[str]:
    """Run every variant; the reasons of those that were refused."""
    dtype = problem.dtype
    vals = store(np.random.default_rng(seed).standard_normal(pattern.nonzeros), dtype)
    values = upload(backend, vals)
    b = dense(pattern.columns, problem.columns, dtype, seed + 1)
    a = scipy.sparse.csr_array((widen(vals, dtype), pattern.cols, pattern.row_start), shape=pattern.shape)
    expected, scale = a @ widen(b, dtype), abs(a) @ abs(widen(b, dtype))
    x, y = upload(backend, flat(b, problem.b_order)), backend.alloc(expected.size * VALUE_BYTES[dtype])
    refused = []
    for name in cusparse.variants(problem, pattern):
        made = cusparse.prepare(backend, name, pattern, problem, values)
        if isinstance(made, str):
            refused.append(made)
            continue
        for _ in range(2):
            backend.fill(y, 0xFF)
            report = backend.run(made, x, y)
            assert report.ok, (name, report.reason)
            found = widen(backend.read(y, STORAGE[dtype], expected.size), dtype)
            shape = expected.shape if problem.c_order == "row" else expected.shape[::-1]
            found = found.reshape(shape) if problem.c_order == "row" else found.reshape(shape).T
            bound = 64 * EPSILON[problem.accumulator] * scale + 2 * EPSILON[dtype] * abs(expected)
            if dtype in ("float16", "bfloat16"):  # the library may round sums to the storage type on the way
                bound += 4 * EPSILON[dtype] * scale
            assert (abs(found - expected) <= bound + 1e-7 * (dtype == "float16")).all(), name
            assert backend.guards_intact(y), name
        made.close()
    return refused


@pytest.mark.parametrize("shape", PATTERNS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_spmv_variant_agrees_with_scipy(backend: CudaBackend, shape: str, dtype: DType) -> None:
    refused = check(backend, PATTERNS[shape], Problem("spmv", dtype))
    print(f"\ncuSPARSE {cusparse.version()} {shape} {dtype}: refused {refused}")
    if dtype in ("float32", "float64"):
        assert not [reason for reason in refused if any(f"refuses {kind}" in reason for kind in MUST_RUN)]


@pytest.mark.parametrize("orders", [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_spmm_variant_agrees_with_scipy(backend: CudaBackend, orders: tuple[Order, Order], dtype: DType) -> None:
    for shape, columns in (("blocks", 8), ("uneven", 33)):
        refused = check(backend, PATTERNS[shape], Problem("spmm", dtype, columns, *orders))
        print(f"\n{shape} {dtype} {orders}: refused {refused}")
        if dtype in ("float32", "float64"):
            assert not [reason for reason in refused if "refuses csr0" in reason or "refuses csr2" in reason]


def test_variants_follow_the_structure() -> None:
    spmv = Problem("spmv", "float32")
    assert cusparse.variants(spmv, PATTERNS["blocks"]) == ("csr1", "csr2", "coo1", "coo2", "sell", "bsr3")
    assert "sell" not in cusparse.variants(spmv, PATTERNS["wide"])
    assert cusparse.variants(spmv, Pattern.from_coordinates(3, 3, np.zeros(0, int), np.zeros(0, int))) == ()
    assert "csr0" in cusparse.variants(Problem("spmm", "float32", 16), PATTERNS["uneven"])


def test_a_variant_that_a_matrix_does_not_admit_gives_its_reason(backend: CudaBackend) -> None:
    pattern, problem = PATTERNS["uneven"], Problem("spmv", "float32")
    values = backend.alloc(4 * pattern.nonzeros)
    assert "do not divide" in str(cusparse.prepare(backend, "bsr3", pattern, problem, values))
    wide = PATTERNS["wide"]
    assert "slots for" in str(cusparse.prepare(backend, "sell", wide, problem, backend.alloc(4 * wide.nonzeros)))
    with pytest.raises(ValueError, match="must be one of csr1"):
        cusparse.prepare(backend, "best", pattern, problem, values)


def test_new_values_reach_every_format(backend: CudaBackend) -> None:
    pattern, problem = PATTERNS["blocks"], Problem("spmv", "float32")
    rng = np.random.default_rng(7)
    values = upload(backend, rng.standard_normal(pattern.nonzeros).astype(np.float32))
    made = [cusparse.prepare(backend, name, pattern, problem, values) for name in cusparse.variants(problem, pattern)]
    fresh = rng.standard_normal(pattern.nonzeros).astype(np.float32)
    x = rng.standard_normal(pattern.columns).astype(np.float32)
    backend.write(values, fresh)
    expected = scipy.sparse.csr_array((fresh, pattern.cols, pattern.row_start), shape=pattern.shape).astype(float) @ x
    x_buffer, y = upload(backend, x), backend.alloc(4 * pattern.rows)
    ran = [executable for executable in made if isinstance(executable, CusparseExecutable)]
    assert len(ran) >= 5
    for executable in ran:
        assert backend.run(executable, x_buffer, y).ok
        assert np.allclose(backend.read(y, np.dtype(np.float32), pattern.rows), expected, atol=1e-4), executable.name
        assert executable.size_bytes > 8 * pattern.nonzeros * 4 // 9


def test_all_variants_are_timed_side_by_side_in_graphs(backend: CudaBackend) -> None:
    pattern, problem = PATTERNS["blocks"], Problem("spmv", "float32")
    values = upload(backend, np.ones(pattern.nonzeros, np.float32))
    made = [cusparse.prepare(backend, name, pattern, problem, values) for name in cusparse.variants(problem, pattern)]
    ran = [executable for executable in made if isinstance(executable, CusparseExecutable)]
    plan = TimingPlan(rounds=5, x_elements=pattern.columns, y_elements=pattern.rows, feed_back=True)
    times = backend.time(ran, plan)
    figures = {e.name: round(float(np.median(side)), 2) for e, side in zip(ran, times, strict=True)}
    print(f"\nmicroseconds: {figures}, floor {backend.floor_us(plan):.2f}")
    assert all(backend.floor_us(plan) < time_us < 50 for time_us in figures.values())
