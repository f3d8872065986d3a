"""blocks: BSR, dense b × b blocks, and the search for blocks that blockslices shares.

What is not a nonzero inside a block is padding: its value is -0.0, the only mark it has. A kernel that multiplies it by
x lets NaN and Inf of x into rows that have no business with them, and at the last columns reads past the end of x.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse
from scipy.sparse import _sparsetools  # what `tobsr` is made of; counting alone is ten times faster than all of it

from sparserl.layouts.codec import (
    REACH,
    Bounds,
    ColumnReader,
    bases,
    encode,
    fold_bounds,
    index_params,
    refuse_columns,
    row_bounds,
    widest,
    widest_row,
)
from sparserl.layouts.layout import Entry, choices, div_up, finish, halve, int32, ints, refuse_slots, scalars
from sparserl.layouts.memo import remembered
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

B_CHOICES = choices(2, 3, 4, 6, 8)
SLICE_CHOICES = choices(1, 2, 4, 8, 16, 32, 64)
PART = 1 << 17
"""nonzeros counted at a time: what a core's own cache holds"""


@dataclass(frozen=True)
class BlockGrid:
    """The blocks of a pattern, by block row and, inside it, by column."""

    block_start: np.ndarray
    """int32, (block rows + 1)"""
    block_cols: np.ndarray
    """int32, (blocks)"""
    nonzero_at: np.ndarray
    """int32, (blocks, b, b): 1 + the number of the nonzero that lies there, 0 where there is none"""


def find_blocks(pattern: Pattern, b: int) -> BlockGrid:
    shape = div_up(pattern.rows, b), div_up(pattern.columns, b)
    if not pattern.nonzeros:
        empty = np.zeros(0, dtype=np.int32)
        return BlockGrid(np.zeros(shape[0] + 1, dtype=np.int32), empty, empty.reshape(0, b, b))
    number = np.arange(1, pattern.nonzeros + 1, dtype=np.int32)
    whole = scipy.sparse.csr_array((number, pattern.cols, _whole_start(pattern, b)), shape=(shape[0] * b, shape[1] * b))
    blocks = whole.tobsr(blocksize=(b, b))
    blocks.sort_indices()
    return BlockGrid(int32(blocks.indptr), int32(blocks.indices), blocks.data)


def slots_of_nonzeros(nonzero_at: np.ndarray, slots: np.ndarray, nonzeros: int) -> np.ndarray:
    """The slot of every nonzero, from the number that each slot has in a BlockGrid."""
    slot_of = np.empty(nonzeros + 1, dtype=np.int32)
    slot_of[nonzero_at] = slots  # all padding goes to place 0, which is cheaper than to leave it out
    return slot_of[1:]


def _whole_start(pattern: Pattern, b: int) -> np.ndarray:
    """Row starts with empty rows added up to whole block rows."""
    row_start = np.full(div_up(pattern.rows, b) * b + 1, pattern.nonzeros, dtype=np.int32)
    row_start[: pattern.rows + 1] = pattern.row_start
    return row_start


def count_blocks(pattern: Pattern, b: int) -> int:
    """The number of blocks."""
    start, columns = _whole_start(pattern, b), div_up(pattern.columns, b) * b
    return int(_sparsetools.csr_count_blocks(len(start) - 1, columns, b, b, start, pattern.cols))


def blocks_by_row(pattern: Pattern, b: int) -> np.ndarray:
    """How many blocks each block row has."""
    start, columns = _whole_start(pattern, b), div_up(pattern.columns, b) * b
    out = np.zeros(div_up(pattern.rows, b), dtype=np.int32)
    # Parts of block rows that a core's own cache holds, because all blocks are written out on the way.
    parts = np.searchsorted(start[:-1:b], np.arange(PART, pattern.nonzeros, PART))
    border = np.unique(np.concatenate([[0], parts, [len(out)]])).tolist()
    for first, last in itertools.pairwise(border):
        own = start[first * b : last * b + 1]
        cols = pattern.cols[own[0] : own[-1]]
        block_start, block_cols = np.zeros(last - first + 1, dtype=np.int32), np.empty(len(cols), dtype=np.int32)
        data, blocks = np.zeros(len(cols), dtype=np.int8), np.zeros(len(cols) * b * b, dtype=np.int8)
        shape = (last - first) * b, columns, b, b
        _sparsetools.csr_tobsr(*shape, own - own[0], cols, data, block_start, block_cols, blocks)
        out[first:last] = np.diff(block_start)
    return out


