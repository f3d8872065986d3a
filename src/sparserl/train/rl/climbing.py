"""Stage: the hill-climbing control of reinforcement learning, over many matrices.

    sparserl train climb --out runs/climb --like runs/rl --device cuda      # its matrices, as many judged tries on each
    sparserl train climb --out runs/climb --tries 64 --cases 100            # training matrices, 64 tries each

For every matrix: the reference search fits the recipes (`fitted`, recipes.jsonl), and from the best of them a climb
(`climb`) spends its tries. Matrices are climbed in batches; a batch that was broken off is climbed again.

    climbs.jsonl    one line a matrix: the start, the best program, its speed, how many tries
    steps.jsonl     one line a try, with the program's text

Not covered: evaluation matrices; a climb is judged by the referee of training.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparserl.bench.reference import problem_name
from sparserl.errors import StoreError
from sparserl.store import append_jsonl, claim, read_jsonl
from sparserl.train.rl.climb import Climb, ClimbConfig, climb
from sparserl.train.rl.fitted import FitConfig, fitted
from sparserl.train.rl.nouns import Prompt, judged_to_record, prompt_from_record, prompt_key, prompt_to_record
from sparserl.train.rl.referee import Referee
from sparserl.train.rl.tried import Tried

CLIMBS, STEPS, RECIPES, ABOUT = "climbs.jsonl", "steps.jsonl", "recipes.jsonl", "about.json"


@dataclass(frozen=True)
class ClimbingConfig:
    """How the control is run."""

    climb: ClimbConfig = field(default_factory=ClimbConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    together: int = 32
    """climbs of one batch: enough to keep every judging process busy"""


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
    # a problem at a time: what tells new programs from recipes (`variants`) is kept for few of them
    able = sorted((key for key in left if recipes.get(key)), key=lambda key: problem_name(wanted[key][0].problem))
    for at in range(0, len(able), config.together):
        if time.monotonic() > until:
            return
        keys = able[at : at + config.together]
        starts = [(wanted[key][0], recipes[key][0]) for key in keys]
        climbs = climb(starts, referee, config.climb, [max(1, wanted[key][1]) for key in keys])
        append_jsonl(out / STEPS, *(record for each in climbs for record in each.records()))
        append_jsonl(out / CLIMBS, *(_record(key, each) for key, each in zip(keys, climbs, strict=True)))
        better = sum(each.best != each.start for each in climbs)
        yield f"{len(done) + at + len(keys)} of {len(wanted)} matrices climbed, {better} of {len(keys)} got faster"


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
