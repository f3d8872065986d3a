"""Whether a program is structurally new, and what it does that the nearest recipe doesn't. Pure.

A program is new if its skeleton (`train.skeleton`: names renamed, comments stripped, all integers erased) is that of no
recipe at any parameters, for any problem that the benchmark tests with the same operation. Numbers alone never count:
arithmetic between numbers and parentheses around one are taken for one number too, so `8 * 4` is not new beside `32`,
and neither is a second launch bound beside one.

Not covered: whether two skeletons compile to the same machine code, or do the same in another order.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from functools import lru_cache

from sparserl.errors import ProgramError
from sparserl.program import parse
from sparserl.recipes import Recipe, space
from sparserl.records import Problem
from sparserl.train.rl.diagnostics import recipe_skeletons, skeleton_of
from sparserl.train.withheld import SPANNED

_SUM = re.compile(r"# (?:\*|/|%|\+|-|<<|>>) #(?= |$)")
_BOUNDS = re.compile(r"__launch_bounds__ \( # , # \)")
"""how many blocks are to fit is a number, and without one it is the compiler's to choose"""
_WRAPPED = re.compile(r"(?<!\w )\( # \)(?= |$)")
"""a number in parentheses that are not those of a call"""
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d\w*|\s+|.", re.DOTALL)
SHINGLE = 4
"""words that are compared together where skeletons are looked through for a near one"""
NEAR = 6
"""skeletons that are compared word by word"""


def folded(skeleton: str) -> str:
    """A skeleton in which numbers that make a number are one, and launch bounds have one."""
    while True:
        shorter = _BOUNDS.sub("__launch_bounds__ ( # )", _WRAPPED.sub("#", _SUM.sub("#", skeleton)))
        if shorter == skeleton:
            return skeleton
        skeleton = shorter


@lru_cache(maxsize=8)
def known_skeletons(problem: Problem) -> frozenset[str]:
    """Of every recipe for the problem and for all tested problems of its operation."""
    problems = {problem, *(each for each in SPANNED if each.op == problem.op)}
    return frozenset(folded(each) for one in problems for each in recipe_skeletons(one))


def is_structurally_new(text: str, problem: Problem) -> bool:
    """Whether no recipe has its skeleton; False for what can't be read."""
    found = skeleton_of(text)
    return found is not None and folded(found) not in known_skeletons(problem)


# ── The nearest recipe ────────────────────────────────────────────────────────


@lru_cache(maxsize=8)
def _by_skeleton(problem: Problem, layout: str) -> dict[str, list[Recipe]]:
    """Of the recipes on a layout, or of all where there are none."""
    found: dict[str, list[Recipe]] = {}
    for recipe in [each for each in space(problem) if each.layout.name == layout] or space(problem):
        skeleton = skeleton_of(recipe.text)
        assert skeleton is not None
        found.setdefault(skeleton, []).append(recipe)
    return found


@lru_cache(maxsize=1 << 12)  # a tenth of a second, and finals and their report ask several times
def nearest_recipe(text: str, problem: Problem) -> Recipe:
    """On the program's layout, the recipe with the most similar skeleton; of several, the one with most equal lines."""
    own = skeleton_of(text)
    if own is None:
        raise ProgramError(f"The text can't be read, so no recipe is near to it: {text[:60]!r}…")
    held = _by_skeleton(problem, parse(text).layout.name)
    shingles = _shingles(own)
    near = sorted(held, key=lambda each: (-_shared(shingles, _shingles(each)), each))[:NEAR]
    words = own.split()
    best = max(near, key=lambda each: difflib.SequenceMatcher(None, words, each.split(), autojunk=False).ratio())
    rows = Counter(text.splitlines())
    return max(held[best], key=lambda recipe: ((rows & Counter(recipe.text.splitlines())).total(), recipe.name))


def renumbered(recipe: str, text: str) -> str:
    """The recipe with the program's numbers, also those that it has in no parameters: what they are worth alone.

    Where both read alike, a number that mostly has another one's place there takes what stands in its own place;
    elsewhere it takes what it mostly becomes.
    """
    own, other = _TOKEN.findall(recipe), _TOKEN.findall(text)
    alike = difflib.SequenceMatcher(None, [*map(_erased, own)], [*map(_erased, other)], autojunk=False)
    placed, became = dict[int, str](), dict[str, Counter[str]]()
    for here, there, length in alike.get_matching_blocks():
        for at in range(length):
            if (old := own[here + at])[0].isdigit():
                placed[here + at] = other[there + at]
                became.setdefault(old, Counter())[other[there + at]] += 1
    usual = {old: found.most_common(1)[0] for old, found in became.items()}
    moved = {old: new for old, (new, count) in usual.items() if new != old and 2 * count > became[old].total()}
    return "".join(placed.get(at, moved[each]) if each in moved else each for at, each in enumerate(own))


def _erased(token: str) -> str:
    return "#" if token[0].isdigit() else token


def _shingles(skeleton: str) -> Counter[tuple[str, ...]]:
    words = skeleton.split()
    return Counter(zip(*(words[at:] for at in range(SHINGLE)), strict=False))


def _shared(one: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]]) -> float:
    return (one & other).total() / max(1, (one | other).total())


def difference(text: str, recipe: Recipe) -> str:
    """A unified diff from the recipe to the program."""
    lines = difflib.unified_diff(
        recipe.text.splitlines(), text.splitlines(), recipe.name, "the new program", lineterm=""
    )
    return "\n".join(lines)
