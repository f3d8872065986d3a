"""Measured times as a target of the encoder: the best time of every family of recipes, from a collection folder.

A pair of (case, problem) is one example; its targets are the logarithms of the best correct time of each family,
standardised over all. A family without a correct program there is left out of that example's loss. Matrices are made
again from `cases.jsonl`, once each.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from sparserl.errors import MatrixError, StoreError
from sparserl.policy.encoder import EncoderInput, collate
from sparserl.policy.sample import Sample, sample_pattern
from sparserl.records import DType, Order, Problem
from sparserl.store import read_jsonl
from sparserl.train.cases import from_source

log = logging.getLogger(__name__)


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


def best_times(records: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """(case, problem) → family → microseconds of its fastest correct program, steady state."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for each in records:
        time_us = each.get("solver_us")
        if each["verdict"] == "CORRECT" and each["origin"] == "recipe" and time_us:
            there = found[each["case"], each["problem"]]
            there[each["family"]] = min(float(time_us), there.get(each["family"], float("inf")))
    return dict(found)


def read_problem(name: str) -> Problem:
    """The problem of a record: 'spmv float32' or 'spmm float32 64 row row'."""
    op, dtype, *rest = name.split()
    if op == "spmv" and not rest:
        return Problem("spmv", cast(DType, dtype))
    if op == "spmm" and len(rest) == 3:
        return Problem("spmm", cast(DType, dtype), int(rest[0]), cast(Order, rest[1]), cast(Order, rest[2]))
    raise StoreError(f"A problem is written 'spmv TYPE' or 'spmm TYPE N ORDER ORDER'. Got {name!r}.")


def read_timed(folder: Path, real: Path | None = None) -> Timed:
    """The timed examples of a collection folder. Cases whose file is not in `real` are left out, and said so."""
    found = best_times(read_jsonl(folder / "measured.jsonl"))
    sources = {each["case"]: each["source"] for each in read_jsonl(folder / "cases.jsonl")}
    samples: dict[str, Sample] = {}
    for case in sorted({case for case, _ in found}):
        try:
            samples[case] = sample_pattern(from_source(case, sources[case]).load(real), with_features=True)
        except MatrixError as error:
            log.warning("Left out the times of %s: %s", case, error)
    pairs = [pair for pair in sorted(found) if pair[0] in samples]
    if not pairs:
        raise StoreError(f"{folder} has no correct recipe times. Run 'sparserl train collect' first.")
    families = tuple(sorted({family for pair in pairs for family in found[pair]}))
    times = torch.tensor([[found[pair].get(f, float("nan")) for f in families] for pair in pairs]).log2()
    known = ~times.isnan()
    mean, deviation = times[known].mean(), times[known].std(correction=0) + 1e-3
    standard = torch.where(known, (times - mean) / deviation, 0.0)
    matrix = collate([samples[case] for case, _ in pairs], [read_problem(name) for _, name in pairs])
    return Timed(families, matrix, standard, known.float())
