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
    Bounds,
    ColumnReader,
    bases,
    encode,
    fold_bounds,
    index_params,
    refuse_columns,
    run_bounds,
    widest,
)
from sparserl.layouts.layout import Entry, choices, div_up, finish, halve, int32, ints, refuse_slots, scalars
from sparserl.layouts.memo import remembered
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

B_CHOICES = choices(2, 3, 4, 6, 8)
SLICE_CHOICES = choices(1, 2, 4, 8, 16, 32, 64)


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


def count_blocks(pattern: Pattern, b: int) -> tuple[int, np.ndarray | None]:
    """The number of blocks, and how many each block row has.

    Where the former must be past the limit on padding it is only a lower bound, and the latter None: that saves a sort.
    """
    block_rows = div_up(pattern.rows, b)
    if not pattern.nonzeros:
        return 0, np.zeros(block_rows, dtype=np.int32)
    block_col = pattern.cols // np.int32(b)
    first = np.ones(pattern.nonzeros, dtype=bool)  # the first of its row in its block
    np.not_equal(block_col[1:], block_col[:-1], out=first[1:])
    first[pattern.row_start[:-1][pattern.row_lengths > 0]] = True
    at_least = div_up(int(np.count_nonzero(first)), b)
    if refuse_slots("", at_least * b * b, pattern.nonzeros):
        return at_least, None
    before = np.zeros(pattern.nonzeros + 1, dtype=np.int32)
    np.cumsum(first, out=before[1:])
    # Block rows are contiguous in CSR, so merging b rows into one is only a shorter list of starts.
    start = before[np.append(pattern.row_start[:-1:b], pattern.nonzeros)]
    ones = np.ones(int(start[-1]), dtype=np.int8)
    shape = block_rows, div_up(pattern.columns, b)
    merged = scipy.sparse.csr_array((ones, block_col[first], start), shape=shape)
    merged.sum_duplicates()
    return int(merged.indptr[-1]), np.diff(merged.indptr).astype(np.int32)


def measure_blocks(pattern: Pattern, b: int) -> tuple[int, dict[int, int]]:
    """The number of blocks, and with padding for every c of blockslices (nothing if past the limit anyway)."""
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
    low, high = fold_bounds(run_bounds(pattern.cols, pattern.row_start), rows)
    return low // b, high // b


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
        reason = refuse_columns(line, div_up(pattern.columns, b), lambda: widest(block_bounds(pattern, b, b)))
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
