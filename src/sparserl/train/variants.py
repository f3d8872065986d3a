"""New programs from known ones: mutations and crossovers that change what the code does.

    variants(recipe.text, problem, random.Random(0), 8)

A variant can be read, passes the screen, keeps the contract, and is neither its parent nor any recipe of the space;
whether it is right is the judge's to say (measured: see `train collect`). Most are one mutation away, some two or
three. Not covered: variants that change a program into one for another layout, or that move work between kernels other
than by fusing the last two.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sparserl import recipes
from sparserl.errors import SparseRLError
from sparserl.program import check_signature, parse
from sparserl.records import Problem
from sparserl.screen import screen
from sparserl.train.mutations import KINDS, Draft
from sparserl.train.mutations.crossover import cross
from sparserl.train.mutations.tree import without_comments

CROSSOVER = "crossover"
ALL_KINDS = (*KINDS, CROSSOVER)
STEPS = (1, 1, 1, 1, 1, 1, 2, 2, 2, 3)
"""how many mutations in a row, drawn evenly from these"""
TRIES_A_VARIANT = 12
DONORS = 24
"""recipes looked at for one whose walk fits"""


_HEADER = re.compile(r"(?://[^\n]*\n)*")


@dataclass(frozen=True)
class Variant:
    """A program that came from others."""

    text: str
    parents: tuple[str, ...]
    """texts: the one it was made from first, then the donors of crossovers"""
    mutations: tuple[str, ...]
    """the kinds, in the order they were made"""


def variants(
    text: str, problem: Problem, rng: random.Random, count: int, kinds: Sequence[str] = ALL_KINDS
) -> list[Variant]:
    """At most `count` distinct variants of a program; fewer where little applies to it."""
    unknown = [kind for kind in kinds if kind not in ALL_KINDS]
    if unknown:
        raise ValueError(f"The 'kinds' of variants must be among {', '.join(ALL_KINDS)}. Got {unknown[0]!r}.")
    found: dict[str, Variant] = {}
    for _ in range(count * TRIES_A_VARIANT):
        if len(found) >= count:
            break
        made = _grow(text, problem, rng, kinds)
        if made is not None and is_new(made.text, text, problem):
            found.setdefault(_bare(made.text), made)
    return list(found.values())


def mutate(text: str, problem: Problem, rng: random.Random, kind: str) -> Variant | None:
    """One mutation of one kind, or nothing where it doesn't apply or what it made is no program."""
    try:
        draft = Draft.read(text, problem)
        donor = ""
        if kind == CROSSOVER:
            donor = _crossed(draft, rng)
            made = bool(donor)
        else:
            made = KINDS[kind](draft, rng)
        changed = draft.text if made else text
        if not made or _bare(changed) == _bare(text):
            return None
        screen(changed)
        check_signature(parse(changed), problem)
    except SparseRLError:
        return None
    return Variant(changed, (text, donor) if donor else (text,), (kind,))


def is_new(text: str, parent: str, problem: Problem) -> bool:
    """Neither the parent nor a recipe, spacing and comments aside."""
    bare = _bare(text)
    return bare != _bare(parent) and bare not in _known(problem)


def _grow(text: str, problem: Problem, rng: random.Random, kinds: Sequence[str]) -> Variant | None:
    """One to three mutations in a row."""
    made: Variant | None = None
    for _ in range(rng.choice(STEPS)):
        step = mutate(made.text if made else text, problem, rng, rng.choice(kinds))
        if step is not None:
            made = _behind(made, step, text)
    return made


def _behind(made: Variant | None, step: Variant, text: str) -> Variant:
    if made is None:
        return step
    return Variant(step.text, made.parents + step.parents[1:], made.mutations + step.mutations)


def _crossed(draft: Draft, rng: random.Random) -> str:
    """The text of the donor whose walk was taken, '' if none fitted."""
    space = recipes.space(draft.problem)
    sample = rng.sample(space, min(DONORS, len(space)))
    # a walk from over another layout is further away than one from the same family
    for recipe in sorted(sample, key=lambda recipe: recipe.layout.name == draft.program.layout.name):
        donor = Draft.read(recipe.text, draft.problem)
        if cross(draft, donor, rng):
            return recipe.text
    return ""


def _bare(text: str) -> str:
    """The text without comments and spaces; header lines are comments too, but here they count."""
    match = _HEADER.match(text)
    head = match.group() if match else ""
    return re.sub(r"\s+", "", head + without_comments(text[len(head) :]))


@lru_cache(maxsize=4)
def _known(problem: Problem) -> frozenset[str]:
    return frozenset(_bare(recipe.text) for recipe in recipes.space(problem))
