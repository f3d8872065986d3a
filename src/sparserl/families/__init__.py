"""Synthetic matrices by family, parameters and seed: the same pattern on every machine.

`make("stencil2d", 0, nx=100, ny=100)` builds one; `draw(seed)` draws family, size and parameters so that sizes, row
lengths and kinds are spread as in the SuiteSparse Matrix Collection. Families make structure only; `values_for` gives
numbers to any pattern. Not covered: values with meaning (definiteness, conditioning).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparserl.errors import MatrixError
from sparserl.families import building
from sparserl.families.registry import FAMILIES
from sparserl.matrix import Array, Pattern
from sparserl.records import DType
from sparserl.values import store

__all__ = ["FAMILIES", "FITTED", "Fitted", "Spec", "draw", "make", "values_for"]


@dataclass(frozen=True)
class Fitted:
    """Moments of the SuiteSparse Matrix Collection (2 893 matrices, all of its index of 2026), decimal logarithms."""

    log_nonzeros: float = 4.84
    log_nonzeros_deviation: float = 1.42
    log_per_row: float = 1.03
    """of nonzeros / rows"""
    log_per_row_deviation: float = 0.53
    correlation: float = 0.48
    """between the two: larger matrices have longer rows"""


FITTED = Fitted()


@dataclass(frozen=True)
class Spec:
    """A matrix that can be made: what is written down instead of its nonzeros."""

    family: str
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Pattern:
        return make(self.family, self.seed, **self.params)

    def __str__(self) -> str:
        return " ".join([self.family, *(f"{k}={v}" for k, v in self.params.items()), f"seed={self.seed}"])


def make(name: str, seed: int, /, **params: Any) -> Pattern:
    """The pattern of a family with these parameters."""
    if name not in FAMILIES:
        raise MatrixError(f"There is no family {name!r}. Families: {', '.join(sorted(FAMILIES))}.")
    function = FAMILIES[name].make
    try:
        inspect.signature(function).bind(seed, **params)
    except TypeError as error:
        known = ", ".join(list(inspect.signature(function).parameters)[1:])
        raise MatrixError(f"The family {name!r} takes {known}: {error}.") from None
    return function(seed, **params)


def draw(seed: int, nnz_range: tuple[float, float] = (1e2, 1e8)) -> Spec:
    """A matrix drawn as from the collection: size, mean row length and family, with about nnz_range nonzeros."""
    low, high = nnz_range
    if not 1 <= low <= high <= 2**31 - 1:
        raise MatrixError(f"The 'nnz_range' of draw must be 1 <= low <= high < 2^31. Got {nnz_range}.")
    rng = building.generator(seed, 99)
    nonzeros = 10.0 ** _clipped_normal(rng, FITTED.log_nonzeros, FITTED.log_nonzeros_deviation, np.log10(nnz_range))
    slope = FITTED.correlation * FITTED.log_per_row_deviation / FITTED.log_nonzeros_deviation
    middle = FITTED.log_per_row + slope * (float(np.log10(nonzeros)) - FITTED.log_nonzeros)
    rest = FITTED.log_per_row_deviation * (1 - FITTED.correlation**2) ** 0.5
    longest = 0.5 * float(np.log10(nonzeros)) + 0.3  # rows not much longer than the matrix is high
    per_row = 10.0 ** _clipped_normal(rng, middle, rest, np.array([0.0, max(0.3, longest)]))
    names = list(FAMILIES)
    ends = np.cumsum([FAMILIES[name].weight for name in names])
    name = names[int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))]
    return Spec(name, seed, FAMILIES[name].plan(rng, nonzeros, per_row))


def _clipped_normal(rng: np.random.Generator, mean: float, deviation: float, bounds: Array) -> float:
    """A normal draw inside bounds, by redrawing; even inside them where the bounds lie far in a tail."""
    low, high = (float(b) for b in bounds)
    for _ in range(100):
        value = mean + deviation * (float(rng.random(12).sum()) - 6.0)  # twelve uniforms: a normal without logarithms
        if low <= value <= high:
            return value
    return low + (high - low) * rng.random()


def values_for(pattern: Pattern, seed: int, dtype: DType = "float64") -> Array:
    """Seeded numbers for a pattern, of either sign and size 0.5 to 1, in the storage type."""
    rng = building.generator(seed, 1000)
    data = rng.random(pattern.nonzeros) - 0.5
    data += np.copysign(0.5, data)
    return store(data, dtype)
