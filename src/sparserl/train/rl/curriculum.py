"""Which prompts a round plays: every training matrix under every problem in turn, and the hard ones more often.

A part of each round (`even`) walks through all pairs of matrix and problem in a shuffled order, lap after lap, so that
none is starved: with P pairs, each comes at least once in P / (even · prompts) rounds. The rest is drawn by weight,
without repeats. A weight is the problem's share times how far the policy's mean reward on the pair lags behind the best
reward known there; pairs that were never played lag as those of their kind do that were, so that a kind that is new
comes often until it is learnt.

Matrices come from `train.cases` alone: generated ones of the training families and seeds and, where asked for, those
that the encoder learns from, the real ones of the training split and what these are made into, generated ones with
a few entries anywhere, and some of farther sizes; others are only shown. What a round plays is a function of (seed,
round, results). Not covered: a new matrix for every round (a lag is only known of what was played).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from sparserl.bench.reference import problem_name
from sparserl.errors import SparseRLError, StoreError
from sparserl.matrix import Array
from sparserl.records import Problem
from sparserl.train.cases import (
    TrainingCase,
    drawn_cases,
    far_cases,
    from_source,
    large_drawn_cases,
    large_range,
    range_up_to,
    shown_cases,
    strewn_cases,
    training_cases,
    twisted_cases,
)
from sparserl.train.rl.episodes import episode_reward
from sparserl.train.rl.explore import Pair, pair_of
from sparserl.train.rl.found_lines import layout_of
from sparserl.train.rl.nouns import Prompt, Rollout
from sparserl.train.withheld import SPANNED

PROBLEMS: tuple[Problem, ...] = SPANNED
"""what the benchmark tests: SpMV in float32 and float64, SpMM in float32 with 32, 64 and 128 columns"""


@dataclass(frozen=True)
class CurriculumConfig:
    """Which matrices are played, and how often."""

    prompts: int = 64
    """a round"""
    problems: tuple[Problem, ...] = PROBLEMS
    shares: tuple[float, ...] = (0.5, 0.15, 0.12, 0.11, 0.12)
    """of the weighted draws, one a problem"""
    spmv_cases: int = 800
    """generated matrices; problems of one operation share theirs"""
    spmm_cases: int = 400
    large: int = 0
    """also so many generated ones of more than two million nonzeros, for SpMV alone"""
    drawn: int = 0
    """also so many of the matrices that the encoder learns from: more kinds of them; half as many for SpMM"""
    large_drawn: int = 0
    """also so many like these of more than two million nonzeros, for SpMV alone"""
    real: bool = False
    """also the real matrices of the training split"""
    twisted: int = 0
    """also so many that real ones are made into; half as many for SpMM"""
    strewn: int = 0
    """also so many generated ones with a few entries anywhere; half as many for SpMM"""
    far: int = 0
    """also so many generated ones of farther sizes and row lengths, half as many for SpMM. The largest are not played
    (they are slow to judge): what they admit is learnt alone"""
    shown: int = 0
    """also so many small ones of each of five kinds, for SpMV alone, that nothing is played on: what they admit is
    learnt. Which layouts a matrix admits takes many of them to learn, and no judge"""
    most_nonzeros: float = 0.0
    """above 0: only small matrices, for a slow machine"""
    count: int = 0
    """of all these pairs of matrix and problem only so many, drawn at random by the seed: what is played over and over
    has mostly been judged before; 0: all"""
    even: float = 0.25
    """of a round, walked through in turn whatever is known"""
    least: float = 0.05
    """added to every lag: an easy matrix may still be drawn"""
    steepest: float = 1.0
    """a lag counts at most so much: a hopeless matrix must not eat the round"""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prompts < 1 or not self.problems or len(self.shares) != len(self.problems):
            raise SparseRLError(
                "CurriculumConfig needs 'prompts' of at least 1 and as many 'shares' as 'problems'. "
                f"Got {self.prompts}, {len(self.shares)} and {len(self.problems)}."
            )
        names = ("large", "drawn", "large_drawn", "twisted", "strewn", "far", "shown", "count")
        counts = {name: getattr(self, name) for name in names}
        if min(counts.values()) < 0 or (self.twisted and not self.real):
            raise SparseRLError(
                "The numbers of matrices of CurriculumConfig must not be negative, and 'twisted' ones are made of real "
                f"ones: name their folder. Got {', '.join(f'{name} {many}' for name, many in counts.items())}."
            )
        if min(self.shares) < 0 or not sum(self.shares) > 0:
            raise SparseRLError(f"The 'shares' of CurriculumConfig must not be negative. Got {self.shares}.")
        if not 0 < self.even <= 1 or not self.least > 0 or not self.steepest > 0:
            raise SparseRLError(
                "The 'even' of CurriculumConfig must be in (0, 1], 'least' and 'steepest' above 0. "
                f"Got {self.even}, {self.least} and {self.steepest}."
            )


@dataclass(frozen=True)
class Seen:
    """What is known of one pair."""

    mean: float | None = None
    """mean reward of the group that was last played; None: never"""
    best: float | None = None
    """best reward known, the teacher's too"""
    groups: int = 0

    @property
    def lag(self) -> float | None:
        return None if self.mean is None or self.best is None else max(0.0, self.best - self.mean)


