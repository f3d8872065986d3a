"""How far programs come where there is no GPU: they are read, screened, admitted, packed and compiled, but not run.

    sparserl eval --policy rl=runs/rl --split dev --device none --out results/NAME [--reference results/reference]

NVRTC needs no GPU, so the compile rate is the real one; nothing here says whether a program is right, or fast. What was
written is judged by a later call with `--device cuda`. One line a matrix goes to `compiled.jsonl`.

With a reference search beside it, `layout` says what the choice of layouts costs: that search timed hundreds of recipes
briefly on each of its matrices, so the fastest recipe with a layout line is held against the fastest of all. Lines that
it never timed are left out. The least of many brief times is luck, so 1 is out of reach for everybody.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from sparserl.backends import nvrtc
from sparserl.bench import archive
from sparserl.bench.archive import read_whole
from sparserl.bench.reference import problem_name
from sparserl.errors import CompileError
from sparserl.evaluation import Case
from sparserl.judge.prepare import Packs, prepare
from sparserl.records import Outcome, Problem, Verdict
from sparserl.store import append_jsonl, read_json
from sparserl.train import rules
from sparserl.train.assess import ABOUT, PROGRAMS, Run, read_written
from sparserl.train.assess_report import problem_called
from sparserl.train.controls import SMS
from sparserl.train.rl.diagnostics import distinct_skeletons
from sparserl.train.rl.found_lines import layout_of
from sparserl.train.samples import shared_out

COMPILED, COMPILES = "compiled.jsonl", "COMPILES"
Task = tuple[Case, Mapping[str, str]]
"""a matrix, and texts by program"""
Layouts = Mapping[str, Mapping[str, float]]
"""by matrix and layout line: the brief time of the fastest recipe, microseconds"""


def compile_written(run: Run, cases: Sequence[Case]) -> Iterator[str]:
    """What is written and was not compiled yet; yields a line to show for each matrix."""
    written = read_written(run.out)
    texts = {record["program"]: record["text"] for record in read_whole(run.out / PROGRAMS)}
    known = read_compiled(run.out)
    tasks: list[Task] = []
    for case in cases:
        asked = {p for records in written.values() if case.name in records for p in records[case.name]["programs"]}
        if missing := sorted(asked - known.get(case.name, {}).keys()):
            tasks.append((case, {program: texts[program] for program in missing}))
    work = partial(compiled, problem=run.config.problem, folder=run.folder)
    for (case, _), found in zip(tasks, shared_out(work, tasks), strict=True):
        append_jsonl(run.out / COMPILED, {"case": case.name, "programs": found})
        good = sum(each["verdict"] == COMPILES for each in found.values())
        yield f"{case.name:36s} {len(found)} programs, {good} compile"


def compiled(task: Task, problem: Problem, folder: Path | None) -> dict[str, dict[str, str]]:
    """The verdicts on one matrix, with reasons."""
    case, texts = task
    packs, found = Packs(case.load(folder)), {}
    for program, text in texts.items():
        verdict, reason = _verdict(text, problem, packs)
        found[program] = {"verdict": verdict} | ({"reason": reason} if reason else {})
    return found


def _verdict(text: str, problem: Problem, packs: Packs) -> tuple[str, str]:
    made = prepare(text, problem, packs, SMS, used_columns=packs.pattern.shape[1])
    if isinstance(made, Outcome):
        return made.verdict.name, made.reason
    try:
        nvrtc.compile(made.job.source, list(dict.fromkeys(launch.kernel for launch in made.job.launches)))
    except CompileError as error:
        return Verdict.UNCOMPILABLE.name, str(error)
    return COMPILES, ""


def read_compiled(out: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Verdicts by matrix and program; a matrix that another writer came to later has several records."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for record in read_whole(out / COMPILED):
        found.setdefault(record["case"], {}).update(record["programs"])
    return found


# ---- what it comes to


def said(out: Path, reference: Path | None = None) -> list[str]:
    """The figures of every writer as lines, and what failed."""
    problem = problem_called(read_json(out / ABOUT)["problem"])
    texts = {record["program"]: record["text"] for record in read_whole(out / PROGRAMS)}
    verdicts = read_compiled(out)
    times = brief_times(reference, problem) if reference is not None else {}
    lines = []
    for name, records in read_written(out).items():
        held = {case: record["programs"] for case, record in records.items() if record["programs"]}
        held = {case: programs for case, programs in held.items() if verdicts.get(case, {}).keys() >= {*programs}}
        if held:
            lines += _writer(name, held, verdicts, texts, times)
    return lines


def _writer(
    name: str,
    held: Mapping[str, Sequence[str]],
    verdicts: Mapping[str, Mapping[str, Mapping[str, str]]],
    texts: Mapping[str, str],
    times: Layouts,
) -> list[str]:
    good = {case: [p for p in held[case] if verdicts[case][p]["verdict"] == COMPILES] for case in held}
    rate = rules.passes_at_k([[verdicts[case][p]["verdict"] == COMPILES for p in held[case]] for case in held], 1)
    skeletons = statistics.fmean(distinct_skeletons(texts[p] for p in programs) for programs in good.values())
    line = (
        f"{name}: {len(held)} matrices, compile@1 {100 * rate.value:.2f} % ({sum(map(len, good.values()))} of "
        f"{sum(map(len, held.values()))}), {skeletons:.1f} skeletons a matrix"
    )
    costs = {
        case: layout_costs([layout_of(texts[p]) for p in good[case]], times[case]) for case in held if case in times
    }
    if known := [each for each in costs.values() if each]:
        mean, best = (math.exp(statistics.fmean(how(each) for each in known)) for how in (statistics.fmean, max))
        line += f", layout@1 {mean:.4f} and best {best:.4f} on {len(known)} matrices"
    failed = Counter(
        f"  {name}, {case}: {verdicts[case][p]['verdict']}: {verdicts[case][p]['reason'].splitlines()[0]}"
        for case in held
        for p in held[case]
        if verdicts[case][p]["verdict"] != COMPILES
    )
    return [line, *(f"{each} ({count})" for each, count in failed.items())]


def layout_costs(lines: Sequence[str], times: Mapping[str, float]) -> list[float]:
    """How far each layout line is behind the best one, as logarithms; without those that were never timed."""
    return [math.log(min(times.values()) / times[line]) for line in lines if line in times]


def brief_times(folder: Path, problem: Problem) -> Layouts:
    """Of a reference search's first look at all recipes, in solver mode."""
    found: dict[str, dict[str, float]] = {}
    for record in archive.read(folder, "explored"):
        if record["problem"] == problem_name(problem) and record.get("solver_us"):
            times = found.setdefault(record["matrix"], {})
            times[record["layout"]] = min(record["solver_us"], times.get(record["layout"], math.inf))
    return found
