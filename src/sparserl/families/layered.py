"""Matrices of parts within parts: periods, hierarchies, communities, broken diagonals. Withheld, for choices alone."""

from __future__ import annotations

import numpy as np

from sparserl.families import building
from sparserl.matrix import Pattern


def staircase(seed: int, *, periods: int, rows: int, columns: int, per_row: float, carried: int = 1) -> Pattern:
    """A plan over periods, each with rows and columns of its own; a row reaches `carried` columns of the one before.

    `rows` and `columns` are those of one period.
    """
    rng = building.generator(seed)
    every = periods * rows
    row = building.rows_of(building.ragged(every, per_row, 0.5, rng))
    own = row // rows * columns + rng.integers(0, columns, len(row), dtype=np.int32)
    back = np.repeat(np.arange(rows, every, dtype=np.int32), carried)
    before = (back // rows - 1) * columns + rng.integers(0, columns, len(back), dtype=np.int32)
    both = (np.concatenate([row, back]), np.concatenate([own, before]).astype(np.int32))
    return Pattern.from_coordinates(every, periods * columns, *both)


def hierarchy(seed: int, *, leaf: int, levels: int, links: int) -> Pattern:
    """2^levels dense blocks of `leaf` rows on the diagonal; on each level above, a row has `links` to its sibling."""
    rng = building.generator(seed)
    count = leaf << levels
    every = np.arange(count, dtype=np.int32)
    row = [np.repeat(every, leaf)]
    col = [(every[:, None] // leaf * leaf + np.arange(leaf, dtype=np.int32)).ravel()]
    for level in range(levels):
        side = leaf << level
        other = np.repeat((every // side ^ 1) * side, links)
        row.append(np.repeat(every, links))
        col.append(other + rng.integers(0, side, len(other), dtype=np.int32))
    return Pattern.from_coordinates(count, count, np.concatenate(row), np.concatenate(col).astype(np.int32))


def communities(seed: int, *, groups: int, members: int, inside: float, outside: float, eighths: int = 4) -> Pattern:
    """Groups of members linked among themselves, and to others by a heavy-tailed popularity; symmetric."""
    rng = building.generator(seed)
    count = groups * members
    row = building.rows_of(building.ragged(count, inside / 2, 0.5, rng))
    col = row // members * members + rng.integers(0, members, len(row), dtype=np.int32)
    weight = np.minimum(building.heavy_tail(1.0 - rng.random(count), eighths), count / 8)
    mean = round(float(weight.mean()), 6)  # the last bits of a long sum differ between machines
    far = building.rows_of(np.floor(weight * (outside / 2 / mean) + rng.random(count)).astype(np.int64))
    to = rng.integers(0, count, len(far), dtype=np.int32)
    return building.both_ways(count, np.concatenate([row, far]), np.concatenate([col, to]).astype(np.int32))


def gaps(seed: int, *, rows: int, diagonals: int, reach: int, segment: int, kept: float) -> Pattern:
    """Diagonals that come and go: each is there in about `kept` of its segments of rows, the main one always."""
    rng = building.generator(seed)
    offsets = np.unique(np.append(rng.integers(-reach, reach + 1, diagonals - 1), 0)).astype(np.int32)
    every = np.arange(rows, dtype=np.int64)
    table = every[:, None].astype(np.int32) + offsets
    there = building.chance((every // segment)[:, None] * len(offsets) + np.arange(len(offsets)), seed, kept)
    return building.from_table(rows, table, (there | (offsets == 0)) & (table >= 0) & (table < rows))
