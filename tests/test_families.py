"""Families make valid patterns, the same ones on every machine, with the shapes they promise."""

from __future__ import annotations

import inspect
import time
from typing import Any

import numpy as np
import pytest

from sparserl import families
from sparserl.errors import MatrixError
from sparserl.families import FAMILIES, Spec, building, draw, make, values_for
from sparserl.matrix import Pattern

SMALL: dict[str, dict[str, Any]] = {
    "stencil2d": {"nx": 9, "ny": 7, "points": 9},
    "stencil3d": {"nx": 4, "ny": 5, "nz": 6, "points": 27},
    "banded": {"rows": 120, "diagonals": 9, "reach": 30, "fill": 0.8},
    "mesh": {"nx": 12, "ny": 11, "diagonals": 0.5, "window": 8},
    "fem": {"nx": 5, "ny": 6, "b": 3, "diagonals": 0.5, "fill": 0.9},
    "blockdiag": {"blocks": 20, "smallest": 2, "largest": 7, "coupling": 0.5},
    "rmat": {"scale": 8, "links": 1500},
    "attachment": {"rows": 200, "links": 3},
    "road": {"nx": 15, "ny": 14},
    "powerlaw": {"rows": 200, "columns": 300, "per_row": 6.0},
    "circuit": {"rows": 300, "per_row": 4.0, "nets": 3, "net_rows": 60, "reach": 10},
    "kronecker": {"coarse": 30, "per_coarse": 3.0, "fine": 8, "per_fine": 2.5},
    "uniform": {"rows": 150, "columns": 90, "per_row": 4.5, "spread": 0.5},
    "longrows": {"rows": 200, "columns": 220, "per_row": 3.0, "long": 2, "long_share": 0.8, "reach": 20},
    "tall": {"rows": 500, "columns": 8, "per_row": 3.0},
    "wide": {"rows": 12, "columns": 400, "per_column": 3.0},
    "emptyrows": {"rows": 400, "columns": 100, "filled": 0.2, "per_row": 4.0, "run": 5},
    "kkt": {"variables": 150, "constraints": 60, "per_hessian": 3.0, "per_constraint": 4.0, "linking": 1},
    "arrow": {"rows": 100, "border": 3, "diagonals": 5, "fill": 0.8},
    "permuted": {"of": "stencil2d", "how": "both", "nx": 10, "ny": 10},
    "staircase": {"periods": 6, "rows": 30, "columns": 25, "per_row": 3.0, "carried": 2},
    "hierarchy": {"leaf": 5, "levels": 5, "links": 2},
    "communities": {"groups": 20, "members": 12, "inside": 5.0, "outside": 2.0},
    "gaps": {"rows": 300, "diagonals": 12, "reach": 60, "segment": 10, "kept": 0.6},
}
FINGERPRINTS = {
    "stencil2d": "0a6df07cca478610",
    "stencil3d": "5a763bb08f9c3920",
    "banded": "a2edc87eca0dbf94",
    "mesh": "0f4cd44595dbc627",
    "fem": "0af2ec5f69f13d39",
    "blockdiag": "6f9e633d64c140aa",
    "rmat": "4ad10cb59d5d7dcb",
    "attachment": "c58189da12ca36c8",
    "road": "86fe31f4fcc718da",
    "powerlaw": "dd0f93eb00bfd635",
    "circuit": "d08558c83ba95773",
    "kronecker": "75c63af1a07be15d",
    "uniform": "8f97cc6b4f9d5643",
    "longrows": "5d56166fa91113a1",
    "tall": "ee4d89a0380e99e0",
    "wide": "90bbb0047ea3c0ae",
    "emptyrows": "0e6c62024b91e518",
    "kkt": "dfcbb2c16ef7cefb",
    "arrow": "9225efc1b2673299",
    "permuted": "f6fe74dd10a41ff2",
    "staircase": "29773ba6eb08ccb8",
    "hierarchy": "503ce1c1fbbcdfef",
    "communities": "4406ee751edd34ff",
    "gaps": "07f25fc87ed9c4f5",
}


def is_canonical(pattern: Pattern) -> bool:
    row = pattern.row_index().astype(np.int64)
    key = row * pattern.columns + pattern.cols
    inside = pattern.nonzeros == 0 or (pattern.cols.min() >= 0 and pattern.cols.max() < pattern.columns)
    return bool(inside and (np.diff(key) > 0).all())


