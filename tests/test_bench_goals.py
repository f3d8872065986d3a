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
from sparserl import splits
from sparserl.bench import archive, costs, figures
from sparserl.bench.__main__ import app
from sparserl.bench.bars import Bar
from sparserl.bench.digest import BEGIN, END
from sparserl.bench.figures import OPERATOR, Standing
from sparserl.bench.goals import PROBLEMS, goals
from sparserl.bench.headline import block, markdown
from sparserl.bench.matrices import entries
from sparserl.bench.second_opinion import Opinion
from sparserl.bench.wanted import Lists, Wanted, wanted
from sparserl.errors import TRY_AGAIN
from sparserl.evaluation import CLASSES, evaluation_list
from sparserl.report import board
from sparserl.report.picture import picture
from sparserl.store import append_jsonl

ROOT = Path(__file__).parents[1]
SMALL = "family:stencil2d,nx=12,ny=10,points=5"
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


def named(found: list[Standing]) -> dict[str, Standing]:
    return {s.matrix: s for s in found}


def asked(rows: Rows, missing: Rows = (), costed: Rows = (), **more: Any) -> dict[str, Bar]:  # type: ignore[assignment]
    """The goals where all that was measured, and what is missing, is on the lists."""
    found = figures.standings(rows)
    listed = Wanted(named(figures.standings([*rows, *missing])), {}, named(figures.standings(costed)))
    return {f"{b.problem}: {b.title}": b for b in goals(found, ABOUT, listed, **more)}


def test_only_what_a_headline_may_count_is_in_a_goal() -> None:
    rows = [
        *pair("a", 1.6), *pair("b", 1.6), *pair("trained", 9.0, split="train", headline=False),
        *pair("g", 1.2, origin="generated", split="unseen"),
    ]  # fmt: skip
    found = asked(rows)
    real = found["spmv float32: real, over the best variant, solver"]
    assert real.value == pytest.approx(1.6) and (real.said, real.count, real.expected) == ("PASS", 2, 2)
    assert found["spmv float32: real, over CSR, solver"].value == pytest.approx(3.2)
    assert found["spmv float32: real, over the best variant, chain"].verdict == "OPEN"
    small = found["spmv float32: generated, small, over the best variant, solver"]
    assert small.value == pytest.approx(1.2) and small.verdict == "MISS"
    assert found["spmv float32: every matrix: the lowest (g)"].value == pytest.approx(1.2)


def test_matrices_that_are_on_no_list_are_in_no_goal() -> None:
    rows = [*pair("a", 1.6), *pair("chosen later", 9.0)]
    listed = Wanted(named(figures.standings(pair("a", 1.0))), {}, {})
    found = {b.title: b for b in goals(figures.standings(rows), ABOUT, listed) if b.problem == PROBLEMS[0]}
    assert found["real, over the best variant, solver"].value == pytest.approx(1.6)


def test_a_run_that_has_barely_begun_passes_nothing() -> None:
    found = asked(pair("a", 9.0), missing=pair("b", 1.0))
    real = found["spmv float32: real, over the best variant, solver"]
    assert (real.said, real.count, real.expected) == ("PASS so far", 1, 2)
    nothing = asked([])
    assert {bar.said for bar in nothing.values()} == {"OPEN"}
    assert len(nothing) == len(asked(pair("a", 9.0))), "the goals are fixed"
    assert {bar.problem for bar in nothing.values()} == set(PROBLEMS)


def test_what_is_asked_for_is_on_the_lists_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lists = Lists()
    script = (ROOT / "runs" / "bench.sh").read_text()
    assert "${HELD:-real unseen $lists/fresh.txt}" in script and lists.held == ("real", "unseen", "runs/fresh.txt")
    assert "${LARGE-$lists/fresh_large.txt}" in script and lists.large == ("runs/fresh_large.txt",)
    assert "${COSTED:-$lists/cost.txt}" in script and lists.costed == ("runs/cost.txt",)
    small, large = wanted(Lists(large=(), costed=())), entries(lists.large)
    assert all(s.structure and s.nonzeros for s in small.held.values())
    known = {case.name for case in evaluation_list() if case.kind == "generated"}
    assert {name for name, s in small.held.items() if not s.headline} == known & small.held.keys()
    assert sum(s.origin == "real" for s in small.held.values()) == 25 and len(large) == 17
    assert {s.structure for name, s in small.held.items() if name.startswith("fresh_")} == set(CLASSES)
    both = Wanted(small.held, {entry.name: small.held["memplus"] for entry in large}, {})
    assert [len(both.of(problem)) - len(small.held) for problem in PROBLEMS] == [17, 17, 0, 0]


