"""The value head: what reward is to be expected, read off the language model's hidden state before each token.

It is thrown away after training; a policy's checkpoint does not hold it. Where its gradient goes is one switch: by
default not into the language model, whose hidden states a young value head would only disturb.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class ValueHead(nn.Module):
    """`forward(hidden)`: (…, width) → (…), float32. A fresh one says `start` everywhere."""

    def __init__(self, width: int, inner: int = 256, start: float = 0.0, shared: bool = False) -> None:
        """shared: let the value loss move the language model too."""
        super().__init__()
        self.shared = shared
        self.first = nn.Linear(width, inner)
        self.last = nn.Linear(inner, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(self.last.bias, start)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden if self.shared else hidden.detach()
        with torch.autocast(hidden.device.type, enabled=False):  # rewards differ by hundredths: bfloat16 is too coarse
            out: Tensor = self.last(F.gelu(self.first(hidden.float()))).squeeze(-1)
        return out


def make_value_head(width: int, seed: int = 0, start: float = 0.0, shared: bool = False) -> ValueHead:
    """A fresh one, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ValueHead(width, start=start, shared=shared)
