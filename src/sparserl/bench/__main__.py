"""The commands behind the figures in `results/`: explore, race, table, page. `python -m sparserl.bench --help`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from sparserl.bench import reference
from sparserl.bench.machine import Machine
from sparserl.bench.packing import PackPool
from sparserl.errors import BackendError, SparseRLError
from sparserl.records import Problem
from sparserl.shares import share_of
from sparserl.tune import make_problem

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Matrices = Annotated[Path | None, typer.Option(help="Folder with the real matrices (NAME.mtx.gz).")]
Out = Annotated[Path, typer.Option(help="Folder of the records, such as results/reference.")]
Op = Annotated[str, typer.Option(help="spmv or spmm")]
DType = Annotated[str, typer.Option(help="f32, f64, f16 or bf16")]
Columns = Annotated[int, typer.Option(help="columns of B (spmm)")]
Only = Annotated[list[str] | None, typer.Option(help="Name, class or kind of matrices; may be repeated; all without.")]
DeviceName = Annotated[str, typer.Option(help="cuda or sim")]
Workers = Annotated[int, typer.Option(help="processes that pack and compile, of all shares together")]
Budget = Annotated[float, typer.Option(help="Seconds; what is left is done by the next call.")]
First = Annotated[int, typer.Option(help="programs that halving starts with on a matrix")]
Full = Annotated[bool, typer.Option(help="try every admissible program on the stratified matrices")]
Again = Annotated[bool, typer.Option("--again", help="Look at explored matrices again and time what is new.")]
Share = Annotated[str, typer.Option(help="I/N: every N-th case from the I-th on, for N processes side by side.")]
CORES = max(1, (os.cpu_count() or 2) - 1)


def _problem(op: str, dtype: str, columns: int) -> Problem:
    return make_problem(op, dtype, columns if op == "spmm" else 1)


def _device(name: str) -> Literal["cuda", "sim"]:
    """There is no 'auto' here: measured and modelled times are never mixed."""
    if name == "cuda":
        return "cuda"
    if name == "sim":
        return "sim"
    raise BackendError(f"The '--device' of a measurement must be cuda or sim. Got {name!r}.")


@app.command()
def explore(
    *, out: Out, matrices: Matrices = None, op: Op = "spmv", dtype: DType = "f32", columns: Columns = 64,
    only: Only = None, device: DeviceName = "cuda", workers: Workers = CORES, budget: Budget = 1e9,
    first: First = reference.DEFAULT_PLAN.first, full: Full = True, again: Again = False, share: Share = "0/1",
) -> None:  # fmt: skip
    """Time recipes briefly on the evaluation matrices and keep the finalists."""
    from sparserl.backends import open_backend

    which, shares = share_of(share)
    cases, problem = reference.chosen_cases(only or [])[which::shares], _problem(op, dtype, columns)
    if which % 2:  # large matrices keep the host busy, small ones the GPU: some of each at any time
        cases.reverse()
    backend = Machine(open_backend(_device(device))).as_backend
    about, plan = backend.device(), reference.Plan(first=first, full=full)
    with PackPool(max(1, workers // shares), about.arch if device == "cuda" else "", about.sms) as pool:
        for row in reference.explore(
            cases, folder=matrices, problem=problem, backend=backend, pool=pool, out=out, plan=plan, budget_s=budget,
            again=again,
        ):  # fmt: skip
            typer.echo(row)


@app.command()
def race(
    *, out: Out, matrices: Matrices = None, op: Op = "spmv", dtype: DType = "f32", columns: Columns = 64,
    only: Only = None, device: DeviceName = "cuda", share: Share = "0/1",
) -> None:  # fmt: skip
    """In a fresh process: verify the finalists and time them beside every cuSPARSE variant."""
    from sparserl.judge.evaluate import Judge

    which, shares = share_of(share)
    cases = reference.chosen_cases(only or [])[which::shares]
    if which % 2:
        cases.reverse()
    with Judge(_device(device)) as judge:
        for row in reference.race(cases, matrices, _problem(op, dtype, columns), judge, out):
            typer.echo(row)


@app.command()
def anchors(
    out: Out, tool: Annotated[Path, typer.Option(help="The independent script, such as anchors.py.")],
    matrices: Matrices = None, dtype: DType = "f32", only: Only = None, *,
    of: Annotated[list[str] | None, typer.Option(help="What `sparserl bench --matrices` takes, in its place.")] = None,
    solver: Annotated[bool, typer.Option("--solver", help="Rewrite x between products.")] = False,
    share: Share = "0/1",
) -> None:  # fmt: skip
    """Ask an independent script for its times of cuSPARSE and of simple kernels (needs what the script needs)."""
    from sparserl.backends.cuda import CudaBackend
    from sparserl.backends.driver import call
    from sparserl.bench import second_opinion
    from sparserl.bench.matrices import entries, of_cases
    from sparserl.judge.turn import Turn, gpu_of

    which, shares = share_of(share)
    problem = _problem("spmv", dtype, 1)
    wanted = entries(of, matrices) if of else of_cases(reference.chosen_cases(only or []), matrices)
    turn = Turn(gpu_of("cuda"), Path(tempfile.gettempdir()))
    script, bench = second_opinion.load(tool), CudaBackend().bench

    def empty_l2() -> None:
        call("cuCtxSynchronize")  # the script works on other streams
        bench.empty_l2()
        call("cuCtxSynchronize")

    for row in second_opinion.ask(
        script, wanted[which::shares], problem, out, solver=solver, turn=turn, before=empty_l2
    ):
        typer.echo(row)


Folder = Annotated[Path, typer.Argument(help="Folder of the records, such as results/reference.")]


@app.command()
def table(
    out: Folder,
    markdown: Annotated[bool, typer.Option("--markdown", help="A compact Markdown table with its markers.")] = False,
    into: Annotated[Path | None, typer.Option(help="Put the Markdown table between the markers of this file.")] = None,
) -> None:
    """Print bars, groups and matrices."""
    from sparserl.bench import digest, results

    found = results.load(out)
    if into is not None:
        digest.write_into(into, digest.markdown(found))
    else:
        typer.echo(digest.markdown(found) if markdown else digest.text(found))


Lists = Annotated[list[str] | None, typer.Option(help="What `sparserl bench --matrices` takes; may be repeated.")]


@app.command()
def goals(
    out: Annotated[Path, typer.Argument(help="Folder that `sparserl bench` wrote, such as results/bench.")],
    beside: Annotated[list[Path] | None, typer.Option(help="Others, for what tuning costs; may be repeated.")] = None,
    *,
    of: Annotated[
        list[str] | None, typer.Option(help="A list that should be measured, in the place of those of runs/bench.sh.")
    ] = None,
    large: Annotated[list[str] | None, typer.Option(help="One for SpMV alone, with --of.")] = None,
    costed: Annotated[list[str] | None, typer.Option(help="One for the cost of tuning, with --of.")] = None,
    matrices: Matrices = None,
    into: Annotated[Path | None, typer.Option(help="Put the table for a README between the markers of a file.")] = None,
) -> None:
    """Print what a benchmark was asked to show, what it shows, and what tuning costs."""
    from sparserl.bench import archive, costs, digest, figures, headline, provenance, second_opinion, tables, wanted
    from sparserl.bench import goals as goal
    from sparserl.report import board

    boards = [board.read(each) for each in (out, *(beside or []))]
    records = archive.read(out, board.NAME)
    found, abouts = figures.standings(records), [r for r in records if r["kind"] == "about"]
    opinions = second_opinion.opinions(archive.read(out, "anchors"), tables.rows(figures.races(records)))
    alone: dict[int, costs.Tunings] = {}
    for each in boards:
        every = [s for entry in each.entries for s in entry.standings.values()]
        count = int(each.about.get("candidates") or 0)
        alone[count] = {**alone.get(count, {}), **costs.tunings(every)}
    lists = wanted.Lists(tuple(of), tuple(large or ()), tuple(costed or ())) if of else wanted.Lists()
    named = wanted.wanted(lists, found, matrices)
    typer.echo(digest.columns(digest.bar_rows(goal.goals(found, boards[0].about, named, opinions, alone))))
    typer.echo(f"\nwhat tuning costs, {costs.PROBLEM}, {costs.MODE}\n{digest.columns(costs.rows(alone, named.costed))}")
    for name, values in provenance.differing(abouts).items():
        typer.echo(f"measured with more than one {name}: {', '.join(values)}")
    if into is not None:
        digest.write_into(into, headline.block(out, into.parent))


@app.command()
def page(out: Folder) -> None:
    """Write OUT/index.html: one page that needs nothing else."""
    from sparserl.bench import page, results

    typer.echo(page.write(out, results.load(out)))


@app.command()
def fit(
    folders: Annotated[list[Path], typer.Argument(help="Folders with explored programs.")], matrices: Matrices = None,
    op: Op = "spmv", dtype: DType = "f32", columns: Columns = 64, *,
    figures: Annotated[Path | None, typer.Option(help="Write what is printed there, as JSON.")] = None,
    reprice: Annotated[Path | None, typer.Option(help="Folder whose records get estimates of unseen matrices.")] = None,
) -> None:  # fmt: skip
    """Fit the cost model to explored programs and write its coefficients into the package."""
    from sparserl import recipes
    from sparserl.bench import fit
    from sparserl.store import read_json, write_json

    problem = _problem(op, dtype, columns)
    tables = fit.read(folders, matrices, problem)
    found = {mode: fit.cross_validate(table) for mode, table in tables.items()}
    for part, values in found.items():
        for name, value in values.items():
            typer.echo(f"{part}: {name}: {value:.4g}")
    coefficients = {mode: fit.as_json(table, fit.fit(table, table.weight > 0)) for mode, table in tables.items()}
    fit.write(Path(recipes.__file__).with_name("cost.json"), problem, coefficients)
    if reprice is not None:
        typer.echo(f"{fit.reprice(reprice, problem, tables)} records of {reprice} have new estimates")
    if figures is not None:
        old = read_json(figures) if figures.exists() else {}
        write_json(figures, {**old, reference.problem_name(problem): found})


@app.command()
def pack(out: Folder) -> None:
    """Compress the records of OUT; every command reads them either way."""
    from sparserl.bench import archive

    for path in archive.pack(out):
        typer.echo(path)


@app.command()
def pairs(
    *, records: Annotated[list[Path], typer.Option(help="JSONL of measured times: matrix, recipe, chain, solver …")],
    out: Out, matrices: Matrices = None, seed: Annotated[int, typer.Option(help="of the draw")] = 0,
    budget: Budget = 1e9,
) -> None:  # fmt: skip
    """Simulate a sample of what was measured, for `agreement`."""
    from sparserl.bench import pairs
    from sparserl.evaluation import evaluation_list
    from sparserl.store import read_jsonl

    measured = [row for path in records for row in read_jsonl(path)]
    for row in pairs.collect(evaluation_list(), measured, out, matrices, seed=seed, budget_s=budget):
        typer.echo(row)


@app.command()
def agreement(
    out: Annotated[Path, typer.Argument(help="Folder of the stored sample, such as results/agreement.")],
    save: Annotated[bool, typer.Option("--save", help="Write OUT/figures.json.")] = False,
) -> None:
    """How well the modelled time ranks programs, against measured times."""
    from sparserl.bench import agreement
    from sparserl.store import write_json

    found = agreement.figures(agreement.load(out))
    if save:
        write_json(out / "figures.json", found)
    typer.echo(agreement.text(found))


@app.command()
def calibrate(
    out: Annotated[Path, typer.Argument(help="Folder of the stored sample, such as results/agreement.")],
) -> None:
    """Fit the model's constants to one half of the sample and print them with the figures they give."""
    from sparserl.bench import agreement, calibration

    sample = agreement.load(out)
    constants = calibration.calibrate(sample)
    for name in calibration.FITTED:
        typer.echo(f"{name} = {getattr(constants, name):g}")
    typer.echo(agreement.text(agreement.figures(sample, constants)))


def main() -> None:
    """Errors that are the user's to read are one line and exit code 2."""
    try:
        app()
    except SparseRLError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
