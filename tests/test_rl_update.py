"""From rewards to advantages of tokens: who is praised and blamed, and for which part of a program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparserl.records import Problem, Verdict
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.nouns import EXPLORED, OWN, Judged, Prompt, Rollout, Turn
from sparserl.train.rl.update import ends_of, lines_of, scores_of, with_group_advantages

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
