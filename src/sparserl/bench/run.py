"""The benchmark: every matrix is tuned, then the operator and every peer are verified and timed side by side.

    sparserl bench --matrices DIR|LIST --out results/NAME [--op spmm --columns 32] [--dtype f64] [--mode solver] …

Everything goes to OUT/bench.jsonl: 'about' lines (machine, versions, settings, one a call), a 'matrix' line for every
matrix and problem, a 'time' line for every measurement; `run` of the latter two is the `id` of the about line they
belong to. A matrix is written when it is done, so a second call goes on where the first stopped. What fails is a line
with a `fault`. By default there is a tuning for every mode, measured in that mode.

Times of two machines, of two policies or of two numbers of candidates never stand in one folder; measured and modelled
ones least of all. Figures and pages are made from the records by `figures` and others.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import scipy

from sparserl import policies
from sparserl.backends.driver import StickyError
from sparserl.bench import archive, figures
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
from sparserl.bench.tuned import Tuned, described, tuned, tuning_record
from sparserl.engine import machine
from sparserl.errors import SparseRLError, StoreError
from sparserl.judge.evaluate import Judge
from sparserl.records import MODES, Mode, Problem
from sparserl.store import append_jsonl, content_key
from sparserl.tune import Settings
from sparserl.version import VERSION

log = logging.getLogger(__name__)

NAME = "bench"
"""of the file of records, without its ending"""
SAME = ("source", "device", "policy", "policy_sha", "candidates")
"""what all records of a folder must agree in"""
UNSTEADY = ("date", "command", "copy_tb_s")
"""what differs from call to call on one machine"""
COSTS = ("tuning_s", "tuning_s_by_mode", "phases_s", "worker_s", "programs_s", "peak_memory_bytes", "peak_host_bytes")
"""of a matrix's record: what a tuning takes where nobody else is on the machine"""
LONGEST = 500
"""characters of a fault"""


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
        self, config: BenchConfig, out: Path, commands: Sequence[Command] = (), *, bare: bool = False
    ) -> None:
        """bare: of the peers the library and the `commands` alone."""
        self.config, self.out = config, out
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
        self._id = content_key({key: value for key, value in about.items() if key not in UNSTEADY})[:12]
        self._about_record = {"kind": "about", "id": self._id, **about}

    def _offered(self, commands: Sequence[Command], bare: bool) -> list[Peer]:
        """The peers that can be used here; why others can't goes into the about line."""
        library = Library(self._judge)
        if self.config.device == "sim":
            return [library]  # nothing measured stands beside modelled times
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
        config, device = self.config, self._backend.device()
        bench = getattr(self._backend, "bench", None)
        with self._turn.exclusive():
            copy_tb_s = round(bench.copy_tb_s(), 3) if bench is not None else None
        return {
            "source": "gpu" if config.device == "cuda" else "modelled",
            "device": device.name,
            "arch": device.arch,
            "driver": _driver() or device.versions.get("driver", ""),
            "versions": {
                **device.versions, "sparserl": VERSION, "python": platform.python_version(), "numpy": np.__version__,
                "scipy": scipy.__version__,
            },
            "memory_tb_s": device.memory_tb_s,
            "copy_tb_s": copy_tb_s,
            "l2_bytes": device.l2_bytes,
            "policy": config.policy,
            "policy_sha": _sha(policies.folder_of(config.policy)),
            "candidates": config.candidates,
            "rounds": config.rounds,
            "tune_mode": config.tune_mode,
            "shares": config.shares,
            "peers_missing": self._missing,
            "date": date.today().isoformat(),
            "command": shlex.join(["sparserl", *sys.argv[1:]]),
        }  # fmt: skip

    def run(self, wanted: Sequence[Entry], *, budget_s: float = 1e9, retry: bool = False) -> Iterator[Finished]:
        """Matrix after matrix. Those in the folder are passed over; `retry`: not those that failed."""
        began, name, modes = time.monotonic(), problem_name(self.config.problem), self.config.modes
        records = archive.read(self.out, NAME)
        _refuse_mixing(records, self._about_record, self.out)
        of_problem = [r for r in records if r["kind"] != "about" and r["problem"] == name]
        known = {s.matrix: s.speedup for s in figures.standings(of_problem) if s.mode == modes[0]}
        earlier = {r["matrix"]: r for r in of_problem if r["kind"] == "matrix"}
        done = {n for n, r in earlier.items() if set(modes) <= set(r["modes"]) and not (retry and r.get("fault"))}
        waiting = [entry for entry in wanted if entry.name not in done]
        self.complete = not waiting
        if waiting:
            append_jsonl(self.out / f"{NAME}.jsonl", self._about_record)
        for entry in waiting:
            start = time.monotonic()
            if start - began > budget_s:
                log.warning("The time is up; call again to go on.")
                return
            made, lost = self._one(entry)
            made[-1] = _joined(earlier.get(entry.name), made[-1])
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

    def _one(self, entry: Entry) -> tuple[list[dict[str, Any]], StickyError | None]:
        """The records of one matrix, its own the last; and the error after which this process is of no further use."""
        name = problem_name(self.config.problem)
        head = {"run": self._id, "matrix": entry.name, "problem": name}
        matrix: dict[str, Any] = {"kind": "matrix", **head, "origin": entry.origin, "modes": list(self.config.modes)}
        times: list[dict[str, Any]] = []
        lost: StickyError | None = None
        try:
            subject = self._prepared(entry, matrix)
            where = {"kind": "time", **head, "device": self._about_record["device"]}
            for peer in self._peers:
                # another program does not know about turns: it has the GPU alone
                with self._turn.exclusive() if isinstance(peer, Command) else nullcontext():
                    times += [{**where, **reading.record()} for reading in _readings(peer, subject)]
        except StickyError as error:
            lost, matrix["fault"] = error, _said(error)
        except Exception as error:  # a fault of any kind costs this matrix, not the hundreds that wait
            log.warning("%s failed: %s", entry.name, _said(error), exc_info=log.isEnabledFor(logging.INFO))
            matrix["fault"] = _said(error)
        operator = [t for t in times if t["side"] == figures.OPERATOR and t.get("fault")]
        if operator and "fault" not in matrix:
            matrix["fault"] = f"the operator, raced once more: {operator[0]['fault']}"
        return [*times, matrix], lost

    def _prepared(self, entry: Entry, record: dict[str, Any]) -> Subject:
        """Loaded, described and tuned; what is known goes into the record as soon as it is known."""
        config = self.config
        matrix = entry.load()
        record |= described(entry, matrix.pattern)
        by_mode: dict[Mode, Tuned] = {}
        for mode in (config.tune_mode,) if config.tune_mode else config.modes:
            by_mode[mode] = tuned(matrix, config.settings(mode), self._backend)
        record |= tuning_record(by_mode, config.policy)
        if config.shares > 1:
            record |= dict.fromkeys(COSTS)
        programs = {
            mode: best.text for mode in config.modes if (best := by_mode[config.tune_mode or mode].best) is not None
        }
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


