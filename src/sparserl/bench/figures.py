"""Figures of a benchmark: pure functions on the records in `bench.jsonl`.

    found = standings(records)                       one a matrix, problem and mode
    summary([s for s in found if s.headline and s.mode == "solver"])

The baseline is the fastest verified variant of cuSPARSE (of the plain program on the simulator); torch, CuPy, SciPy and
other programs are shown and never the baseline. A matrix without a right operator, whatever the reason, is in no mean;
it is counted as failed and as lost, and is the worst case. Means are geometric. Break-even needs measured times.

Not covered: pictures and pages, which take these figures; the bars of the reference search (`bars`), for which
`races` hands over the same records.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparserl.bench import breakeven, faults
from sparserl.bench.spread import Interval, interval
from sparserl.bench.tables import CSR_NAME, LOST, WON, Record, geometric_mean
from sparserl.errors import StoreError
from sparserl.records import VALUE_BYTES

OPERATOR = "operator"
WITHOUT_PDL = "operator without pdl"
MODE_ORDER = ("solver", "chain", "cold")
BASELINE = re.compile(r"(cusparse|plain):")
STAYS = 2.0
"""sizes of the L2 up to which a part of the data may stay there from product to product (`judge.timing`): only what is
larger is moved from memory as a whole"""


@dataclass(frozen=True)
class Standing:
    """One matrix under one problem in one mode."""

    matrix: str
    problem: str
    mode: str
    origin: str = ""
    split: str = ""
    structure: str = ""
    headline: bool = False
    group: str = ""
    """of one origin or family; '' where the record doesn't say"""
    rows: int = 0
    columns: int = 0
    nonzeros: int = 0
    skew: float = 1.0
    """the longest row over the mean row"""
    times_us: Mapping[str, float] = field(default_factory=dict)
    """by side, of those that were verified"""
    packed_bytes: int | None = None
    tuning_s: float | None = None
    peak_memory_bytes: int | None = None
    source: str = ""
    """'gpu' or 'modelled'; '' where nothing was timed"""
    copy_tb_s: float | None = None
    """what the memory moved at best when the process that timed the operator began"""
    fault: str = ""
    """of this mode"""

    @property
    def kind(self) -> str:
        return self.origin

    @property
    def cluster(self) -> tuple[str, str]:
        """Those that are alike have the same."""
        return self.origin, self.group or self.matrix

    @property
    def failed(self) -> bool:
        """There is no right operator: it could not be read, tuned, verified or timed."""
        return self.operator_us is None

    @property
    def size_bytes(self) -> int:
        """As CSR in float32, the measure of what fits in the L2."""
        return 8 * self.nonzeros + 4 * self.rows

    @property
    def operator_us(self) -> float | None:
        return self.times_us.get(OPERATOR)

    @property
    def baseline(self) -> str:
        """The name of the fastest variant; '' where none ran."""
        there = [side for side in self.times_us if BASELINE.match(side)]
        return min(there, key=lambda side: self.times_us[side], default="")

    @property
    def baseline_us(self) -> float | None:
        return self.times_us.get(self.baseline)

    @property
    def csr_us(self) -> float | None:
        """The better of the baseline's CSR algorithms."""
        return min((us for side, us in self.times_us.items() if CSR_NAME.match(side)), default=None)

    @property
    def speedup(self) -> float | None:
        return _ratio(self.baseline_us, self.operator_us)

    @property
    def over_csr(self) -> float | None:
        return _ratio(self.csr_us, self.operator_us)

    @property
    def plain_speedup(self) -> float | None:
        """Without dependent launch; the operator itself where it has none."""
        return _ratio(self.baseline_us, self.times_us.get(WITHOUT_PDL, self.operator_us))

    @property
    def pdl_gain(self) -> float | None:
        """The time without dependent launch over the time with it; None where the operator has none."""
        return _ratio(self.times_us.get(WITHOUT_PDL), self.operator_us)

    @property
    def csr_bytes(self) -> int:
        """What a product moves at least with A as CSR: values, indices, row starts, x and y, each once."""
        return self.nonzeros * (self._value_bytes + 4) + 4 * (self.rows + 1) + self._vector_bytes

    @property
    def layout_bytes(self) -> int | None:
        """The same with A as the operator's layout packs it."""
        return self.packed_bytes + self._vector_bytes if self.packed_bytes else None

    @property
    def _value_bytes(self) -> int:
        return VALUE_BYTES[self.problem.split()[1]]

    @property
    def _vector_bytes(self) -> int:
        words = self.problem.split()
        return (self.rows + self.columns) * self._value_bytes * (int(words[2]) if words[0] == "spmm" else 1)


