"""A referee in front of another one: what was judged is not judged again, where that is allowed.

On the simulator it always is: a verdict is a function of prompt and text. On a GPU times differ from one measurement to
the next; with `RefereeConfig.remember` the first one counts, of what other runs have stored (`recall`) the last.

Not covered: telling apart what was measured on GPUs of two kinds. Recall runs of one machine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sparserl.errors import StoreError
from sparserl.train.rl.nouns import Judged, Prompt, prompt_key, raced_texts
from sparserl.train.rl.referee_local import Counts, Request
from sparserl.train.rl.referee_worker import RefereeConfig
from sparserl.train.rl.rollout_store import open_rollouts

KEPT = 500_000
"""verdicts that are remembered, of brief timings and of long ones each"""

Groups = Sequence[tuple[Prompt, Sequence[str]]]
Verdicts = OrderedDict[tuple[str, str], Judged]
"""by prompt and text, the oldest first"""


class ManyReferee(Protocol):
    """A referee that can time several groups' winners at once, and counts."""

    counts: Counts

    @property
    def places(self) -> int: ...

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]: ...

    def retime_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]: ...

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
        return _others(texts, _at_hand(self._known, prompt_key(prompt), texts))

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]:
        """What was known first, then what gets done."""
        keys = [prompt_key(prompt) for prompt, _ in groups]
        known = [_at_hand(self._known, key, texts) for key, (_, texts) in zip(keys, groups, strict=True)]
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
                if self._on:
                    _keep(self._known, keys[place], fresh)
                yield place, self._in_order(groups[place][1], {**known[place], **fresh}, len(fresh))

        return told()

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        return next(self.retime_many([(prompt, texts, incumbent)]))[1]

    def retime_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]:
        """A request of which one text is new is timed as a whole: its texts are held against each other."""
        keys = [prompt_key(prompt) for prompt, _, _ in requests]
        wanted = [raced_texts(texts, incumbent) for _, texts, incumbent in requests]
        known = [_at_hand(self._timed, key, texts) for key, texts in zip(keys, wanted, strict=True)]
        asked = [place for place, texts in enumerate(wanted) if len(known[place]) < len(texts)]
        answers = self.inner.retime_many([requests[place] for place in asked])

        def told() -> Iterator[tuple[int, dict[str, Judged]]]:
            for place in sorted({*range(len(requests))} - {*asked}):
                yield place, known[place]
            for which, said in answers:
                if self._on:
                    _keep(self._timed, keys[asked[which]], said)
                yield asked[which], said

        return told()

    def close(self) -> None:
        self.inner.close()

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
