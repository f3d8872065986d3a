"""Who says what programs are worth: the Referee that learning talks to, whichever machine stands behind it.

    referee = open_referee("local")          # processes on this machine: its GPU, or else the simulator, with a warning
    referee = open_referee("cuda" | "sim")   # the same, by name
    referee = open_referee("replay:FOLDER")  # verdicts of stored rollouts, no machine
    referee = open_referee("ray://HOST:10001" | "ray://local")   # processes on a Ray cluster

On the simulator a verdict is a function of prompt and text, and each is judged once. On a GPU times differ from one
measurement to the next; with `remember` the first one counts.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sparserl.records import Verdict
from sparserl.train.rl.nouns import Judged, Prompt, prompt_key
from sparserl.train.rl.referee_local import Counts, LocalReferee, Request
from sparserl.train.rl.referee_worker import RefereeConfig

__all__ = ["Counts", "Referee", "RefereeConfig", "Remembering", "open_referee", "retime_all"]

log = logging.getLogger(__name__)

CHOICES = "local, cuda, sim, replay:FOLDER, ray://HOST:PORT or ray://local"
KEPT = 500_000
"""verdicts that are remembered"""

Groups = Sequence[tuple[Prompt, Sequence[str]]]


class Referee(Protocol):
    """Judges groups of programs, a group a prompt."""

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]:
        """(which group, verdicts in the order of its texts), as groups get done; times are brief."""

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        """By text, longer, side by side with the incumbent and the baseline."""

    def close(self) -> None: ...


class ManyReferee(Referee, Protocol):
    """A referee that can time several groups' winners at once, and counts."""

    counts: Counts

    def retime_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]: ...


def open_referee(spec: str, config: RefereeConfig | None = None) -> Referee:
    """The referee that `--judge` names. Close it when done."""
    config = config or RefereeConfig()
    if spec in ("local", "cuda", "sim"):
        config = replace(config, device=_device() if spec == "local" else spec)  # type: ignore[arg-type]
        return Remembering(LocalReferee(config), config)
    if spec.startswith("replay:") and spec != "replay:":
        from sparserl.train.rl.replay import ReplayReferee

        return ReplayReferee(Path(spec.removeprefix("replay:")), Verdict[config.unknown] if config.unknown else None)
    if spec.startswith("ray://") and spec != "ray://":
        from sparserl.train.rl.referee_ray import RayReferee

        return Remembering(RayReferee(spec, config), config)
    raise ValueError(f"The 'judge' must be {CHOICES}. Got {spec!r}.")


def retime_all(referee: Referee, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]:
    """(prompt, texts, incumbent) after the other; all at once where the referee can."""
    many = getattr(referee, "retime_many", None)
    if many is not None:
        yield from many(requests)
        return
    for place, request in enumerate(requests):
        yield place, referee.retime(*request)


class Remembering:
    """A referee in front of another one: what was judged is not judged again, where that is allowed."""

    def __init__(self, inner: ManyReferee, config: RefereeConfig) -> None:
        self.inner, self.counts = inner, inner.counts
        self._on = config.device == "sim" or config.remember
        self._known: OrderedDict[tuple[str, str], Judged] = OrderedDict()

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]:
        """What was known first, then what gets done."""
        keys = [prompt_key(prompt) for prompt, _ in groups]
        known = [self._at_hand(key, texts) for key, (_, texts) in zip(keys, groups, strict=True)]
        new = [
            [t for t in dict.fromkeys(texts) if t not in there] for (_, texts), there in zip(groups, known, strict=True)
        ]
        asked = [place for place, texts in enumerate(new) if texts]
        answers = self.inner.judge([(groups[place][0], new[place]) for place in asked])

        def told() -> Iterator[tuple[int, list[Judged]]]:
            for place, texts in enumerate(new):
                if not texts:
                    yield place, self._in_order(groups[place][1], known[place], 0)
            for which, verdicts in answers:
                place = asked[which]
                fresh = dict(zip(new[place], verdicts, strict=True))
                self._keep(keys[place], fresh)
                yield place, self._in_order(groups[place][1], {**known[place], **fresh}, len(fresh))

        return told()

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        return self.inner.retime(prompt, texts, incumbent)

    def retime_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]:
        return self.inner.retime_many(requests)

    def close(self) -> None:
        self.inner.close()

    def _at_hand(self, key: str, texts: Sequence[str]) -> dict[str, Judged]:
        return {text: self._known[key, text] for text in texts if (key, text) in self._known}

    def _in_order(self, texts: Sequence[str], known: Mapping[str, Judged], fresh: int) -> list[Judged]:
        self.counts.remembered += len(texts) - fresh
        return [known[text] for text in texts]

    def _keep(self, key: str, fresh: Mapping[str, Judged]) -> None:
        if self._on:
            self._known.update({(key, text): judged for text, judged in fresh.items()})
            while len(self._known) > KEPT:
                self._known.popitem(last=False)


def _device() -> str:
    """The GPU where there is one; never the simulator without a word."""
    from sparserl.backends.cuda import why_not

    reason = why_not()
    if reason is None:
        return "cuda"
    log.warning("No GPU to judge on (%s); the simulator judges, and its times are modelled.", reason)
    return "sim"
