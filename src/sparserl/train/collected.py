"""A collection, read: cases with their programs, their times, and how fast each is beside the best and the baseline.

    collection = load(Path("collection"))
    for case in collection.of("spmv float32"):
        for each in case.programs: each.speed["solver"], collection.texts[each.program].text

A folder holds `measured`, `programs` and `cases` as .jsonl, put away as .jsonl.zst (`python -m sparserl.bench pack`),
or both. Cases that raised, and those that were not finished, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any

from sparserl.bench import archive
from sparserl.errors import StoreError
from sparserl.records import Verdict
from sparserl.train.entries import CASES, MEASURED, PROGRAMS

TIE = 0.02
"""times this close are equal: the noise of a brief timing"""
TIMED = ("solver", "chain")


@dataclass(frozen=True)
class ProgramText:
    """A program, by the hash of its text."""

    program: str
    text: str
    parents: tuple[str, ...] = ()
    """hashes of the texts that a variant was made from"""
    mutations: tuple[str, ...] = ()
    binary: str | None = None
    """hash of the machine code; constants of the first matrix it was measured on are baked in"""

    @cached_property
    def same(self) -> tuple[str, str]:
        """Equal for programs that do the same: one header and one machine code."""
        header = "\n".join(row for row in self.text.split("\n") if row.startswith("// "))
        return header, self.binary or self.program


@dataclass(frozen=True)
class Measurement:
    """One program on one matrix. Modes that were not timed are not in the tables."""

    program: str
    origin: str
    """'recipe' or 'variant'"""
    family: str
    name: str
    verdict: Verdict
    reason: str
    times_us: Mapping[str, float]
    retimed: bool
    speed: Mapping[str, float]
    """by mode, of the case's best: 1 for the best and what ties with it"""
    over_baseline: Mapping[str, float]
    """by mode, times the baseline's speed"""
    floor_us: Mapping[str, float] = field(default_factory=dict)
    """by mode, what no such program can beat"""
    registers: int = 0
    """0: not known"""

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.CORRECT


@dataclass(frozen=True)
class CollectedCase:
    """One matrix under one problem, with all that was measured on it, the fastest in solver mode first."""

    name: str
    problem: str
    split: str
    source: Mapping[str, Any]
    """`cases.from_source` makes the matrix again"""
    rows: int
    columns: int
    nonzeros: int
    admitted: tuple[str, ...]
    """layout lines"""
    baseline_us: Mapping[str, float]
    best_us: Mapping[str, float]
    programs: tuple[Measurement, ...]

    @property
    def correct(self) -> tuple[Measurement, ...]:
        return tuple(each for each in self.programs if each.correct)


@dataclass(frozen=True)
class Collection:
    """All of a folder."""

    cases: tuple[CollectedCase, ...]
    texts: Mapping[str, ProgramText]
    faults: Mapping[tuple[str, str], str]
    """(case, problem) → why there is nothing of it"""

    @property
    def problems(self) -> list[str]:
        return sorted({case.problem for case in self.cases})

    def of(self, problem: str) -> list[CollectedCase]:
        """The cases of one problem."""
        return [case for case in self.cases if case.problem == problem]


def tied(one_us: float, other_us: float) -> bool:
    """Whether two times are equal within the noise."""
    return abs(log(one_us / other_us)) <= log(1 + TIE)


def load(folder: Path) -> Collection:
    """Read a folder. Raises StoreError where there is no collection."""
    lines = archive.read(folder, CASES)
    if not lines:
        raise StoreError(f"{folder} has no {CASES}.jsonl (or .zst). Make it with `sparserl train collect`.")
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in archive.read(folder, MEASURED):
        rows.setdefault((row["case"], row["problem"]), []).append(row)
    texts = {
        each["program"]: ProgramText(
            each["program"], each["text"], tuple(each["parents"]), tuple(each["mutations"]), each["binary"]
        )
        for each in archive.read(folder, PROGRAMS)
    }
    found = {(line["case"], line["problem"]): line for line in lines}
    return Collection(
        tuple(_case(line, rows.get(key, [])) for key, line in found.items() if "fault" not in line),
        texts,
        {key: line["fault"] for key, line in found.items() if "fault" in line},
    )


def _case(line: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> CollectedCase:
    baseline = {mode: us for mode in TIMED if rows and (us := rows[0][f"baseline_{mode}_us"]) is not None}
    best = {mode: us for mode in TIMED if (us := _best_us(rows, mode)) is not None}
    programs = [_measurement(row, best, baseline) for row in rows]
    return CollectedCase(
        name=line["case"],
        problem=line["problem"],
        split=line["split"],
        source=line["source"],
        rows=line["rows"],
        columns=line["columns"],
        nonzeros=line["nonzeros"],
        admitted=tuple(line["admitted"]),
        baseline_us=baseline,
        best_us=best,
        programs=tuple(sorted(programs, key=lambda each: -each.speed.get("solver", 0.0))),
    )


def _best_us(rows: Sequence[Mapping[str, Any]], mode: str) -> float | None:
    """Of those that were timed longer, where there are any: the least of many brief times is luck."""
    right = [row for row in rows if row["verdict"] == Verdict.CORRECT.name and row[f"{mode}_us"] is not None]
    longer = [row for row in right if row["retimed"]]
    return min((float(row[f"{mode}_us"]) for row in longer or right), default=None)


def _measurement(
    row: Mapping[str, Any], best: Mapping[str, float], baseline: Mapping[str, float]
) -> Measurement:
    verdict = Verdict[row["verdict"]]
    times = {mode: float(us) for mode in TIMED if (us := row[f"{mode}_us"]) is not None}
    right = times if verdict is Verdict.CORRECT else {}
    return Measurement(
        program=row["program"],
        origin=row["origin"],
        family=row["family"],
        name=row["name"],
        verdict=verdict,
        reason=row.get("reason", ""),
        times_us=times,
        retimed=row["retimed"],
        speed={mode: _speed(best[mode], us) for mode, us in right.items()},
        over_baseline={mode: baseline[mode] / us for mode, us in right.items() if mode in baseline},
        floor_us={mode: float(row[f"floor_{mode}_us"]) for mode in right if row.get(f"floor_{mode}_us") is not None},
        registers=int(row.get("registers", 0)),
    )


def _speed(best_us: float, own_us: float) -> float:
    return 1.0 if tied(best_us, own_us) else min(1.0, best_us / own_us)
