"""Thinned samples: another part in every step, squares whole, the longest rows always."""

from __future__ import annotations

import torch

from sparserl.families import make
from sparserl.policy.encoder import EncoderInput, EncoderSize, MatrixEncoder, collate
from sparserl.policy.sample import FIELDS, PARTS, SINGLES, sample_pattern
from sparserl.records import Problem
from sparserl.train.thinning import thinned

PART, SQUARE = FIELDS.index("part"), FIELDS.index("square")


def batch() -> EncoderInput:
    patterns = [make("fem", 1, nx=20, ny=20, b=3), make("powerlaw", 2, rows=900, columns=900, per_row=6.0)] * 4
    return collate([sample_pattern(pattern) for pattern in patterns], [Problem()] * len(patterns))


def test_entries_go_at_random_and_never_more_than_the_share() -> None:
    whole = batch()
    left = thinned(whole, 0.5, (0, 7))
    before, after = (each.entries[..., PART] >= 0 for each in (whole, left))
    assert not (after & ~before).any() and torch.equal(whole.entries[after], left.entries[after])
    gone = 1 - after.sum(1) / before.sum(1)
    assert (gone < 0.6).all() and gone.max() > 0.2 and gone.std() > 0.03, "of each matrix another share"


def test_the_longest_rows_stay_and_a_square_goes_as_a_whole() -> None:
    whole = batch()
    left = thinned(whole, 0.8, (0, 1))
    longest = whole.entries[..., PART] == PARTS.index("longest")
    assert longest.any() and (left.entries[longest][..., PART] >= 0).all()
    some = 0
    for one, other in zip(whole.entries[:, SINGLES:], left.entries[:, SINGLES:], strict=True):
        there = one[:, PART] >= 0
        for square in one[there][:, SQUARE].unique():
            kept = other[there & (one[:, SQUARE] == square)][:, PART] >= 0
            assert kept.all() or not kept.any()
            some += int(not kept.any())
    assert some


def test_it_is_the_same_for_the_same_step_and_another_for_the_next() -> None:
    whole = batch()
    first, again, other = (thinned(whole, 0.3, seed).entries for seed in ((3, 5), (3, 5), (3, 6)))
    assert torch.equal(first, again) and not torch.equal(first, other)
    encoder = MatrixEncoder(64, EncoderSize(inner=64, queries=8, overall=True))
    assert torch.isfinite(encoder(whole._replace(entries=first))).all()
