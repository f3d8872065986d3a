"""A twin: another pattern of the same sizes. A program that carries the pattern in its text is wrong on it.

Rows keep their lengths; columns are renamed at random, or mirrored where a layout needs neighbours to stay neighbours
(16-bit indices, blocks). A twin serves a program only if it makes the very same job of it: same source with the same
baked constants, same sizes, same launches. Then the binary that was judged multiplies it, and must be right.

Not covered: layouts whose sizes follow from the columns themselves (diagonals, column blocks), for which there is often
no twin, and patterns that are their own twins (dense rows).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparserl.assemble import assemble
from sparserl.errors import LayoutError, ProgramError
from sparserl.judge.prepare import Packs, Prepared
from sparserl.judge.reference import Reference
from sparserl.judge.trial import twin_set
from sparserl.matrix import Pattern
from sparserl.records import Packed, Problem


class Twins:
    """The twins of one pattern, made when they are first asked for."""

    def __init__(self, pattern: Pattern, problem: Problem, sms: int, seed: int | None) -> None:
        self._pattern, self._problem, self._sms, self._seed = pattern, problem, sms, seed
        self._made: list[tuple[Packs, Reference]] | None = None

    def begin(self) -> None:
        """Programs that are judged from here on are shown the same numbers on a twin too."""
        for _, reference in self._made or ():
            reference.begin()

    def foresee(self) -> None:
        """Make them, and draw what programs to come are shown there."""
        for _, reference in self._all():
            twin_set(reference)

    def of(self, prepared: Prepared) -> tuple[Packed, Reference] | None:
        """A packed twin that this program can't tell from the matrix by its sizes, with its reference; or None.

        Packed twins are kept: who asks while there is something to wait for, need not wait later.
        """
        for packs, reference in self._all():
            try:
                packed = packs.get(prepared.layout)
                job = assemble(prepared.program, packed, self._problem, self._sms)
            except (LayoutError, ProgramError):
                continue
            if job == prepared.job:
                return packed, reference
        return None

    def _all(self) -> list[tuple[Packs, Reference]]:
        if self._made is None:
            twins = _twins(self._pattern, self._seed)
            self._made = [(Packs(twin), Reference(twin, self._problem, self._seed)) for twin in twins]
            self.begin()
        return self._made


def _twins(pattern: Pattern, seed: int | None) -> Iterator[Pattern]:
    """The pattern with other columns; those that come out the same are left out."""
    before = np.repeat(np.arange(pattern.rows, dtype=np.int64) * pattern.columns, pattern.row_lengths)
    renamed = np.random.default_rng(seed).permutation(pattern.columns)
    for names in (renamed, np.arange(pattern.columns)[::-1]):
        places = before + names[pattern.cols]
        places.sort()
        twin = Pattern(pattern.rows, pattern.columns, pattern.row_start, (places - before).astype(np.int32))
        if not np.array_equal(twin.cols, pattern.cols):
            yield twin
