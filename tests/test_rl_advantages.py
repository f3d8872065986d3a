"""Advantages against brute force over all sets, and against the derivative that they estimate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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

REWARDS = st.lists(st.sampled_from([-2.0, -1.5, 0.0, 0.02, 0.7, 1.3]), min_size=2, max_size=7)


@given(REWARDS)
def test_a_rollout_is_compared_with_the_mean_of_the_others(rewards: list[float]) -> None:
    found = group_relative(np.array(rewards))
    others = [np.mean(rewards[:i] + rewards[i + 1 :]) for i in range(len(rewards))]
    assert found == pytest.approx(np.array(rewards) - others, abs=1e-12)


def test_only_a_spread_above_the_noise_is_divided_by() -> None:
    rewards = np.array([0.0, 0.1, 0.2, 0.3])
    spread = float(np.std(rewards, ddof=1))
    assert standardised(rewards, spread + 1e-9) is rewards
    assert np.std(standardised(rewards, 0.0), ddof=1) == pytest.approx(1.0)


def test_who_was_given_a_layout_is_compared_with_those_who_chose_and_not_blamed_for_being_slow() -> None:
    rewards = np.array([0.2, 0.4, 0.1, 0.9, -1.5])
    given, right = np.array([False, False, True, True, True]), np.array([True, True, True, True, False])
    found = group_relative_to_own(rewards, given, right)
    assert found == pytest.approx([-0.2, 0.2, 0.9, 1.5, -1.8])  # the failure's 1.8 is praise for the two others
    well = group_relative_to_own(rewards[:4], given[:4], right[:4])
    assert well == pytest.approx([-0.2, 0.2, 0.0, 0.6])
    own, everyone = np.zeros(5, dtype=bool), np.ones(5, dtype=bool)
    for nobody in (own, ~own):  # nobody to tell apart
        assert (group_relative_to_own(rewards, nobody, everyone) == group_relative(rewards)).all()
    alone = group_relative_to_own(np.array([0.2, 0.4, -1.5]), np.array([False, False, True]), np.array([1, 1, 0]) > 0)
    assert alone == pytest.approx([-0.2, 0.2, -1.8])


def test_a_failure_leaves_the_difference_between_the_others_as_it_is() -> None:
    rewards, right = np.array([0.30, 0.34, 0.38, 0.42, -1.5]), np.array([True, True, True, True, False])
    own = np.zeros(5, dtype=bool)
    found = group_relative_to_own(shared_part(rewards, right, 0.2), own, right)
    assert np.ptp(found[:4]) == pytest.approx(0.12 * 5 / 4) and found.sum() == pytest.approx(0.0, abs=1e-12)
    assert found[4] == pytest.approx(-0.2)


@given(REWARDS, st.floats(0.0, 1.0))
def test_blame_that_is_shared_has_an_end_and_order_is_kept(rewards: list[float], most: float) -> None:
    whole = np.array(rewards)
    right = whole > -1.5
    found = shared_part(whole, right, most)
    assert (found[right] == whole[right]).all() and (found >= whole).all()
    if right.any():
        assert (found[~right] >= whole[right].mean() - most - 1e-12).all()
    else:
        assert (found == whole).all()


def test_a_fork_is_the_first_token_that_no_other_has_after_the_same_beginning() -> None:
    others = [(1, 2, 3, 4), (1, 2, 9, 9, 9), (7, 7)]
    assert fork((1, 2, 9, 5), others) == 3 and fork((1, 8), others) == 1 and fork((5,), others) == 0
    assert fork((1, 2, 3), others) == 3 and fork((1, 2), []) == 0


def test_equal_rewards_and_a_rollout_alone_teach_nothing() -> None:
    assert not group_relative(np.full(5, 0.7)).any()
    assert not group_relative(np.array([3.0])).any()
    assert not best_of_k(np.full(5, 0.7), 3).any()


@given(REWARDS, st.data())
def test_best_of_k_is_the_mean_gain_over_all_sets_of_k(rewards: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(2, len(rewards)))
    expected = []
    for i, mine in enumerate(rewards):
        sets = list(itertools.combinations(rewards[:i] + rewards[i + 1 :], k - 1))
        expected.append(k * sum(max(0.0, mine - max(others)) for others in sets) / len(sets))
    assert best_of_k(np.array(rewards), k) == pytest.approx(np.array(expected), abs=1e-12)


def test_best_of_one_is_the_mean_reward() -> None:
    rewards = np.array([1.0, -2.0, 0.5])
    assert best_of_k(rewards, 1) == pytest.approx(group_relative(rewards))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_best_of_k_is_an_unbiased_gradient_of_the_expected_best(k: int) -> None:
    """Over every outcome of four draws from a softmax of three, against the derivative of E[best of k] itself."""
    rewards, count = np.array([-1.5, 0.2, 0.9]), 4
    theta = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64, requires_grad=True)
    chances = theta.softmax(0)
    expected = torch.zeros((), dtype=torch.float64)
    for draws in itertools.product(range(3), repeat=k):
        expected = expected + chances[list(draws)].prod() * float(max(rewards[list(draws)]))
    (truth,) = torch.autograd.grad(expected, theta)
    p = chances.detach().numpy()
    estimate = np.zeros(3)
    for draws in itertools.product(range(3), repeat=count):
        weights = best_of_k(rewards[list(draws)], k)
        scores = np.eye(3)[list(draws)] - p  # gradient of log p(draw) by theta
        estimate += p[list(draws)].prod() * (weights[:, None] * scores).mean(axis=0)
    assert estimate == pytest.approx(truth.numpy(), abs=1e-12)


@given(REWARDS, st.data())
def test_what_a_rollout_would_have_added_to_the_best_of_k_had_it_earned_less(
    rewards: list[float], data: st.DataObject
) -> None:
    whole, k = np.array(rewards), data.draw(st.integers(1, len(rewards)))
    less = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=len(rewards), max_size=len(rewards))))
    found = best_of_k_had(whole, whole - less, k)
    for at in range(len(rewards)):
        other = whole.copy()
        other[at] -= less[at]
        assert found[at] == best_of_k(other, k)[at]
    assert (best_of_k_had(whole, whole, k) == best_of_k(whole, k)).all() and (found <= best_of_k(whole, k)).all()


@pytest.mark.parametrize("k", [0, 4])
def test_more_than_the_group_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=r"must be 1\.\.3"):
        best_of_k(np.zeros(3), k)


@pytest.mark.parametrize("rewards", [[], [0.0, float("nan")], [[1.0, 2.0]]])
def test_rewards_that_are_no_row_of_numbers_are_refused(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match="row of finite numbers"):
        group_relative(np.array(rewards))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.5, 1.0)])
def test_gae_is_the_discounted_sum_of_surprises(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=9), rng.normal(size=9)
    advantages, returns = gae(rewards, values, gamma, lam)
    for t in range(9):
        expected = 0.0
        for later in range(t, 9):
            after = values[later + 1] if later + 1 < 9 else 0.0
            expected += (gamma * lam) ** (later - t) * (rewards[later] + gamma * after - values[later])
        assert advantages[t] == pytest.approx(expected)
        assert returns[t] == pytest.approx(expected + values[t])


def test_gae_without_discount_is_the_reward_to_come_less_the_value() -> None:
    rewards, values = np.array([0.0, 0.0, 2.0, 0.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    advantages, returns = gae(rewards, values, 1.0, 1.0)
    assert returns == pytest.approx([3.0, 3.0, 3.0, 1.0, 1.0])
    assert advantages == pytest.approx(returns - values)


def test_gae_of_a_filled_up_batch_is_that_of_its_rows() -> None:
    rewards, values = np.random.default_rng(0).normal(size=(2, 2, 6))
    rewards[1, 4:] = values[1, 4:] = 0.0
    advantages, _ = gae(rewards, values, 0.95, 0.9)
    assert advantages[0] == pytest.approx(gae(rewards[0], values[0], 0.95, 0.9)[0])
    assert advantages[1, :4] == pytest.approx(gae(rewards[1, :4], values[1, :4], 0.95, 0.9)[0])
    assert not advantages[1, 4:].any()
    with pytest.raises(ValueError, match="as many values"):
        gae(rewards, values[:, :5], 1.0, 1.0)
