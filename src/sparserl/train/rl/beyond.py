"""Stage: beyond the teacher. Structurally new programs are raced against the best recipes, and against a climb.

    sparserl train beyond --out results/NAME --rollouts runs/rl [--climb runs/climb] --device cuda
    sparserl train beyond --out results/NAME --evaluation results/EVAL --writer rl

For every matrix (of a run's rollouts, or of the samples of `sparserl eval`), or for as many at random as asked for:

    recipes.jsonl   the five fastest recipes, their numbers fitted by the reference search (`fitted`)
    heats.jsonl     one race in a fresh process: the recipes, the few fastest structurally new programs, the fastest
                    program of all, the fastest of the climb
    finals.jsonl    where a new program was ahead in the heat: the fastest new one, the recipes once more and the one
                    that it is nearest to, with its numbers as well (`finals`), in three fresh processes
    elsewhere.jsonl whether what counts is right on other patterns, as the simulator says (`elsewhere`), where asked for

Heats choose, finals count: the program is named before the clocks that it is reported with are read, and the other side
is in every process the fastest of five or six. So chance works for the recipes. The report (`beyond_report`) needs the
records alone. Each line is written when it is done; a second call goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import Any

from sparserl.bench.archive import read_whole
from sparserl.bench.reference import problem_name
from sparserl.errors import SparseRLError
from sparserl.store import append_jsonl, claim
from sparserl.train.rl.finals import LEAST_PROCESSES, Chosen, finalists, settled, to_race
from sparserl.train.rl.fitted import FitConfig, fitted
from sparserl.train.rl.fresh import FAULT
from sparserl.train.rl.novelty import is_structurally_new
from sparserl.train.rl.side_by_side import Entry, RaceConfig, least, races
from sparserl.train.rl.tried import Tried

HEATS, FINALS, RECIPES, ABOUT = "heats.jsonl", "finals.jsonl", "recipes.jsonl", "about.json"


@dataclass(frozen=True)
class BeyondConfig:
    """Who is raced, and how often."""

    fit: FitConfig = field(default_factory=FitConfig)
    race: RaceConfig = field(default_factory=RaceConfig)
    few: int = 4
    """structurally new programs a matrix that run in the heat: the fastest by the times of training"""
    finalists: int = 1
    """of them in the final; with more than one, the bounds share out the error"""
    processes: int = 3
    """fresh ones, of the final"""
    ahead: float = 1.0
    """a new program goes to the final if it is so many times as fast as the best recipe of the heat"""

    def __post_init__(self) -> None:
        if self.processes < LEAST_PROCESSES or not 1 <= self.finalists <= self.few:
            raise SparseRLError(
                f"A final needs at least {LEAST_PROCESSES} processes and 1..{self.few} finalists ('few'). "
                f"Got {self.processes} and {self.finalists}."
            )


@dataclass(frozen=True)
class Field:
    """Who runs on one matrix, as texts."""

    tried: Tried
    recipes: tuple[str, ...]
    new: tuple[str, ...]
    """structurally new, the fastest first"""
    climbed: str = ""
    climb_tries: int = 0

    @property
    def best(self) -> str:
        """The fastest of all that was tried, new or not; '' where nothing was right."""
        return next(iter(self.tried.fastest()), "")

    @property
    def heat(self) -> Entry:
        texts = [*self.recipes, *self.new, self.best, self.climbed]
        return Entry(self.tried.prompt, tuple(dict.fromkeys(filter(None, texts))))

    def about(self, key: str) -> dict[str, Any]:
        """What a record says of the matrix and of who ran."""
        prompt = self.tried.prompt
        return {
            "pair": key,
            "case": prompt.case,
            "problem": problem_name(prompt.problem),
            "structure": prompt.structure,
            "tries": self.tried.tries,
            "recipes": list(self.recipes),
            "new": list(self.new),
            "best": self.best,
            "climbed": self.climbed,
            "climb_tries": self.climb_tries,
        }


def field_of(tried: Tried, recipes: Sequence[str], climb: Tried | None, few: int) -> Field:
    """Choose who runs on a matrix."""
    problem = tried.prompt.problem
    new: list[str] = []
    for text in tried.fastest():
        if len(new) < few and is_structurally_new(text, problem):
            new.append(text)
    if climb is None:
        return Field(tried, tuple(recipes), tuple(new))
    return Field(tried, tuple(recipes), tuple(new), next(iter(climb.fastest()), ""), climb.tries)


def beyond(
    tried: Mapping[str, Tried],
    climbs: Mapping[str, Tried],
    config: BeyondConfig,
    out: Path,
    budget_s: float = float("inf"),
) -> Iterator[str]:
    """Fit, heats, finals; yields lines to show."""
    until = time.monotonic() + budget_s
    _claim(out, config)
    done = settled(read_whole(out / HEATS))
    left = [key for key in tried if (key, 0) not in done]
    recipes = fitted([tried[key].prompt for key in left], config.fit, out / RECIPES, until)
    fields = {k: field_of(tried[k], recipes[k], climbs.get(k), config.few) for k in left if recipes.get(k)}
    entries = [each.heat for each in fields.values()]
    named = list(fields.items())
    for at, raced in races(entries, config.race, until):
        key, each = named[at]
        append_jsonl(out / HEATS, {**each.about(key), **raced})
        yield f"heat: {each.tried.prompt.case:36s} {_said(raced) or _headline(raced, each, config.race.modes)}"
    yield from _finals(tried, config, out, until)


def _finals(tried: Mapping[str, Tried], config: BeyondConfig, out: Path, until: float) -> Iterator[str]:
    chosen, wanted = _left(tried, config, out)
    entries = [Entry(tried[key].prompt, (*chosen[key][0], *chosen[key][1])) for key, _ in wanted]
    for at, raced in races(entries, config.race, until):
        key, process = wanted[at]
        recipes, new = chosen[key]
        about = {"pair": key, "process": process, "recipes": list(recipes), "new": list(new)}
        append_jsonl(out / FINALS, {**about, **raced})
        yield f"final: {tried[key].prompt.case:36s} process {process + 1} of {config.processes} {_said(raced)}"


def complete(tried: Mapping[str, Tried], config: BeyondConfig, out: Path) -> bool:
    """Whether every matrix that has recipes had its heat, and every final its processes."""
    heats = read_whole(out / HEATS)
    without = {(record["pair"], 0) for record in read_whole(out / RECIPES) if not record["recipes"]}
    return {(key, 0) for key in tried} <= settled(heats) | without and not _left(tried, config, out)[1]


def _left(tried: Mapping[str, Tried], config: BeyondConfig, out: Path) -> tuple[Chosen, list[tuple[str, int]]]:
    """Who is in the finals, and which of their races are left."""
    modes = config.race.modes
    chosen = finalists(read_whole(out / HEATS), modes, config.ahead, config.finalists)
    chosen = {key: each for key, each in chosen.items() if key in tried}
    return chosen, to_race(chosen, read_whole(out / FINALS), modes, config.processes)


def _claim(out: Path, config: BeyondConfig) -> None:
    about: dict[str, Any] = {"device": config.race.device, "modes": list(config.race.modes), "few": config.few}
    about |= {"finalists": config.finalists, "processes": config.processes, "ahead": config.ahead}
    about["rounds"] = config.race.rounds
    claim(out / ABOUT, about, "races")


def _said(raced: Mapping[str, Any]) -> str:
    return f"left out: {raced[FAULT]}" if FAULT in raced else ""


def _headline(raced: Mapping[str, Any], each: Field, modes: Sequence[str]) -> str:
    rival, new = least(raced, each.recipes, modes), least(raced, each.new, modes)
    if rival is None:
        return "no recipe was right"
    return f"{len(each.new)} new" + (f", {exp(rival[0] - new[0]):.3f} of the best recipe's speed" if new else "")
