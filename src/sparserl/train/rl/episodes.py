"""Episodes of one to three turns: the policy writes, the referee judges, one line says how it went, it writes again.

    <program> … <eos> <feedback> right 124% floor 83% registers 40
    <program> … <eos> …

The line, and whether there is another turn, are decided in `policy/feedback`, as they are for tuning. A turn's reward
is that of its own program; the episode's (`episode_reward`) is the best of its turns, because the best program is what
is kept.

`Player.play` does all of it; `write` and `finish` are its halves, for a caller that samples while others compile.
Not covered: turns that continue in a running batch (the last program is read again), another prompt in between.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import exp, log
from typing import Protocol

from sparserl.errors import SparseRLError
from sparserl.judge.reward import mean_speedup
from sparserl.policy.encoder import collate
from sparserl.policy.feedback import (
    ENOUGH,
    MOST_TURNS,
    Told,
    fits,
    last_text,
    line,
    line_ids,
    need,
    read_from,
    together,
    worth_another,
)
from sparserl.policy.sample import Sample
from sparserl.policy.sampler import Sampler, SampleSettings, Written
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode, Verdict
from sparserl.train.rl.nouns import EXPLORED, OWN, Judged, Prompt, Rollout, Turn
from sparserl.train.rl.referee import ManyPlaces, Referee
from sparserl.train.rl.sharing import Load, load_of, parts_of

Reward = Callable[[Judged], float]
Done = Callable[[Sequence[Rollout]], None]
"""hears the rollouts of a group that is judged"""
Look = Callable[[Prompt], Sample]
"""what the encoder reads of a prompt's matrix"""


# ---- what was judged, in one line


def log_speedup(judged: Judged, modes: Sequence[str] = ("solver",)) -> float | None:
    """The mean over modes of the logarithm of baseline over time; None unless it is right and timed in all of them."""
    timed = all(mode in judged.times_us and mode in judged.baseline_us for mode in modes)
    if judged.verdict is not Verdict.CORRECT or not timed:
        return None
    return log(mean_speedup(judged.times_us, judged.baseline_us, modes))


def floor_share(judged: Judged, modes: Sequence[str] = ("solver",)) -> float | None:
    """How near to the floor: 1 is there. Of several modes the geometric mean; None where it is not known."""
    if any(not judged.times_us.get(mode) or not judged.floor_us.get(mode) for mode in modes) or not modes:
        return None
    return exp(sum(log(judged.floor_us[mode] / judged.times_us[mode]) for mode in modes) / len(modes))


def told(judged: Judged, modes: Sequence[str] = ("solver",)) -> Told:
    """What the policy hears of it."""
    speedup = log_speedup(judged, modes)
    return Told(
        judged.verdict,
        judged.reason,
        None if speedup is None else exp(speedup),
        floor_share(judged, modes),
        judged.registers,
        judged.sectors,
    )


def feedback(judged: Judged, modes: Sequence[str] = ("solver",), tokenizer: Tokenizer | None = None) -> str:
    """One short line, without its newline (`policy/feedback.line`)."""
    return line(told(judged, modes), tokenizer)


