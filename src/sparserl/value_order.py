"""From the order in which a user stores nonzeros to the canonical order, kept so that new values can follow later.

`sparserl.tune(A)` sorts rows and sums duplicates; `op.update_values(A.data)` must then mean the same entries as before.
CSR, CSC and COO of SciPy, CuPy and torch have such an order; a file or any other format is taken in canonical order
(rows in order, columns ascending).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparserl.errors import OperatorError
from sparserl.matrix import Pattern

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ValueOrder:
    """Where each of the user's values belongs. `position` None: the user's order is the canonical one."""

    nonzeros: int
    position: Array | None = None
    """canonical index of every value of the user; an index that comes twice is summed"""

    def canonical(self, values: Array) -> Array:
        """The user's values in canonical order, duplicates summed in float64."""
        expected = self.nonzeros if self.position is None else len(self.position)
        if values.shape != (expected,):
            raise OperatorError(
                f"The new values must be {expected} numbers in the order of the tuned matrix (its `.data`). "
                f"Got an array of shape {values.shape}; a changed pattern needs a new sparserl.tune(A)."
            )
        if self.position is None:
            return values
        if expected == self.nonzeros:  # every canonical entry is met (the pattern came from these), so once each
            out = np.empty(self.nonzeros, dtype=values.dtype)
            out[self.position] = values
            return out
        return np.bincount(self.position, weights=values, minlength=self.nonzeros)


def value_order(source: Any, pattern: Pattern) -> ValueOrder:
    """The order of `source` (what the user gave to tune) against its canonical pattern."""
    pairs = _coordinates(source)
    if pairs is None:
        return ValueOrder(pattern.nonzeros)
    row, col = pairs
    if len(row) == pattern.nonzeros and np.array_equal(col, pattern.cols) and np.array_equal(row, pattern.row_index()):
        return ValueOrder(pattern.nonzeros)
    width = max(pattern.columns, 1)
    key = row.astype(np.int64) * width + col
    canonical = pattern.row_index().astype(np.int64) * width + pattern.cols  # ascending by construction
    return ValueOrder(pattern.nonzeros, np.searchsorted(canonical, key).astype(np.int32))


def _coordinates(source: Any) -> tuple[Array, Array] | None:
    """(row, column) of every stored value, in the user's order; None where the source has no order of its own."""
    home = type(source).__module__.partition(".")[0]
    if home in ("scipy", "cupyx", "cupy") and getattr(source, "format", "") in ("csr", "csc", "coo"):
        host = source.get() if home != "scipy" else source
        if host.format == "coo":
            return np.asarray(host.row), np.asarray(host.col)
        return _expand(host.indptr, host.indices, by_column=host.format == "csc")
    if home == "torch":
        name = str(source.layout)
        if name == "torch.sparse_coo":
            row, col = source._indices().cpu().numpy()
            return row, col
        if name == "torch.sparse_csr":
            return _expand(source.crow_indices().cpu().numpy(), source.col_indices().cpu().numpy(), by_column=False)
        if name == "torch.sparse_csc":
            return _expand(source.ccol_indices().cpu().numpy(), source.row_indices().cpu().numpy(), by_column=True)
    return None


def _expand(start: Array, minor: Array, *, by_column: bool) -> tuple[Array, Array]:
    major = np.repeat(np.arange(len(start) - 1, dtype=np.int64), np.diff(start))
    return (np.asarray(minor), major) if by_column else (major, np.asarray(minor))
