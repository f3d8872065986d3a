"""A worker process that runs programs nobody has read, watched from outside: a time limit, a warm spare, a restart.

What a program breaks (a crash, a hang, a sticky CUDA error) dies with its worker; the spare takes over and the caller
puts its data again (`generation` counts the workers). The reference, the verdict and the clock's readings stay in the
parent. Workers are plain subprocesses, so a caller's script needs no `__main__` guard.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from sparserl import phases
from sparserl.backends.backend import Device
from sparserl.errors import BackendError
from sparserl.judge import channel

log = logging.getLogger(__name__)

START_LIMIT_S = 180.0
TURN_LIMIT_S = 600.0
"""the longest wait for a GPU that other processes use; it doesn't count against a command's own limit"""


class WorkerError(Exception):
    """The program in flight is to blame; the worker was replaced. Never leaves the judge: it becomes an Outcome."""


@dataclass(frozen=True)
class Hello:
    """What a worker says when it is ready."""

    device: Device | None
    """as it was measured; None of a spare, which measures nothing"""
    lockdown: str


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    connection: Connection
    folder: Path
    hello: Hello | None = None


class Sandbox:
    """One worker at work and one in reserve."""

    def __init__(self, backend: str, limit_s: float = 20.0) -> None:
        if backend not in ("cuda", "sim"):
            raise ValueError(f"The 'backend' of a Sandbox must be 'cuda' or 'sim'. Got {backend!r}.")
        self.backend, self.limit_s, self.generation = backend, limit_s, 0
        self.tenant: object = None  # whose data the worker holds
        self.loads = 0  # programs this worker was given
        self._interrupted = False
        self._spent_s: dict[str, float] = {}
        self._counting = 0  # the generation that was asked for its memory last
        self._spare: _Process | None = None
        self._worker: _Process | None = None
        self._worker = self._start(measures=True)
        self._ready(self._worker)
        device = self.hello.device
        assert device is not None
        self.device = device
        """as the first worker measured it, alone on the machine"""

    @property
    def hello(self) -> Hello:
        assert self._worker is not None and self._worker.hello is not None
        return self._worker.hello

    @property
    def process_id(self) -> int:
        assert self._worker is not None
        return self._worker.process.pid

    def call(self, command: str, limit_s: float | None = None, **arguments: Any) -> Any:
        """Run one command in the worker. Raises WorkerError when it dies, hangs or reports a broken machine."""
        if self._interrupted:  # its answer to an abandoned command would be taken for the next one's
            self.restart()
        if self._worker is None:
            raise BackendError("The judge is closed. Open a new one: `with Judge(...) as judge`.")
        worker, limit = self._worker, limit_s or self.limit_s
        self._interrupted = True
        try:
            channel.send(worker.connection, (command, arguments))
            kind, answer = _reply(worker, limit) or ("broken", f"ran past the time limit of {limit:g} s")
        except (EOFError, OSError) as error:
            reason = _last_words(worker)
            self.restart()
            raise WorkerError(reason) from error
        self._interrupted = False
        if kind == "answer":
            return answer
        if kind in ("broken", "refused"):
            if kind == "broken":
                self.restart()
            raise WorkerError(str(answer))
        raise RuntimeError(f"The judge's worker failed at '{command}', which is a fault of the judge:\n{answer}")

    def settle(self) -> None:
        """Wait until the spare is up: a process that starts on the same machine might disturb a timing."""
        if self._spare is not None and self._spare.hello is None:
            try:
                self._greet(self._spare)
            except BackendError as error:  # no room beside the worker, say, which is well: it goes on without
                log.warning("There is no spare worker: %s", error)
                self._spare = None

    def restart(self) -> None:
        """Give up the worker and everything in it; the spare takes over."""
        self._interrupted = True  # until the next one has said hello: Ctrl-C may come before
        with phases.phase(self._spent_s, "replacing"):
            self._stop(self._worker)
            self._worker, self._spare = self._spare or self._start(), None
            self._ready(self._worker)
        self._interrupted = False

    def recycle(self) -> None:
        """Give up a worker that is well; what it spent is not forgotten."""
        self._spent_s = self.turns_s()
        self.restart()

    def turns_s(self) -> dict[str, float]:
        """What its workers spent since it was last asked, and what replacing them took.

        What one knew that died of a program is gone.
        """
        spent, self._spent_s = self._spent_s, {}
        with contextlib.suppress(WorkerError):
            phases.add(spent, self.call("turns_s"))
        return spent

    def most_bytes(self) -> int | None:
        """The most of the GPU's memory that its worker had at one moment since it was last asked.

        None on a simulator, and where a worker was replaced since: what it knew is gone.
        """
        most: int | None = None
        with contextlib.suppress(WorkerError):
            most = self.call("most_bytes")
        counting, self._counting = self._counting, self.generation
        return most if counting == self.generation else None

    def close(self) -> None:
        self._stop(self._worker)
        self._stop(self._spare)
        self._worker = self._spare = None
        self._interrupted = False

    def _start(self, measures: bool = False) -> _Process:
        ours, theirs = Pipe()
        folder = Path(tempfile.mkdtemp(prefix="sparserl-worker-"))
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} if self.backend == "sim" else {}
        arguments = (theirs.fileno(), self.backend, str(folder), self.limit_s, measures)
        # not -m: then the worker's classes would be those of __main__, which this process doesn't have
        code = f"from sparserl.judge.worker import main; main(*{arguments!r})"
        with (folder / "said.txt").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the judge; it ends its workers itself
                stdout=said,
                stderr=said,
                env={**os.environ, **quiet, "PYTHONPATH": path, "TMPDIR": str(folder)},
            )
        theirs.close()
        return _Process(process, ours, folder)

    def _ready(self, worker: _Process) -> None:
        """Wait until it has said hello, then start the next spare in the background."""
        if worker.hello is None:
            self._greet(worker)
        self.loads = 0
        self.generation += 1
        self._spare = self._start()

    def _greet(self, worker: _Process) -> None:
        try:
            reply = _reply(worker, START_LIMIT_S)
            if reply is None:
                raise BackendError(f"it did not start within {START_LIMIT_S:g} s")
            kind, hello = reply
        except (EOFError, OSError, BackendError) as error:
            reason = str(error) if isinstance(error, BackendError) else _last_words(worker)
            self._stop(worker)
            raise BackendError(f"The {self.backend} backend can't start a worker here: {reason}") from error
        if kind != "answer":
            self._stop(worker)
            raise BackendError(f"The {self.backend} backend is not available here: {hello}")
        worker.hello = hello

    @staticmethod
    def _stop(worker: _Process | None) -> None:
        if worker is None:
            return
        worker.connection.close()
        worker.process.kill()
        worker.process.wait()
        shutil.rmtree(worker.folder, ignore_errors=True)


def _reply(worker: _Process, limit_s: float) -> tuple[str, Any] | None:
    """What the worker answers, or None past the limit, which starts anew when the worker has got its turn."""
    while worker.connection.poll(limit_s):
        kind, answer = channel.receive(worker.connection)
        if kind == "waiting" and not worker.connection.poll(TURN_LIMIT_S):
            raise BackendError(
                f"The GPU was not free within {TURN_LIMIT_S:g} s: other processes are timing on it. "
                "Wait for them, or choose another GPU with CUDA_VISIBLE_DEVICES."
            )
        if kind not in ("waiting", "began"):
            return kind, answer
    return None


def _last_words(worker: _Process) -> str:
    """How a worker ended, and the last line it wrote."""
    try:
        code = worker.process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "the worker closed its connection"
    how = f"exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    said: list[str] = []
    with contextlib.suppress(OSError):
        said = (worker.folder / "said.txt").read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
    return f"crashed the worker ({how})" + (f": {said[-1]}" if said else "")
