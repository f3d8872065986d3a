"""Whose turn it is on a GPU that several processes use: a timing has it alone, everything else shares it.

Lock files of a GPU, taken with flock, so a process that dies gives its turn back. flock is not fair: readers that
come and go could keep a writer waiting for ever. So everybody passes a gate first, and those who wait for a timing hold
it together until they have had their turns: timings that wait are done in a row, and the rest goes on when all are.

Then the gate stays open for a while, even if the next timing waits already, so that there is a row to be done. And it
stays open as long as somebody inside says that it will take long (`lengthy`: a process that starts, a program that may
hang): no timing could begin before that is over, so the others go on with what they share.

Not covered: processes that don't ask (a user's own training run), other machines, other containers with a temporary
folder of their own, and systems without flock; there every turn is granted at once.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparserl.backends.cuda_timing import Bench
from sparserl.errors import SparseRLError
from sparserl.phases import phase

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
OPEN_S, LOOK_S = 0.15, 0.002
"""how long the gate stays open after a timing, and how often who waits looks whether everybody has left before"""
PATIENCE_S = 1.5
"""how long a timing that waits leaves the gate open to others because of somebody who takes long"""
LENGTHY_S = 0.75
"""after which a command counts as one that takes long; others take a tenth of it among many processes"""


def gpu_of(backend: str, device: int = 0) -> str:
    """What tells a GPU from others on this machine: its place on the bus; '' for a simulator."""
    if backend != "cuda":
        return ""
    with suppress(ImportError, SparseRLError):  # who opens the backend says what is missing
        from sparserl.backends.driver import call, call_text

        call("cuInit", 0)
        return call_text("cuDeviceGetPCIBusId", 32, device)
    return ""


class Turn:
    """The turns of one process on one GPU. Not for several threads at once."""

    def __init__(self, gpu: str, folder: Path, tell: Callable[[str], None] | None = None) -> None:
        """`gpu` names it on this machine; '' is a machine that nobody shares. `tell` hears 'waiting' and 'began'."""
        self._tell = tell or (lambda _: None)
        self._gate = self._main = self._long = -1
        self.phases_s: dict[str, float] = {}
        """waited for turns, and alone on the GPU"""
        if not gpu or fcntl is None:
            return
        name = "sparserl-gpu-" + "".join(c if c.isalnum() else "-" for c in gpu)
        try:
            opened = [_open(folder / f"{name}.{which}") for which in ("gate", "lock", "long")]
            self._gate, self._main, self._long = opened
        except OSError as error:
            log.warning("Timings on GPU %s may be disturbed by other processes: %s", gpu, error)
            self._gate = self._main = self._long = -1

    @contextmanager
    def shared(self) -> Iterator[None]:
        """With others, but never during a timing."""
        if self._main < 0:
            yield
            return
        try:
            try:
                if not _try(self._gate, fcntl.LOCK_EX):
                    with self._waiting():
                        fcntl.flock(self._gate, fcntl.LOCK_EX)
                fcntl.flock(self._main, fcntl.LOCK_SH)  # at once: who is alone there holds the gate
            finally:
                fcntl.flock(self._gate, fcntl.LOCK_UN)
            yield
        finally:
            fcntl.flock(self._main, fcntl.LOCK_UN)

    @contextmanager
    def lengthy(self, after_s: float = 0.0) -> Iterator[None]:
        """Within a shared turn: from so many seconds on, others need not wait outside until this one is over."""
        if self._long < 0:
            yield
            return
        over = threading.Event()
        saying = threading.Thread(target=self._say_long, args=(over, after_s), daemon=True)
        saying.start()
        try:
            yield
        finally:
            over.set()
            saying.join()
            fcntl.flock(self._long, fcntl.LOCK_UN)

    def _say_long(self, over: threading.Event, after_s: float) -> None:
        """Of several who take long one holds the lock, and the next one takes it over: who looks, shares it."""
        if not over.wait(after_s):
            while not _try(self._long, fcntl.LOCK_EX) and not over.wait(LOOK_S):
                pass

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Alone on the GPU."""
        try:
            if self._main >= 0 and not self._empty():
                with self._waiting():
                    self._wait_for_all()
            with phase(self.phases_s, "alone"):
                yield
        finally:
            if self._main >= 0:
                self._note_the_time()
                fcntl.flock(self._main, fcntl.LOCK_UN)
                fcntl.flock(self._gate, fcntl.LOCK_UN)

    def _empty(self) -> bool:
        """Alone already, because nobody is there."""
        if _try(self._gate, fcntl.LOCK_SH):
            if _try(self._main, fcntl.LOCK_EX):
                return True
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        return False

    def _wait_for_all(self) -> None:
        """Until all have left by themselves or, once the gate was open long enough, by keeping newcomers out."""
        patient, opened = time.monotonic() + PATIENCE_S, self._last_alone()  # once: timings after it don't count again
        while True:
            while 0 <= time.monotonic() - opened < OPEN_S or self._takes_long(patient):
                time.sleep(LOOK_S)
                if self._empty():
                    return
            fcntl.flock(self._gate, fcntl.LOCK_SH)
            while not self._takes_long(patient):
                if _try(self._main, fcntl.LOCK_EX):
                    return
                time.sleep(LOOK_S)
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def _takes_long(self, patient: float) -> bool:
        """Whether somebody inside says so; not believed for ever."""
        if time.monotonic() >= patient:
            return False
        free = _try(self._long, fcntl.LOCK_SH)
        if free:
            fcntl.flock(self._long, fcntl.LOCK_UN)
        return not free

    def _last_alone(self) -> float:
        """When somebody was last alone, by the clock that all processes share; 0 where it isn't known."""
        said = os.pread(self._main, 8, 0)
        return float(struct.unpack("d", said)[0]) if len(said) == 8 else 0.0

    def _note_the_time(self) -> None:
        with suppress(OSError):  # another user's file can be locked, not written
            os.pwrite(self._main, struct.pack("d", time.monotonic()), 0)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._tell("waiting")
        with phase(self.phases_s, "waiting"):
            yield
        self._tell("began")


def give_turns(backend: object, turn: Turn) -> Bench | None:
    """The clock of a backend, if it has one, takes its turns itself: alone while it times, among others before."""
    bench = getattr(backend, "bench", None)
    if not isinstance(bench, Bench):
        return None
    bench.alone, bench.among = turn.exclusive, turn.shared
    return bench


def _open(path: Path) -> int:
    """A descriptor of the file, made where it isn't there. Reading is enough to lock it, so users can share one."""
    while True:
        for how in (os.O_RDWR, os.O_RDONLY):
            with suppress(FileNotFoundError, PermissionError):
                return os.open(path, how)
        try:  # not O_CREAT alone: Linux refuses that in /tmp for a file that another user made
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
