"""Where the time goes: seconds by the name of a phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def phase(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds what a block takes to one of the phases, also when it raises."""
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
