"""Advantages: from the rewards of one group of rollouts, or of one rollout's tokens, to weights of the policy gradient.

The gradient step is the mean over rollouts of advantage times the gradient of the log-probability. Two objectives:

- `group_relative`: the mean reward. The others' mean is the baseline, so a rollout is never compared with itself.
  `group_relative_to_own` tells those apart that were given their beginning. Nothing is divided by a group's spread: one
  failure would make it, and between the others there would be no difference left; or noise would.
- `best_of_k`: the expected best of k, because the product keeps the best of k. For a set S of k rollouts
  max(S) - max(S without i) weighs rollout i: what is taken away does not depend on i, so it adds no bias. The mean over
  all sets is known in closed form (tests prove it against all sets, and that it is unbiased).

`gae` makes token-level advantages from a value head. With best-of-k as the objective, give it `best_of_k(rewards, k)`
in place of the rewards. Pure numpy. Not covered: several groups at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from sparserl.matrix import Array


def standardised(advantages: Array, noise: float) -> Array:
    """Divided by their standard deviation where that is above `noise`; otherwise as they are, so noise stays small."""
    spread = float(np.std(advantages, ddof=1)) if advantages.size > 1 else 0.0
    return advantages / spread if spread > noise else advantages


def group_relative(rewards: Array) -> Array:
    """Reward less the mean of the others; a rollout alone in its group has nothing to be compared with: 0."""
    return _apart(_checked(rewards))


def group_relative_to_own(rewards: Array, given: Array, right: Array) -> Array:
    """The same where some rollouts were given their beginning, a layout that they did not choose.

    Those that chose are compared with one another. Of the given ones a right one is not blamed for being slow, which
    may be its layout's fault, but is praised where it is ahead of the mean of those that chose; failures among them are
    blamed, and the others praised for it, so that what all of them write alike is pushed nowhere. given, right: bool,
    beside the rewards.
    """
    rewards = _checked(rewards)
    own = ~given if (~given).sum() >= 2 else np.ones_like(given)
    found: Array = rewards - rewards[own].mean()
    lacks = np.where(right, 0.0, found)[~own]
    found = found.clip(min=0.0)
    found[~own] += _apart(lacks) if len(lacks) > 1 else lacks
    found[own] = _apart(rewards[own])
    return found


def shared_part(rewards: Array, right: Array, most: float) -> Array:
    """The rewards with failures raised to `most` below the mean of the right ones; as they are where none is right.

    What is raised here is the failure's alone: blame for the token at which it left what right ones wrote (`fork`).
    """
    rewards = _checked(rewards)
    return np.where(right, rewards, rewards.clip(min=rewards[right].mean() - most)) if right.any() else rewards


def fork(ids: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """The place of the first token that none of the others has after the same beginning; 0 without others."""
    return max((_alike(ids, each) for each in others), default=0)


def best_of_k(rewards: Array, k: int) -> Array:
    """k times what a rollout adds to the best of a random set of k that it is in; never negative.

    Their mean times the gradient of the log-probability is an unbiased estimate of the gradient of the expected best of
    k. For k = 1 the best of the others is no number, and their mean stands in: `group_relative`.
    """
    rewards = _checked(rewards)
    count = len(rewards)
    if not 1 <= k <= count:
        raise ValueError(f"The k of best_of_k must be 1..{count}, the rollouts of the group. Got {k}.")
    if k == 1:
        return _apart(rewards)
    order = np.argsort(rewards, kind="stable")
    climbs = np.diff(rewards[order])
    # From the p-th lowest to the next the gain grows by the climb where the k - 1 others are all among the p lowest.
    chances = np.array([comb(p, k - 1) / comb(count - 1, k - 1) for p in range(1, count)])
    gains = np.empty(count)
    gains[order] = k * np.concatenate(([0.0], np.cumsum(climbs * chances)))
    return gains


def best_of_k_had(rewards: Array, had: Array, k: int) -> Array:
    """What `best_of_k` says of each rollout, had it earned `had` in place of its reward, and the others theirs."""
    rewards, had = _checked(rewards), _checked(had)
    found = [best_of_k(np.where(np.arange(len(rewards)) == at, had, rewards), k)[at] for at in range(len(rewards))]
    return np.array(found)


def gae(rewards: Array, values: Array, gamma: float, lam: float) -> tuple[Array, Array]:
    """Generalised advantage estimation over the tokens that one rollout wrote: (advantages, returns).

    rewards, values: (…, tokens); values[t] is the estimate before token t is written, and nothing follows the last.
    Rows of a batch may be filled up on the right with reward and value 0.
    """
    rewards, values = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if rewards.shape != values.shape:
        raise ValueError(f"gae needs as many values as rewards. Got shapes {values.shape} and {rewards.shape}.")
    after = np.concatenate((values[..., 1:], np.zeros((*values.shape[:-1], 1))), axis=-1)
    surprises = rewards + gamma * after - values
    advantages = np.zeros_like(surprises)
    carried = np.zeros(surprises.shape[:-1])
    for place in range(surprises.shape[-1] - 1, -1, -1):
        carried = surprises[..., place] + gamma * lam * carried
        advantages[..., place] = carried
    return advantages, advantages + values


def _alike(ids: Sequence[int], others: Sequence[int]) -> int:
    count = min(len(ids), len(others))
    unlike = np.flatnonzero(np.asarray(ids[:count]) != np.asarray(others[:count]))
    return int(unlike[0]) if len(unlike) else count


def _apart(rewards: Array) -> Array:
    """Each less the mean of the others; 0 for one alone."""
    count = len(rewards)
    return (rewards - rewards.mean()) * (count / (count - 1)) if count > 1 else np.zeros(count)


def _checked(rewards: Array) -> Array:
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 1 or not len(rewards) or not np.isfinite(rewards).all():
        raise ValueError(f"The rewards of a group must be a row of finite numbers. Got {rewards!r}.")
    return rewards
