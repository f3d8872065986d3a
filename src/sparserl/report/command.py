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
    picture: Annotated[Path | None, typer.Option(help="also write the headline as an SVG file, for a README")] = None,
) -> None:
    """Make one self-contained page, FOLDER/index.html, from the records of a benchmark."""
    from sparserl.report import board, page
    from sparserl.report import picture as pictures
    from sparserl.store import write_atomic

    typer.echo(str(page.write(folder, beside=beside or [])))
    if picture is not None:
        write_atomic(picture, pictures.picture(board.read(folder)).encode())
        typer.echo(str(picture))
