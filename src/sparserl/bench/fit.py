"""Fit the cost model: coefficients of the named terms from records of explored programs.

    python -m sparserl.bench fit results/exploration results/reference --matrices DIR

Ridge regression of log time on the terms, a mode at a time: common coefficients first, then each family's departure
from them. Programs near the best of their matrix weigh more, because only their order matters, and no matrix weighs
more than a few hundred programs. Everything printed is about matrices that the fit has not seen: rank correlation and
losses by cross-validation; the regret of halving by leaving out one fully searched matrix at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from sparserl.bench import archive
from sparserl.bench.reference import problem_name
from sparserl.evaluation import evaluation_list
from sparserl.recipes import Recipe, space
from sparserl.recipes.cost import COMMON, FITTED_MODES, Coefficients, group_of
from sparserl.recipes.summary import summarise
from sparserl.recipes.terms import terms
from sparserl.records import Mode, Problem

COMMON_RIDGE, FAMILY_RIDGE = 1.0, 3.0
LEAST_WEIGHT = 0.1
A_MATRIX = 200
"""programs; a matrix with more measured weighs no more than one with this many"""
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
    program: np.ndarray


def read(folders: Sequence[Path], matrices: Path | None, problem: Problem) -> dict[Mode, Table]:
    """The times of a problem's explored programs with their terms, by mode."""
    rows = _rows(folders, problem)
    cases = {case.name: case for case in evaluation_list()}
    found = {}
    for where, measured in rows.items():
        summary = summarise(cases[where].load(matrices), problem)
        found[where] = [terms(recipe, summary) for recipe, _ in measured]
    return {mode: _table(rows, found, mode) for mode in FITTED_MODES}


def _rows(folders: Sequence[Path], problem: Problem) -> dict[str, list[tuple[Recipe, Mapping[str, float]]]]:
    """Recipes and their times by mode, by matrix."""
    known = {_key(r.family, r.params, str(r.layout)): r for r in space(problem)}
    rows: dict[str, list[tuple[Recipe, Mapping[str, float]]]] = {}
    for record in (each for folder in folders for each in archive.read(folder, "explored")):
        recipe = known.get(_key(record["family"], record["settings"], record["layout"]))
        if record["problem"] == problem_name(problem) and recipe is not None and not record.get("fault"):
            times: dict[str, float] = {mode: record[f"{mode}_us"] for mode in FITTED_MODES if record.get(f"{mode}_us")}
            rows.setdefault(record["matrix"], []).append((recipe, times))
    return rows


def _table(
    rows: Mapping[str, Sequence[tuple[Recipe, Mapping[str, float]]]],
    found: Mapping[str, Sequence[Mapping[str, float]]],
    mode: Mode,
) -> Table:
    x, family, program, matrix, log_us, weight = [], [], [], [], [], []
    for where, measured in rows.items():
        pairs = zip(measured, found[where], strict=True)
        timed = [(recipe, times[mode], values) for (recipe, times), values in pairs if mode in times]
        best = min((us for _, us, _ in timed), default=0.0)
        for recipe, us, values in timed:
            x.append(list(values.values()))
            family.append(recipe.family)
            program.append(recipe.name)
            matrix.append(where)
            log_us.append(np.log(us))
            weight.append(max(LEAST_WEIGHT, best / us) * min(1.0, A_MATRIX / len(timed)))
    names = tuple(next(iter(next(iter(found.values()))))) if found else ()
    return Table(
        names, np.array(x), np.array(family), np.array(matrix), np.array(log_us), np.array(weight), np.array(program)
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


def reprice(out: Path, problem: Problem, tables: Mapping[Mode, Table]) -> int:
    """Give the explored programs of `out` the estimates of coefficients fitted without their own matrix.

    The regret of halving, which is computed from the records, is then one on unseen matrices. Returns how many.
    """
    priced: dict[tuple[str, str], list[float]] = {}
    timed = tables["solver"]
    for matrix in np.unique(timed.matrix):
        here = timed.matrix == matrix
        for table in tables.values():
            guess = np.exp(predict(timed, fit(table, table.matrix != matrix), here))
            for program, us in zip(timed.program[here], guess, strict=True):
                priced.setdefault((str(matrix), str(program)), []).append(float(f"{us:.9g}"))
    known = {_key(r.family, r.params, str(r.layout)): r.name for r in space(problem)}
    records, count = archive.read(out, "explored"), 0
    for record in records:
        name = known.get(_key(record["family"], record["settings"], record["layout"]), "")
        found = priced.get((record["matrix"], name))
        if record["problem"] == problem_name(problem) and found is not None:
            record["cost_us"], record["chain_cost_us"] = found[:2]
            count += 1
    archive.replace(out, "explored", records)
    return count


def as_json(table: Table, coefficients: dict[str, np.ndarray]) -> Coefficients:
    """Rounded, by family and term; what is zero is left out."""
    return {
        family: {name: round(float(v), 5) for name, v in zip(table.names, values, strict=True) if abs(v) > 1e-5}
        for family, values in coefficients.items()
    }


def write(path: Path, problem: Problem, sets: Mapping[Mode, Coefficients]) -> None:
    """Sets of this fit replace those of the same op and mode; the others stay."""
    old = json.loads(path.read_text()) if path.exists() else {}
    old.update({group_of(problem, mode): coefficients for mode, coefficients in sets.items()})
    path.write_text(json.dumps(old, indent=0, sort_keys=True) + "\n")
