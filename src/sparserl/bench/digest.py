"""The figures as text: aligned columns for a terminal, a compact Markdown table for the README between two markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparserl.bench.bars import Bar
from sparserl.bench.results import Results
from sparserl.bench.tables import REPORTED, Row, Summary
from sparserl.errors import StoreError

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def text(results: Results) -> str:
    """Bars, groups and matrices, for reading in a terminal."""
    parts = ["Bars", columns(bar_rows(results.bars))]
    for problem in results.problems:
        parts += ["", f"{problem}: geometric means over groups", columns(_group_rows(results.summaries(problem)))]
        parts += ["", f"{problem}: matrices", columns(_matrix_rows(results.of(problem)))]
    return "\n".join(parts)


def markdown(results: Results) -> str:
    """Groups that have been measured down, problems across, between the markers."""
    head = ["matrices", "count"]
    by_key: dict[str, list[str]] = {}
    for first, problem in enumerate(results.problems):
        head += [f"{problem}, solver", "chain"] + (["over CSR", "without pdl", "lowest"] if first == 0 else [])
        found = {(s.group.key, s.mode): s for s in results.summaries(problem)}
        for key in dict.fromkeys(key for key, _ in found):
            solver, chain = (found[key, mode] for mode in REPORTED)
            cells = [figure(solver.speedup), figure(chain.speedup)]
            if first == 0:
                by_key[key] = [solver.group.title, str(solver.count)]
                cells += [figure(v) for v in (solver.over_csr, solver.without_pdl, solver.lowest)]
            by_key[key] += cells
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *by_key.values()) if cells[1] != "0"]
    return "\n".join(
        [
            BEGIN,
            f"Speed-up over the best cuSPARSE variant, geometric means, {_device(results)}:",
            "",
            lines[0],
            "|---" + "|---:" * (len(head) - 1) + "|",
            *lines[1:],
            "",
            "`over CSR`, `without pdl` (no dependent launch) and `lowest` (the worst matrix) are in solver mode.",
            END,
        ]
    )


def write_into(path: Path, block: str) -> None:
    """Put the block in the place of what stands between the markers in a file."""
    whole = path.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise StoreError(f"{path} must have the lines {BEGIN} and {END}: add them where the table belongs.")
    path.write_text(before + block + after, encoding="utf-8")


def columns(table: Sequence[Sequence[str]]) -> str:
    """Rows of cells, aligned; the first row is the head."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def bar_rows(bars: Sequence[Bar]) -> list[list[str]]:
    """What was asked, what was found."""
    made = [["problem", "bar", "value", "asked", "verdict", "matrices", "beside"]]
    for b in bars:
        made.append([b.problem, b.title, b.shown(b.value), b.asked, b.said, f"{b.count}/{b.expected}", b.beside])
    return made


def _group_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    head = ["group", "mode", "matrices", "speed-up", "over CSR", "without pdl", "pdl gain", "lowest", "won", "floor"]
    made = [head]
    for s in summaries:
        if s.count:
            figures = [figure(v) for v in (s.speedup, s.over_csr, s.without_pdl, s.pdl_gain, s.lowest)]
            shares = [_percent(s.wins), _percent(s.floor_share)]
            made.append([s.group.title, s.mode, f"{s.count}/{s.expected}", *figures, *shares])
    return made


def _matrix_rows(rows: Sequence[Row]) -> list[list[str]]:
    head = ["matrix", "class", "nonzeros"]
    for mode in REPORTED:
        head += [f"{mode}: cuSPARSE", "us", "ours us", "speed-up", "over CSR", "without pdl us", "floor", "layout"]
    made = [head]
    for row in rows:
        cells = [row.matrix, f"{row.kind} {row.structure}", str(row.nonzeros)]
        for mode in REPORTED:
            s = row.standings.get(mode)
            if s is None:
                cells += ["no right program" if row.baselines else "no baseline", *["–"] * 7]
                continue
            cells += [s.baseline.name.removeprefix("cusparse:"), figure(s.baseline_us), figure(s.best_us)]
            cells += [figure(s.speedup), figure(s.over_csr), figure(s.plain_us), _percent(s.best.floor_share(mode))]
            cells.append(s.best.partition)
        made.append(cells)
    return made


def _device(results: Results) -> str:
    names = sorted({row.device for row in results.rows if row.device})
    return f"on {' and '.join(names)}" if names else "on an unnamed device"


def figure(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
