"""The judge's race: the operator, the operator without dependent launch, and the library, side by side.

On a GPU the library is cuSPARSE with every variant that the matrix admits, for SpMM on row-major and on column-major B
and C whatever the operator's own order; on the simulator it is the plain CSR program. The judge verifies programs
before and after timing, times all sides round by round in one measurement, and leaves out variants whose product is
not right.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.bench.peers import OPERATOR, WITHOUT_PDL, Reading, Subject, without_pdl
from sparserl.judge.case import Case
from sparserl.judge.evaluate import Judge
from sparserl.judge.race import Race
from sparserl.records import Mode


class Library:
    """Implements `peers.Peer`; the operator's own readings are among its own, because they are taken together."""

    name = "library"

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._source = "gpu" if judge.device.backend == "cuda" else "modelled"

    def why_not(self) -> str:
        return ""

    def measure(self, subject: Subject) -> Iterator[Reading]:
        case = self._judge.open(subject.matrix.pattern, subject.problem)
        try:
            baselines = case.baselines(every_order=True)
            for text, modes in _by_text(subject).items():
                yield from self._race(case, text, modes, baselines, subject.rounds)
        finally:
            case.close()

    def _race(
        self, case: Case, text: str, modes: tuple[Mode, ...], baselines: tuple[str, ...], rounds: int
    ) -> Iterator[Reading]:
        texts = {OPERATOR: text} if text else {}
        if text and (plain := without_pdl(text)) is not None:
            texts[WITHOUT_PDL] = plain
        race = case.race(texts, baselines, modes, rounds)
        for side in (*texts, *baselines):
            for mode in modes:
                yield self._reading(race, side, mode)

    def _reading(self, race: Race, side: str, mode: Mode) -> Reading:
        timing = race.get(side, {}).get(mode)
        if timing is not None:
            return Reading(side, mode, self._source, timing, verified=True)
        outcome = race.outcomes.get(side)
        fault = f"{outcome.verdict.name.lower()}: {outcome.reason}" if outcome else "it was not timed"
        return Reading(side, mode, self._source, fault=fault)


def _by_text(subject: Subject) -> dict[str, tuple[Mode, ...]]:
    """Modes by the program that runs in them; '' where there is none."""
    found: dict[str, tuple[Mode, ...]] = {}
    for mode in subject.modes:
        text = subject.programs.get(mode, "")
        found[text] = (*found.get(text, ()), mode)
    return found
