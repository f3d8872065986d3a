"""The benchmark: every matrix is tuned, then the operator and every peer are verified and timed side by side.

    sparserl bench --matrices DIR|LIST --out results/NAME [--op spmm --columns 32] [--dtype f64] [--mode solver] …

Everything goes to OUT/bench.jsonl: 'about' lines (`provenance`, one a call), a 'matrix' line for every matrix and
problem, a 'time' line for every measurement; `run` of the latter two is the `id` of the about line they belong to. A
matrix is written when it is done, so a second call goes on where the first stopped. What fails is a line with a `fault`
(`faults`), and counts as lost. By default there is a tuning for every mode, measured in that mode.

Times of two machines, of two policies or of two numbers of candidates never stand in one folder; measured and modelled
ones least of all. Figures and pages are made from the records by `figures` and others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from sparserl import policies
from sparserl.backends.driver import StickyError
from sparserl.bench import archive, faults, figures, provenance
from sparserl.bench.machine import Machine
from sparserl.bench.matrices import Entry
from sparserl.bench.peer_command import Command
from sparserl.bench.peer_cupy import CuPy
from sparserl.bench.peer_launched import Launched, SideBySide
from sparserl.bench.peer_library import Library
from sparserl.bench.peer_scipy import SciPy
from sparserl.bench.peer_torch import Torch
from sparserl.bench.peers import Peer, Reading, Subject
from sparserl.bench.reference import problem_name
from sparserl.bench.tables import geometric_mean
from sparserl.bench.tuned import Tuned, described, placed, tuned, tuning_record
from sparserl.engine import machine
from sparserl.errors import SparseRLError
from sparserl.judge.evaluate import Judge
from sparserl.records import MODES, Mode, Problem
from sparserl.store import append_jsonl
from sparserl.tune import Settings

log = logging.getLogger(__name__)

NAME = "bench"
"""of the file of records, without its ending"""
COSTS = ("tuning_s", "tuning_s_by_mode", "phases_s", "worker_s", "programs_s", "peak_memory_bytes", "peak_host_bytes")
"""of a matrix's record: what a tuning takes where nobody else is on the machine"""
MODELLED = "times on the simulator are modelled, and nothing measured stands beside them"
"""why a peer takes no part there"""


