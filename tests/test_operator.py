"""The Operator: arrays in, arrays of the same kind out, and a clear word where one doesn't fit.

Most of it runs on a plain host engine (SciPy behind the same Protocol), so that what is tested is the operator alone;
`test_engine.py` runs generated kernels.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import cg, gmres

from sparserl.errors import OperatorError
from sparserl.matrix import as_matrix
from sparserl.operator import Operator
from sparserl.records import Problem
from sparserl.value_order import value_order
from sparserl.values import STORAGE, store, widen


@dataclass
class HostBuffer:
    array: np.ndarray

    @property
    def pointer(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes


class HostBackend:
    """Just enough of a machine for an operator: memory is NumPy's."""

    name = "sim"

    def device(self) -> Any:
        from sparserl.backends.backend import Device

        return Device("sim", "test host", "none", 1, 1, 1.0, 1.0)

    def alloc(self, size_bytes: int) -> HostBuffer:
        return HostBuffer(np.zeros(size_bytes, np.uint8))

    def write(self, buffer: HostBuffer, array: np.ndarray) -> None:
        buffer.array[: array.nbytes] = array.view(np.uint8)

    def read(self, buffer: HostBuffer, dtype: np.dtype, count: int) -> np.ndarray:
        return buffer.array[: dtype.itemsize * count].view(dtype).copy()


class HostEngine:
    """SciPy's product on raw pointers, rounded to the storage type."""

    generated = True
    source = "// layout: rows index=int32\n"
    layout = "rows index=int32"
    binary = None

    def __init__(self, matrix: Any, problem: Problem) -> None:
        self.backend: Any = HostBackend()
        self.executable: Any = self
        self.problem = problem
        self.csr = matrix.to_scipy().copy()

    def set_values(self, values: np.ndarray) -> None:
        self.csr.data = widen(store(values, self.problem.dtype), self.problem.dtype)

    def launch(self, x: int, y: int, stream: int = 0) -> None:
        p = self.problem
        rows, columns = self.csr.shape
        given = widen(_at(x, columns * p.columns, p), p.dtype)
        matrix = given.reshape(columns, p.columns) if p.b_order == "row" else given.reshape(p.columns, columns).T
        result = self.csr @ matrix
        _at(y, rows * p.columns, p)[:] = store((result if p.c_order == "row" else result.T).reshape(-1), p.dtype)


def _at(pointer: int, count: int, problem: Problem) -> np.ndarray:
    raw = (ctypes.c_uint8 * (count * problem.value_bytes)).from_address(pointer)
    return np.frombuffer(raw, STORAGE[problem.dtype])


def random_matrix(rows: int = 50, columns: int = 40, seed: int = 0) -> sp.csr_matrix:
    return sp.random(rows, columns, 0.1, format="csr", random_state=np.random.default_rng(seed))


def make(A: Any, **problem: Any) -> Operator:
    matrix = as_matrix(A)
    p = Problem(**problem)
    return Operator(matrix, p, HostEngine(matrix, p), {}, value_order(A, matrix.pattern))


def spmm(A: Any, columns: int, **problem: Any) -> Operator:
    return make(A, op="spmm", columns=columns, **problem)


# ── products ──────────────────────────────────────────────────────────────────


def test_numpy_goes_in_and_comes_out_in_the_operators_dtype() -> None:
    A = random_matrix()
    op = make(A)
    x = np.random.default_rng(1).standard_normal(40)
    for kind in (np.float32, np.float64, np.float16):
        y = op @ x.astype(kind)
        assert y.dtype == np.float32 and y.shape == (50,)
        assert np.allclose(y, A @ x.astype(kind).astype(np.float64), rtol=1e-3, atol=1e-4)
    assert np.array_equal(op @ np.arange(40), op @ np.arange(40.0))


