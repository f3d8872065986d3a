"""cuSPARSE behind the Executable Protocol: every algorithm it has for SpMV and SpMM, each after its preprocess step.

    variants(problem, pattern)                       names worth trying: csr1, csr2, coo1, coo2, sell, bsr3 …
    prepare(backend, name, pattern, problem, values) an Executable, or the reason why there is none

`values` holds the stored values in CSR order; write new ones through the backend and SELL and BSR follow. A variant is
run once while it is prepared, so a routine that the library refuses is a reason and not a surprise, and its kernels are
loaded before anything is captured. Not covered: blocked ELL, batches, transposes, an empty matrix, one variant on two
streams at the same time (its work buffer is one).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from sparserl.backends.backend import Buffer
from sparserl.backends.cuda import CudaBackend
from sparserl.backends.cuda_executable import CudaBuffer
from sparserl.backends.cuda_timing import Held
from sparserl.errors import BackendError, NoRoomError
from sparserl.records import Problem

if TYPE_CHECKING:
    from sparserl.matrix import Pattern

SPMV = {"csr1": 2, "csr2": 3, "coo1": 1, "coo2": 4, "sell": 5, "bsr": 6}
SPMM = {"csr0": 0, "csr1": 4, "csr2": 6, "csr3": 12, "coo1": 1, "coo2": 2, "coo3": 3, "coo4": 5, "bsr": 14}
"""cusparseSpMVAlg_t and cusparseSpMMAlg_t; csr0 is what a user gets who does not choose"""
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""cudaDataType"""
ORDERS = {"col": 1, "row": 2}
INDEX_32 = 2
SLICE = 32
BLOCK_SIZES = (2, 3, 4, 6, 8)
LEAST_FILL = 0.6
"""of a block: with less, BSR of small blocks moves more bytes than CSR in float32"""
MOST_PADDING = 3
"""SELL slots a nonzero"""
STATUS = {
    1: "not initialised", 2: "out of memory", 3: "invalid value", 4: "architecture mismatch", 6: "execution failed",
    7: "internal error", 8: "matrix type not supported", 10: "not supported", 11: "insufficient resources",
}  # fmt: skip
NOT_SUPPORTED = 10
LARGEST = 2**31 - 1

Array = np.ndarray[Any, np.dtype[Any]]


def variants(problem: Problem, pattern: Pattern) -> tuple[str, ...]:
    """The variants that this matrix admits, by its structure alone; the library may still refuse one in `prepare`."""
    if not pattern.nonzeros:
        return ()
    table = SPMV if problem.op == "spmv" else SPMM
    names = [name for name in table if name not in ("sell", "bsr")]
    if problem.op == "spmv" and isinstance(_slices(pattern), _Format):
        names.append("sell")
    names += [f"bsr{b}" for b in BLOCK_SIZES if _divides(pattern, b) and _filled(pattern, b)]
    return tuple(names)


def prepare(
    backend: CudaBackend, name: str, pattern: Pattern, problem: Problem, values: Buffer, *, held: Held = nullcontext
) -> CusparseExecutable | str:
    """One variant, ready to launch; a string says why the library or the matrix does not admit it.

    `held` is entered while the GPU is used; the format is made before.
    """
    table = SPMV if problem.op == "spmv" else SPMM
    kind = name.rstrip("0123456789")
    names = [*(name for name in table if name != "bsr"), *(f"bsr{b}" for b in BLOCK_SIZES)]
    if name not in names:
        raise ValueError(f"The 'name' of a {problem.op} variant must be one of {', '.join(names)}. Got {name!r}.")
    if not pattern.nonzeros:
        return "an empty matrix has no cuSPARSE baseline"
    made = _format(kind, name, pattern)
    if isinstance(made, str):
        return made
    algorithm = table["bsr"] if kind == "bsr" else table[name]
    assert isinstance(values, CudaBuffer)
    with held(), backend.among_others():
        try:
            return CusparseExecutable(backend, name, made, problem, values, algorithm=algorithm)
        except _RefusedError as refused:
            backend.settle()  # a fault in the library is sticky and says so here
            return f"cuSPARSE {version()} refuses {name}: {refused}"
        except NoRoomError as full:  # for one variant; the others may fit
            return f"{name} is left out: {full}"


