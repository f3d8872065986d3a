"""The part of an Operator that runs: one executable, the device memory it reads, and how new values get there.

Two kinds stand behind one Protocol: a generated program and a cuSPARSE routine. `verify` is a small test of its own
against SciPy in float64, for operators that come from a file; it needs no judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np

from sparserl import layouts, program, screen
from sparserl.assemble import assemble
from sparserl.backends import open_backend
from sparserl.backends.backend import Backend, Binary, Buffer, Executable
from sparserl.errors import OperatorError
from sparserl.matrix import Matrix, Pattern
from sparserl.records import Problem
from sparserl.values import EPSILON, STORAGE, store, widen, without_negative_zero

Array = np.ndarray[Any, np.dtype[Any]]
LIBRARY = "cusparse:"
"""in front of the name of a cuSPARSE variant"""


class Engine(Protocol):
    """What an Operator holds."""

    backend: Backend
    executable: Executable
    generated: bool
    source: str
    layout: str
    binary: Binary | None

    def set_values(self, values: Array) -> None:
        """New numbers in canonical order. Done when it returns: no product before sees them, every one after does."""


@cache
def machine(name: str) -> Backend:
    """The backend of this name, opened once a process and shared by all operators on it."""
    return open_backend(name)


def make_engine(
    matrix: Matrix, problem: Problem, source: str, backend: Backend, *, generated: bool, binary: Binary | None = None
) -> Engine:
    """From a program's text, or (`generated` False) from the name of a cuSPARSE variant."""
    if generated:
        return Generated(matrix, problem, source, backend, binary)
    return Library(matrix, problem, source, backend)


def library_variants(pattern: Pattern, problem: Problem) -> tuple[str, ...]:
    """The cuSPARSE routines that this matrix admits, as `make_engine` takes them."""
    from sparserl.backends import cusparse

    return tuple(LIBRARY + name for name in cusparse.variants(problem, pattern))


class Generated:
    """A program packed, compiled and bound to memory."""

    generated = True

    def __init__(
        self, matrix: Matrix, problem: Problem, text: str, backend: Backend, binary: Binary | None = None
    ) -> None:
        parsed = program.parse(text)
        screen.screen(parsed)  # the text may come from a file: what a screen refuses must never reach a compiler
        packed = layouts.pack(matrix.pattern, parsed.layout)
        job = assemble(parsed, packed, problem, backend.device().sms)
        self.backend = backend
        self.source = text
        self.layout = str(parsed.layout)
        self.binary: Binary | None = binary or backend.compile(job.source, job.kernels)
        self.packed_bytes = packed.size_bytes_without_values + packed.slots * problem.value_bytes
        self._dtype = problem.dtype
        self._slot_of = None if packed.slot_of is None else backend.upload({"": packed.slot_of.astype(np.int32)})[""]
        self._values = backend.alloc(max(packed.slots * problem.value_bytes, 1))
        self._arrays: Mapping[str, Buffer] = {**backend.upload(packed.arrays), "vals": self._values}
        self.set_values(matrix.data)
        self.executable = backend.prepare(self.binary, job, self._arrays)

    def set_values(self, values: Array) -> None:
        """`Backend.scatter` blocks until the numbers are in place, so that a kernel which reads A before it waits for
        its predecessor (programmatic dependent launch) can't meet them half-written."""
        stored = without_negative_zero(store(values, self._dtype), self._dtype)
        padding = store(np.array([-0.0]), self._dtype)
        self.backend.scatter(self._values, stored, self._slot_of, padding)


class Library:
    """A cuSPARSE routine, preprocessed, on values in CSR order."""

    generated = False
    binary: Binary | None = None

    def __init__(self, matrix: Matrix, problem: Problem, name: str, backend: Backend) -> None:
        from sparserl.backends import cusparse
        from sparserl.backends.cuda import CudaBackend

        if not isinstance(backend, CudaBackend):
            raise OperatorError(f"{name} is a cuSPARSE routine and needs a GPU: open it with device='cuda'.")
        self.backend: Backend = backend
        self.source = name
        self.layout = name.removeprefix(LIBRARY)
        self._dtype = problem.dtype
        self._values = backend.alloc(max(matrix.nonzeros * problem.value_bytes, 1))
        self.set_values(matrix.data)
        made = cusparse.prepare(backend, self.layout, matrix.pattern, problem, self._values)
        if isinstance(made, str):
            raise OperatorError(f"{name} can't be used here: {made}.")
        self.executable: Executable = made

    def set_values(self, values: Array) -> None:
        if len(values):
            self.backend.write(self._values, store(values, self._dtype))  # the routine is told and follows


def verify(engine: Engine, pattern: Pattern, problem: Problem, restore: Array, seed: int | None = None) -> None:
    """Multiply fresh numbers and compare with SciPy in float64, row by row; then put the values `restore` back.

    The bound is the judge's: |y - ref| <= (4 + 2 ceil(sqrt(n_i))) eps_acc (|A||x|)_i + eps_out |ref_i|. It finds a
    program that is wrong on this machine; it is not meant to find one that cheats.
    """
    random = np.random.default_rng(seed)
    n = problem.columns
    data = widen(store(_signed(random, pattern.nonzeros), problem.dtype), problem.dtype)
    x = widen(store(_signed(random, pattern.columns * n), problem.dtype), problem.dtype).reshape(pattern.columns, n)
    reference = Matrix(pattern, data).to_scipy()
    expected = reference @ x
    reference.data = np.abs(reference.data)
    magnitude = reference @ np.abs(x)
    try:
        engine.set_values(data)
        got = multiply(engine, x, problem, pattern.rows)
    finally:
        engine.set_values(restore)
    steps = (4 + 2 * np.ceil(np.sqrt(pattern.row_lengths)))[:, None]
    limit = steps * EPSILON[problem.accumulator] * magnitude + EPSILON[problem.dtype] * np.abs(expected)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - expected) <= limit)
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise OperatorError(
            f"The kernel is wrong on {engine.backend.device().name}: row {row}, column {column} is "
            f"{got[row, column]:g} instead of {expected[row, column]:g} (one of {int(wrong.sum())} in {wrong.size}). "
            "Tune the matrix again here."
        )


def multiply(engine: Engine, x: Array, problem: Problem, rows: int) -> Array:
    """One product of float64 numbers (columns, n) through buffers with a poisoned result: (rows, n)."""
    backend = engine.backend
    stored = store(x.T if problem.b_order == "col" else x, problem.dtype).reshape(-1)
    source = backend.upload({"": stored})[""]
    count = rows * problem.columns
    target = backend.alloc(max(count * problem.value_bytes, 1))
    backend.fill(target, 0xFF)  # NaN in every storage type
    engine.executable.launch(source.pointer, target.pointer, 0)
    y = widen(backend.read(target, STORAGE[problem.dtype], count), problem.dtype)
    return y.reshape(rows, problem.columns) if problem.c_order == "row" else y.reshape(problem.columns, rows).T


def _signed(random: np.random.Generator, count: int) -> Array:
    """Signed numbers over a few magnitudes."""
    return random.choice((-1.0, 1.0), count) * np.exp2(random.uniform(-3, 3, count))
