"""What a program has to go through, in order; the first thing it fails at is its verdict.

Three checks with fresh values and x, poisoned y and scratch; one with NaN and Inf in x; two with numbers as they are
timed; for programs that wait for the kernel before them, single products and a chain of twenty behind a slow writer of
x; one product on another pattern of the same sizes (see `twin`); and, after timing, three or six more, again with
numbers as they are timed, that leave y and scratch as the timing left them, with one value and one entry of x changed
in between, so that a result which was remembered instead of computed is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from sparserl.backends.backend import Part
from sparserl.judge.handed import Asked, Check
from sparserl.judge.reference import AFTER, CHAIN_STEPS, Kind, Reference, ValueSet
from sparserl.judge.sandbox import WorkerError
from sparserl.judge.timing import feeds_back
from sparserl.judge.verify import compare, compare_chain, same_bits
from sparserl.judge.worker import Ran
from sparserl.records import Problem, Verdict

FIRST_CHECKS: tuple[Kind, ...] = ("narrow", "wide", "isolation", "wide", "timed", "fed")
AS_TIMED: tuple[Kind, ...] = ("timed", "fed")
BEHIND_WRITER: tuple[Kind, ...] = ("narrow", "timed", "fed")
How = Mapping[str, bool]
"""of an Asked"""


class Stopped(Exception):  # noqa: N818 - what happened to the program, not an error
    """A program failed at something. Never leaves the judge: it becomes an Outcome."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


class Desk(Protocol):
    """What a trial asks of its case: the worker, with all data in place."""

    @property
    def at_once(self) -> int:
        """How many products it is asked for."""

    @property
    def patience_s(self) -> float:
        """How long they may take."""

    def call(self, command: str, limit_s: float | None = None, **arguments: Any) -> Any: ...

    def handed(self, check: ValueSet) -> Check:
        """The set as the worker takes it: by name if it is there already."""


def part_of(problem: Problem, check: ValueSet) -> Part | None:
    """What of C has to come back for this set; None: all of it."""
    return None if check.columns is None else Part(check.columns, problem.columns, problem.c_order)


def first_sets(reference: Reference) -> Iterator[ValueSet]:
    return (reference.draw(kind, f"first {number}") for number, kind in enumerate(FIRST_CHECKS))


def sets_behind_writer(reference: Reference) -> Iterator[ValueSet]:
    return (reference.draw(kind, "behind a writer") for kind in BEHIND_WRITER)


def sets_after(reference: Reference) -> Iterator[ValueSet]:
    """For a check after timing; of a large problem one is enough."""
    kinds = AS_TIMED if reference.fresh else (reference.pick(AS_TIMED),)
    return (reference.draw(kind, AFTER) for kind in kinds)


def twin_set(reference: Reference) -> ValueSet:
    return reference.draw("narrow", "twin")


def foresee(reference: Reference, wanted: Callable[[], bool]) -> None:
    """Draw what programs are shown, for trials to come, as long as it is wanted.

    Of a large problem, whose pool takes long, what all programs need.
    """
    more = (sets_behind_writer(reference), sets_after(reference)) if reference.fresh else ()
    for _ in chain(first_sets(reference), *more):
        if not wanted():
            return


@dataclass
class Trial:
    """The checks of one loaded program."""

    desk: Desk
    reference: Reference
    name: str
    waits: bool
    sectors: int = 0

    def verify(self) -> None:
        """Before timing. Raises Stopped."""
        self._checks((check, {}) for check in first_sets(self.reference))
        if self.waits:
            self._checks((check, {"behind_writer": True}) for check in sets_behind_writer(self.reference))
            self._chain()

    def verify_twin(self) -> None:
        """On another pattern of the same sizes, whose reference this trial has. Raises Stopped."""
        said = "right on this pattern alone, so it has it in its text; on another of the same sizes "
        self._checks([(twin_set(self.reference), {})], said)

    def recheck(self) -> None:
        """After timing, on what the timing left behind. Raises Stopped."""
        self._checks(self._after())

    def _after(self) -> Iterator[tuple[ValueSet, How]]:
        for check in sets_after(self.reference):
            yield check, {"poison": False}
            for changed in self.reference.neighbours(check):
                yield changed, {"poison": False, "clear": False}

    def _checks(self, checks: Iterable[tuple[ValueSet, How]], said: str = "") -> None:
        """One after another, some of them under way at once. Raises Stopped at the first that isn't right."""
        left, problem = iter(checks), self.reference.problem
        while some := list(islice(left, self.desk.at_once)):
            with _its_fault():
                asked = [Asked(self.desk.handed(check), **how, part=part_of(problem, check)) for check, how in some]
                found = self._ran("checks", asked=asked)
            self._accept(found)
            for (check, how), ran in zip(some, found, strict=True):
                reason = compare(self.reference.pattern, problem, check, ran.y)
                if reason and how.get("behind_writer"):
                    reason += " (behind a slow writer of x: it was read before the wait)"
                elif reason and not how.get("poison", True):
                    reason += " (after other products: an earlier result or workspace shows through)"
                if reason:
                    raise Stopped(Verdict.WRONG, said + reason)

    def _chain(self) -> None:
        reference = self.reference
        fed = feeds_back(reference.pattern, reference.problem)
        check = reference.draw_chain(row_sums=False) if fed else reference.draw("narrow", "chain")
        dependent, *plain = self._chained(check, CHAIN_STEPS, fed)
        self._accept([dependent, *plain])
        if not fed:
            reason = compare(reference.pattern, reference.problem, check, dependent.y)
        elif same_bits(dependent.y, plain[0].y):
            return
        elif all(same_bits(plain[0].y, again.y) for again in plain[1:]):
            differ = int(np.count_nonzero(dependent.y != plain[0].y))
            reason = f"{differ} of {dependent.y.size} results differ from the same products done one by one"
        else:  # its sums depend on the order of its blocks: a bound instead of equality
            check = reference.draw_chain(row_sums=True)
            dependent = self._chained(check, reference.bounded_steps, True)[0]
            self._accept([dependent])
            reason = compare_chain(reference, check, dependent.y)
        if reason:
            raise Stopped(Verdict.WRONG, f"in a chain of {CHAIN_STEPS} dependent products: {reason}")

    def _chained(self, check: ValueSet, steps: int, feed_back: bool) -> list[Ran]:
        with _its_fault():
            return self._ran("chain", check=self.desk.handed(check), steps=steps, feed_back=feed_back)

    def _ran(self, command: str, **arguments: Any) -> list[Ran]:
        rows = self.reference.pattern.rows * self.reference.problem.columns
        found: list[Ran] = self.desk.call(command, self.desk.patience_s, name=self.name, y_count=rows, **arguments)
        return found

    def _accept(self, found: Sequence[Ran]) -> None:
        """A failure counts before all else, be it of the last of them: after it the worker has dropped the layout."""
        for ran in found:
            if ran.failed:
                raise Stopped(Verdict.FAILED, ran.failed)
        for ran in found:
            if ran.dirty:
                raise Stopped(Verdict.WRONG, ran.dirty)
            self.sectors = self.sectors or ran.sectors


@contextmanager
def _its_fault() -> Iterator[None]:
    """A worker that is lost over a program: that is what the program failed at."""
    try:
        yield
    except WorkerError as error:
        raise Stopped(Verdict.FAILED, str(error)) from error
