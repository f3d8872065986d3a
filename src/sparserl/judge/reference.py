"""The numbers a program is checked against: fresh values and x, and the product in float64 from what was stored.

Every set is drawn from a generator that is seeded by the operating system unless a seed is given, so that no program
can know it. The kinds: 'wide' (x over many magnitudes), 'narrow' (x of one size, so that a single dropped entry of a
long row still shows), 'isolation' (NaN or Inf at a few places of x, zeros among the values), 'timed' (the numbers that
the clock multiplies) and 'fed' (what becomes of them when y is fed back: products of products, of any size, with
zeros). Without the last two a program could look at x or the values and do less for those that are only ever timed.

Programs that are judged together (sixteen on a GPU, or all of a race) are shown the same sets, drawn for them: at a
million nonzeros a set takes longer than all that a GPU does with it. What a program is shown after it was timed, with a
value and an entry of x changed, is changed for it alone, so a result that another one left behind is wrong there.

Large problems (nonzeros times columns of B from 2 M on) draw a pool of eight sets once a case (six from 128 M on, and
in training) and pick from it at random for every check, because there the reference costs many times what the kernel
does. A program has no memory between checks that the judge doesn't poison, so it can't learn the pool. Training, where
one matrix judges hundreds of programs, does so with small problems too (`pooled`); what is reported is verified
without. From 128 M on, and in training, a set also looks at a quarter of the columns of C only: which quarter goes by
its kind, so that every program is seen in all of them; which columns are in it is drawn once a case. In training it
is fewer columns yet of a C with many rows, so that a program that spoils a single column may pass there.

Not covered: the matrix's own values. A kernel never sees them here; what holds for arbitrary values holds for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sparserl.judge.handed import Near
from sparserl.judge.product import Product, in_threads
from sparserl.judge.tolerance import limits, row_blocks
from sparserl.matrix import Pattern
from sparserl.records import DType, Order, Problem
from sparserl.values import EPSILON, STORAGE, store, timed_numbers, widen

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["wide", "narrow", "isolation", "timed", "fed"]

FRESH_BELOW = 2_000_000
"""nonzeros times columns below which every check draws new numbers"""
HUGE = 1 << 27
"""nonzeros times columns from which the pool is smaller"""
QUARTER: dict[Kind, int] = {"narrow": 0, "wide": 1, "isolation": 2, "timed": 3, "fed": 0}
"""of the columns of C, where a set doesn't look at all of them"""
LOOKED_AT, FEW_COLUMNS = 1 << 19, 4
"""in training a set looks at about so many results of a wide product, and at no fewer columns than that"""
FEW_ROWS = 256
"""rows that are multiplied again one by one, rather than all of them at once"""
CHAIN_STEPS = 20
FEW_STEPS = 6
FED_STEPS = 3
"""products behind a 'fed' x at most"""
SHARED = "shared "
"""how the names of sets begin that go with the programs they were drawn for"""
AFTER = "after"
"""the place of what is shown after timing"""
TELLING_TRIES = 64
FED_OCTAVES = 40
"""how far thousands of products may carry x from where it began (float16 has no room for that)"""


_numbered = itertools.count()


@dataclass(frozen=True)
class ValueSet:
    """One check: what goes in (storage type, memory order) and what must come out (float64, (rows, n))."""

    key: str
    """names a set that is drawn once and used again, and is no other set's; empty for a fresh one"""
    values: Array
    """storage type, (nonzeros)"""
    x: Array
    """storage type, (columns * n) in the problem's memory order"""
    expected: Array
    """float64, (rows, n); what is not finite must come out not finite"""
    limit: Array
    """float32, (rows, n): how far from it (see `tolerance`); NaN where `expected` is not finite"""
    columns: Array | None = None
    """the columns of C that `expected` and `limit` are of; None: all"""
    shared: str = ""
    """names a fresh set that programs are shown together, until the next ones come (`SHARED`); empty for one's own"""
    near: Near | None = None
    """what tells it from a set with a name, where that is one number: cheaper to hand over than the set"""

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.x.nbytes)


