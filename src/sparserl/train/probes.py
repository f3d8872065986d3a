"""Probes: what can be read, linearly, from the frozen output of an encoder.

A ridge regression from the pooled vectors to a structural number is fitted on matrices of kept families and scored by
R² on matrices of withheld ones. Its penalty is chosen on a fifth of the kept ones. The bar is 0.9 for each of the
`BARRED`; block fill is the lowest of four block sizes. Numbers that span decades are probed as logarithms.

Not covered: what a non-linear reader, such as the language model, could find beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sparserl.matrix import Array
from sparserl.policy.sample import FEATURE_NAMES

BAR = 0.9
PENALTIES = tuple(10.0**k for k in range(-7, 1))
"""times the number of examples; outputs are standardised"""
FILLS = (2, 3, 4, 8)


def _column(named: Array, name: str) -> Array:
    return np.asarray(named[:, FEATURE_NAMES.index(name)], dtype=np.float64)


def _log(name: str) -> Callable[[Array], Array]:
    return lambda named: np.log2(1.0 + _column(named, name))


def _fill(b: int) -> Callable[[Array], Array]:
    return lambda named: _column(named, f"block_fill_{b}")


def _tail(named: Array) -> Array:
    return np.asarray(np.log2((1.0 + _column(named, "row_max")) / (1.0 + _column(named, "row_mean"))))


def _spread(named: Array) -> Array:
    """Mean distance from the diagonal over the larger side: bandwidth with the size taken out."""
    size = np.maximum(_column(named, "rows"), _column(named, "columns"))
    return np.asarray(_column(named, "bandwidth_mean") / np.maximum(size, 1.0))


TARGETS: Mapping[str, Callable[[Array], Array]] = {
    "row length, log": _log("row_mean"),
    "bandwidth, log": _log("bandwidth_mean"),
    **{f"block fill {b}": _fill(b) for b in FILLS},
    "row tail, log": _tail,
    "bandwidth, largest, log": _log("bandwidth_max"),
    "bandwidth, share of the size": _spread,
    "row deviation, log": _log("row_deviation"),
    "symmetric": lambda named: _column(named, "symmetric"),
}
"""by name, from the named features (n, features)"""
BARRED: Mapping[str, tuple[str, ...]] = {
    "mean row length": ("row length, log",),
    "bandwidth": ("bandwidth, log",),
    "block fill": tuple(f"block fill {b}" for b in FILLS),
    "tail of the row lengths": ("row tail, log",),
}
"""what the bar is set on: the lowest R² of these"""


@dataclass(frozen=True)
class ProbeReport:
    """R² on withheld families, by target."""

    scores: Mapping[str, float]
    fitted: int
    tested: int

    @property
    def barred(self) -> dict[str, float]:
        return {name: min(self.scores[each] for each in parts) for name, parts in BARRED.items()}

    @property
    def passed(self) -> bool:
        return all(score >= BAR for score in self.barred.values())


def probe(kept: Array, kept_named: Array, withheld: Array, withheld_named: Array) -> ProbeReport:
    """Fit on the outputs (n, width) and features of kept matrices, score on those of withheld ones."""
    centre, scale = kept.mean(axis=0), kept.std(axis=0) + 1e-6
    known = np.asarray((kept - centre) / scale, dtype=np.float64)
    # A number far outside what was seen says more about its scale than about the matrix.
    tested = np.clip(np.asarray((withheld - centre) / scale, dtype=np.float64), -8.0, 8.0)
    # In the space of examples: there are fewer of them than numbers in the output.
    gram, cross = known @ known.T / known.shape[1], tested @ known.T / known.shape[1]
    truths = np.column_stack([of(kept_named) for of in TARGETS.values()])
    asked = np.column_stack([of(withheld_named) for of in TARGETS.values()])
    penalties = _choose(gram, truths, np.arange(len(known)) % 5 == 4)
    guesses = np.empty_like(asked)
    for penalty in set(penalties):
        alike = np.array([each == penalty for each in penalties])
        mean = truths[:, alike].mean(axis=0)
        guesses[:, alike] = cross @ _solve(gram, truths[:, alike] - mean, penalty) + mean
    scores = {name: r_squared(asked[:, at], guesses[:, at]) for at, name in enumerate(TARGETS)}
    return ProbeReport(scores, len(kept), len(withheld))


def r_squared(truth: Array, guess: Array) -> float:
    """1 - squared error over variance; the mean of `truth` itself would score 0."""
    spread = float(((truth - truth.mean()) ** 2).sum())
    return 1.0 - float(((truth - guess) ** 2).sum()) / max(spread, 1e-12)


def _choose(gram: Array, truths: Array, choosing: Array) -> list[float]:
    """The penalty for each column of `truths`."""
    fit = ~choosing
    inner, outer = gram[np.ix_(fit, fit)], gram[np.ix_(choosing, fit)]
    mean, wanted = truths[fit].mean(axis=0), truths[choosing]
    scores = []
    for penalty in PENALTIES:
        guesses = outer @ _solve(inner, truths[fit] - mean, penalty) + mean
        scores.append([r_squared(wanted[:, at], guesses[:, at]) for at in range(wanted.shape[1])])
    return [PENALTIES[best] for best in np.argmax(scores, axis=0)]


def _solve(gram: Array, targets: Array, penalty: float) -> Array:
    """For all targets (n, k) at once: it is the factors that take long."""
    return np.linalg.solve(gram + penalty * len(gram) * np.eye(len(gram)), targets)
