"""What a policy reads of a matrix while it is fine-tuned: its own encoder, a pretrained one, or that of a control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from sparserl.errors import SparseRLError
from sparserl.policy.encoder import FromFeatures, MatrixEncoder
from sparserl.policy.model import Policy, Size, make_policy
from sparserl.train.samples import Sampled

Reads = Literal["own", "matrix", "blind", "features", "learnt"]
READS: tuple[Reads, ...] = ("own", "matrix", "blind", "features", "learnt")


def with_encoder(policy: Policy, reads: Reads, pretrained: MatrixEncoder | None, seed: int) -> Policy:
    """The policy with the encoder asked for: its own, the pretrained one, or a fresh one of another kind."""
    own = policy.size.encoder
    wanted = {
        "own": own,
        "matrix": replace(own, source="matrix", embedding="sinusoidal"),
        "learnt": replace(own, source="matrix", embedding="learnt"),
        "blind": replace(own, source="blind"),
        "features": replace(own, source="features"),
    }[reads]
    if pretrained is not None:
        if pretrained.width != policy.size.language.width or pretrained.size != wanted:
            raise SparseRLError(
                f"The encoder is of width {pretrained.width} and {pretrained.size}; this policy needs width "
                f"{policy.size.language.width} and {wanted}. Train one with `sparserl train encoder`, or give none."
            )
        policy.encoder, policy.size = pretrained, Size(policy.size.language, wanted)
        return policy
    if wanted == own:
        return policy
    other = make_policy(Size(policy.size.language, wanted), seed)
    other.language.load_state_dict(policy.language.state_dict())
    return other


def standardise(policy: Policy, samples: Mapping[str, Sampled]) -> None:
    """Give an encoder of named features their mean and deviation over these matrices."""
    reader = policy.encoder.reader
    if isinstance(reader, FromFeatures):
        named = [each.sample.named for each in samples.values() if each.sample.named is not None]
        logs = torch.log1p(torch.from_numpy(np.stack(named)))
        reader.mean.copy_(logs.mean(0))
        reader.deviation.copy_(logs.std(0, correction=0) + 1e-3)
