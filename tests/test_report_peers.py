"""Peers beside the operator: figures over each of them, their curves, and what the page says of how they were timed."""

from __future__ import annotations

import datetime
import re
from html import escape
from typing import Any

import pytest

from report_records import PROBLEMS, records
from sparserl.bench.tables import geometric_mean
from sparserl.report import board, page, peer_table, peers, plotted, table
from sparserl.report.board import Board, Entry

TODAY = datetime.date(2026, 1, 3)


@pytest.fixture(scope="module")
def made() -> Board:
    return board.board(records(20))


@pytest.fixture(scope="module")
def text(made: Board) -> str:
    return page.page(made, TODAY)


def held(made: Board, problem: str = PROBLEMS[0], mode: str = "solver") -> list[Entry]:
    return made.among(made.tested(problem, mode))


def one(*sides: dict[str, Any], operator_us: float | None = 2.0) -> Entry:
    """A matrix with these sides beside an operator."""
    matrix = {"kind": "matrix", "matrix": "a", "problem": "spmv float32", "origin": "real", "headline": True,
              "modes": ["solver"], "nonzeros": 100, "rows": 10, "columns": 10, "structure": "small"}  # fmt: skip
    ours = {"side": "operator", "median_us": operator_us, "verified": operator_us is not None}
    about = {"kind": "time", "matrix": "a", "problem": "spmv float32", "mode": "solver", "source": "gpu"}
    times = [{**about, "verified": True, **side} for side in (ours, *sides)]
    return board.board([matrix, *times]).entries[0]


def side(name: str, us: float | None, **more: Any) -> dict[str, Any]:
    return {"side": name, "median_us": us, **more}


@pytest.mark.parametrize(
    ("name", "peer"),
    [("cusparse:csr2@col", "cuSPARSE CSR"), ("cusparse:bsr3", "cuSPARSE BSR"), ("torch:csr", "torch"),
     ("cupy:csr", "CuPy"), ("scipy:csr", "SciPy on the CPU"), ("plain:csr", "plain CSR"), ("torch", "torch"),
     ("my-spmv.2", "my-spmv.2")],
)  # fmt: skip
def test_a_peer_is_what_a_reader_chooses_between(name: str, peer: str) -> None:
    assert peers.peer_of(name) == peer


def test_a_format_of_cusparse_stands_by_its_best_variant_and_torch_against_the_operator_beside_it() -> None:
    found = peers.beside(
        one(side("cusparse:csr1", 6.0), side("cusparse:csr2@col", 4.0), side("torch:csr", 6.0, beside_us=3.0)), "solver"
    )
    assert (found["cuSPARSE CSR"].side, found["cuSPARSE CSR"].gain) == ("cusparse:csr2@col", 2.0)
    assert found["torch"].gain == 2.0, "6 over the 3 of the same measurement, not over the 2 of another process"


def test_a_tally_counts_what_failed_and_what_nobody_could_verify() -> None:
    entries = [
        one(side("ginkgo", 4.0), side("mute", 1.0, verified=False)),
        one(side("ginkgo", None, verified=False, fault="it took too long"), side("mute", 1.0, verified=False)),
        one(side("ginkgo", 1.0), operator_us=None),
    ]
    entries = [Entry(**{**vars(each), "matrix": name}) for each, name in zip(entries, "abc", strict=True)]
    found = peers.tallies(entries, "solver")
    ginkgo, mute = found["ginkgo"], found["mute"]
    assert (ginkgo.count, ginkgo.failed, ginkgo.mean) == (1, 1, pytest.approx(2.0))
    assert (ginkgo.won, ginkgo.tied, ginkgo.lost, ginkgo.worst, ginkgo.worst_matrix) == (1, 0, 1, 0.0, "c")
    assert (mute.count, mute.unchecked, mute.failed, mute.mean, mute.worst) == (0, 2, 0, None, None)
    shown = peer_table.table({"real, held out": entries}, "solver")
    assert "+1 failed" in shown and "+2 not verified" in shown and ">failed</a>" in shown


