"""A sample with less in it: what a matrix looks like when other entries are taken, so that none is learnt by heart.

A collection shows a matrix hundreds of times, always by the same thousand entries. Thinned, a step sees another part of
them: single entries go at random and squares as a whole, because what is left of a square would say that it is
emptier than it is. The longest rows stay: that a row is the longest is what many layouts hang on.
"""

from __future__ import annotations

import torch

from sparserl.policy.encoder import EncoderInput
from sparserl.policy.sample import FIELDS, PARTS, SINGLES, SQUARES

PART, SQUARE, LONGEST = FIELDS.index("part"), FIELDS.index("square"), PARTS.index("longest")


def thinned(matrix: EncoderInput, share: float, seed: tuple[int, int]) -> EncoderInput:
    """Up to `share` of a sample's entries left out, of each matrix as much as chance will; the same for the same seed.

    seed: of the run, and the step.
    """
    entries = matrix.entries
    drawn = torch.Generator(entries.device).manual_seed(seed[0] * 1_000_003 + seed[1])
    many = len(entries)
    limit = share * torch.rand(many, 1, generator=drawn, device=entries.device)
    singles = torch.rand(many, SINGLES, generator=drawn, device=entries.device)
    squares = torch.rand(many, SQUARES, generator=drawn, device=entries.device)
    number = entries[:, SINGLES:, SQUARE].long()
    chance = torch.cat([singles, squares.gather(1, number)], dim=1)
    gone = (chance < limit) & (entries[..., PART] != LONGEST)
    left = entries.clone()
    left[..., PART] = torch.where(gone, torch.full_like(left[..., PART], -1), left[..., PART])
    return matrix._replace(entries=left)
