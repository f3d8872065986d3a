"""A stored policy as a writer, and the command: its own temperature, withheld headers, the admissibility mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sparserl import families, splits
from sparserl.errors import SparseRLError
from sparserl.evaluation import Case
from sparserl.layouts import admits, parse_line
from sparserl.policy.checkpoint import save_policy
from sparserl.policy.model import make_policy
from sparserl.policy.writer import Writer, stored_settings
from sparserl.records import Problem
from sparserl.store import read_jsonl
from sparserl.train import commands_eval
from sparserl.train.assess import Loaded, Sample
from sparserl.train.assess_policy import Drawing, PolicyWriter
from sparserl.train.withheld import withheld_text

PROBLEM = Problem()
SAMPLING = {"temperature": 0.8, "max_tokens": 48}


def case_of(name: str, nx: int) -> Case:
    pattern = families.make("stencil2d", 0, nx=nx, ny=10, points=5)
    return Case(name, "small", "generated", "stencil2d", pattern.rows, pattern.columns, pattern.nonzeros,
                pattern.fingerprint()[:16], family="stencil2d", params={"nx": nx, "ny": 10, "points": 5})  # fmt: skip


CASES = (case_of("one", 8), case_of("two", 12))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("stage") / "policy"
    save_policy(make_policy("tiny"), where, notes={"sampling": SAMPLING})
    return where


def write(folder: Path, **drawing: bool | float) -> list[list[Sample]]:
    writer = PolicyWriter(folder, PROBLEM, Drawing(samples=4, **drawing), "tiny")  # type: ignore[arg-type]
    return writer.write([Loaded(case, None) for case in CASES])


def test_a_policy_is_sampled_as_it_was_stored(folder: Path) -> None:
    settings = stored_settings(folder)
    assert (settings.temperature, settings.max_tokens) == (0.8, 48)
    found = write(folder)
    assert [len(samples) for samples in found] == [4, 4]
    assert all(sum(part.tokens for part in s.parts.values()) <= 48 for samples in found for s in samples)
    assert found == write(folder)
    assert found != write(folder, seed=1)


def test_temperature_and_top_p_stand_in_for_the_stored_ones(folder: Path) -> None:
    """Of the most probable token alone, or nearly so, all samples are one."""
    for nearly_greedy in ({"temperature": 1e-4}, {"top_p": 1e-6}):
        for samples in write(folder, **nearly_greedy):
            assert len({sample.text for sample in samples}) == 1
    assert any(len({sample.text for sample in samples}) > 1 for samples in write(folder))


def test_a_policy_may_be_told_that_chains_are_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def heard(self: Writer, *given: Any, mode: str, **named: Any) -> list[list[Any]]:
        told.append(mode)
        return [[] for _ in given[0]]

    monkeypatch.setattr(Writer, "write", heard)
    names = []
    for mode in ("solver", "chain"):
        writer = PolicyWriter(folder, PROBLEM, Drawing(mode=mode), "tiny")  # type: ignore[arg-type]
        writer.write([Loaded(CASES[0], None)])
        names.append(writer.name)
    assert told == ["solver", "chain"] and names == ["tiny", "tiny@chain"]


def test_unknown_sampling_notes_are_refused(tmp_path: Path) -> None:
    save_policy(make_policy("tiny"), tmp_path / "policy", notes={"sampling": {"heat": 1}})
    with pytest.raises(SparseRLError, match="heat"):
        stored_settings(tmp_path / "policy")


def test_a_prompted_policy_is_given_withheld_headers_and_writes_the_rest(folder: Path) -> None:
    for samples in write(folder, prompted=True):
        headers = {"\n".join(line for line in s.text.split("\n") if line.startswith("// ")) for s in samples}
        assert len(headers) == 4
        for sample in samples:
            header = "\n".join(line for line in sample.text.split("\n") if line.startswith("// "))
            assert withheld_text(f"{header}\nvoid f() {{}}\n"), header
            assert set(sample.parts) == {"code"}  # no token of the header was its own choice


def test_a_masked_policy_writes_only_layout_lines_that_the_matrix_admits(folder: Path) -> None:
    for case, samples in zip(CASES, write(folder, masked=True), strict=True):
        for sample in samples:
            line = sample.text.partition("\n")[0].removeprefix("// layout: ")
            assert admits(case.load(), parse_line(line)) is None


def test_the_command_writes_records_and_page_and_takes_them_up_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "cases", lambda split: CASES)
    app = typer.Typer()
    app.command()(commands_eval.evaluate)
    out = tmp_path / "results"
    words = ["--policy", f"nano={folder}", "--policy", "recipes", "--split", "dev", "--device", "sim", "--samples", "2"]
    words += ["--out", str(out), "--most-nonzeros", "400", "--withheld"]
    first = CliRunner().invoke(app, words, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    assert "nano: 1 matrices" in first.output
    assert "nano@withheld: 1 matrices" in first.output
    assert "heuristic: 1 matrices" in first.output
    assert first.output.strip().endswith(str(out / "index.html"))
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert again.output == first.output[first.output.index("nano: 1 matrices") :]
    assert "above 400 nonzeros were left out" in (out / "index.html").read_text()


def test_several_processes_measure_what_one_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "cases", lambda split: CASES)
    given = {"policy": ["recipes"], "split": "dev", "out": tmp_path, "device": "sim", "samples": 2}
    commands_eval.evaluate(**given, choose_only=True)
    assert not (tmp_path / "measured.jsonl").exists()
    for share in ("0/2", "1/2"):
        commands_eval.evaluate(**given, share=share)
        assert not (tmp_path / "index.html").exists()
    assert [record["case"] for record in read_jsonl(tmp_path / "measured.jsonl")] == ["one", "two"]
    commands_eval.evaluate(**given)
    assert len(read_jsonl(tmp_path / "measured.jsonl")) == 2 and (tmp_path / "index.html").exists()
    with pytest.raises(SparseRLError, match="--choose-only"):
        commands_eval.evaluate(**given, share="0/2", choose_only=True)


def test_what_was_chosen_in_an_earlier_evaluation_is_taken_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "cases", lambda split: CASES)
    given = {"split": "dev", "device": "sim", "samples": 2, "choose_only": True}
    commands_eval.evaluate(policy=["recipes"], out=tmp_path / "one", **given)
    commands_eval.evaluate(policy=[f"heuristic={tmp_path / 'one'}"], out=tmp_path / "two", **given)
    written = [read_jsonl(tmp_path / name / "written-heuristic.jsonl") for name in ("one", "two")]
    assert len(written[0]) == 2 and written[0] == written[1]
    assert read_jsonl(tmp_path / "one" / "programs.jsonl") == read_jsonl(tmp_path / "two" / "programs.jsonl")
    with pytest.raises(SparseRLError, match=r"Nobody called 'trees' has written in .*one, only heuristic"):
        commands_eval.evaluate(policy=[f"trees={tmp_path / 'one'}"], out=tmp_path / "three", **given)
    with pytest.raises(SparseRLError, match="for 'spmv float32', not for 'spmv float64'"):
        commands_eval.evaluate(policy=[f"heuristic={tmp_path / 'one'}"], out=tmp_path / "four", dtype="f64", **given)


def test_a_test_split_takes_no_sampling(tmp_path: Path) -> None:
    for given in ({"temperature": 0.5}, {"top_p": 0.9}):
        with pytest.raises(SparseRLError, match="dev split"):
            commands_eval.evaluate(policy=["random"], split="real", out=tmp_path, **given)
    for given in ({"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}):
        with pytest.raises(SparseRLError, match="must be above 0"):
            commands_eval.evaluate(policy=["random"], split="dev", out=tmp_path, **given)


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparseRLError, match="dev, seen, unseen, real"):
        commands_eval.evaluate(policy=["random"], split="train", out=tmp_path)
