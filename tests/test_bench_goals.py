"""The goals of a benchmark and its table for the README, from records whose answers are known."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from report_records import records
from sparserl.bench import archive, figures
from sparserl.bench.__main__ import app
from sparserl.bench.bars import Bar
from sparserl.bench.digest import BEGIN, END
from sparserl.bench.figures import OPERATOR
from sparserl.bench.goals import goals, markdown
from sparserl.bench.second_opinion import Opinion
from sparserl.errors import TRY_AGAIN
from sparserl.store import append_jsonl

ROOT = Path(__file__).parents[1]
BASE = "cusparse:coo1"
ABOUT = {"policy": "nano", "candidates": 16, "device": "NVIDIA H200", "copy_tb_s": 4.0, "l2_bytes": 60e6}
Rows = list[dict[str, Any]]


def pair(name: str, gain: float, *, us: float = 10.0, mode: str = "solver", **more: Any) -> Rows:
    """A matrix on which the operator takes `us` and is `gain` times as fast as the baseline, twice that as CSR."""
    head = {"matrix": name, "problem": more.pop("problem", "spmv float32")}
    about = {
        "kind": "matrix", "origin": "real", "split": "real", "structure": "small", "headline": True, "rows": 1000,
        "columns": 1000, "nonzeros": 10_000, "modes": [mode], "tuning_s": 2.0, "packed_bytes": 60_000,
    }  # fmt: skip
    sides = {OPERATOR: us, BASE: gain * us, "cusparse:csr1": 2 * gain * us}
    times = [
        {"kind": "time", **head, "side": side, "mode": mode, "median_us": t, "floor_us": 0.5, "verified": True,
         "source": "gpu"} for side, t in sides.items()
    ]  # fmt: skip
    return [{**about, **head, **more}, *times]


def asked(rows: Rows, **more: Any) -> dict[str, Bar]:
    return {f"{b.problem}: {b.title}": b for b in goals(figures.standings(rows), ABOUT, **more)}


def test_only_what_a_headline_may_count_is_in_a_goal() -> None:
    rows = [
        *pair("a", 1.6), *pair("b", 1.6), *pair("trained", 9.0, split="train", headline=False),
        *pair("g", 1.2, origin="generated", split="unseen"),
    ]  # fmt: skip
    found = asked(rows)
    real = found["spmv float32: real, over the best variant, solver"]
    assert real.value == pytest.approx(1.6) and (real.verdict, real.count, real.expected) == ("PASS", 2, 2)
    assert found["spmv float32: real, over CSR, solver"].value == pytest.approx(3.2)
    assert found["spmv float32: real, over the best variant, chain"].verdict == "OPEN"
    small = found["spmv float32: generated, small, over the best variant, solver"]
    assert small.value == pytest.approx(1.2) and small.verdict == "MISS"
    assert found["spmv float32: every matrix: the lowest (g)"].value == pytest.approx(1.2)


def test_float64_is_asked_for_a_tenth_less_and_spmm_over_all() -> None:
    wide = "spmm float32 32 row row"
    found = asked([*pair("a", 1.45, problem="spmv float64"), *pair("a", 1.45, problem=wide)])
    real = found["spmv float64: real, over the best variant, solver"]
    assert real.bar == pytest.approx(1.55 * 0.9) and real.verdict == "PASS"
    assert found[f"{wide}: all, over the best variant, solver"].bar == 1.4


def test_a_matrix_without_an_operator_is_the_lowest() -> None:
    rows = [*pair("a", 2.0), *[r for r in pair("b", 2.0) if r.get("side") != OPERATOR]]
    lowest = asked(rows)["spmv float32: every matrix: the lowest (b)"]
    assert (lowest.value, lowest.verdict, lowest.said) == (0.0, "MISS", "MISS so far")


def test_the_roofline_is_that_of_csr_above_the_l2() -> None:
    large = {"origin": "generated", "split": "unseen", "structure": "regular", "rows": 10**6, "columns": 10**6}
    moved = 8 * 10**7 + 4 * (10**6 + 1) + 8 * 10**6
    us = moved / 4.0e6 / 0.95
    rows = [
        *pair("a", 2.0, us=us, nonzeros=10**7, packed_bytes=9 * 10**7, **large),
        *pair("b", 2.0, us=us, nonzeros=10**7, packed_bytes=6 * 10**7, **large), *pair("in", 2.0),
    ]  # fmt: skip
    found = asked(rows)
    regular = found["spmv float32: above the L2, regular: share of the CSR roofline, solver"]
    assert regular.value == pytest.approx(0.95) and regular.verdict == "PASS" and regular.count == 2
    fewer = next(b for title, b in found.items() if "fewer bytes" in title)
    assert fewer.value == pytest.approx(0.95) and fewer.verdict == "MISS" and fewer.count == 1


def test_the_cost_is_that_of_who_was_alone_with_sixteen_candidates() -> None:
    alone = [*pair("a", 2.0, nonzeros=10**6, tuning_s=1.5), *pair("b", 2.0, nonzeros=10**4, tuning_s=9.0)]
    costs = {16: figures.standings(alone), 1: figures.standings(pair("a", 2.0, tuning_s=0.1))}
    found = asked(pair("c", 2.0), costs=costs)
    assert found["spmv float32: a tune of a million nonzeros, seconds (median)"].value == 1.5
    paid = found["spmv float32: products until tuning has paid (median)"]
    assert paid.value == pytest.approx((1.5 + 9.0) / 2 / 10e-6) and paid.verdict == "PASS"
    assert not any("tune" in title for title in asked(pair("c", 2.0)))


def test_the_second_opinion_must_agree_within_five_per_cent() -> None:
    said = Opinion("spmv float32", "chain", 3, 9, 0.06, 0.4, 1.0, "a", 1.2, 1.1)
    found = asked(pair("a", 2.0), opinions=[said])
    bar = found["spmv float32: second opinion, chain: cuSPARSE's times differ by (median)"]
    assert bar.verdict == "MISS" and bar.beside == "40 % of 9 within 5 %"


def test_the_table_has_the_held_out_groups_and_what_was_trained_on() -> None:
    rows = [
        *pair("a", 2.0), *pair("a", 3.0, mode="chain"), *pair("t", 4.0, split="train", headline=False),
        *pair("a", 1.5, problem="spmm float32 32 row row"),
    ]  # fmt: skip
    lines = markdown(figures.standings(rows), ABOUT).splitlines()
    assert lines[0] == BEGIN and lines[-1] == END
    assert lines[1].endswith("nano with 16 candidates on NVIDIA H200:")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[3:-1]]
    assert cells[0][2:] == ["spmv float32", "chain", "over CSR", "won", "lowest", "spmm float32 32"]
    by_title = {row[0]: row[1:] for row in cells[2:]}
    assert by_title["real"] == ["1", "2.00", "3.00", "4.00", "100 %", "2.00", "1.50"]
    assert by_title["trained on"][:2] == ["1", "4.00"] and set(by_title) == {"real", "all", "trained on"}


def test_the_command_prints_goals_and_writes_the_table(tmp_path: Path) -> None:
    for name, candidates in (("bench", 16), ("one", 1)):
        append_jsonl(tmp_path / name / "bench.jsonl", *records(12, candidates=candidates))
    done = CliRunner().invoke(app, ["goals", str(tmp_path / "bench"), "--beside", str(tmp_path / "one")])
    assert done.exit_code == 0, done.output
    assert re.search(r"spmv float32 +real, over the best variant, solver +\d\.\d\d +≥ 1\.55", done.output)
    assert "until tuning has paid" in done.output and "≤ 1000000.00" not in done.output
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    done = CliRunner().invoke(app, ["goals", str(tmp_path / "bench"), "--into", str(tmp_path / "README.md")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "| real |" in text


# ── the script ────────────────────────────────────────────────────────────────

HELD = """\
a = family:uniform,rows=90,columns=80,per_row=5,seed=3
b = family:banded,rows=200,diagonals=5,reach=4,fill=0.9,seed=5
"""


def script(out: Path, *words: str, code: int = 0) -> str:
    """`runs/bench.sh` on the simulator, on two small matrices."""
    (out.parent / "held.txt").write_text(HELD)
    lists = {"HELD": str(out.parent / "held.txt"), "LARGE": "", "TRAINED": "", "COSTED": str(out.parent / "held.txt")}
    environment = {**os.environ, **lists, "CANDIDATES": "1", "PYTHON": sys.executable}
    settings = ["--matrices", str(out.parent), "--device", "sim", "--processes", "2", *words]
    done = subprocess.run(
        ["bash", str(ROOT / "runs" / "bench.sh"), str(out), *settings, "--", "--policy", "recipes", "--rounds", "1"],
        capture_output=True, text=True, env=environment, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_script_measures_side_by_side_says_what_tuning_costs_and_makes_the_page(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    assert "no stage 'none'" in script(out, "none", code=2)
    assert "time is up before cost" in script(out, "--budget", "1", "spmv", "cost", code=TRY_AGAIN)
    before = (out / "bench.jsonl").read_bytes()
    said = script(out, "spmv", "cost", "report")
    assert (out / "bench.jsonl").read_bytes() == before, "what is there is not measured again"
    about = [r for r in archive.read(out, "bench") if r["kind"] == "about"]
    assert {r["shares"] for r in about} == {2}
    assert {(s.matrix, s.mode) for s in figures.standings(archive.read(out, "bench"))} == {
        (matrix, mode) for matrix in "ab" for mode in ("solver", "chain")
    }
    alone = figures.standings(archive.read(out / "1", "bench"))
    assert len(alone) == 2 and all(s.tuning_s for s in alone)
    assert "generated, small, over the best variant, solver" in said
    assert "modelled" in (out / "index.html").read_text() and (out / "picture.svg").exists()
