"""The machine that programs are explored on: a backend that takes turns.

Several exploring processes, and the judge's workers, may share a GPU: the clock has it alone, all else shares it
(`judge.turn`), so that one process makes its next graphs ready while another is being timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from sparserl.backends.backend import Backend, Binary, Buffer, Executable, Job, TimingPlan
from sparserl.errors import SparseRLError
from sparserl.judge.turn import Turn, give_turns, gpu_of


class Machine:
    """A backend like any other to `Explorer`."""

    def __init__(self, backend: Backend) -> None:
        self.inner, self.name = backend, backend.name
        self.turn = Turn(gpu_of(backend.name), Path(tempfile.gettempdir()))
        if (bench := give_turns(backend, self.turn)) is not None:
            bench.keeps_vectors = True

    @property
    def as_backend(self) -> Backend:
        return cast(Backend, self)

    def prepare(self, binary: Binary, job: Job, arrays: Mapping[str, Buffer]) -> Executable:
        return self.inner.prepare(binary, job, arrays)  # loads code; at most a workspace is cleared

    def time(self, executables: Sequence[Executable], plan: TimingPlan) -> list[list[float]]:
        return self.inner.time(executables, plan)  # which takes its turns itself

    def floor_us(self, plan: TimingPlan) -> float:
        return self.inner.floor_us(plan)  # and so does this

    def compile(self, source: str, kernels: Sequence[str]) -> Binary:
        return self.inner.compile(source, kernels)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """All other methods use the GPU: together with others, never during a timing."""
        method = getattr(self.inner, name)
        if not callable(method):
            return method  # type: ignore[no-any-return]

        def held(*arguments: Any, **named: Any) -> Any:
            with self.turn.shared():
                return method(*arguments, **named)

        return held

    def well(self) -> bool:
        """Whether the machine still does as it is told: a fault on a GPU stays until its process ends."""
        written = np.arange(4, dtype=np.int32)
        try:
            buffer = self.inner.alloc(written.nbytes)
            self.inner.write(buffer, written)
            return bool((self.inner.read(buffer, written.dtype, 4) == written).all())
        except SparseRLError:
            return False
