"""What a run plays with: the prompts, what the encoder reads of their matrices, the layouts they admit, the referee.

A collection (`sparserl train collect`) has the best reward known on each of its matrices, which tells the curriculum
from the first round on where the policy lags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from sparserl.errors import SparseRLError
from sparserl.judge.reward import mean_speedup, reward
from sparserl.policy.sample import Sample
from sparserl.records import Verdict
from sparserl.train.cases import FAR_PLAYED, TrainingCase
from sparserl.train.collected import CollectedCase, load
from sparserl.train.rl.admitted import admitted_of
from sparserl.train.rl.config import Places, RLConfig
from sparserl.train.rl.crew import Crew, own_gpu
from sparserl.train.rl.curriculum import far_matrices, prompts_of, shown_matrices, training_matrices
from sparserl.train.rl.episodes import Look
from sparserl.train.rl.explore import Pair, pair_of
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.referee import Referee, RefereeConfig, Remembering, open_referee
from sparserl.train.samples import Sampled, samples_of

Found = TypeVar("Found")


@dataclass(frozen=True)
class Table:
    """What is played with."""

    prompts: Sequence[Prompt]
    """that the curriculum draws from"""
    look: Look
    """what the encoder reads of a prompt's matrix"""
    admitted: Callable[[Prompt], Sequence[str]]
    """layout lines that explored episodes may begin with"""
    referee: Referee
    known: Mapping[Pair, float] = field(default_factory=dict)
    """the best reward known by case and problem, before the first round"""
    unplayed: Sequence[Prompt] = ()
    """that nothing is judged on: what they admit is learnt"""


@dataclass(frozen=True)
class Prompts:
    """What is played and shown, and what is read of it: made without a judge."""

    played: Sequence[Prompt]
    unplayed: Sequence[Prompt]
    sampled: Mapping[str, Sampled]
    lines: Mapping[Pair, tuple[str, ...]]
    """layout lines that a matrix admits, where they are asked for"""


@contextmanager
def open_table(config: RLConfig, places: Places, crew: Crew, judge: Referee | None = None) -> Iterator[Table]:
    """Make what is missing of it; the referee is closed in the end, but for one that was given (`judge`)."""
    made = read_prompts(config, places, crew)
    same = next(iter(made.sampled.values())).sample if config.blind else None

    def look(prompt: Prompt) -> Sample:
        own = made.sampled[prompt.case].sample
        return own if same is None else replace(own, entries=same.entries, named=same.named)

    collection = () if places.collection is None else load(places.collection).cases
    referee = judge or open_judge(config, places, crew)
    try:
        known = best_known(collection, config)
        yield Table(made.played, look, lambda prompt: made.lines[pair_of(prompt)], referee, known, made.unplayed)
    finally:
        if judge is None:
            referee.close()


def read_prompts(config: RLConfig, places: Places, crew: Crew) -> Prompts:
    """The prompts of a run; its files of samples and of what is admitted are brought up to date."""
    kinds = [make(config.curriculum) for make in (training_matrices, far_matrices, shown_matrices)]
    cases = list({case.name: case for kind in kinds for each in kind.values() for case in each}.values())
    sampled = _first_alone(crew, lambda: _samples(cases, places))
    structures = {name: each.structure for name, each in sampled.items()}
    prompts, far, shown = (prompts_of(kind, config.curriculum, structures) for kind in kinds)

    def slow(prompt: Prompt) -> bool:
        return sampled[prompt.case].sample.nonzeros > FAR_PLAYED[prompt.problem.op]

    prompts += [each for each in far if not slow(each)]
    unplayed = [*(each for each in far if slow(each)), *shown]
    lines: dict[Pair, tuple[str, ...]] = {}
    if config.play.explored or config.admit_steps:
        lines = _first_alone(crew, lambda: admitted_of([*prompts, *unplayed], places.admitted_file, places.matrices))
    return Prompts(prompts, unplayed, sampled, lines)


def best_known(collection: Sequence[CollectedCase], config: RLConfig) -> dict[Pair, float]:
    """What the best collected program of each matrix and problem would earn."""
    modes = config.play.modes
    return {
        (case.name, case.problem): reward(
            Verdict.CORRECT, mean_speedup(case.best_us, case.baseline_us, modes), config.weights
        )
        for case in collection
        if all(case.best_us.get(mode) and case.baseline_us.get(mode) for mode in modes)
    }


def open_judge(config: RLConfig, places: Places, crew: Crew, remember: bool = False) -> Referee:
    """The referee that `--judge` names, on this run's device. remember: what it judged, it does not judge again."""
    where = config.judged_on if places.judge == "local" else places.judge
    try:
        referee = open_referee(
            where,
            RefereeConfig(
                device=config.judged_on,
                modes=config.play.modes,  # type: ignore[arg-type]  # checked by RLConfig
                workers=places.workers,
                folder=str(places.matrices or ""),
                seed=config.loop.seed,
                remember=remember,
                gpu=own_gpu(crew) if config.judged_on == "cuda" else "",
            ),
        )
    except ValueError as error:
        raise SparseRLError(str(error)) from error
    try:
        for run in places.known:
            if not isinstance(referee, Remembering):
                raise SparseRLError(f"A replay knows what it was given alone: leave --known {run} out.")
            referee.recall(run)
    except SparseRLError:
        referee.close()
        raise
    return referee


def _samples(cases: Sequence[TrainingCase], places: Places) -> dict[str, Sampled]:
    # `samples_of` reads name, split and source alone, which a training case has too
    return samples_of(cast("Sequence[CollectedCase]", cases), places.samples_file, places.matrices)


def _first_alone(crew: Crew, read: Callable[[], Found]) -> Found:
    """In every process; the others read the file that the first one has brought up to date."""
    found = read() if crew.first else None
    crew.gather([0])
    return read() if found is None else found
