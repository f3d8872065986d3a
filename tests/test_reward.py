"""The reward: the order of its levels, monotone speed, ties, clips, and weights that are refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparserl.judge.reward import DEFAULT, FORMS, Form, RewardWeights, mean_speedup, reward
from sparserl.records import Verdict

FAILURES = [verdict for verdict in Verdict if verdict < Verdict.IMPLAUSIBLE]
SPEEDUPS = st.floats(min_value=1e-9, max_value=1e9)


def test_every_level_earns_more_than_the_one_below_and_a_right_program_most() -> None:
    earned = [reward(verdict, None) for verdict in FAILURES]
    assert earned == sorted(set(earned))
    assert len(earned) == 6
    assert reward(Verdict.CORRECT, 1.0) > earned[-1]


@given(SPEEDUPS)
def test_a_right_program_stays_above_a_wrong_one_however_slow(speedup: float) -> None:
    assert reward(Verdict.CORRECT, speedup) > reward(Verdict.WRONG, None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("claimed", [None, 1e6])
def test_an_implausible_program_earns_no_more_than_any_other(form: Form, claimed: float | None) -> None:
    weights = RewardWeights(form=form)
    cheated = reward(Verdict.IMPLAUSIBLE, claimed, weights)
    assert all(cheated <= reward(verdict, 1e-9, weights) for verdict in Verdict)


@pytest.mark.parametrize("form", FORMS)
@given(one=SPEEDUPS, other=SPEEDUPS, tie=st.sampled_from([0.0, 0.003, 0.02, 0.3]))
def test_a_faster_program_never_earns_less(form: Form, one: float, other: float, tie: float) -> None:
    weights = RewardWeights(form=form, tie=tie)
    slow, fast = sorted((one, other))
    assert reward(Verdict.CORRECT, slow, weights) <= reward(Verdict.CORRECT, fast, weights)


@given(st.floats(min_value=0.3, max_value=30.0))
def test_two_steps_faster_earns_more(speedup: float) -> None:
    assert reward(Verdict.CORRECT, speedup * math.exp(2 * DEFAULT.tie)) > reward(Verdict.CORRECT, speedup)


def test_a_difference_inside_the_noise_is_none() -> None:
    middle = math.exp(10 * DEFAULT.tie)
    inside = (middle * math.exp(0.49 * DEFAULT.tie), middle * math.exp(-0.49 * DEFAULT.tie))
    assert {reward(Verdict.CORRECT, each) for each in inside} == {reward(Verdict.CORRECT, middle)}
    assert len({reward(Verdict.CORRECT, each, RewardWeights(tie=0.0)) for each in inside}) == 2


@given(SPEEDUPS)
def test_a_step_is_never_further_away_than_half_its_width(speedup: float) -> None:
    exact = reward(Verdict.CORRECT, speedup, RewardWeights(tie=0.0))
    assert abs(reward(Verdict.CORRECT, speedup) - exact) <= DEFAULT.tie / 2 + 1e-9


def test_speed_counts_by_its_logarithm_between_the_clips() -> None:
    weights = RewardWeights(slope=0.5, tie=0.0, slowest=0.5, fastest=8.0)
    assert reward(Verdict.CORRECT, 1.0, weights) == weights.correct
    assert reward(Verdict.CORRECT, 4.0, weights) == pytest.approx(weights.correct + math.log(2))
    assert reward(Verdict.CORRECT, 100.0, weights) == reward(Verdict.CORRECT, 8.0, weights)
    assert reward(Verdict.CORRECT, 0.01, weights) == reward(Verdict.CORRECT, 0.5, weights)
    assert reward(Verdict.CORRECT, 0.4, weights) < reward(Verdict.CORRECT, 0.6, weights)


def test_speed_only_knows_one_failure_and_correctness_only_knows_one_success() -> None:
    speed, levels = RewardWeights(form="speed"), RewardWeights(form="correctness")
    assert {reward(verdict, None, speed) for verdict in Verdict if verdict < Verdict.CORRECT} == {speed.wrong}
    assert reward(Verdict.CORRECT, 3.0, speed) == reward(Verdict.CORRECT, 3.0)
    assert {reward(Verdict.CORRECT, each, levels) for each in (0.3, 1.0, 3.0, None)} == {levels.correct}
    assert [reward(verdict, None, levels) for verdict in FAILURES] == [reward(verdict, None) for verdict in FAILURES]


@pytest.mark.parametrize("speedup", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_right_program_without_a_sound_speed_is_refused(speedup: float | None) -> None:
    with pytest.raises(ValueError, match="finite number above 0"):
        reward(Verdict.CORRECT, speedup)


@pytest.mark.parametrize(
    "pair",
    list(itertools.pairwise(("unreadable", "screened", "inadmissible", "uncompilable", "failed", "wrong"))),
    ids="-".join,
)
def test_levels_out_of_order_are_refused_by_name(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=f"'{pair[0]}'.*not below '{pair[1]}'"):
        replace(DEFAULT, **{pair[0]: getattr(DEFAULT, pair[1])})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wrong": -1.3}, "'wrong'.*not below 'correct at the slowest"),
        ({"slope": 2.0}, "'wrong'.*not below 'correct at the slowest"),
        ({"slowest": 0.1}, "'wrong'.*not below 'correct at the slowest"),
        ({"slope": 0.0}, "'slope'"),
        ({"tie": -0.1}, "'tie'"),
        ({"slowest": 1.5}, "'slowest'"),
        ({"fastest": 0.5}, "'fastest'"),
        ({"correct": math.nan}, "'correct'.*finite"),
        ({"form": "fast"}, "'form'.*hierarchical, speed, correctness"),
    ],
)
def test_bad_weights_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(DEFAULT, **changes)  # type: ignore[arg-type]


def test_the_speed_of_several_modes_is_their_geometric_mean() -> None:
    times, baseline = {"solver": 2.0, "chain": 4.0}, {"solver": 8.0, "chain": 4.0}
    assert mean_speedup(times, baseline, ["solver"]) == pytest.approx(4.0)
    assert mean_speedup(times, baseline, ["solver", "chain"]) == pytest.approx(2.0)


@pytest.mark.parametrize("modes", [[], ["cold"], ["solver", "cold"]])
def test_a_mode_that_was_not_timed_is_refused(modes: list[str]) -> None:
    with pytest.raises(ValueError, match="in every mode"):
        mean_speedup({"solver": 2.0}, {"solver": 8.0, "cold": 3.0}, modes)
