"""Estimates: programs for matrices that nobody timed, from trees fitted to a collection, read like a collection."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparserl import cli, families, splits
from sparserl.bench.archive import sha
from sparserl.errors import MatrixError, StoreError
from sparserl.layouts import admits, parse_line
from sparserl.matrix import Pattern
from sparserl.program import parse
from sparserl.recipes import Recipe, admissible, summarise
from sparserl.records import Problem
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train import estimate as estimates
from sparserl.train.cases import (
    TrainingCase,
    cut_cases,
    drawn_cases,
    far_cases,
    from_source,
    large_drawn_cases,
    shown_cases,
    strewn_cases,
    training_cases,
    twisted_cases,
)
from sparserl.train.chosen import ChoiceRules, choose, is_dev
from sparserl.train.collected import CollectedCase, load
from sparserl.train.controls import TreesConfig
from sparserl.train.encode_data import CUT_FROM, Draws, draw_pattern, draw_spec, twisted_real
from sparserl.train.withheld import withheld_recipe, withheld_text

PROBLEM = Problem()
PLAN = estimates.Plan(trees=TreesConfig(rounds=40, leaves=15, smallest_leaf=5))


def source(seed: int) -> dict[str, Any]:
    """Short rows for even seeds, long ones for odd."""
    params = {"rows": 400, "columns": 400, "per_row": 3 if seed % 2 == 0 else 48}
    return {"family": "uniform", "seed": seed, "params": params}


def case(seed: int) -> TrainingCase:
    return from_source(f"uniform-{seed}", source(seed))


def truth(pattern: Pattern, recipe: Recipe) -> float:
    """Log time: many lanes are good for long rows and bad for short ones; all else doesn't matter."""
    wanted = 1.0 if pattern.nonzeros / pattern.rows < 10 else 16.0
    return abs(math.log2(float(recipe.setting("lanes", 1)) / wanted)) * 0.5


def changed(recipe: Recipe, note: str) -> str:
    return recipe.text + f"// {note}\n"


def program(out: Path, text: str, parents: tuple[str, ...] = ()) -> None:
    line = {"program": sha(text), "text": text, "parents": list(parents), "mutations": ["unroll"], "binary": None}
    append_jsonl(out / "programs.jsonl", line)


