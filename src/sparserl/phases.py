"""Where the time goes: seconds by the name of a phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def phase(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds what a block takes to one of the phases, also when it raises."""
    began = time.perf_counter()
    try:
        yield
    finally:
        add(seconds, {name: time.perf_counter() - began})


def add(seconds: dict[str, float], more: Mapping[str, float]) -> None:
    """Phases of another account, added to those of the same name."""
    for name, took in more.items():
        seconds[name] = seconds.get(name, 0.0) + took


def rounded(seconds: Mapping[str, float], digits: int = 4) -> dict[str, float]:
    """As it is written down."""
    return {name: round(took, digits) for name, took in seconds.items()}
