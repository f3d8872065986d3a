"""Options of `sparserl bench` do what they say, or are refused with a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparserl import cli
from sparserl.bench import archive, matrices, run, tuned
from sparserl.bench.run import Bench, BenchConfig
from sparserl.errors import SparseRLError
from sparserl.records import Problem

SMALL = "family:stencil2d,nx=12,ny=10,points=5"
LARGER = "family:uniform,rows=90,columns=80,per_row=9,seed=3"
OTHER = "family:uniform,rows=60,columns=50,per_row=5,seed=3"


def bench(out: Path, *words: str) -> Result:
    settings = ["--device", "sim", "--candidates", "1", "--rounds", "1", "--policy", "recipes", "--out", str(out)]
    return CliRunner().invoke(cli.app, ["bench", *settings, *words])


def measured(out: Path) -> list[str]:
    return [r["matrix"] for r in archive.read(out, "bench") if r["kind"] == "matrix"]


def test_a_program_beside_modelled_times_is_refused(tmp_path: Path) -> None:
    done = bench(tmp_path, "--matrices", SMALL, "--peer", "mine=true {mtx}")
    assert isinstance(done.exception, SparseRLError) and "'--peer'" in str(done.exception)
    assert "mine" in str(done.exception) and not list(tmp_path.iterdir())


def test_who_takes_no_part_on_the_simulator_is_told(tmp_path: Path) -> None:
    assert bench(tmp_path, "--matrices", SMALL).exit_code == 0
    (about,) = [r for r in archive.read(tmp_path, "bench") if r["kind"] == "about"]
    assert about["peers_missing"] == dict.fromkeys(("torch:csr", "cupy:csr", "scipy"), run.MODELLED)


def test_larger_matrices_are_left_out_also_where_no_list_says_their_size(tmp_path: Path) -> None:
    (tmp_path / "broken.mtx").write_text("hello\n")
    (tmp_path / "list.txt").write_text(f"small = {SMALL}\nlarger = {LARGER}\nbroken.mtx\nmemplus\n")
    done = bench(tmp_path / "out", "--matrices", str(tmp_path / "list.txt"), "--most-nonzeros", "600")
    assert done.exit_code == 0, done.output
    assert measured(tmp_path / "out") == ["small", "broken"]


def test_a_benchmark_of_spmm_must_be_told_its_columns(tmp_path: Path) -> None:
    done = bench(tmp_path, "--matrices", SMALL, "--op", "spmm")
    assert isinstance(done.exception, SparseRLError) and "--columns" in str(done.exception)
    assert bench(tmp_path, "--matrices", SMALL, "--op", "spmm", "--columns", "2").exit_code == 0
    assert {r["problem"] for r in archive.read(tmp_path, "bench") if r["kind"] == "matrix"} == {
        "spmm float32 2 row row"
    }


def test_what_warms_up_is_tuned_first_and_in_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned_rows: list[int] = []
    whole = run.tuned

    def noted(matrix: Any, *given: Any) -> tuned.Tuned:
        tuned_rows.append(matrix.pattern.rows)
        return whole(matrix, *given)

    monkeypatch.setattr(run, "tuned", noted)
    asked = ["--matrices", SMALL, "--matrices", LARGER, "--warm-up", OTHER]
    assert bench(tmp_path, *asked).exit_code == 0
    assert tuned_rows == [60, 120, 90]
    assert sorted(measured(tmp_path)) == sorted(text.removeprefix("family:") for text in (SMALL, LARGER))
    assert bench(tmp_path, *asked).exit_code == 0 and len(tuned_rows) == 3, "where nothing waits nothing is warmed up"


def test_what_warms_up_is_none_of_those_that_are_measured(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"a = {SMALL}\n")
    wanted, (warm,) = matrices.entries([str(tmp_path / "list.txt")]), matrices.entries([SMALL])
    config = BenchConfig(Problem(), "sim", policy="recipes", candidates=1, rounds=1)
    with Bench(config, tmp_path / "out", warm_up=warm) as made, pytest.raises(SparseRLError, match="warm-up"):
        next(made.run(wanted))
