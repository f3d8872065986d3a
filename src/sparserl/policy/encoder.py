"""The matrix encoder: from a sample of a pattern to the vectors that stand before a program's tokens.

    encoder = MatrixEncoder(width=384)
    prefix = encoder(collate([sample_pattern(pattern)], [Problem()]))      # (1, encoder.prefix_length, 384)

Every sampled nonzero becomes sinusoids of its indices (`indices`), then a vector by a small network; the nonzeros of a
square are summed and become one vector; learnt queries attend to all of these. Attention weighs, and is poor at the
largest and at plain means, so eight more vectors say those: the mean of each view, and the largest of each number over
all nonzeros and over all squares. All pooled vectors then attend to each other. Before them stand seven explicit ones:
log rows, log columns, log nonzeros, op, dtype, N and device. The last one also says what is timed: products behind one
another (`chain`) want other programs than those with work in between (`solver`).

Controls: `embedding="learnt"` reads tables instead of sinusoids; `source="blind"` sees the explicit vectors alone;
`source="features"` reads the named features of `sparserl.features` instead of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, scaled_dot_product_attention

from sparserl.policy.indices import EMBEDDINGS, Embedding, LearntIndices, SinusoidalIndices, waves
from sparserl.policy.sample import (
    ALONG,
    FEATURE_NAMES,
    FIELDS,
    HEAD_ENTRIES,
    HEAD_ROWS,
    HEADS,
    LONGEST,
    LONGEST_ENTRIES,
    PARTS,
    RANKS,
    ROWS,
    RUN,
    SINGLES,
    SQUARE_SIDES,
    SQUARES,
    Sample,
)
from sparserl.records import VALUE_BYTES, Mode, Problem

Source = Literal["matrix", "blind", "features"]
SOURCES: tuple[Source, ...] = ("matrix", "blind", "features")
OPS = ("spmv", *(f"spmm {b} {c}" for b in ("row", "col") for c in ("row", "col")))
DTYPES = tuple(VALUE_BYTES)
DEVICES = ("other", "sim", "h200", "h100", "a100", "b200", "l40s", "rtx 4090")
"""found in a device's name, without case; one that is not listed is 'other'"""
TIMED: tuple[Mode, ...] = ("solver", "chain")
"""what may be told; 'cold' is told as 'solver'"""
EXPLICIT = 7
"""vectors before the pooled ones"""
OVERALL = len(PARTS) + 2
"""vectors of means and largest numbers"""
SIZE_OCTAVES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class EncoderInput(NamedTuple):
    """A batch of samples and problems, as tensors."""

    sizes: Tensor
    """(batch, 3) int64: rows, columns, nonzeros"""
    entries: Tensor
    """(batch, PLACES, 8) int32, see `sample.FIELDS`"""
    problem: Tensor
    """(batch, 5) int64: op, dtype, N, device, mode"""
    named: Tensor
    """(batch, features) float32; (batch, 0) where samples carry none"""

    def to(self, device: torch.device | str) -> EncoderInput:
        return EncoderInput(*(each.to(device, non_blocking=True) for each in self))

    def parts(self, size: int) -> Iterator[EncoderInput]:
        """`size` samples at a time."""
        return (EncoderInput(*each) for each in zip(*(torch.split(whole, size) for whole in self), strict=True))


@dataclass(frozen=True)
class EncoderSize:
    """How large an encoder is and what it reads."""

    inner: int = 256
    """width inside; the output is projected to the language model's"""
    queries: int = 32
    """pooled vectors"""
    layers: int = 1
    """self-attention layers over them"""
    heads: int = 4
    embedding: Embedding = "sinusoidal"
    source: Source = "matrix"
    overall: bool = False
    """with the vectors of means and largest numbers; weights of before have none"""

    def __post_init__(self) -> None:
        if self.embedding not in EMBEDDINGS:
            raise ValueError(f"The 'embedding' of an encoder must be one of {EMBEDDINGS}. Got {self.embedding!r}.")
        if self.source not in SOURCES:
            raise ValueError(f"The 'source' of an encoder must be one of {SOURCES}. Got {self.source!r}.")
        if self.inner % self.heads:
            raise ValueError(f"An encoder's 'inner' must be a multiple of its {self.heads} heads. Got {self.inner}.")


