"""filled: sorted slices of the rows that have entries; the others are only spans to be zeroed.

`window` filled rows after each other belong together: a block multiplies them and owns every row from the first of
them up to the first of the next window, so it can zero the empty ones between without a list of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import index_params, refuse_columns
from sparserl.layouts.layout import Entry, choices, div_up, finish, int32, ints, refuse_slots, scalars
from sparserl.layouts.memo import remembered
from sparserl.layouts.slices import (
    listed_entries,
    pack_columns,
    padded_slots,
    plan_slices,
    slot_of_entries,
    sorted_lengths,
)
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

C_CHOICES = choices(1, 2, 4, 8, 16, 32)


class Filled:
    """SELL-C-sigma over the rows that hold something, sigma rows a window."""

    name: ClassVar[str] = "filled"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "c": C_CHOICES,
        "window": choices(32, 64, 128, 256, 512),
        "group": C_CHOICES,
    }
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("windows", "slices"),
            ints("span_start", "windows + 1, in rows"),
            ints("slice_start", "slices + 1, in slots"),
            ints("row_of", "slices * c"),
            *index_params(line, "", "slots"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        slots = _slots(pattern, line.number("window"))[line.number("c"), line.number("group")]
        return refuse_slots(self.name, slots, pattern.nonzeros) or refuse_columns(line, pattern.columns)

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        c, window, group = line.number("c"), line.number("window"), line.number("group")
        filled = np.flatnonzero(pattern.row_lengths)
        row_start = np.append(pattern.row_start[filled], np.int32(pattern.nonzeros)).astype(np.int32)
        dense = Pattern(len(filled), pattern.columns, row_start, pattern.cols)
        plan = plan_slices(dense, c, window, group)
        slices = len(plan.slice_start) - 1
        row_of = np.full(slices * c, -1, dtype=np.int32)
        row_of[: len(filled)] = filled if plan.order is None else filled[plan.order]
        windows = max(1, div_up(len(filled), window))  # the rows of an empty matrix are a span too
        span_start = np.full(windows + 1, pattern.rows, dtype=np.int32)
        span_start[:windows] = filled[::window] if len(filled) else 0
        span_start[0] = 0
        slot_of = slot_of_entries(dense, plan, c, group)
        arrays = {"span_start": span_start, "slice_start": int32(plan.slice_start), "row_of": row_of}
        arrays |= pack_columns(dense, line, plan, c, slot_of)
        own = {"windows": windows, "slices": slices}
        return finish(pattern, line, own, arrays, slots=int(plan.slice_start[-1]), slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        yield from listed_entries(packed)


def _slots(pattern: Pattern, window: int) -> dict[tuple[int, int], int]:
    """Slots by c and group."""

    def measure() -> dict[tuple[int, int], int]:
        lengths = pattern.row_lengths
        return padded_slots(sorted_lengths(lengths[lengths > 0], window), map(int, C_CHOICES))

    return remembered(pattern, ("filled", window), measure)