def standings(records: Iterable[Record]) -> list[Standing]:
    """One a matrix, problem and mode; a later record of the same thing replaces an earlier one."""
    matrices: dict[tuple[str, str], Record] = {}
    times: dict[tuple[str, str, str], dict[str, Record]] = {}
    for record in records:
        if record["kind"] == "matrix":
            matrices[record["matrix"], record["problem"]] = record
        elif record["kind"] == "time":
            times.setdefault((record["matrix"], record["problem"], record["mode"]), {})[record["side"]] = record
    if len({r["source"] for sides in times.values() for r in sides.values()}) > 1:
        raise StoreError("These records hold measured and modelled times, which can't be compared: keep them apart.")
    found = []
    for (matrix, problem), record in matrices.items():
        for mode in MODE_ORDER:
            if mode in record.get("modes", ()) or (matrix, problem, mode) in times:
                found.append(_standing(record, mode, times.get((matrix, problem, mode), {})))
    return sorted(found, key=lambda s: (s.problem, MODE_ORDER.index(s.mode), s.nonzeros, s.matrix))


def _standing(record: Record, mode: str, sides: Mapping[str, Record]) -> Standing:
    kept = ("origin", "split", "structure", "headline", "group", "rows", "columns", "nonzeros")
    winner = (record.get("winners") or {}).get(mode) or {}
    features = record.get("features") or {}
    return Standing(
        matrix=record["matrix"],
        problem=record["problem"],
        mode=mode,
        **{key: record[key] for key in kept if record.get(key) is not None},
        skew=features["row_max"] / features["row_mean"] if features.get("row_mean") else 1.0,
        times_us={side: r["median_us"] for side, r in sides.items() if r["verified"] and r.get("median_us")},
        packed_bytes=winner.get("packed_bytes", record.get("packed_bytes")),
        tuning_s=(record.get("tuning_s_by_mode") or {}).get(mode, record.get("tuning_s")),
        peak_memory_bytes=record.get("peak_memory_bytes"),
        source=next((str(r["source"]) for r in sides.values()), ""),
        copy_tb_s=sides.get(OPERATOR, {}).get("copy_tb_s"),
        fault=faults.of(record).get(mode, ""),
    )


# ── means, wins, the worst ────────────────────────────────────────────────────


@dataclass(frozen=True)
class Summary:
    """A group of matrices under one problem in one mode. None where nothing could be compared."""

    count: int
    """matrices with an operator and a baseline"""
    failed: int
    """matrices without a right operator, or that could not be measured at all"""
    speedup: Interval | None
    over_csr: Interval | None
    without_pdl: float | None
    pdl_gain: float | None
    """mean over those that use dependent launch"""
    pdl_used: int
    won: int
    """matrices on which the operator beats the baseline by more than a tie"""
    tied: int
    """those within two per cent"""
    lost: int
    """the others, those that failed among them"""
    wins: float | None
    """the share that is won"""
    worst: float | None
    """0 where a matrix failed"""
    worst_matrix: str
    tuning_s: float | None
    """median"""
    break_even: float | None
    """median number of products"""
    peak_memory_bytes: int | None
    """the most of all"""


def summary(group: Sequence[Standing]) -> Summary:
    """Of standings of one problem and one mode."""
    if len({(s.problem, s.mode) for s in group}) > 1:
        raise ValueError("A summary is of one problem and one mode: choose standings by `problem` and `mode`.")
    gains = {s.matrix: s.speedup for s in group if s.speedup is not None}
    failed = [s.matrix for s in group if s.failed]
    worst = failed[0] if failed else min(gains, key=lambda name: gains[name], default="")
    seconds = [s.tuning_s for s in group if s.tuning_s is not None]
    won, lost = sum(gain > WON for gain in gains.values()), sum(gain < LOST for gain in gains.values()) + len(failed)
    judged = len(gains) + len(failed)
    return Summary(
        count=len(gains),
        failed=len(failed),
        speedup=_interval(group, lambda s: s.speedup),
        over_csr=_interval(group, lambda s: s.over_csr),
        without_pdl=geometric_mean(s.plain_speedup for s in group),
        pdl_gain=geometric_mean(s.pdl_gain for s in group),
        pdl_used=sum(s.pdl_gain is not None for s in group),
        won=won,
        tied=judged - won - lost,
        lost=lost,
        wins=won / judged if judged else None,
        worst=(0.0 if failed else gains[worst]) if worst else None,
        worst_matrix=worst,
        tuning_s=statistics.median(seconds) if seconds else None,
        break_even=breakeven.median(s for s in group if s.source != "modelled"),
        peak_memory_bytes=max((s.peak_memory_bytes for s in group if s.peak_memory_bytes is not None), default=None),
    )


def _interval(group: Sequence[Standing], value: Callable[[Standing], float | None]) -> Interval | None:
    """Of those that have the figure."""
    there = [(found, s.cluster) for s in group if (found := value(s)) is not None]
    return interval([each for each, _ in there], [cluster for _, cluster in there])


def paid_after(found: Iterable[Standing]) -> float | None:
    """The median number of products until tuning has paid: never, where there is no operator to pay for it. Modelled
    times pay for nothing."""
    known = [math.inf if s.failed else breakeven.of(s) for s in found if s.source != "modelled"]
    there = [each for each in known if each is not None]
    return statistics.median(there) if there else None


