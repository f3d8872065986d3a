"""Exploration: openings from the policy's own top layouts, and an archive of the best programs of every kind.

`Explorer` scores every layout line that a matrix admits under the policy (one forward pass, nothing is drawn), keeps
the most probable ones and that of each next kind (`line_kind`: a policy that is sure of blocks of 4 has nothing but
these on top), and draws openings from them at a temperature. An opening is '<layout>' and the line; its tokens are
given, so no gradient flows to them, and the rest of the program is the policy's.

`Elites` keeps the best verified program of each cell: problem × structure class × layout name × mapping, where the
mapping (`mapping_of`) is how work is laid on threads; and that of each matrix and problem. Self-imitation draws from
both alike, the more a program leads the policy's own mean on its matrix the more often: cells keep kinds alive that are
seldom best, matrices tell what is best where. Programs with a withheld combination of features are never kept.

Not covered: layout lines that neither a recipe nor the archive has (the policy may write them; no opening does).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparserl.bench.reference import problem_name
from sparserl.errors import ProgramError, SparseRLError, StoreError
from sparserl.layouts import parse_line
from sparserl.matrix import Array
from sparserl.policy.encoder import collate
from sparserl.policy.model import Policy
from sparserl.policy.sampler import Piece
from sparserl.policy.tokenizer import Tokenizer
from sparserl.program import parse
from sparserl.records import Mode, Program
from sparserl.store import read_json, write_json
from sparserl.train.assess_policy import layout_tokens
from sparserl.train.batches import in_turn, padded, spread_draws
from sparserl.train.loop import autocast
from sparserl.train.rl.episodes import Look, log_speedup
from sparserl.train.rl.nouns import Judged, Prompt, prompt_from_record, prompt_to_record
from sparserl.train.withheld import combination, withheld_program

Pair = tuple[str, str]
"""a case and a problem, by their names"""
BLOCK_SIZE = "b"
"""the parameter of a layout of blocks"""


def pair_of(prompt: Prompt) -> Pair:
    return prompt.case, problem_name(prompt.problem)


# ---- openings


@dataclass(frozen=True)
class ExploreConfig:
    """How openings are drawn."""

    top: int = 8
    """layout lines a prompt that may be drawn: the most probable ones"""
    kinds: int = 6
    """lines beside them: the most probable one of each kind that is not among these, of so many kinds"""
    temperature: float = 2.0
    """of the draw among them: above 1, what the policy rarely writes comes more often than it would"""
    even: float = 0.5
    """share of the draws that knows no probabilities: a policy that is sure of one line still tries the others"""
    batch: int = 256
    """lines that are scored together"""
    machine: str = "h200"

    def __post_init__(self) -> None:
        if self.top < 1 or self.batch < 1 or not self.temperature > 0:
            raise SparseRLError(
                "The 'top' and 'batch' of ExploreConfig must be at least 1, 'temperature' above 0. "
                f"Got {self.top}, {self.batch} and {self.temperature}."
            )
        if not 0 <= self.even <= 1 or self.kinds < 0:
            raise SparseRLError(
                "The 'even' of ExploreConfig must be in [0, 1] and 'kinds' not negative. "
                f"Got {self.even} and {self.kinds}."
            )


def line_kind(line: str) -> str:
    """What kind of layout a line names: 'slices', 'blocks b=4'. The size of blocks is what is stored, not how."""
    layout = parse_line(line)
    sizes = [f"{key}={value}" for key, value in layout.params if key == BLOCK_SIZE]
    return " ".join([layout.name, *sizes])


class Explorer:
    """Draws openings; `episodes.Player` takes it."""

    def __init__(
        self,
        policy: Policy,
        tokenizer: Tokenizer,
        look: Look,
        admitted: Callable[[Prompt], Sequence[str]],
        config: ExploreConfig,
        *,
        mode: Mode = "solver",
        piece: Piece = nullcontext,
    ) -> None:
        """mode: what the policy is told that is timed; piece: what work on the device is done within (`pieces`)."""
        self.mode, self.piece = mode, piece
        self.policy, self.tokenizer, self.look, self.admitted, self.config = policy, tokenizer, look, admitted, config

    def openings(self, prompts: Sequence[Prompt], count: int, seed: int) -> list[list[list[int]]]:
        """`count` openings for each prompt; none where the matrix admits no recipe's layout."""
        return [self._drawn(self.shortlist(prompt), prompt, count, seed) for prompt in prompts]

    def shortlist(self, prompt: Prompt) -> list[tuple[str, float]]:
        """The lines that openings are drawn from, the most probable first."""
        ranked, top = self.ranked(prompt), self.config.top
        seen = {line_kind(line) for line, _ in ranked[:top]}
        firsts: dict[str, tuple[str, float]] = {}
        for line, score in ranked[top:]:
            if (kind := line_kind(line)) not in seen:
                firsts.setdefault(kind, (line, score))
        return [*ranked[:top], *list(firsts.values())[: self.config.kinds]]

    def ranked(self, prompt: Prompt) -> list[tuple[str, float]]:
        """Every admitted line with its log-probability after the matrix, the most probable first."""
        lines = sorted(self.admitted(prompt))
        if not lines:
            return []
        scores = self._scores(prompt, lines)
        return sorted(zip(lines, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))

    def _drawn(self, best: Sequence[tuple[str, float]], prompt: Prompt, count: int, seed: int) -> list[list[int]]:
        if not best:
            return []
        scores = np.array([score for _, score in best]) / self.config.temperature
        sharp = np.exp(scores - scores.max())
        weights = (1 - self.config.even) * sharp / sharp.sum() + self.config.even / len(best)
        rng = np.random.default_rng([seed, zlib.crc32(" ".join(pair_of(prompt)).encode())])
        order = rng.permutation(len(best))  # neighbours in a fixed order would never be drawn together
        return [
            list(layout_tokens(best[order[at]][0], self.tokenizer)) for at in spread_draws(weights[order], count, rng)
        ]

    @torch.inference_mode()
    def _scores(self, prompt: Prompt, lines: Sequence[str]) -> list[float]:
        device = next(self.policy.parameters()).device
        ids = [[self.tokenizer.program, *layout_tokens(line, self.tokenizer)] for line in lines]
        was_training = self.policy.training
        self.policy.eval()
        try:
            with self.piece(), autocast(device):
                prefix = self.policy.prefix(
                    collate([self.look(prompt)], [prompt.problem], self.config.machine, self.mode).to(device)
                )
                parts = [ids[at : at + self.config.batch] for at in range(0, len(ids), self.config.batch)]
                return [score for part in parts for score in self._log_probs(part, prefix)]
        finally:
            self.policy.train(was_training)

    def _log_probs(self, lines: Sequence[Sequence[int]], prefix: Tensor) -> list[float]:
        """Of all tokens after '<program>', a line. prefix: (1, prefix, width).

        Lines begin alike, and logits cost more than all else in a small model: each beginning has them once.
        """
        language = self.policy.language
        ids = torch.from_numpy(padded([np.array(line) for line in lines], multiple=1)[0]).to(prefix.device)
        vectors = language.model.embed_tokens(ids[:, :-1])
        joined = torch.cat((prefix.to(vectors.dtype).expand(len(ids), -1, -1), vectors), dim=1)
        hidden = language.hidden(joined)[:, prefix.shape[1] :]  # (lines, tokens - 1, width)
        places: dict[tuple[int, ...], tuple[int, int]] = {}
        steps = [(row, tuple(line[:at]), line[at]) for row, line in enumerate(lines) for at in range(1, len(line))]
        for row, before, _ in steps:
            places.setdefault(before, (row, len(before) - 1))
        states = hidden[[row for row, _ in places.values()], [at for _, at in places.values()]]
        logs = language.head(states).log_softmax(dim=-1)  # (beginnings, vocabulary)
        number = {before: place for place, before in enumerate(places)}
        found = logs[[number[before] for _, before, _ in steps], [token for _, _, token in steps]].tolist()
        scores = [0.0] * len(lines)
        for (row, _, _), each in zip(steps, found, strict=True):
            scores[row] += each
        return scores


