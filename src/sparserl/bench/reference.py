"""The reference search: which recipe is best on each evaluation matrix, and by how much it beats cuSPARSE.

    python -m sparserl.bench explore --matrices DIR --out results/NAME [--op spmv] [--dtype f32] …
    python -m sparserl.bench race    --matrices DIR --out results/NAME …

`explore` times recipes briefly: all that a matrix admits on the stratified matrices, successive halving elsewhere, and
keeps the finalists. `race`, in a fresh process, verifies the finalists and times them beside every cuSPARSE variant,
interleaved; only its times are reported. Both append to JSONL files and go on where they stopped.

Not covered: tables and pages (`tables`, `page`), which read only what is written here.
"""

from __future__ import annotations

import difflib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from sparserl.backends.backend import Backend
from sparserl.bench import archive
from sparserl.bench.explore import BRIEF, Effort, Explorer, Measured
from sparserl.bench.packing import PackPool
from sparserl.bench.tables import REPORTED
from sparserl.errors import MatrixError, StoreError
from sparserl.evaluation import CLASSES, Case, evaluation_list
from sparserl.judge.evaluate import Judge
from sparserl.judge.race import Race
from sparserl.matrix import Pattern
from sparserl.phases import rounded
from sparserl.recipes import Recipe, candidates
from sparserl.records import MODES, Problem, Timing
from sparserl.shares import TIME_IS_UP
from sparserl.store import append_jsonl

RACE_ROUNDS = 7
LONGER = Effort(rounds=7, graph_ms=1.0, far_behind=1e9)


@dataclass(frozen=True)
class Plan:
    """How deep the search goes."""

    first: int = 240
    """programs that halving starts with: the best of every family and the cheapest by the cost model"""
    second: int = 24
    """of them timed again, longer"""
    finalists: int = 4
    """programs a mode that go to the race"""
    plain_finalists: int = 2
    """of them at least this many without dependent launch, so that its gain is known"""
    full: bool = True
    """whether every admissible program is tried on the stratified matrices; halving for all otherwise"""
    brief: Effort = BRIEF
    longer: Effort = LONGER


DEFAULT_PLAN = Plan()