def is_symmetric(pattern: Pattern) -> bool:
    row = pattern.row_index()
    return pattern == Pattern.from_coordinates(pattern.rows, pattern.columns, pattern.cols, row)


def test_there_are_at_least_fourteen_families_and_each_is_tested() -> None:
    assert len(FAMILIES) >= 14
    assert set(SMALL) == set(FAMILIES) == set(FINGERPRINTS)


@pytest.mark.parametrize("name", SMALL)
def test_a_family_makes_the_same_canonical_pattern_on_every_machine(name: str) -> None:
    pattern = make(name, 7, **SMALL[name])
    assert is_canonical(pattern) and pattern.nonzeros > 0
    assert pattern.fingerprint()[:16] == FINGERPRINTS[name]


@pytest.mark.parametrize("name", [n for n in SMALL if n not in ("stencil2d", "stencil3d")])
def test_another_seed_makes_another_pattern(name: str) -> None:
    assert make(name, 7, **SMALL[name]) != make(name, 8, **SMALL[name])


@pytest.mark.parametrize(
    "name",
    ["stencil2d", "stencil3d", "mesh", "attachment", "road", "circuit", "kkt", "arrow", "permuted", "communities"],
)
def test_these_families_are_symmetric(name: str) -> None:
    assert is_symmetric(make(name, 3, **SMALL[name]))


def test_a_five_point_stencil_is_the_laplacian_of_the_grid() -> None:
    pattern = make("stencil2d", 0, nx=4, ny=3)
    expected = np.zeros((12, 12))
    for y in range(3):
        for x in range(4):
            for dx, dy in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
                if 0 <= x + dx < 4 and 0 <= y + dy < 3:
                    expected[y * 4 + x, (y + dy) * 4 + x + dx] = 1
    dense = np.zeros((12, 12))
    dense[pattern.row_index(), pattern.cols] = 1
    np.testing.assert_array_equal(dense, expected)


def test_finite_elements_come_in_full_blocks() -> None:
    for b in (2, 3, 4, 6):
        pattern = make("fem", 1, nx=6, ny=5, b=b)
        dense = np.zeros(pattern.shape)
        dense[pattern.row_index(), pattern.cols] = 1
        blocks = dense.reshape(30, b, 30, b).sum(axis=(1, 3))
        assert set(np.unique(blocks)) == {0.0, float(b * b)}


def test_a_kronecker_product_is_numpys() -> None:
    left = make("uniform", 1, rows=5, columns=7, per_row=2.0)
    right = make("uniform", 2, rows=4, columns=3, per_row=1.5)

    def dense(p: Pattern) -> np.ndarray:
        out = np.zeros(p.shape)
        out[p.row_index(), p.cols] = 1
        return out

    np.testing.assert_array_equal(dense(building.product(left, right)), np.kron(dense(left), dense(right)))


def test_a_permuted_matrix_keeps_its_row_lengths() -> None:
    inner = {"nx": 20, "ny": 20, "diagonals": 0.5, "window": 1}
    plain = make("mesh", 5, **inner)
    for how in ("both", "rows", "columns"):
        mixed = make("permuted", 5, of="mesh", how=how, **inner)
        assert mixed != plain
        np.testing.assert_array_equal(np.sort(mixed.row_lengths), np.sort(plain.row_lengths))