# ---- the archive


def mapping_of(program: Program) -> str:
    """How work is laid on threads: the grid's form, threads a row (or slice, block …), block size, kernels, pdl.

    'div_up(rows, #) 4/1 x128 1 kernel pdl'. The grid's numbers are left out; the shares that follow it tell them.
    """
    launch = next((each for each in program.launches if each.kernel in ("spmv", "spmm")), program.launches[-1])
    features = dict(each.split("=", 1) for each in combination(program)[1:])
    shares = [value for name, value in features.items() if name.startswith("share") and name[5:].isdecimal()]
    words = [features["grid"], "/".join(shares), f"x{launch.block}", f"{len(program.launches)} kernel"]
    return " ".join(filter(None, words)) + (" pdl" if launch.pdl else "")


@dataclass(frozen=True)
class Elite:
    """The best program of a cell."""

    prompt: Prompt
    """the matrix it was verified on"""
    text: str
    speed: float
    """log of its speed-up over the baseline there"""
    mean: float
    """the policy's own mean log speed-up there when it last played, failures counted as the rules count them"""
    round: int

    @property
    def lead(self) -> float:
        """How far it is ahead of the policy's mean: what there is to learn from it."""
        return self.speed - self.mean


MOST_LEAD = 0.5
"""a lead counts at most so much in a draw: where the policy fails, everything leads by far"""
MOST_DRAWS = 2
"""of one program a draw: a young archive is small, and what is drawn fifty times a round is learnt by heart"""


