"""The first half of a round: draw prompts, play, judge, time the winners again, remember them. No gradients here.

    the curriculum's prompts → each process plays its share → the fastest of a group, once that is judged, are timed
    again, longer, beside the incumbent (the best program known on that matrix) and the baseline → all processes have
    all rollouts → archive

The longer timing replaces the brief one and its reward; a winner that is wrong on that second look loses its reward.
A round is a function of (seed, round, weights, archive, results) and of what the referee says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from math import log
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from sparserl.errors import StoreError
from sparserl.judge.reward import RewardWeights, mean_speedup, reward
from sparserl.records import Verdict
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.curriculum import Results
from sparserl.train.rl.diagnostics import skeleton_of
from sparserl.train.rl.episodes import Player, Reward, episode_reward, log_speedup
from sparserl.train.rl.explore import Elites, pair_of
from sparserl.train.rl.nouns import VARIED, Judged, Prompt, Rollout
from sparserl.train.rl.referee import EagerReferee, Request, retime_all
from sparserl.train.rl.remembering import TimeUpError
from sparserl.train.rl.rollout_store import open_rollouts
from sparserl.train.rules import FAILURE
from sparserl.train.withheld import withheld_text


def reward_of(weights: RewardWeights, modes: Sequence[str]) -> Reward:
    """The reward of what the referee says, in these modes."""

    def earned(judged: Judged) -> float:
        right = judged.verdict is Verdict.CORRECT
        speedup = mean_speedup(judged.times_us, judged.baseline_us, modes) if right else None
        return reward(judged.verdict, speedup, weights)

    return earned


def seed_of(*numbers: int) -> int:
    """One seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


@dataclass
class Played:
    """What rounds leave behind, beside the weights; part of a checkpoint."""

    elites: Elites
    results: Results

    def copy(self) -> Played:
        """One that a round can change while this one stays as it is."""
        elites, results = Elites(self.elites.modes), Results(dict(self.results.seen))
        elites.cells, elites.pairs = dict(self.elites.cells), dict(self.elites.pairs)
        results.lines = {pair: dict(earned) for pair, earned in self.results.lines.items()}
        return Played(elites, results)

    def incumbents(self) -> dict[tuple[str, str], str]:
        """The fastest program known by pair of case and problem."""
        return {pair: elite.text for pair, elite in self.elites.pairs.items()}


Retiming = tuple[Prompt, dict[str, Judged]]
Longer = tuple[int, Prompt, dict[str, Judged]]
"""the group, too"""
Found = TypeVar("Found")


@dataclass(frozen=True)
class Round:
    """What was played."""

    rollouts: list[Rollout]
    """in the order of their groups, with the winners' longer timings"""
    brief: list[Rollout]
    """the same with the first timings alone, as they are stored"""
    retimings: list[Retiming]


class Draws(Protocol):
    """Who says what is played; `curriculum.Curriculum` is one."""

    def round(self, number: int, results: Results) -> list[Prompt]:
        """The prompts of round `number`."""


def play_round(
    number: int, curriculum: Draws, player: Player, played: Played, *, config: RLConfig, crew: Crew
) -> Round:
    """A whole round, the same in every process; `played` is brought up to date.

    Raises TimeUpError, in every process, where one of them has no time left: then nothing is.
    """
    prompts = curriculum.round(number, played.results)
    mine = crew.share(prompts)
    retimings = Retimings(player, played.incumbents(), config)

    def done(members: Sequence[Rollout]) -> None:
        retimings.ask(members)
        for turn in (turn for each in members for turn in each.turns):
            skeleton_of(turn.text)  # for the figures of the round: it is remembered, and others are being judged

    def heard() -> tuple[list[Rollout], list[Longer]]:
        seed = seed_of(config.loop.seed, number, crew.rank)
        return player.play(mine, seed, done) if mine else [], retimings.told()

    own, told = in_time(crew, heard)
    own = [replace(each, group=crew.rank + crew.count * each.group) for each in own]
    again = [(crew.rank + crew.count * group, prompt, judged) for group, prompt, judged in told]
    brief = sorted(crew.gather(own), key=lambda each: each.group)
    all_again = sorted(crew.gather(again), key=lambda each: each[0])
    longer = {group: judged for group, _, judged in all_again}
    rollouts = [with_longer(each, longer.get(each.group, {}), player.reward) for each in brief]
    remember(number, rollouts, played, config)
    return Round(rollouts, brief, [(prompt, judged) for _, prompt, judged in all_again])


def in_time(crew: Crew, hear: Callable[[], Found]) -> Found:
    """What is heard; TimeUpError in all processes where one of them ran out of time, as they wait for each other."""
    found: list[Found] = []
    with suppress(TimeUpError):
        found.append(hear())
    if not all(crew.gather([len(found)])):
        raise TimeUpError
    return found[0]


