"""hybrid: ELL for the first entries of every row, and what is left of longer rows behind it, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import ColumnReader, encode, index_params, refuse_columns, scatter
from sparserl.layouts.layout import (
    Entry,
    choices,
    div_up,
    finish,
    int32,
    ints,
    offset_in_run,
    refuse_slots,
    scalars,
    starts,
)
from sparserl.layouts.lengths import row_lengths
from sparserl.layouts.slices import C_CHOICES, rows_in_order, slice_entries
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param


class Hybrid:
    """The width is the shortest that holds `cover` per cent of the rows whole."""

    name: ClassVar[str] = "hybrid"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"c": C_CHOICES, "cover": choices(25, 50, 75, 90, 95, 99)}
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("slices", "width", "tail_rows"),
            ints("tail_row", "tail_rows"),
            ints("tail_start", "tail_rows + 1, in slots"),
            *index_params(line, "", "slots"),
        )

    def _width(self, pattern: Pattern, line: LayoutLine) -> int:
        found = row_lengths(pattern)
        whole = np.cumsum(found.counts)  # rows no longer than each length
        at = int(np.searchsorted(whole * 100, line.number("cover") * pattern.rows))
        return int(found.values[at]) if pattern.rows else 0

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        c, width = line.number("c"), self._width(pattern, line)
        found = row_lengths(pattern)
        tail = found.total(np.maximum(found.values - width, 0))
        slots = div_up(pattern.rows, c) * c * width + tail
        return refuse_slots(self.name, slots, pattern.nonzeros) or refuse_columns(line, pattern.columns)

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        c, width, lengths = line.number("c"), self._width(pattern, line), pattern.row_lengths
        slices = div_up(pattern.rows, c)
        long_rows = np.flatnonzero(lengths > width)
        tail_start = slices * c * width + starts(lengths[long_rows] - width)
        row = np.arange(pattern.rows, dtype=np.int64)
        first = (row // c * (c * width) + row % c).astype(np.int32)
        k = offset_in_run(pattern.row_start, lengths)
        slot_of = np.repeat(first, lengths)
        slot_of += k * np.int32(c)
        tail = np.zeros(pattern.rows, dtype=np.int32)
        tail[long_rows] = (tail_start[:-1] - width).astype(np.int32)
        np.copyto(slot_of, np.repeat(tail, lengths) + k, where=k >= width)
        slots = int(tail_start[-1])
        stored = encode(pattern.cols, line.index)
        arrays = {
            "tail_row": int32(long_rows),
            "tail_start": int32(tail_start),
            "cols": scatter(stored, slots, slot_of),
        }
        own = {"slices": slices, "width": width, "tail_rows": len(long_rows)}
        return finish(pattern, line, own, arrays, slots=slots, slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        c = packed.layout.number("c")
        size = c * packed.scalars["width"]
        rows = rows_in_order(packed, c)
        for s in range(packed.scalars["slices"]):
            yield from slice_entries(reader, rows[s * c : s * c + c], s, (s * size, s * size + size), 1)
        tail_row, tail_start = packed.arrays["tail_row"].tolist(), packed.arrays["tail_start"].tolist()
        for t in range(packed.scalars["tail_rows"]):
            for slot in range(tail_start[t], tail_start[t + 1]):
                yield tail_row[t], reader.column(slot), slot
