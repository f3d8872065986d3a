"""The page of `sparserl eval`: one HTML file with its style, tables and plots inside; no network, no script.

    write(out, report)      → OUT/index.html, and OUT/figures.json with the same figures

Made from records alone (`assess_report`). Not covered: looking at single programs, which are in `programs.jsonl`.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from sparserl.bench import plots
from sparserl.bench.page_sections import bars_table, title_of
from sparserl.bench.page_style import STYLE
from sparserl.bench.plots import Curve, Point
from sparserl.bench.tables import REPORTED
from sparserl.records import Verdict
from sparserl.store import write_atomic, write_json
from sparserl.train.assess_bars import bars, interval
from sparserl.train.assess_report import Figures, Report
from sparserl.train.rules import BUDGETS, FAILURE, PARTS, Interval
from sparserl.version import VERSION

LOOKS = ("solver", "chain", "regular", "random", "skewed", "block", "extreme", "plain")
"""one a writer; those that follow are in the tables alone"""
SHAPES = tuple(plots.SHAPES)
ABOUT_SPLITS = {
    "dev": "The dev split, on which choices are made: no test",
    "seen": "Families that were seen in training, other seeds",
    "unseen": "Families that were withheld from training",
    "real": "Real matrices of origin groups outside training",
}


def write(out: Path, report: Report, today: datetime.date | None = None) -> Path:
    """Make OUT/index.html and OUT/figures.json, and say where the page is."""
    path = out / "index.html"
    write_json(out / "figures.json", figures(report))
    write_atomic(path, page(report, today or datetime.date.today()).encode())
    return path


def figures(report: Report) -> dict[str, Any]:
    """All figures as JSON."""
    found: dict[str, Any] = {}
    for name, each in report.figures.items():
        others = [other for other in report.figures if other != name]
        found[name] = {
            "matrices": len(each.sheets),
            "at": _plain(each.at),
            "first": _plain(each.first),
            "compile": _plain(each.compiles),
            "correct": _plain(each.correct),
            "verdicts": dict(each.verdicts),
            "written": asdict(each.written),
            "entropy": {part: sums.entropy for part, sums in each.written.parts.items()},
            "reference_share": {mode: _plain(report.share(name, mode)) for mode in REPORTED},
            "over": {
                other: {
                    mode: {str(k): _plain(report.versus(name, other, mode, k % 16)) for k in (1, 16)}
                    for mode in REPORTED
                }
                for other in others
            },
        }
    held = [{**asdict(bar), "verdict": bar.verdict} for bar in bars(report)]
    about = {"devices": report.devices, "versions": dict(report.versions), "modelled": report.modelled}
    return {"about": dict(report.about), **about, "left_out": report.left_out, "bars": held, "policies": found}


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return {"value": value.value, "low": value.low, "high": value.high, "matrices": value.count}
    return {str(key): _plain(each) for key, each in value.items()} if value is not None else None


def page(report: Report, today: datetime.date) -> str:
    """The whole page."""
    title = f"{title_of(report.about['problem'])} on {' and '.join(report.devices)}: split {report.about['split']}"
    sections = [("Bars", _bars(report)), ("Speed", _speed(report)), ("Right and wrong", _verdicts(report))]
    sections += [("Against each other", _versus(report)), ("Plots", _plots(report))]
    sections += [("What was written", _written(report)), ("Matrices", _matrices(report))]
    body = "".join(f"<section><h2>{name}</h2>{text}</section>\n" for name, text in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>"
        f"<header><h1>{escape(title)}</h1>{_intro(report)}</header>\n<main>{body}</main>\n"
        f"<footer><h2>How it was made</h2><p>Page made on {today.isoformat()} by sparserl {escape(VERSION)} from the "
        f"records in this folder. {escape(', '.join(f'{k} {v}' for k, v in sorted(report.versions.items())))}</p>"
        f"<pre>{escape(_command(report))}</pre></footer></body></html>\n"
    )


def _command(report: Report) -> str:
    names = " ".join(f"--policy {name}" for name in report.figures if "@" not in name and "+" not in name)
    return f"sparserl eval {names} --split {report.about['split']} --matrices DIR --out results/NAME"


def _intro(report: Report) -> str:
    about = report.about
    notes = ""
    if report.modelled:
        notes += '<p class="bad"><b>These times are modelled by the simulator, not measured.</b></p>'
    if about.get("most_nonzeros"):
        notes += f'<p class="bad">Matrices above {about["most_nonzeros"]} nonzeros were left out.</p>'
    if report.left_out:
        notes += f'<p class="bad">{report.left_out} written sets of samples are not measured yet and left out.</p>'
    best = "cuSPARSE's fastest variant" if not report.modelled else "a plain CSR program"
    return (
        f"{notes}<p>{escape(ABOUT_SPLITS.get(about['split'], about['split']))}. {about['samples']} samples a matrix; "
        "a policy's are drawn from equal parts of its distribution, each alone a plain draw. "
        f"Speed: the time of {best} in the same process over the program's. A sample that fails in any way counts as "
        f"{FAILURE}. <b>@1</b>: geometric mean over samples and matrices. <b>@k</b>: best of k, geometric mean over "
        "matrices. Brackets: bootstrap intervals of 95 % over matrices; ratios are paired by matrix.</p>"
    )


# ---- tables


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Cells are HTML already; the first `words` columns are words, the others numbers."""
    look: Callable[[int], str] = lambda i: "" if i < words else "number"  # noqa: E731
    top = "".join(f'<th scope="col" class="{look(i)}">{escape(name)}</th>' for i, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f'<td class="{look(i)}">{cell}</td>' for i, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(found: Interval | None, percent: bool = False) -> str:
    if found is None:
        return "–"
    value = f"{100 * found.value:.1f} %" if percent else f"{found.value:.3f}"
    return f'<b>{value}</b> <span class="quiet">[{interval(found, percent)}]</span>'


def _bars(report: Report) -> str:
    held = bars(report)
    return bars_table(held) if held else '<p class="quiet">No policy was assessed: there is nothing to hold up.</p>'


def _speed(report: Report) -> str:
    text = ""
    for mode in REPORTED:
        budgets = [k for k in BUDGETS if any(k in each.at[mode] for each in report.figures.values())]
        rows = []
        for name, each in report.figures.items():
            cells = [_cell(each.at[mode].get(k)) for k in budgets]
            rows.append([escape(name), str(len(each.sheets)), *cells, _cell(each.first[mode]),
                         _cell(report.share(name, mode))])  # fmt: skip
        head = ["writer", "matrices", *(f"@{k}" for k in budgets), "first alone", "best over reference search"]
        text += f"<h3>{mode} mode</h3>{_table(head, rows)}"
    how = "raced in the same sessions" if report.raced_reference else "from its own race"
    note = f"Reference search: {how}." if report.reference else "No reference search was given."
    return text + f'<p class="quiet">{note}</p>'


def _verdicts(report: Report) -> str:
    rows = []
    for name, each in report.figures.items():
        total = sum(each.verdicts.values())
        most = max(each.correct)
        shares = [f"{100 * each.verdicts.get(verdict.name, 0) / total:.1f} %" for verdict in Verdict]
        cells = [_cell(each.compiles[1], True), _cell(each.correct[1], True), _cell(each.correct[most], True)]
        rows.append([escape(name), str(total), *cells, *shares])
    head = ["writer", "samples", "compile@1", "correct@1", "correct@all", *(v.name.lower() for v in Verdict)]
    return _table(head, rows)


def _versus(report: Report) -> str:
    """Every writer over every other, @1 and best of all, in the mode that is judged."""
    mode = REPORTED[0]
    text = f"<p class=\"quiet\">The line's writer over the column's, {mode} mode, on the matrices of both.</p>"
    for budget, what in ((1, "@1"), (0, "best of all samples")):
        names, rows = list(report.figures), []
        for ours in names:
            found = [None if ours == other else report.versus(ours, other, mode, budget) for other in names]
            rows.append([escape(ours), *map(_cell, found)])
        text += f"<h3>{what}</h3>{_table([what, *names], rows)}"
    return text


def _written(report: Report) -> str:
    rows, entropies = [], []
    for name, each in report.figures.items():
        w = each.written
        numbers = (w.samples, w.finished, w.distinct, f"{100 * w.recipe_share:.1f} %", w.skeletons, w.new_skeletons,
                   f"{100 * w.new_share:.1f} %", f"{w.skeletons_each.value:.1f}")  # fmt: skip
        rows.append([escape(name), *map(str, numbers)])
        if w.parts:
            cells = [f"{w.parts[part].entropy:.3f}" if part in w.parts else "–" for part in PARTS]
            surprise = f"{w.parts['code'].surprise:.3f}" if "code" in w.parts else "–"
            entropies.append([escape(name), *cells, surprise])
    head = ["writer", "samples", "finished", "distinct", "recipe texts", "skeletons of right ones", "new ones",
            "right samples with new ones", "skeletons a matrix"]  # fmt: skip
    text = _table(head, rows)
    if entropies:
        text += "<h3>Entropy, nats a token</h3>"
        text += _table(["writer", *PARTS, "code, under the model itself"], entropies)
    return text


def _matrices(report: Report) -> str:
    mode = REPORTED[0]
    every = {sheet.matrix: sheet for each in report.figures.values() for sheet in each.sheets}
    by_name = {name: {sheet.matrix: sheet for sheet in each.sheets} for name, each in report.figures.items()}
    rows = []
    for matrix, about in sorted(every.items(), key=lambda item: (item[1].nonzeros, item[0])):
        cells = [escape(matrix), about.kind, about.structure, str(about.nonzeros)]
        for held in by_name.values():
            sheet = held.get(matrix)
            cells.append("–" if sheet is None else f"{math.exp(sheet.log_mean(mode)):.2f} / {sheet.best(mode):.2f}")
        rows.append(cells)
    note = f'<p class="quiet">{mode} mode, @1 / best of all samples.</p>'
    return note + _table(["matrix", "kind", "class", "nonzeros", *report.figures], rows, words=3)


# ---- plots


def _plots(report: Report) -> str:
    shown = list(report.figures.values())[: len(LOOKS)]
    looks = list(zip(LOOKS, shown, strict=False))
    rule = '<span><span class="rule" style="border-color:var(--{})"></span>{}</span>'
    legend = "".join(rule.format(look, escape(each.name)) for look, each in looks)
    boxes = ""
    for mode in REPORTED:
        boxes += _box(f"Best of k, {mode}", "geometric mean speed over the baseline", _budget_lines(shown, mode))
        curves = [Curve(look, each.name, [sheet.best(mode) for sheet in each.sheets]) for look, each in looks]
        span = plots.speedup_range([value for curve in curves for value in curve.values])
        drawn = plots.sorted_curves(curves, f"Best of all samples, {mode}", "speed", span)
        boxes += _box(f"Best of all samples, {mode}", "share of matrices that reach at least so much", drawn)
    points = _points(shown)
    drawn = plots.scatter(points, "@1 by matrix", "speed", plots.speedup_range([point.y for point in points]))
    boxes += _box(f"@1 by matrix, {REPORTED[0]}", "each mark is a matrix and a writer", drawn)
    return f'<p class="legend">{legend}</p><div class="plots">{boxes}</div>'


def _box(title: str, note: str, drawn: str) -> str:
    return f"<figure><figcaption>{escape(title)}<small>{escape(note)}</small></figcaption>{drawn}</figure>"


def _points(shown: Sequence[Figures]) -> list[Point]:
    mode = REPORTED[0]
    return [
        Point(max(1, sheet.nonzeros), math.exp(sheet.log_mean(mode)), look,
              f"{each.name} on {sheet.matrix}: {math.exp(sheet.log_mean(mode)):.2f}", SHAPES[number % len(SHAPES)])
        for number, (look, each) in enumerate(zip(LOOKS, shown, strict=False))
        for sheet in each.sheets
    ]  # fmt: skip


def _budget_lines(shown: Sequence[Figures], mode: str) -> str:
    """@k over k, both axes logarithmic, the interval as a band."""
    every = [v for each in shown for k in each.at[mode].values() for v in (k.low, k.high)]
    y = plots.Scale(*plots.speedup_range(every), plots.HEIGHT - plots.BOTTOM, plots.TOP)
    x = plots.Scale(1, max(2, *(k for each in shown for k in each.at[mode])), plots.LEFT, plots.WIDTH - plots.RIGHT)
    drawn = _axes(x, y)
    for look, each in zip(LOOKS, shown, strict=False):
        at = each.at[mode]
        upper = [f"{x(k):.1f},{y(found.high):.1f}" for k, found in at.items()]
        lower = [f"{x(k):.1f},{y(found.low):.1f}" for k, found in reversed(list(at.items()))]
        drawn += f'<polygon class="{look}" style="stroke:none;fill-opacity:.07" points="{" ".join(upper + lower)}"/>'
        line = " ".join(f"{x(k):.1f},{y(found.value):.1f}" for k, found in at.items())
        said = ", ".join(f"@{k} {found.value:.3f}" for k, found in at.items())
        drawn += f'<polyline class="curve {look}" points="{line}"><title>{escape(each.name)}: {said}</title></polyline>'
    return (
        f'<svg class="plot" viewBox="0 0 {plots.WIDTH} {plots.HEIGHT}" role="img" '
        f'aria-label="Best of k in {mode} mode">{drawn}</svg>'
    )


def _axes(x: plots.Scale, y: plots.Scale) -> str:
    base, drawn = plots.HEIGHT - plots.BOTTOM, ""
    for value in (0.25, *plots.SPEEDUP_TICKS):
        if y.least <= value <= y.most:
            one = ' class="one"' if value == 1 else ""
            drawn += f'<path{one} d="M{plots.LEFT},{y(value):.1f}H{plots.WIDTH - plots.RIGHT}"/>'
            drawn += f'<text class="y" x="{plots.LEFT - 6}" y="{y(value) + 4:.1f}">{value:g}</text>'
    for k in BUDGETS:
        if k <= x.most:
            drawn += f'<text class="x" x="{x(k):.1f}" y="{base + 19}">{k}</text>'
    return f'<g class="axes">{drawn}<text class="x" x="{plots.WIDTH / 2}" y="{plots.HEIGHT - 6}">k</text></g>'
