"""Misfits: programs that are fast on some matrix and would be refused, or padding mostly, on the one at hand.

    sparserl train misfits --collection DIR [--each 4]

A layout may refuse a matrix, because padding would be too much or columns too many for 16 bits, and recipes keep a
margin to such limits. A collection has a program only where it fits, so nothing there says how it fares elsewhere; yet
it is what a policy writes for a matrix that it misreads. For every matrix, programs are drawn from those that
fine-tuning learns from on others, and the ones that don't fit are written to `misfits.jsonl`, each with the reason.
`forks` takes them for worse ways. No GPU is needed: that they don't fit follows from the pattern (`layouts.admits`,
`recipes.fits.padded`).

Not covered: programs that are merely slow there, which `forks` has from the clock.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from sparserl import layouts
from sparserl.errors import ProgramError
from sparserl.lifetime import helpers
from sparserl.program import parse
from sparserl.recipes.fits import padded
from sparserl.records import LayoutLine
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train.chosen import ChoiceRules, choose
from sparserl.train.collected import Collection
from sparserl.train.samples import load_pattern

MISFITS = "misfits.jsonl"
DRAWN = 48
"""programs a matrix that are looked at"""
ALIKE = 2
"""misfits of one layout at most: four of a kind teach what two do"""


@dataclass(frozen=True)
class Suspect:
    """A program that may not fit."""

    program: str
    layout: LayoutLine


def suspect(program: str, collection: Collection) -> Suspect | None:
    """A program with its layout; None where it can't be read."""
    try:
        return Suspect(program, parse(collection.texts[program].text).layout)
    except ProgramError:
        return None


def suspects(collection: Collection, rules: ChoiceRules) -> dict[str, list[tuple[Suspect, float]]]:
    """By problem: what fine-tuning learns from on all matrices together, each with its share of the draws."""
    alike = {case.name: "" for case in collection.cases}
    weights: dict[str, Counter[str]] = defaultdict(Counter)
    for each in choose(collection, alike, rules)[0]:
        weights[each.problem][each.program] += each.weight  # type: ignore[assignment]  # a Counter of floats
    found: dict[str, list[tuple[Suspect, float]]] = {}
    for name, counted in weights.items():
        both = [(suspect(program, collection), float(weight)) for program, weight in sorted(counted.items())]
        found[name] = [(one, weight) for one, weight in both if one is not None]
    return found


def drawn(among: Sequence[tuple[Suspect, float]], count: int, name: str) -> list[Suspect]:
    """So many draws by weight, each program once, the same for the same name."""
    if not among:
        return []
    ends = list(accumulate(weight for _, weight in among))
    chosen = random.Random(name).choices(range(len(among)), cum_weights=ends, k=count)
    return [among[at][0] for at in dict.fromkeys(chosen)]


Task = tuple[str, str, dict[str, Any], list[tuple[str, list[Suspect]]]]
"""name, split and source of a matrix; problems with those to look at"""


def find(task: Task, each: int, matrices: Path | None) -> list[dict[str, Any]]:
    """The lines of one matrix: those that don't fit, at most `each` a problem."""
    name, split, source, problems = task
    pattern = load_pattern(name, split, source, matrices)
    lines = []
    for problem, ones in problems:
        found: dict[str, str] = {}
        kinds: Counter[str] = Counter()
        for one in ones:
            if len(found) == each or kinds[one.layout.name] == ALIKE:
                continue
            if reason := layouts.admits(pattern, one.layout) or padded(pattern, one.layout):
                found[one.program] = reason
                kinds[one.layout.name] += 1
        lines.append({"case": name, "problem": problem, "misfits": found})
    return lines


def misfits(
    collection: Collection, folder: Path, *, each: int = 4, matrices: Path | None = None, workers: int = 0
) -> Iterator[str]:
    """Write `folder`/misfits.jsonl for the cases that it lacks; yields a line to show for each matrix."""
    done = {(line["case"], line["problem"]) for line in read_jsonl(folder / MISFITS)}
    among = suspects(collection, ChoiceRules())
    tasks: dict[str, Task] = {}
    for case in collection.cases:
        if (case.name, case.problem) not in done:
            ones = drawn(among.get(case.problem, ()), DRAWN, f"{case.name} {case.problem}")
            tasks.setdefault(case.name, (case.name, case.split, dict(case.source), []))[3].append((case.problem, ones))
    look = partial(find, each=each, matrices=matrices)
    for number, lines in enumerate(_each(look, list(tasks.values()), workers), 1):
        append_jsonl(folder / MISFITS, *lines)
        count = sum(len(line["misfits"]) for line in lines)
        yield f"{number} of {len(tasks)}: {lines[0]['case']}, {count} misfits for {len(lines)} problems"


def _each(look: partial[list[dict[str, Any]]], tasks: Sequence[Task], workers: int) -> Iterator[list[dict[str, Any]]]:
    if not workers:
        yield from map(look, tasks)
        return
    with helpers(workers) as pool:
        yield from pool.map(look, tasks, chunksize=4)


def read_misfits(folder: Path) -> dict[tuple[str, str], tuple[str, ...]]:
    """Hashes of programs by (case, problem); nothing where none were looked for."""
    return {(line["case"], line["problem"]): tuple(line["misfits"]) for line in read_jsonl(folder / MISFITS)}
