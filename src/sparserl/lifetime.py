"""Processes that end with the one that started them. One that was killed can't tell them, and nobody else would."""

from __future__ import annotations

import os
import threading
import time


def leave_with(parent: int) -> None:
    """From now on this process ends within a second or so of its parent, whatever it is doing."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
