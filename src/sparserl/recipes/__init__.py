"""The teacher: expert kernel writers over the layouts, an enumerable space of programs that know their parameters.

`space(problem)` is all of it; `candidates(pattern, problem, sms)` what a matrix admits, by estimated time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from sparserl import layouts
from sparserl.matrix import Pattern
from sparserl.recipes import (
    bins,
    blocks,
    columns,
    diagonals,
    entries,
    filled,
    hybrid,
    rows,
    slices,
    split,
    spmm,
    spmm_bins,
    spmm_items,
    spmm_split,
    tiles,
)
from sparserl.recipes.cost import Summary, estimates_us, summarise
from sparserl.recipes.fits import unfit
from sparserl.recipes.writer import Recipe, Setting
from sparserl.records import LayoutLine, Mode, Problem

__all__ = ["Recipe", "admissible", "candidates", "space", "summarise"]

SPMV_WRITERS = (rows, filled, slices, split, tiles, bins, diagonals, hybrid, entries, blocks, columns)


@lru_cache(maxsize=16)
def space(problem: Problem) -> tuple[Recipe, ...]:
    """Every recipe for a problem, in a fixed order.

    Two may have one text: a tile with and without cut rows, diagonals with and without a tail. A matrix admits one.
    """
    found: dict[tuple[Setting, ...], Recipe] = {}
    for recipe in _all(problem):
        found.setdefault((recipe.text, recipe.setting("split"), recipe.setting("tail_lanes")), recipe)
    return tuple(found.values())


def _all(problem: Problem) -> Iterator[Recipe]:
    if problem.op == "spmm":
        yield from spmm.space(problem)
        yield from spmm_items.space(problem)
        yield from spmm_split.space(problem)
        yield from spmm_bins.space(problem)
        return
    for writer in SPMV_WRITERS:
        yield from writer.space(problem)


def admissible(summary: Summary) -> list[Recipe]:
    """The recipes that this matrix admits, in the space's order."""
    verdicts: dict[LayoutLine, str | None] = {}
    kept = []
    for recipe in space(summary.problem):
        if unfit(recipe, summary) is not None:
            continue
        if recipe.layout not in verdicts:
            verdicts[recipe.layout] = layouts.admits(summary.pattern, recipe.layout)
        if verdicts[recipe.layout] is None:
            kept.append(recipe)
    return kept


def candidates(pattern: Pattern, problem: Problem, sms: int = 132, mode: Mode = "solver") -> list[Recipe]:
    """What the matrix admits, the cheapest by the cost model first; each knows its estimate (`cost_us`)."""
    summary = summarise(pattern, problem, sms)
    priced = []
    for recipe in admissible(summary):
        solver_us, chain_us = estimates_us(recipe, summary)
        asked_us = chain_us if mode == "chain" else solver_us
        priced.append(replace(recipe, cost_us=asked_us, chain_cost_us=chain_us))
    return sorted(priced, key=lambda r: (r.cost_us, r.simplicity, r.name))