def test_float64_is_asked_for_a_tenth_less_at_the_mean_and_spmm_over_all() -> None:
    wide = "spmm float32 32 row row"
    found = asked([*pair("a", 1.45, problem="spmv float64"), *pair("a", 1.45, problem=wide)])
    real = found["spmv float64: real, over the best variant, solver"]
    assert real.bar == pytest.approx(1.55 * 0.9) and real.verdict == "PASS"
    assert found[f"{wide}: all, over the best variant, solver"].bar == 1.4
    lowest = [bar.bar for title, bar in found.items() if "every matrix" in title]
    assert lowest == [0.98] * len(PROBLEMS), "every matrix is every matrix, in any type"


def test_a_matrix_without_an_operator_is_the_lowest() -> None:
    rows = [*pair("a", 2.0), *[r for r in pair("b", 2.0) if r.get("side") != OPERATOR]]
    found = asked(rows)
    lowest = found["spmv float32: every matrix: the lowest (b)"]
    assert (lowest.value, lowest.said, lowest.beside) == (0.0, "MISS", "1 failed")
    real = found["spmv float32: real, over the best variant, solver"]
    assert (real.value, real.beside) == (pytest.approx(2.0), "1 failed, in no mean")


def test_the_roofline_is_that_of_csr_above_twice_the_l2() -> None:
    large = {"structure": "regular", "rows": 10**6, "columns": 10**6}
    csr = 8 * 2 * 10**7 + 4 * (10**6 + 1) + 8 * 10**6  # bytes of the larger ones
    us = csr / (0.95 * 4e6)
    rows = [
        *pair("a", 2.0, us=us, nonzeros=2 * 10**7, packed_bytes=18 * 10**7, **large),
        *pair("b", 2.0, us=us, nonzeros=2 * 10**7, packed_bytes=12 * 10**7, **large),
        *pair("partly in", 2.0, us=us / 9, nonzeros=10**7, packed_bytes=6 * 10**7, **large), *pair("in", 2.0),
    ]  # fmt: skip
    found = asked(rows, missing=pair("c", 2.0, nonzeros=2 * 10**7, **{**large, "structure": "random"}))
    regular = found["spmv float32: above twice the L2, regular: share of the CSR roofline, solver"]
    assert regular.value == pytest.approx(0.95) and regular.said == "PASS" and regular.count == 2
    fewer = next(b for title, b in found.items() if "float32" in title and "fewer bytes" in title)
    assert (
        fewer.value == pytest.approx(0.95) and fewer.said == "MISS so far" and (fewer.count, fewer.expected) == (2, 3)
    )
    assert fewer.beside == "lowest 95 % of 1"


def test_the_cost_is_that_of_who_was_alone_with_sixteen_candidates() -> None:
    alone = [*pair("a", 2.0, nonzeros=10**6, tuning_s=1.5), *pair("b", 2.0, nonzeros=10**4, tuning_s=9.0)]
    more = pair("c", 2.0, nonzeros=10**6)
    tried = {16: costs.tunings(figures.standings(alone)), 1: costs.tunings(figures.standings(pair("a", 2.0)))}
    found = asked([], costed=[*alone, *more], tunings=tried)
    million = found["spmv float32: a tune of a million nonzeros, seconds (median)"]
    assert (million.value, million.said, million.count, million.expected) == (1.5, "PASS so far", 1, 2)
    paid = found["spmv float32: products until tuning has paid (median)"]
    assert paid.value == pytest.approx((1.5 + 9.0) / 2 / 10e-6) and paid.said == "PASS so far"
    shared = figures.standings(pair("a", 2.0, tuning_s=None))
    assert costs.tunings(shared) == {}, "of processes side by side no seconds are known"


