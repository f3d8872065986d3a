"""split: rows of up to `long` entries in sorted slices, longer ones cut into segments behind them.

SELL-C-sigma pads next to nothing but can't bear a long row; here long rows leave the slices and become work items of a
warp each, so one launch serves both. A long row's place in the slices is marked -1: nobody writes a zero there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.bins import cut_rows
from sparserl.layouts.codec import ColumnReader, encode, index_params, refuse_columns, scatter
from sparserl.layouts.layout import Entry, choices, finish, int32, ints, refuse_pieces, refuse_slots, scalars
from sparserl.layouts.lengths import row_lengths
from sparserl.layouts.memo import remembered
from sparserl.layouts.slices import listed_entries, padded_slots, plan_slices, slot_of_entries, sorted_lengths
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

C_CHOICES = choices(1, 2, 4, 8, 16, 32)
GROUP_CHOICES = choices(1, 2, 4, 8, 16, 32)


class Split:
    """Slices for the short rows, segments for the long ones."""

    name: ClassVar[str] = "split"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "c": C_CHOICES,
        "sigma": choices(1, 256, 1024, 4096, 16384, 1048576),
        "group": GROUP_CHOICES,
        "long": choices(16, 32, 64, 128, 256, 512, 1024),
        "segment": choices(128, 256, 512, 1024, 2048, 4096),
    }
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("slices", "segments"),
            Param("work", "const int4*", "segments: (row, first slot, last slot, info)"),
            ints("slice_start", "slices + 1, in slots"),
            ints("row_of", "slices * c"),
            *index_params(line, "", "slots"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        long = line.number("long")
        most, total = row_lengths(pattern).pieces(long, line.number("segment"))
        reason = refuse_pieces(self.name, most, total, "Choose a larger 'segment' or 'long'.")
        if reason is None:
            reason = refuse_columns(line, pattern.columns)
        if reason is None:
            slots = _slots(pattern, line.number("sigma"), long)[line.number("c"), line.number("group")]
            reason = refuse_slots(self.name, slots, pattern.nonzeros)
        return reason

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        c, group = line.number("c"), line.number("group")
        is_long = pattern.row_lengths > line.number("long")
        in_long = np.repeat(is_long, pattern.row_lengths)
        short = _without(pattern, is_long, in_long)
        plan = plan_slices(short, c, line.number("sigma"), group)
        slices, sliced = len(plan.slice_start) - 1, int(plan.slice_start[-1])
        row_of = np.full(slices * c, -1, dtype=np.int32)
        row_of[: pattern.rows] = np.arange(pattern.rows) if plan.order is None else plan.order
        row_of[plan.place[is_long]] = -1
        slot_of = np.empty(pattern.nonzeros, dtype=np.int32)
        slot_of[~in_long] = slot_of_entries(short, plan, c, group)
        slot_of[in_long] = sliced + np.arange(int(in_long.sum()), dtype=np.int32)
        rows = np.flatnonzero(is_long)
        behind = sliced + np.cumsum(pattern.row_lengths[rows]) - pattern.row_lengths[rows]
        work = cut_rows(rows, behind, pattern.row_lengths[rows], line.number("segment"))
        slots = sliced + int(in_long.sum())
        arrays = {
            "work": work,
            "slice_start": int32(plan.slice_start),
            "row_of": row_of,
            "cols": scatter(encode(pattern.cols, line.index), slots, slot_of),
        }
        own = {"slices": slices, "segments": len(work)}
        return finish(pattern, line, own, arrays, slots=slots, slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        yield from listed_entries(packed)
        reader = ColumnReader(packed)
        for row, first, last, _ in packed.arrays["work"].tolist():
            for slot in range(first, last):
                yield row, reader.column(slot), slot


def _without(pattern: Pattern, is_long: np.ndarray, in_long: np.ndarray) -> Pattern:
    """The same rows, the long ones empty."""
    lengths = np.where(is_long, 0, pattern.row_lengths)
    row_start = np.zeros(pattern.rows + 1, dtype=np.int32)
    np.cumsum(lengths, out=row_start[1:])
    return Pattern(pattern.rows, pattern.columns, row_start, pattern.cols[~in_long])


def _slots(pattern: Pattern, sigma: int, long: int) -> dict[tuple[int, int], int]:
    """Slots by c and group; one sort serves them all."""

    def measure() -> dict[tuple[int, int], int]:
        found, lengths = row_lengths(pattern), pattern.row_lengths
        if sigma >= pattern.rows:  # one window: the sorted rows are known from the counts alone
            short = found.no_longer_than(long)
            lengths = np.repeat(short.values[::-1].astype(np.uint16), short.counts[::-1])
        else:
            lengths = sorted_lengths(np.where(lengths > long, 0, lengths), sigma)
        behind = found.total(np.where(found.values > long, found.values, 0))
        return {key: slots + behind for key, slots in padded_slots(lengths, map(int, C_CHOICES)).items()}

    return remembered(pattern, ("split", sigma, long), measure)