def collate(
    samples: Sequence[Sample],
    problems: Sequence[Problem],
    device_name: str = "h200",
    modes: Mode | Sequence[Mode] = "solver",
) -> EncoderInput:
    """One batch of samples, each with its problem; `device_name` is the machine that the program is for.

    modes: what is timed, for each or for all.
    """
    if len(samples) != len(problems) or not samples:
        raise ValueError(f"A batch needs as many problems as samples. Got {len(problems)} and {len(samples)}.")
    each_mode = [modes] * len(samples) if isinstance(modes, str) else modes
    if len(each_mode) != len(samples):
        raise ValueError(f"A batch needs as many modes as samples, or one. Got {len(each_mode)} and {len(samples)}.")
    problem = [problem_line(each, device_name, mode) for each, mode in zip(problems, each_mode, strict=True)]
    named = [each.named for each in samples if each.named is not None]
    named = named if len(named) == len(samples) else [np.zeros(0, dtype=np.float32)] * len(samples)
    return EncoderInput(
        torch.tensor([(each.rows, each.columns, each.nonzeros) for each in samples], dtype=torch.int64),
        torch.from_numpy(np.stack([each.entries for each in samples])),
        torch.tensor(problem, dtype=torch.int64),
        torch.from_numpy(np.stack(named)),
    )


def problem_line(problem: Problem, device_name: str = "h200", mode: Mode = "solver") -> tuple[int, int, int, int, int]:
    """A line of `EncoderInput.problem`."""
    op = OPS.index("spmv" if problem.op == "spmv" else f"spmm {problem.b_order} {problem.c_order}")
    device = next((k for k, name in enumerate(DEVICES) if name in device_name.lower()), 0)
    return op, DTYPES.index(problem.dtype), problem.columns, device, TIMED.index(mode) if mode in TIMED else 0


class Attention(nn.Module):
    """Pre-norm attention from x to a context (x itself where none is given), then a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.context_norm, self.feed_norm = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        read = self.context_norm(x if context is None else context)
        key, value = self._split(self.key_value(read)).chunk(2, dim=-1)
        query = self._split(self.query(self.norm(x)))
        allowed = None if mask is None else mask[:, None, None, :]  # (batch, 1, 1, context)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        fed: Tensor = x + self.feed(self.feed_norm(x))
        return fed

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)  # (batch, heads, tokens, width of a head)


class Explicit(nn.Module):
    """The seven vectors that are said outright: three logarithms of sizes, op, dtype, N, device."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.number = nn.Sequential(nn.Linear(2 * len(SIZE_OCTAVES) + 1, inner), nn.GELU(), nn.Linear(inner, inner))
        self.kind = nn.Parameter(torch.randn(EXPLICIT, inner) * 0.5)
        self.op, self.dtype, self.device = (nn.Embedding(len(k), inner) for k in (OPS, DTYPES, DEVICES))
        self.mode = nn.Parameter(torch.randn(len(TIMED), inner))

    def forward(self, sizes: Tensor, problem: Tensor) -> Tensor:
        op, dtype, n, device, mode = problem.unbind(1)
        logs = torch.log2(1.0 + torch.cat([sizes, n[:, None]], dim=1).float()).unsqueeze(-1)  # (batch, 4, 1)
        numbers = self.number(torch.cat([waves(logs, SIZE_OCTAVES), logs / 16.0 - 1.0], dim=-1))
        parts = [numbers[:, :3], self.op(op)[:, None], self.dtype(dtype)[:, None], numbers[:, 3:]]
        where = self.device(device) + self.mode[mode]
        return torch.cat([*parts, where[:, None]], dim=1) + self.kind

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Weights from before modes were told: all modes are one to them."""
        state_dict.setdefault(f"{prefix}mode", torch.zeros_like(self.mode))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class FromSample(nn.Module):
    """Vectors of the sampled nonzeros and of the squares, which of them are there, and those of all together."""

    def __init__(self, inner: int, embedding: Embedding, overall: bool) -> None:
        super().__init__()
        self.overall = Overall(inner) if overall else None
        self.indices = SinusoidalIndices() if embedding == "sinusoidal" else LearntIndices()
        self.first = nn.Linear(self.indices.width, inner)
        self.part = nn.Embedding(len(PARTS), inner)
        self.run, self.along = nn.Embedding(RUN + 1, inner), nn.Embedding(ALONG + 1, inner)
        self.second = nn.Sequential(nn.GELU(), nn.Linear(inner, inner))
        self.square = nn.Sequential(nn.GELU(), nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, inner))

    def forward(self, batch: EncoderInput) -> tuple[Tensor, Tensor, Tensor | None]:
        part = batch.entries[..., FIELDS.index("part")]
        there = part >= 0
        first = self.first(self.indices(batch.entries, batch.sizes))
        run, along = (batch.entries[..., FIELDS.index(name)] for name in ("run", "along"))
        vectors = self.second(first + self.part(part.clamp(min=0)) + self.run(run) + self.along(along))
        # Which square an entry lies in, as a matrix: sums over ragged squares become one product of fixed shape.
        number = batch.entries[:, SINGLES:, FIELDS.index("square")].long()
        member = one_hot(number, SQUARES) * there[:, SINGLES:, None]  # (batch, entries, squares)
        # Sums, not means: how much a square holds is what block fill is about.
        held = member.to(vectors.dtype).transpose(1, 2) @ vectors[:, SINGLES:] / 8.0
        squares = self.square(held)
        seen, known = torch.cat([vectors[:, :SINGLES], squares], 1), torch.cat([there[:, :SINGLES], member.any(1)], 1)
        return seen, known, None if self.overall is None else self.overall(seen, known)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Weights from before diagonals were looked along: what is found there says nothing to them."""
        state_dict.setdefault(f"{prefix}along.weight", torch.zeros_like(self.along.weight))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Overall(nn.Module):
    """The mean of every view, and the largest of each number over all nonzeros and over all squares."""

    views: Tensor

    def __init__(self, inner: int) -> None:
        super().__init__()
        views = torch.zeros(len(PARTS), SINGLES + SQUARES, dtype=torch.bool)
        at = 0
        for view, places in enumerate((RANKS, 2 * ROWS, LONGEST * LONGEST_ENTRIES, HEADS * HEAD_ROWS * HEAD_ENTRIES)):
            views[view, at : at + places] = True
            at += places
        for side in range(len(SQUARE_SIDES)):  # squares of the sizes take turns
            views[PARTS.index("squares8") + side, SINGLES + side :: len(SQUARE_SIDES)] = True
        self.register_buffer("views", views, persistent=False)
        self.kind = nn.Parameter(torch.randn(OVERALL, inner) * 0.5)
        self.network = nn.Sequential(nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, inner))

    def forward(self, vectors: Tensor, there: Tensor) -> Tensor:
        """(batch, OVERALL, inner) of vectors (batch, places, inner)."""
        seen = (self.views & there[:, None]).to(vectors.dtype)  # (batch, views, places)
        means = seen @ vectors / seen.sum(-1, keepdim=True).clamp(min=1.0)
        some = vectors.masked_fill(~there[..., None], -torch.inf)
        largest = torch.stack([some[:, :SINGLES].amax(1), some[:, SINGLES:].amax(1)], dim=1)
        largest = torch.where(torch.isinf(largest), 0.0, largest)  # where there is none at all
        told: Tensor = self.network(torch.cat([means, largest], dim=1)) + self.kind
        return told


