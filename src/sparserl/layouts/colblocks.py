"""colblocks: columns in blocks, so that a block's part of x fits in shared memory or stays in the cache.

Each block lists the pieces of rows that lie in it. A row with entries in several blocks has several pieces, a row
without entries has none. Columns are stored in 16 bits relative to their block, so there is no 'col_base'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import scipy.sparse

from sparserl.layouts.layout import Entry, choices, div_up, finish, int32, ints, scalars, starts
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

MOST_BLOCKS = 4096


class Colblocks:
    """Column blocks one after another, by rows inside each, no padding."""

    name: ClassVar[str] = "colblocks"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "width": choices(1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768, 49152, 65535)
    }
    codecs: ClassVar[tuple[str, ...]] = ("int16",)

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("blocks", "entries"),
            ints("block_start", "blocks + 1, in entries"),
            ints("entry_row", "entries"),
            ints("entry_start", "entries + 1, in slots"),
            Param("cols", "const index_t*", "nonzeros, relative to the block"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        blocks = div_up(pattern.columns, line.number("width"))
        if blocks > MOST_BLOCKS:
            return f"Layout 'colblocks' holds at most {MOST_BLOCKS} blocks. Got {blocks}; choose a larger 'width'."
        return None

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        width = line.number("width")
        blocks = div_up(pattern.columns, width)
        block_of = pattern.cols // np.int32(width)
        first = np.ones(pattern.nonzeros, dtype=bool)
        np.not_equal(block_of[1:], block_of[:-1], out=first[1:])
        first[pattern.row_start[:-1][pattern.row_lengths > 0]] = True
        piece_at = int32(np.flatnonzero(first))  # the first nonzero of each piece, in CSR order
        lengths = np.diff(piece_at, append=np.int32(pattern.nonzeros))
        pieces_before = np.zeros(pattern.nonzeros + 1, dtype=np.int32)
        np.cumsum(first, out=pieces_before[1:])
        # Rows of pieces to columns of pieces: a counting sort that keeps rows in order inside each block.
        numbers = np.arange(len(piece_at), dtype=np.int32)
        by_row = scipy.sparse.csr_array(
            (numbers, block_of[piece_at], pieces_before[pattern.row_start]), shape=(pattern.rows, blocks)
        )
        by_block = by_row.tocsc()
        order = by_block.data
        entry_start = int32(starts(lengths[order]))
        moved = np.empty(len(order), dtype=np.int32)
        moved[order] = entry_start[:-1]
        moved -= piece_at
        slot_of = np.arange(pattern.nonzeros, dtype=np.int32)
        slot_of += np.repeat(moved, lengths)
        cols = np.empty(pattern.nonzeros, dtype=np.uint16)
        cols[slot_of] = pattern.cols - block_of * np.int32(width)
        arrays = {
            "block_start": int32(by_block.indptr),
            "entry_row": int32(by_block.indices),
            "entry_start": entry_start,
            "cols": cols,
        }
        own = {"blocks": blocks, "entries": len(order)}
        return finish(pattern, line, own, arrays, slots=pattern.nonzeros, slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        width, array = packed.layout.number("width"), packed.arrays
        block_start, entry_row = array["block_start"].tolist(), array["entry_row"].tolist()
        entry_start, cols = array["entry_start"].tolist(), array["cols"].tolist()
        for block in range(packed.scalars["blocks"]):
            for entry in range(block_start[block], block_start[block + 1]):
                for slot in range(entry_start[entry], entry_start[entry + 1]):
                    yield entry_row[entry], block * width + cols[slot], slot
