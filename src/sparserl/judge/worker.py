"""The process that holds a machine and runs programs on it; `Sandbox` starts it and sends the commands.

It answers the judge's commands one by one and says what happened; it never says whether a result is right. Every run
has guard zones around all buffers, NaN bytes in outputs and scratch workspaces, and hashes of the inputs before and
after. A simulator worker gives up its rights first (`lockdown`), because there programs are host code.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from sparserl.backends.backend import Backend, Binary, Buffer, Executable, Job, Later, Part, RunReport, TimingPlan
from sparserl.backends.driver import StickyError
from sparserl.errors import BackendError, NoRoomError, SparseRLError
from sparserl.judge import channel
from sparserl.judge.handed import Asked, Check, kept_as
from sparserl.judge.holdings import Hash, Loaded, Structure, hashes_of, touched
from sparserl.judge.lockdown import lockdown
from sparserl.judge.sandbox import Hello
from sparserl.judge.stock import Stock
from sparserl.judge.turn import LENGTHY_S, Turn, give_turns, gpu_of
from sparserl.layouts import padding_value
from sparserl.lifetime import leave_with
from sparserl.matrix import Pattern
from sparserl.phases import phase
from sparserl.records import DType, Problem
from sparserl.values import store

Array = np.ndarray[Any, np.dtype[Any]]
POISON = 0xFF
"""as bytes of any storage type: NaN"""
LONGER = 256
"""bytes that make y differ from x in size, which tells `run_chain` not to feed it back"""
OWN_TURNS = ("time", "floor_us", "put_baselines")
"""commands that take their turns themselves: shared while something is made ready on the GPU, alone while it is timed,
none while the host works: whoever waits for a timing would wait for that"""
HOST_ONLY = ("put_set", "echo", "turns_s", "most_bytes")
"""commands that don't touch it"""
MAY_HANG = ("checks", "chain")
"""commands that a program is run by, and may take long"""


@dataclass(frozen=True)
class Ran:
    """One run: what came out and what was found around it. An empty `failed` and `dirty` mean nothing was."""

    y: Array
    failed: str = ""
    """the program crashed, raced, or touched what is not its own"""
    dirty: str = ""
    """a zeroed workspace was not left zero"""
    sectors: int = 0
    modelled_us: float = 0.0