@dataclass(frozen=True)
class BenchConfig:
    """How matrices are tuned and measured; checked when made."""

    problem: Problem
    device: Literal["cuda", "sim"] = "cuda"
    """there is no 'auto': measured and modelled times are never mixed"""
    modes: tuple[Mode, ...] = ("solver",)
    """what is timed; figures that are one a matrix are those of the first"""
    tune_mode: Mode | None = None
    """tune once, for this mode, and measure that operator in every mode; None: one tuning a mode"""
    policy: str = "auto"
    """as `sparserl.tune` takes it; of a config that was made, never 'auto'"""
    candidates: int = 16
    """programs to try a tuning"""
    rounds: int = 7
    """times that every side is timed, in turns"""
    seed: int = 0
    """of the numbers that candidates and peers are verified with"""
    shares: int = 1
    """processes side by side on this machine: with more than one, seconds and memory of a tuning are not its own and
    are not kept"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", policies.settled(self.policy, self.problem))
        if self.device not in ("cuda", "sim"):
            raise SparseRLError(f"The 'device' of a benchmark must be cuda or sim. Got {self.device!r}.")
        if not self.modes or len(set(self.modes)) < len(self.modes):
            raise SparseRLError(f"The 'modes' of a benchmark must be some of {', '.join(MODES)}. Got {self.modes}.")
        if self.rounds < 1:
            raise SparseRLError(f"The 'rounds' of a benchmark must be at least 1. Got {self.rounds}.")
        for mode in (*self.modes, self.tune_mode or self.modes[0]):
            self.settings(mode)  # which checks the rest

    def settings(self, mode: Mode) -> Settings:
        """How `tune` is called."""
        return Settings(self.problem, self.device, self.candidates, self.policy, self.seed, mode)

    @property
    def tuned_modes(self) -> tuple[Mode, ...]:
        """Those that there is a tuning for."""
        return (self.tune_mode,) if self.tune_mode else self.modes


@dataclass(frozen=True)
class Finished:
    """One matrix of a run, for whoever shows the progress."""

    matrix: str
    done: int
    total: int
    speedups: dict[str, float]
    """by mode"""
    mean: float | None
    """geometric, of all matrices of this problem in the folder so far, in the first mode"""
    seconds: float
    fault: str = ""


class Bench:
    """A machine, its peers and a folder of records. Use it in a `with`."""

    def __init__(
        self, config: BenchConfig, out: Path, commands: Sequence[Command] = (), *, bare: bool = False,
        warm_up: Entry | None = None, other_versions: bool = False,
    ) -> None:  # fmt: skip
        """bare: of the peers the library and the `commands` alone. warm_up: a matrix that is tuned before the first
        and kept out of the records. other_versions: go on where another driver or library measured."""
        if config.device == "sim" and commands:
            names = ", ".join(each.name for each in commands)
            raise SparseRLError(f"A '--peer' needs '--device cuda': {MODELLED}. Got {names} with sim.")
        self.config, self.out = config, out
        self._warm_up, self._other_versions = warm_up, other_versions
        self.complete = True
        """whether the last `run` came to its end in its time"""
        self._held = ExitStack()
        self._missing: dict[str, str] = {}
        self._backend = machine(config.device)
        self._turn = Machine(self._backend).turn  # which also makes the backend's clock wait for its turn
        self._judge = self._held.enter_context(Judge(config.device))
        try:
            self._peers = self._offered(commands, bare)
            about = self._about()
        except BaseException:
            self._held.close()
            raise
        self._about_record = provenance.record_of(about)

    def _offered(self, commands: Sequence[Command], bare: bool) -> list[Peer]:
        """The peers that can be used here; why others can't goes into the about line."""
        library = Library(self._judge)
        if self.config.device == "sim":
            self._missing |= {peer.name: MODELLED for peer in (Torch(), CuPy(), SciPy())}
            return [library]
        if bare:
            return [library, *filter(self._usable, commands)]
        launched: list[Launched] = [each for each in (Torch(), CuPy()) if self._usable(each)]
        beside: list[Peer] = [SideBySide(self._backend, launched, self._turn.exclusive)] if launched else []
        others: list[Peer] = [SciPy(), *commands]
        return [library, *beside, *filter(self._usable, others)]

    def _usable(self, peer: Peer | Launched) -> bool:
        why = peer.why_not()
        if why:
            log.warning("The peer %s takes no part: %s.", peer.name, why)
            self._missing[peer.name] = why
        return not why

    def _about(self) -> dict[str, Any]:
        config = self.config
        bench = getattr(self._backend, "bench", None)
        with self._turn.exclusive():
            copy_tb_s = round(bench.copy_tb_s(), 3) if bench is not None else None
        return {
            "source": "gpu" if config.device == "cuda" else "modelled",
            **provenance.machine(self._backend.device()),
            "copy_tb_s": copy_tb_s,
            "problem": problem_name(config.problem),
            "modes": list(config.modes),
            "policy": config.policy,
            "policy_sha": provenance.sha_of(policies.folder_of(config.policy)),
            "candidates": config.candidates,
            "rounds": config.rounds,
            "tune_mode": config.tune_mode,
            "shares": config.shares,
            "warm_up": self._warm_up.name if self._warm_up else None,
            "peers_missing": self._missing,
            "date": date.today().isoformat(),
            "command": provenance.command(),
        }

    def run(self, wanted: Sequence[Entry], *, budget_s: float = 1e9, retry: bool = False) -> Iterator[Finished]:
        """Matrix after matrix. Those in the folder are passed over; `retry`: not those that failed."""
        began, name, modes = time.monotonic(), problem_name(self.config.problem), self.config.modes
        records = archive.read(self.out, NAME)
        provenance.refuse_mixing(records, self._about_record, self.out, self._other_versions)
        of_problem = [r for r in records if r["kind"] != "about" and r["problem"] == name]
        known = {s.matrix: s.speedup for s in figures.standings(of_problem) if s.mode == modes[0]}
        earlier = {r["matrix"]: r for r in of_problem if r["kind"] == "matrix"}
        again = {n for n, r in earlier.items() if retry and faults.of(r).keys() & set(modes)}
        done = {n for n, r in earlier.items() if set(modes) <= set(r["modes"])} - again
        waiting = [entry for entry in wanted if entry.name not in done]
        self.complete = not waiting
        if waiting:
            self._warm(wanted)
            append_jsonl(self.out / f"{NAME}.jsonl", self._about_record)
        for entry in waiting:
            start = time.monotonic()
            if start - began > budget_s:
                log.warning("The time is up; call again to go on.")
                return
            made, lost = self._one(entry)
            made[-1] = faults.joined(earlier.get(entry.name), made[-1])
            append_jsonl(self.out / f"{NAME}.jsonl", *made)
            found = {s.mode: s.speedup for s in figures.standings(made) if s.speedup is not None}
            known[entry.name] = found.get(modes[0])
            done.add(entry.name)
            finished = sum(each.name in done for each in wanted)
            mean = geometric_mean(known.values())
            seconds = time.monotonic() - start
            self.complete = finished == len(wanted)
            yield Finished(entry.name, finished, len(wanted), found, mean, seconds, made[-1].get("fault", ""))
            if lost is not None:
                raise lost

    def _warm(self, wanted: Sequence[Entry]) -> None:
        """Tune what is not counted, so that the first matrix that is meets a process that has tuned before."""
        warm = self._warm_up
        if warm is None:
            return
        if any(each.name == warm.name or (each.spec is not None and each.spec == warm.spec) for each in wanted):
            raise SparseRLError(
                f"The '--warm-up' of a benchmark must not be one of its matrices. Got {warm.name!r}: what was compiled "
                "for it would be at hand when it is measured. Choose another."
            )
        matrix = warm.load()
        for mode in self.config.tuned_modes:
            tuned(matrix, self.config.settings(mode), self._backend)

    def _one(self, entry: Entry) -> tuple[list[dict[str, Any]], StickyError | None]:
        """The records of one matrix, its own the last; and the error after which this process is of no further use."""
        about, modes = self._about_record, self.config.modes
        head = {"run": about["id"], "matrix": entry.name, "problem": about["problem"]}
        matrix: dict[str, Any] = {"kind": "matrix", **head, "origin": entry.origin, "modes": list(modes)}
        times: list[dict[str, Any]] = []
        failed: dict[str, str] = {}
        lost: StickyError | None = None
        try:
            matrix |= placed(entry)
            subject = self._prepared(entry, matrix, failed)
            where = {"kind": "time", **head, "device": about["device"], "copy_tb_s": about["copy_tb_s"]}
            for peer in self._peers:
                # another program does not know about turns: it has the GPU alone
                with self._turn.exclusive() if isinstance(peer, Command) else nullcontext():
                    times += [{**where, **reading.record()} for reading in _readings(peer, subject)]
        except StickyError as error:
            lost, failed = error, dict.fromkeys(modes, _said(error))
        except Exception as error:  # a fault of any kind costs this matrix, not the hundreds that wait
            log.warning("%s failed: %s", entry.name, _said(error), exc_info=log.isEnabledFor(logging.INFO))
            failed = dict.fromkeys(modes, _said(error))
        for each in times:
            if each["side"] == figures.OPERATOR and each.get("fault"):
                failed.setdefault(each["mode"], f"the operator, raced once more: {each['fault']}")
        faults.told(matrix, failed)
        return [*times, matrix], lost

    def _prepared(self, entry: Entry, record: dict[str, Any], failed: dict[str, str]) -> Subject:
        """Loaded, described and tuned; what is known goes into the record as soon as it is known."""
        config = self.config
        matrix = entry.load()
        record |= described(entry, matrix.pattern)
        by_mode: dict[Mode, Tuned] = {
            mode: tuned(matrix, config.settings(mode), self._backend) for mode in config.tuned_modes
        }
        record |= tuning_record(by_mode, config.policy)
        if config.shares > 1:
            record |= dict.fromkeys(COSTS)
        programs: dict[Mode, str] = {}
        for mode in config.modes:
            each = by_mode[config.tune_mode or mode]
            if each.best is None:
                failed[mode] = each.fault
            else:
                programs[mode] = each.best.text
        return Subject(entry.name, matrix, config.problem, config.modes, programs, config.rounds, config.seed)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()


def _readings(peer: Peer, subject: Subject) -> list[Reading]:
    """What a peer says; a peer that breaks is a Reading in every mode it has not spoken of, and the others go on."""
    found: list[Reading] = []
    try:
        for reading in peer.measure(subject):
            found.append(reading)
    except StickyError:
        raise
    except Exception as error:
        if isinstance(peer, Library):
            raise  # without the baseline there is nothing to say of this matrix
        log.warning("The peer %s failed on %s: %s", peer.name, subject.name, _said(error))
        spoken = {reading.mode for reading in found}
        found += [Reading(peer.name, m, "gpu", fault=_said(error)) for m in subject.modes if m not in spoken]
    return found


def _said(error: BaseException) -> str:
    known = isinstance(error, SparseRLError)
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if known else f"{type(error).__name__}: {text}")[: faults.LONGEST]
