"""From a training matrix to the recipes that are measured on it; made ahead of the machine in other processes.

The cost model's best, the best of every family, and some at random; never a withheld combination.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sparserl.bench.reference import best_of_families, by_estimate, in_turns
from sparserl.lifetime import helpers
from sparserl.matrix import Pattern
from sparserl.recipes import Recipe, candidates
from sparserl.records import Problem
from sparserl.train.cases import TrainingCase
from sparserl.train.withheld import withheld_recipe


@dataclass(frozen=True)
class Numbers:
    """How many recipes a matrix is measured with."""

    cheapest: int = 40
    """by the cost model, in turns for solver and chain mode"""
    of_family: int = 1
    """the cheapest of every family and kind of load: the model compares those badly on a matrix unlike its own"""
    at_random: int = 16
    """of the rest, so that the policy also learns what is slow"""


@dataclass(frozen=True)
class Task:
    """What a process is told."""

    case: TrainingCase
    problem: Problem
    sms: int
    folder: Path | None
    """of the real matrices"""
    numbers: Numbers


@dataclass(frozen=True)
class Ready:
    """A matrix with its recipes."""

    case: TrainingCase
    pattern: Pattern
    chosen: tuple[Recipe, ...]
    admitted: tuple[str, ...]
    """every layout line that the matrix admits"""
    recipes: int
    """how many recipes it admits, withheld ones included"""


def prepare(task: Task) -> Ready:
    """Make the matrix, rank its recipes, choose."""
    pattern = task.case.load(task.folder)
    ranked = candidates(pattern, task.problem, task.sms)
    chosen = shortlist(ranked, task.numbers, random.Random(pattern.fingerprint()))
    admitted = tuple(sorted({str(recipe.layout) for recipe in ranked}))
    return Ready(task.case, pattern, tuple(chosen), admitted, len(ranked))


def shortlist(ranked: Sequence[Recipe], numbers: Numbers, rng: random.Random) -> list[Recipe]:
    """What is measured, by the layout it is on, so that each is packed once."""
    allowed = [recipe for recipe in ranked if not withheld_recipe(recipe)]
    orders = by_estimate(allowed)
    chosen = dict(islice({r.text: r for r in in_turns(orders)}.items(), numbers.cheapest))
    chosen |= {recipe.text: recipe for recipe in best_of_families(orders[0], numbers.of_family)}
    rest = [recipe for recipe in allowed if recipe.text not in chosen]
    chosen |= {recipe.text: recipe for recipe in rng.sample(rest, min(numbers.at_random, len(rest)))}
    return list(chosen.values())


class Ahead:
    """Prepares the next few cases in processes; with no workers, each when it is asked for."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool = self._opened()

    def _opened(self) -> ProcessPoolExecutor | None:
        return helpers(self._workers) if self._workers else None

    def each(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Ready | Exception]]:
        """Every task in its order with what came of it; a case that can't be made has the exception in place."""
        waiting = iter(tasks)
        under_way: list[tuple[Task, Future[Ready] | None]] = []
        try:
            while True:
                for task in islice(waiting, self._workers + 1 - len(under_way)):
                    under_way.append((task, self._pool.submit(prepare, task) if self._pool else None))
                if not under_way:
                    return
                task, future = under_way.pop(0)
                yield task, self._result(task, future)
        finally:
            for _, future in under_way:
                if future is not None:
                    future.cancel()

    def _result(self, task: Task, future: Future[Ready] | None) -> Ready | Exception:
        try:
            return prepare(task) if future is None else future.result()
        except BrokenProcessPool:  # a process was killed, for its memory as a rule: all that were under way are lost
            self._pool = self._opened()
            return self._result(task, None)
        except Exception as error:  # whatever it is, it belongs to this case alone and is written down with it
            return error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
