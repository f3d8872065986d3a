"""Processes that end with the one that started them. One that was killed can't tell them, and nobody else would."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

AFTER_OTHERS = 5
"""how much nicer helpers are: who has a turn on the GPU must not wait for a processor, since all others wait for him"""


def helpers(workers: int, begin: Callable[..., None] | None = None, *words: Any) -> ProcessPoolExecutor:
    """So many processes that help this one; each calls `begin` with these words first.

    They are spawned: this one may hold a CUDA context, which a fork would break.
    """
    from concurrent.futures import ProcessPoolExecutor  # not above: the judge's worker starts faster without
    from multiprocessing import get_context

    return ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(os.getpid(), begin, words))


def _begin(parent: int, begin: Callable[..., None] | None, words: tuple[Any, ...]) -> None:
    help_with(parent)
    if begin is not None:
        begin(*words)


def help_with(parent: int) -> None:
    """`leave_with`, for a process that packs and compiles ahead of one that uses the GPU: it lets others go first."""
    with suppress(OSError, AttributeError):  # Windows has no such thing
        os.nice(AFTER_OTHERS)
    leave_with(parent)


def leave_with(parent: int) -> None:
    """From now on this process ends within a second or so of its parent, whatever it is doing."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
