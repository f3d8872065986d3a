"""What was tried on each matrix, whoever tried it: the right programs with their speeds, and how many were judged.

    tried = from_rollouts([Path("runs/rl")])              # of a training run
    tried = from_evaluation(Path("results/nano"), "rl")   # of the samples that `sparserl eval` judged

All are by `prompt_key`. A speed is the logarithm of baseline over time, the mean over modes; a longer timing takes the
place of a brief one. Prompts of evaluation matrices name the split whose list has them (`matrices`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import TypeVar

from sparserl.bench.archive import read_whole
from sparserl.errors import StoreError
from sparserl.records import Problem
from sparserl.store import read_json
from sparserl.train.assess import ABOUT, MEASURED, PROGRAMS, read_written
from sparserl.train.assess_report import problem_called, session_speeds
from sparserl.train.rl.episodes import log_speedup
from sparserl.train.rl.matrices import EVALUATION
from sparserl.train.rl.nouns import Prompt, prompt_key
from sparserl.train.rl.rollout_store import open_rollouts

T = TypeVar("T")


@dataclass
class Tried:
    """One matrix under one problem."""

    prompt: Prompt
    speeds: dict[str, float] = field(default_factory=dict)
    """by text, of right programs"""
    tries: int = 0
    """programs judged, right or not, repeats counted"""

    def fastest(self) -> list[str]:
        """The texts, the fastest first."""
        return sorted(self.speeds, key=lambda text: (-self.speeds[text], text))


def from_rollouts(folders: Sequence[Path], modes: Sequence[str] = ("solver",), within: int = 0) -> dict[str, Tried]:
    """Of training runs. within: only the last so many programs of each matrix count; 0: all."""
    judged: dict[str, list[tuple[str, float | None]]] = {}
    longer: dict[tuple[str, str], float | None] = {}
    prompts: dict[str, Prompt] = {}
    for folder in folders:
        store = open_rollouts(folder)
        for _, rollout in store.rollouts():
            key = prompt_key(rollout.prompt)
            prompts[key] = rollout.prompt
            judged.setdefault(key, []).extend((turn.text, log_speedup(turn.judged, modes)) for turn in rollout.turns)
        for _, prompt, said in store.retimed():
            longer |= {(prompt_key(prompt), text): log_speedup(each, modes) for text, each in said.items()}
    found = {}
    for key, programs in judged.items():
        counted = programs[-within:] if within else programs
        speeds = {text: longer.get((key, text), speed) for text, speed in counted}
        right = {text: speed for text, speed in speeds.items() if speed is not None}
        found[key] = Tried(prompts[key], right, len(counted))
    return found


def from_evaluation(folder: Path, writer: str, modes: Sequence[str] = ("solver",)) -> dict[str, Tried]:
    """Of the samples that `sparserl eval` has judged for one writer."""
    about = read_json(folder / ABOUT)
    written = read_written(folder)
    if writer not in written:
        raise StoreError(f"{folder} has no samples of {writer!r}, only of {', '.join(written) or 'nobody'}.")
    problem: Problem = problem_called(about["problem"])
    texts = {record["program"]: record["text"] for record in read_whole(folder / PROGRAMS)}
    speeds: dict[str, dict[str, Mapping[str, float]]] = {}
    structures: dict[str, str] = {}
    for record in read_whole(folder / MEASURED):
        speeds.setdefault(record["case"], {}).update(session_speeds(record))
        structures[record["case"]] = record["structure"]
    found = {}
    for case, record in written[writer].items():
        if case not in speeds:
            continue
        prompt = Prompt(case, {EVALUATION: about["split"]}, problem, structures[case])
        known = {p: speeds[case][p] for p in record["programs"] if p in speeds[case]}
        right = {texts[p]: sum(log(each[mode]) for mode in modes) / len(modes) for p, each in known.items()}
        found[prompt_key(prompt)] = Tried(prompt, right, len(record["programs"]))
    return found


def drawn(found: Mapping[str, T], count: int, seed: int) -> dict[str, T]:
    """As many, at random, in the order of their keys; 0: all. One seed draws the same from the same keys."""
    keys = sorted(found)
    if count and count < len(keys):
        keys = sorted(random.Random(seed).sample(keys, count))
    return {key: found[key] for key in keys}