def test_the_page_has_a_figure_over_every_peer(made: Board, text: str) -> None:
    real = [e for e in held(made) if e.kind == "real"]
    rows = dict(
        re.findall(
            r'<tr><th scope="row">([^<]+)<small>(.*?)</tr>', text.partition("<h3>By peer")[2].partition("</table>")[0]
        )
    )
    torch = geometric_mean(
        s.times_us["torch:csr"] / (1.1 * (s.operator_us or 0))
        for e in real
        if "torch:csr" in (s := e.standings["solver"]).times_us
    )
    assert torch is not None and f"<b>{torch:.2f}×</b>" in rows["torch"] and "in CUDA graphs" in rows["torch"]
    assert {"cuSPARSE CSR", "cuSPARSE BSR", "CuPy", "ginkgo", "acme-spmv", "SciPy on the CPU"} <= rows.keys()


def test_a_peer_that_is_faster_stands_in_the_row_of_its_matrix_and_the_column_names_cusparse(made: Board) -> None:
    shown = table.matrices(["solver"], held(made), "t")
    ahead = {e.matrix: found for e in held(made) if (found := peers.faster(e, "solver"))}
    assert ahead and all(name == "ginkgo" for name, _ in ahead.values())
    for matrix, (_, found) in ahead.items():
        row = next(row for row in shown.split("<tr") if f'data-name="{escape(matrix)}"' in row)
        assert f'<small class="bad">{found.gain:.2f}× over ginkgo</small>' in row
    assert shown.count("over ginkgo") == len(ahead)
    assert ">best cuSPARSE<" in shown and "best peer" not in shown
    tie = one(side("ginkgo", 1.99))
    assert peers.faster(tie, "solver") is None, "within the noise"


def test_a_modelled_table_names_no_library() -> None:
    found = board.board(records(4, device="sim"))
    assert ">baseline<" in table.matrices(["solver"], found.of(PROBLEMS[0]), "t")


@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[2]])
def test_a_profile_has_a_curve_a_peer_and_none_of_what_ran_with_its_host_code(made: Board, problem: str) -> None:
    found = peers.profile(held(made, problem), "solver")
    spmv = {"cuSPARSE SELL"} if problem.startswith("spmv") else set()
    assert set(found.curves) == {"operator", "cuSPARSE CSR", "cuSPARSE COO", "cuSPARSE BSR", "torch", "ginkgo", *spmv}
    assert found.left_out == {"SciPy on the CPU": "", "CuPy": "timed with its host code"}
    boxed = plotted.plots(made, {"solver": made.tested(problem, "solver")})
    assert "left out: SciPy on the CPU, CuPy (timed with its host code)" in boxed


def test_a_profile_sets_torch_against_the_operator_of_its_own_measurement() -> None:
    found = peers.profile([one(side("torch:csr", 6.0, beside_us=3.0))], "solver")
    assert found.curves["torch"] == [(2.0, 1.0)]


def test_every_look_of_a_curve_is_in_the_style_sheet(text: str) -> None:
    style = text.partition("<style>")[2].partition("</style>")[0]
    sides = [side(f"program-{at}", 3.0 + at / 10) for at in range(12)]
    some = one(side("torch:csr", 3.0), side("cusparse:csr1", 3.0), *sides)
    of_some = Board([], [some], modelled=False)
    drawn = plotted.plots(of_some, {"solver": [some.standings["solver"]]})
    looks = {look for found in re.findall(r'class="curve ([^"]+)"', drawn) for look in found.split()}
    assert {"dash1", "dash2", "dash3"} <= looks
    for look in looks:
        assert f".{look} {{" in style, look
        assert f".rule.{look} {{" in style or re.search(rf"\.{look} {{[^}}]*border-color", style), look


def test_the_top_says_who_took_part_and_who_is_missing(text: str) -> None:
    top = text.partition("<main>")[0]
    assert "acme-spmv, CuPy, ginkgo, torch, SciPy on the CPU." in top
    assert "Missing: petsc (there is no program &#x27;petsc_bench&#x27;)." in top
    assert "peer was verified" not in top and "every variant of cuSPARSE were verified and timed side by side" in top
    bare = [r for r in records(4) if r["kind"] != "time" or r["side"].startswith(("cusparse", "operator"))]
    without = {**bare[0], "peers_missing": {"cupy:csr": "it is not installed", "torch:csr": "it is not installed"}}
    top = page.page(board.board([without, *bare[1:]]), TODAY).partition("<main>")[0]
    assert "There are no other peers here. Missing: CuPy, torch (it is not installed)." in top
