"""bins: rows sorted into bins by the number of lanes they deserve; rows past `long` are cut over several blocks.

A kernel finds its work in one table of (row, first, last, info), heaviest first, so one launch serves all lengths.
Entries stay in CSR order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import ColumnReader, encode, index_params, refuse_columns
from sparserl.layouts.layout import Entry, choices, div_up, finish, refuse_pieces, round_up, scalars
from sparserl.layouts.lengths import row_lengths
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

LANES = (32, 16, 8, 4, 2, 1)
THREADS_CHOICES = choices(64, 128, 256, 512, 1024)


class Bins:
    """One-launch row bins with split long rows."""

    name: ClassVar[str] = "bins"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "per": choices(1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
        "long": choices(32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
        "segment": choices(64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        "threads": THREADS_CHOICES,
    }
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("segments", "blocks", *(f"b{lanes}" for lanes in LANES), *(f"d{lanes}" for lanes in LANES)),
            Param("work", "const int4*", "all items: segments, then the bins, each filled up to whole blocks"),
            *index_params(line, "", "nonzeros"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        most, total = row_lengths(pattern).pieces(line.number("long"), line.number("segment"))
        way_out = "Choose a larger 'segment' or 'long'."
        return refuse_pieces(self.name, most, total, way_out) or refuse_columns(line, pattern.columns)

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        threads, lengths = line.number("threads"), pattern.row_lengths
        cut = np.flatnonzero(lengths > line.number("long"))
        parts = [cut_rows(cut, pattern.row_start[cut], lengths[cut], line.number("segment"))]
        segments = block = descriptor = len(parts[0])
        doubled = np.searchsorted(line.number("per") * 2 ** np.arange(5), lengths).astype(np.int8)  # log2 of the lanes
        doubled[lengths > line.number("long")] = -1
        first_block, first_descriptor = {}, {}
        for lanes in LANES:
            rows = np.flatnonzero(doubled == lanes.bit_length() - 1)
            count = round_up(len(rows), threads // lanes)
            part = np.zeros((count, 4), dtype=np.int32)
            part[len(rows) :, 0] = -1
            part[: len(rows), 0] = rows
            part[: len(rows), 1] = pattern.row_start[rows]
            part[: len(rows), 2] = pattern.row_start[rows + 1]
            parts.append(part)
            first_block[f"b{lanes}"], first_descriptor[f"d{lanes}"] = block, descriptor
            block += div_up(count * lanes, threads)
            descriptor += count
        own = {"segments": segments, "blocks": block, **first_block, **first_descriptor}
        cols = encode(pattern.cols, line.index)
        return finish(pattern, line, own, {"work": np.concatenate(parts), "cols": cols})

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        work = packed.arrays["work"].tolist()
        scalar, threads = packed.scalars, packed.layout.number("threads")
        ends = [*(scalar[f"b{lanes}"] for lanes in LANES[1:]), scalar["blocks"]]
        items = list(range(scalar["segments"]))
        for lanes, end in zip(LANES, ends, strict=True):
            blocks = end - scalar[f"b{lanes}"]
            items += range(scalar[f"d{lanes}"], scalar[f"d{lanes}"] + blocks * (threads // lanes))
        for item in items:
            row, first, last, _ = work[item]
            if row >= 0:
                for slot in range(first, last):
                    yield row, reader.column(slot), slot


def cut_rows(rows: np.ndarray, first_slot: np.ndarray, lengths: np.ndarray, segment: int) -> np.ndarray:
    """Work items (row, first slot, last slot, first item of the row << 12 | items) of rows that are cut, row by row."""
    lengths, first_slot = lengths.astype(np.int64), first_slot.astype(np.int64)
    cuts = -(-lengths // segment)
    first_segment = np.cumsum(cuts) - cuts
    within = np.arange(int(cuts.sum())) - np.repeat(first_segment, cuts)
    first = np.repeat(first_slot, cuts) + within * segment
    last = np.minimum(first + segment, np.repeat(first_slot + lengths, cuts))
    info = np.repeat(first_segment << 12 | cuts, cuts)
    return np.stack([np.repeat(rows, cuts), first, last, info], axis=1).astype(np.int32)
