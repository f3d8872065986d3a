"""CuPy: the product of a CSR matrix through the cuSPARSE calls that its `@` uses, written into memory that is there.

CuPy multiplies by column-major dense matrices alone, so for SpMM that is what it gets, whatever the operator's order.
It has no sparse matrices of two-byte numbers.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

from sparserl.backends.backend import Executable
from sparserl.bench.peers import Subject
from sparserl.errors import BackendError
from sparserl.records import Problem


class CuPy:
    """Implements `peer_launched.Launched`."""

    name = "cupy:csr"

    def why_not(self) -> str:
        if importlib.util.find_spec("cupy") is None:
            return "CuPy is not installed"
        try:
            import cupy

            return "" if cupy.cuda.runtime.getDeviceCount() else "CuPy sees no CUDA device"
        except (ImportError, RuntimeError) as error:
            return f"CuPy can't be used: {error}"

    def orders(self, problem: Problem) -> Problem:
        return problem if problem.op == "spmv" else replace(problem, b_order="col", c_order="col")

    def prepare(self, subject: Subject) -> Executable:
        import cupy
        import cupyx.scipy.sparse

        problem, pattern = subject.problem, subject.matrix.pattern
        if problem.dtype not in ("float32", "float64"):
            raise BackendError(f"CuPy's sparse matrices are float32 or float64, not {problem.dtype}")
        arrays = (cupy.asarray(each) for each in (subject.check.values, pattern.cols, pattern.row_start))
        return _Product(cupyx.scipy.sparse.csr_matrix(tuple(arrays), shape=pattern.shape), problem)


class _Product:
    """An Executable."""

    def __init__(self, a: Any, problem: Problem) -> None:
        self._a, self._problem = a, problem

    def launch(self, x: int, y: int, stream: int = 0) -> None:
        import cupy
        from cupyx import cusparse

        rows, columns = self._a.shape
        where = cupy.cuda.ExternalStream(stream) if stream else cupy.cuda.Stream.null
        with where:
            if self._problem.op == "spmv":
                cusparse.spmv(self._a, self._dense(x, columns), y=self._dense(y, rows), alpha=1, beta=0)
            else:
                cusparse.spmm(self._a, self._dense(x, columns), c=self._dense(y, rows), alpha=1, beta=0)

    def _dense(self, address: int, length: int) -> Any:
        """The vector, or the column-major matrix, at an address."""
        import cupy

        problem = self._problem
        size_bytes = length * problem.columns * problem.value_bytes
        memory = cupy.cuda.UnownedMemory(address, size_bytes, owner=None)
        shape = (length,) if problem.op == "spmv" else (length, problem.columns)
        return cupy.ndarray(shape, dtype=problem.dtype, memptr=cupy.cuda.MemoryPointer(memory, 0), order="F")
