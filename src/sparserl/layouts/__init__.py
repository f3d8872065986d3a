"""Layouts: how a pattern is packed for a kernel, and what the kernel is promised. docs/contracts.md is the summary.

A layout line (`parse_line`) names a row partition, its parameters and an index codec. `contract` gives the parameter
list that follows from it, `admits` a reason to refuse a matrix, `pack` the arrays, `place_values` the numbers;
`unpack`, `truth_spmv` and `truth_spmm` are the slow, plain definition that everything else is tested against.
"""

from __future__ import annotations

from sparserl.errors import LayoutError
from sparserl.layouts.codec import INDEX_CTYPES
from sparserl.layouts.layout import HEAD, Layout
from sparserl.layouts.line import check_line, parse_line
from sparserl.layouts.place import padding_value, place_values
from sparserl.layouts.registry import LAYOUTS
from sparserl.layouts.truth import truth_spmm, truth_spmv, unpack
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Param

__all__ = [
    "INDEX_CTYPES",
    "LAYOUTS",
    "Layout",
    "admits",
    "check_line",
    "contract",
    "pack",
    "padding_value",
    "parse_line",
    "place_values",
    "truth_spmm",
    "truth_spmv",
    "unpack",
]


def contract(line: LayoutLine) -> tuple[Param, ...]:
    """The parameters that describe A, in order: scalars, structure arrays, 'vals'."""
    return (*HEAD, *check_line(line).own_contract(line), Param("vals", "const value_t*", "slots"))


def admits(pattern: Pattern, line: LayoutLine) -> str | None:
    """None, or the reason why this layout refuses this pattern."""
    return check_line(line).admits(pattern, line)


def pack(pattern: Pattern, line: LayoutLine) -> Packed:
    """The packed structure. Raises LayoutError where `admits` has a reason."""
    layout = check_line(line)
    reason = layout.admits(pattern, line)
    if reason is not None:
        raise LayoutError(reason)
    return layout.pack(pattern, line)