def measure_blocks(pattern: Pattern, b: int) -> tuple[int, dict[int, int]]:
    """The number of blocks, and with padding for every c of blockslices (nothing if past the limit anyway)."""
    for smaller in (size for size in map(int, B_CHOICES) if size < b and b % size == 0):
        # a block holds whole smaller ones, so it pads no less than they do
        slots = sizes(pattern, smaller)[0] * smaller * smaller
        if refuse_slots("", slots, pattern.nonzeros):
            return div_up(slots, b * b), {}
    blocks = count_blocks(pattern, b)
    if refuse_slots("", blocks * b * b, pattern.nonzeros):
        return blocks, {}
    lengths = blocks_by_row(pattern, b)
    padded = {}
    for c in map(int, SLICE_CHOICES):  # c doubles from choice to choice
        lengths = halve(np.maximum, lengths) if c > 1 else lengths
        padded[c] = int(lengths.sum(dtype=np.int64)) * c
    return blocks, padded


def sizes(pattern: Pattern, b: int) -> tuple[int, dict[int, int]]:
    return remembered(pattern, ("blocks", b), lambda: measure_blocks(pattern, b))


def block_bounds(pattern: Pattern, b: int, rows: int) -> Bounds:
    """Lowest and highest block column of every group of `rows` rows."""
    low, high = fold_bounds(row_bounds(pattern), rows)
    return low // b, high // b


def widest_group(pattern: Pattern, b: int, rows: int) -> int:
    """The most block columns that a group of `rows` rows spans; a lower bound where it is past 16 bits anyway."""
    row = widest_row(pattern) // b
    if row >= REACH:
        return row
    return remembered(pattern, ("block span", b, rows), lambda: widest(block_bounds(pattern, b, rows)))


def is_negative_zero(value: float) -> bool:
    return value == 0.0 and math.copysign(1.0, value) < 0.0


class Blocks:
    """BSR; the last blocks may reach past the edge of the matrix."""

    name: ClassVar[str] = "blocks"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"b": B_CHOICES, "order": ("row", "col")}
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("block_rows", "block_columns"),
            ints("block_start", "block_rows + 1"),
            *index_params(line, "block_rows, in block columns", "blocks, in block columns"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        b = line.number("b")
        reason = refuse_columns(line, div_up(pattern.columns, b), lambda: widest_group(pattern, b, b))
        if reason:
            return reason
        return refuse_slots(self.name, sizes(pattern, b)[0] * b * b, pattern.nonzeros)

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        b, grid = line.number("b"), find_blocks(pattern, line.number("b"))
        number = grid.nonzero_at if line.get("order") == "row" else grid.nonzero_at.transpose(0, 2, 1)
        slots = number.size
        slot_of = slots_of_nonzeros(number.ravel(), np.arange(slots, dtype=np.int32), pattern.nonzeros)
        arrays = {"block_start": grid.block_start}
        base = None
        if line.index == "int16":
            base = arrays["col_base"] = bases(block_bounds(pattern, b, b))
        arrays["cols"] = encode(grid.block_cols, line.index, base, np.diff(grid.block_start))
        own = {"block_rows": div_up(pattern.rows, b), "block_columns": div_up(pattern.columns, b)}
        return finish(pattern, line, own, arrays, slots=slots, slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader, values = ColumnReader(packed), vals.tolist()
        b, by_row = packed.layout.number("b"), packed.layout.get("order") == "row"
        block_start = packed.arrays["block_start"].tolist()
        for block_row in range(packed.scalars["block_rows"]):
            for block in range(block_start[block_row], block_start[block_row + 1]):
                block_column = reader.column(block, block_row)
                for u in range(b):
                    for v in range(b):
                        slot = block * b * b + (u * b + v if by_row else v * b + u)
                        if not is_negative_zero(values[slot]):
                            yield block_row * b + u, block_column * b + v, slot
