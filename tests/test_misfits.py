"""Misfits: what would be wrong on a matrix is found from its pattern, and the judge agrees."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparserl.bench.archive import sha
from sparserl.families import make
from sparserl.judge.evaluate import Judge
from sparserl.matrix import Pattern
from sparserl.recipes import Recipe, admissible, space, summarise
from sparserl.recipes.fits import wrong
from sparserl.records import Problem, Verdict
from sparserl.store import read_jsonl
from sparserl.train.cases import range_up_to, training_cases
from sparserl.train.collected import CollectedCase, Collection, Measurement, ProgramText
from sparserl.train.forks import known_of_case
from sparserl.train.lessons import encode_programs
from sparserl.train.misfits import MISFITS, Suspect, drawn, find, misfits, read_misfits, suspect

PROBLEM = Problem()


def with_a_long_row(rows: int = 300, longest: int = 280) -> Pattern:
    lengths = np.full(rows, 2)
    lengths[7] = longest
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    cols = np.concatenate([np.arange(n) if n > 2 else np.array([i % 200, 200 + i % 90]) for i, n in enumerate(lengths)])
    return Pattern(rows, rows, start, cols.astype(np.int32))


def almost_banded(rows: int = 200) -> Pattern:
    """Three full diagonals and one entry far from them."""
    found = [[c for c in (i - 1, i, i + 1) if 0 <= c < rows] for i in range(rows)]
    found[0].append(rows // 2)
    start = np.concatenate([[0], np.cumsum([len(each) for each in found])]).astype(np.int32)
    return Pattern(rows, rows, start, np.concatenate(found).astype(np.int32))


def first(family: str, **settings: Any) -> Recipe:
    """The first recipe of a family with these settings, or layout parameters."""
    for recipe in space(PROBLEM):
        have = {**dict(recipe.layout.params), **recipe.params}
        if recipe.family == family and all(str(have.get(key)) == str(value) for key, value in settings.items()):
            return recipe
    raise AssertionError(f"no recipe of {family} with {settings}")


MISTAKEN = [
    (with_a_long_row(), first("tile", split=False, steps=2, threads=64)),
    (almost_banded(), first("diagonals", tail_lanes=0, fill=50)),
]


@pytest.mark.parametrize(("pattern", "recipe"), MISTAKEN, ids=["a long row", "an entry off the diagonals"])
def test_the_judge_finds_wrong_what_is_said_to_be(pattern: Pattern, recipe: Recipe) -> None:
    assert wrong(recipe, summarise(pattern, PROBLEM))
    right = next(r for r in admissible(summarise(pattern, PROBLEM)) if r.family == recipe.family)
    with Judge("sim", 1) as judge:
        case = judge.open(pattern, PROBLEM)
        outcomes = case.judge([recipe.text, right.text], (), 1)
        case.close()
    assert outcomes[0].verdict in (Verdict.WRONG, Verdict.FAILED)
    assert outcomes[1].verdict is Verdict.CORRECT and wrong(right, summarise(pattern, PROBLEM)) is None


def test_no_admissible_recipe_is_called_wrong() -> None:
    for pattern in (with_a_long_row(), almost_banded(), make("uniform", 3, rows=80, columns=80, per_row=4)):
        summary = summarise(pattern, PROBLEM)
        assert not [r.name for r in admissible(summary) if wrong(r, summary)]


def measured(recipe: Recipe, us: float, origin: str = "recipe") -> Measurement:
    return Measurement(
        sha(recipe.text), origin, recipe.family, recipe.name, Verdict.CORRECT, "", {"solver": us}, True, {}, {}
    )


def small_collection() -> Collection:
    """Matrices whose best programs are a tile without split and plain rows."""
    tile, rows = first("tile", split=False, steps=2, threads=64), first("row_lanes")
    listed = training_cases(PROBLEM, 6, within=range_up_to(PROBLEM, 1500))
    both = (measured(tile, 1.0), measured(rows, 1.05))
    cases = [CollectedCase(c.name, "spmv float32", "train", c.source, 1, 1, 1, (), {}, {}, both) for c in listed]
    texts = {sha(r.text): ProgramText(sha(r.text), r.text) for r in (tile, rows)}
    return Collection(tuple(cases), texts, {})


def test_a_variant_goes_by_its_parent_and_an_unknown_text_is_left_out() -> None:
    collection = small_collection()
    tile = first("tile", split=False, steps=2, threads=64)
    changed = tile.text.replace("sum", "total")
    texts = {**collection.texts, "v": ProgramText("v", changed, (sha(tile.text),)), "u": ProgramText("u", changed)}
    collection = replace(collection, texts=texts)
    found = suspect("v", collection, PROBLEM)
    assert found is not None and wrong(found.recipe, summarise(with_a_long_row(), PROBLEM))
    assert suspect("u", collection, PROBLEM) is None


def test_misfits_are_found_from_the_pattern_written_once_and_lose_in_the_ranking_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = small_collection()
    names = [case.name for case in collection.cases]
    long = names[2]
    monkeypatch.setattr(
        "sparserl.train.misfits.load_pattern",
        lambda name, *_: with_a_long_row() if name == long else make("uniform", 3, rows=80, columns=80, per_row=4),
    )
    said = list(misfits(collection, tmp_path))
    assert len(said) == len(names) and list(misfits(collection, tmp_path)) == []
    found = read_misfits(tmp_path)
    tile = sha(first("tile", split=False, steps=2, threads=64).text)
    assert found[long, "spmv float32"] == (tile,)
    assert all(not each for (name, _), each in found.items() if name != long)
    assert "longer than a block" in read_jsonl(tmp_path / MISFITS)[2]["misfits"][tile]
    case = replace(collection.cases[2], programs=collection.cases[2].programs[1:])
    ids = encode_programs({name: each.text for name, each in collection.texts.items()}, 2560)
    known = list(known_of_case(case, collection, ids, found[long, "spmv float32"], "solver"))
    assert [us for each, us in known if each is ids[tile]] == [(inf, inf)]
    assert not [us for each, us in known_of_case(case, collection, ids, (), "solver") if each is ids[tile]]


def test_draws_go_by_weight_and_name_and_at_most_two_of_a_layout_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = [r for r in space(PROBLEM) if r.family == "tile" and not r.setting("split")
             and r.layout.number("steps") * r.layout.number("threads") < 280][:5]  # fmt: skip
    ones = [Suspect(str(at), recipe) for at, recipe in enumerate(tiles)]
    among = [(one, 1.0 if at else 1e6) for at, one in enumerate(ones)]
    assert drawn(among, 20, "a") == drawn(among, 20, "a") == [ones[0]]
    assert drawn([], 20, "a") == []
    monkeypatch.setattr("sparserl.train.misfits.load_pattern", lambda *_: with_a_long_row())
    (line,) = find(("m", "train", {}, [("spmv float32", ones)]), 4, None)
    assert len(line["misfits"]) == 2
