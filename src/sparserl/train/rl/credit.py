"""Who earned what: the rewards of a round's episodes become scores of their turns, and those advantages of tokens.

An episode earns the reward of its best turn. So a turn adds what it is better than the best before it, the first one
its own reward, and what they add is together what the episode earns. A token has a part in what is added from its turn
on:

    first turn    the whole episode, as all that follows goes back to it: just as where no other turn is played
    later turns   what is added from there on, less what the others of the group add that came to this turn as it did,
                  right so far or not: a failure has two nats to gain, a right program some hundredths, so beside each
                  other all that is made of right ones would be blamed. One alone is compared with an episode that had
                  ended before, which adds nothing.
    best of k     what the episode adds to the best of k, less what it would have added, had it ended before this turn;
                  as in the first turn it is never negative: what there is to beat has been taken away

Nothing that is taken away depends on what is written in this turn or later, so it adds no bias: a test goes through all
outcomes of a game. GRPO puts most of the blame for a failure on one token, that at its fork from the right ones of its
group: in every turn, as to one that has failed so far a later turn is what the first one is to all. PPO's rewards come
with the last token of each turn, and are what the turn adds. Not covered: rewards inside a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from sparserl.matrix import Array
from sparserl.train.rl.advantages import (
    best_of_k,
    best_of_k_had,
    fork,
    gae,
    group_relative,
    group_relative_to_own,
    shared_part,
    standardised,
)
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.episodes import episode_reward
from sparserl.train.rl.learner import Line
from sparserl.train.rl.nouns import EXPLORED, Rollout

# ---- scores of turns


@dataclass(frozen=True, eq=False)
class Scores:
    """What there is to say of every rollout of a round, turn by turn: each (rollouts, turns), 0 behind the last."""

    to_go: Array
    """for what is added from the turn on: its tokens' advantage (GRPO), or what PPO's value head has to foresee"""
    blame: Array
    """what is added to that at `forks`: never positive, and 0 for all that are right"""
    forks: Array
    """the place of the turn's first token that no right rollout has there after the same beginning"""

    @property
    def whole(self) -> Array:
        """(rollouts): of the whole episode."""
        return self.to_go[:, 0]


def scores_of(rollouts: Sequence[Rollout], config: RLConfig) -> Scores:
    """Who is right is read from the reward alone: the control with shuffled rewards must not know it either."""
    shape = (len(rollouts), max((len(each.turns) for each in rollouts), default=1))
    found = Scores(np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64))
    for _, group in groupby(range(len(rollouts)), key=lambda at: rollouts[at].group):
        places = np.array(list(group))
        members = [rollouts[at] for at in places]
        right = np.array([episode_reward(each) for each in members]) > config.weights.wrong
        for turn in range(max(len(each.turns) for each in members)):
            mean, best = _added(members, turn, min(config.k, len(members)))
            if config.algorithm == "ppo":
                share = _mean_share(config)
                found.to_go[places, turn] = share * mean + (1 - share) * best
                continue
            for alike in _alike(members, turn, config.weights.wrong):
                own = places[alike]
                given = np.array([rollouts[at].origin == EXPLORED for at in own]) if turn == 0 else None
                scored = _compared(mean[alike], best[alike], right[alike], given, config)
                found.to_go[own, turn], found.blame[own, turn] = scored
                others = [rollouts[at] for at in own[right[alike]]]
                for at in own[scored[1] < 0]:
                    found.forks[at, turn] = _fork(rollouts[at], others, turn)
    return found


def _mean_share(config: RLConfig) -> float:
    return config.mean_share if config.objective == "best" else 1.0


def _added(members: Sequence[Rollout], turn: int, k: int) -> tuple[Array, Array]:
    """What each of a group adds from this turn on: to its reward, and to the best of k; 0 where there is no such turn.

    Before its first turn an episode has nothing that could be taken away: all of it is added.
    """
    rewards = np.array([episode_reward(each) for each in members])
    best = best_of_k(rewards, k)
    if turn == 0:
        return rewards, best
    before = np.array([_before(each, turn) for each in members])
    return rewards - before, best - best_of_k_had(rewards, before, k)


def _before(rollout: Rollout, turn: int) -> float:
    """The best reward until this turn."""
    return max(each.reward for each in rollout.turns[:turn])


def _alike(members: Sequence[Rollout], turn: int, wrong: float) -> Iterator[list[int]]:
    """Places of those that are compared: all, or in a later turn those that were right before, and those that not."""
    there = [at for at, each in enumerate(members) if len(each.turns) > turn]
    if turn == 0:
        yield there
        return
    for right in (True, False):
        if part := [at for at in there if (_before(members[at], turn) > wrong) == right]:
            yield part


def _compared(mean: Array, best: Array, right: Array, given: Array | None, config: RLConfig) -> tuple[Array, Array]:
    """(advantage of all tokens of the turn, blame at its fork). given: in the first turn, who was given a layout."""
    share = _mean_share(config)
    shared = shared_part(mean, right, config.shared_blame * config.unit)
    if given is not None:
        apart = group_relative_to_own(shared, given, right)
    else:
        apart = group_relative(shared) if len(shared) > 1 else shared
    return (share * apart + (1 - share) * best) / config.unit, share * (mean - shared) / config.unit


def _fork(rollout: Rollout, others: Sequence[Rollout], turn: int) -> int:
    """Where its turn leaves what the others wrote in theirs; the turn's end where one of them wrote the same."""
    begin = _written(rollout, turn)[0]
    own, *theirs = (each.ids[slice(*_written(each, turn))] for each in (rollout, *others))
    return begin + fork(own, theirs)


def _written(rollout: Rollout, turn: int) -> tuple[int, int]:
    """Where the tokens of a turn's program lie: those of the first from '<program>' on, with what was given of it."""
    return rollout.turns[turn].first if turn else 0, rollout.turns[turn].last


# ---- advantages of tokens


def ends_of(rollouts: Sequence[Rollout]) -> list[list[int]]:
    """Of every rollout one past the last token of each of its turns."""
    return [[turn.last for turn in each.turns] for each in rollouts]


def with_group_advantages(lines: Sequence[Line], scores: Scores, ends: Sequence[Sequence[int]]) -> list[Line]:
    """GRPO: the tokens of a turn have its advantage, that at its fork blame too, where that lies within the turn."""
    found = []
    for at, (line, turns) in enumerate(zip(lines, ends, strict=True)):
        advantages, begin = np.zeros(len(line.ids)), 0
        for turn, end in enumerate(turns):
            advantages[begin:end] += scores.to_go[at, turn]
            if begin <= scores.forks[at, turn] < end:
                advantages[scores.forks[at, turn]] += scores.blame[at, turn]
            begin = end
        found.append(replace(line, columns={**line.columns, "advantages": advantages}))
    return found


def with_token_advantages(
    lines: Sequence[Line], to_go: Array, ends: Sequence[Sequence[int]], config: RLConfig, lam: float
) -> list[Line]:
    """PPO: by generalised advantage estimation over the written tokens, then standardised over the round."""
    width = max(int(line.written.sum()) for line in lines)
    rewards, values = np.zeros((len(lines), width)), np.zeros((len(lines), width))
    there = np.arange(width) < np.array([line.written.sum() for line in lines])[:, None]
    added = to_go - np.pad(to_go[:, 1:], ((0, 0), (0, 1)))  # (lines, turns)
    for row, (line, turns) in enumerate(zip(lines, ends, strict=True)):
        values[row, there[row]] = line.columns["values"][line.written]
        for turn, end in enumerate(turns):
            rewards[row, int(line.written[:end].sum()) - 1] = added[row, turn]
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
