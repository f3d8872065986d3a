"""diagonals: well-filled diagonals without stored columns (DIA), and the other entries behind them, row by row.

A hole in a diagonal is padding: its value is -0.0, the only mark it has. A matrix in which no diagonal is filled well
enough is refused, and so is one with more than 128 that are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.blocks import is_negative_zero
from sparserl.layouts.layout import Entry, choices, finish, int32, ints, refuse_slots, round_up, scalars, starts
from sparserl.layouts.memo import remembered
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

MOST_DIAGONALS = 128
FILL_CHOICES = choices(10, 25, 50, 75, 90, 100)
LEAST_FILL = min(map(int, FILL_CHOICES))
BUNDLE_BITS = 6
COUNTED = 1 << 22
"""diagonals up to which each is counted at once"""
CORNER = 1024


class Diagonals:
    """Diagonals that fill at least `fill` per cent of their length, ascending, and a tail."""

    name: ClassVar[str] = "diagonals"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"fill": FILL_CHOICES}
    codecs: ClassVar[tuple[str, ...]] = ("none",)

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("diagonals", "stride", "tail_rows", "tail_at"),
            ints("offsets", "diagonals"),
            ints("tail_row", "tail_rows"),
            ints("tail_start", "tail_rows + 1"),
            ints("tail_cols", "nonzeros outside the diagonals"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        kept, tail = measure(pattern, line.number("fill"))
        if not kept:
            return (
                f"Layout 'diagonals' found no diagonal filled to {line.get('fill')} per cent; choose a smaller 'fill'."
            )
        if kept > MOST_DIAGONALS:
            return f"Layout 'diagonals' holds at most {MOST_DIAGONALS}. Got {kept}; choose a larger 'fill'."
        return refuse_slots(self.name, kept * round_up(pattern.rows, 32) + tail, pattern.nonzeros)

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        diagonal_of = _diagonal_of(pattern)
        kept = _kept(diagonal_of, pattern, line.number("fill"))
        stride = round_up(pattern.rows, 32)
        tail_at = len(kept) * stride
        # Slots of row 0 by diagonal; -1 marks diagonals that aren't kept.
        first = np.full(pattern.rows + pattern.columns, -1, dtype=np.int32)
        first[kept] = np.arange(len(kept)) * stride
        row = pattern.row_index()
        slot_of = first[diagonal_of]
        outside = np.flatnonzero(slot_of < 0)
        slot_of += row
        slot_of[outside] = tail_at + np.arange(len(outside))
        tail_lengths = np.bincount(row[outside], minlength=pattern.rows)
        tail_row = np.flatnonzero(tail_lengths)
        offsets = int32(kept - (pattern.rows - 1))
        arrays = {
            "offsets": offsets,
            "tail_row": int32(tail_row),
            "tail_start": int32(starts(tail_lengths[tail_row])),
            "tail_cols": pattern.cols[outside],
        }
        own = {"diagonals": len(kept), "stride": stride, "tail_rows": len(tail_row), "tail_at": tail_at}
        tables = {"OFFSETS": tuple(offsets.tolist())}
        return finish(pattern, line, own, arrays, slots=tail_at + len(outside), slot_of=slot_of, tables=tables)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        values = vals.tolist()
        scalar, array = packed.scalars, packed.arrays
        for d, offset in enumerate(array["offsets"].tolist()):
            for row in range(max(0, -offset), min(scalar["rows"], scalar["columns"] - offset)):
                slot = d * scalar["stride"] + row
                if not is_negative_zero(values[slot]):
                    yield row, row + offset, slot
        tail_row, tail_start = array["tail_row"].tolist(), array["tail_start"].tolist()
        tail_cols = array["tail_cols"].tolist()
        for t in range(scalar["tail_rows"]):
            for e in range(tail_start[t], tail_start[t + 1]):
                yield tail_row[t], tail_cols[e], scalar["tail_at"] + e


def _diagonal_of(pattern: Pattern) -> np.ndarray:
    """The diagonal of every nonzero: column - row + rows - 1, from 0 for the bottom left corner."""
    shift = np.arange(pattern.rows - 1, -1, -1)
    if pattern.rows + pattern.columns < 2**31:
        shift = int32(shift)
    return np.repeat(shift, pattern.row_lengths) + pattern.cols


def _length_of(diagonal: np.ndarray, pattern: Pattern) -> np.ndarray:
    """Rows of these diagonals that lie inside the matrix."""
    offset = diagonal.astype(np.int64) - (pattern.rows - 1)
    return np.minimum(pattern.rows, pattern.columns - offset) - np.maximum(0, -offset)


def _filled(diagonal_of: np.ndarray, pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """The diagonals, ascending, that the smallest `fill` keeps, and the nonzeros on each.

    Where a count for each diagonal doesn't fit in any cache, they are counted in bundles of neighbours first: a bundle
    with fewer nonzeros than its shortest diagonal needs holds none, and what is left is usually little.
    """
    everywhere, least = max(pattern.rows + pattern.columns - 1, 1), min(pattern.rows, pattern.columns)
    in_a_bundle = (pattern.nonzeros << BUNDLE_BITS) / everywhere
    if everywhere > COUNTED and in_a_bundle * 100 < LEAST_FILL * least:
        diagonal, counts = _well_filled_bundles(diagonal_of, pattern, everywhere - 1)
    else:
        counts = np.bincount(diagonal_of, minlength=everywhere)
        # all but those near the corners are this long, which most have too few nonzeros for
        ends = min(least, CORNER)
        inner = np.flatnonzero(counts[ends : everywhere - ends] * 100 >= LEAST_FILL * ends) + ends
        corners = (np.arange(ends), np.arange(max(ends, everywhere - ends), everywhere))
        diagonal = np.concatenate([corners[0], inner, corners[1]])
        counts = counts[diagonal]
    kept = (counts > 0) & (counts * 100 >= LEAST_FILL * _length_of(diagonal, pattern))
    return diagonal[kept], counts[kept]


def _well_filled_bundles(diagonal_of: np.ndarray, pattern: Pattern, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Diagonals of the bundles that may hold one that is filled, and the nonzeros on each."""
    bundle_of = (diagonal_of >> BUNDLE_BITS).astype(np.intp, copy=False)
    counts = np.bincount(bundle_of, minlength=1)
    first = np.arange(len(counts), dtype=np.int64) << BUNDLE_BITS
    ends = first, np.minimum(first + (1 << BUNDLE_BITS) - 1, last)
    # the length rises to one side and falls to the other, so the shortest is at an end
    shortest = np.minimum(_length_of(ends[0], pattern), _length_of(ends[1], pattern))
    alive = (counts > 0) & (counts * 100 >= LEAST_FILL * shortest)
    bundles = np.flatnonzero(alive)
    inside = alive[bundle_of]
    rank = np.cumsum(alive) - 1
    at = rank[bundle_of[inside]] << BUNDLE_BITS
    at += diagonal_of[inside] & ((1 << BUNDLE_BITS) - 1)
    counts = np.bincount(at, minlength=len(bundles) << BUNDLE_BITS)
    return ((bundles << BUNDLE_BITS)[:, None] + np.arange(1 << BUNDLE_BITS)).ravel(), counts


def _kept(diagonal_of: np.ndarray, pattern: Pattern, fill: int) -> np.ndarray:
    """The diagonals, ascending, that are filled to `fill` per cent of their length inside the matrix."""
    diagonal, counts = _filled(diagonal_of, pattern)
    return diagonal[counts * 100 >= fill * _length_of(diagonal, pattern)]


def measure(pattern: Pattern, fill: int) -> tuple[int, int]:
    """How many diagonals are kept, and how many nonzeros are left over."""

    def measure_all() -> dict[int, tuple[int, int]]:
        diagonal, counts = _filled(_diagonal_of(pattern), pattern)
        length, out = _length_of(diagonal, pattern), {}
        for least in map(int, FILL_CHOICES):
            kept = counts * 100 >= least * length
            out[least] = int(np.count_nonzero(kept)), pattern.nonzeros - int(counts[kept].sum())
        return out

    return remembered(pattern, "diagonals", measure_all)[fill]
