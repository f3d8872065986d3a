"""A referee in front of another one: what was judged is not judged again, where that is allowed.

On the simulator it always is: a verdict is a function of prompt and text. On a GPU times differ from one measurement to
the next; with `RefereeConfig.remember` the first one counts, of what other runs have stored (`recall`) the last.

While a round is played, what the inner one says is written down as it is heard (`heard_by`): a round that is killed, or
given up because the time is up, is played again with the verdicts it has paid for, whether or not anything is
remembered beyond it.

Not covered: telling apart what was measured on GPUs of two kinds. Recall runs of one machine.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Protocol

from sparserl.errors import StoreError
from sparserl.train.rl.nouns import Judged, Prompt, prompt_key, raced_texts
from sparserl.train.rl.referee_local import Counts, Heard, Request
from sparserl.train.rl.referee_worker import RefereeConfig
from sparserl.train.rl.rollout_store import Journal, open_rollouts

KEPT = 500_000
"""verdicts that are remembered, of brief timings and of long ones each"""

Groups = Sequence[tuple[Prompt, Sequence[str]]]
Verdicts = OrderedDict[tuple[str, str], Judged]
"""by prompt and text, the oldest first"""


class TimeUpError(Exception):
    """The time is up in the middle of a round: who plays it gives it up, and plays it again in the next call."""


class ManyReferee(Protocol):
    """A referee that can time several groups' winners at once, and counts."""

    counts: Counts

    @property
    def places(self) -> int: ...

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]: ...

    def retime_many(
        self, requests: Sequence[Request], heard: Heard | None = None
    ) -> Iterator[tuple[int, dict[str, Judged]]]:
        """`heard` is told of an answer as soon as it is there, however late the caller looks at it."""

    def close(self) -> None: ...


