"""How a tuning looks on a terminal, and in plain lines where there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sparserl.policies import origin

if TYPE_CHECKING:
    from sparserl.operator import Operator
    from sparserl.search import Progress

HEADS = ("", "layout", "parameters", "verdict", "time", "speed-up", "of floor")
LONGEST = 200
"""characters of a failed candidate's reason"""


@contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """A live bar on stderr; where that is no terminal, a line a stage."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = [TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Bar(*columns, TextColumn("{task.fields[best]}"), console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None, best="")

        def watch(step: Progress) -> None:
            best = f"best {step.best_us:.3g} us" if step.best_us else ""
            bar.update(task, description=step.stage, completed=step.done, total=step.total, best=best)

        yield watch


def _lines(console: Console) -> Callable[[Progress], None]:
    seen: set[str] = set()

    def watch(step: Progress) -> None:
        if step.stage not in seen:
            seen.add(step.stage)
            best = f", best so far {step.best_us:.3g} us" if step.best_us else ""
            many = "candidate" if step.total == 1 else "candidates"
            console.print(f"{step.stage} {step.total} {many}{best}", soft_wrap=True, highlight=False)

    return watch


def show(operator: Operator, folder: Path) -> None:
    """The table of candidates, the verdict, and where the files are."""
    report = operator.report
    console = Console(highlight=False, soft_wrap=True)
    rows = [_row(c, report["result"]) for c in report["candidates"]]
    time = "modelled time" if report["result"]["time_source"] == "modelled" else "time"
    heads = tuple(time if h == "time" else h for h in HEADS)
    for line in _about(report):
        console.print(line, markup=False)
    if console.is_terminal:
        _table(console, heads, rows)
    else:
        _plain(heads, rows)
    for line in [*_verdict(operator), f"{folder}/: index.html (the page), kernel.cu, operator.srl, report.json"]:
        console.print(line, markup=False)


def show_json(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


def _about(report: dict[str, Any]) -> list[str]:
    m, p, d = report["matrix"], report["settings"]["problem"], report["device"]
    op = p["op"] if p["op"] == "spmv" else f"spmm with {p['columns']} columns"
    where = f"{d['name']}, {report['settings']['mode']} mode" + (", from the cache" if report.get("from_cache") else "")
    size = f"{m['rows']} x {m['columns']}, {m['nonzeros']} nonzeros"
    written = sum(origin(c["name"], report["settings"]["policy"]) == "policy" for c in report["candidates"])
    by = f"; {written} programs written by {report['settings']['policy']}" if written else ""
    return [f"{m.get('name', 'matrix')}: {size}; {op} {p['dtype']} on {where}{by}"]


def _row(c: dict[str, Any], result: dict[str, Any]) -> tuple[str, ...]:
    mark = "*" if c["name"] == result["kept"] else ""
    params = " ".join(f"{k}={v}" for k, v in c["params"].items())
    verdict = c["verdict"] + (f": {c['reason']}"[:LONGEST] if c["reason"] else "")
    time = f"{c['time_us']:.3f} us" if c["time_us"] else ""
    speedup = f"{c['speedup']:.2f}" if c["speedup"] else ""
    share = f"{100 * c['floor_share']:.0f} %" if c["floor_share"] else ""
    return mark, c["layout"], params, verdict, time, speedup, share


def _table(console: Console, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    figures = heads[4:]
    if sum(max(len(row[i]) for row in [heads, *rows]) + 2 for i in range(len(heads))) - 2 > console.width:
        # a parameter a line would be a page a candidate: they go below their layout, and long heads are broken
        figures = tuple(head.replace(" ", "\n") for head in figures)
        heads = ("", "layout\nparameters", "verdict", *figures)
        rows = [(mark, f"{layout}\n{params}", *rest) for mark, layout, params, *rest in rows]
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in figures else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row), style="bold green" if row[0] else "" if row[-3] else "dim")
    console.print(table, soft_wrap=False)


def _plain(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Aligned columns of any width, for logs and pipes."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    sys.stdout.flush()


def _verdict(operator: Operator) -> list[str]:
    result = operator.report["result"]
    lines = []
    if operator.report["interrupted"]:
        lines.append("Stopped early: this is the best of what was verified so far.")
    elif fault := operator.report.get("fault"):
        lines.append(f"The machine failed before all was done; this is the best of what was verified so far. {fault}")
    if not result["generated"]:
        lines.append(f"{result['kept']} stays: no candidate was faster. The operator runs it.")
    how = "modelled by the simulator, not measured" if result["time_source"] == "modelled" else "measured"
    time = f"{result['time_us']:.3f} us a product ({how})" if result["time_us"] else "not timed"
    over = f", {result['speedup']:.2f} times as fast as {result['baseline']}" if result["speedup"] else ""
    return [*lines, f"{operator.layout}: {time}{over}"]
