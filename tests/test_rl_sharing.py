"""Groups are cut as little as can be, and as much as one process must not hold up all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparserl.policy.sample import PLACES, Sample
from sparserl.records import Problem
from sparserl.train.rl.sharing import MOST_PARTS, Load, load_of, parts_of

SMALL = Sample(1000, 1000, 9000, np.zeros((PLACES, 8), dtype=np.int32))
LARGE = replace(SMALL, rows=2_000_000, nonzeros=20_000_000)
SPMV = Problem()


def test_a_large_matrix_costs_each_part_of_its_group_anew() -> None:
    load = load_of(LARGE, SPMV, 12)
    assert load.setup_s > 5 * load.program_s
    assert 4 * load.seconds(4) > 1.5 * load.seconds()
    assert load_of(LARGE, replace(SPMV, op="spmm", columns=32), 12).seconds() > load.seconds()
    assert load_of(LARGE, SPMV, 0).seconds() == 0.0, "nobody makes a matrix for what is known"


def test_a_group_is_cut_where_it_takes_longer_than_all_do_in_the_mean() -> None:
    large, small = load_of(LARGE, SPMV, 12), load_of(SMALL, SPMV, 12)
    assert parts_of([large, *[small] * 3], 1) == [1, 1, 1, 1], "one process has nobody to share with"
    alone = parts_of([large, *[small] * 3], 14)
    assert alone[0] > 1
    among = parts_of([large] * 60, 14)
    assert among == [1] * 60, "all have enough to do"
    longest = large.seconds(alone[0])
    fair = (large.seconds() + 3 * small.seconds()) / 14
    assert longest <= fair or large.seconds(alone[0] + 1) > 0.9 * longest or alone[0] == MOST_PARTS


@pytest.mark.parametrize(
    ("load", "parts"),
    [
        (Load(0.0, 1.0, 100), MOST_PARTS),
        (Load(0.0, 1.0, 3), 3),
        (Load(0.0, 1.0, 0), 1),
        (Load(100.0, 0.1, 100), 1),  # a part more saves nothing
    ],
)
def test_a_cut_must_pay(load: Load, parts: int) -> None:
    assert parts_of([load], 1000) == [parts]