def test_renumbering_inside_windows_moves_nothing_out_of_its_window() -> None:
    order = building.window_order(1000, 64, building.generator(0))
    assert sorted(order) == list(range(1000))
    np.testing.assert_array_equal(order // 64, np.arange(1000) // 64)


def test_shapes_are_what_their_names_say() -> None:
    long = make("longrows", 1, rows=5000, columns=5000, per_row=3.0, long=2, long_share=0.5)
    assert np.sort(long.row_lengths)[-2] >= 2500 and np.median(long.row_lengths) <= 4
    empty = make("emptyrows", 1, rows=5000, columns=500, filled=0.1, per_row=5.0)
    assert 0.85 < (empty.row_lengths == 0).mean() < 0.95
    heavy = make("powerlaw", 1, rows=20000, columns=20000, per_row=8.0, eighths=6)
    assert heavy.row_lengths.max() > 50 * heavy.row_lengths.mean()
    stairs = make("staircase", 1, **SMALL["staircase"])
    period = stairs.cols // 25 - stairs.row_index() // 30
    assert stairs.shape == (180, 150) and set(period) == {-1, 0} and (period == -1).sum() <= 2 * 150
    parts = make("hierarchy", 1, leaf=8, levels=4, links=1)
    inside = parts.cols // 8 == parts.row_index() // 8
    assert parts.shape == (128, 128) and inside.sum() == 128 * 8 and (~inside).sum() == 128 * 4
    groups = make("communities", 1, groups=500, members=10, inside=4.0, outside=3.0, eighths=5)
    alike = groups.cols // 10 == groups.row_index() // 10
    assert 0.3 < alike.mean() < 0.7 and groups.row_lengths.max() > 10 * groups.row_lengths.mean()
    gapped = make("gaps", 1, rows=4000, diagonals=20, reach=50, segment=100, kept=0.5)
    fills = np.bincount(gapped.cols - gapped.row_index() + 50) / 4000
    assert (fills > 0).sum() <= 20 and fills[50] == 1.0 and 0.2 < np.median(fills[fills > 0]) < 0.8
    assert make("tall", 1, **SMALL["tall"]).shape == (500, 8)
    assert make("wide", 1, **SMALL["wide"]).shape == (12, 400)


def test_heavy_tail_is_the_power_it_stands_for() -> None:
    u = np.linspace(0.01, 1, 100)
    for eighths in range(0, 12):
        np.testing.assert_allclose(building.heavy_tail(u, eighths), u ** (-eighths / 8), rtol=1e-12)


def test_drawn_matrices_are_valid_varied_and_near_the_size_asked_for() -> None:
    seen = set()
    for seed in range(150):
        spec = draw(seed, (1e2, 1e5))
        pattern = spec.make()
        assert is_canonical(pattern), spec
        assert 30 <= pattern.nonzeros <= 2e5, spec
        seen.add(spec.family)
    assert len(seen) >= 16
    assert draw(5) == draw(5)


def test_drawn_sizes_follow_the_collection() -> None:
    sizes = []
    for seed in range(300):
        spec = draw(seed, (1, 2e9))
        if spec.family == "uniform":
            sizes.append(np.log10(spec.params["rows"] * spec.params["per_row"]))
    assert abs(np.mean(sizes) - families.FITTED.log_nonzeros) < 1.2


@pytest.mark.parametrize("name", FAMILIES)
def test_a_plan_asks_for_about_the_nonzeros_it_was_given(name: str) -> None:
    for seed, (nonzeros, per_row) in enumerate([(3e3, 5.0), (1e5, 8.0), (1e5, 40.0)]):
        params = FAMILIES[name].plan(building.generator(seed), nonzeros, per_row)
        inspect.signature(FAMILIES[name].make).bind(seed, **params)
        made = make(name, seed, **params).nonzeros
        assert 0.35 * nonzeros < made < 2.2 * nonzeros, (params, made)


def test_a_few_million_nonzeros_take_a_moment() -> None:
    began = time.process_time()
    assert make("uniform", 0, rows=300_000, columns=300_000, per_row=10.0).nonzeros > 2.9e6
    assert time.process_time() - began < 4.0


def test_values_are_seeded_signed_and_away_from_zero() -> None:
    pattern = make("stencil2d", 0, nx=50, ny=50)
    values = values_for(pattern, 1, "float32")
    assert values.dtype == np.float32 and values.shape == (pattern.nonzeros,)
    assert (np.abs(values) >= 0.5).all() and (np.abs(values) <= 1.0).all()
    assert 0.4 < (values > 0).mean() < 0.6
    np.testing.assert_array_equal(values, values_for(pattern, 1, "float32"))
    assert values_for(pattern, 1, "bfloat16").dtype == np.uint16


def test_wrong_names_and_parameters_are_refused_with_the_choices() -> None:
    with pytest.raises(MatrixError, match="stencil2d"):
        make("stencil4d", 0)
    with pytest.raises(MatrixError, match="points"):
        make("stencil2d", 0, nx=4, ny=4, points=6)
    with pytest.raises(MatrixError, match="nx, ny, points"):
        make("stencil2d", 0, sides=4)
    with pytest.raises(MatrixError, match="nnz_range"):
        draw(0, (10, 1e12))
    with pytest.raises(MatrixError, match="nonzeros"):
        make("uniform", 0, rows=30000, columns=100000, per_row=90000.0)
    assert str(Spec("stencil2d", 3, {"nx": 4})) == "stencil2d nx=4 seed=3"
