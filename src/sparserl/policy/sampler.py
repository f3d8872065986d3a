"""The sampler: programs written token by token for a batch of matrices, several each.

A matrix is encoded once and its prefix read once; the cache of it is copied to its samples. Then all sequences step
together (`decoding.py`; a CUDA graph a step on a GPU) until each has written <eos> or come to its limit.

The samples of a matrix are spread: each is drawn from the policy's own distribution, but from the k-th of `count` equal
parts of it (arithmetic sampling, Vilnis et al. 2023), so that sixteen of them hold what has a sixteenth of the
probability, and repeat less. Samples of different matrices of a batch are independent. What a sequence becomes depends
on (seed, which matrix, which sample of how many), not on the batch around it, up to the rounding of the products.

Not covered: sequences that join a running batch, speculative decoding, several devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from sparserl.policy.choosing import Choice
from sparserl.policy.decoding import Decoder, StepWeights
from sparserl.policy.encoder import EncoderInput
from sparserl.policy.language import KeysValues
from sparserl.policy.masks import Gate, Mask, TokenMask, one_each
from sparserl.policy.model import Policy

CHECK_EVERY = 16
"""steps between looks at which sequences have ended: each look waits for the device"""

Forced = Sequence[int] | Sequence[Sequence[int]]
Piece = Callable[[], AbstractContextManager[None]]
"""what a short piece of work on a device is done within"""


@dataclass(frozen=True)
class SampleSettings:
    """How programs are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    """draw from the most probable tokens that together hold this much; 1: from all"""
    max_tokens: int = 1536
    """most tokens written after the given ones, <eos> included"""
    seed: int = 0
    greedy: bool = False
    """the most probable token always; temperature and top_p then say nothing"""
    stop_at_eos: bool = True
    """False: write `max_tokens` whatever comes (for measuring)"""
    batch: int = 512
    """most sequences that step together, and matrices that are encoded together; more are done in turns"""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"The 'temperature' of SampleSettings must be above 0 (use greedy=True for 0). Got {self.temperature}."
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"The 'top_p' of SampleSettings must be in (0, 1]. Got {self.top_p}.")
        if self.max_tokens < 1 or self.batch < 1:
            raise ValueError(
                "The 'max_tokens' and 'batch' of SampleSettings must be at least 1. "
                f"Got {self.max_tokens} and {self.batch}."
            )


@dataclass(frozen=True)
class Written:
    """One sequence: '<program>', the forced tokens, then what the policy wrote, with <eos> if it came to it."""

    ids: list[int]
    log_probs: list[float]
    """beside ids: log-probability under the model itself (no temperature, top-p or mask); 0 for given tokens"""
    sampled_log_probs: list[float]
    """beside ids: log-probability under the distribution drawn from (temperature, top-p, mask); 0 for given tokens"""
    given: int
    """how many of the ids were given: '<program>' and the forced ones"""
    text: str
    finished: bool
    """whether <eos> was written"""


class ProgramTokenizer(Protocol):
    """What the sampler needs of the tokenizer."""

    @property
    def special(self) -> Mapping[str, int]: ...

    def decode_program(self, ids: Sequence[int]) -> str: ...