def measured(seed: int, text: str, us: float | None, *, recipe: Recipe | None = None) -> dict[str, Any]:
    return {
        "case": f"uniform-{seed}", "problem": "spmv float32", "program": sha(text),
        "origin": "recipe" if recipe else "variant", "family": recipe.family if recipe else "any",
        "name": recipe.name if recipe else "unroll", "verdict": "WRONG" if us is None else "CORRECT",
        "solver_us": us, "chain_us": us, "retimed": True, "baseline_solver_us": 50.0, "baseline_chain_us": 50.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve matrices; every recipe has a variant as fast as itself and one that is wrong on some matrix."""
    out = tmp_path_factory.mktemp("collection")
    for seed in range(1_000_000, 1_000_012):
        pattern = families.make("uniform", seed, **source(seed)["params"])
        there = [r for r in admissible(summarise(pattern, PROBLEM)) if not withheld_recipe(r)]
        for number, recipe in enumerate(random.Random(seed).sample(there, 120)):
            us = math.exp(truth(pattern, recipe))
            program(out, recipe.text)
            append_jsonl(out / "measured.jsonl", measured(seed, recipe.text, us, recipe=recipe))
            for note, time_us in (("as fast", us), ("wrong", us if number else None)):
                program(out, changed(recipe, note), (sha(recipe.text),))
                append_jsonl(out / "measured.jsonl", measured(seed, changed(recipe, note), time_us))
        append_jsonl(
            out / "cases.jsonl",
            {"case": f"uniform-{seed}", "problem": "spmv float32", "split": "train", "source": source(seed),
             "rows": 400, "columns": 400, "nonzeros": pattern.nonzeros, "admitted": [], "device": "test"},
        )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def estimator(collection: Path) -> estimates.Estimator:
    kept = collection / "features.jsonl"
    return estimates.estimator(load(collection), PROBLEM, matrices=None, kept=kept, plan=PLAN)


def test_the_best_by_estimate_are_what_features_decide(estimator: estimates.Estimator) -> None:
    for seed in (1_002_000, 1_002_001):
        line, entries = estimator.entries(case(seed))
        recipes = [entry.recipe for entry in entries if entry.origin == "recipe"]
        assert len(recipes) == PLAN.recipes and line["nonzeros"] == case(seed).load().nonzeros
        assert sum(truth(case(seed).load(), recipe) for recipe in recipes) / len(recipes) < 0.2
        assert not any(withheld_text(entry.recipe.text) for entry in entries)
        logs = [math.log(entry.times_us["solver"]) for entry in entries]
        assert max(logs) - min(logs) <= PLAN.reach


def test_variants_come_with_their_recipe_and_never_one_that_was_wrong(
    collection: Path, estimator: estimates.Estimator
) -> None:
    _, entries = estimator.entries(case(1_002_000))
    recipes = {sha(entry.recipe.text): entry for entry in entries if entry.origin == "recipe"}
    variants = [entry for entry in entries if entry.origin == "variant"]
    assert variants
    for variant in variants:
        parent = recipes[variant.parents[0]]
        assert variant.times_us["solver"] == pytest.approx(parent.times_us["solver"])
        assert parse(variant.recipe.text).layout == parent.recipe.layout
    wrong = {line["program"] for line in read_jsonl(collection / "measured.jsonl") if line["verdict"] == "WRONG"}
    assert wrong and not wrong & {sha(variant.recipe.text) for variant in variants}


def test_what_a_variant_gains_over_a_slow_recipe_is_not_believed(tmp_path: Path, collection: Path) -> None:
    texts = {line["program"]: line["text"] for line in read_jsonl(collection / "programs.jsonl")}
    recipes = [line for line in read_jsonl(collection / "measured.jsonl") if line["origin"] == "recipe"][:3]
    best, near, slow = (texts[line["program"]] for line in recipes)
    for text, us, parent in (
        (best, 10.0, None), (near, 11.0, None), (slow, 30.0, None),
        (near + "// a\n", 9.0, near), (slow + "// b\n", 10.0, slow),
    ):  # fmt: skip
        program(tmp_path, text, (sha(parent),) if parent else ())
        line = measured(1_000_000, text, us)
        append_jsonl(tmp_path / "measured.jsonl", {**line, "origin": "variant" if parent else "recipe"})
    append_jsonl(tmp_path / "cases.jsonl", read_jsonl(collection / "cases.jsonl")[0])
    assert estimates.variants_of(load(tmp_path), PROBLEM) == {sha(near): [(sha(near + "// a\n"), 0.0)]}


def test_fine_tuning_reads_estimates_like_a_collection(tmp_path: Path, estimator: estimates.Estimator) -> None:
    cases = [case(seed) for seed in range(1_002_000, 1_002_004)]
    assert len(list(estimates.estimate(cases[:2], estimator, tmp_path))) == 2
    rows = list(estimates.estimate(cases, estimator, tmp_path, workers=2))
    assert len(rows) == 2 and "12 recipes" in rows[0], "those that are there are passed over"
    found = load(tmp_path)
    assert [each.name for each in found.cases] == [each.name for each in cases]
    train, dev = choose(found, dict.fromkeys((each.name for each in cases), "regular"), ChoiceRules())
    chosen = [*train, *dev]
    assert {each.case for each in chosen} == {each.name for each in cases}
    assert sum(each.variant for each in train) >= 0.4 * len(train)


def test_estimates_and_measurements_don_t_mix(collection: Path, estimator: estimates.Estimator) -> None:
    with pytest.raises(StoreError, match="are of test, not of estimate"):
        next(estimates.estimate([case(1_002_000)], estimator, collection))


def test_a_budget_that_is_spent_says_so(tmp_path: Path, estimator: estimates.Estimator) -> None:
    cases = [case(seed) for seed in (1_002_000, 1_002_001)]
    rows = list(estimates.estimate(cases, estimator, tmp_path, budget_s=0.0))
    assert len(rows) == 2 and "time is up" in rows[-1]
    assert len(load(tmp_path).cases) == 1


def test_matrices_like_those_of_the_encoder_are_made_again_from_what_is_written_down() -> None:
    few = drawn_cases(PROBLEM, 3, 5e3)
    assert [each.name for each in few] == ["drawn5000-0", "drawn5000-1", "drawn5000-2"]
    patterns = [each.load() for each in few]
    again = [from_source(each.name, json.loads(json.dumps(each.source))).load() for each in few]
    assert [p.fingerprint() for p in patterns] == [p.fingerprint() for p in again]
    assert len({p.fingerprint() for p in patterns}) == 3 and all(0 < p.nonzeros <= 1e4 for p in patterns)
    (large,) = large_drawn_cases(1)
    assert from_source(large.name, json.loads(json.dumps(large.source))) == large
    assert large.source == {"drawn": 0, "least": 2.5e6, "most": 2e7} and few[0].source == {"drawn": 0, "most": 5e3}
    listed = {each.drawn for each in large_drawn_cases(150)}
    assert len(listed) == 150 and (140, 2e7) in listed and (141, 2e7) not in listed, "141 has 226 million rows"
    sizes = sorted(draw_spec(1_000_000 + seed, Draws(least=2e5, most=1e6)).make().nonzeros for seed in range(12))
    assert sizes[6] > 3e5, "they are not all as small as they may be"
    largest = {op: drawn_cases(Problem(op), 1)[0].source["most"] for op in ("spmv", "spmm")}  # type: ignore[arg-type]
    assert largest == {"spmv": 3e6, "spmm": 1.5e6}


def test_cells_are_cut_out_as_a_whole_and_the_matrices_are_made_again_from_what_is_written_down() -> None:
    listed = cut_cases(PROBLEM, 40, 5e3)
    assert listed[3].name == "cut5000-3" and listed[3].source == {"cut": 3, "most": 5e3}
    patterns = [each.load() for each in listed]
    again = [from_source(each.name, json.loads(json.dumps(each.source))).load() for each in listed[:3]]
    assert [p.fingerprint() for p in patterns[:3]] == [p.fingerprint() for p in again]
    assert len({p.fingerprint() for p in patterns}) == 40 and all(100 <= p.nonzeros <= 1e4 for p in patterns)
    fewer = 0
    for number, cut in enumerate(patterns[:6]):
        tries = (draw_pattern(CUT_FROM + 16 * number + attempt, Draws(most=5e3)) for attempt in range(16))
        whole = next(each for each in tries if each.shape == cut.shape and each.nonzeros >= cut.nonzeros)
        places = [set(zip(p.row_index().tolist(), p.cols.tolist(), strict=True)) for p in (whole, cut)]
        assert places[1] <= places[0]
        fewer += len(places[1]) < len(places[0])
    assert fewer >= 5, "of a small one all cells may stay"


def test_the_command_takes_its_share_of_them(collection: Path, tmp_path: Path) -> None:
    words = ["--cases", "4", "--after", "0", "--most-nonzeros", "3000", "--drawn", "0.5", "--workers", "0"]
    places = ["--collection", str(collection), "--out", str(tmp_path)]
    said = CliRunner().invoke(cli.app, ["train", "estimate", *places, *words])
    assert said.exit_code == 0, said.output
    names = [case.name for case in load(tmp_path).cases]
    assert len(names) == 4 and [name.startswith("drawn3000-") for name in names] == [False, False, True, True]


def test_real_matrices_are_made_into_others_that_are_never_the_same(tmp_path: Path) -> None:
    listed = twisted_cases(PROBLEM, 80, 5e4)
    assert len({case.name for case in listed}) == 80 and all(case.split == "train" for case in listed)
    mine = [case for case in listed if case.real == listed[0].real]
    assert len(mine) > 1 and {case.real for case in listed} <= {case.name for case in splits.cases("train")}
    for case in mine:
        assert case.twist is not None and case.source == {"real": case.real, "twist": case.twist[0], "most": 5e4}
        assert from_source(case.name, case.source) == case
    whole = families.make("circuit", 1, rows=600, per_row=5.0, nets=3, net_rows=80)
    found = [twisted_real(whole, number, 5e4) for number in range(12)]
    assert len({each.fingerprint() for each in found}) == len(found)
    assert all(each.shape != whole.shape and 100 <= each.nonzeros <= 5e4 for each in found)
    assert found[0].fingerprint() == twisted_real(whole, 0, 5e4).fingerprint()
    with pytest.raises(MatrixError, match="No twist number 3"):
        twisted_real(whole, 3, 50)
    assert not twisted_cases(PROBLEM, 0, 10)
    with pytest.raises(MatrixError, match="small enough"):
        twisted_cases(PROBLEM, 1, 10)
    words = ["train", "estimate", "--collection", str(tmp_path), "--out", str(tmp_path / "o"), "--real", "3"]
    refused = CliRunner().invoke(cli.app, words)
    assert refused.exit_code != 0 and "--matrices" in str(refused.exception)


def test_what_a_real_matrix_was_made_into_is_for_dev_where_that_one_is() -> None:
    rules = ChoiceRules(dev_share=0.5)
    names = [case.name for case in splits.cases("train")]
    empty = {"rows": 1, "columns": 1, "nonzeros": 1, "admitted": (), "baseline_us": {}, "best_us": {}, "programs": ()}
    for name in names:
        own, *others = (
            CollectedCase(f"{name}{end}", "spmv float32", "train", {"real": name, **more}, **empty)  # type: ignore[arg-type]
            for end, more in (("", {}), *((f"-5-{k}", {"twist": k, "most": 5.0}) for k in range(8)))
        )
        assert {is_dev(each, rules) for each in others} == {is_dev(own, rules)}


def test_a_few_entries_anywhere_forbid_what_all_others_allow() -> None:
    line = parse_line("slices c=32 sigma=1 group=1 index=int16")
    forbidden = 0
    listed = strewn_cases(PROBLEM, 24, 2e6)
    assert len({case.name for case in listed}) == 24
    for case in listed:
        assert from_source(case.name, case.source) == case and case.spec is not None
        plain, found = case.spec.make(), case.load()
        more = found.nonzeros / plain.nonzeros
        assert found.shape == plain.shape and 1.0 < more < 1.45, "at most a fifth, twice where it is made symmetric"
        assert splits.may_train(case.spec)
        if plain.columns > 80_000 and admits(plain, line) is None:
            forbidden += admits(found, line) is not None
    assert forbidden >= 5
    assert strewn_cases(PROBLEM, 3)[0].source["seed"] != listed[0].source["seed"]


def test_shown_matrices_are_of_all_kinds_and_are_none_that_is_played() -> None:
    listed = shown_cases(8, real=True)
    assert len({case.name for case in listed}) == 5 * 8 and shown_cases(2) == [
        case for case in shown_cases(2, real=True) if not case.real
    ]
    played = {
        case.name
        for cases in (training_cases, drawn_cases, cut_cases, twisted_cases, strewn_cases)
        for case in cases(PROBLEM, 2000)
    }
    assert not played & {case.name for case in listed}
    assert not {case.spec.seed for case in training_cases(PROBLEM, 2000) if case.spec} & {
        case.spec.seed for case in listed if case.spec
    }
    kinds = set()
    for case in shown_cases(3, most_nonzeros=3e3):
        pattern = case.load()
        assert 0 < pattern.nonzeros < 2e4
        assert from_source(case.name, case.source).load().fingerprint() == pattern.fingerprint()
        kinds.add("drawn" if case.drawn else "cut" if case.cut else "strewn" if case.strewn else "generated")
    assert kinds == {"drawn", "cut", "strewn", "generated"}


def test_far_matrices_have_every_size_and_row_length_alike() -> None:
    listed = far_cases(PROBLEM, 300)
    assert listed[:20] == far_cases(PROBLEM, 20) and len({case.name for case in listed}) == 300
    usual = {case.spec.seed for case in training_cases(PROBLEM, 1000) if case.spec}
    assert not usual & {case.spec.seed for case in listed if case.spec}
    solid = [
        case.spec.params for case in listed if case.spec and case.spec.family == "fem" and "nz" in case.spec.params
    ]
    large = [each for each in solid if each["nx"] * each["ny"] * each["nz"] * each["b"] ** 2 * 20 > 2e6]
    assert min(Counter(each["b"] for each in large)[b] for b in (2, 3, 4, 6, 8)) >= 3
    for case in far_cases(PROBLEM, 10, 2e4):
        pattern = case.load()
        assert 500 < pattern.nonzeros < 8e4
        assert from_source(case.name, case.source).load().fingerprint() == pattern.fingerprint()
    assert far_cases(Problem(op="spmm", columns=32), 1)[0].source != listed[0].source
