"""Index codecs: how a column becomes the number a kernel reads, and back.

int32 stores the column; abs16 the column in 16 bits; int16 its distance from the lowest column of its group (a row,
slice, chunk, thread block or block row: the layout says which); none stores nothing. 0xFFFF and -1 mark padding, so
16 bits reach 65535 columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparserl.layouts.layout import fold, halve, ints
from sparserl.layouts.memo import remembered
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

INDEX_CTYPES = {"int32": "int", "abs16": "unsigned short", "int16": "unsigned short", "none": "int"}
"""what index_t is, by codec"""
INDEX_DTYPES = {name: np.dtype(np.int32 if ctype == "int" else np.uint16) for name, ctype in INDEX_CTYPES.items()}

REACH = 65535
"""columns that 16 bits can tell apart: 0xFFFF is padding"""

FIRST_ROWS = 65536

EMPTY_LOW = 2**31 - 1

Bounds = tuple[np.ndarray, np.ndarray]
"""lowest and highest column of each group, int32; an empty group has EMPTY_LOW and -1"""


def index_params(line: LayoutLine, groups: str, entries: str) -> tuple[Param, ...]:
    """The 'col_base' (int16 only) and 'cols' parameters of a contract."""
    cols = Param("cols", "const index_t*", entries)
    return (ints("col_base", groups), cols) if line.index == "int16" else (cols,)


def refuse_columns(line: LayoutLine, columns: int, span: Callable[[], int] | None = None) -> str | None:
    """Why the codec can't hold these columns, or None. `span` (see `widest`) is only asked for where it matters."""
    if columns <= REACH or line.index in ("int32", "none"):
        return None
    if line.index == "abs16" or span is None:
        return f"index={line.index} of '{line.name}' needs at most {REACH} columns. Got {columns}; use int32."
    if span() >= REACH:
        return (
            f"index=int16 of '{line.name}' needs groups that span fewer than {REACH} columns. "
            f"Got {span()} or more; use int32."
        )
    return None


def run_bounds(cols: np.ndarray, start: np.ndarray) -> Bounds:
    """Bounds of the runs `start[i]..start[i+1]` of CSR, in which columns ascend."""
    filled = np.flatnonzero(start[1:] > start[:-1])
    low = np.full(len(start) - 1, EMPTY_LOW, dtype=np.int32)
    high = np.full(len(start) - 1, -1, dtype=np.int32)
    low[filled] = cols[start[filled]]
    high[filled] = cols[start[filled + 1] - 1]
    return low, high


def row_bounds(pattern: Pattern) -> Bounds:
    """Bounds of the rows."""
    return remembered(pattern, "row bounds", lambda: run_bounds(pattern.cols, pattern.row_start))


def widest_row(pattern: Pattern) -> int:
    """The most columns that a row spans. What is past 16 bits there is so for every group that holds whole rows."""

    def measure() -> int:
        # one row too wide is enough to know, and where there is one there are usually many
        some = pattern.row_start[: FIRST_ROWS + 1]
        found = widest(run_bounds(pattern.cols, some))
        return found if found >= REACH or pattern.rows <= FIRST_ROWS else widest(row_bounds(pattern))

    return remembered(pattern, "widest row", measure)


def fold_bounds(bounds: Bounds, size: int) -> Bounds:
    """Bounds of groups of `size` neighbours."""
    return fold(np.minimum, bounds[0], size), fold(np.maximum, bounds[1], size)


def halve_bounds(bounds: Bounds) -> Bounds:
    return halve(np.minimum, bounds[0]), halve(np.maximum, bounds[1])


def group_bounds(bounds: Bounds, group: np.ndarray, groups: int) -> Bounds:
    """Bounds of any groups."""
    low, high = np.full(groups, EMPTY_LOW, dtype=np.int32), np.full(groups, -1, dtype=np.int32)
    np.minimum.at(low, group, bounds[0])
    np.maximum.at(high, group, bounds[1])
    return low, high


def widest(bounds: Bounds) -> int:
    """The largest distance between two columns of one group."""
    return int((bounds[1].astype(np.int64) - bounds[0]).max(initial=0))


def bases(bounds: Bounds) -> np.ndarray:
    """'col_base': the lowest column of each group, 0 where it is empty."""
    return np.where(bounds[1] < 0, np.int32(0), bounds[0]).astype(np.int32)


def encode(
    cols: np.ndarray, index: str, base: np.ndarray | None = None, lengths: np.ndarray | None = None
) -> np.ndarray:
    """Stored indices in the order of `cols`; int16 has a lowest column `base` for each of the runs of `lengths`."""
    if base is not None and lengths is not None:
        cols = cols - np.repeat(base, lengths)
    return cols.astype(INDEX_DTYPES[index], copy=False)


def scatter(stored: np.ndarray, slots: int, slot_of: np.ndarray) -> np.ndarray:
    """Stored indices at their slots; every other slot is padding."""
    padding = -1 if stored.dtype == np.int32 else 0xFFFF
    out = np.full(slots, padding, dtype=stored.dtype)
    out[slot_of] = stored
    return out


class ColumnReader:
    """Reads the packed 'cols' one at a time, as a kernel does."""

    def __init__(self, packed: Packed) -> None:
        self._cols: list[int] = packed.arrays["cols"].tolist()
        self._base: list[int] | None = packed.arrays["col_base"].tolist() if "col_base" in packed.arrays else None
        self._padding = -1 if packed.arrays["cols"].dtype == np.int32 else 0xFFFF

    def column(self, slot: int, group: int = 0) -> int:
        """The column at a slot, or -1 for padding."""
        stored = self._cols[slot]
        if stored == self._padding:
            return -1
        return stored if self._base is None else self._base[group] + stored
