"""The teacher at its best on a matrix: its recipes with their numbers fitted, by the reference search of `bench`.

    recipes = fitted(prompts, FitConfig(device="cuda"), Path("out/recipes.jsonl"))    # texts by prompt, fastest first

Successive halving over all that the matrix admits (`bench.reference.explore_case`): the best of every family and the
cheapest by the cost model, timed briefly, then the best of them longer. One line a matrix goes to the file as it is
done, so a second call goes on where the first stopped. These times choose; races decide.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparserl.bench.archive import read_whole
from sparserl.bench.explore import Explorer
from sparserl.bench.machine import Machine
from sparserl.bench.packing import PackPool
from sparserl.bench.reference import Plan, best_by_mode, explore_case, problem_name
from sparserl.errors import BackendError, SparseRLError, StoreError
from sparserl.recipes import candidates
from sparserl.store import append_jsonl
from sparserl.train.rl.fresh import FAULT, fresh
from sparserl.train.rl.matrices import pattern_of
from sparserl.train.rl.nouns import Prompt, prompt_from_record, prompt_key, prompt_to_record

log = logging.getLogger(__name__)

Device = Literal["cuda", "sim"]
CHUNK = 12
"""matrices of one process: it takes seconds to start"""


@dataclass(frozen=True)
class FitConfig:
    """How closely the recipes are searched."""

    device: Device = "cuda"
    first: int = 240
    """programs a matrix that halving starts with"""
    second: int = 24
    """of them timed again, longer"""
    kept: int = 5
    """recipes a matrix that are kept, the fastest by mode"""
    modes: tuple[str, ...] = ("solver",)
    workers: int = 0
    """processes side by side; 0: 6 on a GPU, one a core on the simulator"""
    folder: str = ""
    """of the real matrices"""

    def __post_init__(self) -> None:
        if self.device not in ("cuda", "sim"):
            raise SparseRLError(f"The 'device' of a FitConfig must be cuda or sim. Got {self.device!r}.")
        if min(self.first, self.second, self.kept) < 1:
            raise SparseRLError(
                "The 'first', 'second' and 'kept' of a FitConfig must be at least 1. "
                f"Got {self.first}, {self.second} and {self.kept}."
            )

    @property
    def places(self) -> int:
        cores = os.cpu_count() or 1
        return self.workers or (min(6, cores) if self.device == "cuda" else cores)


def read_fitted(path: Path) -> dict[str, list[str]]:
    """Texts by prompt, the fastest first; none for a matrix that the search failed on."""
    return {record["pair"]: [each["text"] for each in record["recipes"]] for record in read_whole(path)}


def fitted(
    prompts: Sequence[Prompt], config: FitConfig, path: Path, until: float = float("inf")
) -> dict[str, list[str]]:
    """The fitted recipes of all prompts; what the file lacks is searched for. until: a time of `time.monotonic`."""
    _refuse_other_device(path, config.device)
    for size in (CHUNK, 1):  # a matrix that ended its process doesn't take its neighbours along again
        known = read_fitted(path)
        missing = [each for each in prompts if prompt_key(each) not in known]
        chunks = [missing[at : at + size] for at in range(0, len(missing), size)]
        asked = [_asked(chunk, config, path, until) for chunk in chunks]
        for at, answer in fresh("sparserl.train.rl.fitted:search", asked, config.places, until):
            if FAULT in answer:
                log.warning("The search for the best recipes of %s stopped: %s", chunks[at][0].case, answer[FAULT])
    return read_fitted(path)


def _refuse_other_device(path: Path, device: str) -> None:
    others = {record["device"] for record in read_whole(path)} - {device}
    if others:
        raise StoreError(f"The recipes in {path} were fitted on {', '.join(others)}, not on {device}: take another.")


def _asked(prompts: Sequence[Prompt], config: FitConfig, path: Path, until: float) -> dict[str, Any]:
    numbers = {name: getattr(config, name) for name in ("device", "first", "second", "kept", "modes", "folder")}
    left_s = min(1e9, until - time.monotonic())
    cores = max(1, (os.cpu_count() or 1) // config.places)
    records = [prompt_to_record(each) for each in prompts]
    return {**numbers, "prompts": records, "out": str(path), "left_s": left_s, "cores": cores}


def search(asked: Mapping[str, Any]) -> dict[str, Any]:
    """In a process of its own: fit the recipes of some prompts, one line each."""
    from sparserl.backends import open_backend

    began, device = time.monotonic(), asked["device"]
    machine = Machine(open_backend(device))
    about = machine.inner.device()
    plan = Plan(first=asked["first"], second=asked["second"], full=False)
    done = 0
    with PackPool(asked["cores"], about.arch if device == "cuda" else "", about.sms) as pool:
        for record in asked["prompts"]:
            if time.monotonic() - began > asked["left_s"]:
                break
            prompt = prompt_from_record(record)
            pattern = pattern_of(prompt, Path(asked["folder"]) if asked["folder"] else None)
            ranked = candidates(pattern, prompt.problem, about.sms)
            explorer = Explorer(machine.as_backend, pool, pattern, prompt.problem)
            _, found = explore_case(explorer, ranked, False, plan)
            if not machine.well():
                raise BackendError(f"the machine failed while recipes were timed on {prompt.case!r}")
            best = [each for each in best_by_mode(found, asked["kept"]) if set(asked["modes"]) <= each.times_us.keys()]
            best.sort(key=lambda each: sum(each.times_us[mode] for mode in asked["modes"]))
            recipes = [
                {"name": each.recipe.name, "text": each.recipe.text, "times_us": each.times_us}
                for each in best[: asked["kept"]]
            ]
            about_pair = {"pair": prompt_key(prompt), "case": prompt.case, "problem": problem_name(prompt.problem)}
            append_jsonl(Path(asked["out"]), {**about_pair, "device": device, "tried": len(found), "recipes": recipes})
            done += 1
    return {"done": done}
