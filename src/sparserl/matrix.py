"""Matrices as everything else sees them: canonical CSR, a fingerprint of the structure, and the ways in.

Canonical means: int32 row starts and columns, columns ascending in every row, duplicates summed, explicit zeros kept
(they are structure). `as_matrix` takes a path, a SuiteSparse name, or a SciPy, torch or CuPy sparse object.

Not covered: complex numbers, dense arrays, more than 2^31 - 1 rows, columns or nonzeros. Zeros stored in a SciPy DIA
matrix are dropped, because that format can't tell them from its padding.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from sparserl import reading, suitesparse
from sparserl.errors import MatrixError
from sparserl.reading import LARGEST

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the nonzeros are. Columns ascend in every row, without duplicates; nobody writes to the arrays."""

    rows: int
    columns: int
    row_start: Array
    """int32, (rows + 1)"""
    cols: Array
    """int32, (nonzeros)"""

    def __post_init__(self) -> None:
        if self.row_start.dtype != np.int32 or self.cols.dtype != np.int32:
            raise MatrixError(
                f"A Pattern's 'row_start' and 'cols' must be int32. Got {self.row_start.dtype} and {self.cols.dtype}."
            )
        if self.row_start.shape != (self.rows + 1,) or self.row_start[0] != 0 or self.row_start[-1] != len(self.cols):
            raise MatrixError(
                f"A Pattern's 'row_start' must hold {self.rows + 1} numbers from 0 to {len(self.cols)}. "
                f"Got {len(self.row_start)} from {self.row_start[:1]} to {self.row_start[-1:]}."
            )

    @classmethod
    def from_coordinates(cls, rows: int, columns: int, row: Array, col: Array) -> Pattern:
        """The pattern of these (row, column) pairs, in any order; a pair that comes twice counts once."""
        return _from_coordinates(rows, columns, row, col, None).pattern

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def nonzeros(self) -> int:
        return len(self.cols)

    @cached_property
    def row_lengths(self) -> Array:
        return np.diff(self.row_start)

    @cached_property
    def used_columns(self) -> int:
        """How many columns have a nonzero."""
        return int(np.count_nonzero(np.bincount(self.cols, minlength=1)))

    def row_of(self, rank: Array) -> Array:
        """The rows of these nonzeros, by their places in `cols`."""
        # of one type: else NumPy first copies all of `row_start` to the wider one
        return np.searchsorted(self.row_start, rank.astype(self.row_start.dtype), side="right") - 1

    def row_index(self) -> Array:
        """The row of every nonzero, int32."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), self.row_lengths)

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"csr {self.rows} {self.columns} {self.nonzeros};".encode())
        digest.update(np.ascontiguousarray(self.row_start, dtype="<i4").data)
        digest.update(np.ascontiguousarray(self.cols, dtype="<i4").data)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """SHA-256 of shape and structure, the same on every machine; computed once."""
        return self._fingerprint

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return NotImplemented
        return (
            self.shape == other.shape
            and np.array_equal(self.row_start, other.row_start)
            and np.array_equal(self.cols, other.cols)
        )

    def __hash__(self) -> int:
        return hash(self._fingerprint)


@dataclass(frozen=True, eq=False)
class Matrix:
    """A pattern and its numbers, in the pattern's order."""

    pattern: Pattern
    data: Array
    """float64 or float32, (nonzeros)"""

    def __post_init__(self) -> None:
        if self.data.dtype not in (np.float64, np.float32) or self.data.shape != (self.pattern.nonzeros,):
            raise MatrixError(
                f"A Matrix's 'data' must be {self.pattern.nonzeros} numbers in float64 or float32. "
                f"Got {self.data.shape} in {self.data.dtype}."
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    @property
    def nonzeros(self) -> int:
        return self.pattern.nonzeros

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """A SciPy CSR matrix on the same memory: copy it before you change it in place."""
        out = scipy.sparse.csr_matrix((self.data, self.pattern.cols, self.pattern.row_start), shape=self.shape)
        out.has_canonical_format = True
        return out

    @classmethod
    def from_scipy(cls, sparse: Any) -> Matrix:
        """From a SciPy sparse matrix or array of any format. Nothing is shared with it."""
        if sparse.ndim != 2:
            raise MatrixError(f"A matrix must have 2 dimensions. Got a sparse array of shape {sparse.shape}.")
        rows, columns = (int(n) for n in sparse.shape)
        if sparse.format == "coo":
            return _from_coordinates(rows, columns, sparse.row, sparse.col, sparse.data)
        if sparse.format == "csc":
            col = np.repeat(np.arange(columns, dtype=np.int64), np.diff(sparse.indptr))
            return _from_coordinates(rows, columns, sparse.indices, col, sparse.data)
        csr = sparse.tocsr()
        return from_csr(rows, columns, csr.indptr, csr.indices, csr.data)


def as_matrix(obj: Any) -> Matrix:
    """Any matrix a user may hold, in canonical form.

    Takes a path (.mtx, .mtx.gz, .npz), 'suitesparse:Group/Name', a SciPy, torch or CuPy sparse object, a Matrix, or a
    Pattern (whose numbers are then all 1).
    """
    if isinstance(obj, Matrix):
        return obj
    if isinstance(obj, Pattern):
        return Matrix(obj, np.ones(obj.nonzeros))
    if isinstance(obj, str) and obj.startswith(suitesparse.PREFIX):
        return read_matrix(suitesparse.fetch(obj))
    if isinstance(obj, (str, os.PathLike)):
        return read_matrix(obj)
    if scipy.sparse.issparse(obj):
        return Matrix.from_scipy(obj)
    home = type(obj).__module__.partition(".")[0]
    # CuPy and torch are recognised by their names, so that neither is imported for someone who doesn't use it.
    if home in ("cupy", "cupyx") and hasattr(obj, "get") and hasattr(obj, "format"):
        return Matrix.from_scipy(obj.get())
    if home == "torch" and hasattr(obj, "layout"):
        return _from_torch(obj)
    raise MatrixError(
        f"A matrix must be a path, 'suitesparse:Group/Name', or a SciPy, torch or CuPy sparse matrix. "
        f"Got {type(obj).__module__}.{type(obj).__qualname__}; for a dense array use scipy.sparse.csr_matrix(A)."
    )


def read_matrix(path: str | os.PathLike[str]) -> Matrix:
    """Read a .mtx, .mtx.gz or .npz file."""
    where = Path(path)
    try:
        raw = reading.read(where)
        if isinstance(raw, reading.Coordinates):
            return _from_coordinates(raw.rows, raw.columns, raw.row, raw.col, raw.data)
        return from_csr(raw.rows, raw.columns, raw.row_start, raw.cols, raw.data)
    except MatrixError as error:
        text = str(error)
        raise (error if str(where) in text else MatrixError(f"{where}: {text}")) from None
    except MemoryError:
        raise MatrixError(f"{where}: the matrix does not fit in this machine's memory.") from None


def from_csr(rows: int, columns: int, row_start: Array, cols: Array, data: Array) -> Matrix:
    """From CSR arrays of any integer type: checked, copied, sorted, duplicates summed."""
    _check_sizes(rows, columns, len(cols))
    if row_start.shape != (rows + 1,) or cols.ndim != 1 or np.shape(data) != cols.shape:
        raise MatrixError(
            f"A CSR matrix of {rows} rows needs {rows + 1} row starts and as many columns as values. "
            f"Got {row_start.shape}, {cols.shape} and {np.shape(data)}."
        )
    if row_start.dtype.kind not in "iu" or cols.dtype.kind not in "iu":
        raise MatrixError(f"CSR row starts and columns must be integers. Got {row_start.dtype} and {cols.dtype}.")
    if row_start[0] != 0 or row_start[-1] != len(cols) or bool((row_start[1:] < row_start[:-1]).any()):
        raise MatrixError(f"CSR row starts must ascend from 0 to {len(cols)}, the number of nonzeros; these do not.")
    _check_range("column", cols, columns)
    start = np.array(row_start, dtype=np.int32)
    narrow = np.array(cols, dtype=np.int32)
    values = np.array(_real(data))
    if not _ascending(start, narrow):
        csr = scipy.sparse.csr_matrix((values, narrow, start), shape=(rows, columns))
        csr.sum_duplicates()
        start, narrow, values = csr.indptr, csr.indices, csr.data
    return Matrix(Pattern(rows, columns, start, narrow), values)


def _from_coordinates(rows: int, columns: int, row: Array, col: Array, data: Array | None) -> Matrix:
    """Canonical CSR of coordinates in any order."""
    _check_sizes(rows, columns, len(row))
    _check_range("row", row, rows)
    _check_range("column", col, columns)
    values = np.ones(len(row), dtype=np.int8) if data is None else _real(data)
    narrow = (row.astype(np.int32, copy=False), col.astype(np.int32, copy=False))
    # SciPy's conversion counts entries into rows, sorts each row and sums duplicates; a sum of 0 stays an entry.
    csr = scipy.sparse.coo_matrix((values, narrow), shape=(rows, columns)).tocsr()
    pattern = Pattern(rows, columns, csr.indptr.astype(np.int32, copy=False), csr.indices.astype(np.int32, copy=False))
    return Matrix(pattern, np.ones(pattern.nonzeros, dtype=np.float32) if data is None else csr.data)


def _from_torch(tensor: Any) -> Matrix:
    """From a torch tensor in a sparse layout, on any device."""
    layout = str(tensor.layout).removeprefix("torch.")
    if layout == "strided":
        raise MatrixError("A torch matrix must be sparse. Got a dense tensor; use tensor.to_sparse_csr().")
    if tensor.ndim != 2 or tensor.dense_dim() != 0:
        raise MatrixError(f"A torch matrix must have 2 sparse dimensions. Got shape {tuple(tensor.shape)}.")
    rows, columns = (int(n) for n in tensor.shape)
    tensor = tensor.detach().cpu()
    if layout == "sparse_coo":
        row, col = tensor._indices().numpy()
        return _from_coordinates(rows, columns, row, col, _torch_values(tensor._values()))
    values = _torch_values(tensor.values())
    if layout in ("sparse_csr", "sparse_bsr"):
        start, index = tensor.crow_indices().numpy(), tensor.col_indices().numpy()
        if layout == "sparse_csr":
            return from_csr(rows, columns, start, index, values)
        return Matrix.from_scipy(scipy.sparse.bsr_matrix((values, index, start), shape=(rows, columns)))
    start, index = tensor.ccol_indices().numpy(), tensor.row_indices().numpy()
    if layout == "sparse_csc":
        return Matrix.from_scipy(scipy.sparse.csc_matrix((values, index, start), shape=(rows, columns)))
    flipped = scipy.sparse.bsr_matrix((values.transpose(0, 2, 1), index, start), shape=(columns, rows))
    return Matrix.from_scipy(flipped.tocsr().T)


def _torch_values(values: Any) -> Array:
    """NumPy has no bfloat16: it widens to float32 without loss."""
    return np.asarray((values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy())


def _real(data: Array) -> Array:
    """float32 stays, float16 widens to it; every other real type becomes float64."""
    data = np.asarray(data)
    if data.dtype.kind == "c":
        raise MatrixError(f"The values are complex ({data.dtype}); only real matrices can be tuned.")
    if data.dtype.kind not in "fiub":
        raise MatrixError(f"The values must be real numbers. Got {data.dtype}.")
    return data.astype(np.float32 if data.dtype in (np.float32, np.float16) else np.float64, copy=False)


def _ascending(start: Array, cols: Array) -> bool:
    """Columns strictly ascend inside every row."""
    if len(cols) < 2:
        return True
    falls = np.flatnonzero(cols[1:] <= cols[:-1]) + 1
    return bool((start[np.searchsorted(start, falls)] == falls).all())


def _check_sizes(rows: int, columns: int, nonzeros: int) -> None:
    for name, value in (("rows", rows), ("columns", columns), ("nonzeros", nonzeros)):
        if value < 0:
            raise MatrixError(f"A matrix can't have {value} {name}.")
        if value > LARGEST:
            raise MatrixError(f"{value} {name} are too many: kernels count in 32 bits, at most {LARGEST}.")


def _check_range(name: str, index: Array, limit: int) -> None:
    if len(index) == 0:
        return
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= limit:
        bad = low if low < 0 else high
        raise MatrixError(f"A {name} index is out of range: {bad} (counted from 0) in a matrix of {limit} {name}s.")
