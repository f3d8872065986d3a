"""The worker as one case sees it: which layouts, value sets and programs it holds, and putting them again when lost.

The worker holds the data of one case at a time (`Sandbox.tenant`) and forgets everything when it is replaced
(`Sandbox.generation`). Layouts are dropped by least recent use when they fill the room they have.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sparserl.backends.backend import Binary
from sparserl.errors import BackendError
from sparserl.judge.compiling import Compiled
from sparserl.judge.handed import Check
from sparserl.judge.prepare import Packs, Prepared
from sparserl.judge.reference import SHARED, Array, ValueSet
from sparserl.judge.sandbox import TURN_LIMIT_S, Sandbox, WorkerError
from sparserl.judge.trial import Stopped
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Outcome, Packed, Problem, Verdict

ROOM_BYTES = {"cuda": 24 << 30, "sim": 2 << 30}
"""packed layouts kept in the worker"""

AT_ONCE = {"cuda": 8, "sim": 1}
"""products of a trial; a simulator is not waited for, and stops at the first wrong one"""

HANG_S, SLOW_S = 2.0, 4e-6
"""what a program on a GPU may take for products that are under way together: at least, and for each nonzero and column
of B. Who tunes waits for a program that hangs, and so do those who use the GPU too"""

TIMING_LIMIT_S = TURN_LIMIT_S / 2
"""who waits for the GPU gives up after twice that"""

BESIDE = "beside"
"""the structure of a matrix that is not the case's own"""

RECYCLE_AFTER = 12
"""programs after which a simulator worker is replaced: each keeps about 4 000 memory mappings (a stack a thread, with
its guard page), and a process may have 65 530"""


@dataclass
class Entry:
    """A compiled program on its way through the judge."""

    prepared: Prepared
    binary: Binary
    phases_s: dict[str, float] = field(default_factory=dict)
    sectors: int = 0
    name: str = ""
    """under which the worker has it; names are never used twice"""


Watcher = Callable[[int, Outcome], None]


def entries_of(
    window: list[tuple[int, Prepared]], answers: Future[list[Compiled]], refused: Watcher
) -> Iterator[tuple[int, Entry]]:
    """Those that compiled; of the others `refused` is told."""
    for (index, prepared), compiled in zip(window, answers.result(), strict=True):
        phases = {"pack": prepared.pack_s, "compile": compiled.seconds}
        if isinstance(compiled.result, Binary):
            yield index, Entry(prepared, compiled.result, phases)
        else:
            refused(
                index,
                Outcome(
                    Verdict.UNCOMPILABLE,
                    str(compiled.result),
                    packed_bytes=prepared.packed_bytes,
                    phases_s=phases,
                ),
            )


