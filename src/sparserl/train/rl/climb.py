"""The control that tells learning from search: hill-climbing by mutations, with as many judged tries.

    climb([(prompt, best_recipe_text), …], referee, ClimbConfig(tries=64))     # the stage is `climbing`

Each climb begins with the best recipe of its matrix. In every step the incumbent is mutated (`train.variants`, the same
mutations that the collection was made with), the new programs are judged, and the fastest becomes the incumbent if it
is ahead by more than the tie, in the brief times and again side by side. Where the incumbent has no new variants left,
the next fastest program is mutated. No program is judged twice, the start counts as a try, and every try is recorded.

A function of (seed, prompt, start, what the referee says). Climbs share the referee's calls and nothing else. A
variant takes tens of milliseconds to make, so that many climbs make theirs in other processes (`pool`).
Not covered: restarts from other recipes, populations, annealing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from typing import Any

from sparserl.bench.archive import sha
from sparserl.bench.reference import problem_name
from sparserl.errors import SparseRLError
from sparserl.records import Problem
from sparserl.train.collected import TIE
from sparserl.train.rl.episodes import log_speedup
from sparserl.train.rl.nouns import Judged, Prompt, judged_to_record
from sparserl.train.rl.referee import Referee, retime_all
from sparserl.train.rl.referee_local import Request
from sparserl.train.variants import ALL_KINDS, Variant, variants

ATTEMPTS = 3
"""how often a program is asked for variants before the next one is: some of what it gives was judged already"""


@dataclass(frozen=True)
class ClimbConfig:
    """How far a climb goes."""

    tries: int = 64
    """programs judged in one climb, the start counted"""
    batch: int = 8
    """variants judged between two looks at the incumbent"""
    tie: float = TIE
    """a program must be faster by more than this share to replace the incumbent"""
    modes: tuple[str, ...] = ("solver",)
    kinds: tuple[str, ...] = ALL_KINDS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tries < 1 or self.batch < 1 or self.tie < 0:
            raise SparseRLError(
                "The 'tries' and 'batch' of ClimbConfig must be at least 1 and 'tie' not negative. "
                f"Got {self.tries}, {self.batch} and {self.tie}."
            )


@dataclass(frozen=True)
class Step:
    """One try."""

    text: str
    parents: tuple[str, ...]
    """texts; none for the start"""
    mutations: tuple[str, ...]
    judged: Judged
    speed: float
    """log of the speed-up over the baseline; minus infinity where it is not right"""
    taken: bool
    """whether it became the incumbent"""
    best: float
    """the incumbent's speed after this try; on a GPU it is measured anew with every change, and moves by the noise"""


