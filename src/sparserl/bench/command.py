"""`sparserl bench`: the command. What it does is in `run`; what is printed at the end are the figures of the folder.

Progress goes to stderr, figures to stdout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparserl.errors import TRY_AGAIN, MatrixError, SparseRLError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparserl.bench.figures import Standing, Summary
    from sparserl.bench.matrices import Entry
    from sparserl.bench.run import Finished

PEER_HELP = (
    "'name=command {mtx}': another program, which prints a line `time_us 12.3`; it may also name {x} and {y} (raw "
    "numbers; with {y} its result is verified), {op}, {dtype}, {columns} and {mode}; may be repeated"
)
HEAD = (
    "matrices", "mode", "count", "failed", "speed-up", "over CSR", "without pdl", "won/tied/lost", "worst", "on",
    "tuning s", "break-even", "peak MB",
)  # fmt: skip


def bench(
    *,
    matrices: Annotated[
        list[str],
        typer.Option(
            help="a folder, a file, a list (a path, name or family:… a line), evaluation, or a split; may be repeated"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the records, such as results/NAME; a second call goes on")],
    op: Annotated[str, typer.Option(help="spmv or spmm")] = "spmv",
    dtype: Annotated[str, typer.Option(help="f32 or f64; for spmm also f16 or bf16")] = "f32",
    columns: Annotated[int, typer.Option(help="columns of B, for spmm, where it must be said")] = 0,
    mode: Annotated[list[str] | None, typer.Option(help="solver, chain or cold; may be repeated [solver]")] = None,
    tune_mode: Annotated[str, typer.Option(help="tune once, for this mode, and not once for each")] = "",
    device: Annotated[str, typer.Option(help="cuda, or sim: a modelled table")] = "cuda",
    policy: Annotated[str, typer.Option(help="auto, nano, recipes, or the path of a policy or of programs")] = "auto",
    candidates: Annotated[int, typer.Option(help="programs to try a matrix")] = 16,
    peer: Annotated[list[str] | None, typer.Option(help=PEER_HELP)] = None,
    bare: Annotated[bool, typer.Option("--bare", help="beside the library alone: no torch, CuPy or SciPy")] = False,
    folder: Annotated[Path | None, typer.Option(help="where the real matrices of the evaluation list lie")] = None,
    rounds: Annotated[int, typer.Option(help="times that every side is timed, in turns")] = 7,
    seed: Annotated[int, typer.Option(help="of the numbers that results are verified with")] = 0,
    share: Annotated[str, typer.Option(help="I/N: every N-th matrix from the I-th on, for N processes")] = "0/1",
    budget: Annotated[float, typer.Option(help="seconds; what is left is done by the next call (code 75)")] = 1e9,
    most_nonzeros: Annotated[int, typer.Option(help="leave larger matrices out; 0: none")] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="measure matrices that failed once more")] = False,
    warm_up: Annotated[str, typer.Option(help="a matrix to tune first, not recorded: then the process is warm")] = "",
    other_versions: Annotated[
        bool, typer.Option("--other-versions", help="go on where another driver or library measured")
    ] = False,
) -> None:
    """Tune matrices and time the operators beside cuSPARSE, torch, CuPy and others."""
    from sparserl.bench import archive
    from sparserl.bench.matrices import entries
    from sparserl.bench.peer_command import parse_peer
    from sparserl.bench.run import NAME, Bench, BenchConfig
    from sparserl.shares import share_of
    from sparserl.tune import make_problem

    if op == "spmm" and not columns:
        raise SparseRLError("A benchmark of spmm must be told its '--columns', such as 32: B has as many.")
    problem = make_problem(op, dtype, columns or 1)
    which, shares = share_of(share)
    config = BenchConfig(
        problem,
        device,  # type: ignore[arg-type]  # this and the modes are checked there
        tuple(mode or ["solver"]),  # type: ignore[arg-type]
        tune_mode or None,  # type: ignore[arg-type]
        policy,
        candidates,
        rounds,
        seed,
        shares,
    )
    commands = [parse_peer(text) for text in peer or []]
    wanted = [each for each in entries(matrices, folder) if not most_nonzeros or fits(each, most_nonzeros)]
    warm = entries([warm_up], folder)[0] if warm_up else None
    with (
        Bench(config, out, commands, bare=bare, warm_up=warm, other_versions=other_versions) as run,
        progress(len(wanted[which::shares])) as watch,
    ):
        for finished in run.run(wanted[which::shares], budget_s=budget, retry=retry):
            watch(finished)
    typer.echo(show(archive.read(out, NAME)))
    if not run.complete:
        raise typer.Exit(TRY_AGAIN)


def fits(entry: Entry, most_nonzeros: int) -> bool:
    """Whether a matrix is no larger. Where no list says its size it is loaded to know; what can't be stays, to fail."""
    try:
        return (entry.nonzeros or entry.load().pattern.nonzeros) <= most_nonzeros
    except MatrixError:
        return True


