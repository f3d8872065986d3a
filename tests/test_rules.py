"""The scoring rules against cases worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sparserl.records import Verdict
from sparserl.train import rules


def test_a_failed_sample_has_a_quarter_of_the_baselines_speed_and_a_right_one_what_was_measured() -> None:
    assert rules.speed(10.0, None) == 0.25
    assert rules.speed(10.0, 5.0) == 2.0
    assert rules.speed(10.0, 100.0) == 0.1  # slower than a failure counts for: still as measured


def test_a_time_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 us"):
        rules.speed(10.0, 0.0)


def test_at_1_is_geometric_over_samples_and_matrices() -> None:
    one = [2.0, 8.0]  # geometric mean 4
    two = [0.25, 4.0]  # geometric mean 1
    assert rules.at_k([one, two], 1).value == pytest.approx(2.0)


def test_at_k_is_the_mean_over_all_choices_of_k_samples() -> None:
    speeds = [0.25, 0.25, 1.0, 2.0, 3.0]
    for k in range(1, 6):
        every = [math.log(max(chosen)) for chosen in itertools.combinations(speeds, k)]
        assert rules.log_best_of(speeds, k) == pytest.approx(sum(every) / len(every))
    assert rules.at_k([speeds], 5).value == pytest.approx(3.0)


def test_more_samples_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be 1\.\.2"):
        rules.log_best_of([1.0, 2.0], 3)


def test_correct_at_k_is_the_chance_of_at_least_one() -> None:
    assert rules.pass_at(4, 1, 1) == pytest.approx(0.25)
    assert rules.pass_at(4, 1, 2) == pytest.approx(0.5)
    assert rules.pass_at(4, 2, 2) == pytest.approx(5 / 6)
    assert rules.pass_at(4, 0, 4) == 0.0
    assert rules.pass_at(4, 1, 4) == 1.0
    assert rules.passes_at_k([[True, False], [True, True]], 1).value == pytest.approx(0.75)


def test_what_fails_after_the_compiler_has_compiled() -> None:
    assert [v.name for v in Verdict if not rules.compiles(v)] == [
        "UNREADABLE", "SCREENED", "INADMISSIBLE", "UNCOMPILABLE",
    ]  # fmt: skip


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        found = rules.bootstrap(rng.normal(0.3, 1.0, 40).tolist(), draws=1000, seed=trial)
        hits += found.low <= 0.3 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_an_interval_is_repeatable_and_holds_its_value() -> None:
    values = np.random.default_rng(0).normal(size=30).tolist()
    found = rules.bootstrap(values)
    assert found == rules.bootstrap(values)
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(np.mean(values))


def test_a_paired_ratio_is_narrow_where_matrices_differ_more_than_policies() -> None:
    rng = np.random.default_rng(1)
    theirs = {f"m{i}": float(rng.normal(0, 2)) for i in range(50)}
    ours = {name: value + math.log(1.1) + 0.01 * float(rng.normal()) for name, value in theirs.items()}
    found = rules.ratio(ours, {**theirs, "other": 5.0})
    assert found is not None
    assert found.count == 50
    assert found.value == pytest.approx(1.1, rel=0.01)
    assert 1.08 < found.low < found.high < 1.12
    assert rules.ratio(ours, {"other": 1.0}) is None


def test_log_probabilities_go_to_the_part_that_the_token_stands_in() -> None:
    special = {"<program>": 3, "<layout>": 4, "<bake>": 5, "<workspace>": 6, "<launch>": 7, "<code>": 8, "<eos>": 2}
    ids = [3, 4, 100, 7, 101, 8, 102, 103, 2]
    log_probs = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0]
    sums = rules.by_part(rules.Line(ids, log_probs, [2 * v for v in log_probs], given=1), special)
    assert sums["layout"] == rules.PartSum(3, -6.0, -12.0)  # <layout>, a word, and <launch> that ends it
    assert sums["launch"] == rules.PartSum(2, -9.0, -18.0)
    assert sums["code"] == rules.PartSum(3, -21.0, -42.0)
    assert sums["code"].surprise == pytest.approx(7.0)
    assert sums["code"].entropy == pytest.approx(14.0)


def test_given_tokens_are_not_counted() -> None:
    special = {f"<{part}>": i for i, part in enumerate(rules.PARTS)}
    sums = rules.by_part(rules.Line([0, 50, 4, 60], [0.0, 0.0, 0.0, -1.5], [0.0, 0.0, 0.0, -1.5], given=3), special)
    assert sums == {"code": rules.PartSum(1, -1.5, -1.5)}


def test_verdicts_are_counted_from_the_worst() -> None:
    found = rules.failures([Verdict.CORRECT, Verdict.WRONG, Verdict.CORRECT])
    assert list(found.items()) == [("WRONG", 1), ("CORRECT", 2)]
