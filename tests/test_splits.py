"""Splits: nothing that tests the policy can train it, be it a matrix, its kin, its family or a program's header."""

from __future__ import annotations

from collections import Counter

import pytest

from sparserl import splits
from sparserl.errors import MatrixError
from sparserl.evaluation import evaluation_list
from sparserl.families import FAMILIES, Spec, draw
from sparserl.features import structure_class
from sparserl.program import parse
from sparserl.recipes import space
from sparserl.records import Problem
from sparserl.train import withheld
from sparserl.train.cases import Range, TrainingCase, from_source, range_for, training_cases

SPMV = Problem()
SPMM = Problem("spmm", "float32", 64)
KIN = ("bcsst", "slam_", "lp_", "mip_", "qp_", "pyamg_")


def test_every_evaluation_matrix_is_in_exactly_one_split() -> None:
    found = Counter(case.name for split in splits.SPLITS for case in splits.cases(split))
    assert set(found.values()) == {1}
    assert {case.name for case in evaluation_list()} <= set(found)


def test_no_generated_evaluation_matrix_is_in_training() -> None:
    assert all(case.kind == "real" for case in splits.cases("train"))


def test_about_sixty_per_cent_of_the_real_matrices_are_outside_training() -> None:
    real = [case for case in evaluation_list() if case.kind == "real"]
    outside = [case for case in real if splits.split_of(case) != "train"]
    assert 0.55 <= len(outside) / len(real) <= 0.65
    assert len(splits.cases("real")) >= 20


@pytest.mark.parametrize("origin", sorted({case.group for case in evaluation_list() if case.kind == "real"}))
def test_matrices_of_one_collection_never_straddle(origin: str) -> None:
    assert len({splits.split_of(case) for case in evaluation_list() if case.group == origin}) == 1


@pytest.mark.parametrize("beginning", KIN)
def test_matrices_of_one_kind_never_straddle(beginning: str) -> None:
    kin = [case for case in evaluation_list() if case.kind == "real" and case.name.startswith(beginning)]
    assert len(kin) > 1
    assert len({splits.split_of(case) for case in kin}) == 1
    assert sum(bool({case.name for case in kin} & set(names)) for names in splits.origin_groups().values()) == 1


def test_at_least_three_families_are_withheld_for_the_test_and_as_many_others_for_dev() -> None:
    of_split = {split: {splits.base_family(c.family, c.params) for c in splits.cases(split) if c.kind == "generated"}
                for split in ("dev", "seen", "unseen")}  # fmt: skip
    assert len(of_split["unseen"]) >= 3
    assert of_split["unseen"] <= splits.withheld_families() <= set(FAMILIES)
    assert not of_split["unseen"] & (of_split["seen"] | of_split["dev"])
    assert len(of_split["dev"] & splits.withheld_families()) >= 3
    assert not of_split["seen"] & splits.withheld_families()


def test_what_is_made_of_a_withheld_family_may_not_train_either() -> None:
    seed = splits.seed_range("train")[0]
    for family in splits.withheld_families():
        assert not splits.may_train(Spec(family, seed))
        assert not splits.may_train(Spec("permuted", seed, {"of": family}))
    assert splits.may_train(Spec("permuted", seed, {"of": "mesh"}))


def test_seeds_of_the_splits_and_of_the_evaluation_list_are_apart() -> None:
    ranges = [splits.seed_range(name) for name in ("train", "dev", "unseen")]
    frozen = {case.seed for case in evaluation_list() if case.kind == "generated"}
    for one in ranges:
        assert not any(seed in one for seed in frozen)
        assert sum(one.start in other for other in ranges) == 1
        assert sum(one[-1] in other for other in ranges) == 1
    for case in (*splits.cases("dev"), *splits.cases("unseen")):
        if case.kind == "generated" and case.seed not in frozen:
            assert case.seed in splits.seed_range("dev" if splits.split_of(case) == "dev" else "unseen")


def test_drawn_test_matrices_are_the_ones_that_are_listed() -> None:
    drawn = [case for split in ("dev", "unseen") for case in splits.cases(split) if case not in evaluation_list()]
    assert len(drawn) >= 50
    for case in drawn:
        if case.nonzeros < 200_000:
            pattern = case.load()  # refuses another pattern
            assert structure_class(pattern) == case.structure


def test_a_held_out_pattern_is_refused_whatever_it_is_called() -> None:
    held_out = next(case for case in evaluation_list() if case.name == "small_stencil2d_5")
    with pytest.raises(MatrixError, match="held-out matrix 'small_stencil2d_5'"):
        splits.check_training(held_out.load())
    same = Spec("stencil2d", splits.seed_range("train")[5], dict(held_out.params))  # its seed changes nothing
    with pytest.raises(MatrixError, match="may not train"):
        TrainingCase("twin", same).load()


