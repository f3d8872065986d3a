"""`sparserl report`: the command. It prints where the page is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="a folder that `sparserl bench` wrote, such as results/NAME")],
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="the same with other --candidates, for the cost of tuning; may be repeated"),
    ] = None,
) -> None:
    """Make one self-contained page, FOLDER/index.html, from the records of a benchmark."""
    from sparserl.report.page import write

    typer.echo(str(write(folder, beside=beside or [])))
