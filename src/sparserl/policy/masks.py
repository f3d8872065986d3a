"""Masks: which tokens may be chosen next, for headers that must name something admissible.

A mask is an automaton over tokens. It lives on the host, so a masked step waits for the tokens of the one before; once
no sequence of a batch is masked any more, steps run free again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sparserl.policy.decoding import Decoder


class TokenMask(Protocol):
    """Which tokens may come next. A state is hashable, or None: from here on anything goes."""

    def start(self) -> Hashable | None:
        """The state after '<program>'."""

    def allowed(self, state: Hashable) -> Tensor:
        """(vocabulary,) bool, on any device; at least one is True."""

    def advance(self, state: Hashable, token: int) -> Hashable | None:
        """The state after `token`, which was allowed (or forced)."""


Mask = TokenMask | Sequence[TokenMask | None] | None
"""one for all matrices, or one each"""


class Gate:
    """The masks of a batch, kept on the host: each masked step waits for the tokens of the one before."""

    def __init__(self, decoder: Decoder, masks: list[TokenMask | None], prompts: list[list[int]]) -> None:
        self.decoder = decoder
        self.masks = masks
        self.states: list[Hashable | None] = []
        self.kept: dict[tuple[int, Hashable], Tensor] = {}
        for mask, prompt in zip(masks, prompts, strict=True):
            state = None if mask is None else mask.start()
            for token in prompt:
                state = self._next(mask, state, token)
            self.states.append(state)

    @staticmethod
    def _next(mask: TokenMask | None, state: Hashable | None, token: int) -> Hashable | None:
        return None if mask is None or state is None else mask.advance(state, token)

    def open(self, step: int) -> bool:
        """Bring the masks to the step about to be taken; False when none forbids anything any more."""
        if all(state is None for state in self.states):
            return False
        decoder = self.decoder
        lines = decoder.line[: decoder.live].tolist()
        done = decoder.done[: decoder.live].tolist()
        if step:
            tokens = decoder.tokens[: decoder.live].tolist()
            for line, token in zip(lines, tokens, strict=True):
                if line < len(self.states):
                    self.states[line] = self._next(self.masks[line], self.states[line], token)
        everything = torch.ones(decoder.allowed.shape[1], dtype=torch.bool)
        free = decoder.forced[:, step].tolist()
        allowed = []
        for line, ended in zip(lines, done, strict=True):
            if ended and line < len(self.states):
                self.states[line] = None
            state = None if ended else self.states[line]
            if state is None or free[line] >= 0:
                allowed.append(everything)
            else:
                allowed.append(self._allowed(line, state))
        decoder.allowed[: decoder.live] = torch.stack(allowed)
        return True

    def _allowed(self, line: int, state: Hashable) -> Tensor:
        mask = self.masks[line]
        assert mask is not None
        key = (id(mask), state)
        if key not in self.kept:
            allowed = mask.allowed(state).cpu()
            if not bool(allowed.any()):
                raise ValueError(f"A TokenMask allows no token at all in state {state!r}: give it a way on, or None.")
            self.kept[key] = allowed
        return self.kept[key]


def one_each(mask: Mask, matrices: int) -> list[TokenMask | None]:
    if not isinstance(mask, Sequence):
        return [mask] * matrices
    if len(mask) != matrices:
        raise ValueError(f"'mask' must be one TokenMask, or one a matrix. Got {len(mask)} for {matrices} matrices.")
    return list(mask)
