"""What the learnt controls are trained on: recipes measured on training matrices, as numbers.

A table has one line a (matrix, recipe) of a collection, for one problem: the named features of the matrix
(`sparserl.features`), the recipe's own settings and layout as columns, and the logarithm of its time over the best of
its matrix. A recipe that failed counts as four times the baseline's time. Features are computed once and kept in
`features.jsonl`. Not covered: variants, which no control can choose (except `single`, which takes any program).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparserl.bench.reference import problem_name
from sparserl.errors import StoreError
from sparserl.features import features
from sparserl.matrix import Array, Pattern
from sparserl.recipes import Recipe, space
from sparserl.records import Mode, Problem
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train.cases import from_source
from sparserl.train.collected import CollectedCase, Collection
from sparserl.train.rules import FAILURE

log = logging.getLogger(__name__)

ABSENT = -1.0
"""in a column of numbers, where a recipe has no such setting; in a column of codes it is 0"""


@dataclass(frozen=True)
class Line:
    """One recipe on one matrix."""

    matrix: str
    recipe: str
    """its name"""
    log_time: float
    """of its time over the best of the matrix: 0 is the best"""


@dataclass(frozen=True)
class Table:
    """Lines, and the features of every matrix in them."""

    problem: Problem
    lines: tuple[Line, ...]
    features: Mapping[str, Array]
    """(features,) by matrix, logarithms"""


def feature_row(named: Mapping[str, float]) -> Array:
    """Features in the order of their names, as log(1 + value)."""
    return np.log1p(np.array([named[name] for name in sorted(named)], dtype=np.float64))


def pattern_row(pattern: Pattern) -> Array:
    return feature_row(features(pattern))


def relative(cases: Iterable[CollectedCase], mode: Mode) -> list[Line]:
    """The lines of measured recipes; a matrix without a right program has none."""
    lines = []
    for case in cases:
        if mode not in case.best_us or mode not in case.baseline_us:
            continue
        best_us, failed_us = case.best_us[mode], case.baseline_us[mode] / FAILURE
        for each in case.programs:
            if each.origin == "recipe":
                time_us = each.times_us.get(mode, failed_us) if each.correct else failed_us
                lines.append(Line(case.name, each.name, math.log(time_us / best_us)))
    return lines


def cases_of(collection: Collection, problem: Problem) -> list[CollectedCase]:
    """The cases of a problem; none at all is an error."""
    found = collection.of(problem_name(problem))
    if not found:
        raise StoreError(
            f"The collection has no measurements of '{problem_name(problem)}', only of "
            f"{', '.join(collection.problems) or 'nothing'}: make them with `sparserl train collect`, or give another "
            "--collection."
        )
    return found


def read_table(
    collection: Collection, problem: Problem, *, matrices: Path | None, kept: Path, mode: Mode = "solver"
) -> Table:
    """The table of a collection. Features that `kept` (a JSONL file) doesn't have yet are computed and added to it."""
    cases = cases_of(collection, problem)
    recipes = {recipe.name for recipe in space(problem)}
    lines = [line for line in relative(cases, mode) if line.recipe in recipes]
    wanted = {line.matrix for line in lines}
    rows = {record["case"]: record["features"] for record in read_jsonl(kept)}
    missing = [case for case in cases if case.name in wanted and case.name not in rows]
    for done, case in enumerate(missing, 1):
        rows[case.name] = features(from_source(case.name, case.source).load(matrices))
        append_jsonl(kept, {"case": case.name, "features": rows[case.name]})
        if done % 50 == 0:
            log.info("features of %d of %d training matrices", done, len(missing))
    return Table(problem, tuple(lines), {name: feature_row(rows[name]) for name in sorted(wanted)})


# ---- recipes as columns


class Columns:
    """What describes a recipe: family, layout and codec as codes, every setting and parameter as a number."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        described = [_described(recipe) for recipe in recipes]
        self.names = sorted({name for each in described for name in each})
        self._codes: dict[str, dict[str, int]] = {}
        for each in described:
            for name, value in each.items():
                if isinstance(value, str):
                    codes = self._codes.setdefault(name, {})
                    codes.setdefault(value, 1 + len(codes))

    @property
    def categorical(self) -> list[bool]:
        """Which columns hold codes."""
        return [name in self._codes for name in self.names]

    def row(self, recipe: Recipe) -> list[float]:
        described = _described(recipe)
        return [self._number(name, described.get(name)) for name in self.names]

    def _number(self, name: str, value: float | str | None) -> float:
        if name in self._codes:
            return float(self._codes[name].get(str(value), 0))
        return ABSENT if value is None else math.log2(1 + float(value))


def _described(recipe: Recipe) -> dict[str, float | str]:
    out: dict[str, float | str] = {"family": recipe.family, "layout": recipe.layout.name, "index": recipe.layout.index}
    for where, settings in (("layout", recipe.layout.params), ("recipe", recipe.settings)):
        for key, value in settings:
            text = str(value)
            out[f"{where}.{key}"] = float(text) if text.isdecimal() else text
    return out