def test_a_column_vector_keeps_its_shape() -> None:
    op = make(random_matrix())
    assert (op @ np.ones((40, 1))).shape == (50, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scipy_solvers_take_it_as_it_is(dtype: str) -> None:
    A = sp.diags([-1.0, 2.5, -1.0], [-1, 0, 1], shape=(80, 80), format="csr")
    op = make(A, dtype=dtype)
    b = np.random.default_rng(2).standard_normal(80)
    for solve in (cg, gmres):
        x, info = solve(op, b, rtol=1e-5)
        assert info == 0 and np.linalg.norm(A @ x - b) < 1e-4 * np.linalg.norm(b)


def test_the_transposed_product_is_refused_with_the_way_out() -> None:
    with pytest.raises(OperatorError, match=r"sparserl\.tune\(A\.T\)"):
        make(random_matrix()).rmatvec(np.ones(50))


def test_linear_operator_algebra_works() -> None:
    A = random_matrix(40, 40)
    op = make(A, dtype="float64")
    x = np.arange(40.0)
    assert np.allclose((2 * op + op) @ x, 3 * (A @ x))
    assert np.allclose((op @ op) @ x, A @ (A @ x))


def test_torch_goes_in_and_torch_comes_out_without_a_copy() -> None:
    A = random_matrix()
    op = make(A)
    x = torch.arange(40, dtype=torch.float32)
    y = op @ x
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
    assert np.allclose(y.numpy(), A @ x.numpy(), atol=1e-3)
    out = torch.full((50,), float("nan"))
    assert op(x, out=out) is out and torch.equal(out, y)


def test_numpy_out_is_filled_and_returned() -> None:
    op = make(random_matrix())
    out = np.empty(50, np.float32)
    assert op(np.ones(40, np.float32), out=out) is out
    assert np.array_equal(out, op @ np.ones(40))


@pytest.mark.parametrize("b_order", ["row", "col"])
@pytest.mark.parametrize("c_order", ["row", "col"])
def test_spmm_takes_and_gives_the_order_of_its_problem(b_order: str, c_order: str) -> None:
    A = random_matrix()
    op = spmm(A, 8, b_order=b_order, c_order=c_order)
    B = np.random.default_rng(3).standard_normal((40, 8)).astype(np.float32)
    expected = A @ B
    assert np.allclose(op @ B, expected, atol=1e-4)
    assert np.allclose(op @ np.asfortranarray(B), expected, atol=1e-4)
    tensor = torch.from_numpy(B) if b_order == "row" else torch.from_numpy(np.asfortranarray(B))
    C = op(tensor)
    assert np.allclose(C.numpy(), expected, atol=1e-4)
    assert C.stride() == ((8, 1) if c_order == "row" else (1, 50))
    wrong = torch.from_numpy(np.asfortranarray(B)) if b_order == "row" else torch.from_numpy(B)
    with pytest.raises(OperatorError, match=f"{b_order}-major"):
        op(wrong)


@pytest.mark.parametrize("width", [1, 3, 8, 9, 20])
def test_numpy_matrices_of_any_width_go_through_any_operator(width: int) -> None:
    A = random_matrix()
    B = np.random.default_rng(4).standard_normal((40, width))
    for op in (make(A, dtype="float64"), spmm(A, 8, dtype="float64")):
        assert np.allclose(op @ B, A @ B)
        assert np.allclose(op.matmat(B), A @ B)
        assert np.allclose(op.matvec(B[:, 0]), A @ B[:, 0])


def test_bfloat16_is_float32_to_numpy_and_itself_to_torch() -> None:
    A = random_matrix()
    op = make(A, dtype="bfloat16")
    assert op.dtype == np.float32
    y = op @ np.ones(40)
    assert y.dtype == np.float32 and np.allclose(y, A @ np.ones(40), rtol=2e-2, atol=2e-2)
    z = op @ torch.ones(40, dtype=torch.bfloat16)
    assert z.dtype == torch.bfloat16 and np.array_equal(z.float().numpy(), y)
    with pytest.raises(OperatorError, match="no bfloat16"):
        op(np.ones(40), out=np.empty(50, np.float32))


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (5, 5)])
def test_an_empty_matrix_multiplies(shape: tuple[int, int]) -> None:
    op = make(sp.csr_matrix(shape))
    assert np.array_equal(op @ np.ones(shape[1]), np.zeros(shape[0]))


# ── what doesn't fit ──────────────────────────────────────────────────────────