@dataclass
class Climb:
    """One climb, under way or done."""

    prompt: Prompt
    start: str
    config: ClimbConfig
    best: str = ""
    speed: float = -inf
    judged: Judged | None = None
    """of the best program"""
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = self.start
        self._challenger = 0  # the try that may become the incumbent

    @property
    def left(self) -> int:
        """Tries that are not spent."""
        return self.config.tries - len(self.steps)

    def ask(self) -> Asked:
        """What to make variants of next."""
        told = f"{self.config.seed} {self.prompt.case} {problem_name(self.prompt.problem)} {len(self.steps)}"
        tried = frozenset(step.text for step in self.steps)
        wanted = min(self.config.batch, self.left)
        return Asked(tuple(self._ranking()), self.prompt.problem, wanted, tried, self.config.kinds, told)

    def _ranking(self) -> list[str]:
        """Programs to mutate: the incumbent, then the others that are right, the fastest first."""
        right = sorted((step for step in self.steps if step.speed > -inf), key=lambda step: -step.speed)
        return list(dict.fromkeys([self.best, *(step.text for step in right)]))

    def tell(self, asked: Sequence[Variant], verdicts: Sequence[Judged]) -> Request | None:
        """Record the tries. What to time again, side by side, where the fastest of them may be the new incumbent."""
        before = self.speed
        for each, judged in zip(asked, verdicts, strict=True):
            step = Step(each.text, each.parents, each.mutations, judged, self._speed(judged), False, before)
            self.steps.append(step)
        first = len(self.steps) - len(asked)
        self._challenger = max(range(first, len(self.steps)), key=lambda at: (self.steps[at].speed, -at))
        fastest = self.steps[self._challenger]
        if not self._ahead(fastest.speed, self.speed):
            return None
        if self.judged is None:  # there is no incumbent to be luckier than
            self._take(fastest.judged)
            return None
        return self.prompt, [fastest.text], self.best

    def settle(self, again: Mapping[str, Judged]) -> None:
        """The times side by side: the fastest of many brief ones may have been luck."""
        text = self.steps[self._challenger].text
        judged = again.get(text)
        rival = self._speed(again[self.best]) if self.best in again else self.speed
        if judged is not None and self._ahead(self._speed(judged), rival):
            self._take(judged)

    def _ahead(self, speed: float, other: float) -> bool:
        return speed > other + log(1 + self.config.tie)

    def _take(self, judged: Judged) -> None:
        at = self._challenger
        self.best, self.speed, self.judged = self.steps[at].text, self._speed(judged), judged
        self.steps[at] = replace(self.steps[at], taken=True)
        self.steps[at:] = [replace(step, best=self.speed) for step in self.steps[at:]]

    def _speed(self, judged: Judged) -> float:
        found = log_speedup(judged, self.config.modes)
        return -inf if found is None else found

    def records(self) -> Iterator[dict[str, Any]]:
        """One line a try, as JSON takes it; a speed-up is None where the program is not right."""
        for number, step in enumerate(self.steps):
            yield {
                "case": self.prompt.case,
                "problem": problem_name(self.prompt.problem),
                "try": number,
                "program": sha(step.text),
                "text": step.text,
                "parents": [sha(text) for text in step.parents],
                "mutations": list(step.mutations),
                "judged": judged_to_record(step.judged),
                "speedup": _plain(step.speed),
                "taken": step.taken,
                "best": _plain(step.best),
            }


def _plain(speed: float) -> float | None:
    return exp(speed) if speed > -inf else None


@dataclass(frozen=True)
class Asked:
    """Which variants a climb wants; all that it takes to make them, for another process."""

    parents: tuple[str, ...]
    """in the order that they are mutated in; none before the first try"""
    problem: Problem
    wanted: int
    tried: frozenset[str]
    kinds: tuple[str, ...]
    seed: str

    def variants(self) -> list[Variant]:
        """Fewer, or none, where nothing new can be made from anything right."""
        rng = random.Random(self.seed)
        found: dict[str, Variant] = {}
        for parent in self.parents:
            for _ in range(ATTEMPTS):
                missing = self.wanted - len(found)
                if missing <= 0:
                    return list(found.values())
                made = variants(parent, self.problem, rng, missing, self.kinds)
                found |= {each.text: each for each in made if each.text not in self.tried}
        return list(found.values())


def climb(
    starts: Sequence[tuple[Prompt, str]],
    referee: Referee,
    config: ClimbConfig,
    tries: Sequence[int] | None = None,
    pool: Executor | None = None,
) -> list[Climb]:
    """All climbs, a step of each at a time, so that the referee sees many groups at once.

    tries: of each climb, in place of the config's. pool: where variants are made; None: here.
    """
    counts = [config.tries] * len(starts) if tries is None else tries
    climbs = [
        Climb(prompt, start, replace(config, tries=count))
        for (prompt, start), count in zip(starts, counts, strict=True)
    ]
    made = [[Variant(each.start, (), ())] for each in climbs]
    going = list(climbs)
    while going:
        asked = [(each, wanted) for each, wanted in zip(going, made, strict=True) if wanted]
        groups = [(each.prompt, [variant.text for variant in wanted]) for each, wanted in asked]
        requests: list[tuple[Climb, Request]] = []
        told = dict(referee.judge(groups))
        for at, (each, wanted) in enumerate(asked):
            request = each.tell(wanted, told[at])
            requests += [] if request is None else [(each, request)]
        for at, again in retime_all(referee, [request for _, request in requests]):
            requests[at][0].settle(again)
        going = [each for each, _ in asked if each.left]
        made = list((pool.map if pool else map)(Asked.variants, [each.ask() for each in going]))
    return climbs
