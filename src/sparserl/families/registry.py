"""Every family by name, and how a family's parameters are chosen for a number of nonzeros and a mean row length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparserl.errors import MatrixError
from sparserl.families import building, graphs, layered, meshes, shapes
from sparserl.matrix import Pattern

Params = dict[str, Any]
Plan = Callable[[np.random.Generator, float, float], Params]
"""(rng, nonzeros, mean row length) → parameters; both are met roughly, the latter only where the family has a say"""


@dataclass(frozen=True)
class Family:
    """A way to make patterns, and a way to size them."""

    make: Callable[..., Pattern]
    plan: Plan
    weight: float
    """how often `draw` takes it, relative to the others"""
    local: bool = False
    """numbered so that neighbours are close: a candidate for `permuted`"""


def permuted(seed: int, *, of: str, how: str = "both", within: int = 0, **params: Any) -> Pattern:
    """Another family's pattern with its rows, its columns, or both (by the same order) renumbered at random.

    `within`: nothing leaves its window of so many rows (0: one window over all).
    """
    if how not in ("both", "rows", "columns"):
        raise MatrixError(f"The 'how' of a permuted family must be both, rows or columns. Got {how!r}.")
    pattern = FAMILIES[of].make(seed, **params)
    rng = building.generator(seed, 7)
    rows = building.window_order(pattern.rows, within, rng)
    if how == "both" and pattern.rows == pattern.columns:
        return building.permute(pattern, rows, rows)
    same_rows, same_columns = (np.arange(n, dtype=np.int32) for n in pattern.shape)
    if how == "rows":
        return building.permute(pattern, rows, same_columns)
    columns = building.window_order(pattern.columns, within, rng)
    return building.permute(pattern, same_rows if how == "columns" else rows, columns)


def _pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(0, len(choices)))]


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Even on a logarithmic scale, three digits."""
    return float(f"{low * (high / low) ** rng.random():.3g}")


def _whole(value: float, least: int = 1) -> int:
    return max(least, round(value))


def _sides(rng: np.random.Generator, nodes: float, solid: bool) -> Params:
    """Grid sides of about `nodes` points in all, not too far from a square or cube."""
    stretch = _between(rng, 0.5, 2.0)
    if not solid:
        nx = _whole((nodes**0.5) * stretch, 2)
        return {"nx": nx, "ny": _whole(nodes / nx, 2)}
    nx = _whole(nodes ** (1 / 3) * stretch, 2)
    ny = _whole((nodes / nx) ** 0.5, 2)
    return {"nx": nx, "ny": ny, "nz": _whole(nodes / (nx * ny), 2)}


