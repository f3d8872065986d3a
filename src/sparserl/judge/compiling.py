"""Sources to binaries while the worker is busy with others: a batch is compiled in the background, each source once.

On cuda the work is done by `CompilePool`'s processes, on sim by the host's compiler, started from threads. Binaries
carry no matrix, so the last few thousand are kept for the next case.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sparserl.backends.backend import Binary
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
        self._pool: Any = None
        self._threads: ThreadPoolExecutor | None = None
        if backend == "cuda":
            from sparserl.backends.nvrtc import CompilePool

            self._pool = CompilePool(self.workers, arch, cache=True)
        else:
            from sparserl.backends.sim import SimBackend

            self._machine = SimBackend()
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="sparserl-compile")

    def submit(self, sources: Sequence[Source]) -> Future[list[Compiled]]:
        """Start a batch; the future holds one answer a source, in order."""
        return self._batches.submit(self._batch, list(sources))

    def close(self) -> None:
        self._batches.shutdown(cancel_futures=True)
        if self._pool is not None:
            self._pool.close()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._machine.close()

    def _batch(self, sources: list[Source]) -> list[Compiled]:
        new = [source for source in dict.fromkeys(sources) if source not in self._kept]
        began = time.perf_counter()
        answers = self._pool.compile_many(new) if self._pool is not None else self._by_threads(new)
        each = (time.perf_counter() - began) / max(len(new), 1)
        self._kept.update(zip(new, answers, strict=True))
        out = [Compiled(self._kept[source], each if source in new else 0.0) for source in sources]
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return out

    def _by_threads(self, sources: list[Source]) -> list[Binary | CompileError]:
        assert self._threads is not None
        return list(self._threads.map(self._compile, sources))

    def _compile(self, source: Source) -> Binary | CompileError:
        try:
            return self._machine.compile(source[0], source[1])
        except CompileError as error:
            return error
