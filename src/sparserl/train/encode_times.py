"""Measured times as a target of the encoder: the best time of every family of recipes, from a collection folder.

A pair of (case, problem) is one example; its targets are the logarithms of the best correct time of each family,
standardised over all. A family without a correct program there is left out of that example's loss. What the encoder
reads of the matrices is that of `samples`, which fine-tuning uses too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from sparserl.errors import StoreError
from sparserl.policy.encoder import EncoderInput, collate
from sparserl.records import DType, Order, Problem
from sparserl.train.collected import CollectedCase, Collection
from sparserl.train.samples import Sampled


@dataclass(frozen=True)
class Timed:
    """Examples with times."""

    families: tuple[str, ...]
    matrix: EncoderInput
    times: Tensor
    """(n, families) standardised logarithms of microseconds"""
    known: Tensor
    """(n, families) 1 where there is one"""

    def to(self, device: torch.device) -> Timed:
        return replace(
            self, matrix=self.matrix.to(device), times=self.times.to(device), known=self.known.to(device)
        )

    def batch(self, count: int, generator: torch.Generator) -> tuple[EncoderInput, Tensor, Tensor]:
        chosen = torch.randint(0, len(self.times), (count,), generator=generator).to(self.times.device)
        return EncoderInput(*(each[chosen] for each in self.matrix)), self.times[chosen], self.known[chosen]


def best_times(case: CollectedCase) -> dict[str, float]:
    """Family → microseconds of its fastest correct recipe, in solver mode."""
    found: dict[str, float] = {}
    for each in case.correct:
        if each.origin == "recipe" and "solver" in each.times_us:
            found[each.family] = min(each.times_us["solver"], found.get(each.family, float("inf")))
    return found


def read_problem(name: str) -> Problem:
    """The problem of a record: 'spmv float32' or 'spmm float32 64 row row'."""
    op, dtype, *rest = name.split()
    if op == "spmv" and not rest:
        return Problem("spmv", cast(DType, dtype))
    if op == "spmm" and len(rest) == 3:
        return Problem("spmm", cast(DType, dtype), int(rest[0]), cast(Order, rest[1]), cast(Order, rest[2]))
    raise StoreError(f"A problem is written 'spmv TYPE' or 'spmm TYPE N ORDER ORDER'. Got {name!r}.")


def timed_of(collection: Collection, samples: Mapping[str, Sampled]) -> Timed:
    """The timed examples of a collection, given the samples of its matrices."""
    found = {(case.name, case.problem): best_times(case) for case in collection.cases}
    pairs = sorted(pair for pair, times in found.items() if times)
    if not pairs:
        raise StoreError("The collection has no correct recipe times. Run 'sparserl train collect' first.")
    families = tuple(sorted({family for pair in pairs for family in found[pair]}))
    times = torch.tensor([[found[pair].get(f, float("nan")) for f in families] for pair in pairs]).log2()
    known = ~times.isnan()
    mean, deviation = times[known].mean(), times[known].std(correction=0) + 1e-3
    standard = torch.where(known, (times - mean) / deviation, 0.0)
    matrix = collate([samples[case].sample for case, _ in pairs], [read_problem(name) for _, name in pairs])
    return Timed(families, matrix, standard, known.float())
