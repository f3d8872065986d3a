"""The controls choose admissible recipes, learn what features decide, and keep their choices in a file."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparserl import families
from sparserl.bench.archive import sha
from sparserl.errors import SparseRLError, StoreError
from sparserl.evaluation import Case
from sparserl.matrix import Pattern
from sparserl.recipes import Recipe, admissible, space, summarise
from sparserl.records import Problem
from sparserl.store import append_jsonl
from sparserl.train import assess_writers, controls
from sparserl.train.assess import AssessConfig, Loaded, Run
from sparserl.train.collected import load
from sparserl.train.controls_table import Columns, Line, Table, pattern_row, read_table

PROBLEM = Problem()
NAMES = {recipe.name: recipe for recipe in space(PROBLEM)}


def matrix(seed: int) -> Pattern:
    """Short rows for even seeds, long ones for odd."""
    return families.make("uniform", seed, rows=400, columns=400, per_row=3 if seed % 2 == 0 else 48)


def truth(pattern: Pattern, recipe: Recipe) -> float:
    """Log time: many lanes are good for long rows and bad for short ones; all else doesn't matter."""
    lanes = float(recipe.setting("lanes", 1))
    wanted = 1.0 if pattern.nonzeros / pattern.rows < 10 else 16.0
    return abs(math.log2(lanes / wanted)) * 0.5


def table(seeds: Sequence[int]) -> Table:
    lines, features = [], {}
    for seed in seeds:
        pattern, name = matrix(seed), f"m{seed}"
        features[name] = pattern_row(pattern)
        drawn = random.Random(seed).sample(admissible(summarise(pattern, PROBLEM)), 150)
        lines += [Line(name, recipe.name, truth(pattern, recipe)) for recipe in drawn]
    return Table(PROBLEM, tuple(lines), features)


@pytest.fixture(scope="module")
def learnt() -> Table:
    return table(range(12))


def mean_truth(pattern: Pattern, chosen: Sequence[Recipe]) -> float:
    return float(np.mean([truth(pattern, recipe) for recipe in chosen]))


@pytest.mark.parametrize("name", ["trees", "neighbours"])
def test_a_learnt_control_beats_random_where_features_decide(name: str, learnt: Table) -> None:
    trees = controls.TreesConfig(rounds=40, leaves=15)
    model = controls.Trees(learnt, trees) if name == "trees" else controls.Neighbours(learnt, nearest=4)
    choose, at_random = controls.learnt(model), controls.at_random(PROBLEM)
    for seed in (100, 101):
        pattern = matrix(seed)
        assert mean_truth(pattern, choose(pattern)) < 0.4 * mean_truth(pattern, at_random(pattern))


@pytest.mark.parametrize("name", ["heuristic", "random", "trees", "neighbours"])
def test_a_control_chooses_sixteen_different_admissible_recipes(name: str, learnt: Table) -> None:
    choosers = {
        "heuristic": lambda: controls.heuristic(PROBLEM),
        "random": lambda: controls.at_random(PROBLEM),
        "trees": lambda: controls.learnt(controls.Trees(learnt, controls.TreesConfig(rounds=20))),
        "neighbours": lambda: controls.learnt(controls.Neighbours(learnt)),
    }
    choose = choosers[name]()
    for seed in (100, 101):
        pattern = matrix(seed)
        admitted = {recipe.name for recipe in admissible(summarise(pattern, PROBLEM))}
        chosen = [recipe.name for recipe in choose(pattern)]
        assert len(set(chosen)) == 16
        assert set(chosen) <= admitted
        assert chosen == [recipe.name for recipe in choose(pattern)]


def test_random_choices_differ_between_seeds_and_matrices() -> None:
    def names(seed: int, pattern: Pattern) -> list[str]:
        return [recipe.name for recipe in controls.at_random(PROBLEM, seed=seed)(pattern)]

    assert names(0, matrix(0)) == names(0, matrix(0))
    assert names(0, matrix(0)) != names(1, matrix(0))
    assert names(0, matrix(0)) != names(0, matrix(2))


def test_recipes_of_different_settings_have_different_columns() -> None:
    recipes = list(NAMES.values())
    columns = Columns(recipes)
    rows = {tuple(columns.row(recipe)) for recipe in recipes}
    assert len(rows) == len(recipes)
    assert len(columns.categorical) == len(columns.names)


# ---- from a collection


