"""The recipes: a large, enumerable space of readable programs that parse, pass the screen and compile."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import numpy as np
import pytest

from layout_shapes import SHAPES
from sparserl import layouts, program, recipes, screen
from sparserl.assemble import assemble
from sparserl.backends import nvrtc
from sparserl.matrix import Pattern
from sparserl.recipes import Recipe
from sparserl.records import Problem

SPMV = [Problem("spmv", "float32"), Problem("spmv", "float64")]
SPMM = [
    Problem("spmm", "float32", columns=64),
    Problem("spmm", "float32", columns=1),
    Problem("spmm", "float64", columns=30),
    Problem("spmm", "float16", columns=128),
    Problem("spmm", "bfloat16", columns=32),
    Problem("spmm", "float32", columns=16, b_order="col", c_order="col"),
    Problem("spmm", "float32", columns=512, c_order="col"),
    Problem("spmm", "float32", columns=8, b_order="col"),
]


def random_pattern(rows: int, columns: int, density: float, seed: int) -> Pattern:
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, columns)) < density
    row_start = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int32)
    return Pattern(rows, columns, row_start, np.nonzero(mask)[1].astype(np.int32))


def test_the_spmv_space_holds_at_least_1500_distinct_programs():
    texts = {recipe.text for recipe in recipes.space(SPMV[0])}
    assert len(texts) >= 1500


def assert_canonical_and_clean(found: Iterable[Recipe], problem: Problem) -> None:
    for recipe in found:
        parsed = program.parse(recipe.text)
        assert program.render(parsed) == recipe.text
        assert parsed.layout == recipe.layout
        program.check_signature(parsed, problem)
        screen.screen(parsed)


@pytest.mark.parametrize("problem", SPMV + SPMM, ids=str)
def test_every_tenth_recipe_is_canonical_text_that_passes_signature_and_screen(problem):
    assert_canonical_and_clean(recipes.space(problem)[::10], problem)


@pytest.mark.slow
@pytest.mark.parametrize("problem", SPMV + SPMM, ids=str)
def test_every_recipe_is_canonical_text_that_passes_signature_and_screen(problem):
    """A text that stands in the space of a problem above too was looked at there: its signature is left."""
    asked = SPMV + SPMM
    above = {recipe.text for other in asked[: asked.index(problem)] for recipe in recipes.space(other)}
    found = recipes.space(problem)
    assert_canonical_and_clean([recipe for recipe in found if recipe.text not in above], problem)
    for recipe in found:
        if recipe.text in above:
            program.check_signature(program.parse(recipe.text), problem)


@pytest.mark.parametrize("problem", SPMV + SPMM, ids=str)
def test_every_recipe_names_its_parameters_and_the_names_are_unique(problem):
    names = [recipe.name for recipe in recipes.space(problem)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("problem", SPMV + SPMM, ids=str)
def test_no_text_multiplies_or_divides_by_one(problem):
    unit = re.compile(r"[*/%] 1(?!\d)|= \([^()]*\);")
    assert not [recipe.name for recipe in recipes.space(problem) if unit.search(recipe.text)]


@pytest.mark.parametrize("shape", ["no rows", "no columns", "all rows empty", "one by one", "one by one, empty"])
@pytest.mark.parametrize("problem", [SPMV[0], SPMM[0], SPMM[5]], ids=str)
def test_every_fifth_candidate_of_a_degenerate_matrix_can_be_assembled(problem, shape):
    pattern = SHAPES[shape]()
    packed = {}
    for recipe in recipes.candidates(pattern, problem)[::5]:
        if recipe.layout not in packed:
            packed[recipe.layout] = layouts.pack(pattern, recipe.layout)
        job = assemble(program.parse(recipe.text), packed[recipe.layout], problem, 132)
        assert all(launch.grid >= 1 for launch in job.launches)


def test_every_layout_is_used_by_some_recipe():
    used = {recipe.layout.name for recipe in recipes.space(SPMV[0])}
    assert used == set(layouts.LAYOUTS)


def test_candidates_are_sorted_by_estimated_cost_and_admissible():
    pattern = random_pattern(300, 200, 0.05, seed=1)
    found = recipes.candidates(pattern, SPMV[0])
    assert len(found) > 100
    assert [r.cost_us for r in found] == sorted(r.cost_us for r in found)
    assert all(layouts.admits(pattern, r.layout) is None for r in found)


def assert_one_of_each_kind_compiles(pattern: Pattern, problem: Problem) -> None:
    found = recipes.candidates(pattern, problem)
    by_kind = {}
    for recipe in random.Random(3).sample(found, len(found)):
        by_kind.setdefault((recipe.family, recipe.pdl, recipe.setting("full")), recipe)
    for recipe in by_kind.values():
        job = assemble(program.parse(recipe.text), layouts.pack(pattern, recipe.layout), problem, 132)
        assert nvrtc.compile(job.source, job.kernels).code


@pytest.mark.parametrize("problem", [SPMV[0], SPMV[1], SPMM[0], SPMM[3], SPMM[5]], ids=str)
def test_a_sample_of_recipes_compiles_for_hopper(problem):
    assert_one_of_each_kind_compiles(random_pattern(300, 200, 0.05, seed=2), problem)


def test_what_a_matrix_without_entries_admits_compiles_for_hopper():
    """The compiler refuses arrays of no elements, which baked widths of 0 would make."""
    assert_one_of_each_kind_compiles(SHAPES["all rows empty"](), SPMV[0])
