"""`sparserl train collect`, `estimate` and `misfits`: the commands. What they do is in the modules of these names."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparserl.errors import BackendError, SparseRLError
from sparserl.records import Problem
from sparserl.shares import TIME_IS_UP, share_of
from sparserl.tune import make_problem

if TYPE_CHECKING:
    from sparserl.train.cases import TrainingCase
    from sparserl.train.collect import Plan

    Job = tuple[Problem, Sequence[TrainingCase]]

CORES = max(1, (os.cpu_count() or 2) - 1)


def problem_of(text: str) -> Problem:
    """'spmv f32', 'spmv f64', 'spmm f32 64'; dashes do for blanks."""
    words = [word for word in re.split(r"[ \-]+", text.strip()) if word]
    if len(words) == 2 and words[0] == "spmv":
        return make_problem("spmv", words[1], 1)
    if len(words) == 3 and words[0] == "spmm" and words[2].isdecimal():
        return make_problem("spmm", words[1], int(words[2]))
    raise SparseRLError(f"The '--problem' must read like 'spmv f32' or 'spmm f32 64'. Got {text!r}.")


def counted(text: str, cases: int) -> tuple[Problem, int]:
    """'spmv f32:800' is that problem on 800 matrices; without a number, on as many as `cases` says."""
    name, _, count = text.partition(":")
    if count and not count.strip().isdecimal():
        raise SparseRLError(f"The number after ':' in '--problem' must be one of matrices. Got {text!r}.")
    return problem_of(name), int(count) if count else cases


def collect(
    *,
    out: Annotated[Path, typer.Option(help="Folder of the records; a run that was stopped goes on there.")],
    problem: Annotated[
        list[str] | None,
        typer.Option(help="'spmv f32' [default], 'spmm f32 64' …; 'spmv f64:300' for other --cases; again for more."),
    ] = None,
    cases: Annotated[int, typer.Option(help="generated matrices, in all shares together")] = 800,
    matrices: Annotated[Path | None, typer.Option(help="Folder with the real matrices; none without.")] = None,
    split: Annotated[str, typer.Option(help="train, or dev: the matrices on which choices are made")] = "train",
    share: Annotated[str, typer.Option(help="I/N: every N-th case from the I-th on, for N processes at once.")] = "0/1",
    budget: Annotated[float, typer.Option(help="Seconds; what is left is done by the next call.")] = 1e9,
    device: Annotated[str, typer.Option(help="cuda or sim")] = "cuda",
    variants: Annotated[int, typer.Option(help="changed programs a matrix that are judged; 0 for none")] = 12,
    workers: Annotated[int, typer.Option(help="processes that pack and compile")] = CORES,
    ahead: Annotated[int, typer.Option(help="processes that make matrices and rank recipes")] = max(1, CORES // 4),
    cheapest: Annotated[int, typer.Option(help="recipes a matrix, by the cost model")] = 40,
    of_family: Annotated[int, typer.Option(help="and of every family")] = 1,
    at_random: Annotated[int, typer.Option(help="and at random")] = 16,
    most_nonzeros: Annotated[float, typer.Option(help="Smaller matrices only, such as 5e3 for the simulator.")] = 0.0,
) -> None:
    """Measure programs on training matrices: what the policy learns from."""
    from sparserl.bench.reference import problem_name
    from sparserl.store import read_jsonl
    from sparserl.train import cases as drawn
    from sparserl.train.collect import Plan
    from sparserl.train.entries import CASES, settled
    from sparserl.train.shortlist import Numbers

    end = time.monotonic() + budget
    which, shares = share_of(share)
    if device not in ("cuda", "sim"):
        raise BackendError(f"The '--device' of a collection must be cuda or sim. Got {device!r}.")
    if split not in ("train", "dev"):
        raise SparseRLError(f"The '--split' of a collection must be train or dev. Got {split!r}.")
    there, real = read_jsonl(out / f"{CASES}.jsonl"), matrices is not None
    left: list[Job] = []
    for asked, count in [counted(text, cases) for text in problem or ["spmv f32"]]:
        within = drawn.range_up_to(asked, most_nonzeros) if most_nonzeros else None
        of_dev = split == "dev"
        listed = drawn.dev_cases(real=real) if of_dev else drawn.training_cases(asked, count, real=real, within=within)
        mine, done = listed[which::shares], settled(there, problem_name(asked))
        if all(case.name in done for case in mine):  # said before a GPU is asked for
            typer.echo(f"all {len(mine)} matrices of '{problem_name(asked)}' in this share are there")
        else:
            left.append((asked, mine))
    if left:
        plan = Plan(numbers=Numbers(cheapest, of_family, at_random), variants=variants)
        _measure(left, plan, _Means(out, device, workers, ahead, matrices), end)


@dataclass(frozen=True)
class _Means:
    """What a collection has at its hands."""

    out: Path
    device: str
    workers: int
    ahead: int
    matrices: Path | None


def _measure(left: Sequence[Job], plan: Plan, means: _Means, end: float) -> None:
    """Problem after problem, with one machine and one judge: starting them takes as long as a dozen matrices."""
    from sparserl.backends import open_backend
    from sparserl.bench.machine import Machine
    from sparserl.bench.packing import PackPool
    from sparserl.judge.evaluate import Judge
    from sparserl.train.collect import Setup
    from sparserl.train.collect import collect as run

    on_gpu, workers = means.device == "cuda", means.workers
    backend = open_backend(means.device)
    about, machine = backend.device(), Machine(backend)
    judge = Judge("cuda" if on_gpu else "sim", compile_workers=workers) if plan.variants else None
    try:
        for asked, mine in left:
            if time.monotonic() > end:
                typer.echo(TIME_IS_UP)
                return
            setup = Setup(
                machine, lambda: PackPool(workers, about.arch if on_gpu else "", about.sms), asked, means.out,
                judge=judge, folder=means.matrices, ahead=means.ahead, plan=plan,
            )  # fmt: skip
            for row in run(mine, setup, end - time.monotonic()):
                typer.echo(row)
    finally:
        if judge is not None:
            judge.close()


def estimate(
    *,
    collection: Annotated[Path, typer.Option(help="Folder that `sparserl train collect` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder of the estimates; a run that was stopped goes on there.")],
    problem: Annotated[str, typer.Option(help="'spmv f32', 'spmv f64', 'spmm f32 64' …")] = "spmv f32",
    cases: Annotated[int, typer.Option(help="matrices")] = 3000,
    after: Annotated[int, typer.Option(help="Leave out so many: those that the collection may have.")] = 2000,
    drawn: Annotated[float, typer.Option(min=0, max=1, help="share of matrices like the encoder's, twisted")] = 0.6,
    cut: Annotated[int, typer.Option(help="further matrices like the encoder's, with cells cut out")] = 0,
    real: Annotated[int, typer.Option(help="further matrices that real ones are made into; needs --matrices")] = 0,
    matrices: Annotated[Path | None, typer.Option(help="Folder with the real matrices of the collection.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds; what is left is done by the next call.")] = 1e9,
    workers: Annotated[int, typer.Option(help="processes; 0: none but this one")] = CORES,
    most_nonzeros: Annotated[float, typer.Option(help="Smaller matrices only, such as 5e3 for the simulator.")] = 0.0,
) -> None:
    """Guess what would be fast on matrices that nobody timed: fine-tuning learns from that first."""
    from sparserl.train.cases import cut_cases, drawn_cases, range_up_to, training_cases, twisted_cases
    from sparserl.train.collected import load
    from sparserl.train.estimate import estimate as run
    from sparserl.train.estimate import estimator

    if real and matrices is None:
        raise SparseRLError("Real matrices are made into others where they are: give their folder with --matrices DIR.")
    asked = problem_of(problem)
    within = range_up_to(asked, most_nonzeros) if most_nonzeros else None
    many = round(drawn * cases)
    listed = training_cases(asked, after + cases - many, within=within)[after:]
    listed += drawn_cases(asked, many, most_nonzeros) + cut_cases(asked, cut, most_nonzeros)
    listed += twisted_cases(asked, real, most_nonzeros)
    found = estimator(load(collection), asked, matrices=matrices, kept=collection / "features.jsonl")
    for row in run(listed, found, out, matrices=matrices, workers=workers, budget_s=budget):
        typer.echo(row)


def misfits(
    *,
    collection: Annotated[Path, typer.Option(help="Folder that `train collect` wrote; misfits.jsonl goes there.")],
    each: Annotated[int, typer.Option(help="misfits a matrix and problem, at most")] = 4,
    matrices: Annotated[Path | None, typer.Option(help="Folder with the real matrices of the collection.")] = None,
    workers: Annotated[int, typer.Option(help="processes; 0: none but this one")] = CORES,
) -> None:
    """Look for programs that are fast elsewhere and don't fit here: fine-tuning learns from them."""
    from sparserl.train.collected import load
    from sparserl.train.misfits import misfits as run

    for row in run(load(collection), collection, each=each, matrices=matrices, workers=workers):
        typer.echo(row)
