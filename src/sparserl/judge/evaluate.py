"""The only way from a program to an Outcome: `Judge` holds a machine, `Case` one matrix and problem on it.

    with Judge(device="auto") as judge:
        case = judge.open(pattern, Problem())
        outcomes = case.judge(texts)                 # verified and timed briefly, in order
        raced = case.race(texts, case.baselines())   # side by side, then verified once more

A program that fails is an Outcome; exceptions are for a machine that isn't there or a fault of the judge itself.
Cases may be open side by side, but the worker holds the data of one at a time: switching puts it again.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Literal

from sparserl.backends.backend import Device
from sparserl.errors import BackendError
from sparserl.judge.case import Case
from sparserl.judge.compiling import Compiler
from sparserl.judge.sandbox import Sandbox
from sparserl.matrix import Pattern
from sparserl.records import Problem

__all__ = ["Case", "Judge"]

log = logging.getLogger(__name__)

DeviceChoice = Literal["auto", "cuda", "sim"]


class Judge:
    """A machine to judge on. It costs a process start, so keep it for many cases."""

    def __init__(
        self, device: DeviceChoice = "auto", compile_workers: int | None = None, limit_s: float = 20.0
    ) -> None:
        """`limit_s` is the longest a program may take for one command of the judge."""
        if device not in ("auto", "cuda", "sim"):
            raise ValueError(f"The 'device' of a Judge must be 'auto', 'cuda' or 'sim'. Got {device!r}.")
        self._sandbox = _sandbox(device, limit_s)
        self._compiler = Compiler(self._sandbox.backend, self.device.arch, compile_workers)

    @property
    def device(self) -> Device:
        return self._sandbox.device

    @property
    def lockdown(self) -> str:
        """What the worker gave up before it ran anything."""
        return self._sandbox.hello.lockdown

    def warm(self, programs: int) -> None:
        """Start the compilers that so many programs will need."""
        self._compiler.warm(programs)

    def open(self, pattern: Pattern, problem: Problem, seed: int | None = None, *, pooled: bool = False) -> Case:
        """A case on this machine. With a `seed` its numbers are the same every time; without, nobody can know them.

        pooled: checks of a small problem pick from a few sets instead of drawing one each, and there is no twin. For
        training, where one matrix judges hundreds of programs; what is reported is judged without it.
        """
        return Case(pattern, problem, self._sandbox, self._compiler, seed=seed, pooled=pooled)

    def turns_s(self) -> dict[str, float]:
        """'waiting' for others on the GPU, 'alone' on it, and by command: the worker's seconds since last asked for."""
        return self._sandbox.turns_s()

    def most_bytes(self) -> int | None:
        """The most of the GPU's memory that the worker had at one moment since last asked for; None: not known."""
        return self._sandbox.most_bytes()

    def close(self) -> None:
        self._compiler.close()
        self._sandbox.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sandbox(device: DeviceChoice, limit_s: float) -> Sandbox:
    if device != "auto":
        return Sandbox(device, limit_s)
    try:
        return Sandbox("cuda", limit_s)
    except BackendError as error:
        log.warning("No GPU to judge on (%s); the simulator judges, and its times are modelled.", error)
        return Sandbox("sim", limit_s)
