"""From rewards to advantages of tokens: who is praised and blamed, for which turn and which part of a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch

from sparserl.records import Problem, Verdict
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.credit import ends_of, scores_of, with_group_advantages, with_token_advantages
from sparserl.train.rl.nouns import EXPLORED, OWN, Judged, Prompt, Rollout, Turn
from sparserl.train.rl.update import lines_of

PROMPT = Prompt("some", {}, Problem())
CONFIG = RLConfig(objective="mean")


def rollout(ids: tuple[int, ...], reward: float, origin: str = OWN, group: int = 0) -> Rollout:
    judged = Judged(Verdict.CORRECT if reward > -1 else Verdict.WRONG)
    turn = Turn("text", judged, reward, 1, len(ids))
    return Rollout(PROMPT, group, ids, (0.0,) * len(ids), (False, *(True,) * (len(ids) - 1)), (turn,), origin)


def advantages(rollouts: list[Rollout], config: RLConfig) -> list[np.ndarray]:
    lines = with_group_advantages(lines_of(rollouts), scores_of(rollouts, config), ends_of(rollouts))
    return [line.columns["advantages"] for line in lines]


def test_most_of_the_blame_falls_on_the_first_token_that_no_right_program_has() -> None:
    played = [rollout((0, 1, 2, 3), 0.5), rollout((0, 1, 7, 3), 0.3), rollout((0, 1, 7, 9, 9), -1.6)]
    fast, slow, wrong = advantages(played, CONFIG)
    assert (wrong[[0, 1, 2, 4]] == wrong[0]).all()
    assert wrong[3] - wrong[0] == pytest.approx((-1.6 - (0.4 - CONFIG.unit)) / CONFIG.unit)
    assert fast[0] + slow[0] + wrong[0] == pytest.approx(0.0)  # what all of them began with is pushed nowhere
    assert fast[0] - slow[0] == pytest.approx(0.2 * 1.5 / CONFIG.unit) and (fast == fast[0]).all()
    same = advantages([*played, rollout((0, 1, 2, 3), -1.6)], CONFIG)[-1]
    assert (same == same[0]).all()  # a right program wrote the same: there is nothing to tell them apart by


def test_a_failure_costs_what_it_costs_whatever_the_group() -> None:
    """Not a spread of its group more or less: ten times as large a unit, a tenth of all advantages."""
    tight = [rollout((0, 1, at), 0.5 + 0.001 * at) for at in range(6)]
    found = advantages([*tight, rollout((0, 5), -1.6)], CONFIG)
    assert found[-1][1] < -9 and max(abs(each).max() for each in found[:-1]) < 0.3
    wide = advantages([*tight, rollout((0, 5), -1.6)], replace(CONFIG, unit=10 * CONFIG.unit, shared_blame=0.1))
    assert [each * 10 for each in wide] == [pytest.approx(each) for each in found]


def test_where_none_is_right_the_levels_count_from_the_first_token_on() -> None:
    found = advantages([rollout((0, 1), -1.6), rollout((0, 2), -2.4)], CONFIG)
    assert found[0] == pytest.approx([0.8 / CONFIG.unit] * 2) and found[1] == pytest.approx(-found[0])


def test_the_best_of_k_blames_nobody_and_a_share_of_the_mean_does() -> None:
    played = [
        rollout((0, 1, 2), 0.5),
        rollout((0, 1, 3), 0.3),
        rollout((0, 4, 4), -1.6),
        rollout((0, 5), 0.1, EXPLORED),
    ]
    best = advantages(played, RLConfig(k=2, mean_share=0.0))
    assert min(each.min() for each in best) >= 0.0 and best[0][0] > best[1][0] > best[2][1] == 0.0
    mean, half = advantages(played, CONFIG), advantages(played, RLConfig(k=2, mean_share=0.5))
    assert half == [pytest.approx((b + m) / 2) for b, m in zip(best, mean, strict=True)]
    assert mean[3][0] == 0.0  # given a slow layout


def test_groups_know_nothing_of_each_other() -> None:
    one = [rollout((0, 1), 0.5), rollout((0, 2), -1.6)]
    two = [rollout((0, 3), 1.5, group=1), rollout((0, 2), 1.4, group=1)]
    assert advantages([*one, *two], CONFIG)[:2] == [pytest.approx(each) for each in advantages(one, CONFIG)]


# ── Episodes of several turns ─────────────────────────────────────────────────


def episode(*turns: tuple[Sequence[int], float], group: int = 0) -> Rollout:
    """(what was written, reward) turn by turn, a given token before each."""
    ids, written, told = list[int](), list[bool](), list[Turn]()
    for tokens, reward in turns:
        ids.append(0)
        told.append(Turn("text", Judged(Verdict.CORRECT), reward, len(ids), len(ids) + len(tokens)))
        ids += tokens
        written += [False, *(True,) * len(tokens)]
    return Rollout(PROMPT, group, ids, [0.0] * len(ids), written, told)


def token_advantages(rollouts: Sequence[Rollout], config: RLConfig) -> list[dict[str, np.ndarray]]:
    """By PPO, whose value head says 0, and which divides by nothing."""
    config = replace(config, algorithm="ppo", noise=1e9)
    lines = [replace(each, columns={"values": np.zeros(len(each.ids))}) for each in lines_of(rollouts)]
    found = with_token_advantages(lines, scores_of(rollouts, config).to_go, ends_of(rollouts), config, 1.0)
    return [dict(each.columns) for each in found]


RIGHT, FAILS, REPAIRED, STAYS, BETTER, WORSE = range(1, 7)
ENDS = {
    (RIGHT, BETTER): (0.3, 0.5),
    (RIGHT, WORSE): (0.3, -1.5),
    (FAILS, REPAIRED): (-1.9, 0.1),
    (FAILS, STAYS): (-1.9, -1.9),
}
"""A game of two turns: what was written, and what it earned. Four of five first programs are right, every other failure
is repaired, less well than a right one is from the start, and three of ten rewritings of a right one are faster."""
LOGITS = {"first": log(4.0), "repair": 0.0, "improve": log(3 / 7)}


def played(end: tuple[int, int], group: int = 0) -> Rollout:
    return episode(*(([token], reward) for token, reward in zip(end, ENDS[end], strict=True)), group=group)


def chances(theta: torch.Tensor) -> dict[tuple[int, int], torch.Tensor]:
    """How probable each end is; theta: the logits of `LOGITS`."""
    first, repair, improve = theta.sigmoid()
    return {
        (RIGHT, BETTER): first * improve,
        (RIGHT, WORSE): first * (1 - improve),
        (FAILS, REPAIRED): (1 - first) * repair,
        (FAILS, STAYS): (1 - first) * (1 - repair),
    }


def slopes(end: tuple[int, int], advantages: np.ndarray) -> np.ndarray:
    """Advantage times the gradient of the log-probability, summed over the two tokens, by logit."""
    p = 1 / (1 + np.exp(-np.array([*LOGITS.values()])))
    first, then = advantages[1], advantages[3]
    which = 1 if end[0] == FAILS else 2
    found = np.zeros(3)
    found[0] = first * ((end[0] == RIGHT) - p[0])
    found[which] = then * ((end[1] in (REPAIRED, BETTER)) - p[which])
    return found


def truth(k: int) -> np.ndarray:
    """The gradient of the expected best of k episodes; k = 1: of the mean."""
    theta = torch.tensor([*LOGITS.values()], dtype=torch.float64, requires_grad=True)
    likely = chances(theta)
    expected = torch.zeros((), dtype=torch.float64)
    for ends in itertools.product(ENDS, repeat=k):
        chance = torch.stack([likely[end] for end in ends]).prod()
        expected = expected + chance * max(max(ENDS[end]) for end in ends)
    (found,) = torch.autograd.grad(expected, theta)
    return found.numpy()


def expected(estimate: Callable[[Sequence[Rollout]], list[np.ndarray]], count: int) -> np.ndarray:
    """The mean gradient of groups of so many, over all of them."""
    likely = {end: float(each) for end, each in chances(torch.tensor([*LOGITS.values()], dtype=torch.float64)).items()}
    found = np.zeros(3)
    for ends in itertools.product(ENDS, repeat=count):
        given = estimate([played(end) for end in ends])
        weight = np.prod([likely[end] for end in ends]) / count
        found += weight * np.sum([slopes(*each) for each in zip(ends, given, strict=True)], axis=0)
    return found


@pytest.mark.parametrize("share", [1.0, 0.0, 0.5])
def test_over_all_outcomes_of_a_game_every_turn_has_the_gradient_of_what_it_is_for(share: float) -> None:
    """Before, turns after the first had the advantage of the whole episode, or none: repairs were pushed down."""
    config = RLConfig(k=2, mean_share=share, unit=1.0, shared_blame=1e3)
    found = expected(lambda rollouts: advantages(list(rollouts), config), 3)
    assert found == pytest.approx(share * truth(1) + (1 - share) * truth(2), abs=1e-12)
    assert (found > 0).all()
    mean = expected(lambda rollouts: advantages(list(rollouts), replace(config, objective="mean")), 3)
    assert mean == pytest.approx(truth(1)) and mean[1] == pytest.approx(0.1)


@pytest.mark.parametrize("share", [1.0, 0.0, 0.5])
def test_ppo_pays_every_turn_what_it_adds(share: float) -> None:
    """As many of each end as there are in the mean of a hundred: what PPO's mean takes away then pushes nothing."""
    likely = chances(torch.tensor([*LOGITS.values()]))
    ends = [end for end in ENDS for _ in range(round(100 * float(likely[end])))]
    rollouts = [played(end) for end in ends]
    found = token_advantages(rollouts, RLConfig(k=2, mean_share=share))
    assert len(ends) == 100
    assert sum(each["returns"][1] for each in found) == pytest.approx(
        scores_of(rollouts, RLConfig(algorithm="ppo", k=2, mean_share=share)).whole.sum()
    )
    given = [each["advantages"] for each in found]
    mean = np.mean([slopes(*each) for each in zip(ends, given, strict=True)], axis=0)
    assert mean == pytest.approx(share * truth(1) + (1 - share) * truth(2), rel=0.02 if share < 1 else 1e-6)


