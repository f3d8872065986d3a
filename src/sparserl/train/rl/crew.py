"""This process among those that train together: one alone, or several under `accelerate launch`.

Each plays and judges its share of a round's prompts; then all of them have all rollouts (`gather`), go through the same
minibatches, each with its share of every one, and add up the gradients (`add_gradients`). What they start from and what
they add is equal, so their weights stay equal, bit by bit. The first one writes.

Not covered: processes that join or leave; a model that does not fit one device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from sparserl.errors import SparseRLError

T = TypeVar("T")


class Crew:
    """One process alone; `LaunchedCrew` is one of several."""

    rank = 0
    count = 1
    local = 0
    """place among the processes of this machine: which GPU is its own"""

    @property
    def first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part."""
        return list(items[self.rank :: self.count])

    def gather(self, mine: Sequence[T]) -> list[T]:
        """What all have, the first one's first; the same list everywhere."""
        return list(mine)

    def add_all(self, mine: Mapping[str, float]) -> dict[str, float]:
        """The sums over processes, by name; a process may lack some."""
        sums: dict[str, float] = {}
        for each in self.gather([dict(mine)]):
            for name, value in each.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def told(self, mine: T) -> T:
        """What the first one says."""
        return self.gather([mine])[0]

    def add_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Every gradient becomes the sum over processes."""


class LaunchedCrew(Crew):
    """One of the processes that `accelerate launch` started."""

    def __init__(self, cpu: bool) -> None:
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise SparseRLError(
                "Several processes were started, but accelerate is not installed: `pip install accelerate`, or start "
                "`sparserl train rl` by itself."
            ) from error
        state = PartialState(cpu=cpu)
        self.rank, self.count, self.local = state.process_index, state.num_processes, state.local_process_index

    def gather(self, mine: Sequence[T]) -> list[T]:
        from accelerate.utils import gather_object

        found: list[T] = gather_object(list(mine))
        return found

    def add_gradients(self, parameters: Iterable[Parameter]) -> None:
        """What has no gradient anywhere is left without one: with a zero, AdamW would move it on by its momentum."""
        there = [each for each in parameters if each.requires_grad]
        counted = there[0].new_tensor([each.grad is not None for each in there])
        flat = torch.cat([*(_gradient(each).flatten() for each in there), counted])
        torch.distributed.all_reduce(flat)
        *sums, counts = torch.split(flat, [*(each.numel() for each in there), len(there)])
        for each, whole, count in zip(there, sums, counts.tolist(), strict=True):
            each.grad = whole.view_as(each) if count else None


def _gradient(parameter: Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def open_crew(cpu: bool) -> Crew:
    """As the environment says: `accelerate launch` and `torchrun` set WORLD_SIZE."""
    return LaunchedCrew(cpu) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Crew()


def own_gpu(crew: Crew) -> str:
    """The GPU of this process, as CUDA_VISIBLE_DEVICES names it; empty where there is one process alone."""
    if crew.count == 1:
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[crew.local] if len(visible) > crew.local and visible[0] else str(crew.local)
