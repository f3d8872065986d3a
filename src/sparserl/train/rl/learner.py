"""What learns: the policy, for PPO its value head, their optimiser; sequences as batches; one optimiser step.

The learning rate follows a cosine over the rounds, times a warm-up over the first optimiser steps of a fresh optimiser,
at the start of a run and after a start from weights alone. With several processes each has its share of every
minibatch, and gradients are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparserl.matrix import Array
from sparserl.policy.encoder import collate
from sparserl.policy.model import Policy
from sparserl.policy.sampler import Piece
from sparserl.train.batches import padded, program_batches
from sparserl.train.loop import Step, autocast, make_optimiser, rate
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.episodes import Look
from sparserl.train.rl.explore import pair_of
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.objective import Batch
from sparserl.train.rl.value import ValueHead, make_value_head

MULTIPLE = 16
"""batches are filled up to a multiple of so many tokens"""
COLUMNS = ("old", "reference", "kept", "advantages", "returns")
Row = tuple[int, int, int]
"""of a batch: from where a line is read, from where on it is learnt, and where it ends"""


@dataclass(frozen=True, eq=False)
class Line:
    """One sequence to learn from."""

    prompt: Prompt
    ids: Array
    """(tokens)"""
    written: Array
    """bool, (tokens): the loss is on these"""
    columns: Mapping[str, Array]
    """`COLUMNS` of a Batch, as far as they are known, 'flat', 'entropy' and 'values'; each (tokens)"""
    allowed: tuple[Array, ...] = ()
    """of each written token all that may stand in its place (`admission`); nothing: not asked"""
    target: tuple[Array, ...] = ()
    """how probable each of them is to be"""
    lacks: float = 0.0
    """minus the log-probability that a line is written of which every token is allowed, along this one"""
    parts: tuple[Row, ...] = ()
    """rows that it is read in, where its later tokens were written without its first ones; nothing: all of it is one"""

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.parts or ((0, 0, len(self.ids)),)


class Learner:
    """Made once a run; `state` and `restore` are its part of a checkpoint."""

    def __init__(
        self,
        config: RLConfig,
        policy: Policy,
        device: torch.device,
        look: Look,
        crew: Crew,
        *,
        first: Policy | None = None,
        piece: Piece = nullcontext,
    ) -> None:
        """piece: what every piece of work on the device is done within (`pieces`)."""
        self.config, self.device, self.look, self.crew, self.piece = config, device, look, crew, piece
        self.first = None if first is None else first.to(device).eval().requires_grad_(False)
        """the policy that the run began with, whose grammar is kept; None: it isn't asked"""
        self.policy = policy.to(device)
        self.policy.encoder.requires_grad_(not config.frozen)
        self.optimiser = make_optimiser(policy, config.loop)
        self.head: ValueHead | None = None
        if config.algorithm == "ppo":
            self.head = make_value_head(policy.size.language.width, config.loop.seed).to(device)
            scale = config.value_rate / config.loop.learning_rate
            self.optimiser.add_param_group(
                {"params": list(self.head.parameters()), "weight_decay": 0.0, "scale": scale}
            )
        self.steps = 0
        """optimiser steps since the optimiser was fresh"""
        self.fresh_head = self.head is not None
        """whether the value head has yet to be warmed up"""

    @property
    def parameters(self) -> list[nn.Parameter]:
        modules = [self.policy] if self.head is None else [self.policy, self.head]
        return [each for module in modules for each in module.parameters()]

    # ---- one optimiser step

    def step(
        self, lines: Sequence[Line], loss: Callable[[Batch], Step], number: int, scale: float = 1.0
    ) -> dict[str, float]:
        """Take a step of round `number` on these sequences; returns its figures, of all processes together.

        The loss is the mean over all written tokens; what does not fit `batch_tokens` is done one after the other.
        """
        own, total = self.crew.share(lines), max(1, sum(int(line.written.sum()) for line in lines))
        figures: dict[str, float] = {}
        self.optimiser.zero_grad(set_to_none=True)
        for places in self.similar(own):
            with self.piece():
                with autocast(self.device):
                    found = loss(self.batch([own[at] for at in places], total))
                found.loss.backward()  # type: ignore[no-untyped-call]
                for name, part in found.parts.items():
                    figures[name] = figures.get(name, 0.0) + float(part)
        self.crew.add_gradients(self.parameters)
        with self.piece():
            norm = nn.utils.clip_grad_norm_(self.parameters, self.config.loop.clip)
            self._set_rate(number, scale)
            self.optimiser.step()
        self.steps += 1
        return {**self.crew.add_all(figures), "norm": float(norm)}

    def _set_rate(self, number: int, scale: float) -> None:
        loop = self.config.loop
        warm = min(1.0, (self.steps + 1) / (loop.warmup + 1))
        base = rate(loop, number, self.config.rounds, number - loop.warmup) * warm * scale
        for group in self.optimiser.param_groups:
            group["lr"] = base * group.get("scale", 1.0)

    # ---- batches

    def minibatches(self, lines: Sequence[Line], seed: int) -> list[list[Line]]:
        """The sequences of each optimiser step of an epoch, at random; the same in every process."""
        order = np.random.default_rng(seed).permutation(len(lines))
        count = max(1, round(len(lines) / self.config.minibatch))
        return [[lines[at] for at in part] for part in np.array_split(order, count)]

    def similar(self, lines: Sequence[Line]) -> list[list[int]]:
        """Places in `lines`, similar lengths together, each part within `batch_tokens`."""
        lengths = np.array([sum(end - begin for begin, _, end in each.rows) for each in lines], dtype=np.int64)
        rng = np.random.default_rng(0)
        found = program_batches(lengths, np.arange(len(lines)), self.config.batch_tokens, rng)
        return [each.tolist() for each in found]

    def batch(self, lines: Sequence[Line], total: int = 0) -> Batch:
        """Rows of these lines, one after the other. total: written tokens of the minibatch that they are a share of."""
        prompts = {pair_of(each.prompt): each.prompt for each in lines}
        place = {pair: at for at, pair in enumerate(prompts)}
        samples = [self.look(prompt) for prompt in prompts.values()]
        problems = [prompt.problem for prompt in prompts.values()]
        room = self.policy.size.language.context - self.policy.prefix_length
        rows = [(each, row) for each in lines for row in each.rows]
        read = [each.ids[begin:end] for each, (begin, _, end) in rows]
        ids = padded(read, MULTIPLE)[0][:, :room]  # filling must not go beyond the context
        names = [name for name in COLUMNS if name in lines[0].columns]
        columns = {name: self._column(rows, name, ids.shape) for name in names}
        zeros = torch.zeros(ids.shape, device=self.device)
        return Batch(
            self._tensor(np.ascontiguousarray(ids)),
            self._column(rows, "", ids.shape).bool(),
            columns.get("old", zeros),
            columns.get("advantages", zeros + 1),
            collate(samples, problems, self.config.play.machine, self.config.play.mode).to(self.device),
            self._tensor(np.array([place[pair_of(each.prompt)] for each, _ in rows])),
            reference=columns.get("reference"),
            kept=columns.get("kept"),
            returns=columns.get("returns"),
            target=self._target(lines) if lines[0].target else None,
            total=total,
            temperature=self.config.play.settings.temperature,
        )

    def _column(self, rows: Sequence[tuple[Line, Row]], name: str, shape: tuple[int, ...]) -> Tensor:
        """(batch, tokens): one of the columns, or where the name is empty, which tokens were written and are learnt."""
        out = np.zeros(shape, dtype=np.float32)
        for row, (each, (begin, first, end)) in zip(out, rows, strict=True):
            values = each.columns[name] if name else each.written
            row[first - begin : end - begin] = values[first:end]
        return self._tensor(out)

    def _target(self, lines: Sequence[Line]) -> Tensor:
        """(written tokens, vocabulary)."""
        places = [(tokens, shares) for line in lines for tokens, shares in zip(line.allowed, line.target, strict=True)]
        out = np.zeros((len(places), self.policy.size.language.vocabulary), dtype=np.float32)
        for row, (tokens, shares) in zip(out, places, strict=True):
            row[tokens] = shares
        return self._tensor(out)

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        return {
            "weights": self.policy.state_dict(),
            "head": None if self.head is None else self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "steps": self.steps,
            "fresh_head": self.fresh_head,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["weights"])
        if self.head is not None:
            self.head.load_state_dict(state["head"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.steps, self.fresh_head = state["steps"], state["fresh_head"]
