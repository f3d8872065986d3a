"""The command line: `sparserl tune`, `doctor`, `families`, `bench`, `report`, `train …`, `eval`. It prints.

A command imports its stage when it runs. Errors that are the user's to read become one line on stderr and exit code 2;
Ctrl-C exits with 130 where nothing was found yet. Progress goes to stderr, results to stdout.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparserl.bench import command as commands_bench
from sparserl.errors import SparseRLError
from sparserl.report import command as commands_report
from sparserl.train import (
    commands_collect,
    commands_corpus,
    commands_encode,
    commands_eval,
    commands_rl,
    commands_stages,
    commands_tokens,
)
from sparserl.train.rl import commands as commands_control

if TYPE_CHECKING:
    from sparserl.operator import Operator

BUILT_IN = "family:stencil2d,nx=96,ny=64,points=9"
"""tuned when no matrix is given: 54 thousand nonzeros, under a minute on the simulator"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)


train = typer.Typer(help="The stages that make a policy, in this order.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(train, name="train")
for _stage in (
    commands_corpus.corpus, commands_tokens.tokenizer, commands_encode.encoder, commands_collect.collect,
    commands_collect.estimate, commands_collect.misfits,
    commands_stages.pretrain, commands_stages.sft, commands_stages.worth, commands_stages.turns, commands_stages.rank,
    commands_rl.rl, commands_rl.rl_many,
    commands_control.climb, commands_control.play, commands_control.beyond, commands_control.curves,
    commands_stages.ship, commands_encode.probe,
):  # fmt: skip
    train.command()(_stage)
app.command("eval")(commands_eval.evaluate)
app.command()(commands_bench.bench)
app.command()(commands_report.report)


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
    dtype: Annotated[str, typer.Option(help="f32 or f64; for spmm also f16 or bf16")] = "f32",
    device: Annotated[str, typer.Option(help="auto, cuda or sim")] = "auto",
    candidates: Annotated[int, typer.Option(help="programs to try")] = 16,
    policy: Annotated[str, typer.Option(help="auto, nano, recipes, or the path of a policy or of programs")] = "auto",
    turns: Annotated[int, typer.Option(help="1 to 3: a policy rewrites its programs, told how they fared")] = 1,
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
    folder = out or Path("out") / _stem(matrix)
    _check_folder(folder, "--out")
    if json not in ("", "-"):
        _check_file(Path(json), "--json")
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
                turns=turns,
                cache=cache,
                progress=watch,
            )
    except KeyboardInterrupt:
        typer.echo("sparserl: stopped before any candidate was verified.", err=True)
        raise typer.Exit(130) from None
    found.report["matrix"]["name"] = matrix
    _write(found, matrix, folder, "" if json == "-" else json)
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
    if not name:
        raise SparseRLError("The matrix has an empty name. Give a path, suitesparse:Group/Name or family:NAME.")
    if not name.startswith("family:"):
        return name
    from sparserl.families.spelling import make_matrix, parse_spec

    return make_matrix(parse_spec(name))


def _stem(matrix: str) -> str:
    """A folder name from a matrix's name."""
    base = Path(matrix.partition(",")[0].replace(":", "/")).name or "matrix"
    for ending in (".gz", ".mtx", ".npz"):
        base = base.removesuffix(ending)
    return base


def _check_folder(folder: Path, option: str) -> None:
    """Told before the tuning, which may take minutes. Nothing is made yet: a bad matrix leaves no empty folder."""
    there = next((p for p in (folder, *folder.absolute().parents) if p.exists()), Path("/"))
    why = "not a folder" if not there.is_dir() else "not writable" if not os.access(there, os.W_OK | os.X_OK) else ""
    if why:
        raise SparseRLError(f"Can't write to the folder {folder}: {there} is {why}. Choose another with {option}.")


def _check_file(file: Path, option: str) -> None:
    if file.is_dir():
        raise SparseRLError(f"Can't write {file}: it is a folder. Give {option} a file name, or - for stdout.")
    _check_folder(file.parent, option)


def _write(found: Operator, name: str, folder: Path, json_file: str) -> None:
    from sparserl.report import tuning
    from sparserl.store import write_atomic, write_json

    try:
        write_atomic(folder / "kernel.cu", found.source.encode())
        found.save(folder / "operator.srl")
        write_json(folder / "report.json", found.report)
        tuning.write(folder, found, found.pattern, name)
        if json_file:
            write_json(Path(json_file), found.report)
    except OSError as error:
        where = Path(error.filename or folder)  # a temporary file beside the one that was meant: say where
        raise SparseRLError(f"Can't write to the folder {where.parent}: {error.strerror}.") from error


def main() -> None:
    """The entry point of the `sparserl` command."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except (SparseRLError, commands_stages.UsageError) as error:
        text = str(error) if isinstance(error, SparseRLError) else f"{_usage(error)} See `sparserl --help`."
        typer.echo(f"sparserl: {' '.join(text.split())}", err=True)
        sys.exit(2)
    except OSError as error:  # a full disk, a cache that is no folder: the user's to mend
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"sparserl: {where}{error.strerror or error}. `sparserl doctor` checks this machine.", err=True)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(code or 0)


def _usage(error: Any) -> str:
    text: str = error.format_message().strip()
    return text if text.endswith((".", "?")) else f"{text}."


if __name__ == "__main__":
    main()