@dataclass
class Results:
    """What the rounds so far have shown, by pair; part of a checkpoint."""

    seen: dict[Pair, Seen] = field(default_factory=dict)
    lines: dict[Pair, dict[str, float]] = field(default_factory=dict)
    """what programs with each layout line earned in the mean, failures counted; later rounds weigh more"""

    def known(self, pair: Pair, reward: float) -> None:
        """Some program earns this reward here: that of the best known recipe, say."""
        old = self.seen.get(pair, Seen())
        self.seen[pair] = replace(old, best=reward if old.best is None else max(old.best, reward))

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """The rollouts of a round. Of a pair that it played twice, the mean is over all."""
        rewards: dict[Pair, list[float]] = {}
        for rollout in rollouts:
            rewards.setdefault(pair_of(rollout.prompt), []).append(episode_reward(rollout))
        for pair, found in rewards.items():
            self.known(pair, max(found))
            self.seen[pair] = replace(self.seen[pair], mean=sum(found) / len(found), groups=self.seen[pair].groups + 1)
        self._earned(rollouts)

    def _earned(self, rollouts: Sequence[Rollout]) -> None:
        rewards: dict[tuple[Pair, str], list[float]] = {}
        for rollout in rollouts:
            for turn in rollout.turns:
                rewards.setdefault((pair_of(rollout.prompt), layout_of(turn.text)), []).append(turn.reward)
        for (pair, line), found in rewards.items():
            if line:
                known, now = self.lines.setdefault(pair, {}), sum(found) / len(found)
                known[line] = now if line not in known else (known[line] + now) / 2

    def to_record(self) -> list[dict[str, Any]]:
        return [
            {"case": pair[0], "problem": pair[1], **asdict(each), "lines": self.lines.get(pair, {})}
            for pair, each in sorted(self.seen.items())
        ]

    @classmethod
    def from_record(cls, record: Sequence[Mapping[str, Any]]) -> Results:
        try:
            pairs = [((each["case"], each["problem"]), each) for each in record]
            lines = {pair: dict(each["lines"]) for pair, each in pairs if each.get("lines")}
            return cls({pair: Seen(each["mean"], each["best"], each["groups"]) for pair, each in pairs}, lines)
        except (KeyError, TypeError) as error:
            raise StoreError(f"The stored results of the curriculum can't be read ({error!r}): start anew.") from error


def training_matrices(config: CurriculumConfig) -> dict[str, list[TrainingCase]]:
    """By operation, in a fixed order."""
    found: dict[str, list[TrainingCase]] = {}
    for problem in config.problems:
        if problem.op not in found:
            within = range_up_to(problem, config.most_nonzeros) if config.most_nonzeros else None
            one, few = problem.op == "spmv", config.most_nonzeros
            count = config.spmv_cases if one else config.spmm_cases
            drawn, twisted, strewn = (
                many if one else (many + 1) // 2 for many in (config.drawn, config.twisted, config.strewn)
            )
            found[problem.op] = [
                *training_cases(problem, count, real=config.real, within=within),
                *training_cases(problem, config.large if one else 0, within=large_range()),
                *drawn_cases(problem, drawn, few),
                *twisted_cases(problem, twisted, few),
                *strewn_cases(problem, strewn, few),
                *large_drawn_cases(config.large_drawn if one else 0),
            ]
    return found


def every_prompt(config: CurriculumConfig, structures: Mapping[str, str] | None = None) -> list[Prompt]:
    """All pairs of matrix and problem. structures: class by case name, where they are known."""
    return prompts_of(training_matrices(config), config, structures)


