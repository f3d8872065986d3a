"""The parts of the page, as HTML: bars, groups, plots, the table of matrices, how it was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from sparserl.bench import plots
from sparserl.bench.bars import Bar
from sparserl.bench.page_records import row_id
from sparserl.bench.plots import Curve, Point
from sparserl.bench.results import Results
from sparserl.bench.tables import REPORTED, Row, Standing, Summary
from sparserl.evaluation import CLASSES

SIGNS = {"PASS": "✓", "MISS": "✗", "OPEN": "○"}
SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
GAIN_SHAPES = {"solver": "small", "chain": "block"}
"""disc and diamond"""
MATRIX_HEAD = (
    ("", (("matrix", ""), ("kind", ""), ("class", ""), ("nonzeros", "number"))),
    ("solver mode", (
        ("cuSPARSE", ""), ("its µs", "number"), ("ours µs", "number"), ("speed-up", "number"), ("over CSR", "number"),
        ("no pdl µs", "number"), ("pdl gain", "number"), ("of floor", "number"),
    )),
    ("chain mode", (("its µs", "number"), ("ours µs", "number"), ("speed-up", "number"), ("pdl gain", "number"))),
    ("", (("layout, solver mode", ""),)),
)  # fmt: skip


def title_of(problem: str) -> str:
    """'SpMV float32', 'SpMM float32, 64 columns, B row-major, C row-major'."""
    op, dtype, *rest = problem.split()
    name = f"{ {'spmv': 'SpMV', 'spmm': 'SpMM'}.get(op, op) } {dtype}"
    return f"{name}, {rest[0]} columns, B {rest[1]}-major, C {rest[2]}-major" if len(rest) == 3 else name


def bars_table(bars: Sequence[Bar]) -> str:
    """Every bar with its verdict, problem by problem."""
    bodies = ""
    for problem in dict.fromkeys(bar.problem for bar in bars):
        here = [bar for bar in bars if bar.problem == problem]
        head = f'<tr><th class="part" colspan="7" scope="rowgroup">{escape(title_of(problem))}</th></tr>'
        bodies += f"<tbody>{head}{''.join(map(_bar, here))}</tbody>"
    head = _head(("what", "wrap"), ("value", "number"), ("asked", "number"), ("tick = bar", ""), ("verdict", ""),
                 ("also", ""), ("matrices", "number"))  # fmt: skip
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def groups_table(summaries: Sequence[Summary]) -> str:
    """Geometric means by group and mode."""
    rows = ""
    for s in summaries:
        if s.count:
            figures = [_figure(v) for v in (s.speedup, s.over_csr, s.without_pdl, s.pdl_gain, s.lowest)]
            shares = [_percent(s.wins), _percent(s.floor_share)]
            numbers = (f"{s.count} of {s.expected}", *figures, *shares)
            cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
            where = escape(s.lowest_matrix)
            rows += f"<tr><td>{escape(s.group.title)}</td><td>{s.mode}</td>{cells}<td>{where}</td></tr>"
    names = ("matrices", "speed-up", "over CSR", "without pdl", "pdl gain", "lowest", "won", "of floor")
    head = _head(("group", ""), ("mode", ""), *((name, "number") for name in names), ("lowest on", ""))
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def figures(results: Results, problem: str) -> str:
    """Speed-ups over nonzeros, sorted speed-ups, and what dependent launch adds."""
    rows = results.of(problem)
    span = plots.speedup_range([s.speedup for row in rows for s in row.standings.values()])
    parts = []
    for mode in REPORTED:
        drawn = plots.scatter(_points(results, rows, mode), f"Speed-up in {mode} mode", "speed-up", span)
        note = "each mark is a matrix; a click leads to its row"
        parts.append(_figure_box(f"Speed-up over the best cuSPARSE variant, {mode}", note, drawn))
    curves = [Curve(mode, f"{mode} mode", _speedups(rows, mode)) for mode in REPORTED]
    curves.append(Curve("plain", "solver mode, without dependent launch", _plain_speedups(rows)))
    drawn = plots.sorted_curves(curves, "Sorted speed-ups", "speed-up", span)
    legend = "".join(f'<span><span class="rule {c.look}"></span>{escape(c.label)}</span>' for c in curves)
    note = "share of matrices that reach at least so much over the best cuSPARSE variant"
    parts.append(_figure_box("Sorted speed-ups", note, f'{drawn}<p class="legend">{legend}</p>'))
    gains = _gains(results, rows)
    drawn = plots.scatter(gains, "Gain of dependent launch", "gain", plots.speedup_range([p.y for p in gains]))
    legend = "".join(f"<span>{plots.legend_mark(shape, mode)}{mode}</span>" for mode, shape in GAIN_SHAPES.items())
    note = "time of the best program without it over the best of all"
    parts.append(_figure_box("Gain of dependent launch", note, f'{drawn}<p class="legend">{legend}</p>'))
    classes = "".join(f"<span>{plots.legend_mark(name, f'{name} real')}{name}</span>" for name in CLASSES)
    kinds = f"<span>{plots.legend_mark('small', 'small real')}filled: real</span>"
    kinds += f"<span>{plots.legend_mark('small', 'small generated')}hollow: generated</span>"
    return f'<p class="legend">{classes}{kinds}</p><div class="plots">{"".join(parts)}</div>'


def matrices_table(results: Results, problem: str) -> str:
    """All matrices of a problem; the script sorts them and opens a row."""
    at = results.problems.index(problem)
    button = '<th scope="col" class="{}"><button type="button">{}</button></th>'
    head = "".join(button.format(look, escape(name)) for _, part in MATRIX_HEAD for name, look in part)
    over = "".join(f'<th scope="colgroup" colspan="{len(part)}">{title}</th>' for title, part in MATRIX_HEAD)
    body = "".join(_matrix(results, row) for row in results.of(problem))
    return (
        f'<input type="search" placeholder="filter: name, class, layout …" aria-label="Filter the matrices of '
        f'{escape(title_of(problem))}" aria-controls="matrices-{at}">'
        f'<div class="scroll tall" tabindex="0" role="region" aria-label="Matrices of {escape(title_of(problem))}">'
        f'<table id="matrices-{at}"><thead><tr>{over}</tr><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def commands(results: Results, out: Path) -> list[str]:
    """What made the records and this page, in order."""
    folder, made = f"results/{out.name}", []
    for problem in results.problems:
        op, dtype, *rest = problem.split()
        wanted = f"--op {op} --dtype {SHORT.get(dtype, dtype)}" + (f" --columns {rest[0]}" if rest else "")
        for verb in ("explore", "race"):
            made.append(f"python -m sparserl.bench {verb} --out {folder} --matrices DIR {wanted}")
    for opinion in results.opinions:
        wanted = f"--dtype {SHORT[opinion.problem.split()[1]]}" + (" --solver" if opinion.mode == "solver" else "")
        made.append(f"python -m sparserl.bench anchors --tool anchors.py --out {folder} --matrices DIR {wanted}")
    return [*made, f"python -m sparserl.bench pack {folder}", f"python -m sparserl.bench page {folder}"]


def _bar(bar: Bar) -> str:
    look = bar.verdict.lower()
    drawn = plots.bullet(bar.value, bar.bar, bar.verdict) if bar.value is not None else ""
    return (
        f'<tr><td class="wrap">{escape(bar.title)}</td><td class="number">{bar.shown(bar.value)}</td>'
        f'<td class="number">{bar.asked}</td><td>{drawn}</td>'
        f'<td class="verdict {look}">{SIGNS[bar.verdict]} {bar.said}</td>'
        f'<td class="quiet">{escape(bar.beside)}</td><td class="number">{bar.count} of {bar.expected}</td></tr>'
    )


def _matrix(results: Results, row: Row) -> str:
    solver, chain = (row.standings.get(mode) for mode in REPORTED)
    name = f'<button type="button" aria-expanded="false">{escape(row.matrix)}</button>'
    cells = [f"<td>{name}</td>", _cell(row.kind), _cell(row.structure), _number(row.nonzeros, 0)]
    failed = "no right program" if row.baselines else "no baseline"
    cells.append(_cell(solver.baseline.name.removeprefix("cusparse:") if solver else failed))
    cells += [*_numbers(solver, "baseline_us", "best_us"), _speedup(solver)]
    cells += _numbers(solver, "over_csr", "plain_us", "pdl_gain")
    cells.append(_share(solver.best.floor_share("solver") if solver else None))
    cells += [*_numbers(chain, "baseline_us", "best_us"), _speedup(chain), *_numbers(chain, "pdl_gain")]
    cells.append(_cell(solver.best.layout if solver else ""))
    return f'<tr class="matrix" id="{escape(row_id(results, row))}">{"".join(cells)}</tr>'


def _points(results: Results, rows: Iterable[Row], mode: str) -> list[Point]:
    return [
        Point(
            x=max(1, row.nonzeros),
            y=s.speedup,
            look=f"{row.structure} {row.kind}",
            shape=row.structure,
            label=f"{row.matrix} ({row.kind}, {row.structure}), {row.nonzeros} nonzeros: {s.speedup:.2f}, "
            f"{s.baseline.name} {s.baseline_us:.2f} µs, {s.best.partition} {s.best_us:.2f} µs",
            target=row_id(results, row),
        )
        for row in rows
        if (s := row.standings.get(mode)) is not None
    ]


def _gains(results: Results, rows: Iterable[Row]) -> list[Point]:
    return [
        Point(max(1, row.nonzeros), s.pdl_gain, mode, f"{row.matrix}, {mode}: {s.pdl_gain:.2f}", GAIN_SHAPES[mode],
              row_id(results, row))
        for row in rows
        for mode, s in row.standings.items()
        if s.pdl_gain is not None
    ]  # fmt: skip


def _speedups(rows: Iterable[Row], mode: str) -> list[float]:
    return [row.standings[mode].speedup for row in rows if mode in row.standings]


def _plain_speedups(rows: Iterable[Row]) -> list[float]:
    """In solver mode, without dependent launch."""
    found = (row.standings["solver"].plain_speedup for row in rows if "solver" in row.standings)
    return [value for value in found if value is not None]


def _figure_box(title: str, note: str, drawn: str) -> str:
    return f"<figure><figcaption>{escape(title)}<small>{escape(note)}</small></figcaption>{drawn}</figure>"


def _head(*names: tuple[str, str]) -> str:
    return "".join(f'<th scope="col" class="{look}">{escape(name)}</th>' for name, look in names)


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return '<td class="number" data-value="-1">–</td>'
    return f'<td class="number" data-value="{value:.6g}">{value:,.{digits}f}</td>'.replace(",", "\u202f")


def _numbers(standing: Standing | None, *names: str) -> list[str]:
    return [_number(None if standing is None else getattr(standing, name)) for name in names]


def _share(value: float | None) -> str:
    return f'<td class="number" data-value="{-1 if value is None else round(value, 4)}">{_percent(value)}</td>'


def _speedup(standing: Standing | None) -> str:
    if standing is None:
        return _number(None)
    look = "good" if standing.speedup >= 1 else "bad"
    return f'<td class="number {look}" data-value="{standing.speedup:.4f}"><b>{standing.speedup:.2f}</b></td>'


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
