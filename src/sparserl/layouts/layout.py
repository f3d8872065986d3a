"""What every layout offers, and the few pieces that all of them share: the leading scalars, limits, the Packed record.

A layout is one row partition. It declares its parameters and the codecs it allows, says what arrays its kernels get,
refuses a matrix with a reason, packs a pattern, and walks the packed arrays entry by entry in plain loops. That walk is
the definition: `truth` and `unpack` are built on it and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol

import numpy as np

from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

HEAD = tuple(Param(name, "int") for name in ("rows", "columns", "nonzeros", "padded"))
"""the scalars that every contract starts with"""

SLOT_LIMIT = 2**31
PIECES_A_ROW = 4095
"""a work item holds the number of pieces of its row in 12 bits"""
PIECES_IN_ALL = 2**19
"""and the first of them in the 19 bits that are left"""

Entry = tuple[int, int, int]
"""(row, column, slot) of one nonzero"""


class Layout(Protocol):
    """One row partition. Lines that reach these methods have been checked by `line.check_line`."""

    name: ClassVar[str]
    choices: ClassVar[Mapping[str, tuple[str, ...]]]
    """the parameters in canonical order, each with all its values"""
    codecs: ClassVar[tuple[str, ...]]

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        """Scalars after HEAD, then arrays; 'vals' is not among them."""

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        """None, or why this pattern is refused. Looks at rows, at most once at every nonzero; never packs."""

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        """The packed structure of a pattern that `admits` let through."""

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        """Every nonzero, read from the packed arrays as a kernel reads them; padding is left out."""


def choices(*values: int | str) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


def scalars(*names: str) -> tuple[Param, ...]:
    return tuple(Param(name, "int") for name in names)


def ints(name: str, length: str) -> Param:
    return Param(name, "const int*", length)


def int32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.int32)


def starts(counts: np.ndarray) -> np.ndarray:
    """Where each of the runs begins, and the end: int64, one longer than `counts`."""
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def div_up(number: int, divisor: int) -> int:
    return -(-number // divisor)


def fold(ufunc: np.ufunc, array: np.ndarray, size: int) -> np.ndarray:
    """Minimum or maximum of every `size` neighbours; the last may be fewer."""
    while size % 2 == 0:
        array, size = halve(ufunc, array), size // 2
    if size == 1:
        return array
    folded = array[::size].copy()
    for k in range(1, size):
        others = array[k::size]
        ufunc(folded[: len(others)], others, out=folded[: len(others)])
    return folded


def halve(ufunc: np.ufunc, array: np.ndarray) -> np.ndarray:
    """The same for pairs; reduceat would be twenty times slower."""
    pairs, half = len(array) // 2, array[::2].copy()
    ufunc(half[:pairs], array[1::2], out=half[:pairs])
    return half


def offset_in_run(start: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2 … for the entries of each run of the canonical CSR: int32, one a nonzero."""
    offset = np.arange(int(start[-1]), dtype=np.int32)
    offset -= np.repeat(int32(start[:-1]), lengths)
    return offset


def refuse_slots(name: str, slots: int, nonzeros: int, times: int = 3, spare: int = 4096) -> str | None:
    """The limit on padding, and on what an int can count."""
    if slots > times * nonzeros + spare:
        return (
            f"Layout '{name}' would need at least {slots} slots for {nonzeros} nonzeros; the limit is "
            f"{times} · nonzeros + {spare} = {times * nonzeros + spare}. Choose a layout that pads less."
        )
    if slots >= SLOT_LIMIT:
        return f"Layout '{name}' would need {slots} slots; kernels count in int, so the limit is {SLOT_LIMIT - 1}."
    return None


def refuse_pieces(name: str, most: int, total: int, way_out: str) -> str | None:
    """The limits on cutting long rows: a work item keeps both numbers in one int."""
    if most > PIECES_A_ROW:
        return f"Layout '{name}' would cut a row into {most} pieces; the limit is {PIECES_A_ROW}. {way_out}"
    if total >= PIECES_IN_ALL:
        return f"Layout '{name}' would cut rows into {total} pieces in all; the limit is {PIECES_IN_ALL - 1}. {way_out}"
    return None


def finish(
    pattern: Pattern,
    line: LayoutLine,
    own: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
    *,
    slots: int | None = None,
    slot_of: np.ndarray | None = None,
    tables: Mapping[str, tuple[int, ...]] | None = None,
) -> Packed:
    """The Packed record, with the scalars of HEAD put in front. Without `slots`, values lie in CSR order."""
    slots = pattern.nonzeros if slots is None else slots
    head = {
        "rows": pattern.rows,
        "columns": pattern.columns,
        "nonzeros": pattern.nonzeros,
        "padded": int(slots > pattern.nonzeros),
    }
    return Packed(
        layout=line,
        shape=(pattern.rows, pattern.columns),
        nonzeros=pattern.nonzeros,
        scalars={**head, **{name: int(value) for name, value in own.items()}},
        arrays=dict(arrays),
        slots=int(slots),
        slot_of=slot_of,
        tables=dict(tables or {}),
    )
