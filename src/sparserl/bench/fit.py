"""Fit the cost model: coefficients of the named terms from records of explored programs.

    python -m sparserl.bench fit results/exploration --matrices DIR

Ridge regression of log time (solver mode) on the terms: common coefficients first, then each family's departure from
them. Programs near the best of their matrix weigh more, because only their order matters. Cross-validated by matrix:
the printed regrets are on matrices the fit has not seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from sparserl.bench import archive
from sparserl.evaluation import evaluation_list
from sparserl.recipes import Recipe, space
from sparserl.recipes.cost import COMMON, Coefficients, group_of
from sparserl.recipes.summary import summarise
from sparserl.recipes.terms import terms
from sparserl.records import Problem

COMMON_RIDGE, FAMILY_RIDGE = 1.0, 3.0
LEAST_WEIGHT = 0.1
FOLDS = 6


@dataclass(frozen=True)
class Table:
    """Measured programs as numbers; all arrays have one row a measurement."""

    names: tuple[str, ...]
    """of the terms"""
    terms: np.ndarray
    family: np.ndarray
    matrix: np.ndarray
    log_us: np.ndarray
    weight: np.ndarray


def read(folder: Path, matrices: Path | None, problem: Problem, name: str) -> Table:
    """The solver times of a problem's explored programs, with their terms."""
    cases = {case.name: case for case in evaluation_list()}
    known = {_key(r.family, r.params, str(r.layout)): r for r in space(problem)}
    rows: dict[str, list[tuple[Recipe, float]]] = {}
    for record in archive.read(folder, "explored"):
        recipe = known.get(_key(record["family"], record["settings"], record["layout"]))
        if record["problem"] == name and recipe is not None and record.get("solver_us"):
            rows.setdefault(record["matrix"], []).append((recipe, record["solver_us"]))
    found, family, matrix, log_us, weight = [], [], [], [], []
    names: tuple[str, ...] = ()
    for where, measured in rows.items():
        summary = summarise(cases[where].load(matrices), problem)
        best = min(us for _, us in measured)
        for recipe, us in measured:
            values = terms(recipe, summary)
            names = tuple(values)
            found.append(list(values.values()))
            family.append(recipe.family)
            matrix.append(where)
            log_us.append(np.log(us))
            weight.append(max(LEAST_WEIGHT, best / us))
    return Table(
        names, np.array(found), np.array(family), np.array(matrix), np.array(log_us), np.array(weight)
    )  # fmt: skip


def _key(family: str, settings: object, layout: str) -> str:
    return f"{family} {json.dumps(settings, sort_keys=True)} {layout}"


def fit(table: Table, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Coefficients by family, from the rows that are marked."""
    x, y, w = table.terms[rows], table.log_us[rows], table.weight[rows]
    common = _ridge(x, y, w, COMMON_RIDGE)
    out = {COMMON: common}
    for family in np.unique(table.family):
        of = table.family[rows] == family
        out[str(family)] = common + _ridge(x[of], y[of] - x[of] @ common, w[of], FAMILY_RIDGE)
    return out


def _ridge(x: np.ndarray, y: np.ndarray, w: np.ndarray, strength: float) -> np.ndarray:
    weighted = x * w[:, None]
    solved: np.ndarray = np.linalg.solve(weighted.T @ x + strength * np.eye(x.shape[1]), weighted.T @ y)
    return solved


def predict(table: Table, coefficients: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    return np.array(
        [table.terms[i] @ coefficients.get(table.family[i], coefficients[COMMON]) for i in np.flatnonzero(rows)]
    )


def cross_validate(table: Table, seed: int = 0, counts: Sequence[int] = (8, 16, 64)) -> dict[str, float]:
    """On unseen matrices: median rank correlation, and the mean loss when only the best few by estimate are tried."""
    matrices = np.unique(table.matrix)
    shuffled = np.random.default_rng(seed).permutation(matrices)
    fold_of = dict(zip(shuffled, np.arange(len(matrices)) % FOLDS, strict=True))
    fold = np.array([fold_of[m] for m in table.matrix])
    guess = np.zeros(len(fold))
    for k in range(FOLDS):
        if (fold == k).any() and (fold != k).any():
            guess[fold == k] = predict(table, fit(table, fold != k), fold == k)
    ranks: list[float] = []
    losses: dict[int, list[float]] = {count: [] for count in counts}
    for m in matrices:
        here = table.matrix == m
        times, order = np.exp(table.log_us[here]), np.argsort(guess[here])
        ranks.append(float(spearmanr(guess[here], times)[0]) if here.sum() > 2 else 1.0)
        for count in counts:
            losses[count].append(float(times[order[:count]].min() / times.min()))
    return {
        "matrices": len(matrices),
        "programs": len(fold),
        "rank correlation": float(np.median(ranks)),
        **{f"loss of best {count}": float(np.mean(losses[count])) - 1 for count in counts},
    }


def as_json(table: Table, coefficients: dict[str, np.ndarray]) -> Coefficients:
    """Rounded, by family and term; what is zero is left out."""
    return {
        family: {name: round(float(v), 5) for name, v in zip(table.names, values, strict=True) if abs(v) > 1e-5}
        for family, values in coefficients.items()
    }


def write(path: Path, sets: Iterable[tuple[Problem, Coefficients]]) -> None:
    """Sets of this fit replace those of the same op; the others stay."""
    old = json.loads(path.read_text()) if path.exists() else {}
    old.update({group_of(problem): coefficients for problem, coefficients in sets})
    path.write_text(json.dumps(old, indent=0, sort_keys=True) + "\n")