@dataclass
class Machine:
    """The commands. Each public method is one."""

    backend: Backend
    dtype: DType = "float32"
    structures: dict[str, Structure] = field(default_factory=dict)
    programs: dict[str, Loaded] = field(default_factory=dict)
    vectors: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    baselines: dict[str, Executable] = field(default_factory=dict)
    turns: dict[str, float] = field(default_factory=dict)
    """seconds that this process waited for its turn on the GPU, had it alone, and spent on each command, turns of its
    own included"""

    def __post_init__(self) -> None:
        self.stock = Stock(self.backend)

    def open(self, dtype: DType) -> None:
        """A new case: nothing of the last one stays."""
        self.close_case()
        self.dtype = dtype

    def close_case(self) -> None:
        self.renew()
        self.stock.clear()
        self.backend.give_back()

    def renew(self) -> None:
        """Nothing that a program could reach is used again; what the host has stays."""
        for held in (self.programs, self.baselines, self.structures, self.stock.kept, self.vectors):
            held.clear()  # type: ignore[attr-defined]

    def put_structure(self, key: str, arrays: Mapping[str, Array], slot_of: Array | None, slots: int) -> None:
        buffers = self.backend.upload(arrays)
        padding = padding_value(self.dtype)
        vals = self.backend.alloc(slots * padding.itemsize)
        where = None if slot_of is None else self._upload(np.ascontiguousarray(slot_of, dtype=np.int32))
        hashed = {**buffers, **({"slot_of": where} if where is not None else {})}
        digests = dict(zip(hashed, hashes_of(self.backend, [*hashed.values()]), strict=True))
        self.structures[key] = Structure(buffers, where, vals, padding, digests)

    def drop_structure(self, key: str) -> None:
        self.structures.pop(key, None)
        for name in [name for name, loaded in self.programs.items() if loaded.structure == key]:
            del self.programs[name]

    def put_set(self, key: str, values: Array, x: Array) -> None:
        self.stock.put(key, values, x)

    def drop_sets(self, keys: Sequence[str]) -> None:
        self.stock.drop(keys)

    def load(self, name: str, binary: Binary, job: Job, structure: str) -> None:
        held = self.structures[structure]
        executable = self.backend.prepare(binary, job, {**held.arrays, "vals": held.vals})
        zeroed: dict[str, Buffer] = {}
        for workspace, buffer in self.backend.workspaces(executable).items():
            if job.workspaces[workspace][1] == "zeroed":
                zeroed[workspace] = buffer
            self.backend.fill(buffer, 0 if workspace in zeroed else POISON)
        hashes = hashes_of(self.backend, [*zeroed.values()])
        clean = {each: (zeroed[each], digest) for each, digest in zip(zeroed, hashes, strict=True)}
        self.programs[name] = Loaded(executable, job, structure, clean)

    def drop(self, name: str) -> None:
        self.programs.pop(name, None)

    def checks(self, name: str, asked: Sequence[Asked], y_count: int) -> list[Ran]:
        """One product after another; the last is the first at which something was found.

        All are under way before the first is waited for: on a GPU that others use as well every wait is long. What a
        program did at one is looked for before the next begins.
        """
        found: list[Ran] = []
        for later in [self._check(self.programs[name], each, y_count) for each in asked]:
            found.append(later())
            if found[-1].failed:
                break
        return found

    def _check(self, loaded: Loaded, asked: Asked, y_count: int) -> Later[Ran]:
        backend, x = self.backend, self._begin(loaded, asked.check, asked.poison)
        here, there = self._vector("x", x.nbytes), self._vector("y", y_count * x.itemsize)
        if asked.behind_writer:
            source = self._vector("source", x.nbytes)
            before = self.stock.place_x(source, asked.check, x)
            backend.fill(here, POISON)
            there = self._vector("long y", y_count * x.itemsize + LONGER)
        else:
            before = self.stock.place_x(here, asked.check, x)
        if asked.clear:
            backend.fill(there, POISON)
        if asked.behind_writer:
            report = backend.run_chain(loaded.executable, [here, there, source], 1, wait=False)
        else:
            report = backend.run(loaded.executable, here, there, plain=True, wait=False)
        return self._end(loaded, report, there, y_count, x=(here, before), part=asked.part)

    def chain(self, name: str, check: Check, y_count: int, steps: int, feed_back: bool) -> list[Ran]:
        """`steps` dependent products behind a slow writer. Fed back: first the same one by one, plainly.

        Where the two differ in a bit, the plain ones are done twice more: a program whose sums depend on the order of
        its blocks differs from itself, one that doesn't wait differs from a steady result.
        """
        loaded = self.programs[name]
        x = self._begin(loaded, check)
        plain = self._plain_chain(loaded, check, y_count, steps) if feed_back else None
        source, here = self._vector("source", x.nbytes), self._vector("x", x.nbytes)
        longer = 0 if feed_back else LONGER
        there = self._vector("long y" if longer else "y", y_count * x.itemsize + longer)
        self.stock.place_x(source, check, x)
        self.backend.fill(here, POISON)
        self.backend.fill(there, POISON)
        report = self.backend.run_chain(loaded.executable, [here, there, source], steps, wait=False)
        last = here if feed_back and steps % 2 == 0 else there
        later = self._end(loaded, report, last, y_count)
        results = [] if plain is None else [plain()]
        if results and results[0].failed:
            return results
        dependent = later()
        if results and not dependent.failed and results[0].y.tobytes() != dependent.y.tobytes():
            for _ in range(2):
                if not results[-1].failed:
                    results.append(self._plain_chain(loaded, check, y_count, steps)())
        return [dependent, *results]

    def _plain_chain(self, loaded: Loaded, check: Check, y_count: int, steps: int) -> Later[Ran]:
        x = self.stock.x_of(check)
        pair = [self._vector("x", x.nbytes), self._vector("y", y_count * x.itemsize)]
        self.stock.place_x(pair[0], check, x)
        self.backend.fill(pair[1], POISON)
        for step in range(steps):
            here, there = pair[step % 2], pair[(step + 1) % 2]
            report = self.backend.run(loaded.executable, here, there, plain=True, wait=False)
            if not report.ok:
                break
        return self._end(loaded, report, pair[steps % 2], y_count)

    def place(self, name: str, check: Check) -> None:
        """Put these values where a timing will multiply by them."""
        self._begin(self.programs[name], check)

    def put_baselines(self, pattern: Pattern, problem: Problem, values: Array, mark: str = "") -> tuple[str, ...]:
        """cuSPARSE's variants for this matrix, multiplying by these values; those it refuses are left out.

        `mark` ends their names, to tell variants of several memory orders apart.
        """
        from sparserl.backends import cusparse
        from sparserl.backends.cuda import CudaBackend

        backend = self.backend
        there = tuple(name for name in self.baselines if name.partition("@")[1:] == mark.partition("@")[1:])
        if there or not isinstance(backend, CudaBackend):
            return there
        shared = backend.bench.among
        with shared():
            uploaded = self._upload(values)
        for name in cusparse.variants(problem, pattern):
            made = cusparse.prepare(backend, name, pattern, problem, uploaded, held=shared)
            if not isinstance(made, str):
                self.baselines[f"cusparse:{name}{mark}"] = made
                there += (f"cusparse:{name}{mark}",)
        return there

    def run_baseline(self, name: str, check: Check, y_count: int, part: Part | None = None) -> Array:
        """One product of a baseline, for the judge to look at: a library that is called wrongly is no baseline."""
        x = self.stock.x_of(check)
        here, there = self._vector("x", x.nbytes), self._vector("y", y_count * x.itemsize)
        self.stock.place_x(here, check, x)
        self.backend.fill(there, POISON)
        report = self.backend.run(self.baselines[name], here, there)
        return self.backend.read(there, x.dtype, y_count if report.ok else 0, part)

    def time(self, names: Sequence[str], plan: TimingPlan) -> tuple[list[list[float]], int, tuple[int, ...]]:
        """Microseconds by name and round, the clock in MHz right after (0: not known), products in each's graph."""
        known = {**{name: loaded.executable for name, loaded in self.programs.items()}, **self.baselines}
        readings = self.backend.time([known[name] for name in names], plan)
        return readings, self.backend.clock_mhz(), self.backend.repetitions

    def floor_us(self, plan: TimingPlan) -> float:
        return self.backend.floor_us(plan)

    def echo(self, message: Any) -> Any:
        return message

    def turns_s(self) -> dict[str, float]:
        """Since it was last asked for."""
        told = dict(self.turns)
        self.turns.clear()
        return told

    def most_bytes(self) -> int | None:
        """Of the GPU's memory at one moment, since it was last asked for; None on a simulator."""
        return self.backend.most_bytes()

    def _begin(self, loaded: Loaded, check: Check, poison: bool = True) -> Array:
        """Values in place, scratch poisoned; x."""
        held = self.structures[loaded.structure]
        placed = kept_as(check, "values")
        if not placed or held.placed != placed:
            self.stock.place_values(held, check)
            held.placed = placed
            (held.digests["vals"],) = hashes_of(self.backend, [held.vals])
        for workspace, buffer in self.backend.workspaces(loaded.executable).items():
            if poison and loaded.job.workspaces[workspace][1] == "scratch":
                self.backend.fill(buffer, POISON)
        return self.stock.x_of(check)

    def _end(
        self, loaded: Loaded, report: RunReport, y: Buffer, y_count: int, *, x: tuple[Buffer, Hash] | None = None,
        part: Part | None = None,
    ) -> Later[Ran]:  # fmt: skip
        """`x` comes with its hash where it must not have changed. All is asked for before anything is waited for."""
        if not report.ok:
            return lambda: self._failed(loaded, report.reason or "failed without a reason")
        finding = self._findings(loaded, y, x)
        left = hashes_of(self.backend, [buffer for buffer, _ in loaded.zeroed.values()])
        out = self.backend.read_later(y, store(np.zeros(1), self.dtype).dtype, y_count, part)

        def ran() -> Ran:
            if found := finding():
                return self._failed(loaded, found)
            return Ran(out(), "", self._dirty(loaded, left), sectors=report.sectors, modelled_us=report.modelled_us)

        return ran

    def damage(self) -> str:
        """'' or what of all that lies here was written to by somebody who may not: for after a timing."""
        return self._touched({}, {}, {})()

    def _findings(self, loaded: Loaded, y: Buffer, x: tuple[Buffer, Hash] | None) -> Later[str]:
        """What a program did to memory that is not its to write, its own data first."""
        held, (x_name, y_name) = self.structures[loaded.structure], loaded.job.vector_names
        inputs = held.everything
        around = {**inputs, y_name: y, **self.backend.workspaces(loaded.executable)}
        expected = dict(held.digests)
        if x is not None:
            inputs[x_name], expected[x_name] = x
        return self._touched(around, inputs, expected)

    def _touched(self, around: dict[str, Buffer], inputs: dict[str, Buffer], expected: dict[str, Hash]) -> Later[str]:
        around |= {f"{role} vector": buffer for (role, _), buffer in self.vectors.items()}
        others = self.structures, self.programs, self.stock.kept
        return touched(self.backend, others, around, inputs, expected)

    def _dirty(self, loaded: Loaded, left: Sequence[Hash]) -> str:
        for (name, (buffer, clean)), now in zip(loaded.zeroed.items(), left, strict=True):
            if now() != clean():
                self.backend.fill(buffer, 0)
                return f"left the zeroed workspace '{name}' dirty: the next product would start from it"
        return ""

    def _failed(self, loaded: Loaded, found: str) -> Ran:
        """A program wrote where it may not. (The judge opens the case anew: nothing it could reach is used again.)"""
        self.drop_structure(loaded.structure)
        self.vectors.clear()
        return Ran(np.empty(0), found)

    def _upload(self, array: Array) -> Buffer:
        return self.backend.upload({"": array})[""]

    def _vector(self, role: str, size_bytes: int) -> Buffer:
        if (role, size_bytes) not in self.vectors:
            self.vectors[role, size_bytes] = self.backend.alloc(size_bytes)
        return self.vectors[role, size_bytes]