def shortlist(ranked: Sequence[Recipe], plan: Plan) -> list[Recipe]:
    """Where halving starts: the best of every family, then the cheapest, in turns by mode, with some plain programs.

    The best of every family and kind of load, because the estimates compare programs of one family well and families
    badly on a matrix unlike those they were fitted to, and what streaming loads are worth depends on what x leaves of
    the L2.
    """
    orders = by_estimate(ranked)
    heads = [recipe for order in orders for recipe in best_of_families(order, 1)]
    chosen = list({r.name: r for r in [*heads, *in_turns(orders)]}.values())[: plan.first]
    wanted = min(plan.plain_finalists, plan.first // 2)
    if sum(not r.pdl for r in chosen) >= wanted:
        return chosen
    plain = [r for r in orders[0] if not r.pdl][:wanted]
    overlapping = [r for r in chosen if r.pdl]
    return [*overlapping[: plan.first - len(plain)], *plain]


def by_estimate(recipes: Sequence[Recipe]) -> tuple[list[Recipe], list[Recipe]]:
    """The cheapest first, in solver and in chain mode."""
    return sorted(recipes, key=lambda r: r.cost_us), sorted(recipes, key=lambda r: r.chain_cost_us)


def in_turns(orders: tuple[Sequence[Recipe], Sequence[Recipe]]) -> list[Recipe]:
    """The first of either order, then the second of either …"""
    return [recipe for pair in zip(*orders, strict=True) for recipe in pair]


def best_of_families(order: Sequence[Recipe], each: int) -> list[Recipe]:
    """The first few of every family and kind of load, one after the other."""
    families: dict[tuple[str, object], list[Recipe]] = {}
    for recipe in order:
        families.setdefault((recipe.family, recipe.params.get("load")), []).append(recipe)
    return [recipe for members in families.values() for recipe in members[:each]]


def explore_case(
    explorer: Explorer, ranked: Sequence[Recipe], full: bool, plan: Plan, known: Sequence[Measured] = (), *,
    keep: Callable[[Measured], None] = lambda measured: None,
) -> tuple[list[Measured], list[Measured]]:  # fmt: skip
    """What was timed now, and all that is known of the case.

    Brief times of all or of the chosen, those in `known` left out, then longer times of the best of all, which count.
    `keep` is handed each as it is measured, the best ones twice.
    """
    old = {m.recipe.name: m for m in known}
    first = [r for r in (ranked if full else shortlist(ranked, plan)) if r.name not in old]
    found: dict[str, Measured] = {}

    def measure(recipes: Sequence[Recipe], effort: Effort) -> None:
        for measured in explorer.measure(recipes, effort):
            found[measured.recipe.name] = measured
            keep(measured)

    measure(first, plan.brief)
    everything = {**old, **found}
    again = [m.recipe for m in best_by_mode(list(everything.values()), plan.second // 2 if not full else plan.second)]
    if first:
        measure(again, plan.longer)
    return list(found.values()), list({**old, **found}.values())


def best_by_mode(measured: Sequence[Measured], count: int) -> list[Measured]:
    """The `count` fastest in each mode, without repetition."""
    chosen: dict[str, Measured] = {}
    for mode in MODES:
        timed = sorted((m for m in measured if mode in m.times_us and not m.fault), key=lambda m: m.times_us[mode])
        chosen.update({m.recipe.text: m for m in timed[:count]})
    return list(chosen.values())


def finalists(measured: Sequence[Measured], plan: Plan) -> list[Measured]:
    """The best in each mode, and the best of those that don't overlap their neighbours."""
    plain = best_by_mode([m for m in measured if not m.recipe.pdl], plan.plain_finalists)
    chosen = {m.recipe.text: m for m in [*best_by_mode(measured, plan.finalists), *plain]}
    return list(chosen.values())


def record(case: Case, problem: Problem, measured: Measured) -> dict[str, object]:
    """One line of the table of explored programs."""
    recipe = measured.recipe
    return {
        "matrix": case.name,
        "problem": problem_name(problem),
        "family": recipe.family,
        "settings": recipe.params,
        "layout": str(recipe.layout),
        "pdl": recipe.pdl,
        "cost_us": float(f"{recipe.cost_us:.9g}"),
        "chain_cost_us": float(f"{recipe.chain_cost_us:.9g}"),
        "simplicity": recipe.simplicity,
        **{f"{mode}_us": round(us, 4) for mode, us in measured.times_us.items()},
        **({"fault": measured.fault} if measured.fault else {}),
    }


def _append(path: Path, case: Case, problem: Problem, measured: Measured) -> None:
    append_jsonl(path, record(case, problem, measured))


def recipe_name(explored: Mapping[str, Any]) -> str:
    """The `Recipe.name` of an explored program."""
    settings = ", ".join(f"{key}={value}" for key, value in explored["settings"].items())
    return f"{explored['family']}({settings}) on {explored['layout']}"


def problem_name(problem: Problem) -> str:
    """'spmv float32', 'spmm float32 64 row row'."""
    if problem.op == "spmv":
        return f"spmv {problem.dtype}"
    return f"spmm {problem.dtype} {problem.columns} {problem.b_order} {problem.c_order}"


def explore(
    cases: Iterable[Case], *, folder: Path | None, problem: Problem, backend: Backend, pool: PackPool, out: Path,
    plan: Plan = DEFAULT_PLAN, budget_s: float = 1e9, again: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Explore case after case; yields a line to show for each. Cases already in `out` are passed over, and of one that
    was broken off, the programs that have a record.

    again: cases in `out` are looked at again, and programs that have no record yet are timed.
    """
    began = time.monotonic()
    device = backend.device()
    earlier = archive.read(out, "finalists")
    _refuse_other_device(earlier, device.name, out)
    done = {r["matrix"] for r in earlier if r["problem"] == problem_name(problem)}
    records = _by_matrix(out, problem)
    for case in cases:
        if case.name in done and not again:
            continue
        if time.monotonic() - began > budget_s:
            yield TIME_IS_UP
            return
        start = time.monotonic()
        pattern = case.load(folder)
        ranked = candidates(pattern, problem, device.sms)
        explorer = Explorer(backend, pool, pattern, problem)
        full = case.full_search and plan.full
        known = _known(ranked, records.get(case.name, {}))
        if case.name not in done:  # broken off: the best are timed again, and then longer
            leading = best_by_mode(known, plan.second)
            known = [m for m in known if m not in leading]
        keep = functools.partial(_append, out / "explored.jsonl", case, problem)
        measured, everything = explore_case(explorer, ranked, full, plan, known, keep=keep)
        if case.name in done and not measured:
            continue
        final = finalists(everything, plan)
        about = {"full_search": full, "admitted": len(ranked), "device": device.name}
        append_jsonl(out / "finalists.jsonl", {**finalist_record(case, problem, final, pattern), **about})
        best = {mode: min((m.times_us.get(mode, np.inf) for m in final), default=np.inf) for mode in REPORTED}
        faults = sum(bool(m.fault) for m in measured)
        yield (
            f"{case.name:36s} {pattern.nonzeros:10d} nonzeros, {len(measured)} of {len(ranked)} programs, "
            f"{faults} faults: solver {best['solver']:.2f} us, chain {best['chain']:.2f} us ({_since(start):.1f} s)"
        )


def _by_matrix(out: Path, problem: Problem) -> dict[str, dict[str, Mapping[str, Any]]]:
    """What was explored of this problem, by matrix and program."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for each in archive.read(out, "explored"):
        if each["problem"] == problem_name(problem):
            found.setdefault(each["matrix"], {})[recipe_name(each)] = each
    return found


def _known(ranked: Sequence[Recipe], records: Mapping[str, Mapping[str, Any]]) -> list[Measured]:
    """The recipes that have a record, with their times."""
    found = [(recipe, records[recipe.name]) for recipe in ranked if recipe.name in records]
    return [
        Measured(r, {mode: each[f"{mode}_us"] for mode in MODES if f"{mode}_us" in each}, each.get("fault", ""))
        for r, each in found
    ]


def _refuse_other_device(earlier: Sequence[Mapping[str, object]], device: str, out: Path) -> None:
    """Times of two machines never stand in one file, modelled ones least of all."""
    others = {str(r["device"]) for r in earlier if r.get("device", device) != device}
    if others:
        raise StoreError(
            f"The records in {out} are of {', '.join(sorted(others))}, not of {device}: choose another --out folder."
        )


def finalist_record(case: Case, problem: Problem, final: Sequence[Measured], pattern: Pattern) -> dict[str, object]:
    """What the race needs: names and texts."""
    return {
        "matrix": case.name,
        "problem": problem_name(problem),
        "structure": case.structure,
        "kind": case.kind,
        "rows": pattern.rows,
        "columns": pattern.columns,
        "nonzeros": pattern.nonzeros,
        "finalists": [{"name": m.recipe.name, "text": m.recipe.text, **m.times_us} for m in final],
    }


def chosen_cases(names: Sequence[str]) -> list[Case]:
    """The whole list, or the cases that are named, or of the classes or kinds that are named; small ones first."""
    known = {word for c in evaluation_list() for word in (c.name, c.structure, c.kind)}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or [*CLASSES, "real", "generated"]
            raise MatrixError(
                f"No evaluation matrix has the name, class or kind {name!r}. Did you mean {', '.join(near)}?"
            )
    cases = [c for c in evaluation_list() if not names or {c.name, c.structure, c.kind} & set(names)]
    return sorted(cases, key=lambda c: c.nonzeros)


def race(cases: Iterable[Case], folder: Path | None, problem: Problem, judge: Judge, out: Path) -> Iterator[str]:
    """Verify the finalists of each case and time them beside the baselines; yields a line to show for each."""
    name = problem_name(problem)
    waiting = {r["matrix"]: r for r in archive.read(out, "finalists") if r["problem"] == name}
    done = {r["matrix"]: {p["sha"] for p in r["programs"]} for r in archive.read(out, "raced") if r["problem"] == name}
    for case in cases:
        entered = waiting.get(case.name)
        if entered is None or done.get(case.name) == {archive.sha(f["text"]) for f in entered["finalists"]}:
            continue  # nothing to race, or raced with these very finalists
        start = time.monotonic()
        before = judge.open(case.load(folder), problem)
        try:
            texts = {f["name"]: f["text"] for f in entered["finalists"]}
            raced = before.race(texts, before.baselines(every_order=True), REPORTED, rounds=RACE_ROUNDS)
        finally:
            before.close()
        about = {key: value for key, value in entered.items() if key != "finalists"}
        append_jsonl(out / "raced.jsonl", {**about, **race_record(raced, texts, judge), "seconds": _since(start)})
        yield f"{case.name:36s} {_headline(raced, texts)} ({_since(start):.1f} s)"


def race_record(raced: Race, texts: Mapping[str, str], judge: Judge) -> dict[str, object]:
    """Baselines and programs with their times by mode; programs that failed with their verdict."""
    programs = []
    for name, text in texts.items():
        outcome = raced.outcomes[name]
        programs.append(
            {
                "name": name,
                "layout": text.partition("\n")[0].removeprefix("// layout: "),
                "pdl": "pdl_wait()" in text,
                "sha": archive.sha(text),
                "verdict": outcome.verdict.name,
                "reason": outcome.reason,
                "registers": outcome.registers,
                "packed_bytes": outcome.packed_bytes,
                "phases_s": rounded(outcome.phases_s),
                "times": _times(raced.get(name, {})),
            }
        )
    baselines = {name: _times(times) for name, times in raced.items() if name not in texts}
    device = judge.device
    return {
        "device": device.name,
        "versions": dict(device.versions),
        "date": date.today().isoformat(),
        "baselines": baselines,
        "programs": programs,
    }


def _times(timings: Mapping[str, Timing]) -> dict[str, dict[str, object]]:
    return {
        mode: {
            "median_us": round(t.median_us, 4),
            "quantiles_us": [round(q, 4) for q in t.quantiles_us],
            "rounds": t.rounds,
            "repetitions": t.repetitions,
            "clock_mhz": t.clock_mhz,
            "floor_us": round(t.floor_us, 4),
            "source": t.source,
        }
        for mode, t in timings.items()
    }


def _headline(raced: Race, texts: Mapping[str, str]) -> str:
    """'solver 2.31 / 1.42 us = 1.63, chain …': the best baseline over the best program."""
    parts = []
    for mode in REPORTED:
        theirs = [t[mode].median_us for name, t in raced.items() if name not in texts and mode in t]
        ours = [t[mode].median_us for name, t in raced.items() if name in texts and mode in t]
        if theirs and ours:
            parts.append(f"{mode} {min(theirs):.2f} / {min(ours):.2f} us = {min(theirs) / min(ours):.2f}")
    failed = [f"{o.verdict.name}: {o.reason[:120]}" for o in raced.outcomes.values() if not o.correct]
    return ", ".join(parts + failed)


def _since(start: float) -> float:
    return round(time.monotonic() - start, 2)
