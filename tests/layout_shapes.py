"""Patterns and layout lines that every layout is tested on. Small, because the truths are plain Python loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparserl.matrix import Pattern


def from_lengths(columns: int, lengths: np.ndarray, seed: int) -> Pattern:
    """Rows of these lengths with random distinct columns."""
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.choice(columns, size=int(length), replace=False)) for length in lengths]
    row_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    cols = np.concatenate(rows).astype(np.int32) if rows else np.zeros(0, dtype=np.int32)
    return Pattern(len(lengths), columns, row_start, cols)


def _random(rows: int, columns: int, mean: float, seed: int) -> Pattern:
    lengths = np.minimum(np.random.default_rng(seed).poisson(mean, rows), columns)
    return from_lengths(columns, lengths, seed)


def _empty(rows: int, columns: int) -> Pattern:
    return from_lengths(columns, np.zeros(rows, dtype=np.int64), 0)


def _power_law() -> Pattern:
    lengths = np.minimum((np.random.default_rng(5).pareto(1.1, 301) * 2).astype(np.int64), 300)
    lengths[17], lengths[200] = 5200, 700
    return from_lengths(6001, lengths, 5)


def _banded() -> Pattern:
    """Five diagonals, one of them with holes, and a few entries outside the band."""
    row, offset = np.meshgrid(np.arange(203), [-40, -1, 0, 1, 40], indexing="ij")
    keep = (row + offset >= 0) & (row + offset < 207) & ~((offset == 40) & (row % 3 == 0))
    rows = np.concatenate([row[keep], [3, 150, 202]])
    cols = np.concatenate([(row + offset)[keep], [200, 2, 50]])
    return Pattern.from_coordinates(203, 207, rows, cols)


def _block_fem(b: int, nodes: int) -> Pattern:
    """Dense b × b couplings between neighbours on a ring; the matrix ends inside the last block."""
    u, v = np.meshgrid(np.arange(b), np.arange(b), indexing="ij")
    row, col = [], []
    for node in range(nodes):
        for other in {node, (node + 1) % nodes, (node - 1) % nodes, (node * 7) % nodes}:
            row.append(node * b + u.ravel())
            col.append(other * b + v.ravel())
    rows, cols, size = np.concatenate(row), np.concatenate(col), nodes * b - 1
    inside = (rows < size) & (cols < size)
    return Pattern.from_coordinates(size, size, rows[inside], cols[inside])


def _wide_windows() -> Pattern:
    """More columns than 16 bits reach; each row keeps to a window that moves on."""
    rng = np.random.default_rng(9)
    rows = np.repeat(np.arange(40), 12)
    return Pattern.from_coordinates(40, 160_000, rows, rows * 3500 + rng.integers(0, 3000, len(rows)))


SHAPES: dict[str, Callable[[], Pattern]] = {
    "one by one": lambda: from_lengths(1, np.array([1]), 0),
    "one by one, empty": lambda: _empty(1, 1),
    "no rows": lambda: _empty(0, 9),
    "no columns": lambda: _empty(9, 0),
    "all rows empty": lambda: _empty(70, 33),
    "single dense row": lambda: from_lengths(1500, np.array([1500]), 0),
    "one dense row among empty ones": lambda: from_lengths(900, np.eye(1, 50, 31, dtype=np.int64)[0] * 900, 0),
    "tall": lambda: _random(1031, 3, 1.2, 1),
    "wide": lambda: _random(5, 997, 80.0, 2),
    "random": lambda: _random(257, 263, 6.0, 3),
    "mostly empty rows": lambda: _random(777, 100, 0.2, 4),
    "power law": _power_law,
    "banded": _banded,
    "block fem 2": lambda: _block_fem(2, 50),
    "block fem 3": lambda: _block_fem(3, 43),
    "block fem 8": lambda: _block_fem(8, 13),
    "beyond 16 bits": _wide_windows,
}

LINES = (
    "rows index=int32",
    "rows index=abs16",
    "rows index=int16",
    "nonempty index=int32",
    "nonempty index=abs16",
    "nonempty index=int16",
    "filled c=4 window=32 group=1 index=int32",
    "filled c=8 window=32 group=4 index=abs16",
    "filled c=32 window=64 group=1 index=int32",
    "slices c=1 sigma=1 group=1 index=int32",
    "slices c=4 sigma=1 group=8 index=int16",
    "slices c=8 sigma=64 group=2 index=int32",
    "slices c=32 sigma=32 group=1 index=int16",
    "slices c=32 sigma=1048576 group=4 index=abs16",
    "slices c=256 sigma=64 group=1 index=int32",
    "split c=32 sigma=1 group=1 long=16 segment=128 index=int32",
    "split c=8 sigma=256 group=4 long=32 segment=512 index=abs16",
    "split c=32 sigma=1048576 group=2 long=1024 segment=256 index=int32",
    "ell c=1 group=32 index=int32",
    "ell c=8 group=1 index=int16",
    "ell c=32 group=4 index=abs16",
    "hybrid c=1 cover=25 index=int32",
    "hybrid c=32 cover=90 index=abs16",
    "hybrid c=8 cover=99 index=int32",
    "bins per=1 long=64 segment=256 threads=64 index=int32",
    "bins per=4 long=1024 segment=1024 threads=256 index=abs16",
    "bins per=32 long=64 segment=4096 threads=1024 index=int32",
    "tiles steps=1 threads=64 order=step index=int32",
    "tiles steps=3 threads=64 order=step index=int16",
    "tiles steps=5 threads=128 order=lane index=int32",
    "tiles steps=4 threads=128 order=step index=int16",
    "tiles steps=4 threads=64 order=lane index=abs16",
    "tiles steps=2 threads=1024 order=lane index=int16",
    "merge items=64 index=int32",
    "merge items=512 index=abs16",
    "chunks size=32 index=int32",
    "chunks size=64 index=int16",
    "chunks size=4096 index=abs16",
    "blocks b=2 order=row index=int32",
    "blocks b=3 order=col index=int16",
    "blocks b=8 order=row index=abs16",
    "blockslices b=2 c=32 order=block index=int32",
    "blockslices b=3 c=4 order=row index=int16",
    "blockslices b=8 c=2 order=block index=abs16",
    "blockslices b=6 c=1 order=row index=int32",
    "diagonals fill=10 index=none",
    "diagonals fill=50 index=none",
    "diagonals fill=100 index=none",
    "colblocks width=1024 index=int16",
    "colblocks width=65535 index=int16",
)