def test_a_tuning_that_failed_never_pays() -> None:
    failed = {"kind": "matrix", "matrix": "b", "problem": "spmv float32", "modes": ["solver"], "fault": "crashed"}
    alone = figures.standings([*pair("a", 2.0), failed, {**failed, "matrix": "c"}])
    found = asked([], costed=[*pair("a", 2.0), *pair("b", 2.0), *pair("c", 2.0)], tunings={16: costs.tunings(alone)})
    paid = found["spmv float32: products until tuning has paid (median)"]
    assert (paid.value, paid.said, paid.count) == (float("inf"), "MISS", 3)


def test_what_tuning_costs_is_shown_by_candidates_and_size() -> None:
    listed = named(figures.standings([*pair("a", 1.0), *pair("b", 1.0, nonzeros=10**6), *pair("c", 1.0)]))
    alone = figures.standings([*pair("a", 2.0, tuning_s=1.0), *pair("b", 1.0, nonzeros=10**6, tuning_s=4.0)])
    head, *rows = costs.rows({16: costs.tunings(alone)}, listed)
    assert head == list(costs.HEAD) and [row[:2] for row in rows[::2]] == [
        [n, "10^4 to 10^5"] for n in ("16", "4", "1")
    ]
    assert rows[0][2:] == ["1/2", "2.00", "1.00", "1.00", "100,000"]
    assert rows[1][1:] == ["10^6 to 10^7", "1/1", "1.00", "4.00", "4.00", "never"]
    assert rows[2][2:] == ["0/2", "–", "–", "–", "–"]


def test_the_second_opinion_passes_by_the_median_and_names_who_is_off() -> None:
    apart = {"a": 0.01, "b": 0.02, "off": 0.3, "far off": 0.4}
    said = Opinion("spmv float32", "chain", 3, 9, 0.02, 0.4, 1.0, "a", 1.2, 1.1, apart)
    found = asked([*pair("a", 2.0), *pair("b", 2.0), *pair("off", 2.0), *pair("far off", 2.0)], opinions=[said])
    bar = found["spmv float32: second opinion, chain: cuSPARSE's times differ by (median)"]
    assert (bar.said, bar.count, bar.expected) == ("PASS", 4, 4)
    assert bar.beside == "the fastest variant within 5 % on 50 % of 4 matrices, not on far off 40 %, off 30 %"
    assert found["spmv float32: second opinion, solver: cuSPARSE's times differ by (median)"].verdict == "OPEN"


def test_the_table_has_the_held_out_groups_and_what_was_trained_on() -> None:
    rows = [
        *pair("a", 2.0), *pair("a", 3.0, mode="chain"), *pair("t", 4.0, split="train", headline=False),
        *pair("a", 1.5, problem="spmm float32 32 row row"),
    ]  # fmt: skip
    lines = markdown(figures.standings(rows), ABOUT).splitlines()
    assert lines[0] == BEGIN and lines[-1] == END and lines[-2].startswith("`over CSR`, `won` (by more than 2 %)")
    assert lines[1].endswith("nano with 16 candidates on NVIDIA H200:")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[3:-3]]
    assert cells[0][2:] == ["spmv float32", "chain", "over CSR", "won", "lowest", "spmm float32 32"]
    by_title = {row[0]: row[1:] for row in cells[2:]}
    assert by_title["real"] == ["1", "2.00", "3.00", "4.00", "100 %", "2.00", "1.50"]
    assert by_title["trained on"][:2] == ["1", "4.00"] and set(by_title) == {"real", "all", "trained on"}


def test_the_command_prints_goals_and_writes_the_table(tmp_path: Path) -> None:
    for name, candidates in (("bench", 16), ("one", 1)):
        append_jsonl(tmp_path / name / "bench.jsonl", *records(12, candidates=candidates))
    lists = ["--of", "real", "--costed", "jagmesh7", "--costed", "bcsstk33"]
    done = CliRunner().invoke(app, ["goals", str(tmp_path / "bench"), "--beside", str(tmp_path / "one"), *lists])
    assert done.exit_code == 0, done.output
    assert re.search(r"spmv float32 +real, over the best variant, solver +– +≥ 1\.55 +OPEN +0/25", done.output)
    assert "until tuning has paid" in done.output and "≤ 1,000,000" in done.output
    for candidates in (16, 4, 1):
        assert re.search(rf"^{candidates} +10\^5 to 10\^6 +0/1", done.output, re.MULTILINE)
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "bench" / "picture.svg").write_text(picture(board.read(tmp_path / "bench")))
    few = ["--of", SMALL, "--into", str(tmp_path / "README.md")]
    done = CliRunner().invoke(app, ["goals", str(tmp_path / "bench"), *few])
    assert done.exit_code == 0, done.output
    assert re.search(r"spmv float32 +every matrix: the lowest +– +≥ 0\.98 +OPEN +0/1", done.output)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "| real |" in text
    assert "](bench/picture.svg)" in text and block(tmp_path / "bench", tmp_path) in text