class Desk:
    """Commands to the worker with all their data in place."""

    def __init__(self, problem: Problem, packs: Packs, sandbox: Sandbox) -> None:
        self.problem, self.packs, self.sandbox = problem, packs, sandbox
        self._generation = -1
        self._spoilt = False
        self._structures: OrderedDict[LayoutLine, int] = OrderedDict()
        self._sets: set[str] = set()
        self._baselines: dict[str, tuple[str, ...]] = {}
        self._loaded: dict[str, LayoutLine] = {}
        self._names = (f"program {i}" for i in itertools.count())

    def call(self, command: str, limit_s: float | None = None, **arguments: Any) -> Any:
        return self.sandbox.call(command, limit_s, **arguments)

    @property
    def at_once(self) -> int:
        return AT_ONCE[self.sandbox.backend]

    @property
    def patience_s(self) -> float:
        """The longest that a program may take for the products of a trial that it is asked for at once."""
        if self.sandbox.backend == "sim":
            return self.sandbox.limit_s
        return min(self.sandbox.limit_s, HANG_S + SLOW_S * self.packs.pattern.nonzeros * self.problem.columns)

    def timing_limit_s(self, sides: int) -> float:
        """The longest that so many may take to be timed side by side. Meanwhile no other process can time."""
        return min(self.patience_s * sides, TIMING_LIMIT_S)

    @property
    def _mine(self) -> bool:
        """Whether the worker serves this case, and was not replaced since."""
        return self._generation == self.sandbox.generation and self.sandbox.tenant is self

    @property
    def _intact(self) -> bool:
        """Whether the worker still has what it was given for this case, and nobody could have spoilt it."""
        return self._mine and not self._spoilt

    def attend(self) -> None:
        """Make the worker this case's, if it was replaced or served another one since, and free of what is spoilt."""
        if self._intact:
            return
        if self._mine:
            self.call("renew")
        else:
            self.call("open", dtype=self.problem.dtype)
            self._sets.clear()
        self.sandbox.tenant, self._generation, self._spoilt = self, self.sandbox.generation, False
        self._structures.clear()
        self._loaded.clear()
        self._baselines.clear()

    def handed(self, check: ValueSet) -> Check:
        """The set as the worker takes it: by name if it is used more than once, or by what differs from a named one."""
        key = check.key or check.shared
        if not key and check.near is not None and check.near.key in self._sets:
            return check.near
        if not key:
            return check.values, check.x
        if key not in self._sets:
            self.call("put_set", key=key, values=check.values, x=check.x)
            self._sets.add(key)
        return key

    def forget_shared(self) -> None:
        """The sets that were drawn for the programs before are shown to nobody any more."""
        old = [key for key in self._sets if key.startswith(SHARED)]
        self._sets.difference_update(old)
        if old and self._mine:
            with suppress(WorkerError):  # then everything is gone anyway
                self.call("drop_sets", keys=old)

    def baselines(self, pattern: Pattern, order: Problem, values: Array, mark: str) -> tuple[str, ...]:
        """The names of the library's variants in these orders, which multiply by these values; put there once."""
        if mark not in self._baselines:
            named = {"pattern": pattern, "problem": order, "values": values, "mark": mark}
            self._baselines[mark] = self.call("put_baselines", self.sandbox.limit_s * 10, **named)
        return self._baselines[mark]

    def has_baselines(self, mark: str) -> bool:
        return self._intact and mark in self._baselines

    def holds(self, entry: Entry) -> bool:
        """Whether the worker still has this program."""
        return self._intact and entry.name in self._loaded

    def load(self, entry: Entry) -> None:
        """The program and its packed matrix are in the worker when this returns. Raises Stopped."""
        if self.holds(entry):
            return
        if self.sandbox.backend == "sim" and not self._loaded and self.sandbox.loads >= RECYCLE_AFTER:
            self.sandbox.recycle()
        generation = self.sandbox.generation
        try:
            self._load(entry)
        except WorkerError as error:
            if self.sandbox.generation == generation:
                raise Stopped(Verdict.FAILED, f"could not be loaded: {error}") from error
        else:
            return
        try:  # the worker may have died of an earlier program
            self._load(entry)
        except WorkerError as error:
            raise Stopped(Verdict.FAILED, f"could not be loaded: {error}") from error

    def _load(self, entry: Entry) -> None:
        self.attend()
        self.sandbox.loads += 1
        entry.name, layout = next(self._names), entry.prepared.layout
        self._put_structure(layout)
        self.call("load", name=entry.name, binary=entry.binary, job=entry.prepared.job, structure=str(layout))
        self._loaded[entry.name] = layout

    def load_beside(self, entry: Entry, packed: Packed) -> str:
        """The same binary on another packed matrix of the same sizes; its name, until `drop_beside`."""
        self.attend()
        name = next(self._names)
        self.call("put_structure", key=BESIDE, arrays=packed.arrays, slot_of=packed.slot_of, slots=packed.slots)
        self.call("load", name=name, binary=entry.binary, job=entry.prepared.job, structure=BESIDE)
        return name

    def drop_beside(self) -> None:
        with suppress(WorkerError):  # then everything is gone anyway
            self.call("drop_structure", key=BESIDE)

    def unload(self, entry: Entry) -> None:
        if self.holds(entry):
            with suppress(WorkerError):  # then everything is gone anyway
                self.call("drop", name=entry.name)
        self._loaded.pop(entry.name, None)
        entry.name = ""

    def clear_after(self, stopped: Stopped) -> None:
        """After a program failed nothing that it could reach is used again: all is put there anew.

        Its own data alone would not do: a program that writes far outside of it breaks what others are run on next,
        and those would be blamed.
        """
        self._spoilt |= stopped.verdict is Verdict.FAILED

    def close(self) -> None:
        if self._mine:
            with suppress(WorkerError, BackendError):  # who gives up while a worker starts has none to tell
                self.call("close_case")
            self.sandbox.tenant = None
        self._generation = -1
        self._structures.clear()

    def _put_structure(self, line: LayoutLine) -> None:
        if line in self._structures:
            self._structures.move_to_end(line)
            return
        packed = self.packs.get(line)
        self.call("put_structure", key=str(line), arrays=packed.arrays, slot_of=packed.slot_of, slots=packed.slots)
        self._structures[line] = packed.size_bytes_without_values + packed.slots * (self.problem.value_bytes + 4)
        while len(self._structures) > 1 and sum(self._structures.values()) > ROOM_BYTES[self.sandbox.backend]:
            old = next(iter(self._structures))
            self._forget(old)
            self.call("drop_structure", key=str(old))

    def _forget(self, line: LayoutLine) -> None:
        """The worker has dropped, or will drop, this layout and the programs on it."""
        self._structures.pop(line, None)
        self._loaded = {name: layout for name, layout in self._loaded.items() if layout != line}
