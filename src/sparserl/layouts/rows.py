"""rows: plain CSR. Not covered here: rows without entries left out (see nonempty)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import ColumnReader, bases, encode, index_params, refuse_columns, run_bounds, widest_row
from sparserl.layouts.layout import Entry, finish, ints
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param


class Rows:
    """Rows in order, entries in CSR order, no padding."""

    name: ClassVar[str] = "rows"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (ints("row_start", "rows + 1"), *index_params(line, "rows", "nonzeros"))

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        return refuse_columns(line, pattern.columns, lambda: widest_row(pattern))

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        arrays = {"row_start": pattern.row_start}
        base = None
        if line.index == "int16":
            base = arrays["col_base"] = bases(run_bounds(pattern.cols, pattern.row_start))
        arrays["cols"] = encode(pattern.cols, line.index, base, pattern.row_lengths)
        return finish(pattern, line, {}, arrays)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        row_start = packed.arrays["row_start"].tolist()
        for row in range(packed.scalars["rows"]):
            for slot in range(row_start[row], row_start[row + 1]):
                yield row, reader.column(slot, row), slot
