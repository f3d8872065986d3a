"""Processes that end with the one that started them. One that was killed can't tell them, and nobody else would."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

AFTER_OTHERS = 5
"""how much nicer helpers are: who has a turn on the GPU must not wait for a processor, since all others wait for him"""


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
