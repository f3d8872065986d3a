"""A tiny policy for the tests of reinforcement learning: it writes a few short programs of different speeds.

`fitted(folder)` trains it in seconds, on one core, with a vocabulary of its own, and stores it as any other policy. It
writes the right programs and the wrong one about equally often and knows nothing of speed: what it learns of that
afterwards, it learns from rewards.

    python tests/rl_tiny.py WEIGHTS OUT ALGORITHM [resume | dies]     # a small run with every part of a round in it

'dies': it kills itself in the third round, between imitation and policy gradient.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from sparserl.families import Spec
from sparserl.policy.checkpoint import save_policy
from sparserl.policy.encoder import EncoderSize, collate
from sparserl.policy.language import Shape
from sparserl.policy.model import Size, make_policy
from sparserl.policy.sample import Sample, sample_pattern
from sparserl.policy.sampler import SampleSettings
from sparserl.policy.tokenizer import Tokenizer
from sparserl.program import parse, render
from sparserl.records import Problem
from sparserl.train.batches import padded
from sparserl.train.cases import TrainingCase
from sparserl.train.loop import LoopConfig
from sparserl.train.rl import loop
from sparserl.train.rl.config import Algorithm, Places, RLConfig
from sparserl.train.rl.crew import open_crew
from sparserl.train.rl.curriculum import CurriculumConfig
from sparserl.train.rl.episodes import PlayConfig
from sparserl.train.rl.explore import ExploreConfig
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.referee import Referee, RefereeConfig, open_referee
from sparserl.train.rl.table import Table
from sparserl.train.tokens import merge

_SIGNATURE = """\
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
"""


def lanes(count: int, block: int = 128, first: str = "row_start[row]") -> str:
    """CSR with `count` threads a row. `first`: where a row's sum begins."""
    return f"""\
// layout: rows index=int32
// launch: spmv<<<div_up(rows * {count}, {block}), {block}>>>
{_SIGNATURE}{{
    constexpr int L = {count};
    const int at = blockIdx.x * blockDim.x + threadIdx.x, row = at / L;
    acc_t sum = 0;
    if (row < rows)
        for (int j = {first} + at % L; j < row_start[row + 1]; j += L) sum += to_acc(vals[j]) * to_acc(x[cols[j]]);
    sum = warp_sum<L>(sum);
    if (row < rows && at % L == 0) y[row] = to_value(sum);
}}
"""


SLICES = """\
// layout: slices c=32 sigma=1 group=1 index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, int slices, const int* slice_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = slice_start[row / 32] + row % 32; j < slice_start[row / 32 + 1]; j += 32)
        if (!is_padding(cols[j])) sum += to_acc(vals[j]) * to_acc(x[cols[j]]);
    y[row] = to_value(sum);
}
"""


PROGRAMS = {
    name: render(parse(text))
    for name, text in {
        "a thread a row": lanes(1),
        "four lanes": lanes(4),
        "a warp a row": lanes(32),
        "a warp a block": lanes(32, 32),
        "slices": SLICES,
        "skips an entry": lanes(8, first="1 + row_start[row]"),
    }.items()
}
"""which of them is the fastest depends on the matrix; the last is wrong, `slices` refuses long rows"""

CASES = tuple(
    TrainingCase(name, Spec(family, seed, params))
    for name, family, seed, params in (
        ("grid", "stencil2d", 1_000_001, {"nx": 64, "ny": 48, "points": 5}),
        ("random", "uniform", 1_000_002, {"rows": 400, "columns": 400, "per_row": 40}),
        (
            "long",
            "longrows",
            1_000_003,
            {"rows": 500, "columns": 500, "per_row": 4.3, "long": 5, "long_share": 0.8, "reach": 50},
        ),
    )
)


def prompts(count: int = len(CASES)) -> list[Prompt]:
    """The first `count` matrices, under SpMV in float32."""
    return [Prompt(case.name, case.source, Problem(), case.name) for case in CASES[:count]]


LAYOUTS = ("rows index=int32", "slices c=32 sigma=1 group=1 index=int32")
"""what explored episodes begin with"""


@cache
def sampled(case: str) -> Sample:
    """What the encoder reads of a case."""
    return sample_pattern(next(each for each in CASES if each.name == case).load())


def table(referee: Referee) -> Table:
    """All three matrices, before this referee."""
    return Table(prompts(), lambda prompt: sampled(prompt.case), lambda prompt: LAYOUTS, referee)