def _stencil2d(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    points = min((5, 7, 9, 13), key=lambda p: abs(p - per_row))
    return {**_sides(rng, nnz / points, False), "points": points}


def _stencil3d(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    points = min((7, 19, 27), key=lambda p: abs(p - per_row))
    return {**_sides(rng, nnz / points, True), "points": points}


def _banded(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    fill = _pick(rng, 1.0, 0.95, 0.8, 0.6)
    diagonals = min(_whole(per_row / fill, 3), 400)
    rows = _whole(nnz / (diagonals * fill), 4)
    reach = _whole(min(rows - 1, diagonals * _between(rng, 0.6, 200.0)), 1)
    return {"rows": rows, "diagonals": diagonals, "reach": reach, "fill": fill}


def _mesh(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    solid = per_row > 9
    share = min(1.0, max(0.1, (per_row - 7) / 20 if solid else (per_row - 5) / 4))
    sides = _sides(rng, nnz / (7 + 20 * share if solid else 5 + 4 * share), solid)
    return {**sides, "diagonals": round(share, 3), "window": _pick(rng, 1, 1, 64, 1024)}


def _fem(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    b = _pick(rng, 2, 3, 3, 4, 6)
    inner = max(5.0, per_row / b)
    params = _mesh(rng, nnz / (b * b), inner)
    del params["window"]
    return {**params, "b": b, "fill": _pick(rng, 1.0, 1.0, 0.95, 0.85)}


def _blockdiag(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    largest = _whole(1.6 * per_row, 2)
    smallest = max(1, largest // _pick(rng, 1, 2, 4))
    mean_square = sum(s * s for s in range(smallest, largest + 1)) / (largest - smallest + 1)
    coupling = _pick(rng, 0.0, 0.1, 1.0)
    return {"blocks": _whole(nnz / mean_square, 1), "smallest": smallest, "largest": largest, "coupling": coupling}


def _rmat(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    scale = min(26, max(4, round(float(np.log2(max(nnz / max(per_row, 2.0), 16))))))
    a, b = _pick(rng, (0.57, 0.19), (0.45, 0.22), (0.5, 0.2), (0.65, 0.15))
    return {"scale": scale, "links": _whole(nnz * 1.05, 8), "a": a, "b": b, "c": b, "mixed": _pick(rng, True, False)}


def _attachment(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    links = min(_whole(per_row / 2), 500)
    return {"rows": _whole(nnz / (2 * links), 8), "links": links, "mixed": _pick(rng, True, False)}


def _road(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    kept = _pick(rng, 0.55, 0.6, 0.65, 0.75)
    return {**_sides(rng, nnz / (4 * kept), False), "kept": kept, "window": _pick(rng, 1, 64, 1024)}


def _powerlaw(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    rows = _whole(nnz / per_row, 4)
    columns = _whole(max(rows * _aspect(rng), 2 * per_row), 4)
    return {
        "rows": rows,
        "columns": columns,
        "per_row": round(per_row, 3),
        "eighths": _pick(rng, 3, 4, 5, 6),
        "popular": _pick(rng, 0, 4, 5),
    }


def _circuit(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    per_row = min(per_row, 12.0)
    nets = _whole(_between(rng, 1, 60))
    share = _pick(rng, 0.05, 0.2, 0.4)
    rows = _whole(nnz * (1 - share) / per_row, 16)
    net_rows = _whole(min(nnz * share / (2 * nets), rows / 2))
    return {
        "rows": rows,
        "per_row": round(per_row, 2),
        "nets": nets,
        "net_rows": net_rows,
        "reach": _whole(_between(rng, 4, max(5.0, rows / 20))),
    }


def _kronecker(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    fine = _whole(_between(rng, 2, min(200.0, max(3.0, nnz**0.5 / 2))), 2)
    per_fine = min(float(fine), max(1.5, round(per_row**0.5 * _between(rng, 0.5, 2.0), 2)))
    per_coarse = max(1.5, round(per_row / per_fine, 2))
    return {"coarse": _whole(nnz / (per_row * fine), 2), "per_coarse": per_coarse, "fine": fine, "per_fine": per_fine}


def _uniform(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    rows = _whole(nnz / per_row, 2)
    return {
        "rows": rows,
        "columns": _whole(max(rows * _aspect(rng), per_row), 2),
        "per_row": round(per_row, 3),
        "spread": _pick(rng, 0.0, 0.3, 0.9),
    }


def _longrows(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    per_row = min(per_row, 40.0)
    share = _pick(rng, 0.05, 0.2, 0.5)
    rows = _whole(nnz * (1 - share) / per_row, 8)
    long_share = _between(rng, 0.02, 1.0)
    long = min(_whole(nnz * share / max(1.0, long_share * rows)), rows)
    return {
        "rows": rows,
        "columns": rows,
        "per_row": round(per_row, 2),
        "long": long,
        "long_share": long_share,
        "reach": _pick(rng, 0, 50, 2000),
    }


def _tall(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    rows = _whole(nnz / per_row, 8)
    columns = _whole(max(rows / _between(rng, 4, 3000), per_row * 1.5), 2)
    return {"rows": rows, "columns": columns, "per_row": round(per_row, 3), "spread": _pick(rng, 0.0, 0.5, 0.9)}


def _wide(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    per_column = _between(rng, 1.5, 12)
    columns = _whole(nnz / per_column, 8)
    rows = _whole(max(columns / _between(rng, 3, 1000), per_column * 4), 4)
    return {"rows": rows, "columns": columns, "per_column": per_column, "eighths": _pick(rng, 0, 3, 4, 6)}


def _emptyrows(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    filled = _between(rng, 0.02, 0.7)
    rows = _whole(nnz / (per_row * filled), 8)
    return {
        "rows": rows,
        "columns": _whole(max(rows * _pick(rng, 0.1, 1.0, 1.0), per_row * 2)),
        "filled": filled,
        "per_row": round(per_row, 3),
        "run": _pick(rng, 1, 1, 8, 100),
    }


def _kkt(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    ratio = _between(rng, 0.1, 1.0)
    per_row = max(per_row, 3.0)
    variables = _whole(nnz / (per_row * (1 + ratio)), 8)
    # entries: variables * per_hessian + 2 * constraints * per_constraint + constraints
    per_hessian = max(1.0, min(per_row * _pick(rng, 0.2, 0.5), per_row))
    per_constraint = max(1.0, (per_row * (1 + ratio) - per_hessian - ratio) / (2 * ratio))
    return {
        "variables": variables,
        "constraints": _whole(variables * ratio),
        "per_hessian": round(per_hessian, 2),
        "per_constraint": round(per_constraint, 2),
        "reach": _pick(rng, 0, 100, 5000),
        "linking": _pick(rng, 0, 0, 1, 3),
    }


def _arrow(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    diagonals = _pick(rng, 1, 3, 5)
    border = _whole(min(max(1.0, (per_row - diagonals) / 2), (nnz / 8) ** 0.5))
    return {
        "rows": _whole(nnz / (diagonals + 2 * border), 2 * border + 2),
        "border": border,
        "diagonals": diagonals,
        "fill": _pick(rng, 1.0, 0.7),
    }


def _permuted(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    of = _pick(rng, *[name for name, family in FAMILIES.items() if family.local])
    return {
        "of": of,
        "how": _pick(rng, "both", "both", "rows"),
        "within": _pick(rng, 0, 0, 4096),
        **FAMILIES[of].plan(rng, nnz, per_row),
    }


def _staircase(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    carried = _pick(rng, 1, 2, 4)
    periods = _whole(_between(rng, 4, 100))
    own = max(1.0, per_row - carried)
    rows = _whole(nnz / ((own + carried) * periods), 4)
    columns = _whole(max(rows * _pick(rng, 0.7, 1.0, 2.0), 2 * own), 4)
    return {"periods": periods, "rows": rows, "columns": columns, "per_row": round(own, 3), "carried": carried}


def _hierarchy(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    leaf = _whole(min(max(2.0, per_row / 2), 64.0))
    links = _pick(rng, 1, 1, 2)
    levels = 1
    while (leaf << levels) * (leaf + links * (levels + 1)) < nnz * 0.7:
        levels += 1
    return {"leaf": leaf, "levels": levels, "links": links}


def _communities(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    members = _whole(_between(rng, 8, 400))
    share = _pick(rng, 0.1, 0.3, 0.6)
    inside = min(per_row * (1 - share), members / 2)
    return {
        "groups": _whole(nnz / ((inside + per_row * share) * members), 2),
        "members": members,
        "inside": round(inside, 3),
        "outside": round(per_row * share, 3),
        "eighths": _pick(rng, 3, 4, 5),
    }


def _gaps(rng: np.random.Generator, nnz: float, per_row: float) -> Params:
    kept = _pick(rng, 0.9, 0.5, 0.2)
    diagonals = min(_whole(per_row / kept, 3), 400)
    rows = _whole(nnz / max(1.0, diagonals * kept), 8)
    reach = _whole(min(rows / 2, diagonals * _between(rng, 1.0, 200.0)), 2)
    return {"rows": rows, "diagonals": diagonals, "reach": reach, "segment": _pick(rng, 8, 100, 1000), "kept": kept}


def _aspect(rng: np.random.Generator) -> float:
    """Columns over rows, as often square, wide and tall as in the collection (see `drawing.FITTED`)."""
    u = rng.random()
    if u < 0.77:
        return 1.0
    return _between(rng, 1.1, 15.0) if u < 0.94 else 1.0 / _between(rng, 1.1, 19.0)


# Weights follow the collection: 31 % of its matrices are discretised space, 18 % graphs, 23 % rectangular (mostly
# optimisation); the rest are circuits, saddle points, chemistry and the like. More than half of the square ones have a
# bandwidth of over 90 % of their size, so local families often appear renumbered.
FAMILIES: Mapping[str, Family] = {
    "stencil2d": Family(meshes.stencil2d, _stencil2d, 5, local=True),
    "stencil3d": Family(meshes.stencil3d, _stencil3d, 5, local=True),
    "banded": Family(meshes.banded, _banded, 6, local=True),
    "mesh": Family(meshes.mesh, _mesh, 10, local=True),
    "fem": Family(meshes.fem, _fem, 12, local=True),
    "blockdiag": Family(meshes.blockdiag, _blockdiag, 4, local=True),
    "rmat": Family(graphs.rmat, _rmat, 6),
    "attachment": Family(graphs.attachment, _attachment, 4),
    "road": Family(graphs.road, _road, 4, local=True),
    "powerlaw": Family(graphs.powerlaw, _powerlaw, 8),
    "circuit": Family(graphs.circuit, _circuit, 8, local=True),
    "kronecker": Family(graphs.kronecker, _kronecker, 3),
    "uniform": Family(shapes.uniform, _uniform, 7),
    "longrows": Family(shapes.longrows, _longrows, 5),
    "tall": Family(shapes.tall, _tall, 4),
    "wide": Family(shapes.wide, _wide, 7),
    "emptyrows": Family(shapes.emptyrows, _emptyrows, 3),
    "kkt": Family(shapes.kkt, _kkt, 6, local=True),
    "arrow": Family(shapes.arrow, _arrow, 3, local=True),
    "permuted": Family(permuted, _permuted, 12),
    # for choices alone (the dev split): never drawn
    "staircase": Family(layered.staircase, _staircase, 0),
    "hierarchy": Family(layered.hierarchy, _hierarchy, 0),
    "communities": Family(layered.communities, _communities, 0),
    "gaps": Family(layered.gaps, _gaps, 0),
}
