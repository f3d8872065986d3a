"""The short view of an operator in a notebook."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from report_reader import read
from sparserl.records import Problem
from sparserl.report.notebook import repr_html


def operator(**more: Any) -> Any:
    report = {"result": {"baseline": "cusparse:coo1"}, "matrix": {"nonzeros": 12},
              "candidates": [{"verdict": "correct"}, {"verdict": "correct"}, {"verdict": "wrong"}]}  # fmt: skip
    return SimpleNamespace(**{
        "shape": (3, 4), "problem": Problem(), "report": report, "source": "int a; // <b>", "layout": "rows <i>",
        "generated": True, "device": "Example GPU", "time_us": 1.5, "baseline_us": 3.0, "time_source": "gpu",
        "speedup": 2.0, **more,
    })  # fmt: skip


def test_an_operator_shows_time_baseline_speedup_layout_and_verdicts() -> None:
    made = repr_html(operator())
    for words in (
        "2.00×",
        "1.5 µs",
        "cusparse:coo1 (3 µs)",
        "rows &lt;i&gt;",
        "2 correct, 1 wrong",
        "// &lt;b&gt;</i>",
    ):
        assert words in made
    assert "modelled" not in made and read(made).open == []


def test_a_modelled_or_untimed_operator_says_so() -> None:
    assert "modelled, not measured" in repr_html(operator(time_source="modelled"))
    bare = repr_html(operator(report={}, speedup=None, time_us=None, baseline_us=None))
    assert "not timed" in bare and "candidates" not in bare
    assert "<pre>" not in repr_html(operator(generated=False)) and "cuSPARSE (" in repr_html(operator(generated=False))