class Elites:
    """The archive. Of two programs on one matrix the faster stays; of two on different ones, that with more lead."""

    def __init__(self, modes: Sequence[str] = ("solver",)) -> None:
        self.modes = tuple(modes)
        self.cells: dict[str, Elite] = {}
        self.pairs: dict[Pair, Elite] = {}
        """the incumbents: the best of each matrix and problem"""

    def __len__(self) -> int:
        return len(self.cells)

    def offer(self, prompt: Prompt, text: str, judged: Judged, mean: float, round_number: int) -> bool:
        """Take a program in, if it is right, was timed longer, is not withheld, and is the best of its cell or pair.

        mean: the policy's mean log speed-up on this prompt. Returns whether it is the best of its cell.
        """
        speed = log_speedup(judged, self.modes)
        if speed is None or not judged.retimed:
            return False
        try:
            program = parse(text)
        except ProgramError:
            return False
        if withheld_program(program):
            return False
        pair, cell = pair_of(prompt), cell_of(prompt, program)
        new, old, best = Elite(prompt, text, speed, mean, round_number), self.cells.get(cell), self.pairs.get(pair)
        if best is None or speed > best.speed:
            self.pairs[pair] = new
        if old is not None and not _better(new, old):
            return False
        self.cells[cell] = new
        return True

    def met(self, prompt: Prompt, mean: float) -> None:
        """The policy played this prompt again, with this mean: what it has learnt no longer leads."""
        pair = pair_of(prompt)
        for cell, elite in self.cells.items():
            if pair_of(elite.prompt) == pair:
                self.cells[cell] = replace(elite, mean=mean)
        if pair in self.pairs:
            self.pairs[pair] = replace(self.pairs[pair], mean=mean)

    def draw(self, count: int, seed: int) -> list[Elite]:
        """`count` draws for self-imitation, by lead, half of them from cells and half from pairs.

        Large leads come more often, at most `MOST_DRAWS` times from each. Fewer where few lead, none where none does.
        """
        rng = np.random.default_rng([seed, len(self)])
        kinds = [self.cells[cell] for cell in sorted(self.cells)]
        found = [_by_lead(each, -(-count // 2), rng) for each in (kinds, [self.pairs[p] for p in sorted(self.pairs)])]
        return in_turn(found)[:count]

    def forget_all_but(self, prompts: Iterable[Prompt]) -> None:
        """A run that goes on may have other matrices: of one that it no longer has there is nothing to read."""
        there = {pair_of(prompt) for prompt in prompts}
        self.cells = {cell: each for cell, each in self.cells.items() if pair_of(each.prompt) in there}
        self.pairs = {pair: each for pair, each in self.pairs.items() if pair in there}

    def save(self, path: Path) -> None:
        cells = {cell: _to_record(elite) for cell, elite in sorted(self.cells.items())}
        pairs = [_to_record(elite) for _, elite in sorted(self.pairs.items())]
        write_json(path, {"modes": list(self.modes), "cells": cells, "pairs": pairs})

    @classmethod
    def load(cls, path: Path) -> Elites:
        """Raises StoreError where the file is no archive."""
        stored: Any = read_json(path)
        try:
            found = cls(stored["modes"])
            found.cells = {cell: _from_record(each) for cell, each in stored["cells"].items()}
            found.pairs = {pair_of(elite.prompt): elite for elite in map(_from_record, stored["pairs"])}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StoreError(
                f"{path} is no archive of elites ({error!r}). Delete it; the run makes a new one."
            ) from error
        return found


def cell_of(prompt: Prompt, program: Program) -> str:
    """'spmv float32 | regular | slices | div_up(slices, #) 32 x128 1 kernel pdl'."""
    return " | ".join((problem_name(prompt.problem), prompt.structure, program.layout.name, mapping_of(program)))


def _better(new: Elite, old: Elite) -> bool:
    if pair_of(new.prompt) == pair_of(old.prompt):
        return new.speed > old.speed
    return new.lead > old.lead


def _by_lead(elites: Sequence[Elite], count: int, rng: np.random.Generator) -> list[Elite]:
    ahead = [elite for elite in elites if elite.lead > 0]
    if not ahead or count < 1:
        return []
    weights: Array = np.array([min(elite.lead, MOST_LEAD) for elite in ahead])
    times = np.bincount(spread_draws(weights, count, rng), minlength=len(ahead)).clip(max=MOST_DRAWS)
    return [ahead[int(at)] for at in rng.permutation(np.repeat(np.arange(len(ahead)), times))]


def _to_record(elite: Elite) -> dict[str, Any]:
    return {**asdict(elite), "prompt": prompt_to_record(elite.prompt)}


def _from_record(record: Mapping[str, Any]) -> Elite:
    return Elite(**{**record, "prompt": prompt_from_record(record["prompt"])})
