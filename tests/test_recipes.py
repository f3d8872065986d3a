"""The recipes: a large, enumerable space of readable programs that parse, pass the screen and compile."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sparserl import layouts, program, recipes, screen
from sparserl.backends import nvrtc
from sparserl.matrix import Pattern
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


@pytest.mark.parametrize("problem", SPMV + SPMM, ids=str)
def test_every_recipe_is_canonical_text_that_passes_signature_and_screen(problem):
    for recipe in recipes.space(problem):
        parsed = program.parse(recipe.text)
        assert program.render(parsed) == recipe.text
        assert parsed.layout == recipe.layout
        program.check_signature(parsed, problem)
        screen.screen(parsed)


def test_every_recipe_names_its_parameters_and_the_names_are_unique():
    names = [recipe.name for recipe in recipes.space(SPMV[0])]
    assert len(set(names)) == len(names)


def test_every_layout_is_used_by_some_recipe():
    used = {recipe.layout.name for recipe in recipes.space(SPMV[0])}
    assert used == set(layouts.LAYOUTS)


def test_candidates_are_sorted_by_estimated_cost_and_admissible():
    pattern = random_pattern(300, 200, 0.05, seed=1)
    found = recipes.candidates(pattern, SPMV[0])
    assert len(found) > 100
    assert [r.cost_us for r in found] == sorted(r.cost_us for r in found)
    assert all(layouts.admits(pattern, r.layout) is None for r in found)


@pytest.mark.parametrize("problem", [SPMV[0], SPMV[1], SPMM[0], SPMM[3], SPMM[5]], ids=str)
def test_a_sample_of_recipes_compiles_for_hopper(problem):
    from sparserl.assemble import assemble

    pattern = random_pattern(300, 200, 0.05, seed=2)
    found = recipes.candidates(pattern, problem)
    by_family = {}
    for recipe in random.Random(3).sample(found, len(found)):
        by_family.setdefault((recipe.family, recipe.pdl), recipe)
    for recipe in by_family.values():
        job = assemble(program.parse(recipe.text), layouts.pack(pattern, recipe.layout), problem, 132)
        assert nvrtc.compile(job.source, job.kernels).code