class Sampler:
    """Draws programs from a policy. Weights are read again at each `sample`, buffers and graphs are kept between."""

    def __init__(
        self,
        policy: Policy,
        tokenizer: ProgramTokenizer,
        device: torch.device | str | None = None,
        precision: Literal["auto", "float32", "bfloat16"] = "auto",
        piece: Piece = nullcontext,
    ) -> None:
        """piece: what every short piece of work on the device is done within."""
        self.policy = policy if device is None else policy.to(device)
        self.tokenizer = tokenizer
        self.device = next(policy.parameters()).device
        if precision not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"The 'precision' of a Sampler must be auto, float32 or bfloat16. Got {precision!r}.")
        short = precision == "bfloat16" or (precision == "auto" and self.device.type == "cuda")
        self.dtype = torch.bfloat16 if short else torch.float32
        self.weights = StepWeights(policy.language, self.dtype)
        self.decoder: Decoder | None = None
        self._piece = piece

    @torch.inference_mode()
    def sample(
        self, matrix: EncoderInput, count: int, settings: SampleSettings, forced: Forced = (), mask: Mask = None
    ) -> list[list[Written]]:
        """`count` programs for each matrix of the batch `matrix` (an EncoderInput).

        forced: tokens that follow '<program>' (a header, say), for all matrices or one list a matrix.
        mask: which tokens may be chosen, for all or one a matrix; None: all (the model's own distribution).
        """
        was_training = self.policy.training
        self.policy.eval()
        with self._piece():
            self.weights.refresh()
        try:
            with torch.autocast(self.device.type, enabled=False):  # a caller's own must not reach into the steps
                prefix = torch.cat([self._encoded(part) for part in matrix.parts(settings.batch)])
                prompts = self._prompts(forced, prefix.shape[0])
                masks = one_each(mask, prefix.shape[0])
                rows = [(m, s / count) for m in range(prefix.shape[0]) for s in range(count)]
                written: list[list[Written]] = [[] for _ in range(prefix.shape[0])]
                for first in range(0, len(rows), settings.batch):
                    part = rows[first : first + settings.batch]
                    programs = self._batch(part, prefix, prompts, masks, settings)
                    for (m, _), one in zip(part, programs, strict=True):
                        written[m].append(one)
        finally:
            self.policy.train(was_training)
        return written

    def _encoded(self, matrices: EncoderInput) -> Tensor:
        with self._piece(), self._autocast():
            return self.policy.prefix(matrices.to(self.device))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype is torch.bfloat16)

    def _prompts(self, forced: Forced, matrices: int) -> list[list[int]]:
        """The given tokens of each matrix, '<program>' first."""
        start = self.tokenizer.special["<program>"]
        each = [list(one) for one in forced if isinstance(one, Sequence)]
        if not each:
            return [[start, *(int(token) for token in forced if not isinstance(token, Sequence))]] * matrices
        if len(each) != matrices:
            raise ValueError(
                f"'forced' must be tokens or a list of them a matrix. Got {len(each)} lists for {matrices} matrices."
            )
        return [[start, *one] for one in each]

    def _batch(
        self,
        rows: list[tuple[int, float]],
        prefix: Tensor,
        prompts: list[list[int]],
        masks: list[TokenMask | None],
        settings: SampleSettings,
    ) -> list[Written]:
        """rows: which matrix, and where on the circle of its distribution the sample begins."""
        special = self.tokenizer.special
        choice = Choice(
            1.0 if settings.greedy else settings.temperature,
            1.0 if settings.greedy else settings.top_p,
            settings.greedy,
            special["<eos>"],
            special["<pad>"],
            settings.stop_at_eos,
        )
        matrices = sorted({m for m, _ in rows})
        shared = min(len(prompts[m]) for m in matrices)  # read at once; what is longer is forced step by step
        longest = max(len(prompts[m]) for m in matrices)
        steps = longest - shared + settings.max_tokens
        place = {m: index for index, m in enumerate(matrices)}
        forced = torch.full((len(rows), steps), -1, dtype=torch.long)
        for line, (m, _) in enumerate(rows):
            rest = prompts[m][shared:]
            forced[line, : len(rest)] = torch.tensor(rest, dtype=torch.long)
        # The samples of a matrix share their noise: it turns the circle that they stand on, evenly at first.
        noise = np.stack([np.random.default_rng([settings.seed, m]).random(steps, np.float32) for m in matrices])
        matrix_of = torch.tensor([place[m] for m, _ in rows])
        with self._piece():
            decoder = self._decoder(len(rows), prefix.shape[1] + shared + steps, steps)
            decoder.begin(
                self._read(prefix[matrices], [prompts[m][: shared - 1] for m in matrices]),
                matrix_of.to(self.device),
                torch.tensor([prompts[m][shared - 1] for m, _ in rows], device=self.device),
                code=torch.tensor([code for _, code in rows], dtype=torch.float64, device=self.device),
                noise=torch.from_numpy(noise)[matrix_of].to(self.device),
                forced=forced.to(self.device),
            )
        taken = self._run(decoder, choice, steps, [masks[m] for m, _ in rows], [prompts[m][1:shared] for m, _ in rows])
        return self._collect(decoder, taken, [prompts[m] for m, _ in rows], shared, settings)

    def _decoder(self, rows: int, capacity: int, steps: int) -> Decoder:
        """The kept decoder where it is large enough; its captured graphs are then kept with it.

        A new one is as large as the kept one in everything: first turns have more rows and later ones more positions,
        so without that each would throw away the other's.
        """
        context = self.policy.size.language.context
        if capacity > context:
            raise ValueError(
                f"Prefix, given tokens and 'max_tokens' make {capacity} positions; the policy's context is {context}: "
                f"lower 'max_tokens' by {capacity - context}."
            )
        kept = self.decoder
        if kept is None or rows > kept.rows or capacity > kept.capacity or steps > kept.steps:
            if kept is not None:
                rows, capacity, steps = max(rows, kept.rows), max(capacity, kept.capacity), max(steps, kept.steps)
            self.decoder = kept = None  # free the old cache before the new one is made
            self.decoder = kept = Decoder(self.weights, rows, capacity, steps)
        return kept

    def _read(self, prefix: Tensor, prompts: list[list[int]]) -> KeysValues:
        """The cache after the prefix and all but the last given token of each matrix."""
        keep: KeysValues = []
        ids = torch.tensor(prompts, dtype=torch.long, device=self.device)  # (matrices, tokens), maybe no tokens
        language = self.policy.language
        with self._autocast():
            vectors = language.model.embed_tokens(ids)
            language.hidden(torch.cat((prefix.to(vectors.dtype), vectors), dim=1), keep)
        return keep

    def _run(
        self,
        decoder: Decoder,
        choice: Choice,
        steps: int,
        masks: list[TokenMask | None],
        prompts: list[list[int]],
    ) -> int:
        """Step until every sequence has ended; returns the number of steps."""
        gate = Gate(decoder, masks, prompts) if any(mask is not None for mask in masks) else None
        for first in range(0, steps, CHECK_EVERY):
            with self._piece():
                masked, end = False, min(first + CHECK_EVERY, steps)
                for step in range(first, end):
                    masked = gate is not None and gate.open(step)
                    decoder.step(choice, masked)
                if choice.stop and bool(decoder.done[: decoder.live].all()):
                    return end
                if choice.stop and not masked:
                    decoder.compact()
        return steps

    def _collect(
        self, decoder: Decoder, taken: int, prompts: list[list[int]], shared: int, settings: SampleSettings
    ) -> list[Written]:
        count = len(prompts)
        with self._piece():
            ids = decoder.ids[:count, :taken].cpu()
            log_probs = decoder.log_probs[:count, :taken].cpu()
            sampled = decoder.sampled_log_probs[:count, :taken].cpu()
        eos = self.tokenizer.special["<eos>"]
        written = []
        for prompt, row, own, drawn in zip(prompts, ids.tolist(), log_probs.tolist(), sampled.tolist(), strict=True):
            rest = len(prompt) - shared
            end = min(taken, rest + settings.max_tokens)
            finished = settings.stop_at_eos and eos in row[rest:end]
            if finished:
                end = row.index(eos, rest) + 1
            given = [0.0] * shared
            whole = prompt[:shared] + row[:end]
            text = self.tokenizer.decode_program(whole)
            written.append(Written(whole, given + own[:end], given + drawn[:end], len(prompt), text, finished))
        return written


def time_step_ms(sampler: Sampler, matrix: EncoderInput, count: int, settings: SampleSettings) -> float:
    """Milliseconds a token step, encoder, prefix and collecting included; the second of two runs.

    `settings` should not stop at <eos>, so that all `max_tokens` steps are taken by all sequences.
    """
    took = 0.0
    for _ in range(2):  # the first captures graphs and warms caches
        begin = time.perf_counter()
        sampler.sample(matrix, count, settings)
        took = time.perf_counter() - begin
    return took * 1e3 / settings.max_tokens
