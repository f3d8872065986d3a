"""Programs of one matrix side by side in a fresh process: verified, timed in turns, verified again.

    for at, raced in races([Entry(prompt, texts), …], RaceConfig(device="cuda")): raced["times_us"][text_sha(text)]

A race is `judge.case.Case.race` on a judge that is opened for it alone: numbers that nobody can know, a twin of the
matrix, all programs timed round by round. Its times compare with each other and with nothing else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sparserl.errors import SparseRLError
from sparserl.judge.evaluate import Judge
from sparserl.records import MODES
from sparserl.train.assess import text_sha
from sparserl.train.rl.fresh import fresh
from sparserl.train.rl.matrices import pattern_of
from sparserl.train.rl.nouns import Prompt, prompt_from_record, prompt_to_record

LEAST_ROUNDS = 7
REASON = 200
"""characters of a reason that are kept"""


@dataclass(frozen=True)
class RaceConfig:
    """How programs are raced."""

    device: Literal["cuda", "sim"] = "cuda"
    modes: tuple[str, ...] = ("solver",)
    """several: the mean of the logarithms counts"""
    rounds: int = 11
    """times that every program is timed, in turns; at least 7"""
    graph_ms: float = 2.0
    """how long one timed graph lasts"""
    workers: int = 0
    """races side by side, of which one times at a time; 0: 6 on a GPU, one a core on the simulator"""
    folder: str = ""
    """of the real matrices"""

    def __post_init__(self) -> None:
        if self.device not in ("cuda", "sim"):
            raise SparseRLError(f"The 'device' of a RaceConfig must be cuda or sim. Got {self.device!r}.")
        if not self.modes or set(self.modes) - set(MODES):
            raise SparseRLError(f"The 'modes' of a RaceConfig must be some of {', '.join(MODES)}. Got {self.modes!r}.")
        if self.rounds < LEAST_ROUNDS:
            raise SparseRLError(f"The 'rounds' of a RaceConfig must be at least {LEAST_ROUNDS}. Got {self.rounds}.")

    @property
    def places(self) -> int:
        cores = os.cpu_count() or 1
        return self.workers or (min(6, cores) if self.device == "cuda" else cores)


@dataclass(frozen=True)
class Entry:
    """One race."""

    prompt: Prompt
    texts: tuple[str, ...]


def races(
    entries: Sequence[Entry], config: RaceConfig, until: float = math.inf
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(which entry, its record or {'fault': …}), as they get done, each in its own process, begun before `until`."""
    asked = [
        {"prompt": prompt_to_record(each.prompt), "texts": list(dict.fromkeys(each.texts)), **asdict(config),
         "cores": max(1, (os.cpu_count() or 1) // config.places)}
        for each in entries
    ]  # fmt: skip
    yield from fresh("sparserl.train.rl.side_by_side:race", asked, config.places, until)


def race(asked: Mapping[str, Any]) -> dict[str, Any]:
    """In a process of its own: times by program and mode, of those that are right, and all verdicts."""
    prompt = prompt_from_record(asked["prompt"])
    pattern = pattern_of(prompt, Path(asked["folder"]) if asked["folder"] else None)
    texts = {text_sha(text): text for text in asked["texts"]}
    modelled = asked["device"] == "sim"
    with Judge(asked["device"], asked["cores"]) as judge:
        case = judge.open(pattern, prompt.problem, seed=0 if modelled else None)
        found = case.race(texts, (), asked["modes"], asked["rounds"], asked["graph_ms"])
        device = judge.device.name
    return {
        "device": device,
        "source": "modelled" if modelled else "gpu",
        "rounds": asked["rounds"],
        "times_us": {
            name: {mode: round(each.median_us, 4) for mode, each in timings.items()} for name, timings in found.items()
        },
        "failed": {
            name: f"{each.verdict.name}: {each.reason[:REASON]}"
            for name, each in found.outcomes.items()
            if not each.correct
        },
    }


def log_time(raced: Mapping[str, Any], text: str, modes: Sequence[str]) -> float | None:
    """Of one program, the mean over modes of the logarithm of its time; None where it failed."""
    times = raced["times_us"].get(text_sha(text))
    if times is None or any(mode not in times for mode in modes):
        return None
    return sum(math.log(times[mode]) for mode in modes) / len(modes)


def least(raced: Mapping[str, Any], texts: Sequence[str], modes: Sequence[str]) -> tuple[float, str] | None:
    """The fastest of some programs: the logarithm of its time, and its text; None where all failed."""
    found = [(us, text) for text in texts if (us := log_time(raced, text, modes)) is not None]
    return min(found, default=None)
