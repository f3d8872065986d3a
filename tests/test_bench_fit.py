"""The cost model's fit: it finds coefficients that were planted, and says honestly how well it ranks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sparserl.bench import archive, fit
from sparserl.evaluation import evaluation_list
from sparserl.recipes import candidates, cost, space
from sparserl.recipes.summary import summarise
from sparserl.recipes.terms import terms
from sparserl.records import Problem
from sparserl.store import append_jsonl

CASES = [c for c in evaluation_list() if c.kind == "generated" and c.nonzeros < 60_000]


def planted(matrices: int, seed: int = 0) -> fit.Table:
    """Programs whose log times are linear in three terms, with another slope in one family."""
    rng = np.random.default_rng(seed)
    names = ("one", "base", "pdl")
    rows = matrices * 60
    x = np.column_stack([np.ones(rows), rng.normal(size=rows), rng.integers(0, 2, rows)]).astype(float)
    family = np.where(rng.random(rows) < 0.5, "tile", "row_lanes")
    log_us = 1.0 + np.where(family == "tile", 2.0, 1.0) * x[:, 1] - 0.3 * x[:, 2]
    matrix = np.repeat([f"m{k}" for k in range(matrices)], 60)
    program = np.array([f"p{k % 60}" for k in range(rows)])
    return fit.Table(names, x, family, matrix, log_us, np.ones(rows), program)


def test_planted_coefficients_are_found():
    table = planted(40)
    found = fit.fit(table, table.weight > 0)
    assert found["tile"] == pytest.approx([1.0, 2.0, -0.3], abs=0.02)
    assert found["row_lanes"] == pytest.approx([1.0, 1.0, -0.3], abs=0.02)


def test_a_fit_that_knows_the_truth_loses_nothing_on_unseen_matrices():
    figures = fit.cross_validate(planted(24))
    assert figures["rank correlation"] > 0.99
    assert figures["loss of best 8"] < 0.01


def test_noise_can_not_be_ranked_and_the_figures_say_so():
    table = planted(24)
    shuffled = replace(table, log_us=np.random.default_rng(1).permutation(table.log_us))
    assert abs(fit.cross_validate(shuffled)["rank correlation"]) < 0.4


def test_records_become_terms_and_a_new_fit_replaces_only_its_own_op(tmp_path):
    problem = Problem()
    case = next(c for c in CASES if c.nonzeros > 1000)
    chosen = candidates(case.load(), problem)[::40]
    for place, recipe in enumerate(chosen):
        record = {
            "matrix": case.name, "problem": "spmv float32", "family": recipe.family, "settings": recipe.params,
            "layout": str(recipe.layout), "solver_us": 1.0 + place, "chain_us": 0.5 + place,
        }  # fmt: skip
        append_jsonl(tmp_path / "explored.jsonl", record)
    tables = fit.read([tmp_path], None, problem)
    assert [len(table.log_us) for table in tables.values()] == [len(chosen)] * 2
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"spmm solver": {"common": {"one": 1.0}}}))
    fit.write(path, problem, {mode: fit.as_json(t, fit.fit(t, t.weight > 0)) for mode, t in tables.items()})
    written = json.loads(path.read_text())
    assert written["spmm solver"] == {"common": {"one": 1.0}}
    assert set(tables["chain"].family) <= set(written["spmv chain"])


def test_repriced_records_have_estimates_for_both_modes_and_nothing_else_changes(tmp_path):
    problem = Problem()
    cases = [c for c in CASES if c.nonzeros > 1000][:3]
    for case in cases:
        for place, recipe in enumerate(candidates(case.load(), problem)[::60]):
            record = {
                "matrix": case.name, "problem": "spmv float32", "family": recipe.family, "settings": recipe.params,
                "layout": str(recipe.layout), "solver_us": 1.0 + place, "chain_us": 0.5 + place, "cost_us": -1.0,
            }  # fmt: skip
            append_jsonl(tmp_path / "explored.jsonl", record)
    before = archive.read(tmp_path, "explored")
    assert fit.reprice(tmp_path, problem, fit.read([tmp_path], None, problem)) == len(before)
    after = archive.read(tmp_path, "explored")
    assert all(r["cost_us"] > 0 and r["chain_cost_us"] > 0 for r in after)
    for record in (*before, *after):
        record.pop("cost_us"), record.pop("chain_cost_us", None)
    assert after == before


def test_every_family_has_terms_and_an_estimate_above_zero():
    for problem in (Problem(), Problem("spmm", "float32", 64)):
        summary = summarise(CASES[-1].load(), problem)
        for recipe in {r.family: r for r in space(problem)}.values():
            assert all(np.isfinite(v) for v in terms(recipe, summary).values())
            assert all(0 < us < 1e9 for us in cost.estimates_us(recipe, summary))
