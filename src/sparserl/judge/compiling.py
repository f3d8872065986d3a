"""Sources to binaries while the worker is busy with others: a batch is compiled in the background, each source once.

The compile verdict is NVRTC's, in `CompilePool`'s processes, on either machine; on sim the host's compiler then makes
what runs. Binaries carry no matrix, so the last few thousand are kept for the next case.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from sparserl.backends.backend import Binary
from sparserl.backends.nvrtc import CompilePool
from sparserl.errors import CompileError

Source = tuple[str, tuple[str, ...]]
"""source text and the kernels in it"""
KEPT = 4096


@dataclass(frozen=True)
class Compiled:
    """A binary or the compiler's refusal, and the seconds it took (0 where it was at hand)."""

    result: Binary | CompileError
    seconds: float


class Compiler:
    """Compiles batches in the background; one batch at a time, in the order given."""

    def __init__(self, backend: str, arch: str, workers: int | None = None) -> None:
        self.workers = workers or os.cpu_count() or 1
        self._batches = ThreadPoolExecutor(1, thread_name_prefix="sparserl-compile")
        self._kept: OrderedDict[Source, Binary | CompileError] = OrderedDict()
        self._pool = CompilePool(self.workers, arch, cache=True)
        self._host = _HostCompilers(self.workers) if backend == "sim" else None

    def warm(self, programs: int) -> None:
        """Start the processes that so many programs will need; to be called before the first batch."""
        self._batches.submit(self._pool.hire, programs)

    def submit(self, sources: Sequence[Source]) -> Future[list[Compiled]]:
        """Start a batch; the future holds one answer a source, in order."""
        return self._batches.submit(self._batch, list(sources))

    def close(self) -> None:
        self._batches.shutdown(cancel_futures=True)
        self._pool.close()
        if self._host is not None:
            self._host.close()

    def _batch(self, sources: list[Source]) -> list[Compiled]:
        new = [source for source in dict.fromkeys(sources) if source not in self._kept]
        began = time.perf_counter()
        answers = self._pool.compile_many(new)
        if self._host is not None:
            answers = self._host.compile_many(new, answers)
        each = (time.perf_counter() - began) / max(len(new), 1)
        self._kept.update(zip(new, answers, strict=True))
        out = [Compiled(self._kept[source], each if source in new else 0.0) for source in sources]
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return out


class _HostCompilers:
    """The simulator's binaries: what NVRTC let through, compiled again by the host's compiler."""

    def __init__(self, workers: int) -> None:
        from sparserl.backends.sim import SimBackend

        self._machine = SimBackend(nvrtc=False)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sparserl-host-compile")

    def compile_many(
        self, sources: Sequence[Source], verdicts: Sequence[Binary | CompileError]
    ) -> list[Binary | CompileError]:
        return list(self._threads.map(self._compile, sources, verdicts))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._machine.close()

    def _compile(self, source: Source, verdict: Binary | CompileError) -> Binary | CompileError:
        if isinstance(verdict, CompileError):
            return verdict
        try:
            binary = self._machine.compile(*source)
        except CompileError as error:
            return error
        return replace(binary, registers=verdict.registers, log=verdict.log)
