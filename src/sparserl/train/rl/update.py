"""The policy gradient of a round: rollouts become advantages and a few optimiser steps.

    look back  log-probabilities (and values) of all written tokens under the policy that played, computed as training
               computes them: the old ones of the ratio
    refer      the same after imitation, whose steps lie between: the reference of the KL, so renewed every round
    keep       what the run's first policy was sure of among them, and by how much: that margin is to stay
    learn      advantages of the objective (`credit`) → minibatches of similar length, several epochs, one optimiser
               step each

Not covered: where rewards come from (`rounds`), and what a token's part in them is (`credit`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from sparserl.matrix import Array
from sparserl.policy.feedback import read_from
from sparserl.policy.model import Policy
from sparserl.train.loop import Step, autocast
from sparserl.train.rl.credit import ends_of, scores_of, with_group_advantages, with_token_advantages
from sparserl.train.rl.diagnostics import entropy_by_part, explained_variance
from sparserl.train.rl.learner import Learner, Line, Row
from sparserl.train.rl.nouns import Rollout
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
        Line(
            each.prompt, np.array(each.ids, dtype=np.int64), np.array(each.written, dtype=bool), {},
            parts=parts_of(each),
        )
        for each in rollouts
    ]  # fmt: skip


def parts_of(rollout: Rollout) -> tuple[Row, ...]:
    """The first two programs are one row; each later one is another, with what it was written from."""
    turns = rollout.turns
    if len(turns) <= 2:
        return ()
    firsts = [turn.first for turn in turns]
    later = [(read_from(firsts[:at]), turns[at].first, turns[at].last) for at in range(2, len(turns))]
    return ((0, 0, turns[1].last), *later)


def look_back(learner: Learner, lines: Sequence[Line]) -> list[Line]:
    """With 'old' under the policy as it is now, its 'entropy', and 'values' where there is a value head."""
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
    """Of written tokens 'old' and 'flat' log-probabilities, 'entropy', and 'values' where there is a head, by line."""
    policy, head = (learner.policy, learner.head) if policy is None else (policy, None)
    policy.eval()
    own = learner.crew.share(range(len(lines)))
    found: list[tuple[int, dict[str, Array]]] = []
    for part in learner.similar([lines[at] for at in own]):
        places = [own[at] for at in part]
        with learner.piece(), autocast(learner.device):
            said = figures(policy, learner.batch([lines[at] for at in places]), head)
            parts = {"old": said.log_probs, "flat": said.flat, "entropy": said.entropy}
            if said.values is not None:
                parts["values"] = said.values
            columns = {name: part.float().cpu().numpy() for name, part in parts.items()}
        row = 0
        for at in places:
            whole = {name: np.zeros(len(lines[at].ids), dtype=np.float32) for name in columns}
            for begin, first, end in lines[at].rows:
                for name, column in columns.items():
                    whole[name][first:end] = column[row, first - begin : end - begin]
                row += 1
            found.append((at, whole))
    known = dict(learner.crew.gather(found))
    return [known[at] for at in range(len(lines))]


# ---- the steps


def learn(learner: Learner, rollouts: Sequence[Rollout], lines: Sequence[Line], number: int) -> dict[str, float]:
    """The policy gradient of round `number`; returns figures for the curves. lines: from `look_back`."""
    config = learner.config
    scores, ends, lines = scores_of(rollouts, config), ends_of(rollouts), keep(learner, refer(learner, lines))
    entropies = entropy_by_part(rollouts, [line.columns["entropy"] for line in lines])
    curves = {f"entropy/{name}": nats for name, nats in entropies.items()}
    if learner.head is None:
        lines = with_group_advantages(lines, scores, ends)
    else:
        lines = with_token_advantages(lines, scores.to_go, ends, config, config.lam)
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
    lines = with_token_advantages(lines, scores_of(rollouts, config).to_go, ends_of(rollouts), config, lam=1.0)

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
