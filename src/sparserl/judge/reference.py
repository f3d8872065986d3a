"""The numbers a program is checked against: fresh values and x, and the product in float64 from what was stored.

Every set is drawn from a generator that is seeded by the operating system unless a seed is given, so that no program
can know it. Three kinds: 'wide' (x over many magnitudes), 'narrow' (x of one size, so that a single dropped entry of a
long row still shows) and 'isolation' (NaN or Inf at a few places of x, zeros among the values).

Large problems (nonzeros times columns of B from 2 M on) draw a pool of six sets once a case and pick from it at random
for every check, because there the reference costs many times what the kernel does. A program has no memory between
checks that the judge doesn't poison, so it can't learn the pool.

Not covered: the matrix's own values. A kernel never sees them here; what holds for arbitrary values holds for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse

from sparserl.matrix import Pattern
from sparserl.records import DType, Problem
from sparserl.values import store, widen

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["wide", "narrow", "isolation"]

FRESH_BELOW = 2_000_000
"""nonzeros times columns below which every check draws new numbers"""
POOL_SETS = 6
CHAIN_STEPS = 20


@dataclass(frozen=True)
class ValueSet:
    """One check: what goes in (storage type, memory order) and what must come out (float64, (rows, n))."""

    key: str
    """names a set that is drawn once and used again; empty for a fresh one"""
    values: Array
    """storage type, (nonzeros)"""
    x: Array
    """storage type, (columns * n) in the problem's memory order"""
    expected: Array
    """float64, (rows, n); what is not finite must come out not finite"""
    magnitude: Array
    """float64, (rows, n): |A| |x|"""

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.x.nbytes)