def judge() -> Referee:
    """One process on the simulator. Close it."""
    return open_referee("sim", RefereeConfig(device="sim", workers=1))


def pure(algorithm: Algorithm, rounds: int, seed: int = 0) -> RLConfig:
    """Policy gradient alone: no layouts given, nothing imitated."""
    return RLConfig(
        algorithm=algorithm,
        objective="mean",
        rounds=rounds,
        judged_on="sim",
        epochs=2,
        minibatch=12,
        batch_tokens=6000,
        noise=0.05,
        value_rate=3e-3,
        retimed=0,
        imitate_steps=0,
        play=PlayConfig(count=12, explored=0.0, machine="sim", settings=SampleSettings(max_tokens=280)),
        explore=ExploreConfig(machine="sim"),
        curriculum=CurriculumConfig(prompts=len(CASES), seed=seed),
        loop=LoopConfig(
            learning_rate=1e-4, warmup=0, final=1.0, weight_decay=0.0, device="cpu", seed=seed, save_every_s=0.0
        ),
    )


def everything(algorithm: Algorithm, rounds: int = 4) -> RLConfig:
    """Every part of a round, small: exploration, two turns, retiming, variants, imitation, admission, best of k."""
    config = pure(algorithm, rounds)
    play = replace(config.play, count=4, explored=0.5, turns=2)
    few = replace(config.curriculum, prompts=2)
    config = replace(config, objective="best", k=2, minibatch=4, play=play, curriculum=few)
    config = replace(config, choose_steps=1, choose_batch=2)
    return replace(config, retimed=2, varied=2, imitate_steps=1, imitate_batch=4, admit_steps=1, admit_batch=2)


_MADE: dict[tuple[int, int], Path] = {}


def fitted(folder: Path, steps: int = 140, seed: int = 0) -> Path:
    """Make the policy and store it; returns the folder. What this process has made before is copied."""
    if (made := _MADE.get((steps, seed))) is not None and made.exists():
        return Path(shutil.copytree(made, folder / "policy"))
    _MADE[steps, seed] = _fitted(folder, steps, seed)
    return _MADE[steps, seed]


def _fitted(folder: Path, steps: int, seed: int) -> Path:
    words = folder / "words.json"
    tokenizer = merge(PROGRAMS.values(), 4096)
    tokenizer.save(words)
    shape = Shape(width=64, layers=2, heads=2, kv_heads=1, inner=128, vocabulary=tokenizer.size, context=512)
    policy = make_policy(Size(shape, EncoderSize(inner=32, queries=4)), seed)
    samples = [sampled(case.name) for case in CASES]
    with torch.no_grad():  # the encoder stays as it was drawn: it tells matrices apart, and that is enough
        prefix = policy.prefix(collate(samples, [Problem()] * len(samples), "sim"))
    ids = [np.array(tokenizer.encode_program(text)) for text in PROGRAMS.values()]
    tokens = torch.from_numpy(padded(ids, 8)[0])
    optimiser = torch.optim.AdamW(policy.language.parameters(), lr=2e-2, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-2, steps, pct_start=0.15)
    for step in range(steps):
        rows = prefix[[step % len(CASES)]].expand(len(tokens), -1, -1)
        logits = policy(tokens[:, :-1], prefix=rows)
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=Tokenizer.pad)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.language.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    save_policy(policy, folder / "policy", tokenizer=words, notes={"stage": "test"})
    return folder / "policy"


def _dying(imitate: Any) -> Any:
    def dies(*rest: Any) -> Any:
        found = imitate(*rest)
        if rest[-1] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return dies


def _main(weights: str, out: str, algorithm: Any, *rest: str) -> None:
    """Run, and print a line: which process this is, and a hash of the weights it ends with."""
    torch.set_num_threads(1)
    if "dies" in rest:
        loop.imitate = _dying(loop.imitate)
    runs: list[loop.Run] = []

    class Kept(loop.Run):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            runs.append(self)

    loop.Run = Kept  # type: ignore[misc]
    referee, crew = judge(), open_crew(cpu=True)
    try:
        loop.train(
            everything(algorithm), Places(Path(out), Path(weights), resume="resume" in rest), table(referee), crew
        )
    finally:
        referee.close()
    parts = [each.detach().numpy().tobytes() for each in runs[0].learner.parameters]
    print(f"{crew.rank} of {crew.count} {hashlib.sha256(b''.join(parts)).hexdigest()}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
