"""Programs for one matrix in several turns: a writer's first ones, then those it makes of them, told how they fared.

    rewriter = Rewriter(writer, pattern, problem, machine="sim", seed=0)
    texts = rewriter.write(8)                    # judge them
    children = rewriter.rewrite([(text, Told(Verdict.WRONG, "row 3 is off")) for text in texts], 8)

What stands between two programs, and which ones are written again, is decided in `feedback`. Not covered: judging, and
tokens with their log-probabilities for learning (`train/rl/episodes`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparserl.errors import SparseRLError
from sparserl.layouts import admits
from sparserl.matrix import Pattern
from sparserl.policy.feedback import Told, fits, last_text, line_ids, need, together, worth_another
from sparserl.policy.sampler import Written
from sparserl.policy.writer import Writer
from sparserl.program import parse
from sparserl.records import Mode, Problem

SPARE = 2
"""programs that are drawn for one that is wanted"""


@dataclass(frozen=True)
class Draft:
    """A program, and those that it was made of."""

    ids: tuple[int, ...]
    """its own, from '<program>' on: what stands before it is not read again"""
    texts: tuple[str, ...]
    """of all turns; its own is the last"""
    tokens: int
    """that the policy wrote in this turn"""
    finished: bool
    """whether it has its <eos>"""


class Rewriter:
    """One writer for one matrix and problem. It remembers what it wrote."""

    def __init__(
        self, writer: Writer, pattern: Pattern, problem: Problem, *, machine: str, seed: int, mode: Mode = "solver"
    ) -> None:
        self._writer, self._pattern, self._problem, self._machine = writer, pattern, problem, machine
        self._mode: Mode = mode
        self._seed, self._turn = seed, 0
        self._drafts: dict[str, Draft] = {}

    def write(self, count: int) -> list[str]:
        """At most `count` first programs, each once.

        Programs are often written twice, and some are for a layout that this matrix does not admit, so more are drawn:
        together they take little longer. What the matrix admits comes first.
        """
        drawing = replace(self._writer.settings, seed=self._seed)
        (drawn,) = self._writer.write(
            [self._pattern], self._problem, SPARE * count, machine=self._machine, settings=drawing, mode=self._mode
        )
        made: dict[str, Draft] = {}
        for written in drawn:
            made.setdefault(written.text, _draft((), written.text, written))
        texts = sorted(made, key=lambda text: not self._admitted(text))[:count]  # equal ones stay in order
        self._drafts |= {text: made[text] for text in texts}
        return texts

    def _admitted(self, text: str) -> bool:
        try:
            return admits(self._pattern, parse(text).layout) is None
        except SparseRLError:
            return False

    def rewrite(self, told: Sequence[tuple[str, Told]], count: int) -> dict[str, str]:
        """`count` programs made of those of `told`, each of these once, in order, and then round again.

        Returns the new texts, each with the one that it was made of; texts that were written before are left out, and
        so are those of `told` that there is nothing to gain from, or no room for.
        """
        self._turn += 1
        going = [(self._drafts[text], said) for text, said in told if self._goes_on(self._drafts[text], said)]
        dealt = [going[place % len(going)] for place in range(count)] if going else []
        children: dict[str, str] = {}
        for (parent, _), written in zip(dealt, self._written(dealt), strict=True):
            text = last_text(written.ids, written.given, self._writer.tokenizer)
            if text not in self._drafts:
                self._drafts[text] = _draft(parent.texts, text, written)
                children[text] = parent.texts[-1]
        return children

    def _goes_on(self, draft: Draft, told: Told) -> bool:
        return worth_another(draft.texts, draft.finished, told) and fits(
            self._writer.policy, len(draft.ids), draft.tokens
        )

    def _written(self, dealt: Sequence[tuple[Draft, Told]]) -> list[Written]:
        """One program for each, in order."""
        writer, settings = self._writer, self._writer.settings
        given = [[*draft.ids, *line_ids(told, writer.tokenizer)] for draft, told in dealt]
        needs = [need(draft.tokens) for draft, _ in dealt]
        seed = zlib.crc32(f"{self._seed} turn {self._turn}".encode())
        found: dict[int, Written] = {}
        for part, _ in together(writer.policy, list(map(len, given)), needs, settings.batch):
            drawn = writer.write(
                [self._pattern] * len(part), self._problem, 1, machine=self._machine,
                settings=replace(settings, seed=seed), mode=self._mode, forced=[given[place][1:] for place in part],
            )  # fmt: skip
            seed = (seed + 1) % (1 << 32)
            found.update((place, one) for place, (one,) in zip(part, drawn, strict=True))
        return [found[place] for place in range(len(dealt))]


def _draft(before: tuple[str, ...], text: str, written: Written) -> Draft:
    own = written.ids[written.given - 1 :]  # the last token that was given is its '<program>'
    return Draft(tuple(own), (*before, text), len(written.ids) - written.given, written.finished)
