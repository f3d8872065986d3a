"""Turns on a shared GPU: a timing is alone, the rest overlap, nobody starves, and who dies gives the turn back."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from sparserl.judge import sandbox as sandbox_module
from sparserl.judge import turn as turn_module
from sparserl.judge.sandbox import _Process, _reply
from sparserl.judge.turn import Turn

fcntl = pytest.importorskip("fcntl", reason="turns are taken with flock, which this system doesn't have")
GPU = "0000:19:00.0"
spawn = multiprocessing.get_context("spawn")
Taker = Callable[[str], tuple[Any, Connection]]


def hold(kind: str, folder: str, connection: Connection) -> None:
    """Say 'in' when the turn was got, keep it until told to leave, say 'out'."""
    turn = Turn(GPU, Path(folder), tell=connection.send)
    connection.send("up")
    connection.recv()
    with getattr(turn, kind)():
        connection.send("in")
        connection.recv()
    connection.send("out")


def come_and_go(folder: str, connection: Connection, seconds: float) -> None:
    """Take short shared turns one after the other."""
    turn = Turn(GPU, Path(folder))
    connection.send("up")
    connection.recv()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with turn.shared():
            time.sleep(0.02)


@pytest.fixture
def taker(tmp_path: Path) -> Iterator[Taker]:
    """Start a process that is ready to take a turn of a kind once it is sent a word."""
    started = []

    def start(kind: str) -> tuple[Any, Connection]:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=hold, args=(kind, str(tmp_path), theirs), daemon=True)
        process.start()
        started.append(process)
        assert expect(ours) == "up"
        return process, ours

    yield start
    for process in started:
        process.kill()
        process.join()


def expect(connection: Connection, limit_s: float = 30.0) -> str:
    assert connection.poll(limit_s), "nothing was said in time"
    return str(connection.recv())


def enter(connection: Connection) -> None:
    connection.send("go")
    assert expect(connection) == "in"


def leave(connection: Connection) -> None:
    connection.send("leave")
    assert expect(connection) == "out"


def until_closed(folder: Path, limit_s: float = 30.0) -> None:
    """Who waits says so first, and closes the gate then."""
    gate = os.open(next(folder.glob("*.gate")), os.O_RDONLY)
    try:
        end = time.monotonic() + limit_s
        while turn_module._try(gate, fcntl.LOCK_EX):
            fcntl.flock(gate, fcntl.LOCK_UN)
            assert time.monotonic() < end, "nobody closed the gate"
            time.sleep(0.01)
    finally:
        os.close(gate)


@pytest.mark.parametrize(("first", "second"), [("exclusive", "shared"), ("shared", "exclusive"), ("exclusive",) * 2])
def test_a_timing_is_alone(taker: Taker, first: str, second: str) -> None:
    (_, one), (_, two) = taker(first), taker(second)
    enter(one)
    two.send("go")
    assert expect(two) == "waiting"
    assert not two.poll(0.3), "it got in while the other was inside"
    leave(one)
    assert (expect(two), expect(two)) == ("began", "in")


def test_shared_turns_overlap_without_waiting(taker: Taker) -> None:
    (_, one), (_, two) = taker("shared"), taker("shared")
    enter(one)
    enter(two)
    leave(two)
    leave(one)


def test_a_timing_is_not_starved_by_those_who_come_and_go(tmp_path: Path) -> None:
    pipes = [spawn.Pipe() for _ in range(3)]
    others = [spawn.Process(target=come_and_go, args=(str(tmp_path), theirs, 20.0), daemon=True) for _, theirs in pipes]
    for process in others:
        process.start()
    for ours, _ in pipes:
        assert expect(ours) == "up"
    for ours, _ in pipes:
        ours.send("go")
    time.sleep(0.2)
    turn, waits = Turn(GPU, tmp_path), []
    try:
        for _ in range(5):
            began = time.monotonic()
            with turn.exclusive():
                waits.append(time.monotonic() - began)
    finally:
        for process in others:
            process.kill()
            process.join()
    assert max(waits) < 5.0, waits


def test_who_waits_for_a_timing_keeps_newcomers_out(taker: Taker, tmp_path: Path) -> None:
    (_, inside), (_, timing), (_, late) = taker("shared"), taker("exclusive"), taker("shared")
    enter(inside)
    timing.send("go")
    assert expect(timing) == "waiting"
    until_closed(tmp_path)
    late.send("go")
    assert expect(late) == "waiting"
    assert not late.poll(0.2), "a newcomer went past one who waits for a timing"
    leave(inside)
    assert (expect(timing), expect(timing)) == ("began", "in")
    leave(timing)
    assert (expect(late), expect(late)) == ("began", "in")


def test_timings_that_wait_are_done_in_a_row(taker: Taker) -> None:
    (_, inside), (_, one), (_, two) = taker("shared"), taker("exclusive"), taker("exclusive")
    _, late = taker("shared")
    enter(inside)
    for timing in (one, two):
        timing.send("go")
        assert expect(timing) == "waiting"
    time.sleep(0.2)
    late.send("go")
    assert expect(late) == "waiting"
    leave(inside)
    first, second = (one, two) if one.poll(0.3) else (two, one)
    assert (expect(first), expect(first)) == ("began", "in")
    leave(first)
    assert (expect(second), expect(second)) == ("began", "in"), "the one who shares came before"
    assert not late.poll(0.2)
    leave(second)
    assert (expect(late), expect(late)) == ("began", "in")


def test_after_a_timing_the_next_one_lets_others_pass_for_a_while(
    taker: Taker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "OPEN_S", 20.0)
    told, (_, inside), (_, passing) = threading.Event(), taker("shared"), taker("shared")
    timing = Turn(GPU, tmp_path, tell=lambda what: told.set())
    with timing.exclusive():
        pass
    enter(inside)
    waiting = threading.Thread(target=lambda: _be_alone(timing))
    waiting.start()
    assert told.wait(10.0), "it says that it waits"
    time.sleep(0.2)
    enter(passing)
    leave(passing)
    assert "waiting" not in timing.phases_s, "it went on while another was inside"
    leave(inside)
    waiting.join(10.0)
    assert 0.1 < timing.phases_s["waiting"] < 10.0, "it is not kept waiting when nobody is there"


def test_one_who_times_again_and_again_does_not_keep_another_timing_waiting(tmp_path: Path) -> None:
    over, one, other = threading.Event(), Turn(GPU, tmp_path), Turn(GPU, tmp_path)

    def again_and_again() -> None:
        while not over.is_set():
            with one.shared():
                time.sleep(turn_module.OPEN_S / 3)
            _be_alone(one)

    busy = threading.Thread(target=again_and_again)
    busy.start()
    try:
        for _ in range(3):
            time.sleep(turn_module.OPEN_S / 5)
            _be_alone(other)
    finally:
        over.set()
        busy.join(10.0)
    assert other.phases_s.get("waiting", 0.0) < 2.0


def test_nobody_is_kept_out_for_who_takes_long_as_no_timing_could_begin(taker: Taker, tmp_path: Path) -> None:
    (_, timing), (_, late) = taker("exclusive"), taker("shared")
    first, second = Turn(GPU, tmp_path), Turn(GPU, tmp_path)
    with second.shared(), second.lengthy():
        with first.shared(), first.lengthy():
            timing.send("go")
            assert expect(timing) == "waiting"
        time.sleep(0.2)  # the first one is done: the second one still says so
        late.send("go")
        assert expect(late) == "in", "it waited for a timing that can't begin"
        assert not timing.poll(0.1)
        leave(late)
    assert (expect(timing), expect(timing)) == ("began", "in")
    leave(timing)


def test_who_takes_long_says_so_after_a_while_and_no_longer_than_it_lasts(tmp_path: Path) -> None:
    inside, timing = Turn(GPU, tmp_path), Turn(GPU, tmp_path)
    later = time.monotonic() + 60
    with inside.shared(), inside.lengthy(0.3):
        assert not timing._takes_long(later)
        time.sleep(0.6)
        assert timing._takes_long(later) and not timing._takes_long(time.monotonic()), "not believed for ever"
    assert not timing._takes_long(later)
    with inside.shared(), inside.lengthy(30.0):
        pass
    assert not timing._takes_long(later), "what was over before is not said afterwards"


def test_a_timing_does_not_wait_for_ever_with_the_gate_open(
    taker: Taker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "PATIENCE_S", 0.2)
    inside, timing, (_, late) = Turn(GPU, tmp_path), Turn(GPU, tmp_path), taker("shared")
    with inside.shared(), inside.lengthy():
        waiting = threading.Thread(target=lambda: _be_alone(timing))
        waiting.start()
        until_closed(tmp_path)
        late.send("go")
        assert expect(late) == "waiting"
    waiting.join(10.0)
    assert "alone" in timing.phases_s
    assert (expect(late), expect(late)) == ("began", "in")


@pytest.mark.parametrize("said", [b"", b"odd", struct.pack("d", 1e12)], ids=["nothing", "nonsense", "the future"])
def test_a_time_that_makes_no_sense_does_not_keep_a_timing_waiting(taker: Taker, tmp_path: Path, said: bytes) -> None:
    timing, (_, inside) = Turn(GPU, tmp_path), taker("shared")
    next(tmp_path.glob("*.lock")).write_bytes(said)
    enter(inside)
    waiting = threading.Thread(target=lambda: _be_alone(timing))
    waiting.start()
    time.sleep(0.2)
    leave(inside)
    waiting.join(10.0)
    assert "alone" in timing.phases_s


@pytest.mark.parametrize("waits", [False, True], ids=["inside", "waiting"])
def test_death_gives_the_turn_back(taker: Taker, tmp_path: Path, waits: bool) -> None:
    (dying, one), (_, two) = taker("exclusive"), taker("shared")
    if waits:
        _, before = taker("shared")
        enter(before)
        one.send("go")
        assert expect(one) == "waiting"
    else:
        enter(one)
    until_closed(tmp_path)
    two.send("go")
    assert expect(two) == "waiting"
    os.kill(dying.pid, signal.SIGKILL)
    assert (expect(two), expect(two)) == ("began", "in")


def test_a_machine_that_nobody_shares_has_no_files(tmp_path: Path) -> None:
    turn = Turn("", tmp_path)
    with turn.exclusive(), turn.shared():
        assert not list(tmp_path.iterdir())


def test_a_folder_without_room_for_locks_grants_every_turn_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turn = Turn(GPU, tmp_path / "is not there" / "at all")
    with turn.exclusive(), turn.shared():
        assert "may be disturbed" in caplog.text


def worker_behind(connection: Connection) -> _Process:
    return _Process(process=None, connection=connection, folder=Path())  # type: ignore[arg-type]


def test_the_wait_for_a_turn_does_not_count_against_the_limit(tmp_path: Path) -> None:
    def say(connection: Connection) -> None:
        from sparserl.judge import channel

        for what in ("waiting", "began"):
            channel.send(connection, (what, None))
            time.sleep(0.3)
        channel.send(connection, ("answer", 7))

    from threading import Thread

    ours, theirs = multiprocessing.Pipe()
    thread = Thread(target=say, args=(theirs,))
    thread.start()
    assert _reply(worker_behind(ours), 0.5) == ("answer", 7)
    thread.join()


def test_a_gpu_that_never_gets_free_is_not_blamed_on_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparserl.errors import BackendError
    from sparserl.judge import channel

    monkeypatch.setattr(sandbox_module, "TURN_LIMIT_S", 0.1)
    ours, theirs = multiprocessing.Pipe()
    channel.send(theirs, ("waiting", None))
    with pytest.raises(BackendError, match="not free within"):
        _reply(worker_behind(ours), 5.0)


def test_a_turn_says_how_long_it_waited_and_was_alone(tmp_path: Path) -> None:
    timing, other = Turn(GPU, tmp_path), Turn(GPU, tmp_path)
    with timing.exclusive():
        waiting = threading.Thread(target=lambda: _pass_through(other))
        waiting.start()
        time.sleep(0.3)
    waiting.join()
    assert 0.1 < other.phases_s["waiting"] < 20 and "alone" not in other.phases_s
    assert 0.3 <= timing.phases_s["alone"] < 20 and "waiting" not in timing.phases_s


def _be_alone(turn: Turn) -> None:
    with turn.exclusive():
        pass


def _pass_through(turn: Turn) -> None:
    with turn.shared():
        pass
