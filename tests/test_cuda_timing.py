"""How many products a timed graph has."""

from __future__ import annotations

import pytest

from sparserl.backends.cuda_timing import FEWEST, repetitions


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