class FromFeatures(nn.Module):
    """The control that reads named features: eight vectors of their standardised logarithms."""

    tokens = 8
    mean: Tensor
    deviation: Tensor

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(FEATURE_NAMES)))
        self.register_buffer("deviation", torch.ones(len(FEATURE_NAMES)))
        sizes = (len(FEATURE_NAMES), inner, inner, self.tokens * inner)
        self.network = nn.Sequential(
            nn.Linear(*sizes[:2]), nn.GELU(), nn.Linear(*sizes[1:3]), nn.GELU(), nn.Linear(*sizes[2:])
        )

    def forward(self, batch: EncoderInput) -> tuple[Tensor, Tensor, None]:
        if batch.named.shape[1] != len(FEATURE_NAMES):
            raise ValueError(
                "An encoder with source='features' needs samples that carry them: "
                "sample_pattern(pattern, with_features=True)."
            )
        scaled = (torch.log1p(batch.named) - self.mean) / self.deviation
        vectors = self.network(scaled).reshape(len(scaled), self.tokens, -1)
        return vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device), None


class MatrixEncoder(nn.Module):
    """EncoderInput → (batch, prefix_length, width)."""

    def __init__(self, width: int, size: EncoderSize | None = None) -> None:
        super().__init__()
        self.width, self.size = width, size or EncoderSize()
        overall = self.size.overall and self.size.source == "matrix"
        self.prefix_length = EXPLICIT + self.size.queries + (OVERALL if overall else 0)
        inner = self.size.inner
        self.explicit = Explicit(inner)
        self.reader: FromSample | FromFeatures | None = None
        if self.size.source == "matrix":
            self.reader = FromSample(inner, self.size.embedding, overall)
        elif self.size.source == "features":
            self.reader = FromFeatures(inner)
        self.queries = nn.Parameter(torch.randn(self.size.queries, inner) * 0.5)
        self.pool = Attention(inner, self.size.heads)
        self.mix = nn.ModuleList(Attention(inner, self.size.heads) for _ in range(self.size.layers))
        self.norm = nn.LayerNorm(inner)
        self.project = nn.Linear(inner, width)

    def forward(self, batch: EncoderInput) -> Tensor:
        explicit = self.explicit(batch.sizes, batch.problem)
        context, mask = explicit, torch.ones(explicit.shape[:2], dtype=torch.bool, device=explicit.device)
        overall = None
        if self.reader is not None:
            vectors, there, overall = self.reader(batch)
            context, mask = torch.cat([context, vectors.to(context.dtype)], 1), torch.cat([mask, there], 1)
        pooled = self.pool(self.queries.expand(len(explicit), -1, -1), context, mask)
        pooled = pooled if overall is None else torch.cat([pooled, overall.to(pooled.dtype)], 1)
        for layer in self.mix:
            pooled = layer(pooled)
        prefix: Tensor = self.project(self.norm(torch.cat([explicit, pooled], dim=1)))
        return prefix
