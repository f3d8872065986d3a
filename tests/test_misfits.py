"""Misfits: what does not fit a matrix is found from its pattern; what fits is right, however it is misread."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparserl import layouts
from sparserl.bench.archive import sha
from sparserl.families import make
from sparserl.judge.evaluate import Judge
from sparserl.matrix import Pattern
from sparserl.recipes import Recipe, admissible, space, summarise
from sparserl.recipes.fits import padded, unfit
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


ELL = next(r for r in space(PROBLEM) if str(r.layout) == "ell c=32 group=1 index=int32")
MISTAKEN = [
    (with_a_long_row(), *(first("tile", split=split, steps=2, threads=64) for split in (False, True))),
    (almost_banded(), first("diagonals", tail_lanes=0, fill=50, threads=128, load="cached"),
     first("diagonals", tail_lanes=1, fill=50, threads=128, load="cached")),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "misread", "meant"), MISTAKEN, ids=["a long row", "an entry off the diagonals"])
def test_a_recipe_for_another_matrix_is_right_on_this_one(pattern: Pattern, misread: Recipe, meant: Recipe) -> None:
    summary = summarise(pattern, PROBLEM)
    assert unfit(misread, summary) and unfit(meant, summary) is None and misread.text == meant.text
    with Judge("sim", 1) as judge:
        case = judge.open(pattern, PROBLEM)
        (outcome,) = case.judge([misread.text], (), 1)
        case.close()
    assert outcome.verdict is Verdict.CORRECT


def padded_ell(longest: int) -> Pattern:
    """4 000 rows of two, one of `longest`: the widest of them makes so many slots a nonzero."""
    return with_a_long_row(4000, longest)


def test_recipes_keep_a_margin_to_what_ell_admits() -> None:
    verdicts = []
    for longest in (5, 9, 14):
        pattern = padded_ell(longest)
        verdicts.append((layouts.admits(pattern, ELL.layout) is None, padded(pattern, ELL.layout) is None))
    assert verdicts == [(True, True), (True, False), (False, False)]
    fit, unfit_there = (admissible(summarise(padded_ell(longest), PROBLEM)) for longest in (5, 9))
    assert ELL in fit and ELL not in unfit_there
    with Judge("sim", 1) as judge:
        case = judge.open(padded_ell(9), PROBLEM)
        assert case.judge([ELL.text], (), 1)[0].verdict is Verdict.CORRECT
        case.close()


def measured(recipe: Recipe, us: float, origin: str = "recipe") -> Measurement:
    return Measurement(
        sha(recipe.text), origin, recipe.family, recipe.name, Verdict.CORRECT, "", {"solver": us}, True, {}, {}
    )


def small_collection() -> Collection:
    """Matrices whose best programs are ELL and plain rows."""
    ell, rows = ELL, first("row_lanes")
    listed = training_cases(PROBLEM, 6, within=range_up_to(PROBLEM, 1500))
    both = (measured(ell, 1.0), measured(rows, 1.05))
    cases = [CollectedCase(c.name, "spmv float32", "train", c.source, 1, 1, 1, (), {}, {}, both) for c in listed]
    texts = {sha(r.text): ProgramText(sha(r.text), r.text) for r in (ell, rows)}
    return Collection(tuple(cases), texts, {})


def test_a_program_goes_by_the_layout_that_it_names_and_one_that_cannot_be_read_is_left_out() -> None:
    collection = small_collection()
    changed = ELL.text.replace("sum", "total")
    texts = {**collection.texts, "v": ProgramText("v", changed, (sha(ELL.text),)), "u": ProgramText("u", "no program")}
    collection = replace(collection, texts=texts)
    assert suspect("v", collection) == Suspect("v", ELL.layout)
    assert suspect("u", collection) is None


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
    ell = sha(ELL.text)
    assert found[long, "spmv float32"] == (ell,)
    assert all(not each for (name, _), each in found.items() if name != long)
    assert "the limit is" in read_jsonl(tmp_path / MISFITS)[2]["misfits"][ell]
    case = replace(collection.cases[2], programs=collection.cases[2].programs[1:])
    ids = encode_programs({name: each.text for name, each in collection.texts.items()}, 2560)
    known = list(known_of_case(case, collection, ids, found[long, "spmv float32"], "solver"))
    assert [us for each, us in known if each is ids[ell]] == [(inf, inf)]
    assert not [us for each, us in known_of_case(case, collection, ids, (), "solver") if each is ids[ell]]


def test_draws_go_by_weight_and_name_and_at_most_two_of_a_layout_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [r for r in space(PROBLEM) if r.layout.name == "ell"][:5]
    ones = [Suspect(str(at), recipe.layout) for at, recipe in enumerate(wide)]
    among = [(one, 1.0 if at else 1e6) for at, one in enumerate(ones)]
    assert drawn(among, 20, "a") == drawn(among, 20, "a") == [ones[0]]
    assert drawn([], 20, "a") == []
    monkeypatch.setattr("sparserl.train.misfits.load_pattern", lambda *_: with_a_long_row())
    (line,) = find(("m", "train", {}, [("spmv float32", ones)]), 4, None)
    assert len(line["misfits"]) == 2