def make_backend(name: str, limit_s: float) -> Backend:
    if name == "sim":
        from sparserl.backends.sim import SimBackend

        # a little less than the judge's own limit, so that a hang is a finding and not a lost worker
        return SimBackend(nvrtc=False, limit_s=0.8 * limit_s)
    from sparserl.backends.cuda import CudaBackend

    return CudaBackend(solo=True)


def read_libraries() -> None:
    """cuSPARSE and the compiler, from the disk, before they are needed: the host's work must not be done in a turn."""
    from sparserl.backends import cusparse, nvrtc

    for read in (cusparse.load, nvrtc.version):
        with suppress(BackendError):  # who asks for the variants, or for an own kernel, is told
            read()


def main(descriptor: int, backend: str, folder: str, limit_s: float, measures: bool) -> None:
    """measures: it measures the machine, alone there. A spare doesn't: while it starts on a GPU no process can time."""
    connection = Connection(descriptor)
    os.chdir(folder)
    # the folder's parent, because the temporary folder of this process is `folder`, which nobody shares
    turn = Turn(gpu_of(backend), Path(folder).parent, lambda what: channel.send(connection, (what, None)))
    try:
        if backend == "cuda":
            with phase(turn.phases_s, "worker_read"):
                read_libraries()
        with turn.shared(), turn.lengthy(), phase(turn.phases_s, "worker_start"):
            machine = Machine(make_backend(backend, limit_s), turns=turn.phases_s)
        device = None
        if measures:
            with turn.exclusive():
                device = machine.backend.device()
        give_turns(machine.backend, turn)
        applied = lockdown(folder) if backend == "sim" else "none (programs run on the device only)"
    except SparseRLError as error:
        channel.send(connection, ("broken", str(error)))
        return
    leave_with(os.getppid())  # a program may spin for ever; without the judge nobody would stop it
    channel.send(connection, ("answer", Hello(device, applied)))
    while True:
        try:
            command, arguments = channel.receive(connection)
        except (EOFError, OSError):
            return
        channel.send(connection, _answer(machine, turn, command, arguments))


def _answer(machine: Machine, turn: Turn, command: str, arguments: Mapping[str, Any]) -> tuple[str, Any]:
    held = nullcontext if command in (*OWN_TURNS, *HOST_ONLY) else turn.shared
    clock = nullcontext() if command in HOST_ONLY else phase(machine.turns, f"worker_{command}")
    long = turn.lengthy(LENGTHY_S) if command in MAY_HANG else nullcontext()
    try:
        with held(), long, clock:
            return "answer", getattr(machine, command)(**arguments)
    except (StickyError, NoRoomError) as error:  # a fresh worker has the room that others' data takes here
        return "broken", str(error)
    except (SparseRLError, MemoryError) as error:
        # a machine that refuses a program is well; one that fails while it runs may not be
        return "refused" if command == "load" else "broken", str(error) or type(error).__name__
    except Exception:
        return "fault", traceback.format_exc()
