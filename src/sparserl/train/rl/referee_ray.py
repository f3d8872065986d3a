"""Judging on a Ray cluster: actors that each hold a `LocalReferee` on their own machine, behind the same Protocol.

    open_referee("ray://HOST:10001")   # a cluster that runs already
    open_referee("ray://local")        # one that is started here and ends with the referee

On a cluster with GPUs there is an actor a GPU, each with the processes that `workers` asks for; on the simulator an
actor a CPU, with one process each. An actor gets as many groups at a time as it has processes, and groups of a prompt
go to the actor that knows its matrix where that is free. What an actor had when it died goes to another one; programs
that end a judging process are dealt with inside the actor.

Not covered: installing the package on the cluster's machines, and real matrices: `folder` must be there on each.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from sparserl.errors import BackendError
from sparserl.train.rl.nouns import Judged, Prompt, prompt_key
from sparserl.train.rl.referee_local import Counts, Heard, LocalReferee, Request
from sparserl.train.rl.referee_worker import RefereeConfig

log = logging.getLogger(__name__)

LOCAL = "ray://local"
DEATHS = 3
"""actors that one part of the work may end"""
Part = list[tuple[int, Any]]
"""places in the call, with what is asked"""


class Bench:
    """What an actor is: a LocalReferee that answers in whole parts."""

    def __init__(self, config: RefereeConfig) -> None:
        self._referee = LocalReferee(config)

    def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> tuple[list[tuple[int, list[Judged]]], Counts]:
        return list(self._referee.judge(groups)), self._referee.counts

    def retime(self, requests: Sequence[Request]) -> tuple[list[tuple[int, dict[str, Judged]]], Counts]:
        return list(self._referee.retime_many(requests)), self._referee.counts

    def close(self) -> None:
        self._referee.close()


@dataclass
class _Actor:
    handle: Any
    prompts: set[str] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)


class RayReferee:
    """Implements `referee.Referee`."""

    def __init__(self, address: str, config: RefereeConfig, actors: int = 0) -> None:
        """`actors`: 0 for one a GPU, or one a CPU on the simulator."""
        self._ray = _ray()
        self.config, self.counts = config, Counts()
        self._owns = not self._ray.is_initialized()
        if self._owns:
            _connect(self._ray, address)
        unit = "GPU" if config.device == "cuda" else "CPU"
        there = int(self._ray.cluster_resources().get(unit, 0))
        if not there:
            self._leave()
            raise BackendError(f"The Ray cluster at {address!r} has no {unit} to judge on. Add one, or --judge local.")
        wanted = {"num_gpus": 1, "num_cpus": 0} if config.device == "cuda" else {"num_cpus": 1}
        self._remote = self._ray.remote(**wanted)(Bench)
        # a Ray actor sees its own GPU alone, under whatever number; on the simulator Ray itself shares out the cores
        self._own = replace(config, gpu="") if config.device == "cuda" else replace(config, gpu="", workers=1)
        self._actors = [self._start() for _ in range(min(actors, there) if actors else there)]

    @property
    def places(self) -> int:
        return self._own.places * max(1, len(self._actors))

    def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
        """Verdicts by group, as groups get done."""
        return self._each("judge", list(groups))

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        return next(self.retime_many([(prompt, texts, incumbent)]))[1]

    def retime_many(
        self, requests: Sequence[Request], heard: Heard | None = None
    ) -> Iterator[tuple[int, dict[str, Judged]]]:
        for place, said in self._each("retime", list(requests)):
            if heard is not None:
                heard(place, said)
            yield place, said

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self._actors:
            try:
                self._ray.get(actor.handle.close.remote(), timeout=10)
            except self._ray.exceptions.RayError:  # it is gone already, or busy with what nobody waits for
                log.debug("An actor did not close in time and is killed.")
            self._ray.kill(actor.handle)
        self._actors.clear()
        self._leave()

    def _leave(self) -> None:
        if self._owns:
            self._ray.shutdown()

    def _start(self) -> _Actor:
        return _Actor(self._remote.remote(self._own))

    def _each(self, method: str, asked: list[Any]) -> Iterator[tuple[int, Any]]:
        """Parts go out to actors that are free; answers come back in the order they are made."""
        if not self._actors:
            raise BackendError("The referee is closed. Open a new one.")
        waiting: deque[tuple[int, Any]] = deque(enumerate(asked))
        running: dict[Any, tuple[_Actor, Part]] = {}
        deaths: dict[int, int] = {}
        began = time.monotonic()
        while waiting or running:
            busy = {id(actor) for actor, _ in running.values()}
            for actor in self._actors:
                if waiting and id(actor) not in busy:
                    part = self._take(actor, waiting)
                    running[getattr(actor.handle, method).remote([each for _, each in part])] = actor, part
            done, _ = self._ray.wait(list(running), num_returns=1)
            actor, part = running.pop(done[0])
            try:
                answers, counts = self._ray.get(done[0])
            except self._ray.exceptions.RayActorError as error:
                self._replace(actor, part, deaths, error)
                waiting.extendleft(reversed(part))
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error  # the actor's own error, which says what to do
            self._count(actor, counts)
            self.counts.wall_s, began = self.counts.wall_s + time.monotonic() - began, time.monotonic()
            for place, answer in answers:
                yield part[place][0], answer

    def _take(self, actor: _Actor, waiting: deque[tuple[int, Any]]) -> Part:
        """As many as the actor has processes: those whose prompts it knows, then those that nobody knows."""
        elsewhere = set().union(*(each.prompts for each in self._actors if each is not actor))
        ranked = sorted(waiting, key=lambda each: _rank(prompt_key(each[1][0]), actor.prompts, elsewhere))
        part = ranked[: self._own.places]
        for each in part:
            waiting.remove(each)
            actor.prompts.add(prompt_key(each[1][0]))
        return part

    def _replace(self, actor: _Actor, part: Part, deaths: dict[int, int], error: Exception) -> None:
        log.warning("An actor is replaced: %s", error)
        for place, _ in part:
            deaths[place] = deaths.get(place, 0) + 1
            if deaths[place] == DEATHS:
                raise BackendError(f"{DEATHS} Ray actors died over the same groups, last: {error}") from error
        self._actors[self._actors.index(actor)] = self._start()

    def _count(self, actor: _Actor, counts: Counts) -> None:
        """Add what the actor has done since it was last asked."""
        before, actor.counts = actor.counts, counts
        for name in ("judged", "retimed", "deaths"):
            setattr(self.counts, name, getattr(self.counts, name) + getattr(counts, name) - getattr(before, name))
        for phase, seconds in counts.seconds.items():
            gained = seconds - before.seconds.get(phase, 0.0)
            self.counts.seconds[phase] = self.counts.seconds.get(phase, 0.0) + gained


def _rank(key: str, own: set[str], elsewhere: set[str]) -> int:
    return 0 if key in own else 1 if key not in elsewhere else 2


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise BackendError(
            "Judging on a Ray cluster needs ray, which is not installed: pip install 'ray>=2.50'. "
            "On one machine it is not needed: --judge local."
        ) from error
    return ray  # type: ignore[no-any-return]


def _connect(ray: ModuleType, address: str) -> None:
    try:
        if address == LOCAL:
            ray.init(include_dashboard=False, configure_logging=False, log_to_driver=False)
        else:
            ray.init(address=address, configure_logging=False, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"The Ray cluster at {address!r} can't be reached: {error}. Start one (`ray start --head`), or use {LOCAL}."
        ) from error
