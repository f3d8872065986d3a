"""Break-even: after how many products has tuning paid for itself?

    products = seconds of tuning / (seconds of a product before - seconds of a product after)

Infinite where the operator is not faster. A median over matrices counts those too: it is infinite where tuning never
pays on half of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar


class Paid(Protocol):
    """What must be known of a matrix."""

    @property
    def tuning_s(self) -> float | None: ...
    @property
    def baseline_us(self) -> float | None: ...
    @property
    def operator_us(self) -> float | None: ...
    @property
    def nonzeros(self) -> int: ...


Sized = TypeVar("Sized", bound=Paid)


def products(tuning_s: float, baseline_us: float, operator_us: float) -> float:
    """How many until tuning has paid; infinite where the operator is not faster."""
    saved_us = baseline_us - operator_us
    return 1e6 * tuning_s / saved_us if saved_us > 0 else math.inf


def of(standing: Paid) -> float | None:
    """None where a figure is missing. A matrix without a right operator never pays."""
    if standing.tuning_s is None or standing.baseline_us is None:
        return None
    if standing.operator_us is None:
        return math.inf
    return products(standing.tuning_s, standing.baseline_us, standing.operator_us)


def median(standings: Iterable[Paid]) -> float | None:
    """Over all that can be known; None of nothing."""
    found = [value for value in map(of, standings) if value is not None]
    return statistics.median(found) if found else None


def by_size(standings: Iterable[Sized]) -> Mapping[int, Sequence[Sized]]:
    """By decade of nonzeros: 5 holds 100 000 to 999 999."""
    found: dict[int, list[Sized]] = {}
    for standing in standings:
        found.setdefault(len(str(max(1, standing.nonzeros))) - 1, []).append(standing)
    return dict(sorted(found.items()))
