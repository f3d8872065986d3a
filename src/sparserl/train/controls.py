"""The controls of `sparserl eval`: ways to choose 16 programs for a matrix without a policy that writes.

heuristic    the cost model's best, spread over layouts: what `tune` tries without a policy (also called 'recipes')
random       admissible recipes at random, seeded
trees        gradient-boosted trees over named features and recipe columns, trained on the collection; all admissible
             recipes are ranked and the best taken
neighbours   the recipes that were fastest on the training matrices with the nearest features
single       one program for all: the best geometric mean over training matrices
reference    the winners of a reference search (`bench explore`, `race`), to be raced beside the others

A choice is stored in `choices-NAME.json`, so that a machine without scikit-learn or the collection can judge it.
`trees` needs scikit-learn, imported only while it is trained. Not covered: choosing for a time other than the solver's.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sparserl.bench import archive, tables
from sparserl.bench.reference import problem_name
from sparserl.errors import SparseRLError, StoreError
from sparserl.matrix import Array, Pattern
from sparserl.recipes import Recipe, admissible, candidates, space, summarise
from sparserl.records import Mode, Problem
from sparserl.search import choose
from sparserl.store import read_json, write_json
from sparserl.train.collected import Collection
from sparserl.train.controls_table import Columns, Table, cases_of, pattern_row
from sparserl.train.rules import FAILURE, SAMPLES

log = logging.getLogger(__name__)

NAMES = ("heuristic", "random", "trees", "neighbours", "single", "reference")
SMS = 132
"""streaming multiprocessors of the machine that is chosen for (an H200)"""
NEAREST = 8
SLOW_QUANTILE = 0.75
"""a recipe that wasn't measured on a matrix counts as slow as this quantile of those that were: halving dropped it"""

Chooser = Callable[[Pattern], list[Recipe]]
"""admissible recipes of a pattern, the best first"""


# ---- without learning


def heuristic(problem: Problem, count: int = SAMPLES, sms: int = SMS) -> Chooser:
    """The cost model's choice."""
    return lambda pattern: choose(candidates(pattern, problem, sms), count)


def at_random(problem: Problem, count: int = SAMPLES, seed: int = 0, sms: int = SMS) -> Chooser:
    """Different recipes, drawn from a stream of the seed and the pattern."""

    def drawn(pattern: Pattern) -> list[Recipe]:
        there = admissible(summarise(pattern, problem, sms))
        return random.Random(f"{seed} {pattern.fingerprint()}").sample(there, min(count, len(there)))

    return drawn


# ---- learnt from the collection


class Regressor(Protocol):
    """What scikit-learn's models can do."""

    def fit(self, x: Array, y: Array) -> Any: ...
    def predict(self, x: Array) -> Array: ...


@dataclass(frozen=True)
class TreesConfig:
    """How the trees are grown."""

    rounds: int = 400
    rate: float = 0.1
    leaves: int = 63
    smallest_leaf: int = 20
    seed: int = 0


class Trees:
    """Log time of (matrix, recipe) over the matrix's best, by gradient boosting."""

    def __init__(self, table: Table, config: TreesConfig | None = None) -> None:
        self.problem = table.problem
        recipes = {recipe.name: recipe for recipe in space(table.problem)}
        self._columns = Columns(list(recipes.values()))
        self._rows = {name: self._columns.row(recipe) for name, recipe in recipes.items()}
        x = np.array([[*table.features[line.matrix], *self._rows[line.recipe]] for line in table.lines])
        width = len(next(iter(table.features.values())))
        self._model = _boosting(config or TreesConfig(), [False] * width + self._columns.categorical)
        self._model.fit(x, np.array([line.log_time for line in table.lines]))

    def rank(self, pattern: Pattern, recipes: Sequence[Recipe]) -> list[Recipe]:
        """The fastest by prediction first; `cost_us` holds the predicted time over the best of the matrix."""
        named = pattern_row(pattern)
        predicted = self._model.predict(np.array([[*named, *self._rows[recipe.name]] for recipe in recipes]))
        priced = [replace(r, cost_us=math.exp(p)) for r, p in zip(recipes, predicted, strict=True)]
        return sorted(priced, key=lambda r: (r.cost_us, r.simplicity, r.name))


def _boosting(config: TreesConfig, categorical: Sequence[bool]) -> Regressor:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise SparseRLError(
            "The control 'trees' is trained with scikit-learn, which isn't installed: pip install scikit-learn, or "
            "choose on another machine (--choose-only) and bring choices-trees.json along."
        ) from error
    made: Regressor = HistGradientBoostingRegressor(
        max_iter=config.rounds,
        learning_rate=config.rate,
        max_leaf_nodes=config.leaves,
        min_samples_leaf=config.smallest_leaf,
        categorical_features=list(categorical),
        early_stopping=False,
        random_state=config.seed,
    )
    return made


