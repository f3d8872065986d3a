"""blockslices: b × b blocks in slices of c block rows, so that neighbouring threads read neighbouring slots.

Padding is both: whole blocks (column -1 or 0xFFFF) that fill up a slice, and numbers inside a block (value -0.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.blocks import (
    B_CHOICES,
    SLICE_CHOICES,
    block_bounds,
    find_blocks,
    is_negative_zero,
    sizes,
    slots_of_nonzeros,
    widest_group,
)
from sparserl.layouts.codec import ColumnReader, bases, encode, index_params, refuse_columns, scatter
from sparserl.layouts.layout import Entry, div_up, finish, fold, int32, ints, refuse_slots, scalars, starts
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param


class Blockslices:
    """Block rows in order, each slice as wide as its longest."""

    name: ClassVar[str] = "blockslices"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "b": B_CHOICES,
        "c": SLICE_CHOICES,
        "order": ("block", "row"),
    }
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("block_rows", "block_columns", "slices"),
            ints("slice_start", "slices + 1, in blocks"),
            *index_params(line, "slices, in block columns", "blocks, in block columns"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        b, c = line.number("b"), line.number("c")
        reason = refuse_columns(line, div_up(pattern.columns, b), lambda: widest_group(pattern, b, b * c))
        if reason:
            return reason
        blocks, padded = sizes(pattern, b)
        return refuse_slots(self.name, padded.get(c, blocks) * b * b, pattern.nonzeros)

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        b, c = line.number("b"), line.number("c")
        grid = find_blocks(pattern, b)
        lengths = np.diff(grid.block_start)
        slice_start = _slice_start(lengths, c)
        row = np.arange(len(lengths))
        i = np.repeat((row % c).astype(np.int32), lengths)
        # Where the first of all blocks would stand, counted back from each row's. Sums may wrap: the result is exact.
        origin = slice_start[row // c] - grid.block_start[:-1].astype(np.int64) * c
        step = np.arange(len(i), dtype=np.int32) * np.int32(c) + np.repeat(int32(origin), lengths)
        inside = np.arange(b * b, dtype=np.int32)
        if line.get("order") == "block":
            slot = (step * np.int32(b * b) + i)[:, None] + inside * np.int32(c)
        else:
            slot = (step * np.int32(b * b) + i * np.int32(b))[:, None] + (inside % b * (c * b) + inside // b)
        slot_of = slots_of_nonzeros(grid.nonzero_at.ravel(), slot.ravel(), pattern.nonzeros)
        arrays = {"slice_start": int32(slice_start)}
        base = None
        if line.index == "int16":
            arrays["col_base"] = bases(block_bounds(pattern, b, b * c))
            base = arrays["col_base"][np.arange(len(lengths)) // c]
        stored = encode(grid.block_cols, line.index, base, lengths)
        arrays["cols"] = scatter(stored, int(slice_start[-1]), step + i)
        own = {
            "block_rows": len(lengths),
            "block_columns": div_up(pattern.columns, b),
            "slices": len(slice_start) - 1,
        }
        return finish(pattern, line, own, arrays, slots=int(slice_start[-1]) * b * b, slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader, values = ColumnReader(packed), vals.tolist()
        b, c = packed.layout.number("b"), packed.layout.number("c")
        by_block = packed.layout.get("order") == "block"
        slice_start = packed.arrays["slice_start"].tolist()
        for s in range(packed.scalars["slices"]):
            for i in range(c):
                for step in range(slice_start[s], slice_start[s + 1], c):
                    block_column = reader.column(step + i, s)
                    if block_column < 0:
                        continue
                    for u in range(b):
                        for v in range(b):
                            inside = (u * b + v) * c + i if by_block else v * (c * b) + i * b + u
                            slot = step * b * b + inside
                            if not is_negative_zero(values[slot]):
                                yield (s * c + i) * b + u, block_column * b + v, slot


def _slice_start(lengths: np.ndarray, c: int) -> np.ndarray:
    """Where slices of c block rows with these many blocks begin, in blocks."""
    return starts(fold(np.maximum, lengths, c).astype(np.int64) * c)
