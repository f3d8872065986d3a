"""A structure-keeping sample of a pattern: what the matrix encoder reads. NumPy only; no values are seen.

    sample = sample_pattern(pattern)        # 1 024 places, fewer used where the matrix is tiny

Five views, each at places fixed by the pattern alone, so that a matrix always gives the same sample:

    ranks    nonzeros at even ranks: where the entries are
    rows     even rows, empty ones too, each by its first and its last entry: row lengths and spans
    longest  the longest rows, each by entries at even places
    heads    runs of neighbouring rows, each row by its first entries: how rows continue one another
    squares  small squares around nonzeros at even ranks, with *every* entry inside. Squares of 8 start at multiples of
             8, squares of 6 at multiples of 6, so blocks of 2, 3, 4, 6 and 8 lie in them whole

Each sampled nonzero says how many columns in a row are filled from it on (its run, at most 8). Those outside of squares
also say how many of eight places on their diagonal, spread over all of it, are filled: whether a diagonal goes through
or is there in places is what a thousand entries show least. In squares a run takes one place, so a dense square takes
8, not 64. Squares are taken in an order in which every beginning is spread evenly,
until their places are used up: scattered and dense matrices show 70 to 96 of them, half-filled ones about 30.

Cost: one pass over the row pointers, then the sample alone. Not covered: anything a thousand entries can't show, such
as a single far entry among millions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparserl.features import features
from sparserl.matrix import Array, Pattern

VERSION = 2
"""raised when the same pattern gives another sample; what was learnt from the old one does not fit"""
RANKS = 192
ROWS = 80
"""even rows, two entries each"""
LONGEST, LONGEST_ENTRIES = 16, 4
HEADS, HEAD_ROWS, HEAD_ENTRIES = 6, 4, 4
SQUARES = 96
"""squares at most"""
RUN = 8
"""the longest run that is told"""
ALONG = 8
"""places of a diagonal that are looked at for each entry on it"""
SQUARE_PLACES = 512
SQUARE_SIDES = (8, 6)

PARTS = ("ranks", "rows", "longest", "heads", "squares8", "squares6")
SINGLES = RANKS + 2 * ROWS + LONGEST * LONGEST_ENTRIES + HEADS * HEAD_ROWS * HEAD_ENTRIES
"""places before those of the squares"""
PLACES = SINGLES + SQUARE_PLACES
FIELDS = ("row", "column", "place", "length", "part", "square", "run", "along")
CHUNK_ROWS = 1024
GOLDEN, STEP = (5**0.5 - 1) / 2, np.uint64(0x9E3779B9)
"""the golden ratio, and that of 2**32: any first steps of it around a circle are spread evenly"""

FEATURE_NAMES = tuple(
    name
    for name in features(Pattern(0, 0, np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.int32)))
    if name != "sampled"
)
"""the named features a sample may carry, in this order"""


@dataclass(frozen=True, eq=False)
class Sample:
    """Sampled nonzeros and the sizes of the matrix. Places not used have part -1 and zeros elsewhere."""

    rows: int
    columns: int
    nonzeros: int
    entries: Array
    """int32, (PLACES, 8): row, column (-1: an empty row), place in row, row length, part, number of the square, run,
    and how many of `ALONG` places on its diagonal are filled (0 in squares)"""
    named: Array | None = None
    """float32, (features): `FEATURE_NAMES`, for the control that reads them; None where nobody asked"""

    @property
    def used(self) -> Array:
        """bool, (PLACES)"""
        return np.asarray(self.entries[:, FIELDS.index("part")] >= 0)


def sample_pattern(pattern: Pattern, with_features: bool = False) -> Sample:
    """The sample of a pattern; `with_features` adds the named features, which costs several passes over it."""
    out = np.zeros((PLACES, len(FIELDS)), dtype=np.int32)
    out[:, FIELDS.index("part")] = -1
    at = 0
    if pattern.rows:
        for part, places, (row, place) in (
            (0, RANKS, _ranks(pattern)),
            (1, 2 * ROWS, _rows(pattern)),
            (2, LONGEST * LONGEST_ENTRIES, _longest(pattern)),
            (3, HEADS * HEAD_ROWS * HEAD_ENTRIES, _heads(pattern)),
        ):
            _write(out[at : at + places], pattern, row, place, np.full(len(row), part))
            at += places
        if pattern.nonzeros:
            shown = np.flatnonzero((out[:SINGLES, FIELDS.index("part")] >= 0) & (out[:SINGLES, 1] >= 0))
            out[shown, FIELDS.index("along")] = _along(pattern, shown, out[shown, 0], out[shown, 1])
            row, place, part_of, square, run = _squares(pattern)
            _write(out[at:], pattern, row, place, part_of)
            out[at : at + len(square), FIELDS.index("square")] = square
            out[at : at + len(square), FIELDS.index("run")] = run  # one that ends with its square
    named = named_features(pattern) if with_features else None
    return Sample(pattern.rows, pattern.columns, pattern.nonzeros, out, named)


def named_features(pattern: Pattern) -> Array:
    """`FEATURE_NAMES` of a pattern, float32."""
    found = features(pattern)
    return np.array([found[name] for name in FEATURE_NAMES], dtype=np.float32)


def _write(out: Array, pattern: Pattern, row: Array, place: Array, part: Array) -> None:
    """Fill the first places of a part; what is left stays unused."""
    start, length = pattern.row_start[row], _lengths(pattern, row)
    where = np.minimum(start + place, max(0, pattern.nonzeros - 1))
    column = np.where(length > 0, pattern.cols[where], -1) if pattern.nonzeros else np.full(len(row), -1)
    ahead = np.arange(RUN)
    there = place[:, None] + ahead < length[:, None]
    if pattern.nonzeros:
        there &= pattern.cols[np.minimum(where[:, None] + ahead, pattern.nonzeros - 1)] == column[:, None] + ahead
    run = np.minimum.accumulate(there, axis=1).sum(axis=1)
    out[: len(row), : FIELDS.index("along")] = np.stack(
        [row, column, place, length, part, np.zeros_like(row), run], axis=1
    )


def _lengths(pattern: Pattern, row: Array) -> Array:
    return np.asarray(pattern.row_start[row + 1] - pattern.row_start[row])


def _even(total: int, count: int) -> Array:
    """At most `count` numbers of 0 … total - 1, one of each of equal stretches; all of them where they are few.

    Not the middles: their distance may be a multiple of what a regular matrix repeats itself by.
    """
    count = min(total, count)
    number = np.arange(count)
    inside = (number * GOLDEN + 0.5) % 1.0
    return np.minimum((number + inside) * (total / max(1, count)), total - 1).astype(np.int64)


def _ranks(pattern: Pattern) -> tuple[Array, Array]:
    rank = _even(pattern.nonzeros, RANKS)
    row = pattern.row_of(rank)
    return row, rank - pattern.row_start[row]


def _rows(pattern: Pattern) -> tuple[Array, Array]:
    row = np.repeat(_even(pattern.rows, ROWS), 2)
    place = np.maximum(_lengths(pattern, row) - 1, 0)
    place[::2] = 0
    return row, place


def _longest(pattern: Pattern) -> tuple[Array, Array]:
    """Entries at even places, the first and the last among them, of the longest rows; of equal ones the first rows."""
    # The longest rows lie in the chunks with the largest maxima: no sort of all rows.
    best = np.sort(np.argsort(-_chunk_maxima(pattern.row_start), kind="stable")[:LONGEST])
    rows = (best[:, None] * CHUNK_ROWS + np.arange(CHUNK_ROWS)).ravel()
    rows = rows[rows < pattern.rows]
    lengths = _lengths(pattern, rows)
    best = np.argsort(-lengths, kind="stable")[:LONGEST]
    best = best[lengths[best] > 0]
    step = np.arange(LONGEST_ENTRIES, dtype=np.int64)
    place = (lengths[best].astype(np.int64)[:, None] - 1) * step // (LONGEST_ENTRIES - 1)
    return np.repeat(rows[best], LONGEST_ENTRIES), place.ravel()


def _chunk_maxima(row_start: Array) -> Array:
    """The longest row of every CHUNK_ROWS rows; pieces that fit a core's cache, because all lengths at once don't."""
    piece = 64 * CHUNK_ROWS
    found = []
    for first in range(0, len(row_start) - 1, piece):
        lengths = np.diff(row_start[first : first + piece + 1])
        found.append(np.maximum.reduceat(lengths, np.arange(0, len(lengths), CHUNK_ROWS)))
    return np.concatenate(found)


def _heads(pattern: Pattern) -> tuple[Array, Array]:
    first = pattern.row_of(_even(pattern.nonzeros, HEADS))
    row = (first[:, None] + np.arange(HEAD_ROWS)).ravel()
    row = row[row < pattern.rows]
    row, place = np.repeat(row, HEAD_ENTRIES), np.tile(np.arange(HEAD_ENTRIES), len(row))
    there = place < np.maximum(_lengths(pattern, row), 1)  # an empty row stands there once, with column -1
    return row[there], place[there]


def _squares(pattern: Pattern) -> tuple[Array, Array, Array, Array, Array]:
    """Row, place, part, number of the square and length, of every run of as many squares as there is room for."""
    # Steps of the golden ratio: any first k of these ranks are spread evenly.
    turn = (np.arange(SQUARES, dtype=np.uint64) * STEP + np.uint64(1 << 31)) & np.uint64(0xFFFFFFFF)
    rank = (turn * np.uint64(pattern.nonzeros) >> np.uint64(32)).astype(np.int64)
    kind = np.arange(SQUARES) % len(SQUARE_SIDES)
    side = np.array(SQUARE_SIDES)[kind]
    top = pattern.row_of(rank) // side * side
    left = pattern.cols[rank] // side * side
    tallest = max(SQUARE_SIDES)
    row = top[:, None] + np.arange(tallest)  # (squares, rows of a square)
    inside = (np.arange(tallest) < side[:, None]) & (row < pattern.rows)
    row = np.minimum(row, pattern.rows - 1)
    begin = _bisect(pattern, row, np.broadcast_to(left[:, None], row.shape))
    count = np.where(inside, _bisect(pattern, row, np.broadcast_to((left + side)[:, None], row.shape)) - begin, 0)
    flat = count.ravel()
    which = np.repeat(np.arange(flat.size), flat)  # (entries in squares): number of the square's row
    rank = begin.ravel()[which] + np.arange(len(which)) - np.repeat(np.cumsum(flat) - flat, flat)
    follows = (which[1:] == which[:-1]) & (pattern.cols[rank[1:]] == pattern.cols[rank[:-1]] + 1)
    first = np.flatnonzero(np.concatenate([[True], ~follows]))
    run = np.diff(first, append=len(which))
    square = which[first] // tallest
    fits = np.cumsum(np.bincount(square, minlength=SQUARES)) <= SQUARE_PLACES
    first, run, square = (each[fits[square]] for each in (first, run, square))
    row_of = row.ravel()[which[first]]
    return row_of, rank[first] - pattern.row_start[row_of], PARTS.index("squares8") + kind[square], square, run


def _along(pattern: Pattern, number: Array, row: Array, column: Array) -> Array:
    """For each entry how many of `ALONG` places on its diagonal are filled; by its number others, spread evenly."""
    offset = column.astype(np.int64) - row
    first = np.maximum(0, -offset)
    length = np.minimum(pattern.rows, pattern.columns - offset) - first
    steps = np.arange(ALONG, dtype=np.uint64) * STEP + number.astype(np.uint64)[:, None] * np.uint64(0x6A09E667)
    turn = steps & np.uint64(0xFFFFFFFF)
    at = first[:, None] + (turn * length.astype(np.uint64)[:, None] >> np.uint64(32)).astype(np.int64)
    wanted = at + offset[:, None]
    found = _bisect(pattern, at, wanted)
    there = (found < pattern.row_start[at + 1]) & (pattern.cols[np.minimum(found, pattern.nonzeros - 1)] == wanted)
    return np.asarray(there.sum(axis=1))


def _bisect(pattern: Pattern, row: Array, column: Array) -> Array:
    """The first rank in each row whose column is not less than the one given; all rows at once."""
    low, high = pattern.row_start[row].astype(np.int64), pattern.row_start[row + 1].astype(np.int64)
    last = pattern.nonzeros - 1
    for _ in range(int((high - low).max()).bit_length()):
        middle = (low + high) >> 1
        less = (pattern.cols[np.minimum(middle, last)] < column) & (low < high)
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    return low
