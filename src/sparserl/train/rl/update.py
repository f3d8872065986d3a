"""The policy gradient of a round: rollouts become advantages and a few optimiser steps.

    look back  log-probabilities (and values) of all written tokens under the policy that played, computed as training
               computes them: the old ones of the ratio
    refer      the same after imitation, whose steps lie between: the reference of the KL, so renewed every round
    keep       what the run's first policy was sure of among them, and by how much: that margin is to stay
    learn      advantages of the objective → minibatches of similar length, several epochs, one optimiser step each;
               GRPO puts most of the blame for a failure on one token: that at its fork from the right ones of its group

The reward of an episode is that of its best turn and is earned with that turn's last token; what was written after it
changed nothing: no advantage (GRPO), no return (PPO). Not covered: rewards inside a program.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch

from sparserl.matrix import Array
from sparserl.policy.model import Policy
from sparserl.train.loop import Step, autocast
from sparserl.train.rl.advantages import best_of_k, fork, gae, group_relative_to_own, shared_part, standardised
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.diagnostics import explained_variance
from sparserl.train.rl.episodes import episode_reward
from sparserl.train.rl.learner import Learner, Line
from sparserl.train.rl.nouns import EXPLORED, Rollout
from sparserl.train.rl.objective import Batch, figures, grpo, masked_mean, ppo
from sparserl.train.rl.rounds import seed_of

SURE = math.log(0.999)
"""log-probability from which on a policy is sure of a token"""
LOWEST = -1e4
"""stands for a token that nothing is kept of: no policy says less"""

# ---- before the first step


def lines_of(rollouts: Sequence[Rollout]) -> list[Line]:
    """Rollouts as sequences, nothing known of them yet."""
    return [
        Line(each.prompt, np.array(each.ids, dtype=np.int64), np.array(each.written, dtype=bool), {})
        for each in rollouts
    ]


def look_back(learner: Learner, lines: Sequence[Line]) -> list[Line]:
    """With 'old' under the policy as it is now, and 'values' where there is a value head."""
    return [replace(line, columns=columns) for line, columns in zip(lines, said_of(learner, lines), strict=True)]


def refer(learner: Learner, lines: Sequence[Line]) -> list[Line]:
    """With the 'reference' too: what the policy says now of what it wrote."""
    found = said_of(learner, lines) if learner.config.imitates else [line.columns for line in lines]
    return [
        replace(line, columns={**line.columns, "reference": said["old"]})
        for line, said in zip(lines, found, strict=True)
    ]


def keep(learner: Learner, lines: Sequence[Line]) -> list[Line]:
    """With 'kept', where the run's first policy is asked: what it says of the tokens that it is sure of."""
    if learner.first is None:
        return list(lines)
    found = []
    for line, said in zip(lines, said_of(learner, lines, learner.first), strict=True):
        kept = np.where(said["old"] >= SURE, said["flat"], LOWEST)
        found.append(replace(line, columns={**line.columns, "kept": kept}))
    return found


@torch.no_grad()
def said_of(learner: Learner, lines: Sequence[Line], policy: Policy | None = None) -> list[Mapping[str, Array]]:
    """Of each line's written tokens 'old' and 'flat' log-probabilities, and 'values' where there is a head."""
    policy, head = (learner.policy, learner.head) if policy is None else (policy, None)
    policy.eval()
    own = learner.crew.share(range(len(lines)))
    found: list[tuple[int, dict[str, Array]]] = []
    for part in learner.similar([lines[at] for at in own]):
        places = [own[at] for at in part]
        with learner.piece(), autocast(learner.device):
            said = figures(policy, learner.batch([lines[at] for at in places]), head)
            log_probs, flat = (each.float().cpu().numpy() for each in (said.log_probs, said.flat))
            values = None if said.values is None else said.values.float().cpu().numpy()
        for row, at in enumerate(places):
            count = len(lines[at].ids)
            columns = {"old": log_probs[row, :count], "flat": flat[row, :count]}
            if values is not None:
                columns["values"] = values[row, :count]
            found.append((at, columns))
    known = dict(learner.crew.gather(found))
    return [known[at] for at in range(len(lines))]


@dataclass(frozen=True, eq=False)
class Scores:
    """What there is to say of every rollout of a round."""

    whole: Array
    """its advantage in its group (GRPO), or what PPO's value head has to foresee"""
    blame: Array
    """what is added to that at `forks`: never positive, and 0 for all that are right"""
    forks: Array
    """the place of the first token that no right rollout of the group has after the same beginning"""


def scores_of(rollouts: Sequence[Rollout], config: RLConfig) -> Scores:
    """Who is right is read from the reward alone: the control with shuffled rewards must not know it either."""
    whole, blame, forks = np.zeros(len(rollouts)), np.zeros(len(rollouts)), np.zeros(len(rollouts), dtype=np.int64)
    for _, group in groupby(range(len(rollouts)), key=lambda at: rollouts[at].group):
        places = list(group)
        rewards = np.array([episode_reward(rollouts[at]) for at in places])
        best = best_of_k(rewards, min(config.k, len(places)))
        share = config.mean_share if config.objective == "best" else 1.0
        if config.algorithm == "ppo":
            whole[places] = share * rewards + (1 - share) * best
            continue
        right = rewards > config.weights.wrong
        given = np.array([rollouts[at].origin == EXPLORED for at in places])
        shared = shared_part(rewards, right, config.shared_blame * config.unit)
        whole[places] = (share * group_relative_to_own(shared, given, right) + (1 - share) * best) / config.unit
        blame[places] = share * (rewards - shared) / config.unit
        others = [rollouts[at].ids for at, well in zip(places, right, strict=True) if well]
        for at in (at for at in places if blame[at] < 0):
            forks[at] = fork(rollouts[at].ids, others)
    return Scores(whole, blame, forks)


