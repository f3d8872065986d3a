"""The policy: a matrix encoder whose vectors stand as a prefix before the tokens of a language model.

`make_policy("nano")` builds one with fresh weights; `checkpoint.load_policy` reads one from a folder. A new size is one
line in `SIZES`. Not here: training, decoding, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparserl.errors import SparseRLError
from sparserl.policy.encoder import EncoderInput, EncoderSize, MatrixEncoder
from sparserl.policy.language import Language, Shape


@dataclass(frozen=True)
class Size:
    """The one dial of a policy: the shape of its language model and the size of its encoder."""

    language: Shape
    encoder: EncoderSize = field(default_factory=EncoderSize)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Size:
        return cls(Shape(**stored["language"]), EncoderSize(**stored["encoder"]))


SIZES: Mapping[str, Size] = {
    "tiny": Size(Shape(width=64, layers=2, heads=4, kv_heads=2, inner=128), EncoderSize(64, 8, overall=True)),
    "nano": Size(Shape(width=384, layers=8, heads=6, kv_heads=2, inner=1152), EncoderSize(overall=True)),
}
"""nano: 16.9 M parameters and the encoder's; tiny: for tests and for walking all stages on a CPU"""


class Policy(nn.Module):
    """`forward(ids, matrix)`: logits for every token position, given what stands before it and the matrix."""

    def __init__(self, size: Size, empty: bool = False) -> None:
        """empty: the language model's parameters are left as memory was found, for stored ones to replace."""
        super().__init__()
        self.size = size
        self.encoder = MatrixEncoder(size.language.width, size.encoder)
        self.language = Language(size.language, empty)

    @property
    def prefix_length(self) -> int:
        return self.encoder.prefix_length

    def prefix(self, matrix: EncoderInput) -> Tensor:
        """(batch, prefix_length, width): what the language model is told of each matrix."""
        out: Tensor = self.encoder(matrix)
        return out

    def forward(self, ids: Tensor, matrix: EncoderInput | None = None, prefix: Tensor | None = None) -> Tensor:
        """ids: (batch, tokens), padded on the right. Returns (batch, tokens, vocabulary) float32.

        A batch with several programs a matrix may give `prefix` (one line a row of ids) instead of `matrix`, so that
        each matrix is encoded once. With neither, this is a plain language model.
        """
        if matrix is not None:
            if prefix is not None:
                raise ValueError("Policy.forward takes 'matrix' or 'prefix', not both.")
            prefix = self.prefix(matrix)
        logits: Tensor = self.language(ids, prefix)
        return logits


class SizeError(SparseRLError, ValueError):
    """There is no size of this name."""


def size_named(name: str) -> Size:
    if name not in SIZES:
        raise SizeError(f"The size of a policy must be one of {sorted(SIZES)}. Got {name!r}.")
    return SIZES[name]


def make_policy(size: Size | str, seed: int = 0) -> Policy:
    """A policy with fresh weights, the same for the same seed."""
    size = size_named(size) if isinstance(size, str) else size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy(size)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
