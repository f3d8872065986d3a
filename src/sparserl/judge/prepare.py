"""From a program's text to a Job, or to the Outcome that says why not: read, screened, admitted, packed, assembled.

Nothing is compiled or run here. Each packed layout of a case is made once and kept while there is room.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from sparserl import layouts
from sparserl.assemble import assemble
from sparserl.backends.backend import Job
from sparserl.errors import LayoutError, ProgramError, ScreenError
from sparserl.expression import evaluate
from sparserl.judge.timing import least_bytes
from sparserl.matrix import Pattern
from sparserl.program import check_signature, parse
from sparserl.records import LayoutLine, Outcome, Packed, Problem, Program, Verdict
from sparserl.screen import screen

KEPT_BYTES = 8 << 30
"""packed layouts kept in host memory by one case"""


@dataclass(frozen=True)
class Prepared:
    """A program that may be compiled."""

    program: Program
    job: Job
    packed_bytes: int
    least_bytes: int
    """what one product must move"""
    pack_s: float

    @property
    def layout(self) -> LayoutLine:
        return self.program.layout


class Packs:
    """The packed layouts of one pattern, least recently used dropped first."""

    def __init__(self, pattern: Pattern, limit_bytes: int = KEPT_BYTES) -> None:
        self.pattern, self.limit_bytes = pattern, limit_bytes
        self._kept: OrderedDict[LayoutLine, Packed] = OrderedDict()

    def get(self, line: LayoutLine) -> Packed:
        """Raises LayoutError where the layout refuses the pattern."""
        if line not in self._kept:
            self._kept[line] = layouts.pack(self.pattern, line)
            while len(self._kept) > 1 and sum(map(_bytes, self._kept.values())) > self.limit_bytes:
                self._kept.popitem(last=False)
        self._kept.move_to_end(line)
        return self._kept[line]


def _bytes(packed: Packed) -> int:
    return packed.size_bytes_without_values + (0 if packed.slot_of is None else packed.slot_of.nbytes)


def readable(text: str, problem: Problem) -> Program | Outcome:
    """Parse and screen."""
    try:
        program = parse(text)
        screen(program)
        check_signature(program, problem)
    except ScreenError as error:
        return Outcome(Verdict.SCREENED, str(error))
    except (ProgramError, LayoutError) as error:
        return Outcome(Verdict.UNREADABLE, str(error))
    return program


def prepare(text: str, problem: Problem, packs: Packs, sms: int, used_columns: int) -> Prepared | Outcome:
    """Everything that comes before the compiler."""
    program = readable(text, problem)
    if isinstance(program, Outcome):
        return program
    began = time.perf_counter()
    try:
        packed = packs.get(program.layout)
    except LayoutError as error:
        return Outcome(Verdict.INADMISSIBLE, str(error))
    pack_s = time.perf_counter() - began
    try:
        _check_names(program, packed, problem, sms)
    except ProgramError as error:
        return Outcome(Verdict.UNREADABLE, str(error))
    try:
        job = assemble(program, packed, problem, sms)
    except ProgramError as error:  # readable, but its sizes are out of range for this matrix
        return Outcome(Verdict.INADMISSIBLE, str(error), phases_s={"pack": pack_s})
    stored = packed.size_bytes_without_values + packed.slots * problem.value_bytes
    return Prepared(program, job, stored, least_bytes(packed, problem, used_columns), pack_s)


def _check_names(program: Program, packed: Packed, problem: Problem, sms: int) -> None:
    """What is wrong with a program whatever the matrix: launch expressions and bake names that can't be read."""
    names = {**packed.scalars, "sms": sms} | ({"n": problem.columns} if problem.op == "spmm" else {})
    for launch in program.launches:
        for expression in (launch.grid, launch.block, launch.shared):
            evaluate(expression, names)
    for workspace in program.workspaces:
        evaluate(workspace.count, names)
    known = {name.upper() for name in names} - {"SMS"} | set(packed.tables)
    for name in program.bake:
        if name not in known:
            raise ProgramError(
                f"The bake line names '{name}', which layout '{program.layout.name}' doesn't offer. "
                f"It may name {', '.join(sorted(known))}."
            )
