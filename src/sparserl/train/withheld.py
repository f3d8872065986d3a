"""The feature combinations that no training program may have: about 15 % of those that the recipes span.

A combination is read from a program's header alone: layout, index codec, dependent launch, the layout parameters that
shape the body, the form of the grid and how many threads share a row. So a policy that is prompted with a withheld
header has never seen that header or one like it, and a variant is checked in the same way as a recipe. Number of
threads, sorting windows and thresholds are left out: programs that differ in them alone stand or fall together.

Every single value of a withheld combination also occurs in kept ones of its layout and grid: what is new is how they
meet. The list is stored (`withheld.json`) so that a new recipe doesn't move it; `choose` makes it, and a test keeps the
two together. Not covered: a body that does a withheld header's work under another header.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib import resources
from math import ceil

from sparserl.errors import ProgramError
from sparserl.program import parse
from sparserl.recipes import Recipe, space
from sparserl.records import Problem, Program

SHARE = 0.15
SHAPING = ("c", "group", "order", "b", "steps", "per")
"""layout parameters that change the body and not only the packing"""
SPANNED = (
    Problem(),
    Problem(dtype="float64"),
    *(Problem("spmm", "float32", columns) for columns in (32, 64, 128)),
)
"""the problems whose recipes span the combinations"""
_DIV_UP = re.compile(r"div_up\((.+?), (\d+)\)")

Combination = tuple[str, ...]
"""'name=value' features; the first two say where the others are counted: the layout and the form of the grid"""


def combination(program: Program) -> Combination:
    """The features of a program's header."""
    launch = next((each for each in program.launches if each.kernel in ("spmv", "spmm")), program.launches[-1])
    layout = program.layout
    features = [
        f"layout={launch.kernel} {layout.name}",
        "grid=" + re.sub(r"\d+", "#", launch.grid),
        f"index={layout.index}",
        f"pdl={launch.pdl}",
    ]
    features += [f"{key}={value}" for key, value in layout.params if key in SHAPING]
    for number, (what, divisor) in enumerate(_DIV_UP.findall(launch.grid)):
        features.append(f"share{number}=" + (divisor if what == "n" else _ratio(launch.block, int(divisor))))
    return tuple(features)


def _ratio(block: str, divisor: int) -> str:
    """Threads of a block over what it takes on: the lanes of a row, of a slice …"""
    if not block.isdecimal() or not divisor:
        return f"{block}/{divisor}"
    threads = int(block)
    return str(threads // divisor) if threads % divisor == 0 else f"{threads / divisor:g}"


@cache
def withheld_combinations() -> frozenset[Combination]:
    """The stored list."""
    text = resources.files("sparserl.train").joinpath("withheld.json").read_text(encoding="utf-8")
    return frozenset(tuple(each) for each in json.loads(text)["combinations"])


def withheld_program(program: Program) -> bool:
    """Whether a program's header is one that training may not see."""
    return combination(program) in withheld_combinations()


@lru_cache(maxsize=65536)
def withheld_text(text: str) -> bool:
    """The same of a text. What can't be read has no header, so it is not withheld."""
    try:
        return withheld_program(parse(text))
    except ProgramError:
        return False


def withheld_recipe(recipe: Recipe) -> bool:
    """The same of a recipe."""
    return withheld_text(recipe.text)


def spanned() -> list[Combination]:
    """Every combination that the recipes have, in a fixed order."""
    return sorted({combination(parse(recipe.text)) for problem in SPANNED for recipe in space(problem)})


def choose(combinations: Iterable[Combination], share: float = SHARE) -> list[Combination]:
    """Of every layout the same share, in the order of their hashes, as long as every value stays among the kept."""
    every = sorted(set(combinations), key=lambda c: hashlib.sha256("|".join(c).encode()).digest())
    kept = Counter(value for each in every for value in _values(each))
    quota = {layout: ceil(share * count) for layout, count in Counter(each[0] for each in every).items()}
    chosen: list[Combination] = []
    for each in every:
        if quota[each[0]] and min(kept[value] for value in _values(each)) > 1:
            kept.subtract(_values(each))
            quota[each[0]] -= 1
            chosen.append(each)
    return sorted(chosen)


def _values(each: Combination) -> list[tuple[str, str, str]]:
    """Single features, each with the layout and the grid within which it must still occur."""
    return [(each[0], each[1], value) for value in each[2:]]
