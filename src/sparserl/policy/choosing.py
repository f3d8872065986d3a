"""How the next token is chosen from logits: temperature, top-p, masks, one uniform number a token.

A token is the inverse of the cumulative distribution at that number, so what a sequence becomes depends on its own
numbers alone, not on the batch around it. What the token leaves undecided of the number is uniform again, and decides
the next one (`Sampler` says what that is for). No host sync and fixed shapes on a GPU, so that a step can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

SHORT_LIST = 128
"""on a CPU top-p first looks among this many: a sort of the whole vocabulary would cost as much as the model"""


@dataclass(frozen=True)
class Choice:
    """The constants of choosing; part of a captured graph's key."""

    temperature: float
    top_p: float
    greedy: bool
    eos: int
    pad: int
    stop: bool = True
    """whether <eos> ends a sequence"""


class Chosen(NamedTuple):
    """The token of each row, and what there is to know of it."""

    token: Tensor
    log_prob: Tensor
    """under the model: knows neither temperature, top-p nor mask"""
    sampled_log_prob: Tensor
    """under the distribution it was drawn from: knows all three; 0 where greedy"""
    rest: Tensor
    """float64: where the uniform number stood in the token's share, from 0 to 1"""


def choose(logits: Tensor, uniform: Tensor, choice: Choice, allowed: Tensor | None) -> Chosen:
    """logits: (rows, vocabulary) float32; uniform: (rows,) in [0, 1); allowed: (rows, vocabulary) bool or None."""
    picked = logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)
    log_total = torch.logsumexp(logits, dim=-1)
    if choice.greedy:
        token = picked.argmax(dim=-1)
        log_prob = logits.gather(1, token[:, None])[:, 0] - log_total
        return Chosen(token, log_prob, torch.zeros_like(log_prob), uniform.double())
    probs = torch.softmax(picked / choice.temperature, dim=-1)
    if choice.top_p < 1.0:
        probs = probs.masked_fill(probs < nucleus_floor(probs, choice.top_p), 0.0)
    # float64: a parallel float32 sum is not monotone to the last digit, and could pick a token of probability zero.
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    at = uniform[:, None].double() * total
    token = torch.searchsorted(cumulative, at, right=True).clamp_(max=logits.shape[1] - 1)
    log_prob = logits.gather(1, token)[:, 0] - log_total
    share = probs.gather(1, token).double()
    rest = 1.0 - (cumulative.gather(1, token) - at) / share
    return Chosen(token[:, 0], log_prob, (share / total).log()[:, 0].float(), rest[:, 0].clamp(0.0, 1.0))


def nucleus_floor(probs: Tensor, top_p: float) -> Tensor:
    """(rows, 1): the smallest probability in the smallest set of the most probable tokens that holds `top_p`.

    Tokens exactly as probable as the last one needed are all in.
    """
    if probs.device.type == "cpu" and probs.shape[1] > SHORT_LIST:
        ordered = probs.topk(SHORT_LIST, dim=-1).values
        if bool((ordered.sum(dim=-1) >= top_p).all()):
            return _floor(ordered, top_p)
    return _floor(probs.sort(dim=-1, descending=True).values, top_p)


def _floor(ordered: Tensor, top_p: float) -> Tensor:
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    needed = (before < top_p).sum(dim=-1, keepdim=True)  # at least one
    return ordered.gather(1, needed.clamp_(min=1) - 1)
