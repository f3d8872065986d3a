"""The most memory that something took: host memory of this process with its children, looked at every few ms, and the
GPU's memory that torch counts in this process.

Not covered: what other processes have on the GPU (the judge's worker counts its own), CUDA's contexts and code, and
what libraries allocate past torch.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

EVERY_S = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Watermark:
    """With it around: `host_bytes` (all of this process and its children) and `torch_bytes` (0 without a GPU).

    A peak of the host shorter than `EVERY_S` may be missed; it is 0 where there is no /proc. torch's is exact: the most
    that was live at one moment, with what lay there before, such as a policy's weights.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.host_bytes = self.torch_bytes = 0

    def __enter__(self) -> Watermark:
        if self._on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._look()
        if self._on_gpu:
            import torch

            self.torch_bytes = int(torch.cuda.max_memory_allocated())

    def _watch(self) -> None:
        while not self._done.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        self.host_bytes = max(self.host_bytes, resident_bytes(os.getpid()))


def resident_bytes(process: int) -> int:
    """What a process and its children have in memory; pages that they share count once for each."""
    home, size = Path("/proc") / str(process), 0
    with suppress(OSError, ValueError, IndexError):  # it may end while we look
        size = PAGE * int((home / "statm").read_text().split()[1])
        for children in home.glob("task/*/children"):
            size += sum(resident_bytes(int(child)) for child in children.read_text().split())
    return size
