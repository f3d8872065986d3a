"""Forks: the places of a good program where another way to go on is known, and is worse.

Two programs of one matrix agree up to some token and then part: that token is a decision, and what follows is mostly
its consequence. Here all that is known of a matrix is laid along a good program. At every token, each other token that
some known program has at this place, after the same beginning, leads to the best of those programs; where that one is
slower by more than the noise, failed, would be wrong, or where no layout that the matrix admits begins so, the token is
a worse way on. Tokens that nothing is known of, and ways that are as good, are no forks.

    forks(good, ways, gap)    →    [Fork(at=2, worse=(412, 96)), …]

What is learnt there (`pull_of`) is the preference of the good token over the worse ones in its place:

    -log sigmoid(log p(good) - log p(worse))

This is what preference optimisation of two programs says of the one token at which they part. What follows that token
is left alone: making the rest of a loser less probable unlearns how to write it (with whole texts, a third of the
samples that had been right no longer were; with whole headers, one in fifty was no longer a program).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from sparserl.matrix import Array
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode
from sparserl.train.chosen import Chosen
from sparserl.train.collected import CollectedCase, Collection
from sparserl.train.withheld import withheld_text

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
    soonest: Array
    """(programs) logarithm of microseconds, as short as it may be; infinite where it is of no use"""
    surely: Array
    """(programs) the same as it was measured; infinite where that may be luck"""
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


def log_times(case: CollectedCase, mode: Mode) -> dict[str, tuple[float, float]]:
    """Every program of a case that has something to say in a mode: the least that it may take, and what it surely does.

    Those that failed take for ever. Where some were timed longer, the brief times are sure of nothing: the least of
    many is luck.
    """
    timed = [each for each in case.programs if each.correct and mode in each.times_us]
    longer = any(each.retimed for each in timed)
    found = {each.program: (inf, inf) for each in case.programs if not each.correct}
    for each in timed:
        time = log(each.times_us[mode])
        found[each.program] = (time, time) if each.retimed else (time - BRIEF, inf if longer else time)
    return found


def ways_of(programs: Iterable[tuple[Array, tuple[float, float]]], fit: Fit) -> Ways:
    """All that is known, ready to be laid along programs. Times as `log_times` gives them."""
    known = list(programs)
    times = np.array([times for _, times in known]).reshape(-1, 2)
    return Ways(_table([ids for ids, _ in known]), times[:, 0], times[:, 1], fit)


def forks(good: Array, ways: Ways, gap: float) -> list[Fork]:
    """Where another way on is worse by more than `gap` (of a logarithm) than the best that goes on as `good` does."""
    worse: dict[int, set[int]] = {}
    first, other = _parting(good, ways.programs)
    best: dict[tuple[int, int], float] = {}
    for at, token, time in zip(first.tolist(), other.tolist(), ways.soonest.tolist(), strict=True):
        best[at, token] = min(time, best.get((at, token), inf))
    order = np.argsort(-first, kind="stable")  # those that part last come first
    surely = np.concatenate([[inf], np.minimum.accumulate(ways.surely[order])]).tolist()
    further = np.searchsorted(-first[order], [-at for at, _ in best], side="left").tolist()  # that part behind it
    for ((at, token), time), count in zip(best.items(), further, strict=True):
        if at < len(good) and time - surely[count] > gap:
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


# ── Of a whole collection ─────────────────────────────────────────────────────


class Drawn(NamedTuple):
    """Whose forks: a matrix, a problem, a mode and a good program."""

    case: str
    problem: str
    mode: Mode
    program: str

    @classmethod
    def of(cls, each: Chosen) -> Drawn:
        return cls(each.case, each.problem, each.mode, each.program)


Forked = Mapping[Drawn, Sequence[Fork]]


def all_forks(
    collection: Collection, chosen: Iterable[Chosen], ids: Mapping[str, Array],
    misfits: Mapping[tuple[str, str], Sequence[str]], gap: float,
) -> dict[Drawn, list[Fork]]:  # fmt: skip
    """The forks of all good programs, those that have any."""
    wanted: dict[tuple[str, str], list[Chosen]] = {}
    for each in chosen:
        if not each.body and each.program in ids:
            wanted.setdefault((each.case, each.problem), []).append(each)
    lines = _lines(collection)
    found: dict[Drawn, list[Fork]] = {}
    for case in collection.cases:
        ways: dict[Mode, Ways] = {}
        key, fit = (case.name, case.problem), Fit(lines[case.problem], case.admitted)
        for each in wanted.get(key, ()):
            if each.mode not in ways:
                known = known_of_case(case, collection, ids, misfits.get(key, ()), each.mode)
                ways[each.mode] = ways_of(known, fit)
            if some := forks(ids[each.program], ways[each.mode], gap):
                found[Drawn.of(each)] = some
    return found


def _lines(collection: Collection) -> dict[str, Lines]:
    """By problem: every layout that some matrix of the collection admits."""
    names: dict[str, set[str]] = {}
    for case in collection.cases:
        names.setdefault(case.problem, set()).update(case.admitted)
    tokenizer = Tokenizer.load()
    return {problem: Lines.of(some, tokenizer) for problem, some in names.items()}


def known_of_case(
    case: CollectedCase, collection: Collection, ids: Mapping[str, Array], misfits: Sequence[str], mode: Mode
) -> Iterator[tuple[Array, tuple[float, float]]]:
    """Programs of a case as ids, with their times."""
    times = dict.fromkeys(misfits, (inf, inf)) | log_times(case, mode)
    for program, both in times.items():
        if program in ids and not withheld_text(collection.texts[program].text):
            yield ids[program], both


def pull_of(logits: Tensor, ids: Tensor, forked: Sequence[Sequence[Fork]]) -> Tensor:
    """-log sigmoid(log p(good) - log p(worse)), a fork each. logits: (batch, tokens - 1, vocabulary) of ids."""
    flat = [(row, fork) for row, some in enumerate(forked) for fork in some]
    most = max((len(fork.worse) for _, fork in flat), default=1)
    tokens = np.zeros((len(flat), most), dtype=np.int64)
    there = np.zeros((len(flat), most), dtype=bool)
    for k, (_, fork) in enumerate(flat):
        tokens[k, : len(fork.worse)] = fork.worse
        there[k, : len(fork.worse)] = True
    rows, at = (torch.tensor(each, dtype=torch.int64) for each in ([r for r, _ in flat], [f.at for _, f in flat]))
    rows, at, worse, known = (
        each.to(logits.device, non_blocking=True)
        for each in (rows, at, torch.from_numpy(tokens), torch.from_numpy(there))
    )
    good = logits[rows, at - 1, ids[rows, at]].float()
    others = logits[rows[:, None], at[:, None] - 1, worse].float().masked_fill(~known, -torch.inf)
    return softplus(torch.logsumexp(others, dim=1) - good)