@contextmanager
def progress(total: int) -> Iterator[Callable[[Finished], None]]:
    """A live bar on stderr with the running geometric mean; a line a matrix where that is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: console.print(line(step), soft_wrap=True, highlight=False, markup=False)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, TextColumn("{task.fields[mean]}"), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total, mean="")

        def watch(step: Finished) -> None:
            mean = f"geometric mean {step.mean:.3f}" if step.mean else ""
            bar.update(task, description=step.matrix[:28], completed=step.done, mean=mean)
            if step.fault:
                console.print(line(step), soft_wrap=True, highlight=False, markup=False)

        yield watch


def line(step: Finished) -> str:
    """One matrix in words."""
    said = ", ".join(f"{mode} {value:.2f}" for mode, value in step.speedups.items()) or "no speed-up"
    mean = f"; mean so far {step.mean:.3f}" if step.mean else ""
    fault = f"; failed: {step.fault}" if step.fault else ""
    return f"{step.done}/{step.total} {step.matrix}: {said}{mean} ({step.seconds:.1f} s){fault}"


def show(records: Sequence[dict[str, Any]]) -> str:
    """The figures of a folder as aligned columns, a table a problem."""
    from sparserl.bench.digest import columns
    from sparserl.bench.figures import groups, standings
    from sparserl.bench.provenance import differing
    from sparserl.bench.tables import problems

    abouts = [r for r in records if r["kind"] == "about"]
    about: dict[str, Any] = abouts[-1] if abouts else {}
    found = standings(records)
    how = "modelled by the simulator, not measured" if about.get("source") == "modelled" else "measured"
    parts = [f"{about.get('device', '')}, {about.get('policy', '')}, {about.get('candidates', 0)} candidates: {how}"]
    parts += [f"with more than one {name}: {', '.join(values)}" for name, values in differing(abouts).items()]
    for problem in problems(found):  # type: ignore[arg-type]  # it reads `problem` alone
        table = [list(HEAD)]
        for title, group in groups([s for s in found if s.problem == problem]):
            table.append([title, group[0].mode, *_cells(group)])
        parts += ["", f"{problem}: over the best variant of the baseline", columns(table)]
    return "\n".join(parts)


def _cells(group: Sequence[Standing]) -> list[str]:
    from sparserl.bench.figures import summary

    s: Summary = summary(group)
    won = "–" if s.wins is None else f"{s.won}/{s.tied}/{s.lost}"
    memory = "–" if s.peak_memory_bytes is None else f"{s.peak_memory_bytes / 1e6:.0f}"
    return [
        str(s.count), str(s.failed), str(s.speedup or "–"), str(s.over_csr or "–"), _figure(s.without_pdl), won,
        _figure(s.worst), s.worst_matrix or "–", _figure(s.tuning_s), _figure(s.break_even, ",.0f"), memory,
    ]  # fmt: skip


def _figure(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else "never" if value == float("inf") else f"{value:{form}}"
