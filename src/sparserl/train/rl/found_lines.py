"""Layout lines that no recipe has and that a run has found: where they are admitted, they may be written.

What a matrix admits is worked out for the recipes' lines (`admitted`). Of a line in the archive with other numbers, a
matrix is known to admit it where it admits a recipe's line that differs in nothing but numbers that can't be the reason
of a refusal: how many entries a lane of `bins` has, and how long rows are cut, if not into more pieces. Not covered:
other numbers, such as how far rows are sorted; what admits them is not known without the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache

from sparserl.errors import LayoutError, ProgramError
from sparserl.layouts import parse_line
from sparserl.program import parse
from sparserl.records import LayoutLine
from sparserl.train.rl.admitted import lines_of
from sparserl.train.rl.explore import Elites
from sparserl.train.rl.nouns import Prompt

ANY: Mapping[str, tuple[str, ...]] = {"bins": ("per",)}
"""numbers that nothing depends on"""
AT_LEAST: Mapping[str, tuple[str, ...]] = {"bins": ("long", "segment"), "split": ("segment",)}
"""numbers that a larger one may stand for: there are fewer pieces"""


class FoundLines:
    """What a prompt admits, with what the archive had found when it was last looked through."""

    def __init__(self, admitted: Callable[[Prompt], Sequence[str]]) -> None:
        self.admitted = admitted
        self.found: dict[str, tuple[str, ...]] = {}
        """by operation: what is admitted doesn't depend on more of a problem"""

    def look_through(self, elites: Elites) -> None:
        """Take the lines of the archive that no recipe of their problem has."""
        found: dict[str, set[str]] = {}
        for each in (*elites.cells.values(), *elites.pairs.values()):
            line, problem = layout_of(each.text), each.prompt.problem
            if line and line not in lines_of(problem):
                found.setdefault(problem.op, set()).add(line)
        self.found = {op: tuple(sorted(lines)) for op, lines in found.items()}

    def __call__(self, prompt: Prompt) -> Sequence[str]:
        known, found = self.admitted(prompt), self.found.get(prompt.problem.op)
        return widened(tuple(known), found) if found else known


@lru_cache(maxsize=1024)
def widened(known: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    """`known`, and those of `found` that a matrix which admits `known` is known to admit."""
    bases: dict[LayoutLine, list[LayoutLine]] = {}
    for line in map(_parsed, known):
        bases.setdefault(_base(line), []).append(line)
    new = [text for text in found if text not in known and _covered(_parsed(text), bases)]
    return (*known, *new)


def _covered(line: LayoutLine, bases: Mapping[LayoutLine, Iterable[LayoutLine]]) -> bool:
    keys = AT_LEAST.get(line.name, ())
    return any(all(line.number(key) >= like.number(key) for key in keys) for like in bases.get(_base(line), ()))


def _base(line: LayoutLine) -> LayoutLine:
    """The line without the numbers that may differ."""
    free = {*ANY.get(line.name, ()), *AT_LEAST.get(line.name, ())}
    return LayoutLine(line.name, tuple(pair for pair in line.params if pair[0] not in free), line.index)


@cache
def _parsed(text: str) -> LayoutLine:
    return parse_line(text)


@lru_cache(maxsize=1 << 16)
def layout_of(text: str) -> str:
    """The layout line of a program; '' where it can't be read."""
    try:
        return str(parse(text).layout)
    except (ProgramError, LayoutError):
        return ""
