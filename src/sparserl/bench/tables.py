"""From records to figures: the best cuSPARSE variant and the best program on every matrix, and means over groups.

Only the race's records count (`raced.jsonl`): programs verified and timed beside cuSPARSE in a fresh process. cuSPARSE
is never a candidate of ours. All here is pure; `bars` holds the figures against what was asked for, `page` shows them.

Not covered: the choice of finalists and its regret (`regret`), the independent measurement (`second_opinion`).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparserl.errors import StoreError
from sparserl.evaluation import CLASSES
from sparserl.records import Mode

REPORTED: tuple[Mode, ...] = ("solver", "chain")
"""the modes of the race, the one that bars are judged in first"""
L2_BYTES = 60e6
"""a matrix whose CSR in float32 is larger counts as above the L2"""
CSR_NAME = re.compile(r"(cusparse|plain):csr\d*(@\w+)?$")
"""CSR algorithms, also those on B and C in another memory order than the operator's: 'cusparse:csr2@col'"""
WON, LOST = 1.02, 1 / 1.02
"""a speed-up above the first is won, one below the second is lost; between them is a tie, which noise may turn"""
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A program of the race, or one variant of cuSPARSE."""

    name: str
    times_us: Mapping[str, float]
    """medians by mode; empty for a program that failed"""
    floors_us: Mapping[str, float] = field(default_factory=dict)
    spreads_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """the 10 and 90 per cent quantiles by mode"""
    layout: str = ""
    pdl: bool = False
    verdict: str = "CORRECT"
    reason: str = ""
    registers: int = 0
    packed_bytes: int = 0
    phases_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The recipe's writer: 'tile' of 'tile(load=cached) on tiles …'."""
        return self.name.partition("(")[0]

    @property
    def partition(self) -> str:
        """The first word of the layout: 'tiles'."""
        return self.layout.partition(" ")[0]

    def floor_share(self, mode: str) -> float:
        """The floor over the time: 1 is as fast as the machine could move the bytes or launch a kernel."""
        return self.floors_us.get(mode, 0.0) / self.times_us[mode]


@dataclass(frozen=True)
class Standing:
    """How the best program stands against cuSPARSE on one matrix, in one mode."""

    baseline: Candidate
    best: Candidate
    baseline_us: float
    best_us: float
    csr_us: float | None
    """the better of cuSPARSE's CSR algorithms; None where none ran"""
    plain_us: float | None
    """the best program without dependent launch; None where none was in the race"""

    @property
    def speedup(self) -> float:
        return self.baseline_us / self.best_us

    @property
    def over_csr(self) -> float | None:
        return None if self.csr_us is None else self.csr_us / self.best_us

    @property
    def plain_speedup(self) -> float | None:
        """The speed-up without dependent launch."""
        return None if self.plain_us is None else self.baseline_us / self.plain_us

    @property
    def pdl_gain(self) -> float | None:
        """What dependent launch adds: 1 where a program without it is the best anyway."""
        return None if self.plain_us is None else self.plain_us / self.best_us


@dataclass(frozen=True)
class Row:
    """One matrix and one problem of the race."""

    matrix: str
    problem: str
    kind: str
    structure: str
    rows: int
    columns: int
    nonzeros: int
    full_search: bool
    admitted: int
    baselines: tuple[Candidate, ...]
    programs: tuple[Candidate, ...]
    standings: Mapping[str, Standing]
    """by mode; a mode is missing where no program was right or no baseline ran"""
    device: str
    versions: Mapping[str, str]
    seconds: float
    source: str
    """'gpu' or 'modelled'"""
    date: str = ""

    @property
    def size_bytes(self) -> int:
        """As CSR in float32, the measure of what fits in the L2."""
        return 8 * self.nonzeros + 4 * self.rows

    @property
    def tuning_s(self) -> float:
        """Seconds that packing and compiling the winner took."""
        best = self.standings.get(REPORTED[0])
        return sum(best.best.phases_s.get(phase, 0.0) for phase in ("pack", "compile")) if best else 0.0


class Placed(Protocol):
    """What a group must know of a matrix: a Row, or a Case of the evaluation list."""

    @property
    def kind(self) -> str: ...
    @property
    def structure(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True)
class Group:
    """A set of matrices that share a mean."""

    key: str
    title: str
    holds: Callable[[Placed], bool]


def _class(name: str) -> Group:
    return Group(name, f"generated, {name}", lambda m: m.kind == "generated" and m.structure == name)


GROUPS = (
    Group("real", "real", lambda m: m.kind == "real"),
    *(_class(name) for name in CLASSES),
    Group(
        "large regular",
        "generated, regular and block above the L2",
        lambda m: m.kind == "generated" and m.structure in ("regular", "block") and m.size_bytes > L2_BYTES,
    ),
    Group("all", "all", lambda m: True),
)
BY_KEY = {group.key: group for group in GROUPS}


