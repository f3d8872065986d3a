"""The worker process: what it gives up, what it survives, and that nothing but the command in flight is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from sparserl.errors import BackendError
from sparserl.judge import channel, worker
from sparserl.judge.sandbox import Sandbox, WorkerError
from sparserl.judge.turn import Turn


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox("sim", limit_s=5.0)
    yield sandbox
    sandbox.close()


def locked(code: str, tmp_path: Path) -> str:
    """What a locked-down process prints."""
    head = f"import os, sys\nfrom sparserl.judge.lockdown import lockdown\nsaid = lockdown({str(tmp_path)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr


def test_arrays_travel_unchanged_and_writable() -> None:
    deep = [np.ones((3, 4), np.uint16), "text", None]
    message = {"a": np.arange(1000.0), "empty": np.zeros(0, np.int32), "deep": deep}
    ours, theirs = Pipe()
    sender = Thread(target=channel.send, args=(ours, message))
    sender.start()
    got = channel.receive(theirs)
    sender.join()
    np.testing.assert_array_equal(got["a"], message["a"])
    np.testing.assert_array_equal(got["deep"][0], deep[0])
    assert got["empty"].size == 0 and got["deep"][1:] == ["text", None]
    got["a"][0] = 7


def test_a_worker_answers_and_says_what_it_gave_up(sandbox: Sandbox) -> None:
    assert sandbox.call("echo", message={"n": 1}) == {"n": 1}
    assert sandbox.hello.device.backend == "sim"
    assert "seccomp" in sandbox.hello.lockdown and "landlock" in sandbox.hello.lockdown


def test_a_killed_worker_is_replaced_by_the_spare(sandbox: Sandbox) -> None:
    generation, first = sandbox.generation, sandbox.process_id
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerError, match="SIGKILL"):
        sandbox.call("echo", message=1)
    assert sandbox.generation == generation + 1 and sandbox.process_id != first
    assert sandbox.call("echo", message=2) == 2


def test_a_worker_that_does_not_answer_is_replaced_after_the_limit(sandbox: Sandbox) -> None:
    first = sandbox.process_id
    os.kill(first, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"time limit of 0\.5 s"):
        sandbox.call("echo", 0.5, message=1)
    assert time.monotonic() - began < 5
    assert sandbox.process_id != first and sandbox.call("echo", message=3) == 3


def test_an_abandoned_command_does_not_answer_the_next(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(connection: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(channel, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sandbox.call("echo", message="old")
    assert sandbox.call("echo", message="new") == "new"


def test_a_fault_of_the_judge_is_loud(sandbox: Sandbox) -> None:
    with pytest.raises(RuntimeError, match="fault of the judge"):
        sandbox.call("drop_structure", no_such_argument=1)
    assert sandbox.call("echo", message=4) == 4


def test_a_closed_sandbox_says_so() -> None:
    sandbox = Sandbox("sim")
    worker = sandbox.process_id
    sandbox.close()
    with pytest.raises(BackendError, match="closed"):
        sandbox.call("echo", message=1)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_an_unknown_backend_names_the_choices() -> None:
    with pytest.raises(ValueError, match="'cuda' or 'sim'"):
        Sandbox("metal")


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")
def test_lockdown_refuses_processes_sockets_and_signals(tmp_path: Path) -> None:
    said = locked(
        """
        import socket, subprocess
        def refused(name, act):
            try:
                act()
            except OSError as error:
                print(name, "refused")
            else:
                print(name, "allowed")
        refused("fork", os.fork)
        refused("run", lambda: subprocess.run(["true"]))
        refused("socket", socket.socket)
        refused("signal", lambda: os.kill(os.getppid(), 0))
        import threading
        thread = threading.Thread(target=print, args=("thread allowed",)); thread.start(); thread.join()
        """,
        tmp_path,
    )
    for name in ("fork", "run", "socket", "signal"):
        assert f"{name} refused" in said, said
    assert "thread allowed" in said


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")
def test_lockdown_leaves_nothing_writable_but_the_workers_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    said = locked(
        f"""
        print(said)
        open({str(inside / "a")!r}, "w").write("x")
        try:
            open({str(outside)!r}, "w").write("x")
        except PermissionError:
            print("outside refused")
        """,
        inside,
    )
    assert (inside / "a").exists()
    if "landlock: none" in said:
        assert "seccomp" in said
    else:
        assert "outside refused" in said and not outside.exists()


def test_only_the_first_worker_measures_the_machine() -> None:
    """Nobody would use what a spare measures, and those at work would stand still for it."""
    sandbox = Sandbox("sim", limit_s=5.0)
    try:
        spare, device = sandbox._spare, sandbox.device
        assert sandbox.hello.device == device and device.backend == "sim"
        sandbox.restart()
        assert sandbox._worker is spare and sandbox.hello.device is None and sandbox.device is device
    finally:
        sandbox.close()


def test_a_worker_reads_the_library_before_its_first_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a turn all that time on the GPU would wait for the disk."""
    told: list[str] = []

    class Told(Turn):
        @contextmanager
        def shared(self) -> Iterator[None]:
            told.append("a turn begins")
            yield

    def refused(*_: object) -> None:
        told.append("the backend is made")
        raise BackendError("there is none")

    monkeypatch.setattr(worker, "Turn", Told)
    monkeypatch.setattr(worker, "gpu_of", lambda backend: "")
    monkeypatch.setattr(worker, "make_backend", refused)
    monkeypatch.setattr(worker.os, "chdir", lambda folder: None)
    monkeypatch.setattr("sparserl.backends.cusparse.load", lambda: told.append("cuSPARSE is read"))
    ours, theirs = Pipe()
    worker.main(os.dup(theirs.fileno()), "cuda", str(tmp_path), 5.0, False)
    assert channel.receive(ours) == ("broken", "there is none")
    assert told == ["cuSPARSE is read", "a turn begins", "the backend is made"]


def test_what_a_worker_spent_that_is_replaced_though_it_is_well_is_not_forgotten() -> None:
    sandbox = Sandbox("sim", limit_s=5.0)
    try:
        sandbox.turns_s()
        sandbox.call("open", dtype="float32")
        sandbox.recycle()
        assert sandbox.turns_s()["worker_open"] > 0
        assert "worker_open" not in sandbox.turns_s(), "told once"
    finally:
        sandbox.close()


def test_a_spare_that_does_not_start_is_done_without() -> None:
    sandbox = Sandbox("sim", limit_s=5.0)
    try:
        assert sandbox._spare is not None
        sandbox._spare.process.kill()
        sandbox._spare.process.wait()
        sandbox.settle()
        sandbox.settle()
        assert sandbox.call("echo", message=5) == 5, "the worker is well"
        sandbox.restart()
        assert sandbox.call("echo", message=6) == 6, "and another one can be started"
    finally:
        sandbox.close()


def test_ctrl_c_while_a_worker_is_replaced_leaves_a_judge_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox("sim", limit_s=5.0)

    def interrupted(worker: object) -> None:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(sandbox, "_ready", interrupted)
            with pytest.raises(KeyboardInterrupt):
                sandbox.restart()
        assert sandbox.call("echo", message=7) == 7
    finally:
        sandbox.close()
