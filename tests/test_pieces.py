"""What a policy writes and learns on a GPU is done in pieces, between which another process may time something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_tiny import everything, fitted, judge, table
from sparserl import pieces
from sparserl.engine import machine
from sparserl.families import make
from sparserl.judge.turn import Turn
from sparserl.pieces import pieces_between, pieces_on
from sparserl.policy.decoding import Decoder
from sparserl.policy.model import Policy
from sparserl.proposals import first_candidates
from sparserl.records import Problem
from sparserl.train.rl import loop
from sparserl.train.rl.config import Places
from sparserl.train.rl.crew import Crew
from sparserl.tune import Settings

GPU = "0000:19:00.0"


def test_a_timing_waits_for_the_piece_under_way_and_the_next_piece_for_the_timing(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="turns are taken with flock, which this system doesn't have")
    seen: list[str] = []
    asked, timed = threading.Event(), threading.Event()

    def times() -> None:
        other = Turn(GPU, tmp_path, tell=lambda what: asked.set())  # 'waiting' is said before it waits
        with other.exclusive():
            seen.append("timing")
            timed.wait(0.2)
            seen.append("timed")

    piece = pieces_between(Turn(GPU, tmp_path), lambda: seen.append("done"))
    thread = threading.Thread(target=times)
    with piece():
        thread.start()
        assert asked.wait(10.0)
        seen.append("work")
    while not seen[-1].startswith("tim"):  # until the other one is in: the gate is open to whoever comes first
        timed.wait(0.001)
    with piece():
        seen.append("work")
    thread.join()
    assert seen == ["work", "done", "timing", "timed", "work", "done"]


def test_nobody_waits_on_a_cpu() -> None:
    with pieces_on(torch.device("cpu"))():
        pass


class Watched:
    """A piece that counts, and methods that must be called within it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside, self.steps, self.longest, self.whole = False, 0, 0, 0
        self._patch = monkeypatch
        for owner, name in ((Policy, "prefix"), (Decoder, "begin"), (Decoder, "step")):
            self.within(owner, name)

    @contextmanager
    def piece(self) -> Iterator[None]:
        assert not self.inside, "a piece lies in another one"
        self.inside, self.steps = True, 0
        yield
        self.inside, self.whole = False, self.whole + 1
        self.longest = max(self.longest, self.steps)

    def within(self, owner: Any, name: str) -> None:
        own = getattr(owner, name)

        def checked(*given: Any, **named: Any) -> Any:
            assert self.inside, f"{owner.__name__}.{name} outside of a piece"
            self.steps += name == "step"
            return own(*given, **named)

        self._patch.setattr(owner, name, checked)


def test_a_run_does_all_its_work_within_short_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = fitted(tmp_path, steps=60)
    watched = Watched(monkeypatch)
    monkeypatch.setattr(loop, "pieces_on", lambda device: watched.piece)
    watched.within(torch.optim.AdamW, "step")
    for owner, name in ((torch, "save"), (loop, "save_policy")):  # a checkpoint is read from the device
        watched.within(owner, name)
    referee = judge()
    try:
        loop.train(everything("ppo", 1), Places(tmp_path / "run", weights), table(referee), Crew())
    finally:
        referee.close()
    assert watched.whole > 20 and 1 < watched.longest <= 16


def test_a_tuning_writes_within_short_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = fitted(tmp_path, steps=1)
    watched = Watched(monkeypatch)
    monkeypatch.setattr(pieces, "pieces_on", lambda device: watched.piece)
    pattern = make("banded", 0, rows=64, diagonals=3, reach=2, fill=1.0)
    settings = Settings(Problem(), "sim", candidates=2, policy=str(weights))
    written, _ = first_candidates(pattern, settings, machine("sim").device)
    assert written and watched.whole > 2 and 1 < watched.longest <= 16
