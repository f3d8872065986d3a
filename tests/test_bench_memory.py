"""The peak memory of a tuning: of the GPU what this process and the judge's worker count themselves, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from sparserl.bench import matrices, tuned, watermark
from sparserl.findings import Candidate, Findings
from sparserl.judge.sandbox import Sandbox, WorkerError
from sparserl.records import Problem
from sparserl.tune import Settings

SMALL = "family:stencil2d,nx=12,ny=10,points=5"


class Torch:
    """torch.cuda, as far as it counts memory."""

    def __init__(self) -> None:
        self.live = self.most = 9_000_000_000  # what a larger matrix took before

    def reset_peak_memory_stats(self) -> None:
        self.most = self.live = 40_000_000

    def max_memory_allocated(self) -> int:
        return self.most


def tune(monkeypatch: pytest.MonkeyPatch, device: str, worker_bytes: int | None) -> tuned.Tuned:
    """A tuning that takes 2 MB in this process and says what its worker took."""
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=torch))

    @contextmanager
    def ahead_of(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(most_bytes=lambda: worker_bytes)

    def explore(*_: Any) -> Findings:
        torch.most += 2_000_000
        return Findings("solver", best=Candidate("a", "rows", {}, "text"))

    monkeypatch.setattr(tuned, "ahead_of", ahead_of)
    monkeypatch.setattr(tuned, "explore", explore)
    monkeypatch.setattr(tuned, "make_engine", lambda *_, **__: None)
    (entry,) = matrices.entries([SMALL])
    settings = Settings(Problem(), device, 1, "recipes")
    return tuned.tuned(entry.load(), settings, SimpleNamespace(name=device))  # type: ignore[arg-type]


def test_the_gpus_memory_is_what_both_processes_had_at_most_whatever_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = tune(monkeypatch, "cuda", 5_000_000)
    assert found.device_bytes == 40_000_000 + 2_000_000 + 5_000_000 and found.host_bytes > 1e6
    assert tuned.tuning_record({"solver": found}, "recipes")["peak_memory_bytes"] == found.device_bytes


@pytest.mark.parametrize(("device", "worker_bytes"), [("cuda", None), ("sim", None)])
def test_what_is_not_known_is_none_and_never_the_hosts(
    monkeypatch: pytest.MonkeyPatch, device: str, worker_bytes: int | None
) -> None:
    record = tuned.tuning_record({"solver": tune(monkeypatch, device, worker_bytes)}, "recipes")
    assert record["peak_memory_bytes"] is None and record["peak_host_bytes"] > 1e6


def test_without_a_gpu_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with watermark.Watermark(on_gpu=False) as mark:
        pass
    assert mark.torch_bytes == 0


def sandbox_of(answer: Callable[[], Any]) -> Sandbox:
    """A sandbox whose worker answers so."""
    made = Sandbox.__new__(Sandbox)
    made.generation, made._counting = 1, 0
    made.call = lambda command: answer()  # type: ignore[method-assign, misc, assignment]
    return made


def test_a_worker_that_was_replaced_takes_along_what_it_knew() -> None:
    sandbox = sandbox_of(lambda: 700)
    assert sandbox.most_bytes() is None, "since when, nobody knows"
    assert sandbox.most_bytes() == 700
    sandbox.generation += 1
    assert sandbox.most_bytes() is None
    assert sandbox.most_bytes() == 700

    def dies() -> int:
        sandbox.generation += 1
        raise WorkerError("killed")

    sandbox.call = lambda command: dies()  # type: ignore[method-assign, misc, assignment]
    assert sandbox.most_bytes() is None


def test_a_real_worker_of_the_simulator_knows_of_none() -> None:
    sandbox = Sandbox("sim", limit_s=5.0)
    try:
        assert sandbox.most_bytes() is None and sandbox.most_bytes() is None
    finally:
        sandbox.close()