class Neighbours:
    """Recipes by their log times on the nearest training matrices."""

    def __init__(self, table: Table, nearest: int = NEAREST) -> None:
        self.problem, self._nearest = table.problem, nearest
        self._matrices = sorted(table.features)
        rows = np.stack([table.features[name] for name in self._matrices])
        self._mean, self._deviation = rows.mean(axis=0), rows.std(axis=0) + 1e-9
        self._rows = (rows - self._mean) / self._deviation
        self._times: dict[str, dict[str, float]] = {name: {} for name in self._matrices}
        for line in table.lines:
            self._times[line.matrix][line.recipe] = line.log_time

    def rank(self, pattern: Pattern, recipes: Sequence[Recipe]) -> list[Recipe]:
        """By the mean over neighbours, the nearer the weightier; `cost_us` is that mean time over the best."""
        distance = np.linalg.norm((pattern_row(pattern) - self._mean) / self._deviation - self._rows, axis=1)
        nearest = np.argsort(distance, kind="stable")[: self._nearest]
        weights = 1.0 / (distance[nearest] + 0.1)
        held = [self._times[self._matrices[i]] for i in nearest]
        slow = [float(np.quantile(list(times.values()), SLOW_QUANTILE)) for times in held]
        priced = []
        for recipe in recipes:
            logs = [times.get(recipe.name, s) for times, s in zip(held, slow, strict=True)]
            priced.append(replace(recipe, cost_us=math.exp(float(np.average(logs, weights=weights)))))
        return sorted(priced, key=lambda r: (r.cost_us, r.simplicity, r.name))


def learnt(model: Trees | Neighbours, count: int = SAMPLES, sms: int = SMS) -> Chooser:
    """The best `count` of all that a pattern admits, by a model's ranking."""
    return lambda pattern: model.rank(pattern, admissible(summarise(pattern, model.problem, sms)))[:count]


def best_single(collection: Collection, problem: Problem, mode: Mode = "solver") -> str:
    """The text of the program with the best geometric mean speed over the training matrices, failures at 0.25.

    Where a program was not measured it counts as slow as three quarters of those that were.
    """
    gain: dict[str, float] = {}  # by program: logarithms of speed above what an unmeasured one counts for
    total = 0.0
    cases = [case for case in cases_of(collection, problem) if case.programs]
    for case in cases:
        logs = {each.program: math.log(each.over_baseline.get(mode, FAILURE)) for each in case.programs}
        slow = float(np.quantile(list(logs.values()), 1 - SLOW_QUANTILE))
        total += slow
        for program, value in logs.items():
            gain[program] = gain.get(program, 0.0) + value - slow
    best = max(sorted(gain), key=gain.__getitem__)
    log.info("best single program %s: geometric mean %.3f", best, math.exp((total + gain[best]) / len(cases)))
    return collection.texts[best].text


# ---- choices on disk


@dataclass
class Choices:
    """Programs by matrix, in order: names of recipes, or of texts that are stored beside them."""

    policy: str
    problem: str
    programs: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def texts_for(self, matrix: str, problem: Problem) -> list[str]:
        """The texts for a matrix, in order."""
        recipes = _by_name(problem)
        found = []
        for name in self.programs[matrix]:
            text = self.texts.get(name) or recipes.get(name)
            if text is None:
                raise StoreError(
                    f"The choice of '{self.policy}' for {matrix!r} names the recipe {name!r}, which this version "
                    "doesn't have: choose again."
                )
            found.append(text)
        return found

    def save(self, path: Path) -> None:
        write_json(path, {key: getattr(self, key) for key in ("policy", "problem", "programs", "texts")})


@lru_cache(maxsize=4)
def _by_name(problem: Problem) -> Mapping[str, str]:
    return {recipe.name: recipe.text for recipe in space(problem)}


def choices_file(out: Path, policy: str) -> Path:
    return out / f"choices-{policy}.json"


def load_choices(path: Path, problem: Problem) -> Choices:
    """A stored choice; refused if it is of another problem."""
    stored = read_json(path)
    try:
        found = Choices(**stored)
    except TypeError as error:
        raise StoreError(f"{path} is no choice of programs ({error}): make it again with --choose-only.") from error
    if found.problem != problem_name(problem):
        raise StoreError(
            f"The choices in {path} are for '{found.problem}', not for '{problem_name(problem)}': choose again."
        )
    return found


def filled(names: Sequence[str], count: int) -> list[str]:
    """Exactly `count`: a matrix that admits fewer gets them in turns."""
    return [names[i % len(names)] for i in range(count)]


def reference_choices(folder: Path, problem: Problem, matrices: Sequence[str]) -> Choices:
    """What a reference search has for these matrices: the winners of its race, or all finalists where none was run."""
    found = Choices("reference", problem_name(problem))
    winners: dict[str, set[str]] = {}
    for row in tables.rows(archive.read(folder, "raced")):
        if row.problem == found.problem:
            winners[row.matrix] = {standing.best.name for standing in row.standings.values()}
    for record in archive.read(folder, "finalists"):
        matrix, finalists = record["matrix"], record["finalists"]
        if record["problem"] == found.problem and matrix in matrices and finalists:
            kept = [each for each in finalists if each["name"] in winners.get(matrix, ())] or finalists
            found.texts |= {each["name"]: each["text"] for each in kept}
            found.programs[matrix] = [each["name"] for each in kept]
    if not found.programs:
        raise StoreError(
            f"{folder} has no finalists of '{found.problem}' for these matrices: `python -m sparserl.bench explore` "
            "makes them."
        )
    return found
