"""Weights between two policies of which one was made of the other: what fine-tuning found and, where it wore, what was
there before (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").

Not covered: policies that have no common beginning. Between those lies nothing that can write.
"""

from __future__ import annotations

import torch

from sparserl.errors import SparseRLError
from sparserl.policy.model import Policy


@torch.no_grad()
def blended(policy: Policy, before: Policy, share: float) -> Policy:
    """`policy` itself, moved so far back towards `before`: 0 not at all, 1 the whole way."""
    if not 0 <= share <= 1:
        raise SparseRLError(f"The share of a blend must be in 0..1. Got {share}.")
    if policy.size != before.size:
        raise SparseRLError("Only policies of one size can be blended, one that was made of the other.")
    theirs = dict(before.named_parameters())
    for name, weights in policy.named_parameters():  # the table of tokens stands in two places and is told once
        weights.lerp_(theirs[name].to(weights), share)
    return policy
