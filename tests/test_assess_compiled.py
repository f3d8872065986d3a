"""What a writer's programs come to without a GPU: verdicts up to the compiler, and what the choice of layouts costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparserl import families, splits
from sparserl.errors import SparseRLError
from sparserl.evaluation import Case
from sparserl.recipes import space
from sparserl.records import Problem
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train import commands_eval
from sparserl.train.assess_compiled import COMPILED, brief_times, layout_costs
from sparserl.train.controls import Choices

PROBLEM = Problem()
RECIPE = next(each for each in space(PROBLEM) if each.family == "row_lanes" and not each.pdl)
BROKEN = {
    "no program": "int main() {}",
    "screened": RECIPE.text.replace("acc_t sum", "clock(); acc_t sum", 1),
    "no such name": RECIPE.text.replace("// launch:", "// bake: WIDTH\n// launch:", 1),
    "refused": next(r.text for r in space(PROBLEM) if r.layout.name == "slices" and r.layout.index == "int16"),
    "not CUDA": RECIPE.text.replace("acc_t sum", "acc_t sum = vals; acc_t other", 1),
}


def case_of(name: str, columns: int) -> Case:
    params = {"rows": 40, "columns": columns, "per_row": 3}
    pattern = families.make("uniform", 0, **params)
    return Case(name, "small", "generated", "uniform", pattern.rows, pattern.columns, pattern.nonzeros,
                pattern.fingerprint()[:16], family="uniform", params=params)  # fmt: skip


CASES = (case_of("narrow", 50), case_of("wide", 90_000))


@pytest.fixture
def choices(tmp_path: Path) -> Path:
    texts = {"recipe": RECIPE.text, **BROKEN}
    Choices("mine", "spmv float32", {case.name: [*texts] for case in CASES}, texts).save(tmp_path / "mine.json")
    return tmp_path / "mine.json"


def test_programs_are_compiled_where_there_is_no_gpu_and_what_fails_is_told(
    choices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(splits, "cases", lambda split: CASES)
    out, reference = tmp_path / "out", tmp_path / "reference"
    about = {"matrix": "narrow", "problem": "spmv float32"}
    timed = [{**about, "layout": str(RECIPE.layout), "solver_us": 3.0}, {**about, "layout": "other", "solver_us": 2.7}]
    reference.mkdir()
    append_jsonl(reference / "explored.jsonl", *timed)
    given = {"policy": [str(choices)], "split": "dev", "out": out, "device": "none", "reference": reference}
    commands_eval.evaluate(**given, samples=len(BROKEN) + 1)
    first = capsys.readouterr().out
    held = {
        record["case"]: [each["verdict"] for each in record["programs"].values()]
        for record in read_jsonl(out / COMPILED)
    }
    assert sorted(held["wide"]) == ["COMPILES", "INADMISSIBLE", "SCREENED", "UNCOMPILABLE", "UNREADABLE", "UNREADABLE"]
    assert held["narrow"].count("COMPILES") >= 1
    assert "layout@1 0.9000 and best 0.9000 on 1 matrices" in first
    assert "mine, wide: UNREADABLE: " in first and "mine, wide: INADMISSIBLE: " in first
    commands_eval.evaluate(**given, samples=len(BROKEN) + 1)
    again = capsys.readouterr().out
    assert again == first[first.index("mine: 2 matrices") :], "nothing is compiled twice"
    assert not (out / "measured.jsonl").exists()
    for _ in range(2):  # another writer, which comes later
        commands_eval.evaluate(**{**given, "policy": ["recipes"]}, samples=len(BROKEN) + 1)
    compiled = [(record["case"], program) for record in read_jsonl(out / COMPILED) for program in record["programs"]]
    assert len(compiled) == len(set(compiled)) > 2 * len(BROKEN) + 2


def test_layouts_cost_what_the_fastest_recipe_with_each_line_is_behind(tmp_path: Path) -> None:
    rows = [
        ("a", "x", 2.0, "f"),
        ("a", "x", 4.0, "g"),
        ("a", "y", 1.0, "f"),
        ("b", "x", 5.0, "f"),
        ("b", "y", None, "f"),
    ]
    named = [
        {"matrix": matrix, "problem": "spmv float32", "family": family, "layout": line, "solver_us": us}
        for matrix, line, us, family in rows
    ]
    append_jsonl(tmp_path / "explored.jsonl", *named, {**named[0], "problem": "spmv float64", "solver_us": 0.1})
    times = brief_times(tmp_path, PROBLEM)
    assert times == {"a": {"x": 2.0, "y": 1.0}, "b": {"x": 5.0}}
    assert layout_costs(["x", "never timed", "y"], times["a"]) == pytest.approx([-0.6931, 0.0], abs=1e-4)


def test_no_gpu_is_no_matter_for_several_processes(tmp_path: Path) -> None:
    with pytest.raises(SparseRLError, match="--device none are for a process of their own"):
        commands_eval.evaluate(policy=["recipes"], split="dev", out=tmp_path, device="none", share="0/2")
