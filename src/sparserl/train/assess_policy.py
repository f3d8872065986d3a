"""Policies as writers for `assess`: samples at the shipped temperature, prompted with withheld headers, or masked.

`PolicyWriter` draws the 16 samples a matrix. Temperature, top-p and length are those stored with the policy (`notes` of
its config, under 'sampling'); a policy that stores none is sampled at temperature 1. `prompted=True` gives it headers
of withheld feature combinations that the matrix admits, several samples each, and it writes the body. `masked=True`
allows only layout lines that the matrix admits: for the comparison with a blind policy, never for the headline figures.
A policy is told that `solver` is timed, unless `mode` says otherwise; its programs are timed in both.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from sparserl.matrix import Pattern
from sparserl.policy.sampler import Written
from sparserl.policy.tokenizer import Tokenizer
from sparserl.policy.writer import Writer
from sparserl.program import parse
from sparserl.recipes import Recipe, admissible, summarise
from sparserl.records import LayoutLine, Mode, Problem
from sparserl.train.assess import CHAINED, MASKED, PROMPTED, Loaded, Sample
from sparserl.train.controls import SMS
from sparserl.train.rules import SAMPLES, Line, by_part
from sparserl.train.withheld import combination, withheld_recipe


@dataclass(frozen=True)
class Drawing:
    """How a policy is sampled."""

    samples: int = SAMPLES
    seed: int = 0
    device: str = "cpu"
    """where the policy runs"""
    machine: str = "h200"
    """what it is told that it writes for"""
    prompted: bool = False
    headers: int = 4
    """withheld headers a matrix; the samples are shared out among them"""
    masked: bool = False
    mode: Mode = "solver"
    """what the policy is told that is timed"""
    temperature: float | None = None
    """in place of the stored one, as is top_p; for choosing on the dev split"""
    top_p: float | None = None


class PolicyWriter:
    """A stored policy."""

    def __init__(self, folder: Path, problem: Problem, drawing: Drawing, name: str) -> None:
        self.problem, self.drawing = problem, drawing
        chained = CHAINED if drawing.mode == "chain" else ""
        self.name = name + chained + (PROMPTED if drawing.prompted else "") + (MASKED if drawing.masked else "")
        self.batch = 32
        self.writer = Writer(folder, drawing.device)
        self.settings, self.tokenizer = self.writer.settings, self.writer.tokenizer
        if drawing.temperature is not None:
            self.settings = replace(self.settings, temperature=drawing.temperature)
        if drawing.top_p is not None:
            self.settings = replace(self.settings, top_p=drawing.top_p)

    def write(self, matrices: Sequence[Loaded]) -> list[list[Sample]]:
        """The samples of each matrix. What is drawn depends on the seed and on the names in the batch."""
        seed = zlib.crc32(f"{self.drawing.seed} {matrices[0].name} {self.drawing.prompted}".encode())
        if self.drawing.prompted:
            return self._prompted(matrices, seed)
        rows = list(range(len(matrices)))
        written = self._drawn(matrices, rows, self.drawing.samples, [[] for _ in rows], seed)
        return [[self._sample(each) for each in samples] for samples in written]

    def _prompted(self, matrices: Sequence[Loaded], seed: int) -> list[list[Sample]]:
        rows, forced = [], []
        for row, matrix in enumerate(matrices):
            for header in withheld_headers(matrix, self.problem, self.drawing):
                rows.append(row)
                forced.append(header_tokens(self.tokenizer, header.text))
        each = max(1, self.drawing.samples // self.drawing.headers)
        found: list[list[Sample]] = [[] for _ in matrices]
        if rows:
            for row, samples in zip(rows, self._drawn(matrices, rows, each, forced, seed), strict=True):
                found[row] += [self._sample(written) for written in samples]
        return found

    def _drawn(
        self, matrices: Sequence[Loaded], rows: list[int], count: int, forced: list[list[int]], seed: int
    ) -> list[list[Written]]:
        """One list a row; several rows may be of one matrix."""
        masks = None
        if self.drawing.masked:
            each = [admitted_layouts(m.pattern, self.problem, self.tokenizer) for m in matrices]
            masks = [each[row] for row in rows]
        return self.writer.write(
            [matrices[row].pattern for row in rows], self.problem, count, machine=self.drawing.machine,
            mode=self.drawing.mode, settings=replace(self.settings, seed=seed), forced=forced, mask=masks,
        )  # fmt: skip

    def _sample(self, written: Written) -> Sample:
        line = Line(written.ids, written.log_probs, written.sampled_log_probs, written.given)
        return Sample(written.text, written.finished, by_part(line, self.tokenizer.special))


# ---- withheld headers


def withheld_headers(matrix: Loaded, problem: Problem, drawing: Drawing) -> list[Recipe]:
    """Admissible recipes with withheld headers, each of another feature combination; seeded by the pattern."""
    rng = random.Random(f"{drawing.seed} {matrix.pattern.fingerprint()}")
    by_combination: dict[tuple[str, ...], list[Recipe]] = {}
    for recipe in admissible(summarise(matrix.pattern, problem, SMS)):
        if withheld_recipe(recipe):
            by_combination.setdefault(combination(parse(recipe.text)), []).append(recipe)
    chosen = rng.sample(sorted(by_combination), min(drawing.headers, len(by_combination)))
    return [rng.choice(by_combination[each]) for each in chosen]


def header_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """A program's header as the prompt that follows '<program>': up to '<code>', which is given too."""
    ids = tokenizer.encode_program(text)
    return ids[1 : ids.index(tokenizer.special["<code>"]) + 1]


# ---- the admissibility mask


@lru_cache(maxsize=4096)
def layout_tokens(line: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """A layout line as what follows '<program>', to its end."""
    return (tokenizer.special["<layout>"], *tokenizer.encode(f"{line}\n"))


class AdmittedLayouts:
    """A TokenMask that allows the layout lines given, and anything after them."""

    def __init__(self, lines: Sequence[LayoutLine | str], tokenizer: Tokenizer) -> None:
        self._size = tokenizer.size
        self._nodes: list[dict[int, int]] = [{}]
        for line in lines:
            node = 0
            for token in layout_tokens(str(line), tokenizer):
                if token not in self._nodes[node]:
                    self._nodes.append({})
                    self._nodes[node][token] = len(self._nodes) - 1
                node = self._nodes[node][token]

    def start(self) -> Hashable | None:
        return 0

    def allowed(self, state: Hashable) -> Tensor:
        allowed = torch.zeros(self._size, dtype=torch.bool)
        allowed[self.tokens(state)] = True
        return allowed

    def tokens(self, state: Hashable) -> list[int]:
        """Those that are allowed."""
        assert isinstance(state, int)
        return list(self._nodes[state])

    def advance(self, state: Hashable, token: int) -> Hashable | None:
        """None past the end of a line, or off the tree."""
        assert isinstance(state, int)
        node = self._nodes[state].get(token)
        return node if node is not None and self._nodes[node] else None


def admitted_layouts(pattern: Pattern, problem: Problem, tokenizer: Tokenizer) -> AdmittedLayouts:
    """The layout lines of the recipes that a pattern admits."""
    lines = {recipe.layout for recipe in admissible(summarise(pattern, problem, SMS))}
    return AdmittedLayouts(sorted(lines, key=str), tokenizer)