class Reference:
    """Draws sets for one pattern and one problem."""

    def __init__(self, pattern: Pattern, problem: Problem, seed: int | None = None, pooled: bool = False) -> None:
        """`pooled`: pick from a pool for a small problem too."""
        self.pattern, self.problem = pattern, problem
        self._random = np.random.default_rng(seed)
        self._name = f"{next(_numbered)} "
        """tells its sets from those of others that the worker may have for the same case"""
        self._pool: dict[str, ValueSet] = {}
        self._together: dict[tuple[str, str], ValueSet] | None = None
        self._scale: float | None = None
        self._fading = False
        self.product = Product(pattern, problem.columns)
        work = pattern.nonzeros * problem.columns
        self.fresh = work < FRESH_BELOW and not pooled
        fewer = int(work >= (FRESH_BELOW if pooled else HUGE))
        self._sets = {"wide": 3 - fewer, "narrow": 2 - fewer, "isolation": 1, "timed": 1, "fed": 1}
        self._quarters: list[Array] | None = None
        if (fewer or pooled) and problem.columns >= 16:
            quarters = np.array_split(self._random.permutation(problem.columns), 4)
            most = max(FEW_COLUMNS, LOOKED_AT // max(1, pattern.rows)) if pooled else problem.columns
            self._quarters = [quarter[:most] for quarter in quarters]
        self.bounded_steps = CHAIN_STEPS if self.fresh else FEW_STEPS
        """dependent products of which the end is known within a bound: three products of the reference each"""
        self.chains: dict[str, tuple[Array, Array]] = {}
        """by a set's key: where a chain of products ends, and how far from there it may"""

    def begin(self) -> None:
        """Programs that are judged from here on, until the next call, are shown the same sets in the same places."""
        self._together, self._fading = {}, not self._fading

    def draw(self, kind: Kind = "wide", place: str = "") -> ValueSet:
        """A set of this kind: fresh for a small problem, one of the pool at random for a large one.

        place: in the course of a trial; what is judged together gets the same set there.
        """
        if self.fresh:
            return self._shared(kind, place, lambda: self._make(kind, "", place))
        key = f"{self._name}{kind}{self._random.integers(self._sets[kind])}"
        if key not in self._pool:
            self._pool[key] = self._make(kind, key)
        return self._pool[key]

    def pick(self, kinds: Sequence[Kind]) -> Kind:
        """One of these at random."""
        return kinds[int(self._random.integers(len(kinds)))]

    def draw_chain(self, row_sums: bool) -> ValueSet:
        """A set whose matrix can be multiplied with `CHAIN_STEPS` times over and x stays in range (if it is square).

        row_sums: |A| has row sums of at most 1, so that rounding errors don't grow either; otherwise the values are
        scaled so that x keeps its size, which makes a product with the wrong x stand out more.
        """
        name = self._name + ("chain by row sums" if row_sums else "chain")
        if self.fresh:
            return self._shared("chain", name, lambda: self._make_chain(row_sums, ""))
        if name not in self._pool:
            self._pool[name] = self._make_chain(row_sums, name)
        return self._pool[name]

    def _shared(self, kind: str, place: str, make: Callable[[], ValueSet]) -> ValueSet:
        if self._together is None or not place:
            return make()
        if (kind, place) not in self._together:
            self._together[kind, place] = replace(make(), shared=f"{SHARED}{next(_numbered)}")
        return self._together[kind, place]

    def _make_chain(self, row_sums: bool, key: str) -> ValueSet:
        pattern, dtype = self.pattern, self.problem.dtype
        x = _numbers(self._random, pattern.columns * self.problem.columns, dtype, octaves=4)
        if not row_sums:
            values = self._steady_values(x)
        else:
            values = widen(_numbers(self._random, pattern.nonzeros, dtype, octaves=4), dtype)
            sums = self.product.times(np.abs(values), np.ones((pattern.columns, 1)))[:, 0]
            # 1 - 2^-6: rounding the scaled values to bfloat16 must not push a sum past 1
            values *= np.repeat((1 - 2.0**-6) / np.where(sums > 0, sums, 1.0), pattern.row_lengths)
        return self._finish(key, store(values, dtype), x, int(self._random.integers(4)))

    def neighbours(self, check: ValueSet) -> tuple[ValueSet, ValueSet]:
        """The same set with one value changed, and with one entry of x changed: what a remembered result misses."""
        if f"{check.key} value" in self._pool:
            return self._pool[f"{check.key} value"], self._pool[f"{check.key} x"]
        values, x, pattern, dtype = check.values.copy(), check.x.copy(), self.pattern, self.problem.dtype
        rows = by_column = np.zeros(0, dtype=np.int64)
        name = check.key or check.shared
        others: list[Near | None] = [None, None]
        if len(values):
            (place, _), (other, at) = self._telling(check)
            values[place] = _flipped(values[place : place + 1], dtype)[0]
            x[at] = _flipped(x[at : at + 1], dtype)[0]
            rows = pattern.row_of(np.array([place]))
            by_column = pattern.row_of(np.flatnonzero(pattern.cols == pattern.cols[other]))
            if name:
                others = [Near(name, "values", place, values[place]), Near(name, "x", at, x[at])]
        keys = (f"{check.key} value", f"{check.key} x") if check.key else ("", "")
        out = (
            self._again(replace(check, key=keys[0], shared="", near=others[0], values=values), rows),
            self._again(replace(check, key=keys[1], shared="", near=others[1], x=x), by_column),
        )
        if check.key:
            self._pool.update(zip(keys, out, strict=True))
        return out

    def _telling(self, check: ValueSet) -> list[tuple[int, int]]:
        """Two entries of the matrix, each with the place of what it meets in x. Neither is zero, where a few tries find
        such: the sign of a zero, or of what meets one, is seen by nobody, and up to half of x are zeros."""
        entries = self._random.integers(len(check.values), size=TELLING_TRIES)
        wide = 0 if check.columns is None else int(check.columns[0])
        columns = self.pattern.cols[entries].astype(np.int64)
        by_row = self.problem.b_order == "row"
        at = columns * self.problem.columns + wide if by_row else wide * self.pattern.columns + columns
        met = [widen(each, self.problem.dtype) for each in (check.values[entries], check.x[at])]
        telling = np.flatnonzero(np.logical_and.reduce([np.isfinite(each) & (each != 0) for each in met]))
        chosen = telling if len(telling) else np.arange(len(entries))
        return [(int(entries[i]), int(at[i])) for i in (chosen[0], chosen[-1])]

    def _again(self, check: ValueSet, rows: Array) -> ValueSet:
        """The set after a sign was turned that only these rows can see. Magnitudes stay as they are."""
        dtype, b, start = self.problem.dtype, self.dense(check.x, check.columns), self.pattern.row_start
        if len(rows) > FEW_ROWS:
            expected = self.product.times(widen(check.values, dtype), b)
        else:
            expected = check.expected.copy()
            for row in rows.tolist():
                entries = slice(int(start[row]), int(start[row + 1]))
                expected[row] = widen(check.values[entries], dtype) @ b[self.pattern.cols[entries]]
        limit = check.limit.copy()
        limit[rows] += EPSILON[dtype] * (np.abs(expected[rows]) - np.abs(check.expected[rows]))
        return replace(check, expected=expected, limit=limit)

    def _steady_values(self, x: Array) -> Array:
        """Values, float64, with which repeated products keep their size if the matrix is square."""
        values = widen(_numbers(self._random, self.pattern.nonzeros, self.problem.dtype, octaves=4), self.problem.dtype)
        if self.pattern.rows == self.pattern.columns:
            if self._scale is None:  # the same for all values drawn alike
                self._scale = self._steady_scale(values, self.dense(x, np.arange(min(4, self.problem.columns))))
            values *= self._scale
        return values

    def _as_timed(self, fed: bool, place: str) -> tuple[Array, Array]:
        """Values and x as the clock has them at the start, or (fed) after some products."""
        random, problem, dtype = self._random, self.problem, self.problem.dtype
        x = timed_numbers(random, self.pattern.columns * problem.columns, problem.value_bytes).view(STORAGE[dtype])
        values = store(self._steady_values(x), dtype)
        if not fed:
            return values, x
        b = self.dense(x)
        most = FED_STEPS if self._quarters is None else 1
        for _ in range(random.integers(1, most + 1) if self.pattern.rows == self.pattern.columns else 0):
            b = self.product.times(widen(values, dtype), b)
        if dtype != "float16":
            # a program sees both: one set before it is timed, the other after
            if not place:
                self._fading = not self._fading
            fading = self._fading != (place == AFTER)
            b = b * 2.0 ** ((-1) ** fading * random.integers(FED_OCTAVES // 4, FED_OCTAVES + 1))
        b[random.random(b.shape) < random.choice([0.0, 0.5])] = 0.0
        return values, store((b if problem.b_order == "row" else b.T).ravel(), dtype)

    def _steady_scale(self, values: Array, b: Array) -> float:
        """The factor with which repeated products neither grow nor fade, found by doing them."""
        values, b = values.astype(self.product.narrow), b.astype(self.product.narrow)
        log_growth, steps = 0.0, 0
        for _ in range(CHAIN_STEPS if self.fresh else CHAIN_STEPS // 4):
            b = self.product.times(values, b)
            size = float(np.sqrt(np.mean(np.square(b)))) if b.size else 0.0
            if size == 0.0:
                break  # nilpotent: the chain ends in zeros whatever the scale
            b /= size
            log_growth, steps = log_growth + np.log(size), steps + 1
        return float(np.exp(-log_growth / steps)) if steps else 1.0

    def _make(self, kind: Kind, key: str, place: str = "") -> ValueSet:
        dtype = self.problem.dtype
        if kind in ("timed", "fed"):
            return self._finish(key, *self._as_timed(kind == "fed", place), QUARTER[kind])
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
        return self._finish(key, values, x, QUARTER[kind])

    def _with_traps(self, values: Array, x: Array) -> tuple[Array, Array]:
        """NaN and Inf at up to three places of x, and zeros among the values: an explicit zero is an entry.

        The first place of x is one of them, because padding is usually clamped to it. One is the column of an entry
        whose value becomes zero, in a row as short as a few tries find and without the other places, so that nothing
        else spoils that row.
        """
        random, dtype, pattern, n = self._random, self.problem.dtype, self.pattern, self.problem.columns
        by_row = self.problem.b_order == "row"
        zeros = random.integers(16, size=len(values), dtype=np.uint8) == 0
        values = np.where(zeros, store(np.zeros(1), dtype), values)
        if not len(x):
            return values, x
        elsewhere = random.integers(len(x), size=16)
        places = {0}
        if len(values):
            tries = random.integers(len(values), size=16)
            rows = pattern.row_of(tries)
            spoilt = (pattern.cols[pattern.row_start[rows]] == 0) & (pattern.cols[tries] != 0)
            best = int(np.argmin(pattern.row_lengths[rows] + spoilt * 2.0**31))
            values[tries[best]] = 0
            places.add(int(pattern.cols[tries[best]]) * (n if by_row else 1))
            mine = pattern.cols[pattern.row_start[rows[best]] : pattern.row_start[rows[best] + 1]]
            clear = ~np.isin(elsewhere // n if by_row else elsewhere % pattern.columns, mine)
            elsewhere = elsewhere[clear] if clear.any() else elsewhere
        places.add(int(elsewhere[0]))
        x = x.copy()
        x[sorted(places)] = store(random.choice([np.nan, np.inf, -np.inf], len(places)), dtype)
        return values, x

    def _finish(self, key: str, values: Array, x: Array, quarter: int = 0) -> ValueSet:
        columns = None if self._quarters is None else self._looked_at(x, self._quarters[quarter])
        expected, magnitude = self.product.with_magnitude(values, self.problem.dtype, self.dense(x, columns))
        return ValueSet(key, values, x, expected, limits(self.pattern, self.problem, expected, magnitude), columns)

    def _looked_at(self, x: Array, columns: Array) -> Array:
        """These columns of C, and those in which x holds NaN or Inf."""
        n = self.problem.columns
        spoilt = np.flatnonzero(~np.isfinite(x if x.dtype.kind == "f" else widen(x, self.problem.dtype)))
        spoilt = spoilt % n if self.problem.b_order == "row" else spoilt // self.pattern.columns
        return np.unique(np.append(columns, spoilt))

    def dense(self, x: Array, columns: Array | None = None) -> Array:
        """x or B as stored, in float64: (columns, n), or only these columns of it."""
        n = self.problem.columns
        stored = x.reshape(-1, n) if self.problem.b_order == "row" else x.reshape(n, -1).T
        out = np.empty((self.pattern.columns, n if columns is None else len(columns)))

        def widened(rows: slice) -> None:
            kept = stored[rows] if columns is None else stored[rows][:, columns]
            out[rows] = widen(kept, self.problem.dtype)

        in_threads(widened, row_blocks(*out.shape))
        return out


def as_rows(flat: Array, rows: int, n: int, order: str) -> Array:
    """A dense operand in memory order, seen as (rows, n)."""
    return np.ascontiguousarray(flat.reshape(rows, n) if order == "row" else flat.reshape(n, rows).T)


def reordered(flat: Array, rows: int, have: Order, want: Order) -> Array:
    """A dense matrix of so many rows, as it lies in memory, in the other order."""
    if have == want or not rows:
        return flat
    matrix = flat.reshape(rows, -1) if have == "row" else flat.reshape(-1, rows)
    return np.ascontiguousarray(matrix.T).ravel()


def _flipped(stored: Array, dtype: DType) -> Array:
    """Another number of the same size: the sign turned."""
    return store(-widen(stored, dtype), dtype)


def _numbers(random: np.random.Generator, count: int, dtype: DType, octaves: int) -> Array:
    """Signed numbers of random mantissa, spread evenly over this many octaves around 1 (a power of two of them)."""
    out = np.empty(count, dtype=STORAGE[dtype])
    places = row_blocks(count, 1)  # a block stays in the caches while it is made, and threads share them

    def fill(piece: tuple[slice, np.random.Generator]) -> None:
        place, source = piece
        out[place] = _few_numbers(source, len(out[place]), dtype, octaves)

    sources = random.spawn(len(places)) if len(places) > 1 else [random]
    in_threads(fill, zip(places, sources, strict=False))
    return out


def _few_numbers(random: np.random.Generator, count: int, dtype: DType, octaves: int) -> Array:
    """Put together from random bits, because the usual way through exp2 costs more than the product itself."""
    if dtype == "float64":
        bits = random.integers(0, 2**64, count, dtype=np.uint64)
        exponent = np.uint64(1023 - octaves // 2) + ((bits >> np.uint64(52)) & np.uint64(octaves - 1))
        kept = bits & np.uint64(0x800F_FFFF_FFFF_FFFF)
        return (kept | (exponent << np.uint64(52))).view(np.float64)
    bits32 = random.integers(0, 2**32, count, dtype=np.uint32)
    exponent32 = bits32 >> np.uint32(23)
    exponent32 &= np.uint32(octaves - 1)
    exponent32 += np.uint32(127 - octaves // 2)
    exponent32 <<= np.uint32(23)
    bits32 &= np.uint32(0x807F_FFFF)
    bits32 |= exponent32
    return store(bits32.view(np.float32), dtype)
