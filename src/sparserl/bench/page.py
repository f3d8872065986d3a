"""The page of the results: one HTML file with its style, script, plots and records inside; no network, no framework.

    python -m sparserl.bench page results/NAME      → results/NAME/index.html

It is made from records alone. Without scripts all figures are there; sorting and opening a matrix need them.
"""

from __future__ import annotations

import datetime
from collections import Counter
from html import escape
from pathlib import Path

from sparserl.bench.page_records import payload
from sparserl.bench.page_sections import bars_table, commands, figures, groups_table, matrices_table, title_of
from sparserl.bench.page_style import SCRIPT, STYLE
from sparserl.bench.results import Results
from sparserl.store import write_atomic
from sparserl.version import VERSION

SPMV32 = "spmv float32"


def write(out: Path, results: Results, today: datetime.date | None = None) -> Path:
    """Make OUT/index.html and say where it is."""
    path = out / "index.html"
    write_atomic(path, page(results, out, today or datetime.date.today()).encode())
    return path


def page(results: Results, out: Path, today: datetime.date) -> str:
    """The whole page."""
    sections = "".join(_problem(results, problem) for problem in results.problems)
    links = "".join(f'<a href="#problem-{i}">{escape(title_of(p))}</a>' for i, p in enumerate(results.problems))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(_title(results))}</title><style>{STYLE}</style></head>\n<body>"
        f"<header><h1>{escape(_title(results))}</h1>{_intro(results)}"
        f'<nav aria-label="Sections"><a href="#bars">Bars</a>{links}<a href="#made">How it was made</a></nav>'
        f"{_tiles(results)}</header>\n<main>"
        f'<section id="bars"><h2>Bars</h2>{_bars_note(results)}{bars_table(results.bars)}</section>\n'
        f"{sections}</main>\n{_footer(results, out, today)}"
        f'<script type="application/json" id="records">{payload(results)}</script>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _title(results: Results) -> str:
    return f"SparseRL's recipes against cuSPARSE on {' and '.join(_devices(results)) or 'an unnamed device'}"


def _devices(results: Results) -> list[str]:
    return sorted({row.device for row in results.rows if row.device})


def _intro(results: Results) -> str:
    matrices = len({row.matrix for row in results.rows})
    modelled = any(row.source == "modelled" for row in results.rows)
    warning = '<p class="bad"><b>These times are modelled by the simulator, not measured.</b></p>' if modelled else ""
    return (
        f"{warning}<p>{matrices} matrices of a list that was fixed before anything was timed. The best program of the "
        "recipes stands against the best of cuSPARSE's variants, each after its preprocess step; cuSPARSE is never a "
        "candidate. Finalists were verified and timed again beside cuSPARSE in a fresh process, round by round; only "
        "those times are here, medians in microseconds a product.</p>"
        '<p class="quiet"><b>Solver</b>: a plain kernel rewrites x between products, its own time taken off. '
        "<b>Chain</b>: products back to back, each reading what the last one wrote where shapes allow. <b>pdl</b>: "
        "programmatic dependent launch. <b>Floor</b>: the empty kernel, or the packed bytes over the bandwidth.</p>"
    )


def _tiles(results: Results) -> str:
    real = {s.mode: s for s in results.summaries(SPMV32) if s.group.key == "real" and s.count}
    tiles = []
    for mode, summary in real.items():
        tiles.append((f"{summary.speedup:.2f}×", f"real matrices, SpMV float32, {mode}"))
    if "solver" in real and real["solver"].over_csr is not None:
        tiles.append((f"{real['solver'].over_csr:.2f}×", "the same over cuSPARSE CSR, solver"))
    verdicts = Counter(bar.verdict for bar in results.bars)
    tiles.append((f"{verdicts['PASS']} of {len(results.bars)}", "bars passed"))
    shown = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{shown}</div>'


def _bars_note(results: Results) -> str:
    verdicts = Counter(bar.verdict for bar in results.bars)
    counts = f"{verdicts['PASS']} passed, {verdicts['MISS']} missed, {verdicts['OPEN']} not measured yet."
    unfinished = any(not bar.complete for bar in results.bars)
    late = " Where matrices of the list are missing, a verdict is one so far." if unfinished else ""
    return (
        f'<p class="quiet">{counts}{late} Means are geometric. Bars are judged in solver mode unless they name the '
        "chain; in float64 they are a tenth lower. The second opinion is an independent script; in chain mode it "
        "multiplies by the same x again and again.</p>"
    )


def _problem(results: Results, problem: str) -> str:
    at = results.problems.index(problem)
    return (
        f'<section id="problem-{at}"><h2>{escape(title_of(problem))}</h2>'
        f"<h3>Groups</h3>{groups_table(results.summaries(problem))}<h3>Plots</h3>{figures(results, problem)}"
        "<h3>Matrices</h3><noscript><p>Sorting and opening a row need scripts.</p></noscript>"
        f"{matrices_table(results, problem)}</section>\n"
    )


def _footer(results: Results, out: Path, today: datetime.date) -> str:
    kinds = Counter((row.device, *sorted(row.versions.items())) for row in results.rows)
    machines = "".join(
        f"<li>{escape(str(device) or 'unnamed device')}: "
        f"{escape(', '.join(f'{name} {version}' for name, version in versions))} ({count} races)</li>"
        for (device, *versions), count in kinds.most_common()
    )
    dates = sorted({row.date for row in results.rows if row.date})
    measured = f"Measured from {dates[0]} to {dates[-1]}. " if dates else ""
    lines = "\n".join(commands(results, out))
    return (
        f'<footer id="made"><h2>How it was made</h2><p>{escape(measured)}Page made on {today.isoformat()} by sparserl '
        f"{escape(VERSION)} from the records in this folder.</p><ul>{machines}</ul><pre>{escape(lines)}</pre>"
        "</footer>\n"
    )