# ── the script ────────────────────────────────────────────────────────────────

HELD = """\
a = family:uniform,rows=90,columns=80,per_row=5,seed=3
b = family:banded,rows=200,diagonals=5,reach=4,fill=0.9,seed=5
"""


def script(out: Path, *words: str, code: int = 0) -> str:
    """`runs/bench.sh` on the simulator, on two small matrices."""
    (out.parent / "held.txt").write_text(HELD)
    lists = {"HELD": str(out.parent / "held.txt"), "LARGE": "", "TRAINED": "", "COSTED": str(out.parent / "held.txt")}
    environment = {**os.environ, **lists, "CANDIDATES": "1", "PYTHON": sys.executable, "WARM_UP": SMALL}
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
    assert "time is up before cost" in script(out, "--budget", "2", "spmv", "cost", code=TRY_AGAIN)
    before = (out / "bench.jsonl").read_bytes()
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    said = script(out, "--readme", str(readme), "spmv", "cost", "report")
    assert (out / "bench.jsonl").read_bytes() == before, "what is there is not measured again"
    about = [r for r in archive.read(out, "bench") if r["kind"] == "about"]
    assert {r["shares"] for r in about} == {2}
    assert {(s.matrix, s.mode) for s in figures.standings(archive.read(out, "bench"))} == {
        (matrix, mode) for matrix in "ab" for mode in ("solver", "chain")
    }
    (alone,) = [r for r in archive.read(out / "1", "bench") if r["kind"] == "about"]
    assert alone["warm_up"] == SMALL.removeprefix("family:")
    assert {r["matrix"] for r in archive.read(out / "1", "bench") if r["kind"] != "about"} == {"a", "b"}
    tuned = figures.standings(archive.read(out / "1", "bench"))
    assert len(tuned) == 2 and all(s.tuning_s for s in tuned)
    assert "generated, small, over the best variant, solver" in said and "2/2" in said
    assert "modelled" in (out / "index.html").read_text() and (out / "picture.svg").exists()
    assert block(out, tmp_path) in readme.read_text() and "](bench/picture.svg)" in readme.read_text()


TOLD = """\
import os, sys
cache = os.environ["SPARSERL_CACHE"]
words = sys.argv[1:]
print(cache, len(os.listdir(cache)), words[words.index("--candidates") + 1], words[words.index("--warm-up") + 1])
sys.exit(75 if "4" in words else 0)
"""


def test_the_cost_is_measured_with_nothing_compiled_before(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    folders = {name: str(tmp_path / name) for name in ("cache", "temporary")}
    for each in folders.values():
        Path(each).mkdir()
    (tmp_path / "cache" / "a cubin").touch()
    done = subprocess.run(
        ["bash", str(ROOT / "runs" / "bench.sh"), str(tmp_path / "out"), "--matrices", str(tmp_path), "cost"],
        env={**os.environ, "SPARSERL": f"{sys.executable} {tmp_path / 'told.py'}", "CANDIDATES": "16 4 1",
             "SPARSERL_CACHE": folders["cache"], "TMPDIR": folders["temporary"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == TRY_AGAIN, "a call whose time was up ends the script"
    calls = [line.split() for line in done.stdout.splitlines()]
    assert [words[2] for words in calls] == ["16", "4"] and {words[1] for words in calls} == {"0"}
    assert len({words[0] for words in calls}) == 2 and folders["cache"] not in {words[0] for words in calls}
    assert not list(Path(folders["temporary"]).iterdir()), "they are gone again"
    (spec,) = {words[3] for words in calls}
    costed = (ROOT / "runs" / "cost.txt").read_text()
    assert spec.startswith("family:") and spec not in costed
    (entry,) = entries([spec])
    assert entry.spec is not None and not splits.may_train(entry.spec)
