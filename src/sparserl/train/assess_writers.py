"""Who writes: the names that `sparserl eval --policy` takes, made into writers for `assess`.

A control's choice is made once and kept in `choices-NAME.json` in the run's folder; a file that is there is used as it
is, so the choice may come from a machine with scikit-learn and the collection. NAME=DIR takes what NAME wrote in an
earlier evaluation, to the letter. A policy is a folder that a training stage wrote; its name is the folder's, or what
stands before '=' in NAME=DIR. A file of choices, FILE.json, will do too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparserl.bench.archive import read_whole
from sparserl.bench.reference import problem_name
from sparserl.errors import SparseRLError
from sparserl.evaluation import Case
from sparserl.records import Mode, Problem
from sparserl.store import read_json
from sparserl.train import controls
from sparserl.train.assess import ABOUT, PROGRAMS, Loaded, Run, Sample, Writer, read_written
from sparserl.train.controls import Choices, Chooser, choices_file, filled, load_choices

log = logging.getLogger(__name__)

ALIASES = {"recipes": "heuristic"}


@dataclass(frozen=True)
class Sources:
    """What the controls are made from, and where policies run."""

    collection: Path | None = None
    reference: Path | None = None
    """folder of a reference search"""
    device: str = "cuda"
    """sim: programs are written for the simulator; otherwise for an H200"""
    prompted: bool = False
    """also prompt policies with withheld headers"""
    masked: bool = False
    """also sample policies with the admissibility mask"""
    chained: bool = False
    """also sample policies that are told that products stand behind one another"""
    temperature: float | None = None
    top_p: float | None = None


class ChoiceWriter:
    """Programs that were chosen beforehand."""

    def __init__(self, choices: Choices, problem: Problem) -> None:
        self.name, self.batch = choices.policy, 1
        self._choices, self._problem = choices, problem

    def write(self, matrices: Sequence[Loaded]) -> list[list[Sample]]:
        return [self._written(matrix.name) for matrix in matrices]

    def _written(self, matrix: str) -> list[Sample]:
        if matrix not in self._choices.programs:
            return []
        return [Sample(text) for text in self._choices.texts_for(matrix, self._problem)]


def choose_all(run: Run, cases: Sequence[Case], name: str, sources: Sources) -> Choices:
    """A control's choice for every case, stored; the stored one where it has all cases."""
    path = choices_file(run.out, name)
    if path.exists():
        stored = load_choices(path, run.config.problem)
        missing = [case.name for case in cases if case.name not in stored.programs]
        if not missing or name == "reference":
            return stored
        log.info("%s has no choice for %d matrices: all are chosen again", path, len(missing))
    made = _chosen(run, cases, name, sources)
    made.save(path)
    return made


def _chosen(run: Run, cases: Sequence[Case], name: str, sources: Sources) -> Choices:
    problem, count = run.config.problem, run.config.samples
    if name == "reference":
        folder = _needed(sources.reference, name, "--reference")
        return controls.reference_choices(folder, problem, [case.name for case in cases])
    made = Choices(name, problem_name(problem))
    if name == "single":
        from sparserl.train.collected import load

        made.texts["single"] = controls.best_single(load(_needed(sources.collection, name, "--collection")), problem)
        made.programs = {case.name: ["single"] * count for case in cases}
        return made
    chooser = _chooser(run, name, sources)
    for done, case in enumerate(cases, 1):
        made.programs[case.name] = filled([r.name for r in chooser(case.load(run.folder))], count)
        log.info("%s: chosen for %s (%d of %d)", name, case.name, done, len(cases))
    return made


def _chooser(run: Run, name: str, sources: Sources) -> Chooser:
    problem, count = run.config.problem, run.config.samples
    if name == "heuristic":
        return controls.heuristic(problem, count)
    if name == "random":
        return controls.at_random(problem, count, run.config.seed)
    from sparserl.train.collected import load
    from sparserl.train.controls_table import read_table

    collection = load(_needed(sources.collection, name, "--collection"))
    table = read_table(collection, problem, matrices=run.folder, kept=run.out / "features.jsonl")
    model = controls.Trees(table) if name == "trees" else controls.Neighbours(table)
    return controls.learnt(model, count)


def _needed(folder: Path | None, name: str, option: str) -> Path:
    if folder is None:
        raise SparseRLError(f"The control '{name}' needs a folder to learn from: give it with {option} DIR.")
    return folder


def writers(run: Run, cases: Sequence[Case], policy: str, sources: Sources) -> list[Writer]:
    """One name of --policy as writers: a policy that is also prompted or masked is several."""
    problem = run.config.problem
    name = ALIASES.get(policy, policy)
    if name in controls.NAMES:
        return [ChoiceWriter(choose_all(run, cases, name, sources), problem)]
    given, equals, rest = policy.partition("=")
    path = Path(rest if equals else policy)
    if path.is_file() and path.suffix == ".json":
        return [ChoiceWriter(load_choices(path, problem), problem)]
    if (path / ABOUT).is_file() and equals:
        return [ChoiceWriter(chosen_before(path, given, problem), problem)]
    if not path.is_dir():
        raise SparseRLError(
            f"The --policy {policy!r} is no policy folder, no file of choices, and not one of recipes, "
            f"{', '.join(controls.NAMES)}."
        )
    return _policy_writers(run, path, given if equals else _folder_name(path), sources)


def chosen_before(folder: Path, name: str, problem: Problem) -> Choices:
    """What a writer of this name has written in an earlier evaluation."""
    held = read_written(folder)
    if name not in held:
        raise SparseRLError(f"Nobody called {name!r} has written in {folder}, only {', '.join(held) or 'nobody'}.")
    if (about := read_json(folder / ABOUT)["problem"]) != problem_name(problem):
        raise SparseRLError(f"The programs in {folder} are for '{about}', not for '{problem_name(problem)}'.")
    texts = {record["program"]: record["text"] for record in read_whole(folder / PROGRAMS)}
    programs = {case: list(record["programs"]) for case, record in held[name].items() if record["programs"]}
    own = {program: texts[program] for each in programs.values() for program in each}
    return Choices(name, problem_name(problem), programs, own)


def _folder_name(folder: Path) -> str:
    """A stage keeps its weights in RUN/policy: the run's name says more."""
    whole = folder.resolve()
    return whole.parent.name if whole.name == "policy" else whole.name


def _policy_writers(run: Run, folder: Path, name: str, sources: Sources) -> list[Writer]:
    from sparserl.train.assess_policy import Drawing, PolicyWriter

    place = "cuda" if sources.device == "cuda" else "cpu"
    machine = "sim" if sources.device == "sim" else "h200"
    asked: list[tuple[bool, tuple[bool, bool, Mode]]] = [
        (True, (False, False, "solver")),
        (sources.prompted, (True, False, "solver")),
        (sources.masked, (False, True, "solver")),
        (sources.chained, (False, False, "chain")),
    ]
    made: list[Writer] = []
    for prompted, masked, mode in (kind for wanted, kind in asked if wanted):
        drawing = Drawing(
            samples=run.config.samples,
            seed=run.config.seed,
            device=place,
            machine=machine,
            prompted=prompted,
            masked=masked,
            mode=mode,
            temperature=sources.temperature,
            top_p=sources.top_p,
        )
        made.append(PolicyWriter(folder, run.config.problem, drawing, name))
    return made
