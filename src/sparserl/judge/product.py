"""The reference's own products: A times a dense matrix in float64, in blocks of rows that threads share.

A block fits in the caches with all that is made on the way (widened and absolute values), which is worth more than the
threads on a small machine. The sums of a row are one block's work, so the result doesn't depend on the number of
threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse

from sparserl.matrix import Pattern
from sparserl.records import DType
from sparserl.values import widen

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_WORK, LEAST_WORK = 1 << 21, 1 << 16
"""nonzeros times columns of a block: at most, and what a thread is worth starting for"""
MOST_THREADS = 16
FLOAT32_SUM = 1 << 18
"""entries of a row that float32 adds up one by one to a per cent; far beyond, a sum no longer grows"""


class Share:
    """Of the machine's cores, for a process that is one of several on it."""

    threads = MOST_THREADS


class Product:
    """Multiplies the pattern, filled with numbers in its own order, by (columns, n)."""

    def __init__(self, pattern: Pattern, n: int) -> None:
        self.shape = pattern.rows, n
        longest = int(pattern.row_lengths.max(initial=0))
        self.narrow = np.dtype(np.float32 if longest < FLOAT32_SUM else np.float64)
        """for sums of which only the size matters: half the bytes, and gathers are what a product costs"""
        start, rows = pattern.row_start, pattern.rows
        each = max(1, min(BLOCK_WORK // n, max(LEAST_WORK // n, pattern.nonzeros // MOST_THREADS)))
        border = np.searchsorted(start, np.arange(each, pattern.nonzeros, each, dtype=start.dtype))
        border = np.unique(np.concatenate([[0], border, [rows]]))
        self._blocks = []
        for first, last in zip(border[:-1].tolist(), border[1:].tolist(), strict=True):
            entries = slice(int(start[first]), int(start[last]))
            # made once: SciPy looks at every index of a new matrix
            blank, cols = np.zeros(entries.stop - entries.start), pattern.cols[entries]
            shape = last - first, pattern.columns
            matrix = scipy.sparse.csr_matrix((blank, cols, start[first : last + 1] - start[first]), shape=shape)
            matrix.has_canonical_format = True
            self._blocks.append((slice(first, last), entries, matrix))

    def times(self, data: Array, b: Array) -> Array:
        """A b, with these numbers in A; in float32 if both are."""
        out = np.zeros((self.shape[0], b.shape[1]), dtype=np.result_type(data, b))

        def work(block: tuple[slice, slice, Any]) -> None:
            rows, entries, matrix = block
            matrix.data = data[entries]
            with np.errstate(invalid="ignore", over="ignore"):
                out[rows] = matrix @ b

        in_threads(work, self._blocks)
        return out

    def with_magnitude(self, values: Array, dtype: DType, b: Array) -> tuple[Array, Array]:
        """A b, and |A| |b| to a few digits, as float32, with these stored numbers in A; b may have fewer columns."""
        shape = self.shape[0], b.shape[1]
        out, magnitude = np.zeros(shape), np.zeros(shape, dtype=np.float32)
        absolute = np.abs(b).astype(self.narrow)

        def work(block: tuple[slice, slice, Any]) -> None:
            rows, entries, matrix = block
            wide = widen(values[entries], dtype)
            matrix.data = wide
            with np.errstate(invalid="ignore", over="ignore"):
                out[rows] = matrix @ b
                # of the numbers, not of the matrix: SciPy's abs() may merge entries in arrays that it shares
                matrix.data = np.abs(wide).astype(self.narrow, copy=False)
                magnitude[rows] = matrix @ absolute

        in_threads(work, self._blocks)
        return out, magnitude


def in_threads(work: Callable[[Any], None], pieces: Iterable[Any]) -> None:
    """Do all pieces, side by side where there is more than one. NumPy and SciPy let go of the interpreter's lock."""
    waiting = list(pieces)
    threads = min(len(waiting), os.cpu_count() or 1, Share.threads)
    if threads < 2:
        for piece in waiting:
            work(piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, waiting):
            pass
