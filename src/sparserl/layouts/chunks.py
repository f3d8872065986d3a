"""chunks: COO with rows in order, cut into chunks of equal size. Rows without entries appear nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import Bounds, ColumnReader, encode, index_params, refuse_columns, widest
from sparserl.layouts.layout import Entry, choices, div_up, finish, int32, ints, scalars
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param


class Chunks:
    """Equal chunks of nonzeros in CSR order, no padding."""

    name: ClassVar[str] = "chunks"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"size": choices(32, 64, 128, 256, 512, 1024, 2048, 4096)}
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("chunks"),
            ints("chunk_row", "chunks + 1"),
            ints("row_index", "nonzeros"),
            *index_params(line, "chunks", "nonzeros"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        return refuse_columns(line, pattern.columns, lambda: widest(_bounds(pattern, line.number("size"))))

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        size = line.number("size")
        row_index = pattern.row_index()
        arrays = {"chunk_row": int32(np.append(row_index[::size], pattern.rows)), "row_index": row_index}
        base = lengths = None
        if line.index == "int16":
            base = arrays["col_base"] = _bounds(pattern, size)[0]
            lengths = np.diff(_border(pattern, size), append=pattern.nonzeros)
        arrays["cols"] = encode(pattern.cols, line.index, base, lengths)
        return finish(pattern, line, {"chunks": div_up(pattern.nonzeros, size)}, arrays)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        size, row_index = packed.layout.number("size"), packed.arrays["row_index"].tolist()
        for chunk in range(packed.scalars["chunks"]):
            for slot in range(chunk * size, min(chunk * size + size, packed.nonzeros)):
                yield row_index[slot], reader.column(slot, chunk), slot


def _border(pattern: Pattern, size: int) -> np.ndarray:
    return np.arange(0, pattern.nonzeros, size)


def _bounds(pattern: Pattern, size: int) -> Bounds:
    border = _border(pattern, size)
    if not len(border):
        return pattern.cols, pattern.cols
    return np.minimum.reduceat(pattern.cols, border), np.maximum.reduceat(pattern.cols, border)
