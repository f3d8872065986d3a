"""Runs one after the other, in one process and with one referee, whose memory they share.

    sparserl train rl-many PLAN      # a line of PLAN is what follows `sparserl train rl` on a command line

For runs that are to be held against each other (`runs/ablations.sh`): most of a short run would be the start of its
processes, and arms that begin with the same weights write much of the same, which is then judged once, for all of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from sparserl.errors import SparseRLError
from sparserl.policy.checkpoint import read_config
from sparserl.train.loop import POLICY, Finished, Watch, device_of, policy_folder
from sparserl.train.rl.config import Places, RLConfig
from sparserl.train.rl.crew import open_crew
from sparserl.train.rl.loop import train
from sparserl.train.rl.rollout_store import FOLDER, ROLLOUTS
from sparserl.train.rl.table import open_judge, open_table

Asked = tuple[RLConfig, Places]


def several(runs: Sequence[Asked], watch: Watch | None = None, budget_s: float = 0.0) -> Iterator[Finished]:
    """What came of each run, as they get done; those that are done already are left out.

    budget_s: for all of them together, 0: no limit. When it is spent, the last one told of is not complete.
    """
    clock_s = time.monotonic()
    check_alike(runs)
    for _, places in runs:
        read_config(policy_folder(places.weights))  # before minutes are spent on the others
    left = [run for run in runs if not is_done(*run)]
    if not left:
        return
    config, places = runs[0]
    crew = open_crew(cpu=device_of(config.loop.device).type == "cpu")
    with closing(open_judge(config, replace(places, known=known_to(runs)), crew, remember=True)) as referee:
        for at, (asked, each) in enumerate(left):
            if at and budget_s and crew.told(time.monotonic() - clock_s > budget_s):
                yield Finished(each.out, rounds_done(each), asked.rounds, 0, 0.0, {})
                return
            own = replace(asked, loop=replace(asked.loop, budget_s=budget_s)) if budget_s else asked
            with open_table(own, each, crew, referee) as table:
                found = train(own, each, table, crew, watch, clock_s=clock_s if budget_s else None)
            yield found
            if not found.complete:
                return
            gc.collect()  # captured graphs hold their memory until then
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def check_alike(runs: Sequence[Asked]) -> None:
    """Raises SparseRLError where one referee can't serve all of them."""
    if not runs:
        raise SparseRLError("There is no run in the plan: write the options of `sparserl train rl`, one run a line.")
    told = [(c.judged_on, c.play.modes, c.loop.device, p.judge, p.matrices, p.workers) for c, p in runs]
    for (_, places), each in zip(runs, told, strict=True):
        if each != told[0]:
            raise SparseRLError(
                f"{places.out} can't be judged by the referee of {runs[0][1].out}: the runs of a plan must agree in "
                "--device, --mode, --learn-on, --judge, --matrices and --workers."
            )
    if len({places.out for _, places in runs}) < len(runs):
        raise SparseRLError("Two runs of the plan have the same --out: give each its own folder.")


def known_to(runs: Sequence[Asked]) -> tuple[Path, ...]:
    """Runs whose verdicts stand for all: those that any of them names, and their own so far; a replay needs none."""
    own = [each.out for _, each in runs if not each.judge.startswith("replay:")]
    named = [path for _, each in runs for path in each.known]
    return tuple(dict.fromkeys([*named, *(out for out in own if (out / FOLDER / ROLLOUTS).exists())]))


def is_done(config: RLConfig, places: Places) -> bool:
    """Whether the folder holds the policy of the last round."""
    return rounds_done(places) >= config.rounds


def rounds_done(places: Places) -> int:
    """After which round the folder's policy was written; 0 where there is none."""
    folder = places.out / POLICY
    return int(read_config(folder)["notes"].get("step", 0)) if folder.exists() else 0
