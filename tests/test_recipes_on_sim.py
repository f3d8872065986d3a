"""Recipes before the judge, on the simulator: a sample over all families is right, without races and within bounds.

The simulator watches every access of the first product: bounds, alignment, races, reads of what nobody wrote, touches
before the wait. The judge adds NaN in x, changed values, chains and poisoned workspaces. Small, nasty patterns only.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from layout_shapes import SHAPES
from sparserl import recipes
from sparserl.judge.evaluate import Judge
from sparserl.recipes import Recipe
from sparserl.records import Problem, Verdict

NASTY = (
    "mostly empty rows",
    "one dense row among empty ones",
    "power law",
    "block fem 3",
    "banded",
    "tall",
    "wide",
    "one by one",
)
SPMV = (Problem(), Problem(dtype="float64"))
SPMM = (
    Problem("spmm", "float32", columns=6),
    Problem("spmm", "float16", columns=24),
    Problem("spmm", "bfloat16", columns=8, c_order="col"),
    Problem("spmm", "float32", columns=5, b_order="col", c_order="col"),
    Problem("spmm", "float64", columns=4, b_order="col"),
    Problem("spmm", "float32", columns=33, c_order="col"),
)
SPMM_SHAPES = ("mostly empty rows", "block fem 3", "wide")
SPMV_EACH, SPMM_EACH = 7, 3
"""programs of a problem on one pattern"""


Sample = dict[tuple[Problem, str], list[Recipe]]


@cache
def sample(problems: tuple[Problem, ...], shapes: tuple[str, ...], each: int) -> Sample:
    """`each` programs a problem and pattern: those of the families that were taken least so far, chosen by lot."""
    lot = random.Random(11)
    chosen = {}
    for problem in problems:
        taken: Counter[tuple[str, bool]] = Counter()
        for shape in shapes:
            found = recipes.candidates(SHAPES[shape](), problem)
            by_kind = {(r.family, r.pdl): r for r in lot.sample(found, len(found))}
            kinds = sorted(lot.sample(sorted(by_kind), len(by_kind)), key=lambda kind: taken[kind])[:each]
            taken.update(kinds)
            chosen[problem, shape] = [by_kind[kind] for kind in kinds]
    return chosen


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge("sim") as judge:
        yield judge


def assert_all_correct(judge: Judge, problem: Problem, shape: str, chosen: list[Recipe]) -> None:
    case = judge.open(SHAPES[shape](), problem, seed=3)
    try:
        outcomes = case.judge([recipe.text for recipe in chosen])
    finally:
        case.close()
    failed = [f"{r.name}: {o.verdict.name}, {o.reason}" for r, o in zip(chosen, outcomes, strict=True) if not o.correct]
    assert not failed, "\n".join(failed)


def test_the_spmv_sample_holds_100_programs_of_every_family_with_and_without_dependent_launch():
    chosen = [r for group in sample(SPMV, NASTY, SPMV_EACH).values() for r in group]
    kinds = {(r.family, r.pdl) for r in chosen}
    assert len(chosen) >= 100
    assert kinds == {(r.family, r.pdl) for r in recipes.space(SPMV[0])}


def test_the_spmm_sample_holds_40_programs_of_every_family():
    chosen = [r for group in sample(SPMM, SPMM_SHAPES, SPMM_EACH).values() for r in group]
    assert len(chosen) >= 40
    assert {r.family for r in chosen} == {r.family for problem in SPMM for r in recipes.space(problem)}


@pytest.mark.parametrize("shape", NASTY)
@pytest.mark.parametrize("problem", SPMV, ids=lambda p: p.dtype)
def test_sampled_spmv_recipes_are_right_and_clean(judge, problem, shape):
    assert_all_correct(judge, problem, shape, sample(SPMV, NASTY, SPMV_EACH)[problem, shape])


@pytest.mark.parametrize("shape", SPMM_SHAPES)
@pytest.mark.parametrize("problem", SPMM, ids=lambda p: f"{p.dtype}-{p.columns}-{p.b_order}-{p.c_order}")
def test_sampled_spmm_recipes_are_right_and_clean(judge, problem, shape):
    assert_all_correct(judge, problem, shape, sample(SPMM, SPMM_SHAPES, SPMM_EACH)[problem, shape])


@pytest.mark.parametrize(
    ("kind", "good", "bad", "verdict"),
    [
        (("merge_path", False), "__syncthreads();", "", Verdict.FAILED),
        (("hybrid", False), "!PADDED || !is_padding(column)", "true", Verdict.FAILED),
        (("row_lanes", True), "pdl_wait();", "", Verdict.SCREENED),
        (("coo_chunks", False), "atomicAdd(y + row, sum)", "y[row] += sum", Verdict.FAILED),
        (("row_bins", False), "if (thread == 0) y[mine.x] = sum;", "y[mine.x] = sum;", Verdict.FAILED),
    ],
    ids=["no barrier", "padding multiplied", "no wait", "no atomic", "every thread stores"],
)
def test_a_recipe_with_a_planted_fault_is_not_called_correct(judge, kind, good, bad, verdict):
    """Without this the sample above would prove nothing."""
    pattern = SHAPES["power law"]()
    recipe = next(r for r in recipes.candidates(pattern, SPMV[0]) if (r.family, r.pdl) == kind)
    assert good in recipe.text
    case = judge.open(pattern, SPMV[0], seed=3)
    try:
        (outcome,) = case.judge([recipe.text.replace(good, bad)])
    finally:
        case.close()
    assert outcome.verdict is verdict, outcome.reason
