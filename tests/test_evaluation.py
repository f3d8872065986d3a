"""The evaluation list is what was promised, and it stays what it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sparserl.errors import MatrixError
from sparserl.evaluation import CLASSES, Case, evaluation_list, stratified
from sparserl.families import FAMILIES
from sparserl.features import structure_class

L2_BYTES = 60 * 2**20
REAL = [case for case in evaluation_list() if case.kind == "real"]
GENERATED = [case for case in evaluation_list() if case.kind == "generated"]
CHEAP = [case for case in GENERATED if case.nonzeros < 2_100_000]


def test_there_are_55_real_and_60_generated_matrices_all_different() -> None:
    assert (len(REAL), len(GENERATED)) == (55, 60)
    assert len({case.name for case in evaluation_list()}) == 115
    assert len({case.fingerprint for case in evaluation_list()}) == 115
    seeds = [case.seed for case in GENERATED]
    assert len(set(seeds)) == 60 and min(seeds) >= 9_000_000


def test_every_class_has_ten_generated_matrices() -> None:
    assert Counter(case.structure for case in GENERATED) == dict.fromkeys(CLASSES, 10)
    assert {case.structure for case in REAL} <= set(CLASSES)


@pytest.mark.parametrize("structure", CLASSES)
def test_half_of_every_class_but_small_is_larger_than_the_l2(structure: str) -> None:
    large = [case for case in GENERATED if case.structure == structure and case.size_bytes > L2_BYTES]
    assert len(large) == (0 if structure == "small" else 5)


def test_the_largest_has_about_sixty_million_nonzeros() -> None:
    assert 55e6 < max(case.nonzeros for case in GENERATED) < 65e6


def test_small_ones_span_three_orders_of_magnitude() -> None:
    sizes = [case.nonzeros for case in GENERATED if case.structure == "small"]
    assert min(sizes) < 1000 and 50_000 < max(sizes) < 100_000


def test_no_class_is_made_of_one_family() -> None:
    for structure in CLASSES:
        assert len({case.family for case in GENERATED if case.structure == structure}) >= 2
    assert len({case.family for case in GENERATED}) >= 14
    assert {case.family for case in GENERATED} <= set(FAMILIES)


def test_the_stratified_selection_is_8_real_and_16_generated_over_all_classes_and_sizes() -> None:
    chosen = stratified(24)
    assert Counter(case.kind for case in chosen) == {"real": 8, "generated": 16}
    assert {case.structure for case in chosen if case.kind == "generated"} == set(CLASSES)
    assert 5 <= sum(case.size_bytes > L2_BYTES for case in chosen) <= 12
    with pytest.raises(MatrixError, match="24"):
        stratified(10)


@pytest.mark.parametrize("case", CHEAP, ids=lambda case: case.name)
def test_a_generated_matrix_is_still_the_one_that_was_frozen(case: Case) -> None:
    pattern = case.load()
    assert (pattern.rows, pattern.columns, pattern.nonzeros) == (case.rows, case.columns, case.nonzeros)
    assert structure_class(pattern) == case.structure


def test_real_matrices_need_their_folder_and_must_be_the_listed_ones(tmp_path: Path) -> None:
    case = next(case for case in REAL if case.name == "jagmesh7")
    with pytest.raises(MatrixError, match="folder"):
        case.load()
    with pytest.raises(MatrixError, match=r"jagmesh7\.mtx\.gz"):
        case.load(tmp_path)
    (tmp_path / "jagmesh7.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 1\n")
    with pytest.raises(MatrixError, match="1138 x 1138"):
        case.load(tmp_path)


def test_real_matrices_have_groups_and_no_paths() -> None:
    for case in REAL:
        assert case.group and "/" not in case.name
    assert len({case.group for case in REAL if case.name.startswith("slam_")}) == 1
