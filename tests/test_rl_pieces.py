"""A run's own work on the GPU is done in pieces, between which another process may time something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_tiny import everything, fitted, judge, table
from sparserl.judge.turn import Turn
from sparserl.policy.decoding import Decoder
from sparserl.policy.model import Policy
from sparserl.train.rl import loop
from sparserl.train.rl.config import Places
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.pieces import pieces_between, pieces_on

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


def test_a_run_does_all_its_work_within_short_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = fitted(tmp_path, steps=60)
    inside, steps, longest, whole = [False], [0], [0], [0]

    @contextmanager
    def piece() -> Iterator[None]:
        assert not inside[0], "a piece lies in another one"
        inside[0], steps[0] = True, 0
        yield
        inside[0], whole[0] = False, whole[0] + 1
        longest[0] = max(longest[0], steps[0])

    def within(owner: Any, name: str) -> None:
        own = getattr(owner, name)

        def checked(*given: Any, **named: Any) -> Any:
            assert inside[0], f"{owner.__name__}.{name} outside of a piece"
            steps[0] += name == "step"
            return own(*given, **named)

        monkeypatch.setattr(owner, name, checked)

    monkeypatch.setattr(loop, "pieces_on", lambda device: piece)
    for owner, name in ((Policy, "prefix"), (Decoder, "begin"), (Decoder, "step"), (torch.optim.AdamW, "step")):
        within(owner, name)
    for owner, name in ((torch, "save"), (loop, "save_policy")):  # a checkpoint is read from the device
        within(owner, name)
    referee = judge()
    try:
        loop.train(everything("ppo", 1), Places(tmp_path / "run", weights), table(referee), Crew())
    finally:
        referee.close()
    assert whole[0] > 20 and 1 < longest[0] <= 16