class Retimings:
    """The longer timings of a round: each group's fastest programs beside the incumbent.

    `ask` hears of a group that is judged; where the referee can, they begin at once, by the process that has the matrix
    and the baseline there already. `told` waits for them.
    """

    def __init__(self, player: Player, incumbents: Mapping[tuple[str, str], str], config: RLConfig) -> None:
        self._player, self._incumbents, self._config = player, incumbents, config
        self._asked: list[tuple[int, Request]] = []
        self._begun: list[Iterator[tuple[int, dict[str, Judged]]]] = []

    def ask(self, members: Sequence[Rollout]) -> None:
        if texts := _fastest(members, self._config):
            prompt, referee = members[0].prompt, self._player.referee
            request = (prompt, texts, self._incumbents.get(pair_of(prompt)))
            self._asked.append((members[0].group, request))
            if isinstance(referee, EagerReferee) and referee.eager:
                self._begun.append(referee.retime_many([request]))

    def told(self) -> list[Longer]:
        """(group, prompt, longer timings by text)."""
        if not self._begun:
            self._asked.sort(key=lambda each: -self._player.load(each[1][0], len(each[1][1])).seconds())
            found = dict(retime_all(self._player.referee, [request for _, request in self._asked]))
        else:
            found = {place: next(answers)[1] for place, answers in enumerate(self._begun)}
        return [(group, request[0], found[place]) for place, (group, request) in enumerate(self._asked)]


def _fastest(members: Sequence[Rollout], config: RLConfig) -> list[str]:
    speeds: dict[str, float] = {}
    for rollout in members:
        for turn in rollout.turns:
            speed = log_speedup(turn.judged, config.play.modes)
            if speed is not None:
                speeds[turn.text] = speed
    return sorted(speeds, key=lambda text: (-speeds[text], text))[: config.retimed]


def with_longer(rollout: Rollout, judged: Mapping[str, Judged], earned: Reward) -> Rollout:
    """The rollout with the longer timings of its programs, where there are such."""
    turns = [
        replace(turn, judged=judged[turn.text], reward=earned(judged[turn.text])) if turn.text in judged else turn
        for turn in rollout.turns
    ]
    return replace(rollout, turns=tuple(turns))


def remember(number: int, rollouts: Sequence[Rollout], played: Played, config: RLConfig) -> None:
    """Bring the archive and the curriculum's results up to date with a round."""
    played.results.add(rollouts)
    for _, group in groupby(rollouts, key=lambda each: each.group):
        members = list(group)
        prompt, mean = members[0].prompt, mean_log_speed(members, config.play.modes)
        played.elites.met(prompt, mean)
        winners = {turn.text: turn.judged for each in members for turn in each.turns if turn.judged.retimed}
        for text in sorted(winners):
            played.elites.offer(prompt, text, winners[text], mean, number)


def remember_varied(number: int, rollouts: Sequence[Rollout], played: Played) -> None:
    """The same with variants of winners: what the policy itself earns is not theirs to say."""
    for each in rollouts:
        pair = pair_of(each.prompt)
        played.results.known(pair, episode_reward(each))
        mean = played.elites.pairs[pair].mean if pair in played.elites.pairs else 0.0
        for turn in each.turns:
            played.elites.offer(each.prompt, turn.text, turn.judged, mean, number)


def recall(folder: Path, prompts: Sequence[Prompt], played: Played, config: RLConfig) -> None:
    """The same from the rounds of another run, as they are stored, where it played some of these prompts.

    Raises StoreError where another kind of machine judged them.
    """
    store, earned = open_rollouts(folder), reward_of(config.weights, config.play.modes)
    own, source = {pair_of(each): each.source for each in prompts}, "gpu" if config.judged_on == "cuda" else "modelled"
    longer: dict[tuple[int, tuple[str, str]], dict[str, Judged]] = {}
    for number, prompt, judged in store.retimed():  # of a round's two, that of the variants is the second
        held = longer.setdefault((number, pair_of(prompt)), {})
        held |= {text: each for text, each in judged.items() if text not in held}
    for number, group in groupby(store.rollouts(), key=lambda each: each[0]):
        rollouts = [each for _, each in group if own.get(pair_of(each.prompt)) == each.prompt.source]
        if any(turn.judged.times_us and turn.judged.source != source for each in rollouts for turn in each.turns):
            raise StoreError(f"The times of {folder} are not '{source}' as this run's are: they don't mix.")
        rollouts = [with_longer(each, longer.get((number, pair_of(each.prompt)), {}), earned) for each in rollouts]
        remember(number, [each for each in rollouts if each.origin != VARIED], played, config)
        remember_varied(number, [each for each in rollouts if each.origin == VARIED], played)


def mean_log_speed(members: Sequence[Rollout], modes: Sequence[str]) -> float:
    """Of all programs of a group, a failure counted as the rules of `sparserl eval` count it."""
    speeds = [log_speedup(turn.judged, modes) for each in members for turn in each.turns]
    return float(np.mean([log(FAILURE) if speed is None else speed for speed in speeds]))


def may_teach(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Those without a withheld combination of features: nothing may be learnt from what tests whether it was learnt."""
    kept = {text: not withheld_text(text) for text in {turn.text for each in rollouts for turn in each.turns}}
    return [each for each in rollouts if all(kept[turn.text] for turn in each.turns)]


def shuffled(rollouts: Sequence[Rollout], seed: int) -> list[Rollout]:
    """The control: the verdicts and rewards of a round dealt out among its programs at random."""
    places = [(at, turn) for at, each in enumerate(rollouts) for turn in range(len(each.turns))]
    order = np.random.default_rng(seed).permutation(len(places))
    dealt: list[list[Any]] = [list(each.turns) for each in rollouts]
    for (at, turn), other in zip(places, order, strict=True):
        source = rollouts[places[other][0]].turns[places[other][1]]
        dealt[at][turn] = replace(dealt[at][turn], reward=source.reward)
    return [replace(each, turns=tuple(turns)) for each, turns in zip(rollouts, dealt, strict=True)]
