"""The layout line: text to LayoutLine, and the checks. `str(line)` prints it back.

Everything is written out, nothing has a default: a line says all there is to know of how a matrix is packed.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparserl.errors import LayoutError
from sparserl.layouts.layout import Layout
from sparserl.layouts.registry import LAYOUTS
from sparserl.records import LayoutLine


def parse_line(text: str) -> LayoutLine:
    """Reads 'slices c=32 sigma=1024 group=1 index=int16'. Raises LayoutError that names the valid choices."""
    name, *words = text.split() or [""]
    pairs = []
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise LayoutError(f"A parameter of a layout line must be written KEY=VALUE. Got {word!r} in {text!r}.")
        pairs.append((key, value))
    layout = _layout(name)
    if not pairs or pairs[-1][0] != "index":
        raise LayoutError(
            f"The last parameter of layout '{name}' must be 'index', one of {_listed(layout.codecs)}. Got {text!r}."
        )
    line = LayoutLine(name, tuple(pairs[:-1]), pairs[-1][1])
    check_line(line)
    return line


def check_line(line: LayoutLine) -> Layout:
    """The layout that a line names. Raises LayoutError unless all parameters are there, in order, with known values."""
    layout = _layout(line.name)
    keys = [key for key, _ in line.params]
    wanted = list(layout.choices)
    for key in keys:
        if key not in layout.choices:
            raise LayoutError(
                f"Layout '{line.name}' has no parameter {key!r}. Its parameters are {_listed((*wanted, 'index'))}."
            )
    missing = [key for key in wanted if key not in keys]
    if missing:
        key = missing[0]
        raise LayoutError(
            f"Layout '{line.name}' needs the parameter '{key}', one of {_listed(layout.choices[key])}. Got '{line}'."
        )
    if keys != wanted:
        raise LayoutError(
            f"The parameters of layout '{line.name}' must be {_listed((*wanted, 'index'))}, once each and in this "
            f"order. Got '{line}'."
        )
    for key, value in line.params:
        if value not in layout.choices[key]:
            raise LayoutError(
                f"The '{key}' of layout '{line.name}' must be one of {_listed(layout.choices[key])}. Got {value!r}."
            )
    if line.index not in layout.codecs:
        raise LayoutError(
            f"The 'index' of layout '{line.name}' must be one of {_listed(layout.codecs)}. Got {line.index!r}."
        )
    return layout


def _layout(name: str) -> Layout:
    if name not in LAYOUTS:
        raise LayoutError(f"A layout must be one of {_listed(LAYOUTS)}. Got {name!r}.")
    return LAYOUTS[name]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
