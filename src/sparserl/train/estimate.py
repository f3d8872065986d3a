"""Estimates: what would be fast on training matrices that nobody timed, from trees fitted to the collection.

    sparserl train estimate --collection DIR --out DIR --problem 'spmv f32' --cases 3000

A collection has hundreds of matrices, because each takes a second of a GPU; a policy that reads matrices wants
thousands. Boosted trees over named features (the control of `controls`, so the policy is told nothing that its control
doesn't know) rank all recipes of a new matrix; the best are written down like measurements, with their estimated time
over the matrix's best, and beside them variants that were right wherever they were judged, at the time that they had
beside their recipe. Fine-tuning reads the folder like a collection: first this one, then the measured one.

Not covered: anything that needs microseconds (ranking pairs, rewriting, baselines), and chain mode. `estimate` needs
scikit-learn, where the trees are fitted and where they are used.
"""

from __future__ import annotations

import math
import os
import pickle
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from sparserl.bench.archive import sha
from sparserl.bench.reference import problem_name
from sparserl.lifetime import helpers
from sparserl.recipes import Recipe, admissible, summarise
from sparserl.records import Problem
from sparserl.shares import TIME_IS_UP
from sparserl.train.cases import TrainingCase, from_source
from sparserl.train.collected import Collection, ProgramText
from sparserl.train.controls import SMS, Trees, TreesConfig
from sparserl.train.controls_table import cases_of, read_table
from sparserl.train.entries import Entry, Written
from sparserl.train.withheld import withheld_recipe

DEVICE = "estimate"
"""stands where a collection names its machine, so that the two are never mixed"""


@dataclass(frozen=True)
class Plan:
    """How much is written down of a matrix."""

    recipes: int = 12
    """the best by estimate"""
    reach: float = 0.15
    """programs further behind the best, by the logarithm of the time, are left out"""
    variants: int = 1
    """of each recipe, drawn from those that were about as fast as it"""
    trees: TreesConfig = field(default_factory=TreesConfig)


Variants = Mapping[str, Sequence[tuple[str, float]]]
"""hash of a recipe's text → hashes of its variants, each with the logarithm of its time over the recipe's"""
NEAR = 0.25
"""variants are compared with recipes no further behind the best of a matrix, and none counts as faster than its recipe:
what one gains over a slow recipe, or by luck, says nothing of another matrix"""


@dataclass(frozen=True)
class Estimator:
    """What a process needs: the fitted trees, and the programs that were measured."""

    trees: Trees
    variants: Variants
    texts: Mapping[str, ProgramText]
    plan: Plan

    def entries(self, case: TrainingCase, matrices: Path | None = None) -> tuple[dict[str, Any], list[Entry]]:
        """The line of a case and its programs. matrices: folder of the real ones."""
        pattern = case.load(matrices)
        there = admissible(summarise(pattern, self.trees.problem, SMS))
        ranked = self.trees.rank(pattern, [recipe for recipe in there if not withheld_recipe(recipe)])
        line: dict[str, Any] = {"case": case.name, "problem": problem_name(self.trees.problem), "split": case.split}
        line |= {"source": case.source, "rows": pattern.rows, "columns": pattern.columns}
        line |= {"nonzeros": pattern.nonzeros, "fingerprint": pattern.fingerprint()[:16]}
        line |= {"admitted": sorted({str(recipe.layout) for recipe in there}), "recipes": len(there)}
        return line, self._best(ranked, random.Random(case.name))

    def _best(self, ranked: Sequence[Recipe], rng: random.Random) -> list[Entry]:
        found: list[Entry] = []
        for recipe in ranked[: self.plan.recipes]:
            behind = math.log(recipe.cost_us / ranked[0].cost_us)
            name = sha(recipe.text)
            known = self.texts.get(name)
            found.append(_entry(recipe, behind, known.binary if known else None))
            changes = [each for each in self.variants.get(name, ()) if each[1] <= self.plan.reach / 3]
            for variant, ratio in rng.sample(changes, min(self.plan.variants, len(changes))):
                text = self.texts[variant]
                changed = replace(recipe, text=text.text, settings=())
                found.append(replace(_entry(changed, behind + ratio, text.binary), origin="variant",
                                     parents=text.parents, mutations=text.mutations))  # fmt: skip
        first = min(math.log(each.times_us["solver"]) for each in found) if found else 0.0
        return [each for each in found if math.log(each.times_us["solver"]) - first <= self.plan.reach]