def far_matrices(config: CurriculumConfig) -> dict[str, list[TrainingCase]]:
    """By operation: those of farther sizes, of which the largest only show what they admit."""
    problems = {problem.op: problem for problem in config.problems}
    counts = {op: config.far if op == "spmv" else (config.far + 1) // 2 for op in problems}
    return {op: far_cases(problems[op], count, config.most_nonzeros) for op, count in counts.items()}


def shown_matrices(config: CurriculumConfig) -> dict[str, list[TrainingCase]]:
    """By operation: those that only show what they admit."""
    shown = shown_cases(config.shown, real=config.real, most_nonzeros=config.most_nonzeros)
    return {problem.op: shown if problem.op == "spmv" else [] for problem in config.problems}


def prompts_of(
    matrices: Mapping[str, Sequence[TrainingCase]], config: CurriculumConfig, structures: Mapping[str, str] | None
) -> list[Prompt]:
    """All pairs of one of these matrices, which are by operation, and a problem of it."""
    classes = structures or {}
    return [
        Prompt(case.name, case.source, problem, classes.get(case.name, ""))
        for problem in config.problems
        for case in matrices[problem.op]
    ]


KINDS = {"strewn": "strewn", "twist": "twist", "least": "large drawn", "drawn": "drawn", "cut": "cut", "real": "real"}
"""by what a source says, the first that it does; generated ones have their family"""


def kind_of(prompt: Prompt) -> str:
    """What matrices that never were played are taken to be like: the same way of making them, or the same family."""
    made = (kind for said, kind in KINDS.items() if said in prompt.source)
    kind = next(made, None) or str(prompt.source["family"])
    return f"far {kind}" if "far" in prompt.source else kind


class Curriculum:
    """Draws the prompts of a round."""

    def __init__(self, prompts: Sequence[Prompt], config: CurriculumConfig) -> None:
        if not prompts:
            raise SparseRLError("A curriculum needs at least one prompt: raise 'spmv_cases' or 'spmm_cases'.")
        for prompt in prompts:
            if from_source(prompt.case, prompt.source).split != "train":
                raise SparseRLError(f"The matrix {prompt.case!r} is not of the training split: it may not be played.")
            if prompt.problem not in config.problems:
                raise SparseRLError(
                    f"The problem '{problem_name(prompt.problem)}' of {prompt.case!r} is not among the 'problems' of "
                    f"CurriculumConfig: {', '.join(map(problem_name, config.problems))}."
                )
        self.prompts, self.config = list(prompts), config
        if config.count:
            order = np.random.default_rng([config.seed, 7]).permutation(len(prompts))
            self.prompts = [prompts[int(at)] for at in sorted(order[: config.count])]
        self.kinds = [kind_of(prompt) for prompt in self.prompts]

    def round(self, number: int, results: Results) -> list[Prompt]:
        """The prompts of round `number` (from 0), in an order of its own; none twice where there are enough."""
        count = min(self.config.prompts, len(self.prompts))
        even = min(count, max(1, round(self.config.even * self.config.prompts)))
        chosen = list(dict.fromkeys(self._walk(number * even, even)))
        rng = np.random.default_rng([self.config.seed, number, 5])
        weights = self._weights(results)
        weights[chosen] = 0.0
        wanted = min(count - len(chosen), int((weights > 0).sum()))
        if wanted:
            chosen += rng.choice(len(weights), wanted, replace=False, p=weights / weights.sum()).tolist()
        return [self.prompts[int(at)] for at in rng.permutation(chosen)]

    def _walk(self, begin: int, count: int) -> list[int]:
        """Places begin … of the endless walk: lap after lap, each in its own shuffled order."""
        size = len(self.prompts)
        laps = range(begin // size, (begin + count - 1) // size + 1)
        orders = [np.random.default_rng([self.config.seed, lap, 6]).permutation(size) for lap in laps]
        places = np.concatenate(orders)[begin - laps[0] * size :][:count]
        return [int(each) for each in places]

    def _weights(self, results: Results) -> Array:
        """How much each prompt counts in the weighted draw."""
        config = self.config
        lags = [results.seen.get(pair_of(prompt), Seen()).lag for prompt in self.prompts]
        played: dict[str, list[float]] = {}
        for kind, lag in zip(self.kinds, lags, strict=True):
            if lag is not None:
                played.setdefault(kind, []).append(min(lag, config.steepest))
        usual = {kind: sum(found) / len(found) for kind, found in played.items()}
        own: Array = np.array([
            config.least + (usual.get(kind, config.steepest) if lag is None else min(lag, config.steepest))
            for kind, lag in zip(self.kinds, lags, strict=True)
        ])  # fmt: skip
        problems = np.array([problem_name(prompt.problem) for prompt in self.prompts])
        for problem, share in zip(config.problems, config.shares, strict=True):
            mine = problems == problem_name(problem)
            if mine.any():
                own[mine] *= share / own[mine].sum()
        return own
