"""Which layouts a run's matrices admit: as the recipes say, worked out once, and again where something changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparserl.families import Spec
from sparserl.layouts import admits, parse_line
from sparserl.recipes import admissible, summarise
from sparserl.records import Problem
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train import samples
from sparserl.train.cases import TrainingCase
from sparserl.train.controls import SMS
from sparserl.train.rl import admitted
from sparserl.train.rl.admitted import admitted_of, lines_of
from sparserl.train.rl.explore import pair_of
from sparserl.train.rl.nouns import Prompt

PROBLEMS = (Problem(), Problem("spmm", "float32", 32))
CASES = [TrainingCase(f"grid{nx}", Spec("stencil2d", 1_000_003, {"nx": nx, "ny": 8, "points": 5})) for nx in (9, 12)]
PROMPTS = [Prompt(case.name, case.source, problem) for problem in PROBLEMS for case in CASES]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The prompts that are worked out from now on."""
    asked: list[Any] = []
    own = admitted._records

    def records(prompts: Any, matrices: Path | None) -> Any:
        asked.extend(prompts)
        return own(prompts, matrices)

    monkeypatch.setattr(admitted, "_records", records)
    return asked


def test_lines_are_those_of_the_recipes_that_the_matrix_admits(tmp_path: Path) -> None:
    found = admitted_of(PROMPTS, tmp_path / "samples.jsonl")
    for prompt, case in zip(PROMPTS, CASES * 2, strict=True):
        recipes = admissible(summarise(case.load(), prompt.problem, SMS))
        lines = found[pair_of(prompt)]
        assert set(lines) == {str(recipe.layout) for recipe in recipes} and list(lines) == sorted(lines)
        refused = set(lines_of(prompt.problem)) - set(lines)
        assert len(lines) > 5 and all(admits(case.load(), parse_line(line)) is None for line in lines)
        if prompt.problem.op == "spmv":
            assert any(admits(case.load(), parse_line(line)) for line in refused)


def test_what_is_known_is_not_worked_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = tmp_path / "samples.jsonl", counted(monkeypatch)
    first = admitted_of(PROMPTS[:1], path)
    assert asked == PROMPTS[:1] and len(read_jsonl(path)) == 1
    every = admitted_of(PROMPTS, path)
    assert sorted(map(pair_of, asked)) == sorted(map(pair_of, PROMPTS))  # each once
    assert every[pair_of(PROMPTS[0])] == first[pair_of(PROMPTS[0])]
    assert admitted_of(PROMPTS, path) == every and len(asked) == len(PROMPTS) == len(read_jsonl(path))


def test_another_matrix_of_the_same_name_or_other_recipes_are_worked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, prompt = tmp_path / "samples.jsonl", PROMPTS[0]
    before = admitted_of([prompt], path)
    spec = Spec("uniform", 1_000_004, {"rows": 90, "columns": 70, "per_row": 3})
    other = replace(prompt, source=TrainingCase("x", spec).source)
    assert admitted_of([other], path) != before and admitted_of([prompt], path) == before
    asked = counted(monkeypatch)
    known = lines_of(prompt.problem)
    monkeypatch.setattr(admitted, "lines_of", lambda problem: known[1:])
    admitted._lines_key.cache_clear()
    try:
        less = admitted_of([prompt], path)[pair_of(prompt)]
    finally:
        admitted._lines_key.cache_clear()
    assert asked == [prompt] and set(less) == set(before[pair_of(prompt)]) - {known[0]}


def test_a_torn_last_line_costs_that_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    found = admitted_of(PROMPTS, path)
    path.write_bytes(path.read_bytes()[:-5])
    assert admitted_of(PROMPTS, path) == found
    assert len(read_jsonl(path)) == len(PROMPTS)
    append_jsonl(path, {"case": "another", "problem": "spmv float32", "key": "", "bits": "0"})
    assert admitted_of(PROMPTS, path) == found


def test_many_matrices_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = admitted_of(PROMPTS, tmp_path / "alone.jsonl")
    monkeypatch.setattr(samples, "FEW", 1)
    assert admitted_of(PROMPTS, tmp_path / "shared.jsonl") == alone
