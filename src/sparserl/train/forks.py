"""Forks: the places of a good program where another way to go on is known, and is worse.

Two programs of one matrix agree up to some token and then part: that token is a decision, and what follows is mostly
its consequence. Here all that is known of a matrix is laid along a good program. At every token, each other token that
some known program has at this place, after the same beginning, leads to the best of those programs; where that one is
slower by more than the noise, failed, would be wrong, or where no layout that the matrix admits begins so, the token is
a worse way on. Tokens that nothing is known of, and ways that are as good, are no forks.

    forks(good, ways, gap)    →    [Fork(at=2, worse=(412, 96)), …]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from sparserl.matrix import Array
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode
from sparserl.train.collected import CollectedCase

BRIEF = 0.06
"""by so much, as a logarithm, a brief time may be too long: it counts as that much shorter"""


@dataclass(frozen=True)
class Fork:
    """A token of a program, and others in its place that lead to something worse."""

    at: int
    worse: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Lines:
    """All layouts of a problem that are known, as ids: beginnings of programs up to the end of the layout's line."""

    names: tuple[str, ...]
    table: Array
    """(lines, tokens), filled up with -1"""

    @classmethod
    def of(cls, names: Iterable[str], tokenizer: Tokenizer) -> Lines:
        known = tuple(sorted(set(names)))
        return cls(known, _table([line_ids(each, tokenizer) for each in known]))


class Fit:
    """Which of the lines a matrix admits."""

    def __init__(self, lines: Lines, admitted: Iterable[str]) -> None:
        fits = frozenset(admitted)
        self._table, self._fits = lines.table, np.array([each in fits for each in lines.names], dtype=bool)
        self._newline = lines.table[0][lines.table[0] >= 0][-1] if lines.table.size else -1
        self._known: dict[bytes, set[tuple[int, int]]] = {}

    def refused(self, good: Array) -> set[tuple[int, int]]:
        """(place, token) along a program from which on there is no line that is admitted."""
        if not self._table.size:
            return set()
        header = good[: self._table.shape[1]]
        end = int((header == self._newline).argmax()) + 1  # what follows the line is not asked about
        key = header[:end].tobytes()
        if key not in self._known:
            first, token = _parting(header[:end], self._table)
            ways = list(zip(first.tolist(), token.tolist(), strict=True))
            open_ways = {way for way, fits in zip(ways, self._fits.tolist(), strict=True) if fits}
            self._known[key] = {way for way in ways if way[1] >= 0} - open_ways
        return self._known[key]


@dataclass(frozen=True, eq=False)
class Ways:
    """What is known of one matrix, problem and mode."""

    programs: Array
    """ids (programs, tokens), filled up with -1"""
    times: Array
    """(programs) logarithm of microseconds; infinite where it is of no use"""
    fit: Fit


def _table(sequences: Sequence[Array]) -> Array:
    width = max((len(each) for each in sequences), default=0)
    table = np.full((len(sequences), width), -1, dtype=np.int32)
    for row, each in zip(table, sequences, strict=True):
        row[: len(each)] = each
    return table


def line_ids(line: str, tokenizer: Tokenizer) -> Array:
    """A program's ids up to the end of the line that names this layout."""
    ids = [tokenizer.program, tokenizer.special["<layout>"], *tokenizer.encode(f"{line}\n")]
    return np.array(ids, dtype=np.int32)


def log_times(case: CollectedCase, mode: Mode) -> dict[str, float]:
    """Every program of a case that has something to say in a mode: those that failed take for ever."""
    found = {}
    for each in case.programs:
        if not each.correct:
            found[each.program] = inf
        elif mode in each.times_us:
            found[each.program] = log(each.times_us[mode]) - (0.0 if each.retimed else BRIEF)
    return found


def ways_of(programs: Iterable[tuple[Array, float]], fit: Fit) -> Ways:
    """All that is known, ready to be laid along programs."""
    known = list(programs)
    return Ways(_table([ids for ids, _ in known]), np.array([time for _, time in known]), fit)


def forks(good: Array, ways: Ways, gap: float) -> list[Fork]:
    """Where another way on is worse by more than `gap` (of a logarithm) than the best that goes on as `good` does."""
    worse: dict[int, set[int]] = {}
    first, other = _parting(good, ways.programs)
    best: dict[tuple[int, int], float] = {}
    for at, token, time in zip(first.tolist(), other.tolist(), ways.times.tolist(), strict=True):
        best[at, token] = min(time, best.get((at, token), inf))
    for (at, token), time in best.items():
        if at < len(good) and time - float(ways.times[first > at].min(initial=inf)) > gap:
            worse.setdefault(at, set()).add(token)
    for at, token in ways.fit.refused(good):
        if best.get((at, token), inf) == inf:
            worse.setdefault(at, set()).add(token)
    return [Fork(at, tuple(sorted(tokens))) for at, tokens in sorted(worse.items())]


def _parting(good: Array, table: Array) -> tuple[Array, Array]:
    """Of every row the first place where it differs from `good`, and its token there; its width and -1 for none."""
    if not table.size:
        return np.zeros(len(table), dtype=int), np.full(len(table), -1)
    width = table.shape[1]
    own = np.full(width, -1, dtype=table.dtype)
    own[: min(width, len(good))] = good[:width]
    differs = table != own
    some = differs.any(axis=1)
    first = np.where(some, differs.argmax(axis=1), width)
    return first, np.where(some, table[np.arange(len(table)), np.minimum(first, width - 1)], -1)
