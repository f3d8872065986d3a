"""Matrices that stand out by their shape: uniform, very long rows, tall, wide, mostly empty, saddle points, arrows."""

from __future__ import annotations

import numpy as np

from sparserl.families import building
from sparserl.matrix import Pattern


def uniform(seed: int, *, rows: int, columns: int, per_row: float, spread: float = 0.0) -> Pattern:
    """Columns drawn evenly; row lengths even inside per_row * (1 ± spread)."""
    rng = building.generator(seed)
    row = building.rows_of(building.ragged(rows, per_row, spread, rng))
    return Pattern.from_coordinates(rows, columns, row, rng.integers(0, columns, len(row), dtype=np.int32))


def longrows(
    seed: int, *, rows: int, columns: int, per_row: float, long: int, long_share: float, reach: int = 0
) -> Pattern:
    """Short rows, and `long` rows that each hold `long_share` of all columns.

    reach 0: columns of short rows anywhere, else within `reach` of the diagonal.
    """
    rng = building.generator(seed)
    row = building.rows_of(building.ragged(rows, per_row, 0.3, rng))
    anywhere = rng.integers(0, columns, len(row), dtype=np.int32) if reach == 0 else None
    col = building.near(row, rows, columns, reach, rng) if anywhere is None else anywhere
    which = rng.permutation(rows)[:long].astype(np.int32)
    length = max(1, round(long_share * columns))
    stride = columns / length
    ladder = (np.arange(length) * stride).astype(np.int32)
    jitter = rng.integers(0, max(1, int(stride)), (long, length), dtype=np.int32)
    far = np.minimum(ladder + jitter, columns - 1).ravel()
    return Pattern.from_coordinates(
        rows, columns, np.concatenate([row, np.repeat(which, length)]), np.concatenate([col, far])
    )


def tall(seed: int, *, rows: int, columns: int, per_row: float, spread: float = 0.5) -> Pattern:
    """Many rows, few columns: least squares, features of samples."""
    return uniform(seed, rows=rows, columns=columns, per_row=min(per_row, columns), spread=spread)


def wide(seed: int, *, rows: int, columns: int, per_column: float, eighths: int = 4) -> Pattern:
    """Few rows, many columns: set covering and packing. Columns are short; rows differ by a heavy tail."""
    rng = building.generator(seed)
    weight = np.minimum(building.heavy_tail(1.0 - rng.random(rows), eighths), 1000.0)
    ends = np.cumsum(weight)
    ends /= ends[-1]
    col = building.rows_of(building.ragged(columns, per_column, 0.5, rng))
    row = np.minimum(np.searchsorted(ends, rng.random(len(col))), rows - 1).astype(np.int32)
    return Pattern.from_coordinates(rows, columns, row, col)


def emptyrows(seed: int, *, rows: int, columns: int, filled: float, per_row: float, run: int = 1) -> Pattern:
    """Only a share `filled` of the rows holds anything, in runs of `run` rows."""
    rng = building.generator(seed)
    runs = -(-rows // run)
    on = np.repeat(rng.random(runs) < filled, run)[:rows]
    lengths = np.where(on, np.maximum(building.ragged(rows, per_row, 0.6, rng), 1), 0)
    row = building.rows_of(lengths)
    return Pattern.from_coordinates(rows, columns, row, rng.integers(0, columns, len(row), dtype=np.int32))


def kkt(
    seed: int,
    *,
    variables: int,
    constraints: int,
    per_hessian: float,
    per_constraint: float,
    reach: int = 0,
    linking: int = 0,
    linking_share: float = 0.1,
) -> Pattern:
    """A saddle point [[H, Aᵀ], [A, D]]: H symmetric near the diagonal, D diagonal.

    `linking` of the constraints each draw so many variables as `linking_share` of all.
    """
    rng = building.generator(seed)
    size = variables + constraints
    every = np.arange(size, dtype=np.int32)
    h_row = building.rows_of(building.ragged(variables, max(0.0, (per_hessian - 1) / 2), 0.5, rng))
    h_col = building.near(h_row, variables, variables, max(reach, 8), rng)
    a_row = building.rows_of(building.ragged(constraints, per_constraint, 0.5, rng))
    if reach:
        a_col = building.near(a_row, constraints, variables, reach, rng)
    else:
        a_col = rng.integers(0, variables, len(a_row), dtype=np.int32)
    l_row = np.repeat(rng.permutation(constraints)[:linking].astype(np.int32), round(linking_share * variables))
    l_col = rng.integers(0, variables, len(l_row), dtype=np.int32)
    row = np.concatenate([h_row, a_row + np.int32(variables), l_row + np.int32(variables), every])
    return building.both_ways(size, row, np.concatenate([h_col, a_col, l_col, every]))


def arrow(seed: int, *, rows: int, border: int, diagonals: int = 3, fill: float = 1.0) -> Pattern:
    """A band of `diagonals` diagonals, and `border` rows and columns at the end with `fill` of their entries."""
    rng = building.generator(seed)
    half = np.arange(diagonals // 2 + 1, dtype=np.int32)
    row = np.repeat(np.arange(rows, dtype=np.int32), len(half))
    col = row - np.tile(half, rows)
    row, col = row[col >= 0], col[col >= 0]
    edge = np.repeat(np.arange(rows - border, rows, dtype=np.int32), rows)
    other = np.tile(np.arange(rows, dtype=np.int32), border)
    if fill < 1.0:
        there = rng.random(len(edge), dtype=np.float32) < np.float32(fill)
        edge, other = edge[there], other[there]
    return building.both_ways(rows, np.concatenate([row, edge]), np.concatenate([col, other]))