def _entry(recipe: Recipe, behind: float, code: str | None) -> Entry:
    return Entry(recipe, times_us={"solver": math.exp(behind)}, code=code)


def variants_of(collection: Collection, problem: Problem) -> Variants:
    """Those that were right on every matrix, on their recipe's layout, by recipe."""
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    wrong: set[str] = set()

    @cache
    def layout(program: str) -> str:
        return collection.texts[program].text.partition("\n")[0]

    for case in cases_of(collection, problem):
        times = {each.program: math.log(each.times_us["solver"]) for each in case.correct if "solver" in each.times_us}
        wrong |= {each.program for each in case.programs if not each.correct}
        near = min(times.values(), default=0.0) + NEAR
        for variant in (each.program for each in case.correct if each.origin == "variant" and each.program in times):
            for parent in collection.texts[variant].parents:
                if times.get(parent, math.inf) <= near and layout(parent) == layout(variant):
                    seen[parent, variant].append(max(0.0, times[variant] - times[parent]))
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for (parent, variant), logs in seen.items():
        if variant not in wrong:
            found[parent].append((variant, statistics.median(logs)))
    return {parent: sorted(each) for parent, each in found.items()}


def estimator(
    collection: Collection, problem: Problem, *, matrices: Path | None, kept: Path, plan: Plan | None = None
) -> Estimator:
    """Fit the trees. Features of the collected matrices are kept in a file, as the control keeps them."""
    plan = plan or Plan()
    trees = Trees(read_table(collection, problem, matrices=matrices, kept=kept), plan.trees)
    variants = variants_of(collection, problem)
    return Estimator(trees, variants, collection.texts, plan)


def estimate(
    cases: Sequence[TrainingCase], with_what: Estimator, out: Path, *, matrices: Path | None = None, workers: int = 0,
    budget_s: float = 1e9,
) -> Iterator[str]:  # fmt: skip
    """Case after case; yields a line to show for each. Cases that `out` has are passed over."""
    began = time.monotonic()
    written = Written(out, with_what.trees.problem, DEVICE)
    waiting = [case for case in cases if case.name not in written.done]
    for line, entries in _each(waiting, with_what, matrices, workers):
        written.add(line, entries, {})
        recipes = sum(each.origin == "recipe" for each in entries)
        yield f"{line['case']:24s} {line['nonzeros']:9d} nonzeros: {recipes} recipes, {len(entries) - recipes} variants"
        if time.monotonic() - began > budget_s:
            yield TIME_IS_UP
            return


def _each(
    cases: Sequence[TrainingCase], with_what: Estimator, matrices: Path | None, workers: int
) -> Iterator[tuple[dict[str, Any], list[Entry]]]:
    if not workers:
        yield from (with_what.entries(case, matrices) for case in cases)
        return
    with helpers(workers, _begin, pickle.dumps(with_what)) as pool:
        try:
            yield from pool.map(_entries, [(case.name, case.source, matrices) for case in cases])
        finally:
            pool.shutdown(cancel_futures=True)


_HERE: list[Estimator] = []


def _begin(packed: bytes) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # as many processes as processors: the trees need no threads of their own
    _HERE.append(pickle.loads(packed))  # what the parent packed a moment ago


def _entries(about: tuple[str, Mapping[str, Any], Path | None]) -> tuple[dict[str, Any], list[Entry]]:
    name, source, matrices = about
    return _HERE[0].entries(from_source(name, source), matrices)
