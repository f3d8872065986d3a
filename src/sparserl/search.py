"""Successive halving: from the cost model's ranking to one program, with most of the time spent on the few best.

    choose `candidates` by estimate, spread over layouts → judge all, timed briefly → where their writer rewrites them,
    judge those too → time the better half again, longer → … → race the last few against the baseline, side by side
    → the fastest; ties go to the simpler program

It knows a Referee, not the judge: what it needs is two verbs, so tests replay recorded outcomes.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sparserl.errors import BackendError
from sparserl.findings import Candidate, Findings
from sparserl.phases import phase
from sparserl.records import LayoutLine, Outcome, Timing

log = logging.getLogger(__name__)

NOISE = 0.02
"""times closer than this share are a tie"""
FINALISTS = 4
FIRST_ROUNDS, FINAL_ROUNDS = 3, 11
CROWDING = 0.02
"""each candidate already chosen with the same layout makes the next one of it look this much slower"""
TWINS = 0.2
"""the same for one that has the same settings too and differs in the layout's parameters alone"""


class Priced(Protocol):
    """What the search must know of a recipe."""

    @property
    def layout(self) -> LayoutLine: ...
    @property
    def params(self) -> Mapping[str, object]: ...
    @property
    def text(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def simplicity(self) -> int: ...
    @property
    def cost_us(self) -> float: ...


class Referee(Protocol):
    """Who says what a program is worth."""

    repeatable: bool
    """the same program always gets the same time (the simulator): timing twice tells nothing"""

    def judge(self, texts: Sequence[str], rounds: int, told: Callable[[int, Outcome], None]) -> None:
        """Compile, verify and time each; `told` hears index and Outcome as soon as they are known."""

    def race(self, texts: Sequence[str], rounds: int, baselines: bool) -> tuple[list[Outcome], dict[str, Timing]]:
        """Programs that were judged right, and the baselines if asked for, timed side by side (all, or those of them
        that are near the fastest in what was timed before).

        Where the baselines are, times count: after that the programs are verified once more.
        """


@dataclass(frozen=True)
class Progress:
    """One step of a tuning, for a progress bar."""

    stage: str
    done: int
    total: int
    best_us: float | None = None


Watcher = Callable[[Progress], None]
Rewrite = Callable[[Findings], list[Candidate]]
"""what the writer of the candidates makes of them, told how they fared; nothing: that was all"""
P = TypeVar("P", bound=Priced)


def choose(recipes: Sequence[P], count: int) -> list[P]:
    """The cheapest by estimate, but spread: a model is wrong about a whole layout more often than about a parameter."""
    queues: dict[str, deque[tuple[int, P]]] = {}
    for place, recipe in enumerate(sorted(recipes, key=lambda r: (r.cost_us, r.simplicity, r.name))):
        queues.setdefault(_settings(recipe), deque()).append((place, recipe))
    chosen: list[P] = []
    layouts: Counter[str] = Counter()
    twins: Counter[str] = Counter()

    def price(key: str) -> tuple[float, int]:
        place, recipe = queues[key][0]
        return recipe.cost_us * (1 + CROWDING * layouts[recipe.layout.name] + TWINS * twins[key]), place

    while queues and len(chosen) < count:
        key = min(queues, key=price)
        chosen.append(queues[key].popleft()[1])
        if not queues[key]:
            del queues[key]
        layouts[chosen[-1].layout.name] += 1
        twins[key] += 1
    return chosen


def _settings(recipe: Priced) -> str:
    return f"{recipe.layout.name} {recipe.layout.index} {sorted(recipe.params.items())}"


def halve(
    found: Findings, referee: Referee, watch: Watcher, rewrite: Rewrite | None = None, first: int = 0
) -> None:
    """Try all of `found.candidates` (those before `first` were tried already) and settle `found.best`.

    On Ctrl-C what is known so far counts, and so it does where the machine fails after something was right.
    """
    try:
        with phase(found.phases_s, "judge"):
            _judge_from(first, found, referee, watch)
        if rewrite is not None:
            with phase(found.phases_s, "rewrite"):
                _judge_rewritten(rewrite, found, referee, watch)
        with phase(found.phases_s, "halve"):
            finalists = _survivors(found, referee, watch)
        with phase(found.phases_s, "race"):
            _race(found, finalists, referee, watch)
    except KeyboardInterrupt:
        found.interrupted = True
    except BackendError as error:
        if not any(c.correct for c in found.candidates):
            raise
        log.warning("The tuning ends early: %s", error)
        found.fault = str(error)
    found.best = best_of([c for c in found.candidates if c.correct])
    found.compare()


def best_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """The simplest of those within the noise of the fastest of the furthest stage."""
    if not candidates:
        return None
    final = [c for c in candidates if c.stage == "final"] or list(candidates)
    limit = min(c.time_us or 0.0 for c in final) * (1 + NOISE)
    near = [c for c in final if (c.time_us or 0.0) <= limit]
    return min(near, key=lambda c: (c.simplicity, c.time_us, c.name))


def _judge_from(first: int, found: Findings, referee: Referee, watch: Watcher) -> None:
    """Judge the candidates from this place on."""
    total = len(found.candidates)
    heard = first

    def told(index: int, outcome: Outcome) -> None:
        nonlocal heard
        heard += 1
        found.candidates[first + index].take(outcome, found.mode, "judged")
        watch(Progress("judging", heard, total, _fastest(found)))

    watch(Progress("judging", heard, total, _fastest(found)))
    referee.judge([c.text for c in found.candidates[first:]], FIRST_ROUNDS, told)


def _judge_rewritten(rewrite: Rewrite, found: Findings, referee: Referee, watch: Watcher) -> None:
    """Turn after turn, until the writer has no more. It hears speed-ups, so the baselines are timed before."""
    _, found.baselines = referee.race([], FIRST_ROUNDS, baselines=True)
    while True:
        found.compare()
        watch(Progress("rewriting", 0, len(found.candidates), _fastest(found)))
        first = len(found.candidates)
        found.candidates += rewrite(found)
        if len(found.candidates) == first:
            return
        _judge_from(first, found, referee, watch)


def _survivors(found: Findings, referee: Referee, watch: Watcher) -> list[Candidate]:
    """Halve until few are left, each time with twice the rounds."""
    alive = _by_time(found.candidates)
    rounds = 2 * FIRST_ROUNDS
    while len(alive) > FINALISTS:
        alive = alive[: max(FINALISTS, -(-len(alive) // 2))]
        if not referee.repeatable:
            watch(Progress("halving", 0, len(alive), _fastest(found)))
            outcomes, _ = referee.race([c.text for c in alive], rounds, baselines=False)
            for candidate, outcome in zip(alive, outcomes, strict=True):
                candidate.take(outcome, found.mode, "timed again")
            alive = _by_time(alive)
            rounds *= 2
    return alive


def _race(found: Findings, finalists: list[Candidate], referee: Referee, watch: Watcher) -> None:
    """The last word: finalists and baselines in one measurement. What repeats itself needs only the baselines."""
    watch(Progress("racing", 0, len(finalists), _fastest(found)))
    texts = [] if referee.repeatable else [c.text for c in finalists]
    outcomes, found.baselines = referee.race(texts, FINAL_ROUNDS, baselines=True)
    for candidate, outcome in zip(finalists, outcomes, strict=False):
        candidate.take(outcome, found.mode, "final")
    for candidate in finalists:
        candidate.stage = "final"
    watch(Progress("racing", len(finalists), len(finalists), _fastest(found)))


def _by_time(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted((c for c in candidates if c.correct), key=lambda c: (c.time_us, c.simplicity, c.name))


def _fastest(found: Findings) -> float | None:
    return min((c.time_us for c in found.candidates if c.correct and c.time_us), default=None)
