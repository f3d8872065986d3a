"""How many products a timed graph has, and what stands between products."""

from __future__ import annotations

from typing import Any

import pytest

from sparserl.backends.backend import TimingPlan
from sparserl.backends.cuda_timing import BRIEF_ROUNDS, ENOUGH, FEWEST, Bench, repetitions, rounds_of


def test_sides_that_can_win_have_the_same_number_and_the_fastest_fills_its_graph():
    assert repetitions([2.0, 2.1, 15.9], graph_ms=2.0, most=4000) == (1000, 1000, 1000)


@pytest.mark.parametrize(("behind", "share"), [(7.99, 1), (8.0, 8), (63.9, 8), (64.0, 64)])
def test_a_side_far_behind_has_fewer_and_its_graph_is_no_shorter(behind: float, share: int):
    fast, slow = repetitions([2.0, 2.0 * behind], graph_ms=2.0, most=4000)
    assert fast == 1000 and slow == -(-1000 // share)
    assert slow * 2.0 * behind >= 2000


def test_numbers_stay_in_their_limits():
    assert repetitions([0.2], graph_ms=2.0, most=4000) == (4000,)
    assert repetitions([9000.0, 20_000.0, 1e6], graph_ms=2.0, most=4000) == (FEWEST, FEWEST, 1)
    assert repetitions([], graph_ms=2.0, most=4000) == ()


def test_a_brief_timing_has_one_round_for_who_is_behind_and_a_thorough_one_all():
    assert rounds_of([2.0, 2.9, 3.1, 20.0], rounds=3) == [3, 3, 1, 1]
    assert rounds_of([2.0, 20.0], rounds=BRIEF_ROUNDS + 1) == [BRIEF_ROUNDS + 1] * 2
    assert rounds_of([], rounds=3) == []


class Scripted(Bench):
    """Products of 5 us behind a kernel of 2 us; some readings of that kernel alone are disturbed."""

    def __init__(self, disturbed: set[int]) -> None:
        super().__init__(0, None, None, 0)  # type: ignore[arg-type]
        self.disturbed, self.read = disturbed, 0

    def _ready(self, launches: Any, plan: TimingPlan) -> Any:
        return object(), list(launches)

    def _rounds(self, bodies: Any, counts: Any, rounds: Any, held: Any = None) -> list[list[float]]:
        alone = (lambda: 7.0, self._between_alone)
        return [[alone[body != "product"]() for _ in range(own)] for body, own in zip(bodies, rounds, strict=True)]

    def _between_alone(self) -> float:
        self.read += 1
        return 50.0 if self.read - 1 in self.disturbed else 2.0


def plan_of(rounds: int) -> TimingPlan:
    return TimingPlan("solver", rounds, graph_ms=0.1, repetitions=8)


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_a_disturbed_reading_of_what_stands_between_products_is_not_believed(rounds: int):
    bench = Scripted(disturbed={0, 1})
    assert bench.time(["product", "product"], plan_of(rounds)) == [[5.0] * rounds] * 2  # type: ignore[list-item]
    assert bench.read >= ENOUGH


def test_brief_timings_of_a_plan_add_to_what_is_known():
    bench = Scripted(disturbed=set(range(ENOUGH, 100)))
    for _ in range(2):
        assert bench.time(["product"], plan_of(1)) == [[5.0]]  # type: ignore[list-item]
    assert bench.read == ENOUGH + 1 and BRIEF_ROUNDS >= 1