def test_an_unknown_split_is_refused_with_the_choices() -> None:
    with pytest.raises(MatrixError, match="train, dev, seen, unseen, real"):
        splits.cases("test")  # type: ignore[arg-type]


@pytest.mark.parametrize(("problem", "count"), [(SPMV, 800), (Problem(dtype="float64"), 300), (SPMM, 300)])
def test_training_cases_come_from_kept_families_and_training_seeds(problem: Problem, count: int) -> None:
    cases = training_cases(problem, count)
    assert len({case.name for case in cases}) == count
    assert all(case.spec is not None and splits.may_train(case.spec) for case in cases)
    assert {case.spec.family for case in cases if case.spec} <= set(FAMILIES) - splits.withheld_families()
    listed = {(c.family, str(sorted(c.params.items()))) for split in splits.SPLITS for c in splits.cases(split)}
    assert not listed & {(c.spec.family, str(sorted(c.spec.params.items()))) for c in cases if c.spec}


def test_training_cases_of_a_smaller_count_are_the_first_of_a_larger_one() -> None:
    assert training_cases(SPMV, 20) == training_cases(SPMV, 50)[:20]


def test_real_training_cases_are_those_of_the_training_split() -> None:
    real = [case.real for case in training_cases(SPMV, 3, real=True) if case.spec is None]
    assert real == [case.name for case in splits.cases("train")]


def test_a_case_can_be_made_again_from_its_source() -> None:
    for case in training_cases(SPMV, 2, real=True):
        assert from_source(case.name, case.source) == case


def test_small_training_cases_are_no_held_out_matrices_and_cover_every_class_by_design() -> None:
    within = Range(sizes=((1.0, 1e5, 2e5),), first_seed=range_for(SPMV).first_seed)
    classes: Counter[str] = Counter()
    for case in training_cases(SPMV, 40, within=within):
        pattern = case.load()
        assert pattern.fingerprint()[:16] not in splits.held_out_fingerprints()
        classes[structure_class(pattern)] += 1
    assert min(classes[name] for name in ("regular", "block", "random", "skewed", "extreme")) >= 3, classes


def test_most_sizes_lie_between_ten_thousand_and_two_million() -> None:
    for problem in (SPMV, SPMM):
        within = range_for(problem)
        assert sum(share for share, _, _ in within.sizes) == pytest.approx(1.0)
        assert sum(share for share, low, high in within.sizes if low >= 1e4 and high <= 2e6) >= 0.8
    assert (range_for(SPMV).sizes[0][1], range_for(SPMV).sizes[-1][2]) == (1e3, 2e7)


def test_a_spec_drawn_with_a_training_seed_is_refused_only_for_its_family() -> None:
    seeds = splits.seed_range("train")[2000:2200]
    allowed = [splits.may_train(draw(seed)) for seed in seeds]
    assert 0.6 < sum(allowed) / len(allowed) < 1.0
    assert not splits.may_train(draw(9000001))


def test_the_stored_list_of_withheld_combinations_is_the_one_that_is_chosen() -> None:
    assert sorted(withheld.withheld_combinations()) == withheld.choose(withheld.spanned())


def test_about_fifteen_per_cent_of_the_combinations_are_withheld() -> None:
    every, held = withheld.spanned(), withheld.withheld_combinations()
    assert 0.15 <= len(held) / len(every) <= 0.18
    for problem in (SPMV, SPMM):
        recipes = space(problem)
        assert 0.08 <= sum(map(withheld.withheld_recipe, recipes)) / len(recipes) <= 0.25


def test_every_single_value_of_a_withheld_combination_occurs_in_a_kept_one() -> None:
    every, held = withheld.spanned(), withheld.withheld_combinations()
    kept = {(c[0], c[1], value) for c in every if c not in held for value in c[2:]}
    assert {(c[0], c[1], value) for c in held for value in c[2:]} <= kept


def test_programs_with_one_header_are_withheld_together() -> None:
    by_header: dict[tuple[str, ...], set[bool]] = {}
    for recipe in space(SPMV):
        header = tuple(row for row in recipe.text.split("\n") if row.startswith("// "))
        by_header.setdefault(header, set()).add(withheld.withheld_recipe(recipe))
    assert all(len(verdicts) == 1 for verdicts in by_header.values())


def test_the_number_of_threads_does_not_decide_whether_a_program_is_withheld() -> None:
    recipe = next(r for r in space(SPMV) if withheld.withheld_recipe(r) and r.family == "slice_rows")
    twin = next(r for r in space(SPMV) if dict(r.settings, threads=0) == dict(recipe.settings, threads=0)
                and r.layout == recipe.layout and r.params["threads"] != recipe.params["threads"])  # fmt: skip
    assert withheld.combination(parse(twin.text)) == withheld.combination(parse(recipe.text))
    assert withheld.withheld_recipe(twin)


def test_a_text_that_is_no_program_is_not_withheld() -> None:
    assert not withheld.withheld_text("int main() {}")
