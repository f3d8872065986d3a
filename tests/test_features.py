"""Features say of a pattern what a slow look at it says."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.sparse as sp

from sparserl import families, features
from sparserl.matrix import Pattern, as_matrix


def pattern_of(dense: np.ndarray) -> Pattern:
    return as_matrix(sp.csr_matrix(dense)).pattern


def some(seed: int, shape: tuple[int, int]) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) < 0.2).astype(float)


@pytest.mark.parametrize("seed", range(4))
def test_row_features_agree_with_a_slow_count(seed: int) -> None:
    dense = some(seed, (50, 37))
    lengths = dense.sum(axis=1)
    got = features.features(pattern_of(dense))
    assert got["row_mean"] == pytest.approx(lengths.mean())
    assert got["row_deviation"] == pytest.approx(lengths.std())
    assert (got["row_min"], got["row_max"]) == (lengths.min(), lengths.max())
    assert got["empty_rows"] == (lengths == 0).mean()
    differences = np.abs(lengths[:, None] - lengths[None, :]).mean()
    assert got["row_gini"] == pytest.approx(differences / (2 * lengths.mean()))
    for q in features.QUANTILES:
        assert got[f"row_q{q}"] == np.percentile(lengths, q, method="inverted_cdf")


@pytest.mark.parametrize("seed", range(4))
def test_places_diagonals_and_blocks_agree_with_a_slow_count(seed: int) -> None:
    dense = some(seed, (48, 48))
    row, col = np.nonzero(dense)
    got = features.features(pattern_of(dense))
    assert got["bandwidth_mean"] == pytest.approx(np.abs(row - col).mean())
    assert got["bandwidth_max"] == np.abs(row - col).max()
    held = np.sort(np.unique(col - row, return_counts=True)[1])[::-1]
    for n in features.DIAGONALS:
        assert got[f"diagonal_share_{n}"] == pytest.approx(held[:n].sum() / len(row))
    assert got["diagonals_90"] == np.searchsorted(held.cumsum(), 0.9 * len(row)) + 1
    for b in features.BLOCKS:
        blocks = dense.reshape(48 // b, b, 48 // b, b).any(axis=(1, 3)).sum()
        assert got[f"block_fill_{b}"] == pytest.approx(len(row) / (b * b * blocks))
    off = row != col
    assert got["symmetric"] == pytest.approx(dense[col[off], row[off]].mean())
    neighbours = (dense[:, 1:] * dense[:, :-1]).sum()
    assert got["adjacent"] == pytest.approx(neighbours / len(row))


def test_padding_is_slots_over_nonzeros() -> None:
    dense = some(1, (70, 30))
    lengths = dense.sum(axis=1)
    got = features.features(pattern_of(dense))
    assert got["padding_ell"] == pytest.approx(70 * lengths.max() / lengths.sum())
    slices = sum(32 * lengths[i : i + 32].max() for i in range(0, 70, 32))
    assert got["padding_slices"] == pytest.approx(slices / lengths.sum())


@pytest.mark.parametrize("shape", [(0, 0), (5, 0), (0, 5), (6, 6)])
def test_an_empty_matrix_has_the_same_features_all_finite(shape: tuple[int, int]) -> None:
    got = features.features(as_matrix(sp.csr_matrix(shape)).pattern)
    assert set(got) == set(features.features(pattern_of(np.eye(3))))
    assert all(np.isfinite(v) for v in got.values())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (families.Spec("stencil2d", 0, {"nx": 30, "ny": 30}), "small"),
        (families.Spec("stencil2d", 0, {"nx": 200, "ny": 200}), "regular"),
        (families.Spec("fem", 0, {"nx": 60, "ny": 60, "b": 3}), "block"),
        (families.Spec("uniform", 0, {"rows": 20000, "columns": 20000, "per_row": 8}), "random"),
        (families.Spec("rmat", 0, {"scale": 14, "links": 200000}), "skewed"),
        (families.Spec("tall", 0, {"rows": 50000, "columns": 20, "per_row": 4}), "extreme"),
        (families.Spec("arrow", 0, {"rows": 20000, "border": 3}), "extreme"),
    ],
)
def test_families_fall_into_the_class_they_were_made_for(spec: families.Spec, expected: str) -> None:
    assert features.structure_class(spec.make()) == expected


def test_a_sample_of_a_large_matrix_gives_nearly_the_same_features(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = families.make("fem", 3, nx=100, ny=110, b=3, diagonals=0.5)
    exact = features.features(pattern)
    monkeypatch.setattr(features, "SAMPLE", 100_000)
    sampled = features.features(pattern)
    assert exact["sampled"] == 0 and sampled["sampled"] == 1
    for name in ("block_fill_2", "block_fill_3", "block_fill_6", "bandwidth_mean", "adjacent", "symmetric"):
        assert sampled[name] == pytest.approx(exact[name], rel=0.05), name


def test_ten_million_nonzeros_take_about_a_second() -> None:
    pattern = families.make("stencil2d", 0, nx=1400, ny=1400, points=5)
    began = time.process_time()
    features.features(pattern)
    assert time.process_time() - began < 4.0
