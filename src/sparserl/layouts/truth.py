"""The slow, plain definition of a packed matrix: products and unpacking, one entry at a time, in float64.

Everything here reads the packed arrays through the layout's `entries`, never `slot_of`, so it finds out a packer that
puts an entry where a kernel wouldn't look. About a million entries a second: for tests and small matrices.
"""

from __future__ import annotations

import numpy as np

from sparserl.layouts.line import check_line
from sparserl.records import Packed
from sparserl.values import widen


def truth_spmv(packed: Packed, vals: np.ndarray, x: np.ndarray) -> np.ndarray:
    """y = A x in float64. `vals` is a stored buffer: a float type, or bfloat16 as uint16 bits."""
    values, vector = _wide(vals), _wide(x).tolist()
    y = [0.0] * packed.shape[0]
    numbers = values.tolist()
    for row, column, slot in check_line(packed.layout).entries(packed, values):
        y[row] += numbers[slot] * vector[column]
    return np.array(y, dtype=np.float64)


def truth_spmm(packed: Packed, vals: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C = A B in float64; B is columns × n."""
    values, dense = _wide(vals), _wide(b).tolist()
    width = b.shape[1]
    c = [[0.0] * width for _ in range(packed.shape[0])]
    numbers = values.tolist()
    for row, column, slot in check_line(packed.layout).entries(packed, values):
        for j in range(width):
            c[row][j] += numbers[slot] * dense[column][j]
    return np.array(c, dtype=np.float64).reshape(packed.shape[0], width)


def unpack(packed: Packed, vals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The canonical CSR (row_start, cols, data) from the packed arrays and vals alone; data as stored in vals."""
    walk = check_line(packed.layout).entries(packed, _wide(vals))
    found = np.fromiter(walk, dtype=np.dtype([("row", np.int64), ("col", np.int64), ("slot", np.int64)]))
    found = found[np.lexsort((found["col"], found["row"]))]
    row_start = np.zeros(packed.shape[0] + 1, dtype=np.int32)
    np.cumsum(np.bincount(found["row"], minlength=packed.shape[0]), out=row_start[1:])
    return row_start, found["col"].astype(np.int32), vals[found["slot"]]


def _wide(stored: np.ndarray) -> np.ndarray:
    """Stored numbers in float64; uint16 are the bits of bfloat16."""
    return widen(stored, "bfloat16" if stored.dtype == np.uint16 else "float64")
