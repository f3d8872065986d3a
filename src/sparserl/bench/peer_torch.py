"""torch.sparse: the product of a CSR tensor with int32 indices, written into memory that is there already."""

from __future__ import annotations

from typing import Any

from sparserl.backends.backend import Executable
from sparserl.bench.peers import Subject
from sparserl.records import Order, Problem

RAW = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<i2"}
"""how a pointer is handed to torch; it has no word for bfloat16"""


class Torch:
    """Implements `peer_launched.Launched`."""

    name = "torch:csr"

    def why_not(self) -> str:
        try:
            import torch
        except ImportError as error:
            return f"torch can't be imported: {error}"
        return "" if torch.cuda.is_available() else "torch sees no CUDA device"

    def orders(self, problem: Problem) -> Problem:
        return problem

    def prepare(self, subject: Subject) -> Executable:
        import torch

        pattern, kind = subject.matrix.pattern, getattr(torch, subject.problem.dtype)
        values = torch.from_numpy(subject.check.values.copy())
        values = values.view(torch.bfloat16) if subject.problem.dtype == "bfloat16" else values.to(kind)
        start, cols = (torch.from_numpy(each.copy()).cuda() for each in (pattern.row_start, pattern.cols))
        a = torch.sparse_csr_tensor(start, cols, values.cuda(), size=pattern.shape)
        return _Product(a, subject.problem, pattern.shape)


class _Product:
    """An Executable. Views of a vector are made once for each address, before anything is captured."""

    def __init__(self, a: Any, problem: Problem, shape: tuple[int, int]) -> None:
        self._a, self._problem, self._shape = a, problem, shape
        self._views: dict[tuple[str, int], Any] = {}
        self._streams: dict[int, Any] = {}

    def launch(self, x: int, y: int, stream: int = 0) -> None:
        import torch

        if stream not in self._streams:
            outside: Any = torch.cuda.ExternalStream
            self._streams[stream] = outside(stream) if stream else torch.cuda.default_stream()
        if self._shape[0] == self._shape[1]:  # in a chain the two swap roles
            self._view("x", y), self._view("y", x)
        multiply = torch.mv if self._problem.op == "spmv" else torch.mm
        with torch.cuda.stream(self._streams[stream]), torch.no_grad():
            multiply(self._a, self._view("x", x), out=self._view("y", y))

    def _view(self, role: str, address: int) -> Any:
        if (role, address) not in self._views:
            problem = self._problem
            length = self._shape[1] if role == "x" else self._shape[0]
            order = problem.b_order if role == "x" else problem.c_order
            self._views[role, address] = dense(address, length, problem, order)
        return self._views[role, address]


class _Memory:
    """Memory that somebody else owns, as the CUDA array interface says it."""

    def __init__(self, address: int, count: int, raw: str) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": raw, "data": (address, False), "version": 3}


def dense(address: int, length: int, problem: Problem, order: Order) -> Any:
    """A torch tensor on the vector, or on the dense matrix of so many rows, at an address."""
    import torch

    flat = torch.as_tensor(_Memory(address, length * problem.columns, RAW[problem.dtype]), device="cuda")
    flat = flat.view(torch.bfloat16) if problem.dtype == "bfloat16" else flat
    if problem.op == "spmv":
        return flat
    return flat.view(length, problem.columns) if order == "row" else flat.view(problem.columns, length).T
