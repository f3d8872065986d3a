"""Peers: what a user has without us. Each is a small adapter behind one Protocol and hands back Readings.

library      cuSPARSE on a GPU, every algorithm the matrix admits, after its preprocess step, for SpMM in both memory
             orders; the plain CSR program on the simulator. Raced beside the operator by the judge (`peer_library`)
torch, CuPy  their sparse products, timed beside the operator in this process (`peer_torch`, `peer_cupy`)
SciPy        on the CPU, a sanity row (`peer_scipy`)
a command    any other program, by `--peer 'name=cmd {mtx}'` (`peer_command`)

A side that fails is a Reading with a fault, never an exception. On the simulator only the library takes part: its times
are modelled, and nothing measured stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from sparserl import program
from sparserl.bench.figures import OPERATOR, WITHOUT_PDL
from sparserl.judge.reference import Reference, ValueSet
from sparserl.judge.verify import compare
from sparserl.matrix import Array, Matrix
from sparserl.records import Mode, Problem, Timing

__all__ = ["OPERATOR", "WITHOUT_PDL", "Peer", "Reading", "Subject", "faults", "without_pdl"]

ROUNDED = 4
"""decimals of a microsecond that are kept"""


@dataclass(frozen=True)
class Subject:
    """One matrix under one problem, tuned, ready to be measured."""

    name: str
    matrix: Matrix
    problem: Problem
    modes: tuple[Mode, ...]
    programs: Mapping[Mode, str] = field(default_factory=dict)
    """the operator's text by the mode it is measured in; no entry where no candidate was verified"""
    rounds: int = 7
    seed: int = 0

    @cached_property
    def check(self) -> ValueSet:
        """Values, x and the product that must come out, for peers the judge doesn't run."""
        return Reference(self.matrix.pattern, self.problem, self.seed).draw("narrow")

    def wrong(self, y: Array) -> str:
        """'' where y (storage type, memory order) is the product of `check`, else what is wrong."""
        return compare(self.matrix.pattern, self.problem, self.check, y)


@dataclass(frozen=True)
class Reading:
    """One side in one mode: a verified time, or the reason why there is none."""

    side: str
    mode: Mode
    source: str
    """'gpu': measured, in a run on a GPU; 'modelled': counted by the simulator"""
    timing: Timing | None = None
    verified: bool = False
    fault: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    """what else is known, such as how it was timed"""

    def record(self) -> dict[str, Any]:
        """As it is stored; times that are not there are None."""
        times: dict[str, Any] = {"median_us": None}
        if self.timing is not None:
            times = asdict(self.timing)
            times["quantiles_us"] = [round(q, ROUNDED) for q in self.timing.quantiles_us]
            times |= {key: round(times[key], ROUNDED) for key in ("median_us", "floor_us")}
        about = {"side": self.side, "mode": self.mode, **times, "verified": self.verified, "source": self.source}
        return {**about, **self.more, **({"fault": self.fault} if self.fault else {})}


class Peer(Protocol):
    """What the benchmark asks of a peer."""

    @property
    def name(self) -> str: ...

    def why_not(self) -> str:
        """'' where it can be used on this machine, else what is missing."""

    def measure(self, subject: Subject) -> Iterator[Reading]:
        """Verify and time it; a Reading for every side and mode that was tried."""


def faults(sides: Sequence[str], subject: Subject, source: str, fault: str) -> Iterator[Reading]:
    """The same fault for sides in every mode."""
    for side in sides:
        for mode in subject.modes:
            yield Reading(side, mode, source, fault=fault)


def without_pdl(text: str) -> str | None:
    """The same program launched one kernel after the other; None where it is so already."""
    parsed = program.parse(text)
    if not any(line.pdl for line in parsed.launches):
        return None
    return program.render(replace(parsed, launches=tuple(replace(line, pdl=False) for line in parsed.launches)))
