"""Work on the GPU in short pieces, so that other processes there may time something in between.

What a language model writes and learns takes seconds to minutes of the GPU. Where several processes share it (tunings
side by side, `bench --share`, `runs/ablations.sh`), each piece is a shared turn of `judge.turn`: no timing begins
before it is done, and it begins when none is under way. A piece ends when the GPU has done it. Pieces don't lie in one
another, and nobody waits for another process within one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from sparserl.judge.turn import Turn, gpu_of
from sparserl.policy.sampler import Piece


def pieces_on(device: torch.device) -> Piece:
    """What a piece of work on this device is done within; on a CPU nobody times anything."""
    if device.type != "cuda":
        return nullcontext
    return pieces_between(
        Turn(gpu_of("cuda", device.index or 0), Path(tempfile.gettempdir())), lambda: torch.cuda.synchronize(device)
    )


def pieces_between(turn: Turn, finish: Callable[[], None]) -> Piece:
    """Shared turns of `turn`; `finish` waits until what was begun is done."""

    @contextmanager
    def piece() -> Iterator[None]:
        with turn.shared():
            yield
            finish()

    return piece
