"""From the records of `assess` to figures: every writer under the fixed rules, and writers against each other.

Needs the records alone, no machine. A raced program's speed is that of its race: the best baseline there over its own
time. One that was only timed briefly is held against the session's median baseline, and never counts as faster than the
fastest that was raced: the least of many brief times is luck. Not covered: showing it (`assess_page`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sparserl.bench import archive, tables
from sparserl.bench.archive import read_whole
from sparserl.bench.reference import problem_name
from sparserl.bench.tables import REPORTED
from sparserl.errors import StoreError
from sparserl.recipes import space
from sparserl.records import Problem, Verdict
from sparserl.store import read_json
from sparserl.train import rules
from sparserl.train.assess import ABOUT, MEASURED, PROGRAMS, read_written, text_sha
from sparserl.train.rl.diagnostics import distinct_skeletons, is_new
from sparserl.train.rules import BUDGETS, Interval, PartSum

Logs = dict[str, float]
"""by matrix"""


@dataclass(frozen=True)
class Sheet:
    """The samples of one writer on one matrix."""

    matrix: str
    structure: str
    kind: str
    nonzeros: int
    programs: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    speeds: Mapping[str, tuple[float, ...]]
    """by mode, beside the programs"""

    def best(self, mode: str) -> float:
        return max(self.speeds[mode])

    def log_mean(self, mode: str) -> float:
        return rules.log_best_of(self.speeds[mode], 1)


@dataclass(frozen=True)
class Written:
    """What a writer's programs are like."""

    samples: int
    finished: int
    distinct: int
    """different texts over all matrices"""
    recipe_share: float
    """samples whose text is a recipe's, to the letter"""
    skeletons: int
    """different skeletons among the right programs"""
    new_skeletons: int
    """of them those that no recipe has"""
    new_share: float
    """right samples with such a skeleton"""
    skeletons_each: Interval
    """different skeletons among the right programs of a matrix"""
    parts: Mapping[str, PartSum] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """One writer."""

    name: str
    sheets: tuple[Sheet, ...]
    written: Written
    at: Mapping[str, Mapping[int, Interval]]
    """@k by mode and k; the largest k is the number of samples"""
    first: Mapping[str, Interval]
    """the first program alone, by mode: of a control that ranks, its best guess"""
    compiles: Mapping[int, Interval]
    correct: Mapping[int, Interval]
    verdicts: Mapping[str, int]

    def logs(self, mode: str, budget: int) -> Logs:
        """log @k by matrix; 0 for the best of all samples."""
        return {
            sheet.matrix: rules.log_best_of(sheet.speeds[mode], budget or len(sheet.programs)) for sheet in self.sheets
        }


@dataclass(frozen=True)
class Report:
    """All writers of a folder."""

    about: Mapping[str, Any]
    figures: Mapping[str, Figures]
    """by name: policies, controls, the reference"""
    reference: Mapping[str, Logs]
    """by mode: the logarithm of the reference search's speed on each matrix; empty where there is none"""
    raced_reference: bool
    """whether the reference's programs were raced in the same sessions, or its own records are used"""
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    modelled: bool
    left_out: int
    """matrices written for that have no complete measurement yet"""

    def share(self, name: str, mode: str) -> Interval | None:
        """The best of all samples over the reference search."""
        return rules.ratio(self.figures[name].logs(mode, 0), self.reference.get(mode, {}))

    def versus(self, ours: str, theirs: str, mode: str, budget: int) -> Interval | None:
        """@k of one over @k of the other on the matrices of both; budget 0: the best of all samples."""
        return rules.ratio(self.figures[ours].logs(mode, budget), self.figures[theirs].logs(mode, budget))


# ---- speeds


