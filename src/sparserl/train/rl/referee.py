"""Who says what programs are worth: the Referee that learning talks to, whichever machine stands behind it.

    referee = open_referee("local")          # processes on this machine: its GPU, or else the simulator, with a warning
    referee = open_referee("cuda" | "sim")   # the same, by name
    referee = open_referee("replay:FOLDER")  # verdicts of stored rollouts, no machine
    referee = open_referee("ray://HOST:10001" | "ray://local")   # processes on a Ray cluster

What was judged before is not judged again on the simulator, and on a GPU where that is asked for (`remembering`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from sparserl.records import Verdict
from sparserl.train.rl.nouns import Judged, Prompt
from sparserl.train.rl.referee_local import Counts, LocalReferee, Request
from sparserl.train.rl.referee_worker import RefereeConfig
from sparserl.train.rl.remembering import Groups, Remembering

__all__ = [
    "Counts", "EagerReferee", "ManyPlaces", "Referee", "RefereeConfig", "Remembering", "Request", "open_referee",
    "retime_all",
]  # fmt: skip

log = logging.getLogger(__name__)

CHOICES = "local, cuda, sim, replay:FOLDER, ray://HOST:PORT or ray://local"


class Referee(Protocol):
    """Judges groups of programs, a group a prompt."""

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]:
        """(which group, verdicts in the order of its texts), as groups get done; times are brief."""

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        """By text, longer, side by side with the incumbent and the baseline."""

    def close(self) -> None: ...


@runtime_checkable
class EagerReferee(Protocol):
    """One that can begin with winners while other groups are being judged."""

    eager: bool
    """whether it does"""

    def retime_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]:
        """`retime` of several, as they get done; where `eager`, begun when this returns."""


@runtime_checkable
class ManyPlaces(Protocol):
    """One that judges several groups side by side, and may know some of the answers."""

    @property
    def places(self) -> int:
        """How many."""

    def unknown(self, prompt: Prompt, texts: Sequence[str]) -> list[str]:
        """Those that it would have to judge, each once."""


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


def _device() -> str:
    """The GPU where there is one; never the simulator without a word."""
    from sparserl.backends.cuda import why_not

    reason = why_not()
    if reason is None:
        return "cuda"
    log.warning("No GPU to judge on (%s); the simulator judges, and its times are modelled.", reason)
    return "sim"