def version() -> str:
    """The library's version, such as '12.6.3'."""
    number = ctypes.c_int()
    library = _library()
    library.check("cusparseGetVersion", library.handle, ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 100}.{number.value % 100}"


# ---- formats


@dataclass(frozen=True)
class _Format:
    """A matrix as cuSPARSE wants it; `slot_of` None means that the CSR values serve as they are."""

    create: str
    sizes: tuple[int, ...]
    arrays: tuple[Array, ...]
    slot_of: Array | None
    slots: int
    shape: tuple[int, int]
    tail: tuple[int, ...] = field(default=())
    index_types: int = 2


def _format(kind: str, name: str, pattern: Pattern) -> _Format | str:
    if kind == "csr":
        sizes = (*pattern.shape, pattern.nonzeros)
        arrays = (pattern.row_start, pattern.cols)
        return _Format("cusparseCreateCsr", sizes, arrays, None, pattern.nonzeros, pattern.shape)
    if kind == "coo":
        sizes = (*pattern.shape, pattern.nonzeros)
        arrays = (pattern.row_index(), pattern.cols)
        return _Format("cusparseCreateCoo", sizes, arrays, None, pattern.nonzeros, pattern.shape, index_types=1)
    return _slices(pattern, fill=True) if kind == "sell" else _blocks(pattern, int(name[3:]))