def write_collection(out: Path) -> None:
    """Two matrices; 'good' is fast on both, 'best' the fastest on one and wrong on the other."""
    good, best, other = (list(NAMES.values())[i] for i in (0, 5, 9))
    times: dict[str, dict[Recipe, float | None]] = {
        "uniform-1000000": {good: 5.0, best: 2.0, other: 9.0},
        "uniform-1000001": {good: 6.0, best: None, other: 12.0},
    }
    for number, (case, held) in enumerate(times.items()):
        source = {"family": "uniform", "seed": 1000000 + number, "params": {"rows": 200, "columns": 200, "per_row": 4}}
        for recipe, us in held.items():
            append_jsonl(out / "measured.jsonl", measured(case, recipe, us))
            append_jsonl(
                out / "programs.jsonl",
                {"program": sha(recipe.text), "text": recipe.text, "parents": [], "mutations": [], "binary": None},
            )
        append_jsonl(
            out / "cases.jsonl",
            {"case": case, "problem": "spmv float32", "split": "train", "source": source, "rows": 200, "columns": 200,
             "nonzeros": 800, "admitted": [], "device": "test"},
        )  # fmt: skip


def measured(case: str, recipe: Recipe, us: float | None) -> dict[str, Any]:
    return {
        "case": case, "problem": "spmv float32", "program": sha(recipe.text), "origin": "recipe",
        "family": recipe.family, "name": recipe.name, "verdict": "WRONG" if us is None else "CORRECT",
        "solver_us": us, "chain_us": us, "retimed": True, "baseline_solver_us": 10.0, "baseline_chain_us": 10.0,
    }  # fmt: skip


def test_a_table_holds_times_over_the_best_and_failures_at_a_quarter_of_the_baseline(tmp_path: Path) -> None:
    write_collection(tmp_path)
    kept = tmp_path / "features.jsonl"
    found = read_table(load(tmp_path), PROBLEM, matrices=None, kept=kept)
    logs = sorted(round(math.exp(line.log_time), 6) for line in found.lines if line.matrix == "uniform-1000001")
    assert logs == [1.0, 2.0, pytest.approx(40.0 / 6.0, abs=1e-5)]
    assert set(found.features) == {"uniform-1000000", "uniform-1000001"}
    before = kept.read_text()
    again = read_table(load(tmp_path), PROBLEM, matrices=None, kept=kept)
    assert kept.read_text() == before
    assert np.array_equal(again.features["uniform-1000000"], found.features["uniform-1000000"])


def test_the_best_single_program_pays_for_its_failures(tmp_path: Path) -> None:
    write_collection(tmp_path)
    # good: sqrt(2 * 10/6) = 1.83; best: sqrt(5 * 0.25) = 1.12
    assert controls.best_single(load(tmp_path), PROBLEM) == next(iter(NAMES.values())).text


def test_a_problem_that_was_not_collected_is_named(tmp_path: Path) -> None:
    write_collection(tmp_path)
    with pytest.raises(StoreError, match="no measurements of 'spmv float64', only of spmv float32"):
        controls.best_single(load(tmp_path), Problem(dtype="float64"))


# ---- choices


def cases() -> list[Case]:
    pattern = matrix(0)
    params = {"rows": 400, "columns": 400, "per_row": 3}
    return [
        Case("m0", "small", "generated", "uniform", 400, 400, pattern.nonzeros, pattern.fingerprint()[:16],
             family="uniform", seed=0, params=params)
    ]  # fmt: skip


def test_choices_are_kept_and_used_again_without_what_they_were_made_from(tmp_path: Path) -> None:
    write_collection(tmp_path / "collection")
    run = Run(tmp_path / "out", AssessConfig("dev", PROBLEM))
    for name in ("trees", "neighbours", "single"):
        made = assess_writers.writers(run, cases(), name, assess_writers.Sources(tmp_path / "collection"))
        again = assess_writers.writers(run, cases(), name, assess_writers.Sources())  # no collection
        loaded = [Loaded(case, None) for case in cases()]
        assert made[0].write(loaded) == again[0].write(loaded)
        assert len(made[0].write(loaded)[0]) == 16
        assert (tmp_path / "out" / f"choices-{name}.json").is_file()
    with pytest.raises(SparseRLError, match="--collection"):
        assess_writers.writers(Run(tmp_path / "other", run.config), cases(), "trees", assess_writers.Sources())


def test_choices_of_another_problem_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "choices-x.json"
    controls.Choices("x", "spmv float64", {"m0": ["a"]}, {"a": "text"}).save(path)
    with pytest.raises(StoreError, match="are for 'spmv float64'"):
        controls.load_choices(path, PROBLEM)


def test_a_recipe_that_is_no_more_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="which this version doesn't have"):
        controls.Choices("x", "spmv float32", {"m0": ["gone"]}).texts_for("m0", PROBLEM)


def test_few_choices_are_taken_in_turns() -> None:
    assert controls.filled(["a", "b", "c"], 5) == ["a", "b", "c", "a", "b"]


def test_a_name_that_is_neither_control_nor_folder_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, AssessConfig("dev", PROBLEM))
    with pytest.raises(SparseRLError, match="neighbours, single"):
        assess_writers.writers(run, cases(), "tree", assess_writers.Sources())


def test_scikit_learn_is_not_loaded_before_trees_are_trained() -> None:
    code = "import sys, sparserl.train.controls, sparserl.train.assess_writers; print('sklearn' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
