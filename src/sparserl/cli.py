"""The command line: `sparserl tune`, `doctor`, `families`. The only place that prints.

A command imports its stage when it runs. Errors that are the user's to read become one line on stderr and exit code 2;
Ctrl-C exits with 130 where nothing was found yet. Progress goes to stderr, results to stdout.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparserl.errors import SparseRLError

if TYPE_CHECKING:
    from sparserl.operator import Operator

BUILT_IN = "family:stencil2d,nx=96,ny=64,points=9"
"""tuned when no matrix is given: 54 thousand nonzeros, under a minute on the simulator"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def options(verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")] = False) -> None:
    """A sparse matrix goes in; a verified, measured CUDA operator made for that matrix comes out."""
    logging.basicConfig(format="%(message)s", level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr)


@app.command()
def tune(
    matrix: Annotated[
        str, typer.Argument(help="A .mtx, .mtx.gz or .npz file, suitesparse:Group/Name, or family:NAME[,key=value…].")
    ] = BUILT_IN,
    *,
    op: Annotated[str, typer.Option(help="spmv or spmm")] = "spmv",
    columns: Annotated[int, typer.Option(help="columns of B, for spmm")] = 1,
    dtype: Annotated[str, typer.Option(help="f32, f64, f16 or bf16")] = "f32",
    device: Annotated[str, typer.Option(help="auto, cuda or sim")] = "auto",
    candidates: Annotated[int, typer.Option(help="programs to try")] = 16,
    policy: Annotated[str, typer.Option(help="recipes, or the path of a program or a folder of them")] = "recipes",
    mode: Annotated[str, typer.Option(help="what is timed: solver, chain or cold")] = "solver",
    seed: Annotated[int, typer.Option(help="of the numbers that candidates are verified with")] = 0,
    out: Annotated[Path | None, typer.Option(help="folder for kernel.cu, operator.srl, report.json [out/NAME]")] = None,
    json: Annotated[str, typer.Option(help="also write the report here; - for stdout, in place of the table")] = "",
    cache: Annotated[bool, typer.Option(help="use what an earlier run found")] = True,
) -> None:
    """Find a fast, verified kernel for a matrix."""
    from sparserl import display
    from sparserl.tune import make_problem
    from sparserl.tune import tune as run

    make_problem(op, dtype, columns)  # a wrong option is told before a large file is read
    folder = _writable(out or Path("out") / _stem(matrix))
    try:
        with display.progress() as watch:
            found = run(
                open_matrix(matrix),
                op,  # type: ignore[arg-type]  # checked by tune
                dtype=dtype,
                device=device,
                columns=columns,
                candidates=candidates,
                policy=policy,
                seed=seed,
                mode=mode,  # type: ignore[arg-type]
                cache=cache,
                progress=watch,
            )
    except KeyboardInterrupt:
        typer.echo("sparserl: stopped before any candidate was verified.", err=True)
        raise typer.Exit(130) from None
    found.report["matrix"]["name"] = matrix
    _write(found, folder, "" if json == "-" else json)
    if json == "-":
        display.show_json(found.report)
    else:
        display.show(found, folder)


@app.command()
def doctor() -> None:
    """Say what works on this machine: PASS, or the reason why not."""
    from sparserl.doctor import examine

    broken = 0
    for check in examine():
        state = "PASS" if check.passed else "FAIL" if check.needed else "none"
        broken += check.needed and not check.passed
        typer.echo(f"{state}  {check.part:<14} {check.detail}  ({check.seconds:.1f} s)")
    if broken:
        raise typer.Exit(1)


@app.command()
def families() -> None:
    """List the synthetic matrices that `family:NAME` can make."""
    import inspect

    from sparserl.families import FAMILIES

    for name, family in FAMILIES.items():
        about = (inspect.getdoc(family.make) or "").partition("\n")[0]
        keys = [f"{p.name}" for p in list(inspect.signature(family.make).parameters.values())[1:]]
        typer.echo(f"{name:<14} {about}\n{'':<14} {', '.join(keys)}")


def open_matrix(name: str) -> Any:
    """A path or SuiteSparse name as it is; 'family:NAME,key=value…,seed=N' made here."""
    if not name.startswith("family:"):
        return name
    from sparserl.families import make, values_for
    from sparserl.matrix import Matrix

    family, *settings = name.removeprefix("family:").split(",")
    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals and value):
            raise SparseRLError(f"A setting of family:{family} must be key=value. Got {setting!r} in {name!r}.")
        params[key.strip()] = _number(value.strip())
    seed = params.pop("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise SparseRLError(f"The seed of {name!r} must be a whole number from 0. Got {seed!r}.")
    pattern = _draw(family, seed) if not params else make(family, seed, **params)
    return Matrix(pattern, values_for(pattern, seed))


def _draw(family: str, seed: int) -> Any:
    """A family with no settings: of about 100 thousand nonzeros."""
    import numpy as np

    from sparserl.families import FAMILIES, make

    if family not in FAMILIES:
        return make(family, seed)  # which says what there is
    return make(family, seed, **FAMILIES[family].plan(np.random.default_rng(seed), 1e5, 10.0))


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _stem(matrix: str) -> str:
    """A folder name from a matrix's name."""
    base = Path(matrix.partition(",")[0].replace(":", "/")).name or "matrix"
    for ending in (".gz", ".mtx", ".npz"):
        base = base.removesuffix(ending)
    return base


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SparseRLError(f"Can't make the folder {folder}: {error.strerror}. Choose another with --out.") from error
    return folder


def _write(found: Operator, folder: Path, json_file: str) -> None:
    from sparserl.store import write_atomic, write_json

    try:
        write_atomic(folder / "kernel.cu", found.source.encode())
        found.save(folder / "operator.srl")
        write_json(folder / "report.json", found.report)
        if json_file:
            write_json(Path(json_file), found.report)
    except OSError as error:
        raise SparseRLError(f"Can't write {error.filename}: {error.strerror}.") from error


def main() -> None:
    """The entry point of the `sparserl` command."""
    try:
        app()
    except SparseRLError as error:
        typer.echo(f"sparserl: {' '.join(str(error).split())}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
