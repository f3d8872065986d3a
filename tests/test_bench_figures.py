"""The figures of a benchmark, from records made by hand whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from sparserl.bench import bars, breakeven, figures, tables
from sparserl.bench.figures import OPERATOR, WITHOUT_PDL, Standing
from sparserl.bench.spread import interval
from sparserl.errors import StoreError

BASE = "cusparse:coo1"


def matrix(name: str, **more: Any) -> dict[str, Any]:
    about = {
        "kind": "matrix", "matrix": name, "problem": "spmv float32", "origin": "real", "split": "real",
        "structure": "regular", "headline": True, "rows": 1000, "columns": 1000, "nonzeros": 10_000,
        "features": {"row_mean": 10.0, "row_max": 40.0}, "modes": ["solver"], "tuning_s": 2.0,
        "peak_memory_bytes": 5_000_000, "packed_bytes": 60_000, "winner": {"layout": "rows index=int16", "pdl": True},
    }  # fmt: skip
    return {**about, **more}


def took(name: str, side: str, us: float | None, **more: Any) -> dict[str, Any]:
    about = {
        "kind": "time", "matrix": name, "problem": "spmv float32", "side": side, "mode": "solver", "median_us": us,
        "quantiles_us": [us] * 4, "floor_us": 0.5, "verified": us is not None, "source": "gpu",
    }  # fmt: skip
    return {**about, **more}


def pair(name: str, ours: float, theirs: float, **more: Any) -> list[dict[str, Any]]:
    return [matrix(name, **more), took(name, OPERATOR, ours), took(name, BASE, theirs)]


def test_the_speedup_is_over_the_fastest_verified_variant() -> None:
    (found,) = figures.standings([
        *pair("a", 2.0, 4.0), took("a", "cusparse:csr1", 6.0), took("a", "cusparse:csr2", 5.0),
        took("a", "cusparse:sell", 1.0, verified=False), took("a", "torch:csr", 1.5), took("a", "scipy:csr", 0.5),
        took("a", WITHOUT_PDL, 3.0), took("a", "cupy:csr", None, fault="not here"),
    ])  # fmt: skip
    assert (found.baseline, found.speedup, found.over_csr) == (BASE, 2.0, 2.5)
    assert found.pdl_gain == 1.5 and found.plain_speedup == pytest.approx(4 / 3)
    assert found.skew == 4.0
    assert "cupy:csr" not in found.times_us and found.times_us["torch:csr"] == 1.5


def test_mean_wins_and_the_worst_are_those_of_the_hand() -> None:
    found = figures.standings([*pair("a", 1.0, 4.0), *pair("b", 2.0, 2.0), *pair("c", 4.0, 2.0)])
    made = figures.summary(found)
    assert made.speedup is not None
    assert made.speedup.value == pytest.approx((4 * 1 * 0.5) ** (1 / 3))
    assert not made.speedup.known, "three matrices are too few to know"
    assert made.wins == pytest.approx(1 / 3) and (made.won, made.tied, made.lost) == (1, 1, 1)
    assert (made.worst, made.worst_matrix, made.count, made.failed) == (0.5, "c", 3, 0)
    assert made.tuning_s == 2.0 and made.peak_memory_bytes == 5_000_000
    assert made.pdl_gain is None and made.pdl_used == 0


def test_a_matrix_without_a_right_operator_is_the_worst_and_no_win() -> None:
    records = [*pair("a", 1.0, 4.0), matrix("b", fault="no candidate was verified"), took("b", BASE, 3.0)]
    made = figures.summary(figures.standings(records))
    assert (made.worst, made.worst_matrix, made.failed, made.wins) == (0.0, "b", 1, 0.5)
    assert made.speedup is not None and made.speedup.value == 4.0


def test_a_matrix_that_could_not_be_read_or_tuned_is_lost_and_the_worst() -> None:
    broken = {"kind": "matrix", "matrix": "b", "problem": "spmv float32", "modes": ["solver"], "fault": "line 1"}
    made = figures.summary(figures.standings([*pair("a", 1.0, 4.0), broken]))
    assert (made.worst, made.worst_matrix, made.failed, made.wins) == (0.0, "b", 1, 0.5)
    assert (made.won, made.tied, made.lost) == (1, 0, 1)


@pytest.mark.parametrize(
    ("gain", "fared"), [(1.03, (1, 0, 0)), (1.019, (0, 1, 0)), (1 / 1.019, (0, 1, 0)), (1 / 1.03, (0, 0, 1))]
)
def test_within_two_per_cent_nobody_has_won(gain: float, fared: tuple[int, int, int]) -> None:
    made = figures.summary(figures.standings(pair("a", 1.0, gain)))
    assert (made.won, made.tied, made.lost) == fared and made.wins == fared[0]


def test_the_interval_is_seeded_and_narrows_with_equal_values() -> None:
    assert interval([]) is None
    same = interval([2.0] * 5)
    assert same is not None and (same.low, same.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert interval([1.0, 2.0, 4.0] * 3, seed=1) == interval([1.0, 2.0, 4.0] * 3, seed=1)
    wide, narrow = interval([1.0, 4.0] * 3), interval([1.0, 4.0] * 75)
    assert wide is not None and narrow is not None and wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_matrices_of_one_group_are_drawn_together() -> None:
    values = [1.0, 1.0, 4.0, 4.0] * 10
    strangers, alike = interval(values), interval(values, [at // 4 % 5 + 5 * (at % 4 // 2) for at in range(40)])
    assert strangers is not None and alike is not None and alike.value == strangers.value == pytest.approx(2.0)
    assert alike.high - alike.low > 1.5 * (strangers.high - strangers.low)
    few = interval(values, ["a", "b", "c", "d"] * 10)
    assert few is not None and (few.known, few.spread, str(few)) == (False, "", "2.00")


def test_a_summary_draws_origin_groups_and_families() -> None:
    def found(group: Callable[[int], str]) -> figures.Summary:
        made = [record for k in range(30) for record in pair(f"m{k}", 1.0, 1.0 + k % 5, group=group(k))]
        return figures.summary(figures.standings(made))

    alone, alike, few = found(str), found(lambda k: f"group {k % 5}"), found(lambda k: f"group {k % 4}")
    assert alone.speedup and alike.speedup and few.speedup and few.over_csr is None
    assert alike.speedup.high - alike.speedup.low > 1.5 * (alone.speedup.high - alone.speedup.low)
    assert alone.speedup.known and not few.speedup.known


def test_a_summary_of_two_modes_is_refused() -> None:
    mixed = [Standing("a", "spmv float32", "solver"), Standing("a", "spmv float32", "chain")]
    with pytest.raises(ValueError, match="one mode"):
        figures.summary(mixed)


def test_measured_and_modelled_times_are_never_in_one_figure() -> None:
    with pytest.raises(StoreError, match="modelled"):
        figures.standings([*pair("a", 1.0, 2.0), took("a", "plain:csr", 2.0, source="modelled")])


def test_a_later_record_replaces_an_earlier_one() -> None:
    (found,) = figures.standings([*pair("a", 1.0, 2.0), *pair("a", 1.0, 8.0, nonzeros=20_000)])
    assert found.speedup == 8.0 and found.nonzeros == 20_000


def test_each_mode_has_its_own_times_seconds_and_bytes() -> None:
    record = matrix("a", modes=["solver", "chain"], tuning_s_by_mode={"solver": 2.0, "chain": 3.0},
                    winners={"chain": {"packed_bytes": 70_000}})  # fmt: skip
    records = [record, took("a", OPERATOR, 1.0), took("a", BASE, 2.0), took("a", OPERATOR, 1.0, mode="chain")]
    solver, chain = figures.standings(records)
    assert (solver.mode, solver.tuning_s, solver.speedup) == ("solver", 2.0, 2.0)
    assert (chain.mode, chain.tuning_s, chain.speedup) == ("chain", 3.0, None)
    assert (solver.packed_bytes, chain.packed_bytes) == (60_000, 70_000)


def test_the_profile_counts_what_a_side_cannot_do_against_it() -> None:
    found = figures.standings([
        *pair("a", 1.0, 2.0), *pair("b", 3.0, 1.5), matrix("c"), took("c", BASE, 1.0), took("b", WITHOUT_PDL, 1.0),
    ])  # fmt: skip
    profile = figures.performance_profile(found)
    assert list(profile) == [OPERATOR, BASE]
    assert profile[OPERATOR] == [(1.0, pytest.approx(1 / 3)), (2.0, pytest.approx(2 / 3))]
    assert profile[BASE] == [(1.0, pytest.approx(2 / 3)), (2.0, 1.0)]


def test_points_are_grouped_by_class_and_sorted() -> None:
    records = [*pair("a", 1.0, 2.0, nonzeros=50), *pair("b", 1.0, 3.0, nonzeros=5),
               *pair("c", 1.0, 1.0, structure="skewed"), matrix("d")]  # fmt: skip
    found = figures.by_class(figures.standings(records), lambda s: s.nonzeros)
    assert found == {"regular": [(5, 3.0, "b"), (50, 2.0, "a")], "skewed": [(10_000, 1.0, "c")]}
    by_skew = figures.by_class(figures.standings(records), lambda s: s.skew)
    assert [x for x, _, _ in by_skew["regular"]] == [4.0, 4.0]


def test_the_roofline_has_both_byte_counts() -> None:
    (found,) = figures.standings(pair("a", 1.0, 2.0))
    vectors = 4 * 2000
    assert found.csr_bytes == 8 * 10_000 + 4 * 1001 + vectors
    assert found.layout_bytes == 60_000 + vectors
    (roof,) = figures.roofline([found], memory_tb_s=0.1, l2_bytes=1000)  # 100 000 bytes a microsecond
    assert roof.csr_share == pytest.approx(found.csr_bytes / 100_000)
    assert roof.layout_share == pytest.approx(0.68) and roof.above_l2
    assert not figures.roofline([found], 0.1, 1e9)[0].above_l2
    assert not figures.roofline([found], 0.1, found.csr_bytes / 1.9)[0].above_l2, "a part of it may stay in the L2"
    wide = Standing("a", "spmm float64 32 row row", "solver", rows=10, columns=20, nonzeros=100)
    assert wide.csr_bytes == 100 * 12 + 4 * 11 + 30 * 8 * 32


def test_the_roof_is_the_bandwidth_of_the_process_that_timed() -> None:
    slow = [matrix("a"), took("a", OPERATOR, 1.0, copy_tb_s=0.2), took("a", BASE, 2.0, copy_tb_s=0.2)]
    found = figures.standings([*slow, *pair("b", 1.0, 2.0)])
    first, second = figures.roofline(found, memory_tb_s=0.1, l2_bytes=1000)
    assert second.csr_share == pytest.approx(2 * first.csr_share), "not whichever call came last"


def test_csr_in_another_memory_order_is_csr() -> None:
    sides = {OPERATOR: 1.0, "cusparse:csr1": 9.0, "cusparse:csr2@col": 3.0, "cusparse:coo1@col": 2.0}
    wide = [took("a", side, us, problem="spmm float32 32 row row") for side, us in sides.items()]
    (found,) = figures.standings([matrix("a", problem="spmm float32 32 row row"), *wide])
    assert (found.over_csr, found.speedup) == (3.0, 2.0)


def test_tuning_pays_after_its_seconds_over_what_a_product_saves() -> None:
    assert breakeven.products(2.0, 5.0, 3.0) == pytest.approx(1e6)
    assert breakeven.products(2.0, 3.0, 3.0) == math.inf
    assert breakeven.products(2.0, 3.0, 4.0) == math.inf
    found = figures.standings([*pair("a", 3.0, 5.0), *pair("b", 1.0, 5.0), *pair("c", 9.0, 5.0)])
    assert breakeven.median(found) == pytest.approx(1e6)
    assert figures.summary(found).break_even == pytest.approx(1e6)
    assert breakeven.median([found[0], found[2]]) == math.inf
    assert breakeven.median([]) is None


def test_a_matrix_without_an_operator_never_pays_and_modelled_times_say_nothing() -> None:
    (lost,) = figures.standings([matrix("a"), took("a", BASE, 3.0)])
    assert breakeven.of(lost) == math.inf
    modelled = [
        matrix("a"),
        took("a", OPERATOR, 1.0, source="modelled"),
        took("a", "plain:csr", 2.0, source="modelled"),
    ]
    made = figures.summary(figures.standings(modelled))
    assert made.break_even is None and made.speedup is not None and made.speedup.value == 2.0


def test_break_even_is_by_decade_of_nonzeros() -> None:
    sizes = [Standing(str(n), "spmv float32", "solver", nonzeros=n) for n in (5, 99_999, 100_000, 999_999)]
    found = breakeven.by_size(sizes)
    assert {decade: [s.nonzeros for s in group] for decade, group in found.items()} == {
        0: [5], 4: [99_999], 5: [100_000, 999_999],
    }  # fmt: skip


def test_the_bars_of_the_reference_search_take_the_same_records() -> None:
    about = {"kind": "about", "device": "NVIDIA H200", "versions": {"cusparse": "12.6"}, "date": "2026-01-01"}
    records = [about, *pair("a", 1.0, 2.0), took("a", "cusparse:csr1", 3.0), took("a", "torch:csr", 0.5)]
    rows = tables.rows(figures.races(records))
    (row,) = rows
    assert row.standings["solver"].speedup == 2.0 and row.standings["solver"].over_csr == 3.0
    assert row.device == "NVIDIA H200" and row.kind == "real"
    made = {bar.title: bar.value for bar in bars.bars(rows)}
    assert made["real matrices, over the best cuSPARSE variant, solver"] == pytest.approx(2.0)
    assert made["real matrices, over cuSPARSE CSR"] == pytest.approx(3.0)
