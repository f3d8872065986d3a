"""blocks: BSR, dense b × b blocks, and the search for blocks that blockslices shares.

What is not a nonzero inside a block is padding: its value is -0.0, the only mark it has. A kernel that multiplies it by
x lets NaN and Inf of x into rows that have no business with them, and at the last columns reads past the end of x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse

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
    row_start = np.full(shape[0] * b + 1, pattern.nonzeros, dtype=np.int32)
    row_start[: pattern.rows + 1] = pattern.row_start
    number = np.arange(1, pattern.nonzeros + 1, dtype=np.int32)
    whole = scipy.sparse.csr_array((number, pattern.cols, row_start), shape=(shape[0] * b, shape[1] * b))
    blocks = whole.tobsr(blocksize=(b, b))
    blocks.sort_indices()
    return BlockGrid(int32(blocks.indptr), int32(blocks.indices), blocks.data)


def _block_parts(pattern: Pattern, b: int) -> Iterator[tuple[int, int]]:
    """Ranges of block rows with about PART nonzeros each."""
    block_rows = div_up(pattern.rows, b)
    starts_at = pattern.row_start[:-1:b]
    border = np.searchsorted(starts_at, np.arange(PART, pattern.nonzeros, PART))
    border = np.unique(np.concatenate([[0], border, [block_rows]]))
    yield from zip(border[:-1].tolist(), border[1:].tolist(), strict=True)


def _blocks_of_rows(pattern: Pattern, b: int, first: int, last: int) -> np.ndarray:
    """How many blocks each of these block rows has."""
    start = pattern.row_start[first * b : min(last * b, pattern.rows) + 1]
    block_col = pattern.cols[start[0] : start[-1]] // np.int32(b)
    new = np.ones(len(block_col), dtype=bool)  # the first of its row in its block
    np.not_equal(block_col[1:], block_col[:-1], out=new[1:])
    rows = np.flatnonzero(start[1:] > start[:-1])
    new[start[rows] - start[0]] = True
    at = np.flatnonzero(new)
    border = np.append(start[:-1:b], start[-1]) - start[0]
    across = div_up(pattern.columns, b)
    block_row = np.arange(last - first) * across
    if (last - first) * across < 2**31:
        block_row = int32(block_row)  # sorts twice as fast
    key = np.repeat(block_row, np.diff(np.searchsorted(at, border)))
    key += block_col[at]
    key.sort()
    distinct = np.ones(len(key), dtype=bool)
    np.not_equal(key[1:], key[:-1], out=distinct[1:])
    return np.diff(np.searchsorted(key[distinct], np.append(block_row, np.iinfo(block_row.dtype).max)))


def count_blocks(pattern: Pattern, b: int) -> tuple[int, np.ndarray | None]:
    """The number of blocks, and how many each block row has.

    Where the former must be past the limit on padding it is only a lower bound, and the latter None: counting stops
    as soon as that is certain, because every nonzero that is not looked at yet needs its share of a block.
    """
    found, lengths = 0, [np.zeros(0, dtype=np.int64)]
    for first, last in _block_parts(pattern, b) if pattern.nonzeros else ():
        lengths.append(_blocks_of_rows(pattern, b, first, last))
        found += int(lengths[-1].sum())
        rest = pattern.nonzeros - int(pattern.row_start[min(last * b, pattern.rows)])
        at_least = found + div_up(rest, b * b)
        if refuse_slots("", at_least * b * b, pattern.nonzeros):
            return at_least, None
    if not pattern.nonzeros:
        return 0, np.zeros(div_up(pattern.rows, b), dtype=np.int64)
    return found, np.concatenate(lengths)


def measure_blocks(pattern: Pattern, b: int) -> tuple[int, dict[int, int]]:
    """The number of blocks, and with padding for every c of blockslices (nothing if past the limit anyway)."""
    for smaller in (size for size in map(int, B_CHOICES) if size < b and b % size == 0):
        # a block holds whole smaller ones, so it pads no less than they do
        slots = sizes(pattern, smaller)[0] * smaller * smaller
        if refuse_slots("", slots, pattern.nonzeros):
            return div_up(slots, b * b), {}
    blocks, lengths = count_blocks(pattern, b)
    if lengths is None:
        return blocks, {}
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
        flat = number.ravel()
        slots = np.flatnonzero(flat)
        slot_of = np.empty(pattern.nonzeros, dtype=np.int32)
        slot_of[flat[slots] - 1] = slots
        arrays = {"block_start": grid.block_start}
        base = None
        if line.index == "int16":
            base = arrays["col_base"] = bases(block_bounds(pattern, b, b))
        arrays["cols"] = encode(grid.block_cols, line.index, base, np.diff(grid.block_start))
        own = {"block_rows": div_up(pattern.rows, b), "block_columns": div_up(pattern.columns, b)}
        return finish(pattern, line, own, arrays, slots=len(flat), slot_of=slot_of)

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
