"""The layout lines that a run's matrices admit, worked out once and kept in one file beside their samples.

A record is a case under a problem. Of all lines that the problem's recipes have, sorted, `bits` says which are admitted
(hexadecimal, line i is bit i), and `key` of which matrix and of which lines it speaks: where either has changed, it is
worked out again. Not covered: layout lines that no recipe has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from sparserl.bench.reference import problem_name
from sparserl.recipes import admissible, space, summarise
from sparserl.records import Problem
from sparserl.store import append_jsonl, content_key, read_jsonl
from sparserl.train.cases import from_source
from sparserl.train.controls import SMS
from sparserl.train.rl.explore import Pair, pair_of
from sparserl.train.rl.nouns import Prompt
from sparserl.train.samples import shared_out

SAVE_EVERY = 50
"""matrices"""


def admitted_of(prompts: Iterable[Prompt], path: Path, matrices: Path | None = None) -> dict[Pair, tuple[str, ...]]:
    """By case and problem; what `path` lacks is worked out and added to it. matrices: folder of the real ones."""
    wanted = {pair_of(prompt): (prompt, _key(prompt)) for prompt in prompts}
    known = {(each["case"], each["problem"], each["key"]): each["bits"] for each in read_jsonl(path)}
    missing = [prompt for pair, (prompt, key) in wanted.items() if (*pair, key) not in known]
    waiting: list[dict[str, Any]] = []
    for done, records in enumerate(shared_out(partial(_records, matrices=matrices), _by_case(missing)), 1):
        known |= {(each["case"], each["problem"], each["key"]): each["bits"] for each in records}
        waiting += records
        if done % SAVE_EVERY == 0:
            append_jsonl(path, *waiting)
            waiting = []
    if waiting:
        append_jsonl(path, *waiting)
    return {pair: _lines_in(known[*pair, key], prompt.problem) for pair, (prompt, key) in wanted.items()}


@cache
def lines_of(problem: Problem) -> tuple[str, ...]:
    """All layout lines of the problem's recipes, sorted."""
    return tuple(sorted({str(recipe.layout) for recipe in space(problem)}))


@cache
def _lines_key(problem: Problem) -> str:
    return content_key({"lines": lines_of(problem)})


def _key(prompt: Prompt) -> str:
    return content_key({"source": dict(prompt.source), "lines": _lines_key(prompt.problem)})[:16]


def _lines_in(bits: str, problem: Problem) -> tuple[str, ...]:
    from_first = f"{int(bits, 16):b}"[::-1]
    return tuple(line for line, bit in zip(lines_of(problem), from_first, strict=False) if bit == "1")


def _by_case(prompts: Iterable[Prompt]) -> list[list[Prompt]]:
    """A matrix is made once for all its problems."""
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.case, []).append(prompt)
    return list(found.values())


def _records(prompts: Sequence[Prompt], matrices: Path | None) -> list[dict[str, Any]]:
    """One matrix under its problems."""
    pattern = from_source(prompts[0].case, prompts[0].source).load(matrices)
    found = []
    for prompt in prompts:
        there = {str(recipe.layout) for recipe in admissible(summarise(pattern, prompt.problem, SMS))}
        bits = sum(1 << at for at, line in enumerate(lines_of(prompt.problem)) if line in there)
        name = problem_name(prompt.problem)
        found.append({"case": prompt.case, "problem": name, "key": _key(prompt), "bits": f"{bits:x}"})
    return found
