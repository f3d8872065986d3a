"""What an index looks like to a network: sinusoids at log-spaced wavelengths, or (the control) learnt tables.

Both see the same five numbers of every sampled nonzero: row, column, column - row, place in its row and row length;
each as it is, as a logarithm, and relative to the matrix. Wavelengths of the plain numbers are whole, and the remainder
is taken in integers, so that a neighbour is told from the next but one in a matrix of a billion columns too.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

Embedding = Literal["sinusoidal", "learnt"]
EMBEDDINGS: tuple[Embedding, ...] = ("sinusoidal", "learnt")

PLAIN = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, *(4**k for k in range(5, 13)))
"""wavelengths of the numbers themselves; the multiples of 2 and 3 show where blocks begin"""
OCTAVES = (2.0, 4.0, 8.0, 16.0, 64.0)
"""wavelengths of their logarithms to base 2"""
SHARES = (2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)
"""wavelengths of what is relative to the matrix"""


def quantities(entries: Tensor) -> Tensor:
    """Row, column, column - row, place in row, row length: (…, 5) integers of entries (…, 8)."""
    row, column, place, length = entries[..., 0], entries[..., 1], entries[..., 2], entries[..., 3]
    return torch.stack([row, column, column - row, place, length], dim=-1)


def octaves(numbers: Tensor) -> Tensor:
    """The logarithm to base 2 of 1 + |x|, with the sign of x."""
    wide = numbers.float()
    return torch.sign(wide) * torch.log2(1.0 + wide.abs())


def shares(numbers: Tensor, sizes: Tensor) -> Tensor:
    """The same five relative to the matrix, in -1 … 1: (batch, entries, 5) of sizes (batch, 3)."""
    rows, columns, _ = sizes.float().clamp(min=1.0)[:, None, :].unbind(-1)
    row, column, _, place, length = numbers.float().unbind(-1)
    down, across = row / rows, column / columns
    return torch.stack([down, across, across - down, place / length.clamp(min=1.0), length / columns], dim=-1)


def waves(numbers: Tensor, lengths: tuple[float, ...]) -> Tensor:
    """Sines and cosines at these wavelengths: (…, numbers * wavelengths * 2)."""
    angle = numbers.unsqueeze(-1) * torch.tensor([2 * math.pi / each for each in lengths], device=numbers.device)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).flatten(-2)


class SinusoidalIndices(nn.Module):
    """No parameters: 320 sinusoids a nonzero."""

    width = 5 * 2 * (len(PLAIN) + len(OCTAVES) + len(SHARES)) + 2 * len(OCTAVES)
    plain: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("plain", torch.tensor(PLAIN, dtype=torch.int32), persistent=False)

    def forward(self, entries: Tensor, sizes: Tensor) -> Tensor:
        numbers = quantities(entries)  # (batch, entries, 5)
        phase = torch.remainder(numbers.unsqueeze(-1), self.plain)  # whole numbers: exact at any size
        angle = phase.float() * (2 * math.pi / self.plain.float())
        logs = octaves(numbers)
        mean_length = sizes[:, 2].float() / sizes[:, 0].float().clamp(min=1.0)
        against_mean = logs[..., 4:] - torch.log2(1.0 + mean_length)[:, None, None]
        return torch.cat(
            [
                angle.sin().flatten(-2),
                angle.cos().flatten(-2),
                waves(torch.cat([logs, against_mean], dim=-1), OCTAVES),
                waves(shares(numbers, sizes), SHARES),
            ],
            dim=-1,
        )


class LearntIndices(nn.Module):
    """The control: tables over logarithmic buckets, over shares of the matrix, and over the remainder by 24.

    The last is there for fairness: without it a table could not know where in a block an entry lies.
    """

    exact, steps, buckets, parts, remainder = 16, 8, 512, 128, 24
    each = 28
    width = 12 * each

    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.Embedding(5 * self.buckets, self.each)
        self.shares = nn.Embedding(5 * self.parts, self.each)
        self.remainders = nn.Embedding(2 * self.remainder, self.each)

    def forward(self, entries: Tensor, sizes: Tensor) -> Tensor:
        numbers = quantities(entries)
        size = numbers.abs()
        large = self.exact + self.steps * torch.log2(size.float().clamp(min=self.exact) / self.exact)
        bucket = torch.where(size < self.exact, size, large.int())
        bucket = torch.where(numbers < 0, self.buckets - 1 - bucket, bucket)
        part = ((shares(numbers, sizes).clamp(-1.0, 1.0) + 1.0) * (self.parts - 1) / 2).int()
        five = torch.arange(5, device=entries.device)
        rest = torch.remainder(numbers[..., :2], self.remainder) + five[:2] * self.remainder
        tables = (self.logs(bucket + five * self.buckets), self.shares(part + five * self.parts), self.remainders(rest))
        return torch.cat([each.flatten(-2) for each in tables], dim=-1)
