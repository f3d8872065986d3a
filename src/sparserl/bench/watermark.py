"""The most memory that something took: of this process with its children, and of the GPU, looked at every few ms."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

EVERY_S = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Watermark:
    """With it around: `host_bytes` (all of this process and its children) and `device_bytes` (above the beginning).

    A peak shorter than `EVERY_S` may be missed. Host memory is 0 where there is no /proc; the GPU's counts what other
    processes take in the meantime too.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.host_bytes = self.device_bytes = 0

    def __enter__(self) -> Watermark:
        self._before = self._device() if self._on_gpu else 0
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        self.host_bytes = max(self.host_bytes, resident_bytes(os.getpid()))
        if self._on_gpu:
            self.device_bytes = max(self.device_bytes, self._device() - self._before)

    @staticmethod
    def _device() -> int:
        import torch

        free, total = torch.cuda.mem_get_info()
        return int(total - free)


def resident_bytes(process: int) -> int:
    """What a process and its children have in memory; pages that they share count once for each."""
    home, size = Path("/proc") / str(process), 0
    with suppress(OSError, ValueError, IndexError):  # it may end while we look
        size = PAGE * int((home / "statm").read_text().split()[1])
        for children in home.glob("task/*/children"):
            size += sum(resident_bytes(int(child)) for child in children.read_text().split())
    return size
