"""What successive halving would have missed: its choice, made again from the records of the full search.

On the stratified matrices every admissible program was timed, and each explored record holds the cost model's estimate.
So the first step of halving can be repeated on paper: `reference.shortlist` picks as many as halving started with
elsewhere, and the fastest of them stands against the fastest of all.

Not covered: what the later steps lose, which time all survivors again. Estimates are stored rounded, so a tie may be
broken in another order than in a search on the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sparserl.bench.reference import Plan, recipe_name, shortlist
from sparserl.bench.tables import REPORTED, Record
from sparserl.recipes import Recipe
from sparserl.records import LayoutLine


@dataclass(frozen=True, eq=False)
class Tried:
    """An explored program, with all of a Recipe that the choice looks at."""

    name: str
    family: str
    layout: LayoutLine
    params: Mapping[str, object]
    cost_us: float
    chain_cost_us: float
    simplicity: int
    pdl: bool
    times_us: Mapping[str, float]


@dataclass(frozen=True)
class Regret:
    """One matrix in one mode: the best that halving would have timed, against the best of all."""

    matrix: str
    problem: str
    mode: str
    programs: int
    """all that the matrix admits"""
    first: int
    """of them, those that halving would have started with"""
    best_us: float
    halved_us: float

    @property
    def value(self) -> float:
        """0.01 is one per cent slower than the full search."""
        return self.halved_us / self.best_us - 1


def regrets(
    explored: Iterable[Record], admitted: Mapping[tuple[str, str], int], first: int | None = None
) -> list[Regret]:
    """In every mode, for each (problem, matrix) that is named with the number of programs that the matrix admits.

    `first` is how many halving starts with; None takes what was usual on the other matrices. Where fewer programs
    than admitted were explored there was no full search, and nothing is said.
    """
    grouped: dict[tuple[str, str], dict[str, Tried]] = {}
    for record in explored:
        tried = _tried(record)  # a matrix explored twice: the later record counts
        grouped.setdefault((record["problem"], record["matrix"]), {})[tried.name] = tried
    found = []
    for (problem, matrix), programs in sorted(grouped.items()):
        if len(programs) >= admitted.get((problem, matrix), len(programs) + 1):
            halved = [len(others) for key, others in grouped.items() if key[0] == problem and key not in admitted]
            start = first or (statistics.mode(halved) if halved else Plan.first)
            found += _of_matrix(matrix, problem, list(programs.values()), start)
    return found


def mean(found: Sequence[Regret]) -> float | None:
    """The arithmetic mean; None of nothing."""
    return statistics.fmean(r.value for r in found) if found else None


def _of_matrix(matrix: str, problem: str, programs: Sequence[Tried], first: int) -> list[Regret]:
    chosen = cast("list[Tried]", shortlist(cast("list[Recipe]", programs), Plan(first=first)))
    found = []
    for mode in REPORTED:
        best, halved = (
            min((t.times_us[mode] for t in side if mode in t.times_us), default=None) for side in (programs, chosen)
        )
        if best is not None:  # a choice without one right program is as bad as can be
            us = float("inf") if halved is None else halved
            found.append(Regret(matrix, problem, mode, len(programs), len(chosen), best, us))
    return found


def _tried(record: Record) -> Tried:
    name, *words = record["layout"].split()
    pairs = [tuple(word.split("=", 1)) for word in words]
    index = dict(pairs).get("index", "int32")
    layout = LayoutLine(name, tuple((key, value) for key, value in pairs if key != "index"), index)
    timed = [mode for mode in REPORTED if f"{mode}_us" in record and not record.get("fault")]
    times: dict[str, float] = {mode: record[f"{mode}_us"] for mode in timed}
    return Tried(
        name=recipe_name(record),
        family=str(record["family"]),
        layout=layout,
        # the choice asks only whether two have the same settings: one word for all of them is compared faster
        params={"": str(sorted(record["settings"].items()))},
        cost_us=record["cost_us"],
        chain_cost_us=record.get("chain_cost_us", record["cost_us"]),
        simplicity=int(record.get("simplicity", 0)),
        pdl=bool(record["pdl"]),
        times_us=times,
    )