def ends_of(rollouts: Sequence[Rollout]) -> list[int]:
    """The place of the token that earned each rollout its reward: the last of its best turn."""
    return [max(each.turns, key=lambda turn: turn.reward).last - 1 for each in rollouts]


def with_group_advantages(lines: Sequence[Line], scores: Scores, ends: Sequence[int]) -> list[Line]:
    """GRPO: tokens up to the one that earned the reward have the rollout's advantage, that at its fork blame too."""
    found = []
    for at, (line, end) in enumerate(zip(lines, ends, strict=True)):
        place = np.arange(len(line.ids))
        advantages = scores.whole[at] + np.where(place == scores.forks[at], scores.blame[at], 0.0)
        found.append(replace(line, columns={**line.columns, "advantages": np.where(place <= end, advantages, 0.0)}))
    return found


def with_token_advantages(
    lines: Sequence[Line], scores: Array, ends: Sequence[int], config: RLConfig, lam: float
) -> list[Line]:
    """PPO: by generalised advantage estimation over the written tokens, then standardised over the round."""
    width = max(int(line.written.sum()) for line in lines)
    rewards, values = np.zeros((len(lines), width)), np.zeros((len(lines), width))
    there = np.arange(width) < np.array([line.written.sum() for line in lines])[:, None]
    for row, (line, score, end) in enumerate(zip(lines, scores, ends, strict=True)):
        values[row, there[row]] = line.columns["values"][line.written]
        rewards[row, int(line.written[: end + 1].sum()) - 1] = score
    advantages, returns = gae(rewards, values, config.gamma, lam)
    centred = np.where(there, advantages - advantages[there].mean(), 0.0)
    scaled = np.zeros_like(centred)
    scaled[there] = standardised(centred[there], config.noise)
    found = []
    for row, line in enumerate(lines):
        columns = dict(line.columns)
        for name, values_of in (("advantages", scaled), ("returns", returns)):
            columns[name] = np.zeros(len(line.ids))
            columns[name][line.written] = values_of[row, there[row]]
        found.append(replace(line, columns=columns))
    return found


# ---- the steps


def learn(learner: Learner, rollouts: Sequence[Rollout], lines: Sequence[Line], number: int) -> dict[str, float]:
    """The policy gradient of round `number`; returns figures for the curves. lines: from `look_back`."""
    config = learner.config
    scores, ends, lines = scores_of(rollouts, config), ends_of(rollouts), keep(learner, refer(learner, lines))
    curves: dict[str, float] = {}
    if learner.head is None:
        lines = with_group_advantages(lines, scores, ends)
    else:
        lines = with_token_advantages(lines, scores.whole, ends, config, config.lam)
        said, came = (np.concatenate([line.columns[k][line.written] for line in lines]) for k in ("values", "returns"))
        curves["explained_variance"] = explained_variance(said, came)
    learner.policy.train()
    sums: defaultdict[str, float] = defaultdict(float)
    steps = 0
    for epoch in range(config.epochs):
        minibatches = learner.minibatches(lines, seed_of(config.loop.seed, number, 7, epoch))
        away = 0.0
        for minibatch in minibatches:
            found = learner.step(minibatch, loss_of(learner), number)
            away += found["kl_old"] / len(minibatches)
            steps += 1
            for name, value in found.items():
                sums[name] += value
        if away > config.kl_stop:
            break
    return {**curves, **{f"loss/{name}": total / steps for name, total in sorted(sums.items())}, "steps": steps}


def loss_of(learner: Learner) -> Callable[[Batch], Step]:
    """That of the run's algorithm."""
    coefficients, head = learner.config.coefficients, learner.head
    if head is None:
        return lambda batch: grpo(learner.policy, batch, coefficients)
    return lambda batch: ppo(learner.policy, head, batch, coefficients)


def warm_up(learner: Learner, rollouts: Sequence[Rollout], lines: Sequence[Line], number: int) -> list[Line]:
    """A fresh value head learns its first round alone, from what came of every token; the lines with its new values."""
    config, head = learner.config, learner.head
    if head is None or not learner.fresh_head:
        return list(lines)
    lines = with_token_advantages(lines, scores_of(rollouts, config).whole, ends_of(rollouts), config, lam=1.0)

    def value_loss(batch: Batch) -> Step:
        values = figures(learner.policy, batch, head).values
        assert values is not None and batch.returns is not None
        return Step(masked_mean((values - batch.returns) ** 2 / 2, batch.written, batch.total), batch.ids.numel())

    moving = [each for each in learner.policy.parameters() if each.requires_grad]
    for each in moving:
        each.requires_grad_(False)
    for epoch in range(config.value_warmup):
        for minibatch in learner.minibatches(lines, seed_of(config.loop.seed, number, 8, epoch)):
            learner.step(minibatch, value_loss, number)
    for each in moving:
        each.requires_grad_(True)
    learner.fresh_head, learner.steps = False, 0
    return look_back(learner, lines)
