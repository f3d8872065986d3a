"""A short view of an Operator for a notebook: the speed-up, what it is over, the kernel, and the verdicts behind it.

It needs no page, no script and no records: only the Operator's own words. Colours are mixed from the notebook's, so it
is readable in light and dark themes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any, Protocol

from sparserl.records import Problem
from sparserl.report.source import highlight

STYLE = (
    "<style>.sparserl{max-width:680px;padding:14px 18px;"
    "border:1px solid color-mix(in srgb,currentColor 18%,transparent);border-radius:12px;"
    "font:14px/1.5 system-ui,sans-serif}"
    ".sparserl .top{display:flex;gap:6px 16px;align-items:baseline;flex-wrap:wrap}"
    ".sparserl .top b{font-size:34px;line-height:1.1;letter-spacing:-.03em;color:#2f7de1;font-weight:680}"
    ".sparserl .said{opacity:.72}.sparserl table{color:inherit;font:inherit;border:0;"
    "margin:10px 0 4px;border-collapse:collapse}"
    ".sparserl th,.sparserl td{text-align:left!important;padding:1px 18px 1px 0!important;border:0;background:none}"
    ".sparserl th{font-weight:400;opacity:.6}.sparserl td{font-variant-numeric:tabular-nums}"
    ".sparserl .label{font-size:11.5px;font-weight:600;padding:1px 8px;border-radius:9px;"
    "background:#f0b42933;color:#b07a00}"
    ".sparserl summary{cursor:pointer;opacity:.72}.sparserl pre{font-size:12px;line-height:1.5;overflow-x:auto}"
    ".sparserl pre i{opacity:.6}.sparserl pre b{color:#8b78e6}.sparserl pre u{color:#1f9d6b;text-decoration:none}"
    ".sparserl pre s{color:#d65c5c;text-decoration:none}"
    ".sparserl pre em{color:#2f7de1;font-style:normal;font-weight:600}</style>"
)


class OperatorLike(Protocol):
    """What is asked of an Operator."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def problem(self) -> Problem: ...
    @property
    def report(self) -> Mapping[str, Any]: ...
    @property
    def source(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def generated(self) -> bool: ...
    @property
    def device(self) -> str: ...
    @property
    def time_us(self) -> float | None: ...
    @property
    def baseline_us(self) -> float | None: ...
    @property
    def time_source(self) -> str | None: ...
    @property
    def speedup(self) -> float | None: ...


def repr_html(operator: OperatorLike) -> str:
    """HTML for `_repr_html_`."""
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in _facts(operator))
    kernel = ""
    if operator.generated:
        kernel = f"<details><summary>CUDA source</summary><pre>{highlight(operator.source)}</pre></details>"
    return f'{STYLE}<div class="sparserl">{_top(operator)}<table>{rows}</table>{kernel}</div>'


def _top(operator: OperatorLike) -> str:
    label = '<span class="label">modelled, not measured</span>' if operator.time_source == "modelled" else ""
    time = f"{operator.time_us:.3g} µs a product" if operator.time_us else "not timed"
    if not operator.speedup:
        return f'<div class="top"><b>{time}</b>{label}</div>'
    over = escape(str(operator.report.get("result", {}).get("baseline") or "the baseline"))
    baseline = f" ({operator.baseline_us:.3g} µs)" if operator.baseline_us else ""
    said = f"as fast as {over}{baseline}: {time}"
    return f'<div class="top"><b>{operator.speedup:.2f}×</b><span class="said">{said}</span>{label}</div>'


def _facts(operator: OperatorLike) -> list[tuple[str, str]]:
    problem, (rows, columns) = operator.problem, operator.shape
    wide = f", {problem.columns} columns" if problem.op == "spmm" else ""
    nonzeros = operator.report.get("matrix", {}).get("nonzeros")
    size = f"{rows} × {columns}" + (f", {nonzeros} nonzeros" if nonzeros else "")
    facts = [
        ("product", f"{problem.op} {problem.dtype}{wide}"),
        ("matrix", size),
        ("kernel", operator.layout if operator.generated else f"cuSPARSE ({operator.layout})"),
        ("device", operator.device),
    ]
    counts = Counter(str(c.get("verdict", "")) for c in operator.report.get("candidates", ()))
    if counts:
        ordered = sorted(counts.items(), key=lambda item: (item[0] != "correct", -item[1]))
        facts.append(("candidates", ", ".join(f"{count} {verdict}" for verdict, count in ordered)))
    return facts