def feedback_ids(judged: Judged, modes: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """What stands between two programs: '<feedback>', the line, '<program>'."""
    return line_ids(told(judged, modes), tokenizer)


def episode_reward(rollout: Rollout) -> float:
    """The best of its turns."""
    return max(turn.reward for turn in rollout.turns)


# ---- playing


@dataclass(frozen=True)
class PlayConfig:
    """How episodes are played."""

    count: int = 16
    """episodes a prompt: the group"""
    explored: float = 0.5
    """share of a group that starts from a given layout line, where the player has openings"""
    turns: int = 1
    """most programs an episode, 1 to 3"""
    enough: float = ENOUGH
    """a right program this near to the floor (1: at it) is not written again"""
    modes: tuple[str, ...] = ("solver",)
    """whose times the feedback line is about"""
    machine: str = "h200"
    """what the policy is told that it writes for"""
    settings: SampleSettings = field(default_factory=SampleSettings)
    """how tokens are drawn; its seed is not used"""

    @property
    def mode(self) -> Mode:
        """What the policy is told that is timed: the one mode that earns, or of several the usual one."""
        return "chain" if tuple(self.modes) == ("chain",) else "solver"

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.explored <= 1:
            raise SparseRLError(
                "The 'count' of PlayConfig must be at least 1 and 'explored' in [0, 1]. "
                f"Got {self.count} and {self.explored}."
            )
        if not 1 <= self.turns <= MOST_TURNS:
            raise SparseRLError(f"The 'turns' of PlayConfig must be 1..{MOST_TURNS}. Got {self.turns}.")


class Openings(Protocol):
    """Who says how explored episodes begin; `explore.Explorer` is one."""

    def openings(self, prompts: Sequence[Prompt], count: int, seed: int) -> list[list[list[int]]]:
        """For each prompt at most `count` beginnings: the tokens that follow '<program>'."""


@dataclass
class Episode:
    """An episode under way. Its last program is written, and judged where `turns` has it."""

    prompt: Prompt
    group: int
    ids: list[int]
    log_probs: list[float]
    written: list[bool]
    origin: str = OWN
    turns: list[Turn] = field(default_factory=list)
    text: str = ""
    first: int = 0
    finished: bool = False
    """whether the last program has its <eos>"""

    @property
    def begin(self) -> int:
        """Where that begins which the next program is written from."""
        return read_from([turn.first for turn in self.turns])

    def give(self, tokens: Sequence[int]) -> None:
        """Tokens that the policy reads and did not write."""
        self.ids += tokens
        self.log_probs += [0.0] * len(tokens)
        self.written += [False] * len(tokens)

    @property
    def rollout(self) -> Rollout:
        return Rollout(
            self.prompt, self.group, tuple(self.ids), tuple(self.log_probs), tuple(self.written), tuple(self.turns),
            self.origin,
        )  # fmt: skip


class Player:
    """One policy that plays for prompts."""

    def __init__(
        self,
        sampler: Sampler,
        referee: Referee,
        reward: Reward,
        look: Look,
        config: PlayConfig,
        *,
        openings: Openings | None = None,
    ) -> None:
        if not isinstance(sampler.tokenizer, Tokenizer):
            raise SparseRLError("The sampler of a Player must have a policy.tokenizer.Tokenizer.")
        self.sampler, self.referee, self.reward, self.look = sampler, referee, reward, look
        self.tokenizer, self.config, self._openings = sampler.tokenizer, config, openings

    def play(self, prompts: Sequence[Prompt], seed: int, done: Done | None = None) -> list[Rollout]:
        """`count` episodes for each prompt, those of a prompt one after the other; the group is the prompt's place.

        A function of the weights, the prompts, the seed and what the referee says. `done` is told of every group: as it
        gets done where episodes have one turn, in the end where they have more.
        """
        return self.finish(self.write(prompts, seed), seed, done)

    def write(self, prompts: Sequence[Prompt], seed: int) -> list[Episode]:
        """The first program of every episode, not yet judged."""
        count = self.config.count
        begun: list[list[list[int]]] = [[] for _ in prompts]
        explored = round(count * self.config.explored)
        if self._openings is not None and explored:
            begun = self._openings.openings(prompts, explored, seed)
        episodes = []
        for group, (prompt, given) in enumerate(zip(prompts, begun, strict=True)):
            for place in range(count):
                opening = given[place] if place < len(given) else []
                episode = Episode(prompt, group, [], [], [], EXPLORED if opening else OWN)
                episode.give([self.tokenizer.program, *opening])
                episodes.append(episode)
        self._write(episodes, zlib.crc32(f"{seed} turn 0".encode()))
        return episodes

    def finish(self, episodes: Sequence[Episode], seed: int, done: Done | None = None) -> list[Rollout]:
        """Judge the programs, and play the turns that are left; in the order given."""
        self._judge(episodes, done if self.config.turns == 1 else None)
        for turn in range(1, self.config.turns):
            going = [each for each in episodes if self._goes_on(each)]
            if not going:
                break
            for each in going:
                each.give(feedback_ids(each.turns[-1].judged, self.config.modes, self.tokenizer))
            self._write(going, zlib.crc32(f"{seed} turn {turn}".encode()))
            self._judge(going)
        rollouts = [each.rollout for each in episodes]
        if done is not None and self.config.turns > 1:
            for _, group in groupby(rollouts, key=lambda each: each.group):
                done(list(group))
        return rollouts

    def load(self, prompt: Prompt, programs: int) -> Load:
        """Of so many programs. What takes longest is judged first: in the end nobody waits for it alone."""
        return load_of(self.look(prompt), prompt.problem, programs)

    # ---- one turn

    def _write(self, episodes: Sequence[Episode], seed: int) -> None:
        """One more program for each. Those with prompts of similar length are written together."""
        settings = self.config.settings
        lengths, needs = [len(each.ids) - each.begin for each in episodes], [self._need(each) for each in episodes]
        for places, room in together(self.sampler.policy, lengths, needs, settings.batch):
            part = [episodes[place] for place in places]
            problems = [each.prompt.problem for each in part]
            seen = [self.look(each.prompt) for each in part]
            batch = collate(seen, problems, self.config.machine, self.config.mode)
            own = replace(settings, seed=seed, max_tokens=min(settings.max_tokens, room))
            seed = (seed + 1) % (1 << 32)
            found = self.sampler.sample(batch, 1, own, [each.ids[each.begin + 1 :] for each in part])
            for episode, (written,) in zip(part, found, strict=True):
                self._add(episode, written)

    @staticmethod
    def _need(episode: Episode) -> int:
        return need(episode.turns[-1].last - episode.turns[-1].first) if episode.turns else 1

    def _add(self, episode: Episode, written: Written) -> None:
        new, begin = len(written.ids) - written.given, episode.begin
        episode.first = begin + written.given
        episode.ids = [*episode.ids[:begin], *written.ids]
        episode.log_probs += written.log_probs[written.given :]
        episode.written += [True] * new
        episode.text = last_text(episode.ids, episode.first, self.tokenizer)
        episode.finished = written.finished

    def _judge(self, episodes: Sequence[Episode], done: Done | None = None) -> None:
        """One turn more for each. The referee sees the texts of a group together."""
        groups = [list(members) for _, members in groupby(episodes, key=lambda each: each.group)]
        owners = self._shared_out(groups)
        left = Counter(at for at, _ in owners)
        asked = [(part[0].prompt, [each.text for each in part]) for _, part in owners]
        for which, verdicts in self.referee.judge(asked):
            at, part = owners[which]
            for each, judged in zip(part, verdicts, strict=True):
                each.turns.append(Turn(each.text, judged, self.reward(judged), each.first, len(each.ids)))
            left[at] -= 1
            if done is not None and not left[at]:
                done([each.rollout for each in groups[at]])

    def _shared_out(self, groups: Sequence[Sequence[Episode]]) -> list[tuple[int, list[Episode]]]:
        """(which group, all of it or a part), what takes longest first. Those that wrote the same are in one part."""
        many = self.referee if isinstance(self.referee, ManyPlaces) else None
        new, loads = [], []
        for members in groups:
            prompt, texts = members[0].prompt, [each.text for each in members]
            new.append(many.unknown(prompt, texts) if many else list(dict.fromkeys(texts)))
            loads.append(self.load(prompt, len(new[-1])))
        counts = parts_of(loads, many.places if many else 1)
        owners = []
        for at in sorted(range(len(groups)), key=lambda at: -loads[at].seconds(counts[at])):
            part_of = {text: place * counts[at] // len(new[at]) for place, text in enumerate(new[at])}
            for part in range(counts[at]):
                owners.append((at, [each for each in groups[at] if part_of.get(each.text, 0) == part]))
        return owners

    def _goes_on(self, episode: Episode) -> bool:
        """Whether there is something to gain, and room to write it."""
        last, texts = episode.turns[-1], [turn.text for turn in episode.turns]
        gains = worth_another(texts, episode.finished, told(last.judged, self.config.modes), self.config.enough)
        return gains and fits(self.sampler.policy, len(episode.ids) - episode.begin, last.last - last.first)
