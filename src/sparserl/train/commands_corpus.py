"""`sparserl train corpus`: the command, its progress bar and what it prints."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparserl.train.corpus import Report, Step

MEGABYTE = 1e6


def corpus(
    out: Annotated[Path, typer.Option(help="folder for the archives and the shards")],
    *,
    manifest: Annotated[Path | None, typer.Option(help="the pinned archives [the shipped list]")] = None,
    index: Annotated[str, typer.Option(help="the only package index to ask [those pip is set up with]")] = "",
    limit: Annotated[int, typer.Option(help="take the first so many packages; 0: all")] = 0,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="go on without what can't be had")] = False,
    json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Download the pinned packages and make the training text of their CUDA sources."""
    from sparserl.train.corpus import SHIPPED, CorpusConfig, build

    config = CorpusConfig(out, manifest or SHIPPED, index or None, limit, allow_missing)
    with _progress() as watch:
        report = build(config, watch)
    sys.stdout.write(json_text.dumps(asdict(report), indent=2) + "\n" if json else _text(report))


def _text(report: Report) -> str:
    lines = [
        f"{report.text_bytes / MEGABYTE:.1f} MB of text in {report.files} files of {report.packages} packages",
        f"training {report.train_bytes / MEGABYTE:.1f} MB, "
        f"validation {report.validation_bytes / MEGABYTE:.1f} MB (packages of its own)",
        "dropped: " + (", ".join(f"{count} {reason}" for reason, count in report.dropped.items()) or "nothing"),
        *(f"missing: {reason}" for reason in report.missing),
        f"{report.folder}/: {report.shards} shards, {report.shard_bytes / MEGABYTE:.1f} MB, provenance.csv",
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def _progress() -> Iterator[Callable[[Step], None]]:
    """A bar a stage on stderr; where that is no terminal, a line a stage."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        seen: set[str] = set()

        def line(step: Step) -> None:
            if step.stage not in seen:
                seen.add(step.stage)
                console.print(f"{step.stage}: {step.total} to do", soft_wrap=True)

        yield line
        return
    columns = [TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, TextColumn("{task.fields[now]}", markup=False), console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def show(step: Step) -> None:
            if step.stage not in tasks:
                tasks[step.stage] = bar.add_task(step.stage, now="")
            size = f" {step.received_bytes / MEGABYTE:.1f} MB" if step.received_bytes else ""
            bar.update(tasks[step.stage], completed=step.done, total=step.total, now=step.name + size)

        yield show
