"""slices and ell: rows in slices of c, column by column, so that neighbouring threads read neighbouring slots.

slices is SELL-C-sigma: every slice is as wide as its longest row, rows may be sorted by length inside windows of sigma.
ell gives all slices one width. In both, `group` consecutive entries of a row lie side by side, for vector loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparserl.layouts.codec import (
    REACH,
    Bounds,
    ColumnReader,
    bases,
    encode,
    fold_bounds,
    halve_bounds,
    index_params,
    refuse_columns,
    row_bounds,
    scatter,
    widest,
    widest_row,
)
from sparserl.layouts.layout import (
    Entry,
    choices,
    div_up,
    finish,
    fold,
    halve,
    int32,
    ints,
    offset_in_run,
    refuse_slots,
    round_up,
    scalars,
    starts,
)
from sparserl.layouts.lengths import Lengths, row_lengths
from sparserl.layouts.memo import remembered
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

C_CHOICES = choices(1, 2, 4, 8, 16, 32, 64, 128, 256)
GROUP_CHOICES = choices(1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Plan:
    """Where rows go, before any nonzero is looked at."""

    order: np.ndarray | None
    """the row at each place; None: row r is at place r"""
    place: np.ndarray
    """the place of each row"""
    slice_start: np.ndarray
    """int64, in slots"""


def sorted_order(lengths: np.ndarray, sigma: int) -> np.ndarray:
    """Rows, longest first and stable, inside windows of sigma rows."""
    rows = len(lengths)
    longest = int(lengths.max(initial=0))
    window = min(sigma, rows)
    windows = div_up(rows, window) if window else 0
    # NumPy's stable sort of 16-bit keys is a radix sort: several times faster than its merge sort of int32.
    key = np.full(windows * window, longest + 1, dtype=np.uint16 if longest < 65535 else np.int64)
    key[:rows] = longest - lengths
    order = np.argsort(key.reshape(windows, window), axis=1, kind="stable")
    order += np.arange(windows)[:, None] * window
    return order.ravel()[:rows]  # what fills up the last window sorts behind its rows


def sorted_lengths(lengths: np.ndarray, sigma: int) -> np.ndarray:
    """What `sorted_order` would bring the lengths to, without the order, which costs ten times as much."""
    rows = len(lengths)
    window = min(sigma, rows)
    if window < 2:
        return lengths
    longest = int(lengths.max())
    # Descending is ascending in what a row lacks; 16 bits sort several times faster than 32.
    lacks = np.full(div_up(rows, window) * window, longest, dtype=np.uint16 if longest < 65536 else np.int32)
    np.subtract(longest, lengths, out=lacks[:rows], casting="unsafe")
    lacks.reshape(-1, window).sort(axis=1)
    np.subtract(longest, lacks, out=lacks, casting="unsafe")
    return lacks[:rows]


def padded_slots(lengths: np.ndarray, slice_rows: Iterable[int]) -> dict[tuple[int, int], int]:
    """Slots by c and group of rows in this order. c must double from choice to choice, from 1 on."""
    slots, width = {}, lengths
    for c in slice_rows:
        width = halve(np.maximum, width) if c > 1 else width
        for group, padded in Lengths.of(width).padded(map(int, GROUP_CHOICES)).items():
            slots[c, group] = padded * c
    return slots


def slots_by_sigma(pattern: Pattern, sigma: int) -> dict[tuple[int, int], int]:
    """Slots by c and group: one sort serves them all."""
    return remembered(
        pattern,
        ("slices", sigma),
        lambda: padded_slots(sorted_lengths(pattern.row_lengths, sigma), map(int, C_CHOICES)),
    )


def spans_by_sigma(pattern: Pattern, sigma: int) -> dict[int, int]:
    """The most columns that a slice spans, by c; a lower bound where it is past 16 bits anyway."""
    row = widest_row(pattern)
    if row >= REACH:
        return {int(c): row for c in C_CHOICES}

    def measure() -> dict[int, int]:
        bounds, spans = row_bounds(pattern), {}
        if sigma > 1:
            order = sorted_order(pattern.row_lengths, sigma)
            bounds = bounds[0][order], bounds[1][order]
        for c in map(int, C_CHOICES):
            bounds = halve_bounds(bounds) if c > 1 else bounds
            spans[c] = widest(bounds)
        return spans

    return remembered(pattern, ("slice spans", sigma), measure)


def plan_slices(pattern: Pattern, c: int, sigma: int, group: int) -> Plan:
    lengths, rows = pattern.row_lengths, pattern.rows
    order = sorted_order(lengths, sigma) if sigma > 1 else None
    place = np.arange(rows)
    if order is not None:
        place[order] = np.arange(rows)
        lengths = lengths[order]
    width = fold(np.maximum, lengths, c).astype(np.int64)
    return Plan(order, place, starts(-(-width // group) * group * c))


def plan_ell(pattern: Pattern, c: int, width: int) -> Plan:
    slices = div_up(pattern.rows, c)
    return Plan(None, np.arange(pattern.rows), np.arange(slices + 1) * (c * width))


def slot_of_entries(pattern: Pattern, plan: Plan, c: int, group: int) -> np.ndarray:
    """The slot of every nonzero, int32. Sums may wrap on the way: the result is below 2^31, so it is exact."""
    first = plan.slice_start[plan.place // c] + plan.place % c * group
    if group == 1:
        slot = np.arange(pattern.nonzeros, dtype=np.int32)
        slot *= np.int32(c)
        slot += np.repeat((first - pattern.row_start[:-1].astype(np.int64) * c).astype(np.int32), pattern.row_lengths)
        return slot
    k = offset_in_run(pattern.row_start, pattern.row_lengths)
    slot = np.repeat(first.astype(np.int32), pattern.row_lengths)
    slot += k & np.int32(group - 1)
    k >>= np.int32(group.bit_length() - 1)
    k *= np.int32(c * group)
    slot += k
    return slot


def slice_bounds(pattern: Pattern, plan: Plan, c: int) -> Bounds:
    low, high = row_bounds(pattern)
    return fold_bounds((low, high) if plan.order is None else (low[plan.order], high[plan.order]), c)


def pack_columns(pattern: Pattern, line: LayoutLine, plan: Plan, c: int, slot_of: np.ndarray) -> dict[str, np.ndarray]:
    """'col_base' where the codec has one, and 'cols'."""
    arrays = {}
    base = None
    if line.index == "int16":
        arrays["col_base"] = bases(slice_bounds(pattern, plan, c))
        base = arrays["col_base"][plan.place // c]
    stored = encode(pattern.cols, line.index, base, pattern.row_lengths)
    arrays["cols"] = scatter(stored, int(plan.slice_start[-1]), slot_of)
    return arrays


def slice_entries(
    reader: ColumnReader, rows: list[int], s: int, bounds: tuple[int, int], group: int
) -> Iterator[Entry]:
    """The entries of slice s, which holds these rows (-1: none) in slots bounds[0]..bounds[1]."""
    c = len(rows)
    start, width = bounds[0], (bounds[1] - bounds[0]) // c
    for i, row in enumerate(rows):
        if row < 0:
            continue
        for k in range(width):
            slot = start + (k // group) * c * group + i * group + k % group
            column = reader.column(slot, s)
            if column >= 0:
                yield row, column, slot


def listed_entries(packed: Packed) -> Iterator[Entry]:
    """The entries of all slices, whose rows `row_of` names."""
    reader = ColumnReader(packed)
    c, group = packed.layout.number("c"), packed.layout.number("group")
    start, rows = packed.arrays["slice_start"].tolist(), packed.arrays["row_of"].tolist()
    for s in range(packed.scalars["slices"]):
        yield from slice_entries(reader, rows[s * c : s * c + c], s, (start[s], start[s + 1]), group)


class Slices:
    """SELL-C-sigma."""

    name: ClassVar[str] = "slices"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "c": C_CHOICES,
        "sigma": choices(1, 32, 64, 128, 256, 512, 1024, 4096, 16384, 1048576),
        "group": GROUP_CHOICES,
    }
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        row_of = (ints("row_of", "slices * c"),) if line.number("sigma") > 1 else ()
        return (
            *scalars("slices"),
            ints("slice_start", "slices + 1, in slots"),
            *row_of,
            *index_params(line, "slices", "slots"),
        )

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        c, sigma = line.number("c"), line.number("sigma")
        slots = slots_by_sigma(pattern, sigma)[c, line.number("group")]
        return refuse_slots(self.name, slots, pattern.nonzeros) or refuse_columns(
            line, pattern.columns, lambda: spans_by_sigma(pattern, sigma)[c]
        )

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        c = line.number("c")
        plan = plan_slices(pattern, c, line.number("sigma"), line.number("group"))
        slices = len(plan.slice_start) - 1
        slot_of = slot_of_entries(pattern, plan, c, line.number("group"))
        arrays = {"slice_start": int32(plan.slice_start)}
        if plan.order is not None:
            arrays["row_of"] = np.full(slices * c, -1, dtype=np.int32)
            arrays["row_of"][: pattern.rows] = plan.order
        arrays |= pack_columns(pattern, line, plan, c, slot_of)
        return finish(pattern, line, {"slices": slices}, arrays, slots=int(plan.slice_start[-1]), slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        if "row_of" in packed.arrays:
            yield from listed_entries(packed)
            return
        reader = ColumnReader(packed)
        c, group = packed.layout.number("c"), packed.layout.number("group")
        start, rows = packed.arrays["slice_start"].tolist(), rows_in_order(packed, c)
        for s in range(packed.scalars["slices"]):
            yield from slice_entries(reader, rows[s * c : s * c + c], s, (start[s], start[s + 1]), group)


ELL_PADDING = 6
"""slots a nonzero that are admitted. Recipes stay below three: what is near that limit is slow, and not refused"""


def ell_width(pattern: Pattern, line: LayoutLine) -> int:
    """Slots of a row: the longest, filled up to whole groups."""
    return round_up(row_lengths(pattern).longest, line.number("group"))


def ell_slots(pattern: Pattern, line: LayoutLine) -> int:
    """Slots of all rows in one width."""
    c = line.number("c")
    return div_up(pattern.rows, c) * c * ell_width(pattern, line)


class Ell:
    """All rows in one width."""

    name: ClassVar[str] = "ell"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"c": C_CHOICES, "group": GROUP_CHOICES}
    codecs: ClassVar[tuple[str, ...]] = ("int32", "abs16", "int16")

    def own_contract(self, line: LayoutLine) -> tuple[Param, ...]:
        return (*scalars("slices", "width"), *index_params(line, "slices", "slices * c * width"))

    def admits(self, pattern: Pattern, line: LayoutLine) -> str | None:
        slots = ell_slots(pattern, line)
        return refuse_slots(self.name, slots, pattern.nonzeros, ELL_PADDING) or refuse_columns(
            line, pattern.columns, lambda: spans_by_sigma(pattern, 1)[line.number("c")]
        )

    def pack(self, pattern: Pattern, line: LayoutLine) -> Packed:
        c, width = line.number("c"), ell_width(pattern, line)
        plan = plan_ell(pattern, c, width)
        slot_of = slot_of_entries(pattern, plan, c, line.number("group"))
        own = {"slices": len(plan.slice_start) - 1, "width": width}
        arrays = pack_columns(pattern, line, plan, c, slot_of)
        return finish(pattern, line, own, arrays, slots=int(plan.slice_start[-1]), slot_of=slot_of)

    def entries(self, packed: Packed, vals: np.ndarray) -> Iterator[Entry]:
        reader = ColumnReader(packed)
        c, group = packed.layout.number("c"), packed.layout.number("group")
        size = c * packed.scalars["width"]
        rows = rows_in_order(packed, c)
        for s in range(packed.scalars["slices"]):
            yield from slice_entries(reader, rows[s * c : s * c + c], s, (s * size, s * size + size), group)


def rows_in_order(packed: Packed, c: int) -> list[int]:
    """The row at every place, -1 past the end, where rows aren't sorted."""
    rows = packed.scalars["rows"]
    return [*range(rows), *[-1] * (packed.scalars["slices"] * c - rows)]
