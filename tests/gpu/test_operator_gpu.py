"""Operators on a GPU: torch memory in place, streams, graph capture, new values, files, cuSPARSE as an operator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import cg

import sparserl
from sparserl.doctor import TINY
from sparserl.engine import library_variants, machine, make_engine, verify
from sparserl.errors import OperatorError
from sparserl.matrix import as_matrix
from sparserl.operator import Operator
from sparserl.records import Problem

pytestmark = pytest.mark.gpu


def random_matrix(rows: int = 2000, columns: int = 2000, seed: int = 0) -> sp.csr_matrix:
    return sp.random(rows, columns, 0.01, format="csr", random_state=np.random.default_rng(seed))


def make(A: Any, source: str = TINY, *, generated: bool = True, **problem: Any) -> Operator:
    matrix, p = as_matrix(A), Problem(**problem)
    return Operator(matrix, p, make_engine(matrix, p, source, machine("cuda"), generated=generated))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_and_torch_give_the_same_product(dtype: str) -> None:
    A = random_matrix()
    op = make(A, dtype=dtype)
    x = np.random.default_rng(1).standard_normal(2000)
    from_numpy = op @ x
    from_torch = op @ torch.from_numpy(x).to("cuda", getattr(torch, dtype))
    assert np.allclose(from_numpy, A @ x, rtol=1e-4, atol=1e-4)
    assert np.array_equal(from_torch.cpu().numpy(), from_numpy)


def test_out_is_written_in_place_on_the_stream_that_is_given() -> None:
    A = random_matrix()
    op = make(A)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, y = torch.ones(2000, device="cuda"), torch.full((2000,), float("nan"), device="cuda")
        assert op(x, out=y) is y
        op(x, out=y, stream=stream)
    stream.synchronize()
    assert np.allclose(y.cpu().numpy(), A @ np.ones(2000), atol=1e-3)


def test_a_captured_product_replays_and_follows_new_values() -> None:
    A = random_matrix()
    op = make(A)
    x, y = torch.ones(2000, device="cuda"), torch.empty(2000, device="cuda")
    op(x, out=y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(x, out=y)
    x.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert np.allclose(y.cpu().numpy(), A @ np.full(2000, 2.0), atol=1e-3)
    op.update_values(3 * A.data)
    graph.replay()
    torch.cuda.synchronize()
    assert np.allclose(y.cpu().numpy(), 3 * (A @ np.full(2000, 2.0)), rtol=1e-4, atol=1e-3)


def test_a_tensor_on_the_host_is_refused_with_the_way_out() -> None:
    with pytest.raises(OperatorError, match=r"x\.to\('cuda:0'\)"):
        make(random_matrix())(torch.ones(2000))


def test_every_cusparse_variant_is_an_operator_like_any_other() -> None:
    A = random_matrix()
    matrix, problem = as_matrix(A), Problem()
    names = library_variants(matrix.pattern, problem)
    assert names
    for name in names:
        op = make(A, name, generated=False)
        verify(op._engine, matrix.pattern, problem, restore=matrix.data)
        x = torch.ones(2000, device="cuda")
        assert np.allclose((op @ x).cpu().numpy(), A @ np.ones(2000), atol=1e-3)
        op.update_values(2 * A.data)
        assert np.allclose((op @ x).cpu().numpy(), 2 * (A @ np.ones(2000)), atol=1e-3)
        assert not op.generated and name.removeprefix("cusparse:") in repr(op)


def test_a_cusparse_operator_is_saved_and_loaded(tmp_path: Path) -> None:
    A = random_matrix()
    make(A, "cusparse:csr2", generated=False).save(tmp_path / "a.srl")
    assert np.allclose(sparserl.load(tmp_path / "a.srl") @ np.ones(2000), A @ np.ones(2000), atol=1e-3)


@pytest.mark.slow
def test_tune_is_never_slower_than_cusparse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARSERL_CACHE", str(tmp_path))
    A = sp.diags([-1.0, 2.5, -1.0], [-1, 0, 1], shape=(20_000, 20_000), format="csr")
    op = sparserl.tune(A, device="cuda", candidates=8)
    assert op.time_source == "gpu" and op.speedup is not None and op.speedup >= 1.0
    b = np.random.default_rng(2).standard_normal(20_000)
    x, info = cg(op, b, rtol=1e-5)
    assert info == 0 and np.linalg.norm(A @ x - b) < 1e-4 * np.linalg.norm(b)
    began = time.perf_counter()
    again = sparserl.tune(A, device="cuda", candidates=8)
    assert again.report["from_cache"] and time.perf_counter() - began < 1.0
    assert again.source == op.source


def test_an_eager_product_costs_no_more_host_time_than_torchs() -> None:
    A = random_matrix(200, 200)
    op = make(A)
    theirs = torch.sparse_csr_tensor(A.indptr, A.indices, A.data.astype(np.float32), A.shape, device="cuda")
    x, y = torch.ones(200, device="cuda"), torch.empty(200, device="cuda")

    def host_us(call: Any) -> float:
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        rounds = []
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(50):
                call()
            rounds.append((time.perf_counter() - began) / 50 * 1e6)
            torch.cuda.synchronize()
        return float(np.median(rounds))

    assert host_us(lambda: op(x, out=y)) <= host_us(lambda: torch.mv(theirs, x, out=y))
