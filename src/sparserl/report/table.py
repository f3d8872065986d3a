"""The table of matrices: one row each, its figures for every mode. The page's script sorts, filters and opens it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from sparserl.bench.plots import legend_mark
from sparserl.evaluation import CLASSES
from sparserl.report.board import Entry
from sparserl.report.charts import look_of
from sparserl.report.peers import faster
from sparserl.report.plotted import address
from sparserl.report.words import compact, figure, integer, ratio

RIVAL = "best cuSPARSE"
IN_MODE = (
    (RIVAL, "less"), ("its µs", "number less"), ("ours µs", "number less"), ("over CSR", "number"),
    ("break-even", "number"), ("tuning s", "number less"), ("layout", ""),
)  # fmt: skip
LONGEST = 90
"""characters of a fault in its row; the view of the matrix has all of it"""


def matrices(modes: Sequence[str], entries: Sequence[Entry], name: str) -> str:
    """A table with its tools."""
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="false" data-only="{c}">{legend_mark(c, f"{c} real")}{c}'
        "</button>"
        for c in CLASSES
        if any(look_of(e.structure) == c for e in entries)
    )
    gains = [s.speedup for e in entries for s in e.standings.values() if s.speedup]
    heads = _heads(modes, entries)
    rows = "".join(_row(modes, entry, max([2.0, *gains])) for entry in entries)
    return (
        f'<div class="tools"><input type="search" placeholder="Filter by name, layout, peer …" aria-label="Filter the '
        f'matrices" aria-controls="{name}">{chips}<span class="count" data-of="{name}" role="status">'
        f'{len(entries)} matrices</span></div><div class="scroll tall" tabindex="0" role="region" '
        f'aria-label="Table of matrices"><table class="matrices" id="{name}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _heads(modes: Sequence[str], entries: Sequence[Entry]) -> str:
    modelled = any(s.source == "modelled" for entry in entries for s in entry.standings.values())
    columns = [("matrix", ""), *(("speed-up", f"number in-{mode}") for mode in modes)]
    columns += [("class", ""), ("origin", "less"), ("nonzeros", "number")]
    columns += [(name, f"{look} in-{mode}".strip()) for mode in modes for name, look in IN_MODE]
    if modelled:
        columns = [("baseline" if name == RIVAL else name, look) for name, look in columns]
    button = '<th scope="col" class="{}"><button type="button">{}</button></th>'
    return "".join(button.format(look, escape(name)) for name, look in columns)


def _row(modes: Sequence[str], entry: Entry, most: float) -> str:
    look = look_of(entry.structure)
    cells = f'<th scope="row"><a href="{address(entry.matrix)}">{escape(entry.matrix)}</a></th>'
    cells += "".join(_gain(entry, mode, most) for mode in modes)
    cells += f"<td>{legend_mark(look, f'{look} {entry.kind}')}{escape(entry.structure or '–')}</td>"
    cells += f'<td class="less">{entry.kind}</td>' + _number(entry.nonzeros or None, integer(entry.nonzeros))
    for mode in modes:
        cells += _mode_cells(entry, mode)
    return f'<tr data-class="{look}" data-name="{escape(entry.matrix)}">{cells}</tr>'


def _gain(entry: Entry, mode: str, most: float) -> str:
    """The speed-up, with a bar as long as its logarithm."""
    standing = entry.standings.get(mode)
    gain = standing.speedup if standing else None
    if gain is None:
        failed = standing.failed if standing else bool(entry.fault)
        return _number(None, '<span class="bad">failed</span>' if failed else "–", f"in-{mode}")
    share = min(1.0, abs(math.log(gain)) / math.log(most))
    bar = f'<span class="spread"><i style="--share:{share:.2f}"></i></span>'
    lost = " lost" if gain < 1 else ""
    ahead = faster(entry, mode)
    note = f'<small class="bad">{ratio(ahead[1].gain)} over {escape(ahead[0])}</small>' if ahead else ""
    return f'<td class="number gain{lost} in-{mode}" data-value="{gain:.4f}">{bar}<b>{gain:.2f}×</b>{note}</td>'


def _mode_cells(entry: Entry, mode: str) -> str:
    s, own = entry.standings.get(mode), f"in-{mode}"
    baseline_us, ours_us = (s.baseline_us, s.operator_us) if s else (None, None)
    cells = f'<td class="{own} less">{escape(s.baseline if s and s.baseline else "–")}</td>'
    cells += _number(baseline_us, figure(baseline_us), f"{own} less") + _number(ours_us, figure(ours_us), f"{own} less")
    over, paid = s.over_csr if s else None, entry.break_even(mode)
    words = "–" if paid is None else "never" if math.isinf(paid) else compact(paid)
    cells += _number(over, ratio(over), own) + _number(None if paid is None else min(paid, 1e30), words, own)
    tuning = s.tuning_s if s else None
    return f'{cells}{_number(tuning, figure(tuning), f"{own} less")}<td class="{own}">{_layout(entry, mode)}</td>'


def _layout(entry: Entry, mode: str) -> str:
    standing = entry.standings.get(mode)
    if fault := standing.fault if standing else entry.fault:
        return f'<span class="bad">{escape(fault[:LONGEST])}</span>'
    won = entry.winner_in(mode) or {}
    return f"<code>{escape(str(won.get('layout') or won.get('name') or '–'))}</code>"


def _number(value: float | None, words: str, more: str = "") -> str:
    """What is missing has an empty value and is sorted to the end."""
    key = "" if value is None else f"{value:.6g}"
    return f'<td class="{f"number {more}".strip()}" data-value="{key}">{words}</td>'
