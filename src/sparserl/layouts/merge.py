"""merge: merge-path tiles, each with the same number of row ends + entries, over plain CSR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import ColumnReader, encode, index_params, refuse_columns
from sparserl.layouts.layout import SLOT_LIMIT, Entry, choices, div_up, finish, int32, ints, scalars
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param


class Merge:
    """Equal tiles of row ends and entries; entries in CSR order, no padding."""

    name: ClassVar[str] = "merge"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"items": choices(64, 128, 256, 512, 1024, 2048, 4096)}
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("tiles"),
            ints("row_start", "rows + 1"),
            ints("tile_row", "tiles + 1"),
            ints("tile_entry", "tiles + 1"),
            *index_params(line, "", "nonzeros"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        items = pattern.rows + pattern.nonzeros
        if items >= SLOT_LIMIT:
            return f"Layout 'merge' counts rows + nonzeros in int, so the limit is {SLOT_LIMIT - 1}. Got {items}."
        return refuse_columns(line, pattern.columns)

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        items = line.number("items")
        total = pattern.rows + pattern.nonzeros
        tiles = div_up(total, items)
        # In the merged list the end of row i stands behind all entries up to row_start[i + 1] and i earlier row ends.
        row_end_at = pattern.row_start[1:] + np.arange(pattern.rows, dtype=np.int32)
        border = np.minimum(np.arange(tiles + 1, dtype=np.int64) * items, total).astype(np.int32)
        tile_row = int32(np.searchsorted(row_end_at, border))
        arrays = {
            "row_start": pattern.row_start,
            "tile_row": tile_row,
            "tile_entry": border - tile_row,
            "cols": encode(pattern.cols, line.index),
        }
        return finish(pattern, line, {"tiles": tiles}, arrays)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        row_start = packed.arrays["row_start"].tolist()
        tile_row, tile_entry = packed.arrays["tile_row"].tolist(), packed.arrays["tile_entry"].tolist()
        for tile in range(packed.scalars["tiles"]):
            slot = tile_entry[tile]
            for row in range(tile_row[tile], tile_row[tile + 1]):
                while slot < row_start[row + 1]:
                    yield row, reader.column(slot), slot
                    slot += 1
            while slot < tile_entry[tile + 1]:  # of the row that goes on in the next tile
                yield tile_row[tile + 1], reader.column(slot), slot
                slot += 1
