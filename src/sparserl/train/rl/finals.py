"""Who is in a final of `beyond`, what is left to be raced, and what its races say. Pure.

Against a new program run the five best fitted recipes and the recipe that it is nearest to, with the program's own
numbers as far as that has them, and once more with those that it hasn't (512 threads, say): a search for the best
recipe may have passed over it, and what numbers are worth is not the new program's merit. A final without these says
only who has lost: one rival more can't make a program win.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import Any

from sparserl.train.assess_report import problem_called
from sparserl.train.rl.bounds import Bound, bound
from sparserl.train.rl.fresh import FAULT
from sparserl.train.rl.novelty import is_structurally_new, nearest_recipe, renumbered
from sparserl.train.rl.side_by_side import least, log_time

MARGIN = 1.03
"""what the lower bound must reach"""
LEAST_PROCESSES = 3
ATTEMPTS = 2
"""at a race; one that fails is tried again by the next call"""
Record = Mapping[str, Any]
Chosen = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""recipes and new programs of a final, by prompt"""


def new_in(heat: Record) -> list[str]:
    """The programs of a heat that count as structurally new, by what counts today."""
    return [text for text in heat["new"] if is_structurally_new(text, problem_called(heat["problem"]))]


def finalists(heats: Iterable[Record], modes: Sequence[str], ahead: float = 1.0, count: int = 1) -> Chosen:
    """Where a new program was so far ahead in the heat, who runs in the final; the farthest ahead first, so that
    finals that are broken off lack those that would most probably not have counted."""
    found: Chosen = {}
    leads: dict[str, float] = {}
    for heat in heats:
        if FAULT in heat or (rival := least(heat, heat["recipes"], modes)) is None:
            continue
        timed = sorted(each for text in new_in(heat) if (each := least(heat, [text], modes)) is not None)
        if timed and rival[0] - timed[0][0] >= log(ahead):
            new = tuple(text for _, text in timed[:count])
            near = [rival for text in new for rival in near_to(text, heat["problem"])]
            leads[heat["pair"]] = rival[0] - timed[0][0]
            found[heat["pair"]] = (tuple(dict.fromkeys([*heat["recipes"], *near])), new)
    return {key: found[key] for key in sorted(found, key=lambda key: -leads[key])}


def near_to(text: str, problem: str) -> list[str]:
    """The recipe that a program is nearest to and, where that has other numbers, the same with the program's."""
    near = nearest_recipe(text, problem_called(problem)).text
    return list(dict.fromkeys((near, renumbered(near, text))))


def to_race(chosen: Chosen, finals: Sequence[Record], modes: Sequence[str], processes: int) -> list[tuple[str, int]]:
    """(prompt, process) of the races that are left."""
    by_pair: dict[str, list[Record]] = {}
    for final in finals:
        by_pair.setdefault(final["pair"], []).append(final)
    left = []
    for key, (recipes, new) in chosen.items():
        own = [each for each in by_pair.get(key, ()) if FAULT in each or list(new) == each["new"]]
        made = [final_bound(last_of(own), text, modes) for text in new]
        if made and all(each is not None and each.low < MARGIN for each in made):
            continue  # lost, whoever else might run
        done = settled([each for each in own if FAULT in each or {*recipes} <= {*each["recipes"]}])
        left += [(key, process) for process in range(processes) if (key, process) not in done]
    return left


def last_of(finals: Iterable[Record]) -> list[Record]:
    """Of each process the last race that worked."""
    return list({each["process"]: each for each in finals if FAULT not in each}.values())


def settled(records: Iterable[Record]) -> set[tuple[str, int]]:
    """(prompt, process) of races that need no other try: they ran, or failed twice."""
    counts = Counter[tuple[str, int]]()
    for record in records:
        counts[record["pair"], record.get("process", 0)] += 1 if FAULT in record else ATTEMPTS
    return {key for key, count in counts.items() if count >= ATTEMPTS}


def raced(finals: Iterable[Record]) -> list[str]:
    """The new programs of some finals."""
    return list(dict.fromkeys(text for final in finals for text in final["new"]))


def final_bound(finals: Sequence[Record], text: str, modes: Sequence[str]) -> Bound | None:
    """Of a program over the fastest recipe of each process; None if it, or all recipes, failed in too many."""
    logs = []
    for final in finals:
        rival, own = least(final, final["recipes"], modes), log_time(final, text, modes)
        if own is None:
            return None  # what failed once is not right
        if rival is not None:
            logs.append(rival[0] - own)
    return bound(logs, len(raced(finals))) if len(logs) >= LEAST_PROCESSES else None


def has_nearest(finals: Iterable[Record], text: str, problem: str) -> bool:
    """Whether the recipe that a program is nearest to ran beside it in all of them, with its numbers too."""
    near = {*near_to(text, problem)}
    return all(near <= {*final["recipes"]} for final in finals)
