"""Twins: patterns that a program can't tell from the matrix by its sizes."""

from __future__ import annotations

import numpy as np
import pytest

from sparserl.judge.prepare import Packs, Prepared, prepare
from sparserl.judge.twin import Twins
from sparserl.matrix import Pattern
from sparserl.recipes import space
from sparserl.records import Problem

PROBLEM = Problem()


def banded() -> Pattern:
    """Rows of one to seven entries near the diagonal."""
    lengths = np.random.default_rng(0).integers(1, 8, 200)
    row = np.repeat(np.arange(200), lengths)
    within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Pattern.from_coordinates(200, 240, row, row + 3 * within)


def prepared_on(pattern: Pattern, layout: str) -> Prepared:
    text = next(r.text for r in space(PROBLEM) if str(r.layout) == layout)
    found = prepare(text, PROBLEM, Packs(pattern), 132, pattern.columns)
    assert isinstance(found, Prepared), found
    return found


@pytest.mark.parametrize(
    "layout",
    [
        "rows index=int32", "rows index=abs16", "slices c=32 sigma=256 group=1 index=int32",
        "slices c=32 sigma=1 group=1 index=int16", "tiles steps=4 threads=128 order=step index=int32",
        "merge items=256 index=int32", "bins per=1 long=64 segment=1024 threads=128 index=int32",
    ],
)  # fmt: skip
def test_a_twin_has_other_columns_in_rows_of_the_same_lengths(layout: str) -> None:
    pattern = banded()
    found = Twins(pattern, PROBLEM, 132, seed=3).of(prepared_on(pattern, layout))
    assert found is not None
    packed, reference = found
    twin = reference.pattern
    assert np.array_equal(twin.row_start, pattern.row_start) and packed.nonzeros == pattern.nonzeros
    assert not np.array_equal(twin.cols, pattern.cols)
    inside = np.diff(np.repeat(np.arange(twin.rows), twin.row_lengths)) == 0
    assert (np.diff(twin.cols)[inside] > 0).all()


def test_16_bit_indices_get_the_mirrored_twin_where_renamed_columns_lie_too_far_apart() -> None:
    row = np.repeat(np.arange(64), 3)
    far = Pattern.from_coordinates(64, 300_000, row, np.tile([0, 5, 9], 64) + 4000 + 2 * row)
    found = Twins(far, PROBLEM, 132, seed=3).of(prepared_on(far, "slices c=32 sigma=1 group=1 index=int16"))
    assert found is not None
    assert found[1].pattern.cols[:3].tolist() == [299_999 - 4009, 299_999 - 4005, 299_999 - 4000]


def test_a_dense_matrix_has_no_twin() -> None:
    dense = Pattern.from_coordinates(40, 8, np.repeat(np.arange(40), 8), np.tile(np.arange(8), 40))
    assert Twins(dense, PROBLEM, 132, seed=3).of(prepared_on(dense, "rows index=int32")) is None
