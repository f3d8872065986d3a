"""How the groups of a round are shared out among judging processes: the longest first, in parts where that pays.

Every part of a group costs what its matrix does, which is made, with its baselines and the numbers of its checks,
whatever is judged on it. So a group is cut only where one process would be busy with it for longer than all are in the
mean. What things cost was fitted to the seconds of 55 rounds of 14 processes on an H200 (R² 0.87); proportions matter
alone. Not covered: winners, which are timed again while other groups are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparserl.judge.reference import FEW_COLUMNS
from sparserl.policy.sample import Sample
from sparserl.records import Problem

SETUP_S = 0.54e-6
"""of a part, a nonzero and column that is looked at"""
PROGRAM_S, RESULT_S, NONZERO_S = 0.23, 0.80e-6, 0.016e-6
"""of a program; more for each of its results, and of the matrix's nonzeros"""
MOST_PARTS = 8
WORTH = 0.9
"""one part more must make the longest so much shorter"""


@dataclass(frozen=True)
class Load:
    """What a group is to a process."""

    setup_s: float
    program_s: float
    programs: int
    """that have to be judged"""

    def seconds(self, parts: int = 1) -> float:
        """Of the longest of so many parts."""
        return self.setup_s + self.program_s * -(-self.programs // parts) if self.programs else 0.0


def load_of(sample: Sample, problem: Problem, programs: int) -> Load:
    """Of so many programs for the matrix of this sample."""
    columns = min(problem.columns, FEW_COLUMNS)
    program_s = PROGRAM_S + RESULT_S * sample.rows * columns + NONZERO_S * sample.nonzeros
    return Load(SETUP_S * sample.nonzeros * columns, program_s, programs)


def parts_of(loads: Sequence[Load], places: int) -> list[int]:
    """Into how many parts each is cut, for so many processes."""
    fair = sum(load.seconds() for load in loads) / places
    return [_parts(load, fair, min(MOST_PARTS, places, load.programs)) for load in loads]


def _parts(load: Load, fair: float, most: int) -> int:
    count = 1
    while load.seconds(count) > fair and count < most:
        if load.seconds(count + 1) > WORTH * load.seconds(count):
            break
        count += 1
    return count