class Reference:
    """Draws sets for one pattern and one problem."""

    def __init__(self, pattern: Pattern, problem: Problem, seed: int | None = None) -> None:
        self.pattern, self.problem = pattern, problem
        self._random = np.random.default_rng(seed)
        self._pool: dict[str, ValueSet] = {}
        self._scale: float | None = None
        blank = np.zeros(pattern.nonzeros)
        self._csr = scipy.sparse.csr_matrix((blank, pattern.cols, pattern.row_start), shape=pattern.shape)
        self._csr.has_canonical_format = True
        self.fresh = pattern.nonzeros * problem.columns < FRESH_BELOW

    def draw(self, kind: Kind = "wide") -> ValueSet:
        """A set of this kind: fresh for a small problem, one of the pool at random for a large one."""
        if self.fresh:
            return self._make(kind, "")
        of_kind = 1 if kind == "isolation" else (POOL_SETS - 1) // 2 + (kind == "wide")
        key = f"{kind}{self._random.integers(of_kind)}"
        if key not in self._pool:
            self._pool[key] = self._make(kind, key)
        return self._pool[key]

    def draw_chain(self, row_sums: bool) -> ValueSet:
        """A set whose matrix can be multiplied with `CHAIN_STEPS` times over and x stays in range (if it is square).

        row_sums: |A| has row sums of at most 1, so that rounding errors don't grow either; otherwise the values are
        scaled so that x keeps its size, which makes a product with the wrong x stand out more.
        """
        key = "" if self.fresh else "chain by row sums" if row_sums else "chain"
        if key in self._pool:
            return self._pool[key]
        pattern, dtype = self.pattern, self.problem.dtype
        values = widen(_numbers(self._random, pattern.nonzeros, dtype, octaves=4), dtype)
        x = _numbers(self._random, pattern.columns * self.problem.columns, dtype, octaves=4)
        if row_sums:
            sums = self.matrix(np.abs(values)) @ np.ones(pattern.columns)
            # 1 - 2^-6: rounding the scaled values to bfloat16 must not push a sum past 1
            values *= np.repeat((1 - 2.0**-6) / np.where(sums > 0, sums, 1.0), pattern.row_lengths)
        elif pattern.rows == pattern.columns:
            if self._scale is None:  # the same for all values drawn alike
                self._scale = self._steady_scale(values, self.dense(x))
            values *= self._scale
        check = self._finish(key, store(values, dtype), x)
        if key:
            self._pool[key] = check
        return check

    def neighbours(self, check: ValueSet) -> tuple[ValueSet, ValueSet]:
        """The same set with one value changed, and with one entry of x changed: what a remembered result misses."""
        if f"{check.key} value" in self._pool:
            return self._pool[f"{check.key} value"], self._pool[f"{check.key} x"]
        values, x = check.values.copy(), check.x.copy()
        if len(values):
            place = self._random.integers(len(values))
            values[place] = _flipped(values[place : place + 1], self.problem.dtype)[0]
            # an entry of x that some row reads
            column = int(self.pattern.cols[self._random.integers(len(values))])
            step = self.problem.columns if self.problem.b_order == "row" else 1
            x[column * step] = _flipped(x[column * step : column * step + 1], self.problem.dtype)[0]
        keys = (f"{check.key} value", f"{check.key} x") if check.key else ("", "")
        out = (self._finish(keys[0], values, check.x), self._finish(keys[1], check.values, x))
        if check.key:
            self._pool.update(zip(keys, out, strict=True))
        return out

    def _steady_scale(self, values: Array, b: Array) -> float:
        """The factor with which repeated products neither grow nor fade, found by doing them."""
        matrix = self.matrix(values)
        log_growth, steps = 0.0, 0
        for _ in range(CHAIN_STEPS if self.fresh else CHAIN_STEPS // 4):
            b = matrix @ b
            size = float(np.sqrt(np.mean(np.square(b)))) if b.size else 0.0
            if size == 0.0:
                break  # nilpotent: the chain ends in zeros whatever the scale
            b, log_growth, steps = b / size, log_growth + np.log(size), steps + 1
        return float(np.exp(-log_growth / steps)) if steps else 1.0

    def _make(self, kind: Kind, key: str) -> ValueSet:
        dtype = self.problem.dtype
        wide_octaves = 8 if dtype == "float16" else 16  # f16 has 30 octaves in all, and sums need room
        values = _numbers(self._random, self.pattern.nonzeros, dtype, octaves=4)
        x = _numbers(
            self._random,
            self.pattern.columns * self.problem.columns,
            dtype,
            octaves=wide_octaves if kind == "wide" else 1,
        )
        if kind == "isolation":
            values, x = self._with_traps(values, x)
        return self._finish(key, values, x)

    def _with_traps(self, values: Array, x: Array) -> tuple[Array, Array]:
        """NaN and Inf at up to three places of x, and zeros among the values: an explicit zero is an entry.

        The first place of x is one of them, because padding is usually clamped to it. One is the column of an entry
        whose value becomes zero, in a row as short as a few tries find, so that nothing else spoils that row.
        """
        random, dtype, n = self._random, self.problem.dtype, self.problem.columns
        values = np.where(random.random(len(values)) < 1 / 16, store(np.zeros(1), dtype), values)
        if not len(x):
            return values, x
        places = {0, int(random.integers(len(x)))}
        if len(values):
            tries = random.integers(len(values), size=16)
            rows = np.searchsorted(self.pattern.row_start, tries, side="right") - 1
            entry = int(tries[np.argmin(self.pattern.row_lengths[rows])])
            values[entry] = 0
            places.add(int(self.pattern.cols[entry]) * (n if self.problem.b_order == "row" else 1))
        x = x.copy()
        x[sorted(places)] = store(random.choice([np.nan, np.inf, -np.inf], len(places)), dtype)
        return values, x

    def _finish(self, key: str, values: Array, x: Array) -> ValueSet:
        wide, b = widen(values, self.problem.dtype), self.dense(x)
        with np.errstate(invalid="ignore", over="ignore"):
            expected = self.matrix(wide) @ b
            magnitude = self.matrix(np.abs(wide)) @ np.abs(b)
        return ValueSet(key, values, x, expected, magnitude)

    def matrix(self, data: Array) -> Any:
        """The pattern with these numbers, as SciPy CSR; the next call changes it.

        (SciPy's abs() of one may merge entries in place, in arrays it shares: take |data| instead.)
        """
        self._csr.data = data  # made once: SciPy looks at every index of a new matrix
        return self._csr

    def dense(self, x: Array) -> Array:
        """x or B as stored, in float64: (columns, n)."""
        return as_rows(widen(x, self.problem.dtype), self.pattern.columns, self.problem.columns, self.problem.b_order)


def as_rows(flat: Array, rows: int, n: int, order: str) -> Array:
    """A dense operand in memory order, seen as (rows, n)."""
    return np.ascontiguousarray(flat.reshape(rows, n) if order == "row" else flat.reshape(n, rows).T)


def _flipped(stored: Array, dtype: DType) -> Array:
    """Another number of the same size: the sign turned."""
    return store(-widen(stored, dtype), dtype)


def _numbers(random: np.random.Generator, count: int, dtype: DType, octaves: int) -> Array:
    """Signed numbers of random mantissa, spread evenly over this many octaves around 1 (a power of two of them).

    Put together from random bits, because the usual way through exp2 costs more than the product itself.
    """
    if dtype == "float64":
        bits = random.integers(0, 2**64, count, dtype=np.uint64)
        exponent = np.uint64(1023 - octaves // 2) + ((bits >> np.uint64(52)) & np.uint64(octaves - 1))
        kept = bits & np.uint64(0x800F_FFFF_FFFF_FFFF)
        return (kept | (exponent << np.uint64(52))).view(np.float64)
    bits32 = random.integers(0, 2**32, count, dtype=np.uint32)
    exponent32 = np.uint32(127 - octaves // 2) + ((bits32 >> np.uint32(23)) & np.uint32(octaves - 1))
    kept32 = bits32 & np.uint32(0x807F_FFFF)
    return store((kept32 | (exponent32 << np.uint32(23))).view(np.float32), dtype)
