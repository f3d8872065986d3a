"""What it is to be timed: how, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from sparserl.judge.sandbox import WorkerError
from sparserl.judge.trial import Stopped
from sparserl.records import Mode, Outcome, Timing, Verdict

Timings = dict[str, Timing]
"""by mode"""


@dataclass(frozen=True)
class Clocking:
    """How programs are timed."""

    modes: tuple[Mode, ...]
    rounds: int
    graph_ms: float


class Race(dict[str, Timings]):
    """Timings by name and mode of all that ran and were right afterwards; `outcomes` has every program, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, Outcome] = {}


def over_timing(error: WorkerError) -> Stopped:
    """A worker that was lost while a program was timed: that is what the program failed at."""
    return Stopped(Verdict.FAILED, f"while it was timed: {error}")