@pytest.mark.parametrize("objective", ["mean", "best"])
def test_repairing_is_worth_it_in_groups_as_they_are_played(objective: str) -> None:
    """With the unit and the shared blame of a run: groups of twelve, drawn from the game."""
    rng = np.random.default_rng(0)
    likely = chances(torch.tensor([*LOGITS.values()], dtype=torch.float64))
    weights = np.array([float(each) for each in likely.values()])
    ends = [[*ENDS][at] for at in rng.choice(len(ENDS), size=12 * 400, p=weights)]
    rollouts = [played(end, group=at // 12) for at, end in enumerate(ends)]
    config = RLConfig(objective=objective, k=8)  # type: ignore[arg-type]
    found = [slopes(*each) for each in zip(ends, advantages(rollouts, config), strict=True)]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    assert (mean > 4 * error).all(), (mean, error)


def test_every_turn_is_compared_with_those_that_came_to_it_as_it_did() -> None:
    config = RLConfig(objective="mean", unit=1.0, shared_blame=1e3)
    right = [episode(([1], 0.3), ([2], 0.5)), episode(([1], 0.3), ([3], 0.2)), episode(([1], 0.3))]
    failed = episode(([4], -1.9), ([5], -1.9), ([6], 0.1))
    first, second, alone, repaired = advantages([*right, failed], config)
    assert first == pytest.approx([0.5 - 0.7 / 3] * 2 + [0.2] * 2), "the whole episode's, then what it added"
    assert second == pytest.approx([0.3 - 0.9 / 3] * 2 + [-0.2] * 2), "slower is as good as nothing: 0, the other's 0.2"
    assert alone == pytest.approx([0.3 - 0.9 / 3] * 2)
    assert repaired == pytest.approx([0.1 - 1.1 / 3] * 2 + [2.0] * 4), "the second turn led to the third"


def test_what_ppo_pays_adds_up_to_the_best_turn() -> None:
    rollouts = [episode(([1, 2], -1.9), ([3, 4], -1.0)), episode(([1, 2], -1.9), ([5], -1.9))]
    first, second = (each["returns"] for each in token_advantages(rollouts, RLConfig(objective="mean")))
    assert first == pytest.approx([0.0, -1.0, -1.0, 0.0, 0.9, 0.9])
    assert second == pytest.approx([0.0, -1.9, -1.9, 0.0, 0.0])


def test_blame_stays_within_its_turn() -> None:
    """Two of three failures are repaired; the third begins like one of them, and is repaired like none."""
    config = RLConfig(objective="mean")
    rollouts = [
        episode(([1, 1], 0.3)),
        episode(([4, 5], -1.9), ([7, 8, 9], 0.1)),
        episode(([4, 6], -1.9), ([7, 7, 9], 0.1)),
        episode(([4, 5], -1.9), ([7, 8, 8], -1.9)),
    ]
    *_, found = advantages(rollouts, config)
    assert (found[:3] == found[0]).all(), "it wrote what one wrote that came out right: nothing tells them apart"
    assert found[0] == pytest.approx(found[1]) and found[0] < 0
    assert (found[4:6] == found[4]).all() and found[4] == pytest.approx(-1.0), "the shared blame: one unit"
    assert found[6] - found[4] == pytest.approx((0.0 - (2.0 - config.unit)) / config.unit), "where it left the others"
    others = advantages(rollouts, config)[:-1]
    assert min(each[4:].min() for each in others[1:]) > 0, "what repaired is praised"


def test_a_fork_lies_in_the_turn_that_left_the_others() -> None:
    """It was looked for in whole episodes, found in a feedback line or behind the best turn, and dropped there."""
    rollouts = [
        episode(([4, 5, 5], 0.3), ([9], 0.2)),
        episode(([4, 5, 6], -1.9), ([8], -1.7)),
        episode(([4, 5, 7], -1.9), ([7], -1.9)),
    ]
    scores = scores_of(rollouts, RLConfig(objective="mean"))
    assert scores.forks[:, 0].tolist() == [0, 3, 3] and (scores.blame[1:, 0] < -5).all()
    assert not scores.blame[:, 1].any(), "of those that had failed none came out right: levels count for all tokens"
    assert scores.to_go[1:, 1] == pytest.approx([0.2 / 0.2, -0.2 / 0.2])
