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
from sparserl.records import Problem

__all__ = ["COMMON", "Coefficients", "Summary", "estimate_us", "fitted", "group_of", "summarise"]

COMMON = "common"
"""the row of coefficients for families that were never measured"""
Coefficients = dict[str, dict[str, float]]
"""by family, by term"""


def group_of(problem: Problem) -> str:
    """Which set of coefficients a problem uses."""
    return problem.op


@cache
def fitted() -> dict[str, Coefficients]:
    """The coefficients that are shipped, by op."""
    text = resources.files("sparserl.recipes").joinpath("cost.json").read_text()
    found: dict[str, Coefficients] = json.loads(text)
    return found


def estimate_us(recipe: Recipe, summary: Summary) -> float:
    """Estimated microseconds of one product in solver mode."""
    families = fitted()[group_of(summary.problem)]
    weights = families.get(recipe.family, families[COMMON])
    found = terms(recipe, summary)
    return exp(min(50.0, sum(weights.get(name, 0.0) * value for name, value in found.items())))
