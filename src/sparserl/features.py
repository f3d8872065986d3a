"""Named structural features of a pattern: what a cost model, a report or a rule may ask about it. No values are read.

All are computed in a few vectorised passes. On more than `SAMPLE` nonzeros the costlier ones (diagonals, blocks,
symmetry) look at evenly spaced runs of rows, or links, and are estimates; row statistics are always exact.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import _sparsetools  # what `tobsr` is made of: counting blocks there takes no sort

from sparserl.matrix import Array, Pattern

SAMPLE = 2_000_000
"""nonzeros looked at by the estimated features"""
RUNS = 64
"""runs of rows in such a sample; their lengths are multiples of 24, so that blocks of every size start in step"""
BLOCKS = (2, 3, 4, 6, 8)
QUANTILES = (10, 25, 50, 75, 90, 99)
DIAGONALS = (1, 3, 5, 9, 16, 27, 64)
SMALL_NONZEROS = 100_000


def features(pattern: Pattern) -> dict[str, float]:
    """Every feature by name. All are finite numbers; an empty matrix has zeros."""
    out = {"rows": float(pattern.rows), "columns": float(pattern.columns), "nonzeros": float(pattern.nonzeros)}
    out |= _row_features(pattern)
    out |= _padding_features(pattern)
    row, cols, sample = _sample(pattern)
    out |= _place_features(pattern, row, cols)
    out |= _diagonal_features(pattern, row, cols)
    for b in BLOCKS:
        out[f"block_fill_{b}"] = _block_fill(row, cols, pattern.columns, b)
    out["symmetric"] = _symmetry(pattern, row, cols)
    out["sampled"] = float(sample)
    return out


def structure_class(pattern: Pattern) -> str:
    """One word: 'small', 'extreme', 'skewed', 'block', 'regular' or 'random', by simple rules in this order.

    small: under 100 000 nonzeros. extreme: a shape beyond 1:64, over half of the rows empty, a row with over 5 % of the
    nonzeros, or one with over half of the columns and 50 times the mean. skewed: the longest row over 20 times the
    mean, or a deviation over the mean. block: some b x b blocks are three quarters full. regular: entries gather near
    the diagonal or on few diagonals. random: the rest.
    """
    if pattern.nonzeros < SMALL_NONZEROS:
        return "small"
    rows = _row_features(pattern)
    aspect = pattern.rows / pattern.columns
    longest = rows["row_max"]
    full_row = longest > 0.5 * pattern.columns and longest > 50 * rows["row_mean"]
    if not 1 / 64 <= aspect <= 64 or rows["empty_rows"] > 0.5 or longest > 0.05 * pattern.nonzeros or full_row:
        return "extreme"
    if longest > 20 * rows["row_mean"] or rows["row_deviation"] > rows["row_mean"]:
        return "skewed"
    row, cols, _ = _sample(pattern)
    if max(_block_fill(row, cols, pattern.columns, b) for b in BLOCKS) >= 0.75:
        return "block"
    place = _place_features(pattern, row, cols)
    few = _diagonal_features(pattern, row, cols)["diagonal_share_64"]
    return "regular" if place["bandwidth_mean"] < 0.05 * pattern.columns or few > 0.9 else "random"


def _row_features(pattern: Pattern) -> dict[str, float]:
    names = ("row_mean", "row_deviation", "row_min", "row_max", "row_gini", "empty_rows")
    if pattern.rows == 0:
        return dict.fromkeys([*names, *(f"row_q{q}" for q in QUANTILES)], 0.0)
    lengths, counts = _length_table(pattern.row_lengths)
    rows, total = float(pattern.rows), float(pattern.nonzeros)
    mean = total / rows
    variance = float((counts * (lengths - mean) ** 2).sum()) / rows
    reached = np.cumsum(counts)
    # Gini: 1 - twice the area under the Lorenz curve, a trapezium for each length
    held = np.cumsum(counts * lengths)
    area = float((counts * (2 * held - counts * lengths)).sum()) / (2 * rows * total) if total else 0.5
    out = {
        "row_mean": mean,
        "row_deviation": variance**0.5,
        "row_min": float(lengths[0]),
        "row_max": float(lengths[-1]),
        "row_gini": max(0.0, 1.0 - 2.0 * area),
        "empty_rows": float(counts[0]) / rows if lengths[0] == 0 else 0.0,
    }
    at = np.searchsorted(reached, [q / 100 * rows for q in QUANTILES])
    return out | {f"row_q{q}": float(lengths[k]) for q, k in zip(QUANTILES, at, strict=True)}


def _length_table(row_lengths: Array) -> tuple[Array, Array]:
    """The lengths that occur, ascending, and how many rows have each."""
    if int(row_lengths.max()) > 1 << 20:  # one huge row would make a huge table
        lengths, counts = np.unique(row_lengths, return_counts=True)
    else:
        counts = np.bincount(row_lengths)
        lengths = np.flatnonzero(counts)
        counts = counts[lengths]
    return lengths.astype(np.float64), counts


def _padding_features(pattern: Pattern) -> dict[str, float]:
    """Slots over nonzeros when every row (ell) or every 32 rows (slices) are filled up to the longest among them."""
    if pattern.nonzeros == 0:
        return {"padding_ell": 1.0, "padding_slices": 1.0, "padding_slices_sorted": 1.0}
    lengths = pattern.row_lengths
    widest = np.maximum.reduceat(lengths, np.arange(0, pattern.rows, 32))
    by_length = np.sort(lengths)[::-1][::32]
    return {
        "padding_ell": float(lengths.max()) * pattern.rows / pattern.nonzeros,
        "padding_slices": 32.0 * float(widest.sum(dtype=np.int64)) / pattern.nonzeros,
        "padding_slices_sorted": 32.0 * float(by_length.sum(dtype=np.int64)) / pattern.nonzeros,
    }


def _sample(pattern: Pattern) -> tuple[Array, Array, bool]:
    """(row, column) of all nonzeros, or of the nonzeros in evenly spaced runs of rows; and whether it is a sample."""
    if pattern.nonzeros <= SAMPLE:
        return pattern.row_index(), pattern.cols, False
    budget = SAMPLE // RUNS
    rows: list[Array] = []
    cols: list[Array] = []
    for run in range(RUNS):
        first = pattern.rows * run // RUNS // 24 * 24
        start = int(pattern.row_start[first])
        last = int(np.searchsorted(pattern.row_start, start + budget, side="right")) - 1
        last = min(max(first + 1, first + (last - first) // 24 * 24), pattern.rows * (run + 1) // RUNS)
        lengths = pattern.row_lengths[first:last]
        row = np.repeat(np.arange(first, last, dtype=np.int32), lengths)
        rows.append(row)
        cols.append(pattern.cols[start : start + len(row)])
    return np.concatenate(rows), np.concatenate(cols), True


def _place_features(pattern: Pattern, row: Array, cols: Array) -> dict[str, float]:
    """Distance from the diagonal, neighbouring columns, and how far rows reach (last column - first)."""
    filled = pattern.row_lengths > 0
    first = pattern.cols[pattern.row_start[:-1][filled]]
    last = pattern.cols[pattern.row_start[1:][filled] - 1]
    span = last - first
    if len(cols) == 0:
        names = ("bandwidth_mean", "bandwidth_max", "adjacent", "span_q10", "span_q50", "span_q90", "span_max")
        return dict.fromkeys(names, 0.0)
    at = np.flatnonzero(filled)
    reach = max(int(np.abs(first - at).max()), int(np.abs(last - at).max()))
    adjacent = (cols[1:] == cols[:-1] + 1) & (row[1:] == row[:-1])
    out = {
        "bandwidth_mean": float(np.abs(cols - row).mean()),
        "bandwidth_max": float(reach),
        "adjacent": float(adjacent.sum()) / len(cols),
    }
    q10, q50, q90 = np.percentile(span[:: max(1, len(span) // 100_000)], (10, 50, 90))
    return out | {"span_q10": float(q10), "span_q50": float(q50), "span_q90": float(q90), "span_max": float(span.max())}


def _diagonal_features(pattern: Pattern, row: Array, cols: Array) -> dict[str, float]:
    """Share of the entries on the fullest 1 … 64 diagonals, and how many diagonals hold nine tenths of them."""
    if len(cols) == 0:
        return {f"diagonal_share_{n}": 0.0 for n in DIAGONALS} | {"diagonals_90": 0.0, "diagonals": 0.0}
    width = pattern.rows + pattern.columns
    offset = cols - row + np.int32(pattern.rows)
    held = np.bincount(offset, minlength=1) if width < 8 * len(cols) else np.unique(offset, return_counts=True)[1]
    held = np.sort(held[held > 0])[::-1]
    reached = np.cumsum(held)
    out = {f"diagonal_share_{n}": float(reached[min(n, len(held)) - 1]) / len(cols) for n in DIAGONALS}
    out["diagonals_90"] = float(np.searchsorted(reached, 0.9 * len(cols)) + 1)
    out["diagonals"] = float(len(held))
    return out


def _block_fill(row: Array, cols: Array, columns: int, b: int) -> float:
    """Nonzeros over slots of the b x b blocks that hold any: 1 means blocks without holes."""
    if len(cols) == 0:
        return 0.0
    of = row // np.int32(b)
    start = np.concatenate([[0], np.flatnonzero(of[1:] != of[:-1]) + 1, [len(of)]]).astype(np.int32)
    # every row of blocks as one row, whose entries need not be in order: what is counted are its blocks of 1 x b
    blocks = int(_sparsetools.csr_count_blocks(len(start) - 1, (columns // b + 1) * b, 1, b, start, cols))
    return len(cols) / (b * b * blocks)


def _symmetry(pattern: Pattern, row: Array, cols: Array) -> float:
    """Share of up to 20 000 off-diagonal entries (r, c) whose mirror (c, r) is an entry too; 0 if not square."""
    if pattern.rows != pattern.columns:
        return 0.0
    off = np.flatnonzero(row != cols)
    if len(off) == 0:
        return 1.0 if len(cols) else 0.0
    off = off[:: -(-len(off) // 20_000)]
    want, where = row[off].astype(np.int64), cols[off].astype(np.int64)
    # bisect all rows at once: the first place in row `where` whose column is not less than `want`
    low, end = pattern.row_start[where].astype(np.int64), pattern.row_start[where + 1].astype(np.int64)
    high = end.copy()
    while bool((low < high).any()):
        middle = (low + high) // 2
        less = pattern.cols[np.minimum(middle, pattern.nonzeros - 1)] < want
        open_ = low < high
        low = np.where(open_ & less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    found = (low < end) & (pattern.cols[np.minimum(low, pattern.nonzeros - 1)] == want)
    return float(found.mean())
