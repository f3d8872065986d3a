"""Stage: the hill-climbing control of reinforcement learning, over many matrices.

    sparserl train climb --out runs/climb --like runs/rl --device cuda      # its matrices, as many judged tries on each
    sparserl train climb --out runs/climb --tries 64 --cases 100            # training matrices, 64 tries each

For every matrix: the reference search fits the recipes (`fitted`, recipes.jsonl), and from the best of them a climb
(`climb`) spends its tries. Matrices are climbed in batches, those of each problem in turn, so that a part of them is of
all problems; a batch that was broken off is climbed again, and none is begun that would be.

    wanted.jsonl    the matrices and the tries on each: a run that has gone on has others, of which others were drawn
    climbs.jsonl    one line a matrix: the start, the best program, its speed, how many tries
    steps.jsonl     one line a try, with the program's text

Not covered: evaluation matrices; a climb is judged by the referee of training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparserl.bench.reference import problem_name
from sparserl.errors import StoreError
from sparserl.lifetime import helpers
from sparserl.store import append_jsonl, claim, read_jsonl
from sparserl.train.batches import in_turn
from sparserl.train.rl.climb import Climb, ClimbConfig, climb
from sparserl.train.rl.fitted import FitConfig, fitted
from sparserl.train.rl.nouns import Prompt, judged_to_record, prompt_from_record, prompt_key, prompt_to_record
from sparserl.train.rl.referee import Referee
from sparserl.train.rl.tried import Tried

CLIMBS, STEPS, RECIPES, ABOUT = "climbs.jsonl", "steps.jsonl", "recipes.jsonl", "about.json"
WANTED = "wanted.jsonl"
Wanted = dict[str, tuple[Prompt, int]]
"""prompts with the tries on each, by key"""


@dataclass(frozen=True)
class ClimbingConfig:
    """How the control is run."""

    climb: ClimbConfig = field(default_factory=ClimbConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    together: int = 32
    """climbs of one batch: enough to keep every judging process busy"""


def begun_with(out: Path, wanted: Callable[[], Wanted]) -> Wanted:
    """What the climbs of a folder are on: asked for by the first call, and written down for the others."""
    if not (out / WANTED).exists():
        append_jsonl(
            out / WANTED,
            *({"pair": key, "prompt": prompt_to_record(prompt), "tries": n} for key, (prompt, n) in wanted().items()),
        )
    return read_wanted(out)


def read_wanted(folder: Path) -> Wanted:
    """That of a folder of climbs; nothing where it is none."""
    records = read_jsonl(folder / WANTED)
    return {each["pair"]: (prompt_from_record(each["prompt"]), int(each["tries"])) for each in records}


def climbing(
    wanted: Mapping[str, tuple[Prompt, int]],
    referee: Referee,
    config: ClimbingConfig,
    out: Path,
    budget_s: float = float("inf"),
) -> Iterator[str]:
    """Climb on all of them; yields a line to show for each batch. wanted: prompts with their tries, by key."""
    until = time.monotonic() + budget_s
    _claim(out, config)
    done = {record["pair"] for record in read_jsonl(out / CLIMBS)}
    left = [key for key in wanted if key not in done]
    recipes = fitted([wanted[key][0] for key in left], config.fit, out / RECIPES, until)
    able = {key: problem_name(wanted[key][0].problem) for key in left if recipes.get(key)}
    count, longest_s = len(done), 0.0
    with helpers(max(1, (os.cpu_count() or 2) - 1)) as pool:
        for keys in batches_of(able, config.together):
            began = time.monotonic()
            if began + longest_s > until:
                return
            starts = [(wanted[key][0], recipes[key][0]) for key in keys]
            climbs = climb(starts, referee, config.climb, [max(1, wanted[key][1]) for key in keys], pool)
            append_jsonl(out / STEPS, *(record for each in climbs for record in each.records()))
            append_jsonl(out / CLIMBS, *(_record(key, each) for key, each in zip(keys, climbs, strict=True)))
            better = sum(each.best != each.start for each in climbs)
            count, longest_s = count + len(keys), max(longest_s, time.monotonic() - began)
            yield f"{count} of {len(wanted)} matrices climbed, {better} of {len(keys)} got faster"


def batches_of(problems: Mapping[str, str], size: int) -> list[list[str]]:
    """The keys in batches of one problem each, a batch of every problem in turn.

    What tells new programs from recipes (`variants`) is kept for few problems.
    """
    by_problem: dict[str, list[str]] = {}
    for key, problem in problems.items():
        by_problem.setdefault(problem, []).append(key)
    parts = [[keys[at : at + size] for at in range(0, len(keys), size)] for _, keys in sorted(by_problem.items())]
    return in_turn(parts)


def complete(wanted: Sequence[str], out: Path) -> bool:
    """Whether every matrix is climbed, or has no recipe to begin with."""
    done = {record["pair"] for record in read_jsonl(out / CLIMBS)}
    hopeless = {record["pair"] for record in read_jsonl(out / RECIPES) if not record["recipes"]}
    return set(wanted) <= done | hopeless


def _claim(out: Path, config: ClimbingConfig) -> None:
    """Write down what the folder is about; refuse one that is about something else."""
    own = config.climb
    about: dict[str, Any] = {"device": config.fit.device, "modes": list(own.modes), "seed": own.seed}
    about |= {"batch": own.batch, "tie": own.tie, "kinds": list(own.kinds)}
    claim(out / ABOUT, about, "climbs")


def _record(key: str, done: Climb) -> dict[str, Any]:
    """One climb, as JSON takes it."""
    right = done.judged is not None
    return {
        "pair": key,
        "prompt": prompt_to_record(done.prompt),
        "tries": len(done.steps),
        "start": done.start,
        "best": done.best,
        "judged": judged_to_record(done.judged) if done.judged else None,
        "log_speedup": done.speed if right else None,
        "mutations": _mutations(done),
    }


def _mutations(done: Climb) -> list[str]:
    """What led from the start to the best program, step by step."""
    by_text = {step.text: step for step in done.steps}
    found: list[str] = []
    step = by_text.get(done.best)
    while step is not None and step.parents:
        found = [*step.mutations, *found]
        step = by_text.get(step.parents[0])
    return found


def from_climbs(folder: Path) -> dict[str, Tried]:
    """What climbs came to, by prompt: the best program of each."""
    if not (folder / CLIMBS).exists():
        raise StoreError(f"{folder} has no {CLIMBS}: make it with `sparserl train climb`.")
    found = {}
    for record in read_jsonl(folder / CLIMBS):
        prompt = prompt_from_record(record["prompt"])
        speeds = {} if record["log_speedup"] is None else {record["best"]: float(record["log_speedup"])}
        found[prompt_key(prompt)] = Tried(prompt, speeds, record["tries"])
    return found
