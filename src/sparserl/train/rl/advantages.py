"""Advantages: from the rewards of one group of rollouts, or of one rollout's tokens, to weights of the policy gradient.

The gradient step is the mean over rollouts of advantage times the gradient of the log-probability. Two objectives:

- `group_relative`: the mean reward. The others' mean is the baseline, so a rollout is never compared with itself.
  `group_relative_to_own` tells those apart that were given their beginning.
- `best_of_k`: the expected best of k, because the product keeps the best of k. For a set S of k rollouts
  max(S) - max(S without i) weighs rollout i: what is taken away does not depend on i, so it adds no bias. The mean over
  all sets is known in closed form (tests prove it against all sets, and that it is unbiased).

`gae` makes token-level advantages from a value head. With best-of-k as the objective, give it `best_of_k(rewards, k)`
in place of the rewards. Pure numpy. Not covered: several groups at once.
"""

from __future__ import annotations

from math import comb

import numpy as np

from sparserl.matrix import Array


def standardised(advantages: Array, noise: float) -> Array:
    """Divided by their standard deviation where that is above `noise`; otherwise as they are, so noise stays small."""
    spread = _spread(advantages)
    return advantages / spread if spread > noise else advantages


def group_relative(rewards: Array, noise: float) -> Array:
    """Reward less the mean of the others, divided by the standard deviation of the rewards where that is above `noise`.

    A rollout alone in its group has nothing to be compared with: 0.
    """
    rewards = _checked(rewards)
    spread, apart = _spread(rewards), _apart(rewards)
    return apart / spread if spread > noise else apart


def group_relative_to_own(rewards: Array, given: Array, right: Array, noise: float) -> Array:
    """The same where some rollouts were given their beginning, a layout that they did not choose, and some failed.

    Those that chose are compared with one another, those that were given with the mean of these; and of the latter one
    that is right is not blamed for being slow, which may be its layout's fault. Where most that chose are right, these
    are the measure, of the mean and of the spread: a failure stands so far below that between the others, divided by a
    spread that it made, there would be no difference left. given, right: bool, beside the rewards.
    """
    rewards = _checked(rewards)
    own = ~given if (~given).sum() >= 2 else np.ones_like(given)
    most_right = 2 * (own & right).sum() > max(own.sum(), 2)
    measure = own & right if most_right else own
    apart: Array = rewards - rewards[measure].mean()
    apart[~own & right] = apart[~own & right].clip(min=0.0)
    spread = _spread(apart[right] if most_right else apart)
    apart[measure] = _apart(rewards[measure])
    return apart / spread if spread > noise else apart


def best_of_k(rewards: Array, k: int) -> Array:
    """k times what a rollout adds to the best of a random set of k that it is in; never negative.

    Their mean times the gradient of the log-probability is an unbiased estimate of the gradient of the expected best of
    k. For k = 1 the best of the others is no number, and their mean stands in: `group_relative` undivided.
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


def _spread(values: Array) -> float:
    return float(np.std(values, ddof=1)) if values.size > 1 else 0.0


def _apart(rewards: Array) -> Array:
    """Each less the mean of the others; 0 for one alone."""
    count = len(rewards)
    return (rewards - rewards.mean()) * (count / (count - 1)) if count > 1 else np.zeros(count)


def _checked(rewards: Array) -> Array:
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 1 or not len(rewards) or not np.isfinite(rewards).all():
        raise ValueError(f"The rewards of a group must be a row of finite numbers. Got {rewards!r}.")
    return rewards