def _slices(pattern: Pattern, fill: bool = False) -> _Format | str:
    """Slices of 32 rows, column by column, padded with column -1. Without `fill` only the sizes are worked out."""
    count = -(-pattern.rows // SLICE)
    lengths = np.zeros(count * SLICE, dtype=np.int64)
    lengths[: pattern.rows] = pattern.row_lengths
    start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths.reshape(count, SLICE).max(axis=1, initial=0) * SLICE, out=start[1:])
    slots = int(start[-1])
    if slots > MOST_PADDING * pattern.nonzeros + 1024 or slots > LARGEST:
        return f"SELL would hold {slots} slots for {pattern.nonzeros} nonzeros"
    sizes = (*pattern.shape, pattern.nonzeros, slots, SLICE)
    if not fill:
        return _Format("cusparseCreateSlicedEll", sizes, (), None, slots, pattern.shape)
    row = pattern.row_index()
    step = np.arange(pattern.nonzeros, dtype=np.int64) - pattern.row_start[row]
    slot_of = (start[row // SLICE] + step * SLICE + row % SLICE).astype(np.int32)
    cols = np.full(slots, -1, dtype=np.int32)
    cols[slot_of] = pattern.cols
    return _Format("cusparseCreateSlicedEll", sizes, (start.astype(np.int32), cols), slot_of, slots, pattern.shape)


def _divides(pattern: Pattern, b: int) -> bool:
    # A block past the last row or column would read and write outside x and y.
    return pattern.rows % b == 0 and pattern.columns % b == 0


def _filled(pattern: Pattern, b: int) -> bool:
    """Whether b×b blocks are full enough; a hundred block rows show where they are far from it."""
    return _sampled_fill(pattern, b, 100) >= LEAST_FILL / 2 and _sampled_fill(pattern, b, 2000) >= LEAST_FILL


def _sampled_fill(pattern: Pattern, b: int, sample: int) -> float:
    """How full b×b blocks are, from evenly spread block rows."""
    count = pattern.rows // b
    chosen = np.unique(np.linspace(0, count - 1, min(sample, count)).astype(np.int64))
    entries = blocks = 0
    for block_row in chosen:
        cols = pattern.cols[pattern.row_start[block_row * b] : pattern.row_start[(block_row + 1) * b]]
        entries += len(cols)
        blocks += len(np.unique(cols // b))
    return entries / (blocks * b * b) if blocks else 0.0


def _blocks(pattern: Pattern, b: int) -> _Format | str:
    if not _divides(pattern, b):
        return f"blocks of {b} do not divide {pattern.rows} rows and {pattern.columns} columns"
    numbers = np.arange(1, pattern.nonzeros + 1, dtype=np.int32)  # 0 is left for what a block is filled up with
    numbered = scipy.sparse.csr_array((numbers, pattern.cols, pattern.row_start), shape=pattern.shape, copy=True)
    blocks = numbered.tobsr((b, b))
    blocks.sort_indices()
    flat = np.ascontiguousarray(blocks.data).reshape(-1)
    if len(flat) > pattern.nonzeros / LEAST_FILL or len(flat) > LARGEST:
        return f"blocks of {b} would hold {len(flat)} numbers for {pattern.nonzeros} nonzeros"
    places = np.flatnonzero(flat)
    slot_of = np.empty(pattern.nonzeros, dtype=np.int32)
    slot_of[flat[places] - 1] = places
    arrays = (blocks.indptr.astype(np.int32), blocks.indices.astype(np.int32))
    sizes = (pattern.rows // b, pattern.columns // b, len(arrays[1]), b, b)
    return _Format("cusparseCreateBsr", sizes, arrays, slot_of, len(flat), pattern.shape, tail=(ORDERS["row"],))


# ---- the library


class _RefusedError(BackendError):
    """A call came back with a status other than success."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: {STATUS.get(status, f'status {status}')}")
        self.status = status


class _Library:
    """libcusparse, one handle, and the stream that the handle was given last."""

    def __init__(self) -> None:
        self.c = load()
        self.handle = ctypes.c_void_p()
        self._stream = -1
        self.check("cusparseCreate", ctypes.byref(self.handle))

    def check(self, function: str, *args: Any) -> None:
        try:
            status = getattr(self.c, function)(*args)
        except AttributeError:
            raise _RefusedError(function, NOT_SUPPORTED) from None
        if status:
            raise _RefusedError(function, status)

    def use(self, stream: int) -> None:
        if stream != self._stream:
            self.check("cusparseSetStream", self.handle, ctypes.c_void_p(stream))
            self._stream = stream


@functools.cache
def _library() -> _Library:
    try:
        return _Library()
    except _RefusedError as refused:
        raise BackendError(f"cuSPARSE can't be started ({refused}).") from refused


@functools.cache
def load() -> ctypes.CDLL:
    """The one that torch loads, or has loaded; else one that the machine knows or the CUDA toolkit has."""
    name = "libcusparse.so.12"
    for candidate in _places(name):
        with suppress(OSError):
            return ctypes.CDLL(candidate)
    raise BackendError(f"{name} is nowhere to be found: install a CUDA build of torch, or set CUDA_HOME.")


def _places(name: str) -> Iterator[str]:
    if "torch" in sys.modules:
        yield name
    for entry in sys.path:
        if entry.endswith(("site-packages", "dist-packages")):
            yield from map(str, sorted(Path(entry, "nvidia").glob(f"*/lib/{name}")))
    yield name
    for root in (os.environ.get(key) for key in ("CUDA_HOME", "CUDA_PATH")):
        if root:
            yield from map(str, sorted(Path(root).rglob(name)))


# ---- one variant


class CusparseExecutable:
    """One cuSPARSE routine with its arrays, descriptors and work buffer."""

    def __init__(
        self, backend: CudaBackend, name: str, made: _Format, problem: Problem, values: CudaBuffer, *, algorithm: int
    ) -> None:
        self.name = name
        self._backend, self._library, self._problem, self._source = backend, _library(), problem, values
        self._destroy: list[tuple[str, ctypes.c_void_p]] = []
        self._type = TYPES[problem.dtype]
        self._hold(made)
        real = ctypes.c_double if problem.dtype == "float64" else ctypes.c_float
        self._one, self._zero = real(1), real(0)
        rows, columns = made.shape
        x = backend.alloc(columns * problem.columns * problem.value_bytes)
        y = backend.alloc(rows * problem.columns * problem.value_bytes)
        backend.fill(x, 0)
        self._at = {"x": x.pointer, "y": y.pointer}
        try:
            self._a = self._matrix(made)
            self._x = self._dense(columns, x.pointer, ORDERS[problem.b_order])
            self._y = self._dense(rows, y.pointer, ORDERS[problem.c_order])
            self._arrange(algorithm)
            self.launch(x.pointer, y.pointer)
        except BackendError:
            self.close()
            raise
        backend.settle()
        values.watchers.add(self)

    @property
    def size_bytes(self) -> int:
        """What one product reads of the matrix: structure and values."""
        return sum(buffer.size_bytes for buffer in self._structure) + self._values.size_bytes

    def launch(self, x: int, y: int, stream: int = 0) -> None:
        library = self._library
        library.use(stream)
        if x != self._at["x"]:
            self._point("x", self._x, x)
        if y != self._at["y"]:
            self._point("y", self._y, y)
        status = self._multiply(*self._arguments)
        if status:
            raise _RefusedError(self._routine, status)

    def changed(self) -> None:
        """The CSR values are new: move them to where this format has them."""
        if self._slot_of is not None:
            self._backend.settle()
            self._move()
            self._backend.settle()

    def close(self) -> None:
        for function, descriptor in reversed(self._destroy):
            with suppress(_RefusedError):
                self._library.check(function, descriptor)
        self._destroy.clear()

    def __del__(self) -> None:
        with suppress(Exception):  # at interpreter exit the library may be gone
            self.close()

    def _hold(self, made: _Format) -> None:
        backend, width = self._backend, self._problem.value_bytes
        self._structure = [*backend.upload({str(at): array for at, array in enumerate(made.arrays)}).values()]
        self._slot_of: Buffer | None = None
        self._values = self._source
        if made.slot_of is not None:
            self._slot_of, self._count = backend.upload({"": made.slot_of})[""], len(made.slot_of)
            self._values = backend.alloc(made.slots * width)
            backend.fill(self._values, 0)
            self._move()
            backend.settle()
        elif self._source.size_bytes < made.slots * width:
            raise ValueError(f"The 'values' must hold {made.slots * width} bytes. Got {self._source.size_bytes}.")

    def _move(self) -> None:
        assert self._slot_of is not None
        target, source, slot_of = self._values.pointer, self._source.pointer, self._slot_of.pointer
        width = self._problem.value_bytes
        self._backend.instruments.scatter(width, target, source, slot_of, self._count, stream=0).launch()

    def _describe(self, create: str, destroy: str, *args: Any) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self._library.check(create, ctypes.byref(descriptor), *args)
        self._destroy.append((destroy, descriptor))
        return descriptor

    def _matrix(self, made: _Format) -> ctypes.c_void_p:
        sizes = map(ctypes.c_int64, made.sizes)
        pointers = [ctypes.c_void_p(buffer.pointer) for buffer in (*self._structure, self._values)]
        kinds = (*[INDEX_32] * made.index_types, 0, self._type, *made.tail)  # 0: indices count from zero
        return self._describe(made.create, "cusparseDestroySpMat", *sizes, *pointers, *kinds)

    def _dense(self, length: int, address: int, order: int) -> ctypes.c_void_p:
        size, at = ctypes.c_int64(length), ctypes.c_void_p(address)
        if self._problem.op == "spmv":
            return self._describe("cusparseCreateDnVec", "cusparseDestroyDnVec", size, at, self._type)
        wide = ctypes.c_int64(self._problem.columns)
        leading = wide if order == ORDERS["row"] else size
        return self._describe(
            "cusparseCreateDnMat", "cusparseDestroyDnMat", size, wide, leading, at, self._type, order
        )

    def _arrange(self, algorithm: int) -> None:
        """The argument list, the work buffer it asks for, and the preprocess step."""
        library, spmv = self._library, self._problem.op == "spmv"
        compute = TYPES[self._problem.accumulator]
        one, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        straight = (0,) if spmv else (0, 0)  # neither A nor B transposed
        common = (library.handle, *straight, one, self._a, self._x, zero, self._y, compute, algorithm)
        self._routine = "cusparseSpMV" if spmv else "cusparseSpMM"
        self._set_values = library.c.cusparseDnVecSetValues if spmv else library.c.cusparseDnMatSetValues
        library.use(0)  # the stream of the last product may be gone
        need = ctypes.c_size_t()
        library.check(f"{self._routine}_bufferSize", *common, ctypes.byref(need))
        self._buffer = self._backend.alloc(max(need.value, 1))
        self._arguments = (*common, ctypes.c_void_p(self._buffer.pointer))
        try:
            library.check(f"{self._routine}_preprocess", *self._arguments)
        except _RefusedError as refused:
            if refused.status != NOT_SUPPORTED:  # some algorithms have no such step
                raise
        self._multiply: Callable[..., int] = getattr(library.c, self._routine)

    def _point(self, which: str, descriptor: ctypes.c_void_p, address: int) -> None:
        status = self._set_values(descriptor, ctypes.c_void_p(address))
        if status:
            raise BackendError(f"cuSPARSE can't take {which} at {address:#x}: {STATUS.get(status, status)}.")
        self._at[which] = address
