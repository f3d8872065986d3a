"""Variants of winners: what a policy never writes, it is never rewarded for.

A round may judge a few mutations (`train.variants`) of the fastest program that is known on each of its matrices: one
step of a climb (`climb`). One that is ahead in the brief times is timed again beside the program it came from; the
archive takes what is verified, and imitation teaches it. These tries are stored as rollouts without tokens (VARIED), so
that they are counted; the policy gradient doesn't see them.

Not covered: several steps on one matrix in one round. The next round that plays it goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sparserl.train.rl.climb import Climb, ClimbConfig, climb
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.episodes import Player, Reward
from sparserl.train.rl.explore import pair_of
from sparserl.train.rl.nouns import VARIED, Judged, Prompt, Rollout, Turn
from sparserl.train.rl.referee import Referee, Request, retime_all
from sparserl.train.rl.remembering import Groups
from sparserl.train.rl.rounds import Played, Retiming, Round, in_time, remember_varied, seed_of, with_longer


@dataclass(frozen=True)
class Varied:
    """What came of the variants of a round."""

    rollouts: list[Rollout] = field(default_factory=list)
    """brief timings, as they are stored: for each matrix the program that was varied, then its variants"""
    retimings: list[Retiming] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def vary(number: int, found: Round, played: Played, player: Player, *, config: RLConfig, crew: Crew) -> Varied:
    """The variants of round `number`, the same in every process; `played` is brought up to date.

    Raises TimeUpError as `play_round` does.
    """
    if not config.varied:
        return Varied()
    prompts = {each.group: each.prompt for each in found.rollouts}
    best = {group: played.elites.pairs.get(pair_of(prompt)) for group, prompt in prompts.items()}
    starts = [(group, prompts[group], elite.text) for group, elite in sorted(best.items()) if elite is not None]
    mine, referee = crew.share(starts), Noted(player.referee)
    own = ClimbConfig(
        tries=1 + config.varied, batch=config.varied, modes=config.play.modes,
        seed=seed_of(config.loop.seed, number, 13),
    )  # fmt: skip
    climbs = in_time(crew, lambda: climb([(prompt, text) for _, prompt, text in mine], referee, own))
    tried = [(group, _rollouts(group, each, player.reward)) for (group, _, _), each in zip(mine, climbs, strict=True)]
    rollouts = [each for _, part in sorted(crew.gather(tried), key=lambda part: part[0]) for each in part]
    retimings = crew.gather(referee.noted)
    longer = {pair_of(prompt): judged for prompt, judged in retimings}
    remember_varied(
        number, [with_longer(each, longer.get(pair_of(each.prompt), {}), player.reward) for each in rollouts], played
    )
    faster = sum(crew.gather([each.best != each.start for each in climbs]))
    figures = {"vary/judged": float(len(rollouts)), "vary/faster": faster / max(1, len(starts))}
    return Varied(rollouts, retimings, figures)


def _rollouts(group: int, done: Climb, earned: Reward) -> list[Rollout]:
    turns = [Turn(step.text, step.judged, earned(step.judged), 0, 0) for step in done.steps]
    return [Rollout(done.prompt, group, (), (), (), (turn,), VARIED) for turn in turns]


class Noted:
    """A referee whose longer timings are written down."""

    def __init__(self, inner: Referee) -> None:
        self.inner = inner
        self.noted: list[Retiming] = []

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]:
        return self.inner.judge(groups)

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        ((_, found),) = self.retime_many([(prompt, texts, incumbent)])
        return found

    def retime_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, dict[str, Judged]]]:
        for at, found in retime_all(self.inner, requests):
            self.noted.append((requests[at][0], found))
            yield at, found

    def close(self) -> None:
        """The inner one is its owner's to close."""
