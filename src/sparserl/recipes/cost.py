"""A simple cost model: the logarithm of a recipe's time is linear in named terms, family by family.

The coefficients in `cost.json` were fitted by `python -m sparserl.bench fit` to measured times; a family that was never
measured uses the common ones. It ranks recipes; it is not a prediction. Not covered: bank conflicts, register pressure.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from math import exp

from sparserl.recipes.summary import Summary, summarise
from sparserl.recipes.terms import terms
from sparserl.recipes.writer import Recipe
from sparserl.records import Mode, Problem

__all__ = ["COMMON", "FITTED_MODES", "Coefficients", "Summary", "estimates_us", "fitted", "group_of", "summarise"]

FITTED_MODES: tuple[Mode, Mode] = ("solver", "chain")
COMMON = "common"
"""the row of coefficients for families that were never measured"""
Coefficients = dict[str, dict[str, float]]
"""by family, by term"""


def group_of(problem: Problem, mode: Mode) -> str:
    """The name of a problem's own set of coefficients: 'spmv solver' for float32, 'spmv float64 chain' …"""
    return f"{problem.op} {mode}" if problem.dtype == "float32" else f"{problem.op} {problem.dtype} {mode}"


@cache
def fitted() -> dict[str, Coefficients]:
    """The coefficients that are shipped, by group."""
    text = resources.files("sparserl.recipes").joinpath("cost.json").read_text()
    found: dict[str, Coefficients] = json.loads(text)
    return found


def estimates_us(recipe: Recipe, summary: Summary) -> tuple[float, float]:
    """Estimated microseconds of one product, in solver and in chain mode."""
    found = terms(recipe, summary)
    solver_us, chain_us = (
        _estimate_us(_coefficients(summary.problem, mode), recipe.family, found) for mode in FITTED_MODES
    )
    return solver_us, chain_us


def _coefficients(problem: Problem, mode: Mode) -> Coefficients:
    """The problem's own set, or that of float32 where none was fitted."""
    return fitted().get(group_of(problem, mode)) or fitted()[f"{problem.op} {mode}"]


def _estimate_us(families: Coefficients, family: str, found: dict[str, float]) -> float:
    weights = families.get(family, families[COMMON])
    return exp(min(50.0, sum(weights.get(name, 0.0) * value for name, value in found.items())))
