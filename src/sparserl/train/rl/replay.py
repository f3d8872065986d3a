"""A referee without a machine: it says what was said when the rollouts of a folder were stored.

A program that was judged on a prompt several times gets its verdicts in the order that they were asked for: round by
round, of a round all first turns, then all second ones, and variants of winners last. Once they have all been told, the
last one stays. So a run that asks as the first one did hears what the first one heard.

Not covered: programs that nobody wrote before. They raise StoreError, or get one verdict for all (`unknown`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from sparserl.errors import StoreError
from sparserl.records import Verdict
from sparserl.train.rl.nouns import VARIED, Judged, Prompt, prompt_key, raced_texts
from sparserl.train.rl.rollout_store import open_rollouts

Key = tuple[str, str]
"""prompt and text"""


class ReplayReferee:
    """Implements `referee.Referee`."""

    def __init__(self, folder: Path, unknown: Verdict | None = None) -> None:
        """`unknown`: the verdict on a program that was not stored; None: StoreError."""
        self.folder, self.unknown = folder, unknown
        self._judged: dict[Key, deque[Judged]] = {}
        self._retimed: dict[Key, deque[Judged]] = {}
        self._silent: set[str] = set()  # prompts of which a retiming once said nothing
        store = open_rollouts(folder)
        for _, group in groupby(store.rollouts(), key=lambda each: each[0]):
            turns = [(each, at) for _, each in group for at in range(len(each.turns))]
            for rollout, at in sorted(turns, key=lambda each: (each[0].origin == VARIED, each[1])):
                turn = rollout.turns[at]
                self._judged.setdefault((prompt_key(rollout.prompt), turn.text), deque()).append(turn.judged)
        for _, prompt, said in store.retimed():
            if not said:
                self._silent.add(prompt_key(prompt))
            for text, judged in said.items():
                self._retimed.setdefault((prompt_key(prompt), text), deque()).append(judged)

    def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
        for place, (prompt, texts) in enumerate(groups):
            yield place, [self._told(self._judged, prompt, text) for text in texts]

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        asked, key = raced_texts(texts, incumbent), prompt_key(prompt)
        if key in self._silent and not all((key, text) in self._retimed for text in asked):
            return {}
        return {text: self._told(self._retimed, prompt, text) for text in asked}

    def close(self) -> None:
        """Nothing is held."""

    def _told(self, stored: dict[Key, deque[Judged]], prompt: Prompt, text: str) -> Judged:
        said = stored.get((prompt_key(prompt), text))
        if said:
            return said.popleft() if len(said) > 1 else said[0]
        if self.unknown is None:
            what = "retimed" if stored is self._retimed else "judged"
            raise StoreError(
                f"{self.folder} has no program like this {what} on '{prompt.case}' "
                f"({prompt.problem.op} {prompt.problem.dtype}): {text[:60]!r}… "
                "Replay with the settings and seed of that run, judge on a machine (--judge sim or cuda), "
                "or choose a verdict for programs that are not known."
            )
        return Judged(self.unknown, "not among the stored rollouts")
