"""Operators that run generated kernels on the simulator: products, new values, files. No judge, no policy."""

from __future__ import annotations

import io
import json
import logging
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import sparserl
from sparserl import srl
from sparserl.doctor import TINY
from sparserl.engine import machine, make_engine, verify
from sparserl.errors import OperatorError, ScreenError, SparseRLError
from sparserl.matrix import as_matrix
from sparserl.operator import Operator
from sparserl.records import Problem
from sparserl.value_order import value_order

SLICED = """\
// layout: slices c=32 sigma=1 group=1 index=int32
// bake: PADDED
// launch: spmv<<<div_up(slices, 4), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, int slices, const int* slice_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int slice = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, row = slice * 32 + lane;
    if (slice >= slices) return;
    acc_t sum = 0;
    for (int j = slice_start[slice] + lane; j < slice_start[slice + 1]; j += 32) {
        const index_t c = cols[j];
        if (!PADDED || !is_padding(c)) sum += to_acc(vals[j]) * to_acc(x[c]);
    }
    if (row < rows) y[row] = to_value(sum);
}
"""
SPMM = """\
// layout: rows index=int32
// launch: spmm<<<div_up(rows * n, 128), 128>>>
extern "C" __global__ void spmm(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* b, value_t* c, int n)
{
    const int place = blockIdx.x * 128 + threadIdx.x, row = place / n, column = place % n;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += to_acc(vals[j]) * to_acc(b[cols[j] * n + column]);
    c[row * n + column] = to_value(sum);
}
"""
BROKEN = TINY.replace("acc_t sum = 0;", "acc_t sum = 1;")


def random_matrix(seed: int = 0) -> sp.csr_matrix:
    return sp.random(100, 80, 0.05, format="csr", random_state=np.random.default_rng(seed))


def make(A: Any, text: str = TINY, **problem: Any) -> Operator:
    matrix, p = as_matrix(A), Problem(**problem)
    engine = make_engine(matrix, p, text, machine("sim"), generated=True)
    result = {"time_us": 2.0, "baseline_us": 4.0, "baseline": "plain:csr", "time_source": "modelled"}
    return Operator(matrix, p, engine, {"result": result}, value_order(A, matrix.pattern))


