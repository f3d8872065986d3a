"""Which matrices a benchmark is asked for, so that a goal knows how many are missing: the lists of `runs/bench.sh`.

A matrix that was measured is known by its record, a listed one by its list. Any other one is made to be known, which
takes a second or two for a large one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sparserl.bench.figures import Standing
from sparserl.bench.matrices import Entry, entries
from sparserl.bench.tuned import placed
from sparserl.errors import MatrixError

Known = Mapping[str, Standing]
"""by name: what a matrix is, not how it fared"""


@dataclass(frozen=True)
class Lists:
    """What `sparserl bench --matrices` takes; the files of `runs/` are those of this repository, from its root."""

    held: tuple[str, ...] = ("real", "unseen", "runs/fresh.txt")
    large: tuple[str, ...] = ("runs/fresh_large.txt",)
    costed: tuple[str, ...] = ("runs/cost.txt",)


@dataclass(frozen=True)
class Wanted:
    """The matrices of a benchmark."""

    held: Known
    """held out from training, for every problem"""
    large: Known
    """more of these, for SpMV alone"""
    costed: Known
    """on which it is measured what tuning costs"""

    def of(self, problem: str) -> Known:
        return {**self.held, **self.large} if problem.startswith("spmv") else self.held


def wanted(lists: Lists, found: Sequence[Standing] = (), folder: Path | None = None) -> Wanted:
    """All that is named. found: of the records so far; folder: where real matrices lie."""
    there = {s.matrix: s for s in found if s.structure and s.nonzeros}
    named = [entries(list(names), folder) if names else [] for names in (lists.held, lists.large, lists.costed)]
    return Wanted(*({each.name: _known(each, there) for each in some} for some in named))


def _known(entry: Entry, there: Known) -> Standing:
    if entry.name in there:
        return there[entry.name]
    about = placed(entry)
    if entry.case is None:
        with suppress(MatrixError):  # what can't be read counts all the same
            pattern = entry.load().pattern
            about = {**placed(entry, pattern), "rows": pattern.rows, "columns": pattern.columns,
                     "nonzeros": pattern.nonzeros}  # fmt: skip
    return Standing(entry.name, "", "", **about)
