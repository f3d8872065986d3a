"""The pieces that families are made of: offset tables, links kept by a hash, permutations, block products.

Everything here gives the same pattern on every machine: integer arithmetic, NumPy's PCG64 with `integers` and `random`,
and square roots, which IEEE 754 rounds exactly. Powers, logarithms and normal draws are left out on purpose: their last
bit differs between machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sparserl.errors import MatrixError
from sparserl.matrix import Array, Pattern
from sparserl.reading import LARGEST


def generator(seed: int, purpose: int = 0) -> np.random.Generator:
    """PCG64 seeded by (seed, purpose): parts of one matrix draw from streams of their own."""
    return np.random.Generator(np.random.PCG64([seed, purpose]))


def starts(lengths: Array) -> Array:
    """Row starts of these row lengths; too many nonzeros are refused before they wrap around."""
    total = int(lengths.sum(dtype=np.int64))
    if total > LARGEST:
        raise MatrixError(f"The family's parameters ask for {total} nonzeros; at most {LARGEST} are possible.")
    out = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=out[1:])
    return out


def from_table(columns: int, table: Array, keep: Array) -> Pattern:
    """The pattern whose row r holds table[r, k] wherever keep[r, k]; table rows must ascend."""
    return Pattern(len(table), columns, starts(np.count_nonzero(keep, axis=1)), table[keep])


Offset = tuple[int, int, int]
"""(dx, dy, dz) from a grid point to its neighbour"""


def grid(size: Offset, offsets: Sequence[Offset], kept: Callable[[Array, int], Array] | None = None) -> Pattern:
    """A grid of size (nx, ny, nz), x fastest, with a link along each offset that stays inside.

    `kept(key, j)`, where given, says which links along offset j exist; `key` is the same seen from either end.
    """
    nx, ny, nz = size
    order = sorted(offsets, key=lambda o: (o[2] * ny + o[1]) * nx + o[0])
    rows = nx * ny * nz
    point = np.arange(rows, dtype=np.int32)
    x, y, z = point % nx, point // nx % ny, point // (nx * ny)
    table = np.empty((rows, len(order)), dtype=np.int32)
    keep = np.empty((rows, len(order)), dtype=bool)
    for j, (dx, dy, dz) in enumerate(order):
        inside = (x + dx >= 0) & (x + dx < nx) & (y + dy >= 0) & (y + dy < ny) & (z + dz >= 0) & (z + dz < nz)
        step = (dz * ny + dy) * nx + dx
        np.add(point, step, out=table[:, j])
        if kept is not None:
            inside &= kept(point + min(step, 0), j if step <= 0 else len(order) - 1 - j)
        keep[:, j] = inside
    return from_table(rows, table, keep)


def chance(key: Array, seed: int, share: float) -> Array:
    """True for about `share` of the keys, always the same ones for a seed (a splitmix-style hash of the key)."""
    with np.errstate(over="ignore"):
        h = key.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
        h ^= h >> np.uint64(30)
        h *= np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(27)
        h *= np.uint64(0x94D049BB133111EB)
        h ^= h >> np.uint64(31)
    return np.asarray((h >> np.uint64(32)) < np.uint64(int(share * 2**32)))


def permute(pattern: Pattern, row_to: Array, col_to: Array) -> Pattern:
    """Row r moves to row_to[r], column c to col_to[c]."""
    row = np.repeat(row_to.astype(np.int32, copy=False), pattern.row_lengths)
    return Pattern.from_coordinates(pattern.rows, pattern.columns, row, col_to.astype(np.int32)[pattern.cols])


def window_order(count: int, window: int, rng: np.random.Generator) -> Array:
    """A random renumbering that moves nothing out of its window of `window` numbers (0: all in one window)."""
    if window == 0 or window >= count:
        return rng.permutation(count).astype(np.int32)
    key = rng.integers(0, 1 << 31, count, dtype=np.int64) + (np.arange(count, dtype=np.int64) // window << 31)
    out = np.empty(count, dtype=np.int32)
    out[np.argsort(key, kind="stable")] = np.arange(count, dtype=np.int32)
    return out


def renumber(pattern: Pattern, window: int, rng: np.random.Generator) -> Pattern:
    """The same graph with its nodes renumbered inside windows; window 1 changes nothing."""
    if window == 1:
        return pattern
    order = window_order(pattern.rows, window, rng)
    return permute(pattern, order, order)


def expand_blocks(pattern: Pattern, b: int, seed: int, fill: float = 1.0) -> Pattern:
    """Every nonzero becomes a dense b x b block; `fill` < 1 leaves entries out at random, the diagonal never."""
    return drop(product(pattern, dense(b, b)), seed, fill)


def dense(rows: int, columns: int) -> Pattern:
    start = np.arange(rows + 1, dtype=np.int32) * np.int32(columns)
    return Pattern(rows, columns, start, np.tile(np.arange(columns, dtype=np.int32), rows))


def product(left: Pattern, right: Pattern) -> Pattern:
    """The Kronecker product, left the coarse one."""
    lengths = np.multiply.outer(left.row_lengths.astype(np.int64), right.row_lengths.astype(np.int64))
    start = starts(lengths.ravel())
    cols = np.empty(int(start[-1]), dtype=np.int32)
    coarse = left.cols * np.int32(right.columns)
    out_start = start[:-1].reshape(left.rows, right.rows)
    for row in range(right.rows):  # the right side is the small one
        inner = right.cols[right.row_start[row] : right.row_start[row + 1]]
        first = np.repeat(out_start[:, row] - left.row_start[:-1] * np.int32(len(inner)), left.row_lengths)
        at = first + np.arange(left.nonzeros, dtype=np.int32) * np.int32(len(inner))
        for k, c in enumerate(inner):
            cols[at + np.int32(k)] = coarse + c
    return Pattern(left.rows * right.rows, left.columns * right.columns, start, cols)


def drop(pattern: Pattern, seed: int, fill: float) -> Pattern:
    """Keep about `fill` of the entries, and all on the diagonal."""
    if fill >= 1.0:
        return pattern
    row = pattern.row_index()
    return only(pattern, chance(np.arange(pattern.nonzeros, dtype=np.int64), seed, fill) | (row == pattern.cols))


def only(pattern: Pattern, keep: Array) -> Pattern:
    """The entries for which `keep`, one a nonzero, is true."""
    before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int32)
    return Pattern(pattern.rows, pattern.columns, before[pattern.row_start], pattern.cols[keep])


def both_ways(count: int, row: Array, col: Array) -> Pattern:
    """The symmetric pattern of these links."""
    return Pattern.from_coordinates(count, count, np.concatenate([row, col]), np.concatenate([col, row]))


def stack(parts: Sequence[tuple[int, int, Pattern]], rows: int, columns: int) -> Pattern:
    """The union of patterns, each set down with its upper left corner at (row, column)."""
    row = np.concatenate([p.row_index() + np.int32(r) for r, _, p in parts])
    col = np.concatenate([p.cols + np.int32(c) for _, c, p in parts])
    return Pattern.from_coordinates(rows, columns, row, col)


def heavy_tail(u: Array, eighths: int) -> Array:
    """u to the power -eighths/8 for u in (0, 1], made of square roots: a power law with exponent 1 + 8 / eighths."""
    out = np.ones_like(u)
    root = u
    for bit in (4, 2, 1):
        root = np.sqrt(root)
        if eighths & bit:
            out /= root
    return np.asarray(out / u if eighths & 8 else out)


def rows_of(lengths: Array) -> Array:
    """The row of every entry, for rows of these lengths."""
    starts(lengths)  # refuses too many
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def ragged(rows: int, per_row: float, spread: float, rng: np.random.Generator) -> Array:
    """Row lengths with this mean, even inside per_row * (1 ± spread); a mean of 2.5 with spread 0 gives 2s and 3s."""
    mean = per_row * (1 + spread * (2 * rng.random(rows) - 1))
    return np.asarray(np.floor(mean + rng.random(rows)), dtype=np.int64)


def near(row: Array, rows: int, columns: int, reach: int, rng: np.random.Generator) -> Array:
    """A random column within `reach` of each row's place on the (stretched) diagonal."""
    middle = row.astype(np.int64) * columns // rows
    col = middle + rng.integers(-reach, reach + 1, len(row), dtype=np.int32)
    return np.asarray(np.clip(col, 0, columns - 1), dtype=np.int32)
