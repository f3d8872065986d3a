"""What a tuning found, as records: one Candidate a program, one Findings a matrix. They are what report.json holds.

Times carry their source: 'gpu' was measured, 'modelled' was counted by the simulator; the two are never in one report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparserl import phases
from sparserl.records import Outcome, Timing, Verdict


@dataclass
class Candidate:
    """One program that was tried, and how far it came."""

    name: str
    layout: str
    params: dict[str, Any]
    text: str
    simplicity: int = 0
    cost_us: float = 0.0
    """the cost model's estimate, by which it was chosen"""
    verdict: str = "untried"
    reason: str = ""
    time_us: float | None = None
    quantiles_us: tuple[float, ...] = ()
    rounds: int = 0
    floor_us: float = 0.0
    """the least this product could take: the empty kernel, or the packed bytes at full bandwidth"""
    speedup: float | None = None
    registers: int = 0
    sectors: int = 0
    """32-byte sectors of one product, as the simulator counts them; 0 where not counted"""
    packed_bytes: int = 0
    stage: str = "chosen"
    """how far it came in the halving: chosen, judged, timed again, final"""
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def correct(self) -> bool:
        return self.verdict == Verdict.CORRECT.name.lower() and self.time_us is not None

    @property
    def floor_share(self) -> float | None:
        return self.floor_us / self.time_us if self.time_us and self.floor_us else None

    def take(self, outcome: Outcome, mode: str, stage: str) -> None:
        """Note what the judge says. A later word replaces an earlier one, also where it is worse."""
        self.verdict, self.reason, self.stage = outcome.verdict.name.lower(), outcome.reason, stage
        self.registers = outcome.registers or self.registers
        self.sectors = outcome.sectors or self.sectors
        self.packed_bytes = outcome.packed_bytes or self.packed_bytes
        phases.add(self.phases_s, outcome.phases_s)
        timing = outcome.timings.get(mode)
        if timing is None or not outcome.correct:
            self.time_us = None if not outcome.correct else self.time_us
            return
        self.time_us, self.quantiles_us, self.rounds = timing.median_us, timing.quantiles_us, timing.rounds
        self.floor_us = timing.floor_us

    def record(self) -> dict[str, Any]:
        """For JSON: everything but the text, which only the best one's `kernel.cu` holds."""
        fields = asdict(self)
        del fields["text"]
        return {**fields, "floor_share": self.floor_share}


@dataclass
class Findings:
    """All that one tuning found."""

    mode: str
    time_source: str = ""
    candidates: list[Candidate] = field(default_factory=list)
    baselines: dict[str, Timing] = field(default_factory=dict)
    """cuSPARSE's variants on a GPU, the plain CSR kernel on the simulator"""
    best: Candidate | None = None
    interrupted: bool = False
    fault: str = ""
    """of the machine, after candidates had passed: what was known until then counts"""
    phases_s: dict[str, float] = field(default_factory=dict)
    worker_s: dict[str, float] = field(default_factory=dict)
    """what the judge's worker spent on each command, and waiting for its turns; within the phases"""

    @property
    def complete(self) -> bool:
        """Whether all was done that was to be done."""
        return not self.interrupted and not self.fault

    @property
    def baseline(self) -> tuple[str, Timing] | None:
        """The fastest of the baselines."""
        return min(self.baselines.items(), key=lambda item: item[1].median_us, default=None)

    def compare(self) -> None:
        """Fill in every candidate's speed-up, once the baseline is known."""
        if self.baseline is None:
            return
        for candidate in self.candidates:
            candidate.speedup = self.baseline[1].median_us / candidate.time_us if candidate.time_us else None

    def record(self, about: Mapping[str, Any], kept: str) -> dict[str, Any]:
        """report.json. `kept` is the name of what the operator runs: the best candidate, or a baseline."""
        baseline = self.baseline
        from_library = kept in self.baselines
        time = self.baselines[kept].median_us if from_library else (self.best.time_us if self.best else None)
        result = {
            "kept": kept,
            "generated": not from_library,
            "time_us": time,
            "time_source": self.time_source,
            "mode": self.mode,
            "baseline": baseline[0] if baseline else None,
            "baseline_us": baseline[1].median_us if baseline else None,
            "speedup": baseline[1].median_us / time if baseline and time else None,
        }
        return {
            **about,
            "result": result,
            "interrupted": self.interrupted,
            "fault": self.fault,
            "baselines": {name: asdict(timing) for name, timing in self.baselines.items()},
            "candidates": [c.record() for c in self.ranked()],
            "phases_s": phases.rounded(self.phases_s),
            "worker_s": phases.rounded(self.worker_s),
        }

    def ranked(self) -> list[Candidate]:
        """The best first; those that failed last, the furthest of them first."""
        order = {verdict.name.lower(): -verdict.value for verdict in Verdict}

        def key(c: Candidate) -> tuple[bool, bool, float, int]:
            return (c is not self.best, not c.correct, c.time_us or 0.0, order.get(c.verdict, 1))

        return sorted(self.candidates, key=key)
