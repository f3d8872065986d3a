"""What opens when a matrix is chosen: its picture, every side, the candidates, and why the runner-up lost."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from report_reader import read
from report_records import PROBLEMS, records
from sparserl.bench.archive import sha
from sparserl.report import board, candidates, matrix_view, page
from sparserl.report.board import Entry


@pytest.fixture(scope="module")
def every() -> list[dict[str, Any]]:
    return records(20)


def entry(every: list[dict[str, Any]], at: int = 0) -> Entry:
    return [e for e in board.board(every).of(PROBLEMS[0]) if not e.fault][at]


def test_the_view_has_picture_histogram_candidates_and_highlighted_source(every: list[dict[str, Any]]) -> None:
    view = read(page.page(board.board(every), datetime.date(2026, 1, 3))).views["mesh_small_0"]
    assert view.count('<svg class="grid"') == 1 and "Histogram of row lengths" in view
    assert view.count('class="part"') == 3 and view.count("<em>pdl_wait</em>") == 5, "SpMV has a winner a mode"
    assert view.count('class="crown"') == 5 and "row 812 is off by 3.1e-2" in view


def test_a_runner_up_that_was_right_lost_by_so_many_per_cent(every: list[dict[str, Any]]) -> None:
    one = entry(every)
    times = sorted(c["times_us"]["solver"] for c in one.candidates if c["verdict"] == "correct")
    assert f"<b>{100 * (times[1] / times[0] - 1):.1f} %</b>" in candidates.why_runner_up_lost(one, ["solver"])


def tried(*listed: tuple[str, float | None, str], won: int | None = 0) -> Entry:
    made = [
        {
            "layout": f"rows n={i}",
            "verdict": v,
            "reason": why,
            "times_us": {"solver": us} if us else {},
            "sha": sha(str(i)),
        }
        for i, (v, us, why) in enumerate(listed)
    ]
    winner = {"name": "kept", "text": str(won)} if won is not None else {"name": "cusparse:coo1", "text": ""}
    return Entry("a", "spmv float32", candidates=made, winner=winner)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (tried(("correct", 1.0, ""), ("WRONG", None, "row 3 <b>")), "was <b>wrong</b>: row 3 &lt;b&gt;."),
        (tried(("correct", 1.0, "")), "only candidate"),
        (tried(("correct", 1.0, ""), ("correct", 1.0001, "")), "a tie."),
        (tried(("correct", 2.0, ""), won=None), "<b>cusparse:coo1</b> stays"),
        (tried(("correct", 1.0, ""), ("correct", 0.9, ""), won=0), "seemed 10.0 % faster"),
        (tried(("correct", 1.0, ""), ("wrong", 0.5, "x"), ("correct", 1.5, "")), "slower by <b>50.0 %</b>"),
    ],
)
def test_why_the_runner_up_lost_is_said_in_every_case(one: Entry, words: str) -> None:
    assert words in candidates.why_runner_up_lost(one, ["solver"])


def facts(us: float, **more: Any) -> dict[str, Any]:
    about = {"layout": "rows", "verdict": "correct", "reason": "", "times_us": {"solver": us}, "floor_us": 1.0,
             "registers": 32, "packed_bytes": 1_000_000, "params": {"launch": "a<<<1, 32>>> pdl"}}  # fmt: skip
    return {**about, **more}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            facts(2.5, packed_bytes=1_500_000),
            "It reads 50 % more (1.5MB against 1MB) and reaches 40 % of its floor",
        ),
        (facts(2.5, registers=64), "takes 64 registers against 32"),
        (facts(2.5, params={"launch": "a<<<1, 32>>> b<<<1, 32>>>"}), "needs 2 launches against 1, has no dependent"),
        (facts(2.5), "The same in both: bytes, registers, launches and dependent launch."),
        (facts(2.5, params={"pdl": False, "threads": 64}), "It has no dependent launch, the winner has"),
        (facts(1.99, stage="final"), "0.5 % faster in solver mode, which is within the noise: the simpler program"),
    ],
)
def test_winner_and_runner_up_are_compared_by_what_is_stored_of_them(second: dict[str, Any], words: str) -> None:
    one = Entry("a", "spmv float32", candidates=[{**facts(2.0), "sha": sha("won")}, second], winner={"text": "won"})
    assert words in candidates.why_runner_up_lost(one, ["solver"])


def test_two_programs_are_compared_once_though_both_modes_have_them() -> None:
    both = {"solver": 2.0, "chain": 1.8}
    slower = {mode: us * 1.1 for mode, us in both.items()}
    won, second = {**facts(0, times_us=both), "sha": sha("won")}, facts(0, times_us=slower, registers=64)
    one = Entry("a", "spmv float32", candidates=[won, second], winner={"text": "won"})
    said = candidates.why_runner_up_lost(one, ["solver", "chain"])
    assert said.count("10.0 %") == 2 and said.count("takes 64 registers against 32") == 1


def test_the_table_of_candidates_has_floor_bytes_registers_launches_and_stage(every: list[dict[str, Any]]) -> None:
    shown = candidates.section(entry(every), ["solver"])
    for head in ("of floor", "packed", "registers", "launches"):
        assert f">{head}<" in shown
    winner = next(row for row in shown.split("<tr") if 'class="crown"' in row)
    one = next(c for c in entry(every).candidates if c["stage"] == "final")
    share = 100 * one["floor_us"] / one["times_us"]["solver"]
    assert f">{share:.0f} %<" in winner and f">{one['registers']}<" in winner and ">1 pdl<" in winner
    assert '<span class="quiet">final</span>' in winner


# ---- every side


def sides(every: list[dict[str, Any]], modes: list[str] | None = None) -> dict[str, str]:
    """Rows of the table of sides, by side."""
    shown = matrix_view.result(entry(every), modes or ["solver"], False).partition('class="sides"')[2]
    rows = shown.partition("</tbody>")[0].split("<tr")[2:]
    return {row.partition('scope="row">')[2].partition("<")[0]: row for row in rows}


def test_bars_are_as_long_as_gpu_times_though_scipy_is_far_slower(every: list[dict[str, Any]]) -> None:
    shares = {side: int(found[1]) for side, row in sides(every).items() if (found := re.search(r"--share:(\d+)%", row))}
    assert shares["scipy:csr"] == 100 and shares["cupy:csr"] == 100
    assert shares["operator"] > 10, "SciPy's time made every other bar a dot"


def test_each_side_says_how_it_was_timed(every: list[dict[str, Any]]) -> None:
    rows = sides(every, ["solver", "chain"])
    operator = entry(every).standings
    again = [f"{1.1 * (operator[mode].operator_us or 0):.2f}" for mode in ("solver", "chain")]
    assert f"in CUDA graphs, beside ours of {again[0]} and {again[1]} µs" in rows["torch:csr"]
    for side, words in {"cusparse:csr1": "in turns with ours", "scipy:csr": "on the CPU", "ginkgo": "its own clock",
                        "cupy:csr": "on a stream, back to back"}.items():  # fmt: skip
        assert words in rows[side]
    assert "not verified" in rows["acme-spmv"] and "×" not in rows["acme-spmv"]


def test_a_ratio_is_taken_within_one_measurement(every: list[dict[str, Any]]) -> None:
    times = entry(every).standings["solver"].times_us
    rows = sides(every)
    assert f">{times['torch:csr'] / (1.1 * times['operator']):.2f}×" in rows["torch:csr"]
    assert f">{times['ginkgo'] / times['operator']:.2f}×" in rows["ginkgo"]


def test_each_mode_with_a_winner_of_its_own_shows_its_kernel(every: list[dict[str, Any]]) -> None:
    one = entry(every)
    two = Entry("a", one.problem, winners={"solver": {"text": "int a;"}, "chain": {"text": "int b;"}})
    same = Entry("a", one.problem, winners={"solver": {"text": "int a;"}, "chain": {"text": "int a;"}})
    assert candidates.kernels(two, ["solver", "chain"]).count("<pre") == 2
    assert "in chain mode" in candidates.kernels(two, ["solver", "chain"])
    assert candidates.kernels(same, ["solver", "chain"]).count("<pre") == 1


def test_the_spy_plot_draws_every_filled_cell_once() -> None:
    drawn = matrix_view.spy({"size": 3, "counts": [[1, 1, 0], [0, 9, 9], [0, 0, 100]]})
    cells = {
        (int(x) + k, int(y)) for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)", drawn) for k in range(int(length))
    }
    assert cells == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)}
    assert len(re.findall(r"shade\d", drawn)) == 3


def test_an_empty_matrix_has_a_view_too() -> None:
    one = Entry("a", "spmv float32", spy={"counts": [[0]]}, row_histogram={"edges": [0, 1], "counts": [0]})
    assert "0 of 1 cells" in matrix_view.structure(one)
    assert matrix_view.result(one, ["solver"], False) == "<h3>SpMV float32</h3>"


def test_single_shows_one_matrix_without_tables_of_many(every: list[dict[str, Any]]) -> None:
    name = entry(every).matrix
    made = page.single([r for r in every if r["kind"] == "about" or r["matrix"] == name])
    assert read(made).open == [] and f"<h1>{name}</h1>" in made
    assert made.count('class="part"') == 3 and "<dialog" not in made and 'class="matrices"' not in made
