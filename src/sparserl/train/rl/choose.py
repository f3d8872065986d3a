"""Which layout: what each line has earned on a matrix teaches the choice among them.

A group tries several layouts, half of them given to it. Of what a given one earned the policy gradient says nothing, as
the policy did not choose it, and imitation shows one winner; so a policy that is sure of a layout stays with it long
after another was found to be faster. Here all lines that were ever tried on a matrix (`curriculum.Results`) share out
the probability that they have together anew, by what they have and by what they earned; all other lines keep theirs:

    wanted(line) = mass · p(line) exp(earned(line) / SHARP) / sum over the lines,    mass = sum of p(line)

with p as it is before the first step of a round. A step follows (wanted - p) · grad log p, p looked up before each,
which is the gradient of KL(wanted ‖ p) over all lines, tried or not. Equally fast lines stay as they are; of a matrix
that comes again the best one gains again. (Without p in it, what is as fast as another within the noise becomes as
probable: tried, and worse on small matrices.)

Not covered: how sure it is what a line has earned; one brief time counts like ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparserl.matrix import Array
from sparserl.policy.tokenizer import Tokenizer
from sparserl.train.assess_policy import layout_tokens
from sparserl.train.rl.admission import LONGEST, of_every_kind
from sparserl.train.rl.curriculum import Results
from sparserl.train.rl.explore import Pair, pair_of
from sparserl.train.rl.learner import Learner, Line
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.objective import imitation
from sparserl.train.rl.rounds import seed_of
from sparserl.train.rl.update import said_of

Tried = tuple[list[Line], Array]
"""layout lines of a matrix, and what each has earned"""
SHARP = 0.05
"""logarithms of speed: a line that is so much ahead of another is wanted e times as often beside it as it is now"""


def choose(
    learner: Learner, results: Results, prompts: Sequence[Prompt], tokenizer: Tokenizer, number: int
) -> dict[str, float]:
    """The steps of round `number`; returns figures for the curves."""
    config = learner.config
    if not config.choose_steps or config.shuffled:
        return {}
    able = [prompt for prompt in prompts if len(results.lines.get(pair_of(prompt), ())) > 1]
    rng = np.random.default_rng(seed_of(config.loop.seed, number, 15))
    drawn = of_every_kind(able, config.choose_steps * config.choose_batch, rng)
    tried = {pair_of(prompt): _tried(prompt, results.lines[pair_of(prompt)], tokenizer) for prompt in drawn}
    tried = {pair: each for pair, each in tried.items() if len(each[0]) > 1}
    drawn = [prompt for prompt in drawn if pair_of(prompt) in tried]
    if not drawn:
        return {}
    aims = {pair: wanted(shares, tried[pair][1]) for pair, shares in _shares(learner, tried).items()}
    behind: list[float] = []
    for at in range(0, len(drawn), config.choose_batch):
        part = {pair_of(each): tried[pair_of(each)] for each in drawn[at : at + config.choose_batch]}
        weighed: list[Line] = []
        for pair, shares in _shares(learner, part).items():
            lines, earned = part[pair]
            behind.append(_behind(shares, earned))
            weighed += [_weighed(*each) for each in zip(lines, aims[pair] - shares, strict=True)]
        learner.policy.train()
        learner.step(weighed, lambda batch: imitation(learner.policy, batch), number)
    mass = np.mean([aim.sum() for aim in aims.values()])
    return {"choose/behind": float(np.mean(behind)), "choose/mass": float(mass)}


def wanted(shares: Array, earned: Array) -> Array:
    """How probable each line is to be: what they have together, shared out anew."""
    tilted = shares * np.exp((earned - earned.max()) / SHARP)
    out: Array = shares if not tilted.sum() else shares.sum() * tilted / tilted.sum()
    return out


def _tried(prompt: Prompt, earned: Mapping[str, float], tokenizer: Tokenizer) -> Tried:
    """Without lines that are too long for any recipe."""
    found = {(tokenizer.program, *layout_tokens(line, tokenizer)): each for line, each in sorted(earned.items())}
    kept = {ids: each for ids, each in found.items() if len(ids) <= LONGEST}
    lines = [Line(prompt, np.array(ids, dtype=np.int64), np.arange(len(ids)) > 0, {}) for ids in kept]
    return lines, np.array([*kept.values()])


def _shares(learner: Learner, tried: Mapping[Pair, Tried]) -> dict[Pair, Array]:
    """How probable the lines of each are."""
    lines = [line for each, _ in tried.values() for line in each]
    scores = [float(said["old"][line.written].sum()) for line, said in zip(lines, said_of(learner, lines), strict=True)]
    ends = np.cumsum([len(each) for each, _ in tried.values()])
    return dict(zip(tried, np.split(np.exp(scores), ends[:-1]), strict=True))


def _behind(shares: Array, earned: Array) -> float:
    """How far the lines are behind the best of them, in the mean over what is written."""
    return float((earned.max() - earned) @ shares / max(float(shares.sum()), np.finfo(np.float64).tiny))


def _weighed(line: Line, weight: float) -> Line:
    return replace(line, columns={"advantages": np.full(len(line.ids), weight, dtype=np.float32)})