@dataclass(frozen=True)
class Summary:
    """One group in one mode. Means are geometric; None where nothing could be compared."""

    group: Group
    mode: str
    count: int
    """matrices with a standing"""
    expected: int
    """matrices of the evaluation list in the group"""
    speedup: float | None
    over_csr: float | None
    without_pdl: float | None
    pdl_gain: float | None
    lowest: float | None
    lowest_matrix: str
    wins: float | None
    """share of matrices on which the best program beats the best variant by more than a tie"""
    floor_share: float | None
    """median share of the floor"""


def rows(records: Iterable[Record]) -> list[Row]:
    """A row for each matrix and problem; a later record of the same replaces an earlier one."""
    latest = {(record["matrix"], record["problem"]): record for record in records}
    made = [row(record) for record in latest.values()]
    if len({r.source for r in made if r.source}) > 1:
        raise StoreError("These records hold measured and modelled times, which can't be compared: keep them apart.")
    return sorted(made, key=lambda r: (r.problem, r.kind, r.nonzeros, r.matrix))


def row(record: Record) -> Row:
    """One record of the race, read."""
    baselines = tuple(_candidate({"name": name, "times": times}) for name, times in record["baselines"].items())
    programs = tuple(map(_candidate, record["programs"]))
    sources = {t["source"] for times in record["baselines"].values() for t in times.values()}
    sources |= {t["source"] for program in record["programs"] for t in program["times"].values()}
    if len(sources) > 1:
        raise StoreError(f"The race of {record['matrix']!r} mixes times of {sorted(sources)}: race it again.")
    found = {mode: _standing(baselines, programs, mode) for mode in REPORTED}
    standings: dict[str, Standing] = {mode: standing for mode, standing in found.items() if standing is not None}
    return Row(
        **{key: record[key] for key in ("matrix", "problem", "kind", "structure", "rows", "columns", "nonzeros")},
        full_search=bool(record.get("full_search", False)),
        admitted=int(record.get("admitted", 0)),
        baselines=baselines,
        programs=programs,
        standings=standings,
        device=record.get("device", ""),
        versions=record.get("versions", {}),
        seconds=float(record.get("seconds", 0.0)),
        source=next(iter(sources), ""),
        date=str(record.get("date", "")),
    )


def summaries(found: Sequence[Row], expected: Iterable[Placed] = ()) -> list[Summary]:
    """Every group in every mode, for the rows of one problem."""
    listed = list(expected)
    return [summary(found, group, mode, listed) for group in GROUPS for mode in REPORTED]


def summary(found: Sequence[Row], group: Group, mode: str, expected: Sequence[Placed] = ()) -> Summary:
    """One group in one mode."""
    standing = {r.matrix: r.standings[mode] for r in found if group.holds(r) and mode in r.standings}
    lowest = min(standing, key=lambda name: standing[name].speedup, default="")
    every = list(standing.values())
    return Summary(
        group=group,
        mode=mode,
        count=len(every),
        expected=sum(map(group.holds, expected)),
        speedup=geometric_mean(s.speedup for s in every),
        over_csr=geometric_mean(s.over_csr for s in every),
        without_pdl=geometric_mean(s.plain_speedup for s in every),
        pdl_gain=geometric_mean(s.pdl_gain for s in every),
        lowest=standing[lowest].speedup if lowest else None,
        lowest_matrix=lowest,
        wins=sum(s.speedup > WON for s in every) / len(every) if every else None,
        floor_share=statistics.median(s.best.floor_share(mode) for s in every) if every else None,
    )


def problems(found: Iterable[Row]) -> list[str]:
    """The problems in the rows: SpMV before SpMM, float32 first, few columns before many."""
    return sorted({r.problem for r in found}, key=_place)


def _place(problem: str) -> tuple[bool, str, int, str]:
    op, dtype, columns, *orders = [*problem.split(), "1"]
    return op != "spmv", dtype, int(columns), " ".join(orders)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there; None of nothing."""
    logs = [math.log(v) for v in values if v is not None]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _candidate(record: Record) -> Candidate:
    times = record["times"]
    kept = ("layout", "pdl", "verdict", "reason", "registers", "packed_bytes", "phases_s")
    return Candidate(
        name=record["name"],
        times_us={mode: t["median_us"] for mode, t in times.items()},
        floors_us={mode: t["floor_us"] for mode, t in times.items()},
        spreads_us={mode: (t["quantiles_us"][0], t["quantiles_us"][-1]) for mode, t in times.items()},
        **{key: record[key] for key in kept if key in record},
    )


def _standing(baselines: Sequence[Candidate], programs: Sequence[Candidate], mode: str) -> Standing | None:
    theirs = [c for c in baselines if mode in c.times_us]
    ours = [c for c in programs if mode in c.times_us and c.verdict == "CORRECT"]
    if not theirs or not ours:
        return None
    baseline, best = (min(side, key=lambda c: c.times_us[mode]) for side in (theirs, ours))
    return Standing(
        baseline=baseline,
        best=best,
        baseline_us=baseline.times_us[mode],
        best_us=best.times_us[mode],
        csr_us=min((c.times_us[mode] for c in theirs if CSR_NAME.match(c.name)), default=None),
        plain_us=min((c.times_us[mode] for c in ours if not c.pdl), default=None),
    )
