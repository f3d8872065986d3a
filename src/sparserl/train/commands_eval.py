"""`sparserl eval`: hold policies and controls against each other on a split, under fixed rules, and write a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparserl.evaluation import Case
    from sparserl.records import Problem
    from sparserl.train.assess import Run
    from sparserl.train.assess_writers import Sources

TESTED = ("dev", "seen", "unseen", "real")


def evaluate(
    *,
    policy: Annotated[
        list[str],
        typer.Option(
            help="a policy folder (or NAME=DIR), recipes, heuristic, random, trees, neighbours, single, reference, or "
            "a file of choices, or NAME=DIR, what NAME wrote in an earlier evaluation; give it several times to compare"
        ),
    ],
    split: Annotated[str, typer.Option(help="dev, seen, unseen or real")],
    out: Annotated[Path, typer.Option(help="folder of the records and the page, such as results/NAME")],
    matrices: Annotated[Path | None, typer.Option(help="folder with the real matrices")] = None,
    device: Annotated[
        str, typer.Option(help="cuda, sim, or none: what is written for a GPU is compiled, and nothing is run")
    ] = "cuda",
    collection: Annotated[
        Path | None, typer.Option(help="what `train collect` wrote; trees, neighbours and single learn from it")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="folder of a reference search, such as results/reference")
    ] = None,
    op: Annotated[str, typer.Option(help="spmv or spmm")] = "spmv",
    dtype: Annotated[str, typer.Option(help="f32, f64, f16 or bf16")] = "f32",
    columns: Annotated[int, typer.Option(help="columns of B, for spmm")] = 1,
    withheld: Annotated[bool, typer.Option(help="also prompt policies with withheld headers")] = False,
    mask: Annotated[bool, typer.Option(help="also sample policies with the admissibility mask")] = False,
    chain: Annotated[bool, typer.Option(help="also tell policies that products stand behind one another")] = False,
    temperature: Annotated[
        float | None, typer.Option(help="in place of the one stored with the policy; on the dev split only")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="the same for the least probability drawn from")] = None,
    samples: Annotated[int, typer.Option(help="programs a matrix")] = 16,
    seed: Annotated[int, typer.Option(help="of sampling and of random choices")] = 0,
    most_nonzeros: Annotated[int, typer.Option(help="leave larger matrices out; 0: none")] = 0,
    minutes: Annotated[float, typer.Option(help="stop after so long, between matrices; call again to go on")] = 0.0,
    choose_only: Annotated[bool, typer.Option(help="only make the controls' choices and write the samples")] = False,
    share: Annotated[
        str, typer.Option(help="I/N: only measure what is written, every N-th matrix from the I-th, for N processes")
    ] = "0/1",
    report_only: Annotated[bool, typer.Option(help="only make the page again, from the records")] = False,
) -> None:
    """Sample programs for every matrix of a split, judge them, and report @1, @k, correctness and intervals."""
    from sparserl import splits
    from sparserl.errors import SparseRLError
    from sparserl.shares import share_of
    from sparserl.train.assess import AssessConfig, Run
    from sparserl.train.assess_compiled import compile_written, said
    from sparserl.train.assess_writers import Sources
    from sparserl.tune import make_problem

    if split not in TESTED:
        raise SparseRLError(f"The --split must be one of {', '.join(TESTED)}. Got {split!r}.")
    if device not in ("cuda", "sim", "none"):
        raise SparseRLError(f"The --device must be cuda, sim or none. Got {device!r}.")
    if split != "dev" and (temperature, top_p) != (None, None):
        raise SparseRLError("--temperature and --top-p are for the dev split: on a test split the policy's own count.")
    if temperature is not None and temperature <= 0:
        raise SparseRLError(f"The --temperature must be above 0. Got {temperature}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise SparseRLError(f"The --top-p must be above 0 and at most 1. Got {top_p}.")
    problem: Problem = make_problem(op, dtype, columns)
    config = AssessConfig(split, problem, samples=samples, seed=seed, most_nonzeros=most_nonzeros)
    run = Run(out, config, matrices)
    sources = Sources(collection, reference, device, withheld, mask, chain, temperature, top_p)
    cases = run.kept(splits.cases(split))  # type: ignore[arg-type]  # checked above
    which, shares = share_of(share)
    if shares > 1 and (choose_only or report_only or device == "none"):
        raise SparseRLError(
            "A --share measures: --choose-only, --report-only and --device none are for a process of their own."
        )
    if not report_only:
        run.claim()
        if shares == 1:
            for line in _write(run, cases, policy, sources):
                typer.echo(line)
        if device == "none" and not choose_only:
            for line in compile_written(run, cases):
                typer.echo(line)
        elif not choose_only:
            for line in _measure(run, cases[which::shares], device, shares, minutes):
                typer.echo(line)
    if device == "none" and not choose_only:
        typer.echo("\n".join(said(out, reference)))
    elif not choose_only and shares == 1:
        typer.echo(show(out, reference))


def _write(run: Run, cases: Sequence[Case], names: Sequence[str], sources: Sources) -> Iterator[str]:
    from sparserl.train.assess import write
    from sparserl.train.assess_writers import writers

    for name in names:
        for writer in writers(run, cases, name, sources):
            yield from write(run, cases, writer)


def _measure(run: Run, cases: Sequence[Case], device: str, shares: int, minutes: float) -> Iterator[str]:
    """What was written; of `shares` processes each has its part of the cores to compile with."""
    from sparserl.judge.evaluate import Judge
    from sparserl.train.assess import measure

    compilers = max(1, (os.cpu_count() or 1) // shares)
    with Judge(device, compilers) as judge:  # type: ignore[arg-type]  # checked by the command
        yield from measure(run, cases, judge, 60 * minutes or 1e9)


def show(out: Path, reference: Path | None) -> str:
    """Make the page and say the main figures in lines."""
    from sparserl.bench.tables import REPORTED
    from sparserl.train import assess_page
    from sparserl.train.assess_report import report

    found = report(out, reference)
    lines = []
    for name, each in found.figures.items():
        most = max(each.at[REPORTED[0]])
        said = ", ".join(
            f"{mode} @1 {each.at[mode][1].value:.3f} @{most} {each.at[mode][most].value:.3f}" for mode in REPORTED
        )
        lines.append(
            f"{name}: {len(each.sheets)} matrices, {said}, compile@1 {100 * each.compiles[1].value:.1f} %, "
            f"correct@1 {100 * each.correct[1].value:.1f} %"
        )
    return "\n".join([*lines, str(assess_page.write(out, found))])