def groups(found: Sequence[Standing]) -> Iterator[tuple[str, list[Standing]]]:
    """Those of a headline, the trained-on ones apart, then every class; by mode, none of them empty."""
    for mode in dict.fromkeys(s.mode for s in found):
        here = [s for s in found if s.mode == mode]
        chosen = {
            "real, held out": [s for s in here if s.origin == "real" and s.headline],
            "generated, held out": [s for s in here if s.origin == "generated" and s.headline],
            "trained on": [s for s in here if s.split in ("train", "dev")],
            "all": here,
            **{name: [s for s in here if s.structure == name] for name in sorted({s.structure for s in here} - {""})},
        }
        yield from ((title, group) for title, group in chosen.items() if group)


# ── pictures ──────────────────────────────────────────────────────────────────


def performance_profile(group: Sequence[Standing]) -> dict[str, list[tuple[float, float]]]:
    """By side, steps (ratio, share): on this share of matrices it is within this ratio of the fastest side.

    A matrix that a side can't do counts against it. The operator without dependent launch is no side of its own.
    """
    timed = [{k: v for k, v in s.times_us.items() if k != WITHOUT_PDL} for s in group]
    timed = [times for times in timed if times]
    found: dict[str, list[tuple[float, float]]] = {}
    for side in sorted({side for times in timed for side in times}, key=lambda name: (name != OPERATOR, name)):
        ratios = sorted(times[side] / min(times.values()) for times in timed if side in times)
        steps: dict[float, float] = {}
        for place, ratio in enumerate(ratios, 1):
            steps[ratio] = place / len(timed)
        found[side] = list(steps.items())
    return found


def by_class(group: Iterable[Standing], x: Callable[[Standing], float]) -> dict[str, list[tuple[float, float, str]]]:
    """Points (x, speed-up, matrix) by structure class, such as over nonzeros or over skew."""
    found: dict[str, list[tuple[float, float, str]]] = {}
    for s in group:
        if s.speedup is not None:
            found.setdefault(s.structure, []).append((x(s), s.speedup, s.matrix))
    return {name: sorted(points) for name, points in sorted(found.items())}


@dataclass(frozen=True)
class Roof:
    """How near an operator comes to what the memory can move."""

    matrix: str
    structure: str
    nonzeros: int
    csr_share: float
    """CSR's bytes over the time, as a share of the bandwidth: above 1 where the layout moves fewer"""
    layout_share: float | None
    """the same with the bytes of the chosen layout"""
    above_l2: bool
    """CSR has more bytes than may stay in the L2 (`STAYS`): only there is the memory the roof"""


def roofline(group: Iterable[Standing], memory_tb_s: float, l2_bytes: float) -> list[Roof]:
    """For each operator that was timed, under the bandwidth of its own run; `memory_tb_s` where none was measured."""
    found = []
    for s in group:
        if s.operator_us is None:
            continue
        most = (s.copy_tb_s or memory_tb_s) * 1e6 * s.operator_us  # bytes in that time
        layout = s.layout_bytes / most if s.layout_bytes else None
        above = s.csr_bytes > STAYS * l2_bytes
        found.append(Roof(s.matrix, s.structure, s.nonzeros, s.csr_bytes / most, layout, above))
    return found


def races(records: Sequence[Record]) -> list[Record]:
    """The same as records of a race, which `tables.rows`, `bars.bars` and `second_opinion.opinions` take."""
    about = next((r for r in reversed(records) if r["kind"] == "about"), {})
    times: dict[tuple[str, str], dict[str, dict[str, Record]]] = {}
    for r in records:
        if r["kind"] == "time" and r["verified"] and r.get("median_us"):
            times.setdefault((r["matrix"], r["problem"]), {}).setdefault(r["side"], {})[r["mode"]] = r
    matrices = {(r["matrix"], r["problem"]): r for r in records if r["kind"] == "matrix" and r.get("nonzeros")}
    return [_race(r, times.get(key, {}), about) for key, r in matrices.items()]


def _race(record: Record, sides: Mapping[str, Mapping[str, Record]], about: Record) -> Record:
    winner = record.get("winner") or {}
    program = {
        "name": OPERATOR,
        "layout": winner.get("layout", ""),
        "pdl": bool(winner.get("pdl")),
        "verdict": "CORRECT",
    }
    kept = ("matrix", "problem", "structure", "rows", "columns", "nonzeros")
    return {
        **{key: record[key] for key in kept},
        "kind": record["origin"],
        "device": about.get("device", ""),
        "versions": about.get("versions", {}),
        "date": about.get("date", ""),
        "seconds": record.get("tuning_s") or 0.0,
        "baselines": {side: modes for side, modes in sides.items() if BASELINE.match(side)},
        "programs": [{**program, "times": sides[OPERATOR]}] if OPERATOR in sides else [],
    }


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