@pytest.mark.parametrize("text", [TINY, SLICED], ids=["rows", "slices"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_generated_kernel_multiplies_and_takes_new_values(text: str, dtype: str) -> None:
    A = random_matrix()
    op = make(A, text, dtype=dtype)
    x = np.random.default_rng(1).standard_normal(80)
    assert np.allclose(op @ x, A @ x, rtol=1e-4, atol=1e-4)
    A.data = np.random.default_rng(2).standard_normal(A.nnz)
    op.update_values(A.data)
    assert np.allclose(op @ x, A @ x, rtol=1e-4, atol=1e-4)


def test_torch_tensors_on_the_host_are_used_in_place() -> None:
    A = random_matrix()
    op = make(A)
    x, y = torch.ones(80), torch.full((100,), float("nan"))
    op(x, out=y)
    assert np.allclose(y.numpy(), A @ np.ones(80), atol=1e-4)


def test_spmm_multiplies() -> None:
    A = random_matrix()
    B = np.random.default_rng(3).standard_normal((80, 8))
    assert np.allclose(make(A, SPMM, op="spmm", columns=8) @ B, A @ B, rtol=1e-4, atol=1e-4)


def test_a_users_negative_zero_and_zero_entries_are_no_padding() -> None:
    A = sp.csr_matrix((np.array([-0.0, 0.0, 2.0]), np.array([0, 1, 2]), np.array([0, 1, 3])), shape=(2, 3))
    y = make(A, SLICED) @ np.array([np.inf, 1.0, 1.0])
    assert np.isnan(y[0]) and y[1] == 2.0


def test_verify_finds_a_wrong_kernel_and_puts_the_values_back() -> None:
    matrix, problem = as_matrix(random_matrix()), Problem()
    good = make_engine(matrix, problem, TINY, machine("sim"), generated=True)
    verify(good, matrix.pattern, problem, restore=matrix.data, seed=1)
    op = Operator(matrix, problem, good)
    assert np.allclose(op @ np.ones(80), matrix.to_scipy() @ np.ones(80), atol=1e-4)
    bad = make_engine(matrix, problem, BROKEN, machine("sim"), generated=True)
    with pytest.raises(OperatorError, match="wrong on simulated H200"):
        verify(bad, matrix.pattern, problem, restore=matrix.data, seed=1)


# ── files ─────────────────────────────────────────────────────────────────────


def test_a_saved_operator_comes_back_the_same(tmp_path: Path) -> None:
    A = random_matrix()
    op = make(A, SLICED)
    op.save(tmp_path / "a.srl")
    back = sparserl.load(tmp_path / "a.srl")
    x = np.random.default_rng(4).standard_normal(80)
    assert np.array_equal(back @ x, op @ x)
    assert back.source == op.source and back.layout == op.layout and back.report == op.report
    assert back.time_us == 2.0 and back.speedup == 2.0


def test_a_saved_operator_keeps_the_users_order_of_values() -> None:
    row, col = np.array([1, 0, 1, 0, 1]), np.array([2, 1, 0, 1, 2])
    A = sp.coo_matrix((np.ones(5), (row, col)), shape=(2, 3))
    back = pickle.loads(pickle.dumps(make(A)))
    new = np.arange(1.0, 6.0)
    back.update_values(new)
    assert np.allclose(back @ np.eye(3), sp.coo_matrix((new, (row, col)), shape=(2, 3)).toarray())


def changed(op: Operator, **about: Any) -> bytes:
    """An .srl with some of its about.json replaced."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(srl.dumps(op))) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, json.dumps({**json.loads(data), **about}) if name == "about.json" else data)
    return out.getvalue()


def test_on_another_device_it_is_verified_again_says_so_and_drops_its_times(caplog: pytest.LogCaptureFixture) -> None:
    op = make(random_matrix())
    with caplog.at_level(logging.WARNING):
        back = srl.loads(changed(op, device="NVIDIA H200", arch="sm_90a"))
    assert "was tuned on NVIDIA H200" in caplog.text and "verified on simulated H200" in caplog.text
    assert back.time_us is None and back.report["tuned_result"]["time_us"] == 2.0
    assert np.array_equal(back @ np.ones(80), op @ np.ones(80))


def test_a_file_made_on_a_gpu_never_falls_to_the_simulator_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparserl.backends.cuda.why_not", lambda *_, **__: "there is none")
    monkeypatch.setattr("sparserl.engine.machine", machine.__wrapped__)  # not the one opened before
    with pytest.raises(SparseRLError, match="cuda backend can't be used: there is none"):
        srl.loads(changed(make(random_matrix()), backend="cuda", device="NVIDIA H200"))


def test_a_file_with_a_wrong_kernel_is_refused() -> None:
    with pytest.raises(OperatorError, match="wrong on"):
        srl.loads(srl.dumps(make(random_matrix(), BROKEN)))


def test_a_file_with_a_program_that_the_screen_refuses_never_reaches_a_compiler(tmp_path: Path) -> None:
    op = make(random_matrix())
    op._engine.source = TINY.replace("acc_t sum = 0;", 'asm("nop"); acc_t sum = 0;')  # type: ignore[misc]
    with pytest.raises(ScreenError):
        srl.loads(srl.dumps(op))


@pytest.mark.parametrize("harm", ["truncated", "text", "empty", "version", "pattern"])
def test_a_damaged_file_is_refused_with_one_clear_error(tmp_path: Path, harm: str) -> None:
    op = make(random_matrix())
    whole = srl.dumps(op)
    data = {
        "truncated": whole[: len(whole) // 2],
        "text": b"hello",
        "empty": b"",
        "version": changed(op, format=99),
        "pattern": changed(op, fingerprint="0" * 64),
    }[harm]
    (tmp_path / "a.srl").write_bytes(data)
    with pytest.raises(OperatorError, match=r"a\.srl"):
        sparserl.load(tmp_path / "a.srl")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No such file"):
        sparserl.load(tmp_path / "none.srl")
