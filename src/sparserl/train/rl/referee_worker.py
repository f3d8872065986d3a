"""Judging groups in one process: the matrix is made, its programs judged and its baseline timed, prompt after prompt.

`GroupJudge` does it; `serve` is the life of a process that does it for a `LocalReferee` (`referee_local`) at the other
end of a pipe. Whatever goes wrong here beyond a program's own failure ends the process, and its parent starts another.

On the simulator every text has a case of its own, seeded by the prompt: what is said of it is a function of prompt and
text alone, whatever was judged before. On a GPU the texts of a group share a case whose numbers nobody can know; they
are checked with numbers from a pool, and what is timed again, of all but large matrices, with fresh ones and on a twin
of the matrix.

Not covered: a baseline of several processes. Each process measures its own, so that times of one process compare.
"""

from __future__ import annotations

import os
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from sparserl import phases
from sparserl.errors import BackendError, SparseRLError
from sparserl.judge import plain, product
from sparserl.judge.evaluate import Case, Judge
from sparserl.judge.race import Race
from sparserl.judge.reference import FRESH_BELOW, Reference
from sparserl.lifetime import leave_with
from sparserl.matrix import Pattern
from sparserl.phases import phase
from sparserl.records import MODES, Mode, Outcome, Verdict
from sparserl.store import content_key
from sparserl.train.cases import from_source
from sparserl.train.rl.nouns import Judged, Prompt, prompt_key

Device = Literal["cuda", "sim"]
PLACES = {"cuda": 14, "sim": 16}
"""processes at most by default: on one GPU more than this wait for each other's timings"""
LARGE_THREADS = 4
"""that the numbers of a large matrix are made with, whatever the others do: a round waits for its slowest group"""
BASELINE_FINALISTS = 2
"""variants a mode that are raced again beside winners"""
REASON = 400
"""characters of a reason that are kept"""