def _joined(earlier: dict[str, Any] | None, record: dict[str, Any]) -> dict[str, Any]:
    """A matrix that was measured in other modes before keeps what is known of them."""
    if earlier is None or earlier.get("fault"):
        return record
    joined = dict(record)
    for key in ("tuning_s_by_mode", "winners"):
        joined[key] = {**(earlier.get(key) or {}), **(record.get(key) or {})}
    joined["modes"] = list(dict.fromkeys([*record["modes"], *earlier["modes"]]))
    return joined


def _refuse_mixing(records: Sequence[dict[str, Any]], about: dict[str, Any], out: Path) -> None:
    for earlier in records:
        if earlier["kind"] != "about":
            continue
        for key in SAME:
            if earlier.get(key) != about[key]:
                raise StoreError(
                    f"The records in {out} have the {key} {earlier.get(key)!r}, this run has {about[key]!r}: they are "
                    "never mixed. Choose another --out folder."
                )


def _sha(policy: Path) -> str:
    """Of a policy's weights; '' where it is none."""
    weights = policy / "model.safetensors"
    if not weights.is_file():
        return ""
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _driver() -> str:
    """The kernel driver's version, such as '580.95.05'; '' where there is none."""
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split() if path.is_file() else []
    return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), "")


def _said(error: BaseException) -> str:
    known = isinstance(error, SparseRLError)
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if known else f"{type(error).__name__}: {text}")[:LONGEST]
