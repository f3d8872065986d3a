"""tiles: every thread holds exactly `steps` entries, so the length of its loop is known at compile time.

A block holds threads / T rows of T lanes; T fits the row's length. Rows too long for a block are cut into pieces, one
block each, which come first. Rows keep their order within a T.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparserl.layouts.bins import THREADS_CHOICES
from sparserl.layouts.codec import (
    REACH,
    Bounds,
    ColumnReader,
    bases,
    encode,
    fold_bounds,
    group_bounds,
    index_params,
    refuse_columns,
    row_bounds,
    run_bounds,
    scatter,
    widest,
    widest_row,
)
from sparserl.layouts.layout import (
    Entry,
    choices,
    div_up,
    finish,
    int32,
    ints,
    offset_in_run,
    refuse_pieces,
    refuse_slots,
    scalars,
)
from sparserl.layouts.lengths import row_lengths
from sparserl.layouts.memo import remembered
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param


@dataclass(frozen=True)
class Runs:
    """Rows and pieces of rows in CSR order, and the block each goes to."""

    start: np.ndarray
    """int64, in nonzeros, one longer than the others"""
    doubled: np.ndarray
    """log2 of the lanes"""
    block: np.ndarray
    lane: np.ndarray
    """first lane in the block"""
    blocks: int


@dataclass(frozen=True)
class Plan:
    """Where rows go, before any nonzero is looked at."""

    runs: Runs
    work: np.ndarray
    """(blocks, 2)"""
    row_of: np.ndarray
    piece_info: np.ndarray


def _cut(pattern: Pattern, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs of at most `capacity` entries: their row and start, and how many each row has."""
    cuts = np.maximum(-(-pattern.row_lengths.astype(np.int64) // capacity), 1)
    row = np.repeat(np.arange(pattern.rows), cuts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    start = pattern.row_start[row].astype(np.int64) + within * capacity
    return row, np.append(start, pattern.nonzeros), cuts


def plan_tiles(pattern: Pattern, steps: int, threads: int) -> Plan:
    row, start, cuts = _cut(pattern, threads * steps)
    most = threads.bit_length() - 1
    doubled = np.searchsorted(steps * 2 ** np.arange(most), np.diff(start)).astype(np.int8)
    piece = cuts[row] > 1
    doubled[piece] = most
    block, lane = np.zeros(len(row), dtype=np.int64), np.zeros(len(row), dtype=np.int64)
    pieces = np.flatnonzero(piece)
    block[pieces] = np.arange(len(pieces))
    work = [np.stack([np.full(len(pieces), threads), np.arange(len(pieces))], axis=1)]
    row_of = [row[pieces]]
    blocks = places = len(pieces)
    for power in range(most, -1, -1):
        members = np.flatnonzero((doubled == power) & ~piece)
        rows_a_block = threads >> power
        added = div_up(len(members), rows_a_block)
        index = np.arange(len(members))
        block[members] = blocks + index // rows_a_block
        lane[members] = index % rows_a_block << power
        work.append(np.stack([np.full(added, 1 << power), places + np.arange(added) * rows_a_block], axis=1))
        filled = np.full(added * rows_a_block, -1)
        filled[: len(members)] = row[members]
        row_of.append(filled)
        blocks += added
        places += added * rows_a_block
    cut = cuts[cuts > 1]
    info = np.repeat((np.cumsum(cut) - cut) << 12 | cut, cut)
    runs = Runs(start, doubled, block, lane, blocks)
    return Plan(runs, int32(np.concatenate(work)), int32(np.concatenate(row_of)), int32(info))


def _bounds(pattern: Pattern, runs: Runs) -> Bounds:
    return group_bounds(run_bounds(pattern.cols, runs.start), runs.block, runs.blocks)


def _powers(values: np.ndarray, steps: int, threads: int) -> np.ndarray:
    """log2 of the lanes that rows of these lengths get; past what a block holds they get all."""
    return np.searchsorted(steps * 2 ** np.arange(threads.bit_length() - 1), values)


def count_blocks(pattern: Pattern, steps: int, threads: int) -> int:
    """How many blocks there are: it follows from the lengths of the rows."""
    found, capacity = row_lengths(pattern), threads * steps
    whole = found.values <= capacity
    rows = np.bincount(_powers(found.values[whole], steps, threads), weights=found.counts[whole])
    blocks = found.pieces(capacity, capacity)[1]
    return blocks + sum(div_up(int(count), threads >> power) for power, count in enumerate(rows))


def widest_piece(pattern: Pattern, capacity: int) -> int:
    """The most columns that a piece of a row that is cut spans."""
    rows = np.flatnonzero(pattern.row_lengths > capacity)
    cuts = -(-pattern.row_lengths[rows] // capacity)
    within = np.arange(int(cuts.sum())) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    first = np.repeat(pattern.row_start[rows].astype(np.int64), cuts) + within * capacity
    last = np.minimum(first + capacity, np.repeat(pattern.row_start[rows + 1].astype(np.int64), cuts)) - 1
    return int((pattern.cols[last] - pattern.cols[first]).max(initial=0))


def widest_block(pattern: Pattern, steps: int, threads: int) -> int:
    """The most columns that a block spans; a lower bound where it is past 16 bits anyway."""
    longest, capacity = row_lengths(pattern).longest, threads * steps
    # a row that is cut may fit where it would not as a whole
    span = widest_piece(pattern, capacity) if longest > capacity else widest_row(pattern)
    if span >= REACH:
        return span
    low, high = row_bounds(pattern)
    most = threads.bit_length() - 1
    lengths = np.arange(min(longest, capacity) + 2)
    power_of = np.where(lengths > capacity, most + 1, _powers(lengths, steps, threads)).astype(np.int8)
    doubled = power_of[np.minimum(pattern.row_lengths, len(lengths) - 1)]
    for power in range(most + 1):
        members = np.flatnonzero(doubled == power)
        span = max(span, widest(fold_bounds((low[members], high[members]), threads >> power)))
        if span >= REACH:
            return span
    return span


class Tiles:
    """Fixed work a thread."""

    name: ClassVar[str] = "tiles"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "steps": choices(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32),
        "threads": THREADS_CHOICES,
        "order": ("step", "lane"),
    }
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("blocks", "pieces"),
            Param("work", "const int2*", "blocks: (lanes a row, first row slot)"),
            ints("row_of", "row slots"),
            ints("piece_info", "pieces"),
            *index_params(line, "blocks", "blocks * threads * steps"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        steps, threads = line.number("steps"), line.number("threads")
        most, total = row_lengths(pattern).pieces(threads * steps, threads * steps)
        reason = refuse_pieces(self.name, most, total, "Choose more 'steps' or 'threads'.")
        if reason:
            return reason
        slots = count_blocks(pattern, steps, threads) * threads * steps
        return refuse_slots(self.name, slots, pattern.nonzeros, 4, 65536) or refuse_columns(
            line,
            pattern.columns,
            lambda: remembered(pattern, ("tiles", steps, threads), lambda: widest_block(pattern, steps, threads)),
        )

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        steps, threads = line.number("steps"), line.number("threads")
        plan = plan_tiles(pattern, steps, threads)
        runs, lengths = plan.runs, np.diff(plan.runs.start)
        slots = runs.blocks * threads * steps
        slot_of = offset_in_run(runs.start, lengths)
        if line.get("order") == "step":
            doubled = np.repeat(runs.doubled, lengths)
            first = runs.block * (threads * steps) + runs.lane
            lane = slot_of & ((np.int32(1) << doubled) - np.int32(1))
            slot_of >>= doubled
            slot_of *= np.int32(threads)
            slot_of += lane
        else:
            first = runs.block * (threads * steps) + runs.lane * steps
        slot_of += np.repeat(first.astype(np.int32), lengths)
        arrays = {"work": plan.work, "row_of": plan.row_of, "piece_info": plan.piece_info}
        base = None
        if line.index == "int16":
            arrays["col_base"] = bases(_bounds(pattern, runs))
            base = arrays["col_base"][runs.block]
        arrays["cols"] = scatter(encode(pattern.cols, line.index, base, lengths), slots, slot_of)
        own = {"blocks": runs.blocks, "pieces": len(plan.piece_info)}
        return finish(pattern, line, own, arrays, slots=slots, slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        steps, threads = packed.layout.number("steps"), packed.layout.number("threads")
        by_step = packed.layout.get("order") == "step"
        work, row_of = packed.arrays["work"].tolist(), packed.arrays["row_of"].tolist()
        for block in range(packed.scalars["blocks"]):
            lanes, first_row = work[block]
            for lane in range(threads):
                row = row_of[first_row + lane // lanes]
                if row < 0:
                    continue
                for step in range(steps):
                    place = step * threads + lane if by_step else lane * steps + step
                    slot = block * threads * steps + place
                    column = reader.column(slot, block)
                    if column >= 0:
                        yield row, column, slot
