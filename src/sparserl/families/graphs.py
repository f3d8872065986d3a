"""Matrices that come from networks: power laws, preferential attachment, roads, circuits, Kronecker products."""

from __future__ import annotations

import numpy as np

from sparserl.families import building
from sparserl.families.meshes import FLAT
from sparserl.matrix import Array, Pattern

CHUNK = 1 << 22
"""edges drawn at a time, to bound memory"""


def rmat(
    seed: int, *, scale: int, links: int, a: float = 0.57, b: float = 0.19, c: float = 0.19, mixed: bool = True
) -> Pattern:
    """An R-MAT graph of 2^scale nodes: each link falls into quadrants with chances a, b, c and what is left.

    `mixed` renumbers the nodes at random, as crawled graphs are; links that fall together count once.
    """
    rng = building.generator(seed)
    row, col = np.empty(links, dtype=np.int32), np.empty(links, dtype=np.int32)
    bounds = [np.uint16(min(65535, round(65536 * share))) for share in (a, a + b, a + b + c)]
    for at in range(0, links, CHUNK):
        count = min(CHUNK, links - at)
        r, q = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
        for _ in range(scale):
            u = rng.integers(0, 65536, count, dtype=np.uint16)
            lower = u >= bounds[1]
            right = ((u >= bounds[0]) & ~lower) | (u >= bounds[2])
            r += r + lower
            q += q + right
        row[at : at + count], col[at : at + count] = r, q
    if mixed:
        order = rng.permutation(1 << scale).astype(np.int32)
        row, col = order[row], order[col]
    return Pattern.from_coordinates(1 << scale, 1 << scale, row, col)


def attachment(seed: int, *, rows: int, links: int, mixed: bool = False) -> Pattern:
    """Preferential attachment: a new node links to `links` old ones, the more linked the likelier; symmetric."""
    rng = building.generator(seed)
    edges = rows * links
    # Ends are numbered 2e (the new node of edge e) and 2e + 1 (its target). A target copies a random earlier end;
    # chains of copies are followed all at once, halving their length each round.
    target = rng.integers(0, 2 * np.arange(edges, dtype=np.int64) + 1)
    while True:
        odd = np.flatnonzero(target & 1)
        if len(odd) == 0:
            break
        target[odd] = target[target[odd] >> 1]
    old = (target >> 1) // links
    new = np.arange(edges, dtype=np.int64) // links
    pattern = building.both_ways(rows, new.astype(np.int32), old.astype(np.int32))
    return building.renumber(pattern, 0, building.generator(seed, 1)) if mixed else pattern


def road(seed: int, *, nx: int, ny: int, kept: float = 0.65, window: int = 64) -> Pattern:
    """A road network: a grid of crossings, each street there with chance `kept`, no diagonal entries; symmetric."""
    offsets = tuple(o for o in FLAT[5] if o != (0, 0, 0))

    def street(key: Array, j: int) -> Array:
        return building.chance(key, seed * 31 + j, kept)

    return building.renumber(building.grid((nx, ny, 1), offsets, street), window, building.generator(seed, 1))


def powerlaw(seed: int, *, rows: int, columns: int, per_row: float, eighths: int = 5, popular: int = 4) -> Pattern:
    """Row lengths with a heavy tail (exponent 1 + 8 / eighths), columns drawn by a popularity of the same kind.

    `popular` in eighths: 0 makes all columns alike.
    """
    rng = building.generator(seed)
    weight = building.heavy_tail(1.0 - rng.random(rows), eighths)
    weight = np.minimum(weight, columns / (2 * per_row))
    mean = round(float(weight.mean()), 6)  # the last bits of a long sum differ between machines
    lengths = np.floor(weight * (per_row / mean) + rng.random(rows)).astype(np.int64)
    row = building.rows_of(np.minimum(lengths, columns))
    u = 1.0 - rng.random(len(row))
    if popular:
        # Column k with density falling like k^-(popular/8): u^(8/(8 - popular)) would do it; squaring stays exact.
        u = u * u if popular <= 4 else u * u * u * u
    col = np.minimum((u * columns).astype(np.int32), columns - 1)
    return Pattern.from_coordinates(rows, columns, row, rng.permutation(columns).astype(np.int32)[col])


def circuit(
    seed: int, *, rows: int, per_row: float = 4.0, nets: int = 20, net_rows: int = 2000, reach: int = 200
) -> Pattern:
    """A circuit: a diagonal, short links near it, and a few nets (clock, power) that touch many nodes; symmetric."""
    rng = building.generator(seed)
    row = building.rows_of(building.ragged(rows, max(0.0, (per_row - 1) / 2), 0.8, rng))
    col = building.near(row, rows, rows, reach, rng)
    hub = np.repeat(rng.integers(0, rows, nets, dtype=np.int32), net_rows)
    touched = rng.integers(0, rows, len(hub), dtype=np.int32)
    every = np.arange(rows, dtype=np.int32)
    return building.both_ways(rows, np.concatenate([row, hub, every]), np.concatenate([col, touched, every]))


def kronecker(seed: int, *, coarse: int, per_coarse: float, fine: int, per_fine: float) -> Pattern:
    """The Kronecker product of a random sparse `coarse` matrix and a random `fine` one (at most a few hundred rows)."""
    left = _with_diagonal(coarse, per_coarse, building.generator(seed, 0))
    right = _with_diagonal(fine, per_fine, building.generator(seed, 1))
    return building.product(left, right)


def _with_diagonal(rows: int, per_row: float, rng: np.random.Generator) -> Pattern:
    row = building.rows_of(building.ragged(rows, max(0.0, per_row - 1), 0.5, rng))
    every = np.arange(rows, dtype=np.int32)
    col = rng.integers(0, rows, len(row), dtype=np.int32)
    return Pattern.from_coordinates(rows, rows, np.concatenate([row, every]), np.concatenate([col, every]))
