"""Matrices that come from space: stencils, bands, unstructured meshes, finite elements in blocks."""

from __future__ import annotations

import itertools

import numpy as np

from sparserl.errors import MatrixError
from sparserl.families import building
from sparserl.families.building import Offset
from sparserl.matrix import Array, Pattern

FLAT: dict[int, tuple[Offset, ...]] = {
    5: tuple((x, y, 0) for x in (-1, 0, 1) for y in (-1, 0, 1) if abs(x) + abs(y) <= 1),
    7: tuple((x, y, 0) for x in (-1, 0, 1) for y in (-1, 0, 1) if x * y >= 0),
    9: tuple((x, y, 0) for x in (-1, 0, 1) for y in (-1, 0, 1)),
    13: tuple((x, y, 0) for x in range(-2, 3) for y in range(-2, 3) if abs(x) + abs(y) <= 2),
}
_CUBE: tuple[Offset, ...] = tuple(itertools.product((-1, 0, 1), (-1, 0, 1), (-1, 0, 1)))
SOLID: dict[int, tuple[Offset, ...]] = {
    7: tuple(o for o in _CUBE if sum(map(abs, o)) <= 1),
    19: tuple(o for o in _CUBE if sum(map(abs, o)) <= 2),
    27: _CUBE,
}


def stencil2d(seed: int, *, nx: int, ny: int, points: int = 5) -> Pattern:
    """A 2D grid with 5, 7, 9 or 13 points a stencil. The seed plays no part."""
    return building.grid((nx, ny, 1), _stencil(FLAT, points))


def stencil3d(seed: int, *, nx: int, ny: int, nz: int, points: int = 7) -> Pattern:
    """A 3D grid with 7, 19 or 27 points a stencil. The seed plays no part."""
    return building.grid((nx, ny, nz), _stencil(SOLID, points))


def _stencil(known: dict[int, tuple[Offset, ...]], points: int) -> tuple[Offset, ...]:
    if points not in known:
        raise MatrixError(f"A stencil's 'points' must be one of {sorted(known)}. Got {points}.")
    return known[points]


def banded(seed: int, *, rows: int, diagonals: int, reach: int, fill: float = 0.9) -> Pattern:
    """`diagonals` diagonals at random offsets within ±reach, the main one among them, each with holes."""
    rng = building.generator(seed)
    reach = min(reach, rows - 1)
    wanted = min(diagonals, 2 * reach + 1) - 1
    # Half of them hug the main diagonal, as in files from practice; the rest lie anywhere in the band.
    close = [o for k in range(1, wanted // 4 + 1) for o in (-k, k) if k <= reach]
    others = np.setdiff1d(np.concatenate([np.arange(-reach, 0), np.arange(1, reach + 1)]), close)
    offsets = np.sort(np.concatenate([[0], close, rng.permutation(others)[: wanted - len(close)]])).astype(np.int32)
    table = np.arange(rows, dtype=np.int32)[:, None] + offsets  # (rows, diagonals)
    keep = (table >= 0) & (table < rows)
    if fill < 1.0:
        holes = rng.random((rows, len(offsets)), dtype=np.float32) >= np.float32(fill)
        keep &= ~holes | (offsets == 0)
    return building.from_table(rows, table, keep)


def mesh(seed: int, *, nx: int, ny: int, nz: int = 1, diagonals: float = 0.5, window: int = 1) -> Pattern:
    """An unstructured mesh: neighbours along the axes, each diagonal neighbour with chance `diagonals`; symmetric.

    `window` renumbers nodes at random inside windows of so many (1: grid order, 0: wholly at random).
    """
    offsets = FLAT[9] if nz == 1 else _CUBE
    order = sorted(offsets, key=lambda o: (o[2] * ny + o[1]) * nx + o[0])

    def kept(key: Array, j: int) -> Array:
        if sum(map(abs, order[j])) <= 1:
            return np.ones(len(key), dtype=bool)
        return building.chance(key, seed * 31 + j, diagonals)

    return building.renumber(building.grid((nx, ny, nz), offsets, kept), window, building.generator(seed, 1))


def fem(seed: int, *, nx: int, ny: int, nz: int = 1, b: int = 3, diagonals: float = 1.0, fill: float = 1.0) -> Pattern:
    """Finite elements with b unknowns a node: a mesh whose every nonzero is a b x b block."""
    return building.expand_blocks(mesh(seed, nx=nx, ny=ny, nz=nz, diagonals=diagonals), b, seed, fill)


def blockdiag(
    seed: int, *, blocks: int, smallest: int, largest: int, fill: float = 1.0, coupling: float = 0.5
) -> Pattern:
    """Dense blocks of varied size along the diagonal, with `coupling` stray entries a row outside them."""
    rng = building.generator(seed)
    sizes = rng.integers(smallest, largest + 1, blocks, dtype=np.int64)
    rows = int(sizes.sum())
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)  # (rows): first column of the row's block
    lengths = np.repeat(sizes, sizes)
    row = building.rows_of(lengths)
    start = building.starts(lengths)
    col = np.arange(len(row), dtype=np.int32) - start[row] + first[row].astype(np.int32)
    body = building.drop(Pattern(rows, rows, start, col), seed, fill)
    if coupling <= 0:
        return body
    stray = building.rows_of(building.ragged(rows, coupling, 0.0, rng))
    links = Pattern.from_coordinates(rows, rows, stray, rng.integers(0, rows, len(stray), dtype=np.int32))
    return building.stack([(0, 0, body), (0, 0, links)], rows, rows)
