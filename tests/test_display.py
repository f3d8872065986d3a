"""What a tuning looks like on terminals of different width, and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sparserl.display import HEADS, _lines, _table
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
