"""Stage: a policy plays the matrices of a run again, and learns nothing: what it writes now, with as many judged tries.

    sparserl train play --weights runs/rl --like runs/rl --count 200 --out runs/play --device cuda
    sparserl train beyond --rollouts runs/play --climb runs/climb --out results/NAME      # as a run's own rollouts

Most of what a run tried on a matrix was written long before its last round. Here every program is of the same weights,
drawn as the policy is shipped to be (its own temperature, no layouts given), with the longer timings that a round has.
A group of 32 has some 12 different programs; a climb judges none twice. With `--draws` more are written, and those that
differ are judged, so that both have as many tries that tell something.

    rollouts/       as of a run (`rollout_store`)
    rounds.jsonl    one line a round that is done; a second call goes on after it, or in the middle of the one that it
                    was given up in, with the verdicts heard until then

Not covered: episodes of several turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from sparserl.errors import SparseRLError
from sparserl.policy.sampler import Sampler
from sparserl.policy.writer import Writer
from sparserl.store import append_jsonl, claim, read_jsonl
from sparserl.train.cases import from_source
from sparserl.train.collected import CollectedCase
from sparserl.train.loop import device_of, policy_folder, weights_sha
from sparserl.train.rl.config import JudgedOn, RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.curriculum import Results
from sparserl.train.rl.diagnostics import summary
from sparserl.train.rl.episodes import Episode, Look, PlayConfig, Player, Reward
from sparserl.train.rl.explore import Elites
from sparserl.train.rl.nouns import Prompt, prompt_key
from sparserl.train.rl.referee import Referee
from sparserl.train.rl.remembering import TimeUpError, heard_by
from sparserl.train.rl.rollout_store import FOLDER, Journal, RolloutStore
from sparserl.train.rl.rounds import Played, play_round, reward_of
from sparserl.train.samples import samples_of

ROUNDS, ABOUT = "rounds.jsonl", "about.json"


@dataclass(frozen=True)
class PlayingConfig:
    """Who plays, and how."""

    weights: Path
    judged_on: JudgedOn = "cuda"
    group: int = 32
    """programs of a matrix that are written together; tries are rounded up to whole groups"""
    draws: int = 1
    """so many times as many programs are written; those that differ are judged, as far as there are so many"""
    prompts: int = 64
    """matrices a round"""
    temperature: float | None = None
    """in place of the policy's own"""
    machine: str = "h200"
    """what the policy is told that it writes for"""
    modes: tuple[str, ...] = ("solver",)
    learn_on: str = "auto"
    """where the policy runs"""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.judged_on not in ("cuda", "sim"):
            raise SparseRLError(f"The 'judged_on' of a PlayingConfig must be cuda or sim. Got {self.judged_on!r}.")
        if self.group < 2 or self.prompts < 1 or self.draws < 1:
            raise SparseRLError(
                "The 'group' of a PlayingConfig must be at least 2, 'prompts' and 'draws' at least 1. "
                f"Got {self.group}, {self.prompts} and {self.draws}."
            )


