"""Where records come from: every way of measuring is told apart, and other versions don't mix in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparserl.bench import archive, command, matrices, provenance
from sparserl.bench.run import Bench, BenchConfig
from sparserl.errors import StoreError
from sparserl.records import Mode, Problem
from sparserl.store import append_jsonl, read_jsonl

SMALL = "family:stencil2d,nx=12,ny=10,points=5"


def measure(out: Path, problem: Problem = Problem(), modes: tuple[Mode, ...] = ("solver",), **more: Any) -> None:  # noqa: B008
    config = BenchConfig(problem, "sim", modes, policy="recipes", candidates=1, rounds=1)
    with Bench(config, out, **more) as bench:
        list(bench.run(matrices.entries([SMALL])))


def abouts(out: Path) -> list[dict[str, Any]]:
    return [r for r in archive.read(out, "bench") if r["kind"] == "about"]


def test_every_problem_and_mode_keeps_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("--mode solver", "--mode chain", "--dtype f64"):
        monkeypatch.setattr(sys, "argv", ["sparserl", "bench", *words.split(), "--share", "1/5", "--budget=60"])
        problem = Problem("spmv", "float64") if "f64" in words else Problem()
        measure(tmp_path, problem, ("chain",) if "chain" in words else ("solver",))
    found = abouts(tmp_path)
    assert [(a["problem"], a["modes"]) for a in found] == [
        ("spmv float32", ["solver"]), ("spmv float32", ["chain"]), ("spmv float64", ["solver"]),
    ]  # fmt: skip
    said = [f"sparserl bench {words}" for words in ("--mode solver", "--mode chain", "--dtype f64")]
    assert [a["command"] for a in found] == said
    assert len({a["id"] for a in found}) == 3
    times = [r for r in archive.read(tmp_path, "bench") if r["kind"] == "time"]
    assert {(r["run"], r["problem"], r["mode"]) for r in times} == {
        (a["id"], a["problem"], a["modes"][0]) for a in found
    }


def test_calls_that_differ_in_the_command_alone_are_all_kept(tmp_path: Path) -> None:
    head = {"kind": "about", "id": "a"}
    append_jsonl(tmp_path / "bench.jsonl", *({**head, "command": each, "date": at} for at, each in enumerate("xyx")))
    assert [(a["command"], a["date"]) for a in abouts(tmp_path)] == [("y", 1), ("x", 2)]


def pretend(out: Path, **versions: str) -> None:
    """The records of a folder were made with these versions."""
    records = read_jsonl(out / "bench.jsonl")
    for each in records:
        if each["kind"] == "about":
            each["versions"] |= versions
            each["id"] = "before"
    (out / "bench.jsonl").unlink()
    append_jsonl(out / "bench.jsonl", *records)


def test_other_versions_are_refused_unless_they_are_wanted_and_told_then(tmp_path: Path) -> None:
    measure(tmp_path)
    pretend(tmp_path, sparserl="0.0.7")
    with pytest.raises(StoreError, match=r"sparserl 0\.0\.7 and .*--other-versions"):
        measure(tmp_path, modes=("chain",))
    measure(tmp_path, modes=("chain",), other_versions=True)
    assert len(abouts(tmp_path)) == 2
    assert "with more than one sparserl: 0.0.7" in command.show(archive.read(tmp_path, "bench"))


def test_a_folder_goes_on_where_nothing_that_counts_has_changed(tmp_path: Path) -> None:
    measure(tmp_path)
    pretend(tmp_path, python="3.9.1", scipy="1.0")
    measure(tmp_path, modes=("chain",))
    assert len(abouts(tmp_path)) == 2


def test_versions_that_no_time_depends_on_may_differ() -> None:
    first = {"driver": "580.1", "versions": {"torch": "2.11", "python": "3.11", "scipy": "1"}}
    second = {"driver": "590.2", "versions": {"torch": "2.12", "python": "3.12", "scipy": "2"}}
    assert provenance.differing([first, second]) == {"kernel driver": ["580.1", "590.2"], "torch": ["2.11", "2.12"]}
    assert provenance.differing([first, {"versions": {"python": "3.9"}}]) == {}


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *settings, "-C", str(folder), *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_commit_is_that_of_the_package_with_a_mark_where_its_source_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "src" / "sparserl" / "bench" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.write_text("one")
    monkeypatch.setattr(provenance, "__file__", str(module))
    monkeypatch.delenv("SPARSERL_COMMIT", raising=False)
    assert provenance.commit() is None, "there is no repository"
    with monkeypatch.context() as told:
        told.setenv("SPARSERL_COMMIT", "0123456789ab")
        assert provenance.commit() == "0123456789ab", "a copy without one is told"
    git(tmp_path, "init", "-q")
    assert provenance.commit() is None, "there is no commit"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    named = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    (tmp_path / "results.jsonl").write_text("made meanwhile")
    assert provenance.commit() == named
    module.write_text("two")
    assert provenance.commit() == f"{named}+"