class Remembering:
    """Implements `referee.Referee`."""

    def __init__(self, inner: ManyReferee, config: RefereeConfig) -> None:
        self.inner, self.counts = inner, inner.counts
        self.eager: bool = getattr(inner, "eager", False)
        self._source = "modelled" if config.device == "sim" else "gpu"
        self._on = config.device == "sim" or config.remember
        self._known: Verdicts = OrderedDict()
        self._timed: Verdicts = OrderedDict()
        self._journal: Journal | None = None
        self._until_s = inf
        self._new = False  # whether anything was heard that was not known

    @contextmanager
    def noted(self, journal: Journal, until_s: float) -> Iterator[None]:
        """Meanwhile what is heard is written down, and asking raises TimeUpError from `until_s` (`monotonic`) on.

        Not before something new was heard since this was opened: so every call gets on, however short its time is.
        """
        self._journal, self._until_s = journal, until_s
        try:
            yield
        finally:
            self._journal, self._until_s = None, inf

    def recall(self, folder: Path) -> int:
        """Take what the rollouts of a run say for said; how many verdicts that is. From then on nothing is forgotten.

        Raises StoreError where there are none, or where another kind of machine judged them.
        """
        store, before = open_rollouts(folder), len(self._known) + len(self._timed)
        for _, rollout in store.rollouts():
            key = prompt_key(rollout.prompt)
            _keep(self._known, key, {turn.text: self._own(turn.judged, folder) for turn in rollout.turns})
        for _, prompt, said in store.retimed():
            _keep(self._timed, prompt_key(prompt), {text: self._own(judged, folder) for text, judged in said.items()})
        self._on = True
        return len(self._known) + len(self._timed) - before

    @property
    def places(self) -> int:
        """How many groups are judged side by side."""
        return self.inner.places

    def unknown(self, prompt: Prompt, texts: Sequence[str]) -> list[str]:
        """Those that have yet to be judged, each once."""
        return _others(texts, self._told_before(prompt_key(prompt), texts, take=False))

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]:
        """What was known first, then what gets done."""
        self._in_time()
        keys = [prompt_key(prompt) for prompt, _ in groups]
        known = [self._told_before(key, texts) for key, (_, texts) in zip(keys, groups, strict=True)]
        new = [_others(texts, there) for (_, texts), there in zip(groups, known, strict=True)]
        asked = [place for place, texts in enumerate(new) if texts]
        answers = self.inner.judge([(groups[place][0], new[place]) for place in asked])

        def told() -> Iterator[tuple[int, list[Judged]]]:
            for place, texts in enumerate(new):
                if not texts:
                    yield place, self._in_order(groups[place][1], known[place], 0)
            for which, verdicts in answers:
                place = asked[which]
                fresh = dict(zip(new[place], verdicts, strict=True))
                if self._journal is not None:
                    self._journal.hear(keys[place], fresh)
                if self._on:
                    _keep(self._known, keys[place], fresh)
                self._new = True
                self._in_time()
                yield place, self._in_order(groups[place][1], {**known[place], **fresh}, len(fresh))

        return told()

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        return next(self.retime_many([(prompt, texts, incumbent)]))[1]

    def retime_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]:
        """A request of which one text is new is timed as a whole: its texts are held against each other."""
        self._in_time()
        keys, journal = [prompt_key(prompt) for prompt, _, _ in requests], self._journal
        wanted = [raced_texts(texts, incumbent) for _, texts, incumbent in requests]
        known = [self._timed_before(key, texts) for key, texts in zip(keys, wanted, strict=True)]
        asked = [place for place, said in enumerate(known) if said is None]

        def heard(which: int, said: dict[str, Judged]) -> None:
            self._new = True
            if journal is not None:
                journal.hear(keys[asked[which]], said, wanted[asked[which]])

        answers = self.inner.retime_many([requests[place] for place in asked], heard)

        def told() -> Iterator[tuple[int, dict[str, Judged]]]:
            for place, before in enumerate(known):
                if before is not None:
                    yield place, before
            for which, said in answers:
                if self._on:
                    _keep(self._timed, keys[asked[which]], said)
                self._in_time()
                yield asked[which], said

        return told()

    def close(self) -> None:
        self.inner.close()

    def _in_time(self) -> None:
        if self._new and time.monotonic() > self._until_s:
            raise TimeUpError

    def _told_before(self, key: str, texts: Sequence[str], take: bool = True) -> dict[str, Judged]:
        """What is remembered, and else what a round that was broken off has heard."""
        known = _at_hand(self._known, key, texts)
        if self._journal is None:
            return known
        found = self._journal.judged(key, _others(texts, known), take)
        if self._on and take:
            _keep(self._known, key, found)
        return known | found

    def _timed_before(self, key: str, raced: Sequence[str]) -> dict[str, Judged] | None:
        """The same of a retiming; None where some of it is not known."""
        known = _at_hand(self._timed, key, raced)
        if len(known) == len(raced):
            return known
        found = None if self._journal is None else self._journal.retimed(key, raced)
        if found is not None and self._on:
            _keep(self._timed, key, found)
        return found

    def _in_order(self, texts: Sequence[str], known: Mapping[str, Judged], fresh: int) -> list[Judged]:
        self.counts.remembered += len(texts) - fresh
        return [known[text] for text in texts]

    def _own(self, judged: Judged, folder: Path) -> Judged:
        if judged.source != self._source:
            raise StoreError(
                f"The verdicts of {folder} are '{judged.source}', this run's '{self._source}': their times don't mix."
            )
        return judged


def _at_hand(verdicts: Verdicts, key: str, texts: Sequence[str]) -> dict[str, Judged]:
    return {text: verdicts[key, text] for text in texts if (key, text) in verdicts}


def _others(texts: Sequence[str], there: Mapping[str, Judged]) -> list[str]:
    """Each once."""
    return [text for text in dict.fromkeys(texts) if text not in there]


def _keep(verdicts: Verdicts, key: str, fresh: Mapping[str, Judged]) -> None:
    verdicts.update({(key, text): judged for text, judged in fresh.items()})
    while len(verdicts) > KEPT:
        verdicts.popitem(last=False)


@contextmanager
def heard_by(journal: Journal, referee: object, until_s: float = inf) -> Iterator[None]:
    """`Remembering.noted`, where the referee is one; a replay has nothing to lose and takes no time."""
    if isinstance(referee, Remembering):
        with referee.noted(journal, until_s):
            yield
    else:
        yield