def session_speeds(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Speeds by program and mode of one line of the measurements; a program that failed has none."""
    best = [{mode: _fastest(race, mode) for mode in REPORTED} for race in record["races"]]
    out: dict[str, dict[str, float]] = {}
    for mode in REPORTED:
        known = [race[mode] for race in best if race[mode] is not None]
        if not known:
            continue
        usual = statistics.median(us for us in known if us is not None)
        raced = {
            program: rules.speed(best[each["race"]][mode] or usual, each["raced_us"][mode])
            for program, each in record["programs"].items()
            if "raced_us" in each and each["verdict"] == Verdict.CORRECT.name
        }
        most = max(raced.values(), default=math.inf)
        for program, each in record["programs"].items():
            if each["verdict"] == Verdict.CORRECT.name:
                found = raced.get(program) or min(most, rules.speed(usual, each["judged_us"][mode]))
                out.setdefault(program, {})[mode] = found
    return out


def _fastest(race: Mapping[str, Mapping[str, float]], mode: str) -> float | None:
    return min((times[mode] for times in race.values() if mode in times), default=None)


def sheets(written: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]) -> list[Sheet]:
    """The sheets of one writer: matrices whose programs are all measured, beside a baseline."""
    by_case: dict[str, list[Mapping[str, Any]]] = {}
    for record in measured:
        by_case.setdefault(record["case"], []).append(record)
    found = []
    for matrix, record in written.items():
        sessions = by_case.get(matrix, [])
        verdicts: dict[str, Verdict] = {}
        speeds: dict[str, dict[str, float]] = {}
        for session in sessions:
            if session["races"]:
                verdicts |= {p: Verdict[each["verdict"]] for p, each in session["programs"].items()}
                speeds |= session_speeds(session)
        programs = record["programs"]
        if not programs or any(program not in verdicts for program in programs):
            continue
        about = sessions[-1]
        found.append(
            Sheet(
                matrix,
                about["structure"],
                about["kind"],
                about["nonzeros"],
                tuple(programs),
                tuple(verdicts[program] for program in programs),
                {m: tuple(speeds.get(p, {}).get(m, rules.FAILURE) for p in programs) for m in REPORTED},
            )
        )
    return sorted(found, key=lambda sheet: (sheet.nonzeros, sheet.matrix))


# ---- figures


def report(out: Path, reference: Path | None = None) -> Report:
    """All figures of a folder. `reference`: a reference search, used where its programs were not raced here."""
    about = read_json(out / ABOUT)
    measured = read_whole(out / MEASURED)
    texts = {record["program"]: record["text"] for record in read_whole(out / PROGRAMS)}
    problem = problem_called(about["problem"])
    written = read_written(out)
    found: dict[str, Figures] = {}
    left_out = 0
    for name, records in written.items():
        held = sheets(records, measured)
        left_out += sum(bool(record["programs"]) for record in records.values()) - len(held)
        if held:
            found[name] = _figures(name, held, records, texts, problem)
    if not found:
        raise StoreError(f"{out} has no complete measurement of any matrix yet: run `sparserl eval` again to go on.")
    found = dict(sorted(found.items(), key=lambda item: (not item[1].written.parts, item[0] == "reference", item[0])))
    raced = "reference" in found
    known: dict[str, Logs] = {mode: found["reference"].logs(mode, 0) for mode in REPORTED if raced}
    if not raced and reference is not None:
        known = reference_logs(reference, about["problem"])
    versions = {key: value for record in measured for key, value in record["versions"].items()}
    return Report(
        about=about,
        figures=found,
        reference=known,
        raced_reference=raced,
        devices=tuple(sorted({record["device"] for record in measured})),
        versions=versions,
        modelled=any(record["source"] == "modelled" for record in measured),
        left_out=left_out,
    )


def _figures(
    name: str, held: Sequence[Sheet], records: Mapping[str, Any], texts: Mapping[str, str], problem: Problem
) -> Figures:
    least = min(len(sheet.programs) for sheet in held)
    budgets = [k for k in BUDGETS if k <= least]
    compiled = [[rules.compiles(v) for v in sheet.verdicts] for sheet in held]
    right = [[v is Verdict.CORRECT for v in sheet.verdicts] for sheet in held]
    return Figures(
        name=name,
        sheets=tuple(held),
        written=_written(held, records, texts, problem),
        at={mode: {k: rules.at_k([sheet.speeds[mode] for sheet in held], k) for k in budgets} for mode in REPORTED},
        first={mode: rules.geometric([math.log(sheet.speeds[mode][0]) for sheet in held]) for mode in REPORTED},
        compiles={k: rules.passes_at_k(compiled, k) for k in budgets},
        correct={k: rules.passes_at_k(right, k) for k in budgets},
        verdicts=rules.failures(verdict for sheet in held for verdict in sheet.verdicts),
    )


def _written(held: Sequence[Sheet], records: Mapping[str, Any], texts: Mapping[str, str], problem: Problem) -> Written:
    counts = Counter(program for sheet in held for program in sheet.programs)
    found = [[p for p, v in zip(sheet.programs, sheet.verdicts, strict=True) if v is Verdict.CORRECT] for sheet in held]
    right = Counter(program for programs in found for program in programs)
    new = {program for program in right if is_new(texts[program], problem)}
    known = recipe_texts(problem)
    parts: dict[str, PartSum] = {}
    for sheet in held:
        for part, sums in records[sheet.matrix]["parts"].items():
            parts[part] = parts.get(part, PartSum()) + PartSum(*sums)
    return Written(
        samples=counts.total(),
        finished=sum(records[sheet.matrix]["finished"] for sheet in held),
        distinct=len(counts),
        recipe_share=sum(count for program, count in counts.items() if program in known) / counts.total(),
        skeletons=distinct_skeletons(texts[program] for program in right),
        new_skeletons=distinct_skeletons(texts[program] for program in new),
        new_share=sum(right[program] for program in new) / max(1, right.total()),
        skeletons_each=rules.bootstrap([distinct_skeletons(texts[p] for p in programs) for programs in found]),
        parts=parts,
    )


@lru_cache(maxsize=4)
def recipe_texts(problem: Problem) -> frozenset[str]:
    """The names of all recipe texts of a problem."""
    return frozenset(text_sha(recipe.text) for recipe in space(problem))


def problem_called(name: str) -> Problem:
    """The problem that `problem_name` calls so."""
    op, dtype, *rest = name.split()
    if not rest:
        return Problem(op, dtype)  # type: ignore[arg-type]  # checked by Problem
    found = Problem(op, dtype, int(rest[0]), *rest[1:])  # type: ignore[arg-type]
    assert problem_name(found) == name
    return found


def reference_logs(folder: Path, problem: str) -> dict[str, Logs]:
    """log speed of a reference search's own race, by mode and matrix."""
    rows = [row for row in tables.rows(archive.read(folder, "raced")) if row.problem == problem]
    return {
        mode: {row.matrix: math.log(row.standings[mode].speedup) for row in rows if mode in row.standings}
        for mode in REPORTED
    }