@dataclass(frozen=True)
class Rounds:
    """In place of a curriculum: all prompts, each as often as it takes, in a fixed order."""

    prompts: Sequence[Prompt]
    size: int

    @property
    def count(self) -> int:
        return -(-len(self.prompts) // self.size)

    def round(self, number: int, results: Results) -> list[Prompt]:
        return list(self.prompts[number * self.size : (number + 1) * self.size])


class Choosy(Player):
    """Writes more programs than it plays, and plays those that differ: a climb judges none twice either."""

    def __init__(
        self, sampler: Sampler, referee: Referee, reward: Reward, look: Look, config: PlayConfig, *, kept: int
    ) -> None:
        super().__init__(sampler, referee, reward, look, config)
        self.kept = kept
        self.played: dict[str, set[str]] = {}
        """texts by prompt"""

    def write(self, prompts: Sequence[Prompt], seed: int) -> list[Episode]:
        """What was not played before, each text once; where that is too few, repeats."""
        chosen: list[Episode] = []
        for _, group in groupby(super().write(prompts, seed), key=lambda each: each.group):
            members = list(group)
            before = self.played.setdefault(prompt_key(members[0].prompt), set())
            new = {each.text: each for each in reversed(members) if each.text not in before}
            order = {id(each): at for at, each in enumerate(reversed(new.values()))}
            members.sort(key=lambda each: order.get(id(each), len(order)))
            chosen += members[: self.kept]
            before |= {each.text for each in members[: self.kept]}
        return chosen


def rounds_of(wanted: Mapping[str, tuple[Prompt, int]], config: PlayingConfig) -> Rounds:
    """A matrix that is played several times is in rounds that lie apart, as far as there are such."""
    times = {key: -(-max(1, tries) // config.group) for key, (_, tries) in wanted.items()}
    laps = range(max(times.values(), default=0))
    return Rounds([wanted[key][0] for lap in laps for key in wanted if times[key] > lap], config.prompts)


def playing(
    wanted: Mapping[str, tuple[Prompt, int]],
    referee: Referee,
    config: PlayingConfig,
    out: Path,
    *,
    matrices: Path | None = None,
    samples: Path | None = None,
    budget_s: float = float("inf"),
) -> Iterator[str]:
    """Play all of them; yields a line to show for each round. wanted: prompts with their tries, by key."""
    until = time.monotonic() + budget_s
    player, settings = _player(wanted, referee, config, matrices, samples or out / "samples.npz")
    _claim(out, config, player.config)
    rounds, store = rounds_of(wanted, config), RolloutStore(out / FOLDER)
    begin = len(read_jsonl(out / ROUNDS))
    store.drop_after(begin - 1)
    for _, rollout in store.rollouts():
        player.played.setdefault(prompt_key(rollout.prompt), set()).update(turn.text for turn in rollout.turns)
    journal = Journal(out / FOLDER)
    for number in range(begin, rounds.count):
        if number > begin and time.monotonic() > until:
            return
        played, journal.round = Played(Elites(config.modes), Results()), number
        try:
            with heard_by(journal, referee, until):
                found = play_round(number, rounds, player, played, config=settings, crew=Crew())
        except TimeUpError:
            return
        store.add(number, found.brief)
        for prompt, judged in found.retimings:
            store.add_retimed(number, prompt, judged)
        figures = {"round": number, "rollouts": len(found.rollouts), **summary(found.rollouts)}
        append_jsonl(out / ROUNDS, figures)
        journal.drop_before(number + 1)
        yield f"round {number + 1} of {rounds.count}: right {figures['share/correct']:.3f}"


def complete(wanted: Mapping[str, tuple[Prompt, int]], config: PlayingConfig, out: Path) -> bool:
    """Whether every round is played."""
    return len(read_jsonl(out / ROUNDS)) >= rounds_of(wanted, config).count


def _player(
    wanted: Mapping[str, tuple[Prompt, int]], referee: Referee, config: PlayingConfig, matrices: Path | None, file: Path
) -> tuple[Choosy, RLConfig]:
    writer = Writer(policy_folder(config.weights), device_of(config.learn_on).type)
    own = writer.settings if config.temperature is None else replace(writer.settings, temperature=config.temperature)
    play = PlayConfig(
        count=config.group * config.draws, explored=0.0, machine=config.machine, modes=config.modes,
        settings=replace(own, batch=config.group * config.prompts),
    )  # fmt: skip
    settings = RLConfig(judged_on=config.judged_on, k=1, play=replace(play, settings=replace(play.settings, top_p=1.0)))
    settings = replace(settings, loop=replace(settings.loop, seed=config.seed))
    cases = [from_source(prompt.case, prompt.source) for prompt, _ in wanted.values()]
    sampled = samples_of(cast("Sequence[CollectedCase]", cases), file, matrices)
    earned = reward_of(settings.weights, config.modes)
    look = lambda prompt: sampled[prompt.case].sample  # noqa: E731
    return Choosy(writer.sampler, referee, earned, look, play, kept=config.group), settings


def _claim(out: Path, config: PlayingConfig, play: PlayConfig) -> None:
    """Write down what the folder is about; refuse one that is about something else."""
    about: dict[str, Any] = {
        "device": config.judged_on,
        "modes": list(config.modes),
        "seed": config.seed,
        "group": config.group,
        "draws": config.draws,
    }
    about |= {"prompts": config.prompts, "temperature": play.settings.temperature, "machine": config.machine}
    about["weights"] = weights_sha(config.weights)
    claim(out / ABOUT, about, "rollouts")
