"""What a tuning looks like on terminals of different width, and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sparserl.display import HEADS, _about, _lines, _table
from sparserl.program import parse
from sparserl.proposals import _candidate
from sparserl.recipes import space
from sparserl.records import Problem
from sparserl.search import Progress

ROWS: list[tuple[str, ...]] = [
    ("*", "ell c=8 group=4 index=int32", "lanes=4 threads=256 early=0 full=True load=cached pdl=True", "correct",
     "1.428 us", "1.64", "58 %"),
    ("", "tiles steps=10 threads=256 order=step index=abs16", "load=cached pdl=True split=False", "wrong: row 3", "",
     "", ""),
]  # fmt: skip


def drawn(width: int) -> list[str]:
    file = io.StringIO()
    _table(Console(file=file, width=width, force_terminal=True, color_system=None, highlight=False), HEADS, ROWS)
    return file.getvalue().splitlines()


def test_a_candidate_takes_one_line_where_the_terminal_is_wide() -> None:
    assert len(drawn(200)) == 1 + len(ROWS)


def test_a_candidate_takes_few_lines_on_eighty_columns_and_none_is_wider() -> None:
    lines = drawn(80)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 2 + 4 * len(ROWS)
    for word in ("index=int32", "threads=256", "pdl=True", "1.428 us", "58 %"):
        assert any(word in line for line in lines), word


@pytest.mark.parametrize(("total", "said"), [(1, "judging 1 candidate\n"), (2, "judging 2 candidates\n")])
def test_a_stage_in_a_pipe_is_one_line_that_counts_right(total: int, said: str) -> None:
    file = io.StringIO()
    watch = _lines(Console(file=file, width=200))
    watch(Progress("judging", 0, total))
    watch(Progress("judging", 1, total))
    assert file.getvalue() == said


@pytest.mark.parametrize(
    ("policy", "names", "said"),
    [("nano", ["written 1", "written 2 after 1"], "; 2 programs written by nano"), ("recipes", ["row_lanes 3"], "")],
)
def test_the_first_line_says_who_wrote_the_programs(policy: str, names: list[str], said: str) -> None:
    report = {
        "matrix": {"name": "A", "rows": 3, "columns": 4, "nonzeros": 5},
        "settings": {"problem": {"op": "spmv", "dtype": "float32"}, "mode": "solver", "policy": policy},
        "device": {"name": "H200"},
        "candidates": [{"name": name} for name in names],
    }
    assert _about(report) == [f"A: 3 x 4, 5 nonzeros; spmv float32 on H200, solver mode{said}"]


def test_a_written_program_is_told_from_others_by_its_layout_and_its_launches() -> None:
    recipe = next(recipe for recipe in space(Problem()) if len(parse(recipe.text).launches) > 1)
    found = _candidate("written 1", recipe.text)
    assert found.layout == str(recipe.layout)
    launched = [line.removeprefix("// launch: ") for line in recipe.text.splitlines() if line.startswith("// launch: ")]
    assert found.params == {"launch": " ".join(launched)} and launched
    nothing = _candidate("written 2", "no program\n// launch: f<<<1, 2>>>\n")
    assert (nothing.layout, nothing.params) == ("", {})