BAD = {
    "dtype": (torch.ones(40, dtype=torch.float64), r"dtype of x must be float32.*x\.to\(torch\.float32\)"),
    "shape": (torch.ones(41), r"shape of x must be \(40,\).*Got \(41,\)"),
    "matrix": (torch.ones(40, 4), r"op='spmm', columns=4"),
    "stride": (torch.ones(80)[::2], r"contiguous.*x\.contiguous\(\)"),
    "alignment": (torch.ones(41)[1:], r"multiple of 16.*clone"),
    "gradient": (torch.ones(40, requires_grad=True), r"x\.detach\(\)"),
    "complex": (np.ones(40, complex), r"real numbers"),
    "numpy shape": (np.ones(39), r"Got \(39,\)"),
    "list": ([1.0] * 40, r"numpy\.asarray"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_array_that_does_not_fit_is_refused_with_the_way_out(case: str) -> None:
    x, message = BAD[case]
    with pytest.raises(OperatorError, match=message):
        make(random_matrix())(x)


@pytest.mark.parametrize(
    "out",
    [torch.empty(50), np.empty(50), np.empty(49, np.float32), np.empty(100, np.float32)[::2], [0.0] * 50],
    ids=["kind", "dtype", "shape", "stride", "list"],
)
def test_an_out_that_does_not_fit_is_refused(out: Any) -> None:
    with pytest.raises(OperatorError):
        make(random_matrix())(np.ones(40, np.float32), out=out)


@pytest.mark.parametrize("x", [np.ones(39), np.ones((39, 4))], ids=["vector", "matrix"])
def test_a_numpy_array_of_a_wrong_length_is_refused_with_both_shapes(x: np.ndarray) -> None:
    with pytest.raises(OperatorError, match=rf"shape of x must be \(40,.*Got \({x.shape[0]},"):
        make(random_matrix()) @ x


def test_only_complex_numbers_are_told_to_be_multiplied_in_parts() -> None:
    with pytest.raises(OperatorError, match="imaginary"):
        make(random_matrix()) @ np.ones(40, complex)
    with pytest.raises(OperatorError, match=r"real numbers\. Got object\.$"):
        make(random_matrix()) @ np.array([None] * 40)


def test_a_numpy_out_is_told_what_numpy_can_do() -> None:
    locked = np.empty(50, np.float32)
    locked.flags.writeable = False
    with pytest.raises(OperatorError, match=r"Got a read-only array; use numpy\.empty\(\(50,\), 'float32'\)"):
        make(random_matrix())(np.ones(40), out=locked)
    with pytest.raises(OperatorError, match=r"strides \(16, 4\).*order='F'"):
        spmm(random_matrix(), 4, c_order="col")(np.ones((40, 4)), out=np.empty((50, 4), np.float32))


def test_out_may_not_overlap_x() -> None:
    op = make(random_matrix(40, 40))
    x = torch.ones(60)
    with pytest.raises(OperatorError, match="overlaps"):
        op(x[:40], out=x[20:])
    with pytest.raises(OperatorError, match="overlaps"):
        op(x[:40], out=x[:40])


# ── new values ────────────────────────────────────────────────────────────────


def test_new_values_change_the_product_and_nothing_else() -> None:
    A = random_matrix()
    op = make(A, dtype="float64")
    B = A.copy()
    B.data = np.random.default_rng(5).standard_normal(A.nnz)
    op.update_values(B.data)
    assert np.allclose(op @ np.arange(40), B @ np.arange(40))
    op.update_values(torch.from_numpy(A.data))
    assert np.allclose(op @ np.arange(40), A @ np.arange(40))


def _shuffled(kind: str) -> Any:
    """A matrix with unsorted rows and duplicates, in the user's own format."""
    random = np.random.default_rng(6)
    row, col = random.integers(0, 30, 300), random.integers(0, 20, 300)
    data = random.standard_normal(300)
    coo = sp.coo_matrix((data, (row, col)), shape=(30, 20))
    if kind == "coo":
        return coo
    if kind == "torch":
        return torch.sparse_coo_tensor(np.stack([row, col]), data, (30, 20))
    order = np.argsort(row if kind == "csr" else col, kind="stable")
    major, minor = (row, col) if kind == "csr" else (col, row)
    start = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=30 if kind == "csr" else 20))])
    make_it = sp.csr_matrix if kind == "csr" else sp.csc_matrix
    return make_it((data[order], minor[order], start), shape=(30, 20))


@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "torch"])
def test_new_values_follow_the_users_order_through_unsorted_rows_and_duplicates(kind: str) -> None:
    A = _shuffled(kind)
    op = make(A, dtype="float64")
    new = np.random.default_rng(7).standard_normal(300)
    op.update_values(new)
    if kind == "torch":
        expected = torch.sparse_coo_tensor(A._indices(), new, (30, 20)).to_dense().numpy()
    else:
        A.data = new.copy()
        expected = A.toarray()
    assert np.allclose(op @ np.eye(20), expected)


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_values_of_another_count_are_refused(count: int) -> None:
    with pytest.raises(OperatorError, match=r"new values must be.*sparserl\.tune"):
        make(random_matrix()).update_values(np.ones(count))


def test_a_whole_matrix_as_new_values_is_told_to_pass_its_data() -> None:
    with pytest.raises(OperatorError, match=r"A\.data"):
        make(random_matrix()).update_values(random_matrix())


# ── looks ─────────────────────────────────────────────────────────────────────


def test_it_says_what_it_is() -> None:
    op = make(random_matrix())
    op.report = {"result": {"time_us": 2.0, "baseline_us": 5.0, "time_source": "modelled", "baseline": "plain:csr"}}
    assert op.speedup == 2.5
    for part in ("50 x 40", "spmv", "float32", "rows index=int32", "2 us modelled", "2.50 over plain:csr"):
        assert part in repr(op)
    assert "<table>" in op._repr_html_() and "&lt;" not in repr(op)


def test_times_that_are_not_known_are_none() -> None:
    op = make(random_matrix())
    assert op.time_us is None and op.baseline_us is None and op.speedup is None
