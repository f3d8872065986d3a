"""The run of `sparserl eval`: programs are written for every matrix of a split, judged, and written down as records.

    sparserl eval --policy nano --policy trees --policy single --split unseen --device cuda --out results/NAME

Two steps, each going on where it stopped. `write` asks every writer (a policy or a control) for its samples and appends
`written-NAME.jsonl` and `programs.jsonl`. `measure` takes matrix after matrix: the texts of all writers that were not
measured there are judged once each (verified, timed briefly in solver and chain mode), then the fastest few of each
writer, but of what was written under withheld headers, are raced beside the baselines in the same process. One line a
matrix goes to `measured.jsonl`. A writer that is added later costs only its new texts; its speeds are over the
baselines of its own session.

The report (`assess_report`, `assess_page`) needs the records alone. Not covered: who writes (`assess_writers`).
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from sparserl.bench.archive import read_whole
from sparserl.bench.reference import problem_name
from sparserl.bench.tables import REPORTED
from sparserl.errors import BackendError, StoreError
from sparserl.evaluation import Case
from sparserl.judge.evaluate import Case as Opened
from sparserl.judge.evaluate import Judge
from sparserl.matrix import Pattern
from sparserl.phases import add, phase, rounded
from sparserl.records import Outcome, Problem, Verdict
from sparserl.shares import TIME_IS_UP
from sparserl.store import append_jsonl, read_json, write_json
from sparserl.train.rules import SAMPLES, PartSum

log = logging.getLogger(__name__)

ABOUT, PROGRAMS, MEASURED = "about.json", "programs.jsonl", "measured.jsonl"
WRITTEN = "written-{}.jsonl"
PROMPTED, MASKED, CHAINED = "@withheld", "+mask", "@chain"
"""what stands behind the name of a policy that is prompted with withheld headers, masked, or told of chains"""
MOST_FAULTS = 3
"""cases in a row that the machine may fail on before the run is given up"""


@dataclass(frozen=True)
class AssessConfig:
    """What is assessed, and how closely the programs are timed."""

    split: str
    problem: Problem = field(default_factory=Problem)
    samples: int = SAMPLES
    """programs a matrix"""
    seed: int = 0
    most_nonzeros: int = 0
    """larger matrices are left out, and the report says so; 0: none"""
    finalists: int = 2
    """programs of a writer and mode that are raced"""
    race_size: int = 8
    """programs in one race: the layouts of all of them lie in the machine's memory together"""
    rounds: int = 3
    race_rounds: int = 7
    race_graph_ms: float = 1.0
    """as the reference search has it"""

    def __post_init__(self) -> None:
        for name in ("samples", "finalists", "race_size", "rounds", "race_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"The '{name}' of an AssessConfig must be at least 1. Got {getattr(self, name)}.")


@dataclass(frozen=True)
class Sample:
    """One program that a writer wrote."""

    text: str
    finished: bool = True
    parts: Mapping[str, PartSum] = field(default_factory=dict)
    """log-probabilities by part of the program; empty where nothing was drawn token by token"""


class Loaded:
    """A matrix to write for; it is made or read when its pattern is asked for."""

    def __init__(self, case: Case, folder: Path | None) -> None:
        self.name, self._case, self._folder = case.name, case, folder

    @cached_property
    def pattern(self) -> Pattern:
        return self._case.load(self._folder)


class Writer(Protocol):
    """Who writes: a policy or a control."""

    name: str
    batch: int
    """matrices that it wants at once"""

    def write(self, matrices: Sequence[Loaded]) -> list[list[Sample]]:
        """The samples of each matrix; none for one that it has nothing to say on."""


@dataclass(frozen=True)
class Run:
    """A folder of records and what they are about."""

    out: Path
    config: AssessConfig
    folder: Path | None = None
    """of the real matrices"""

    def claim(self) -> None:
        """Write down what the folder is about; refuse one that is about something else."""
        path = self.out / ABOUT
        about = {**asdict(self.config), "problem": problem_name(self.config.problem)}
        if not path.exists():
            write_json(path, about)
            return
        fixed = ("split", "problem", "samples", "seed")
        earlier = read_json(path)
        other = [f"{key} {earlier.get(key)!r}, not {about[key]!r}" for key in fixed if earlier.get(key) != about[key]]
        if other:
            raise StoreError(f"The records in {self.out} are of {'; '.join(other)}: choose another --out folder.")
        write_json(path, about)

    def kept(self, cases: Iterable[Case]) -> list[Case]:
        """The cases that are small enough, the smallest first."""
        most = self.config.most_nonzeros or float("inf")
        return sorted((case for case in cases if case.nonzeros <= most), key=lambda c: (c.nonzeros, c.name))


# ---- writing


def text_sha(text: str) -> str:
    """The name of a text in the records. What a policy writes need not be whole Unicode."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write(run: Run, cases: Sequence[Case], writer: Writer) -> Iterator[str]:
    """Ask a writer for its samples; yields a line to show for each batch. Batches are the same after a stop."""
    path = run.out / WRITTEN.format(writer.name)
    done = {record["case"] for record in read_whole(path)}
    known = {record["program"] for record in read_whole(run.out / PROGRAMS)}
    for first in range(0, len(cases), writer.batch):
        group = cases[first : first + writer.batch]
        if all(case.name in done for case in group):
            continue
        began = time.monotonic()
        written = writer.write([Loaded(case, run.folder) for case in group])
        seconds = time.monotonic() - began
        texts = {text_sha(sample.text): sample.text for samples in written for sample in samples}
        append_jsonl(run.out / PROGRAMS, *({"program": s, "text": t} for s, t in texts.items() if s not in known))
        known |= texts.keys()
        records = [_written(case, samples) for case, samples in zip(group, written, strict=True)]
        append_jsonl(path, *(record for record in records if record["case"] not in done))
        yield f"{writer.name}: {first + len(group)} of {len(cases)} matrices written ({seconds:.1f} s)"


def _written(case: Case, samples: Sequence[Sample]) -> dict[str, Any]:
    parts: dict[str, PartSum] = {}
    for sample in samples:
        for name, held in sample.parts.items():
            parts[name] = parts.get(name, PartSum()) + held
    return {
        "case": case.name,
        "programs": [text_sha(sample.text) for sample in samples],
        "finished": sum(sample.finished for sample in samples),
        "parts": {name: [held.tokens, held.log_prob, held.sampled] for name, held in parts.items()},
    }


def read_written(out: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Records by writer and matrix, writers in the order of their names."""
    prefix, ending = WRITTEN.split("{}")
    found = {}
    for file in sorted({path.name.removesuffix(".zst") for path in out.glob(WRITTEN.format("*") + "*")}):
        name = file.removeprefix(prefix).removesuffix(ending)
        found[name] = {record["case"]: record for record in read_whole(out / file)}
    return found


# ---- measuring


def measure(run: Run, cases: Sequence[Case], judge: Judge, budget_s: float = 1e9) -> Iterator[str]:
    """Judge and race what was written and isn't measured yet; yields a line to show for each matrix."""
    began = time.monotonic()
    written = read_written(run.out)
    measured = read_whole(run.out / MEASURED)
    _refuse_other_device(measured, judge.device.name, run.out)
    known: dict[str, set[str]] = {}
    for record in measured:
        known.setdefault(record["case"], set()).update(record["programs"])
    texts = {record["program"]: record["text"] for record in read_whole(run.out / PROGRAMS)}
    faults = 0
    for case in cases:
        wanted = _wanted(case, written, known.get(case.name, set()))
        if not any(wanted.values()):
            continue
        if time.monotonic() - began > budget_s:
            yield TIME_IS_UP
            return
        start = time.monotonic()
        try:
            record = _measured(run, case, judge, wanted, texts)
            faults = 0
        except BackendError as error:  # the machine's, not a program's: the case is tried again by the next call
            faults += 1
            if faults >= MOST_FAULTS:
                raise
            yield f"{case.name:36s} left out: {error}"
            continue
        seconds = round(time.monotonic() - start, 2)
        append_jsonl(run.out / MEASURED, {**record, "seconds": seconds})
        right = sum(each["verdict"] == Verdict.CORRECT.name for each in record["programs"].values())
        yield f"{case.name:36s} {len(record['programs'])} programs, {right} right ({seconds:.1f} s)"


def _refuse_other_device(measured: Sequence[Mapping[str, Any]], device: str, out: Path) -> None:
    others = {record["device"] for record in measured if record["device"] != device}
    if others:
        raise StoreError(
            f"The records in {out} are of {', '.join(sorted(others))}, not of {device}: choose another --out folder."
        )


def _wanted(case: Case, written: Mapping[str, Mapping[str, Any]], known: set[str]) -> dict[str, list[str]]:
    """Programs to measure by writer; one that two have written stands with both."""
    return {
        name: [program for program in dict.fromkeys(records[case.name]["programs"]) if program not in known]
        for name, records in written.items()
        if case.name in records
    }


def _measured(
    run: Run, case: Case, judge: Judge, wanted: Mapping[str, Sequence[str]], texts: Mapping[str, str]
) -> dict[str, Any]:
    """One session on one matrix."""
    config, took = run.config, dict[str, float]()
    programs = list(dict.fromkeys(program for held in wanted.values() for program in held))
    pattern = case.load(run.folder)
    opened = judge.open(pattern, config.problem)
    try:
        outcomes = opened.judge([texts[each] for each in programs], REPORTED, config.rounds)
        found = {program: _judged(outcome) for program, outcome in zip(programs, outcomes, strict=True)}
        for outcome in outcomes:
            add(took, outcome.phases_s)
        names = opened.baselines(every_order=True)
        races: list[dict[str, Any]] = []
        chosen = _finalists(found, wanted, config.finalists)
        with phase(took, "race"):
            for first in range(0, max(1, len(chosen)), config.race_size):
                part = {each: texts[each] for each in chosen[first : first + config.race_size]}
                for group in _raced(opened, part, names, config):
                    _take(found, group, races)
    finally:
        opened.close()
    return {
        "case": case.name,
        "problem": problem_name(config.problem),
        "structure": case.structure,
        "kind": case.kind,
        "nonzeros": pattern.nonzeros,
        "device": judge.device.name,
        "versions": dict(judge.device.versions),
        "source": "modelled" if judge.device.backend == "sim" else "gpu",
        "date": date.today().isoformat(),
        "races": races,
        "programs": found,
        "phases_s": rounded(took, 2),
    }


def _judged(outcome: Outcome) -> dict[str, Any]:
    times = {mode: round(t.median_us, 4) for mode, t in outcome.timings.items()} if outcome.correct else {}
    return {
        "verdict": outcome.verdict.name,
        **({"reason": outcome.reason[:300]} if outcome.reason else {}),
        "judged_us": times,
    }


def _finalists(found: Mapping[str, Any], wanted: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """The fastest few of each writer and mode, each once; under withheld headers being right is what counts."""
    chosen: dict[str, None] = {}
    for programs in (held for name, held in wanted.items() if PROMPTED not in name):
        right = [each for each in programs if found[each]["judged_us"]]
        for mode in REPORTED:
            fastest = sorted(right, key=lambda each: (found[each]["judged_us"][mode], each))
            chosen.update(dict.fromkeys(fastest[:count]))
    return list(chosen)


def _raced(
    opened: Opened, texts: Mapping[str, str], names: Sequence[str], config: AssessConfig
) -> Iterator[tuple[dict[str, Outcome], dict[str, dict[str, float]]]]:
    """Races of all, or one by one where they don't run together: outcomes, and the baselines' times of each race."""
    try:
        race = opened.race(texts, names, REPORTED, config.race_rounds, config.race_graph_ms)
    except BackendError as error:
        if not texts:
            raise
        if len(texts) == 1:
            (program,) = texts
            log.warning("The program %s passed and then stopped its worker twice: %s", program, error)
            yield {program: Outcome(Verdict.FAILED, f"stopped its worker in the race: {error}")}, {}
            return
        for program, text in texts.items():
            yield from _raced(opened, {program: text}, names, config)
        return
    baselines = {
        name: {mode: round(t.median_us, 4) for mode, t in race[name].items()} for name in names if name in race
    }
    yield {program: race.outcomes[program] for program in texts}, baselines


def _take(
    found: dict[str, dict[str, Any]],
    group: tuple[Mapping[str, Outcome], dict[str, dict[str, float]]],
    races: list[dict[str, Any]],
) -> None:
    """Add a race to the session: its baselines, and what its programs reached. One that failed there has failed."""
    outcomes, baselines = group
    if baselines:
        races.append(baselines)
    for program, outcome in outcomes.items():
        times = {mode: round(t.median_us, 4) for mode, t in outcome.timings.items()} if outcome.correct else {}
        found[program] |= _judged(outcome) if not outcome.correct else {"raced_us": times, "race": len(races) - 1}
