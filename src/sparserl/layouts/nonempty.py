"""nonempty: CSR over the rows that have entries (DCSR), and a list of those that have none, for the kernel to zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import ColumnReader, encode, index_params, refuse_columns, widest_row
from sparserl.layouts.layout import Entry, finish, int32, ints, scalars
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param


class Nonempty:
    """Filled rows in order, entries in CSR order, no padding."""

    name: ClassVar[str] = "nonempty"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (
            *scalars("filled", "empty"),
            ints("row_of", "filled"),
            ints("empty_rows", "empty"),
            ints("row_start", "filled + 1"),
            *index_params(line, "filled", "nonzeros"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        return refuse_columns(line, pattern.columns, lambda: widest_row(pattern))

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        filled = pattern.row_lengths > 0
        row_of = int32(np.flatnonzero(filled))
        arrays = {
            "row_of": row_of,
            "empty_rows": int32(np.flatnonzero(~filled)),
            "row_start": int32(np.append(pattern.row_start[row_of], pattern.nonzeros)),
        }
        base = None
        if line.index == "int16":
            base = arrays["col_base"] = pattern.cols[arrays["row_start"][:-1]]
        arrays["cols"] = encode(pattern.cols, line.index, base, pattern.row_lengths[row_of])
        own = {"filled": len(row_of), "empty": pattern.rows - len(row_of)}
        return finish(pattern, line, own, arrays)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        row_of, row_start = packed.arrays["row_of"].tolist(), packed.arrays["row_start"].tolist()
        for place in range(packed.scalars["filled"]):
            for slot in range(row_start[place], row_start[place + 1]):
                yield row_of[place], reader.column(slot, place), slot