@dataclass(frozen=True)
class RefereeConfig:
    """How rollouts are judged."""

    device: Device = "sim"
    modes: tuple[Mode, ...] = ("solver",)
    """timed for every program"""
    rounds: int = 3
    graph_ms: float = 0.2
    """how long one timed graph lasts in the first look"""
    retime_rounds: int = 5
    retime_graph_ms: float = 0.3
    """of winners and the baselines beside them: alone on the GPU, so it is what a round waits for most"""
    workers: int = 0
    """processes; 0: one a core, at most 14 on a GPU (a timing has the GPU alone) and 16 on the simulator"""
    compile_workers: int = 0
    """compilers of each process; 0: the cores shared out"""
    limit_s: float = 20.0
    """the longest a program may take for one command of the judge"""
    silence_s: float = 900.0
    """a process that says nothing for so long is replaced; waiting for a turn on the GPU may take 600 s of it"""
    folder: str = ""
    """of the real matrices"""
    seed: int = 0
    """of the numbers that programs are checked with on the simulator; a GPU's are never known"""
    remember: bool = False
    """on a GPU: a program that was judged on a prompt is not judged there again; the simulator always remembers"""
    gpu: str = ""
    """which GPU, as CUDA_VISIBLE_DEVICES names it; empty: the one that this process sees first"""
    kept_products: int = 8_000_000
    """nonzeros times columns of B of the cases that a process keeps open on a GPU"""
    unknown: str = ""
    """a replay's verdict on a program that was not stored, by name; empty: an error"""

    def __post_init__(self) -> None:
        if self.device not in ("cuda", "sim"):
            raise ValueError(f"The 'device' of a RefereeConfig must be 'cuda' or 'sim'. Got {self.device!r}.")
        if not self.modes or set(self.modes) - set(MODES):
            raise ValueError(f"The 'modes' of a RefereeConfig must be some of {', '.join(MODES)}. Got {self.modes!r}.")
        if self.unknown and self.unknown not in Verdict.__members__:
            known = ", ".join(Verdict.__members__)
            raise ValueError(f"The 'unknown' of a RefereeConfig must be '' or one of {known}. Got {self.unknown!r}.")
        for name in ("rounds", "retime_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"The '{name}' of a RefereeConfig must be at least 1. Got {getattr(self, name)}.")
        for name in ("workers", "compile_workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"The '{name}' of a RefereeConfig must not be negative. Got {getattr(self, name)}.")

    @property
    def places(self) -> int:
        """How many processes judge."""
        return self.workers or max(1, min(os.cpu_count() or 1, PLACES[self.device]))

    @property
    def compilers(self) -> int:
        return self.compile_workers or max(1, (os.cpu_count() or 1) // self.places)


OpenJudge = Callable[[RefereeConfig], Judge]
Told = Callable[..., None]
"""hears ('began', place) before a text is judged on its own, and ('judged', place, Judged) after"""


def open_judge(config: RefereeConfig) -> Judge:
    """The judge of one process."""
    return Judge(config.device, config.compilers, config.limit_s)


@dataclass(frozen=True)
class Job:
    """One group, as it is sent to a process."""

    prompt: Prompt
    texts: Mapping[int, str]
    """by place in the group, each text once"""
    careful: bool = False
    """one at a time, each announced: after a death, so that the next one has a culprit"""
    baseline: bool = False
    """wanted even if none of the texts is right"""
    retime: bool = False
    """the texts are winners and the incumbent, to be timed side by side"""


@dataclass
class _Baseline:
    """What a user would have: its best time by mode, and the names of the fastest."""

    times_us: dict[str, float]
    names: tuple[str, ...]


@dataclass
class _Open:
    """What a process keeps of a prompt."""

    pattern: Pattern
    products: int
    """nonzeros times columns of B"""
    case: Case | None = None
    """on a GPU, pooled"""
    strict: Reference | None = None
    """of the same case, with fresh numbers for every check"""


@dataclass
class GroupJudge:
    """Judges groups on one machine. `close` ends its processes."""

    config: RefereeConfig
    judge: Judge
    seconds: dict[str, float] = field(default_factory=dict)
    """by phase: matrix, baseline, pack, compile, verify, time, retime; 'group', which is all of it; and of it 'waiting'
    for a turn on the GPU, 'alone' on it, and what the worker spends on each command ('worker_checks' …)"""
    _open: OrderedDict[str, _Open] = field(default_factory=OrderedDict)
    _baselines: dict[str, _Baseline] = field(default_factory=dict)

    def group(self, job: Job, told: Told) -> dict[str, float]:
        """Judge the texts of a job; returns the baseline by mode, empty where nothing needs one."""
        with phase(self.seconds, "group"):
            held = self._held(job.prompt)
            right = job.baseline
            for outcome in self._outcomes(job, held, told):
                right |= outcome.correct
                phases.add(self.seconds, outcome.phases_s)
            return dict(self._baseline(job.prompt, held).times_us) if right else {}

    def race(self, job: Job, told: Told) -> dict[str, Judged]:
        """The texts and the baseline side by side, longer; by text."""
        with phase(self.seconds, "group"), phase(self.seconds, "retime"):
            held = self._held(job.prompt)
            names = self._baseline(job.prompt, held).names
            with self._case(job.prompt, held) as case, _strictly(case, held):
                if not job.careful:
                    with suppress(BackendError):  # together they broke the machine twice: each for itself
                        return self._raced(case, [*job.texts.values()], names)
                found = {}
                for place, text in job.texts.items():
                    told("began", place)
                    found[text] = self._raced_alone(case, text, names)
                    told("judged", place, found[text])
                return found

    def close(self) -> None:
        self.judge.close()

    # ---- one prompt

    def _held(self, prompt: Prompt) -> _Open:
        """The prompt's matrix, made or at hand; older ones go while there are too many."""
        key = prompt_key(prompt)
        if key not in self._open:
            with phase(self.seconds, "matrix"):
                folder = Path(self.config.folder) if self.config.folder else None
                pattern = from_source(prompt.case, prompt.source).load(folder)
                self._open[key] = _Open(pattern, pattern.nonzeros * prompt.problem.columns)
        self._open.move_to_end(key)
        while len(self._open) > 1 and sum(e.products for e in self._open.values()) > self.config.kept_products:
            _, dropped = self._open.popitem(last=False)
            if dropped.case is not None:
                dropped.case.close()
        return self._open[key]

    @contextmanager
    def _case(self, prompt: Prompt, held: _Open) -> Iterator[Case]:
        """A case for the prompt: on the simulator a new one each time, seeded; on a GPU the same, with no seed."""
        if self.config.device == "cuda":
            held.case = held.case or self.judge.open(held.pattern, prompt.problem, pooled=True)
            yield held.case
            return
        seed = int(content_key({"seed": self.config.seed, "prompt": prompt_key(prompt)})[:8], 16)
        case = self.judge.open(held.pattern, prompt.problem, seed)
        try:
            yield case
        finally:
            case.close()

    def _outcomes(self, job: Job, held: _Open, told: Told) -> Iterator[Outcome]:
        config = self.config
        places = list(job.texts)
        one_by_one = job.careful or config.device == "sim"
        for part in ([place] for place in places) if one_by_one else [places]:
            if one_by_one:
                told("began", part[0])
            with self._case(job.prompt, held) as case:
                say = lambda at, outcome, part=part: told("judged", part[at], self._told(outcome))  # noqa: E731
                texts = [job.texts[i] for i in part]
                beside = partial(self._wanted_beside, job.prompt, case)
                yield from case.judge(texts, config.modes, config.rounds, config.graph_ms, say, beside=beside)

    def _wanted_beside(self, prompt: Prompt, case: Case) -> Sequence[str]:
        """The baselines, where they have yet to be timed."""
        if prompt_key(prompt) in self._baselines:
            return ()
        with phase(self.seconds, "baseline"):
            return case.baselines(every_order=True)

    def _baseline(self, prompt: Prompt, held: _Open) -> _Baseline:
        """Measured once a prompt by this process, as briefly as programs and with the first of them, where they were
        timed side by side; the fastest are raced again later."""
        key = prompt_key(prompt)
        if key not in self._baselines:
            with phase(self.seconds, "baseline"), self._case(prompt, held) as case:
                race = case.beside
                if not race:
                    known = case.baselines(every_order=True) or (plain.NAME,)
                    race = case.race({}, known, self.config.modes, self.config.rounds, self.config.graph_ms)
                names = _fastest(race, tuple(race), self.config.modes)
                self._baselines[key] = _Baseline(_best_us(race, names, self.config.modes), tuple(names))
        return self._baselines[key]

    def _raced_alone(self, case: Case, text: str, names: Sequence[str]) -> Judged:
        try:
            return self._raced(case, [text], names)[text]
        except BackendError as error:
            return replace(self._told(Outcome(Verdict.FAILED, f"while it was timed: {error}")), retimed=True)

    def _raced(self, case: Case, texts: Sequence[str], names: Sequence[str]) -> dict[str, Judged]:
        config = self.config
        race = case.race(list(texts), names, config.modes, config.retime_rounds, config.retime_graph_ms)
        baseline = _best_us(race, names, config.modes)
        said = {text: self._told(race.outcomes[text]) for text in texts}
        return {t: replace(each, retimed=True, baseline_us=baseline if right(each) else {}) for t, each in said.items()}

    def _told(self, outcome: Outcome) -> Judged:
        return Judged(
            outcome.verdict,
            outcome.reason[:REASON],
            times_us={mode: each.median_us for mode, each in outcome.timings.items()} if outcome.correct else {},
            floor_us={mode: each.floor_us for mode, each in outcome.timings.items()},
            registers=outcome.registers,
            sectors=outcome.sectors,
            source="gpu" if self.config.device == "cuda" else "modelled",
        )


@contextmanager
def _strictly(case: Case, held: _Open) -> Iterator[None]:
    """Checks of a pooled case draw fresh numbers for a while, and there is a twin: winners are imitated.

    Not of a large one: nobody draws fresh numbers for those, and another pool takes longer than all else.
    """
    if case is not held.case or held.products >= FRESH_BELOW:
        yield
        return
    pooled = case.reference
    case.reference = held.strict = held.strict or Reference(case.pattern, case.problem)
    try:
        yield
    finally:
        case.reference = pooled


def right(judged: Judged) -> bool:
    return judged.verdict is Verdict.CORRECT


def _best_us(race: Race, names: Sequence[str], modes: Sequence[Mode]) -> dict[str, float]:
    """By mode, the fastest of those that were right."""
    there = [race[name] for name in names if name in race]
    return {str(mode): min(each[mode].median_us for each in there) for mode in modes if there}


def _fastest(race: Race, names: Sequence[str], modes: Sequence[Mode]) -> list[str]:
    kept: dict[str, None] = {}
    for mode in modes:
        ordered = sorted((n for n in names if n in race), key=lambda n: race[n][mode].median_us)
        kept |= dict.fromkeys(ordered[:BASELINE_FINALISTS])
    return list(kept)


def serve(descriptor: int) -> None:
    """The life of a process: a config, then jobs, until the pipe closes. Every answer begins with its kind."""
    pipe = Connection(descriptor)
    leave_with(os.getppid())
    config, opener = pipe.recv()
    if config.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.gpu  # before anything looks for a device
    product.Share.threads = max(LARGE_THREADS, config.compilers)
    try:
        judges = GroupJudge(config, opener(config))
    except BackendError as error:
        pipe.send(("unavailable", str(error)))
        return
    pipe.send(("ready",))
    with suppress(EOFError, OSError, KeyboardInterrupt):
        try:
            while True:
                pipe.send(_answer(judges, pipe.recv(), lambda *message: pipe.send(message)))
        finally:
            judges.close()


def _answer(judges: GroupJudge, job: Job, told: Told) -> tuple[Any, ...]:
    judges.seconds.clear()
    try:
        answer = judges.race(job, told) if job.retime else judges.group(job, told)
    except BackendError as error:
        return "fault", str(error)
    except SparseRLError as error:  # the matrix can't be made: another process would fare no better
        return "refused", error
    except Exception:  # a fault of the judge: told to the parent, which logs it and starts another process
        return "fault", traceback.format_exc()
    phases.add(judges.seconds, judges.judge.turns_s())
    return "done", answer, dict(judges.seconds)
