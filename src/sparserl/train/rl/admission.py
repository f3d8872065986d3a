"""What a matrix admits is known without a judge: a few steps a round teach the policy to stay within it.

Layout lines are written for prompts of every kind, under a mask that leaves the admitted ones alone. Learnt from are
those for which the policy would most probably write something else without it, and as many of the others. What it would
say at each of their tokens, were all others impossible, is what it is to say without the mask, so that it needs none.
Which of the admitted ones come how often stays as it was. Rollouts teach the same, but only for the matrices of their
round, and only where something forbidden was drawn. Not covered: layout lines that neither a recipe nor the archive has
(`found_lines`); the loss speaks against them, as it can't tell whether they are admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import cycle, islice
from typing import TypeVar

import numpy as np
import torch

from sparserl.policy.encoder import collate
from sparserl.policy.sampler import Sampler
from sparserl.policy.tokenizer import Tokenizer
from sparserl.train.assess_policy import AdmittedLayouts
from sparserl.train.batches import in_turn
from sparserl.train.loop import autocast
from sparserl.train.rl.curriculum import kind_of
from sparserl.train.rl.learner import Learner, Line
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.objective import Batch, admission, log_probs_of
from sparserl.train.rl.rounds import seed_of

Item = TypeVar("Item")

LONGEST = 48
"""tokens of a layout line"""
SPARE = 2
"""lines that are written for one that is learnt from"""
FRESH = 48
"""steps at most that are learnt from lines of the same weights"""
TEMPERATURE = 1.0
"""that lines are written and learnt at, whatever programs are drawn at: at a lower one next to nothing forbidden is
left to be seen on the matrices that are learnt from, long before that is so on others"""
TOGETHER = 256
"""lines that go through the policy at one time, all logits kept"""


class Admission:
    """The prompts of a run, played or not, and which layout lines each of them admits."""

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        admitted: Callable[[Prompt], Sequence[str]],
    ) -> None:
        self.sampler, self.tokenizer, self.prompts, self.admitted = sampler, tokenizer, prompts, admitted

    def teach(self, learner: Learner, number: int) -> dict[str, float]:
        """The steps of round `number`; returns figures for the curves."""
        config = learner.config
        if not config.admit_steps or not self._able:  # without steps nobody may have asked what is admitted
            return {}
        rng = np.random.default_rng(seed_of(config.loop.seed, number, 11))
        lacks, losses = [], []
        for begun in range(0, config.admit_steps, FRESH):
            wanted = min(FRESH, config.admit_steps - begun) * config.admit_batch
            drawn = of_every_kind(self._able, SPARE * wanted, rng)
            seed = int(rng.integers(1 << 32))
            lines = learner.crew.told(self.drawn(learner, drawn, seed) if learner.crew.first else [])
            lacks += [line.lacks for line in lines]
            kept = _worst_and_others(lines, wanted, rng)
            learner.policy.train()
            losses += [
                learner.step(part, lambda batch: admission(learner.policy, _plain(batch)), number)["admission_loss"]
                for part in _parts(kept, config.admit_batch)
            ]
        return {"admit/lacks": float(np.mean(lacks)), "admit/loss": float(np.mean(losses))}

    @cached_property
    def _able(self) -> list[Prompt]:
        """The prompts that admit something."""
        return [prompt for prompt in self.prompts if self.admitted(prompt)]

    def drawn(self, learner: Learner, prompts: Sequence[Prompt], seed: int) -> list[Line]:
        """A layout line for each prompt, with all that may stand at each of its places, and how often."""
        play = learner.config.play
        masks = [AdmittedLayouts(self.admitted(each), self.tokenizer) for each in prompts]
        batch = collate(
            [learner.look(each) for each in prompts], [each.problem for each in prompts], play.machine, play.mode
        )
        settings = replace(play.settings, temperature=TEMPERATURE, seed=seed, max_tokens=LONGEST)
        found = self.sampler.sample(batch, 1, settings, mask=masks)
        lines = [_line(*each) for each in zip(prompts, [one.ids for (one,) in found], masks, strict=True)]
        return [line for part in _parts(lines, TOGETHER) for line in _with_targets(learner, part)]


def of_every_kind(prompts: Sequence[Prompt], count: int, rng: np.random.Generator) -> list[Prompt]:
    """`count` of them, at random, of every kind as many, as far as there are so many; then the same again."""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(kind_of(prompt), []).append(prompt)
    queues = [[kinds[kind][at] for at in rng.permutation(len(kinds[kind]))] for kind in sorted(kinds)]
    return list(islice(cycle(in_turn(queues)), count))


def _parts(whole: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (whole[at : at + size] for at in range(0, len(whole), size))


def _worst_and_others(lines: Sequence[Line], count: int, rng: np.random.Generator) -> list[Line]:
    """Half of them lack most; without the others, what is right would be learnt away."""
    order = sorted(range(len(lines)), key=lambda at: -lines[at].lacks)
    others = rng.permutation(order[count // 2 :])
    chosen = [*order[: count // 2], *others[: count - count // 2]]
    return [lines[at] for at in rng.permutation(chosen)]


def _line(prompt: Prompt, written: Sequence[int], mask: AdmittedLayouts) -> Line:
    """'<program>' and what follows, up to the end of the layout line."""
    ids, allowed, state = [written[0]], [], mask.start()
    for token in written[1:]:
        if state is None:
            break
        allowed.append(np.array(mask.tokens(state)))
        ids.append(token)
        state = mask.advance(state, token)
    return Line(prompt, np.array(ids, dtype=np.int64), np.arange(len(ids)) > 0, {}, tuple(allowed))


def _plain(batch: Batch) -> Batch:
    return replace(batch, temperature=TEMPERATURE)


@torch.no_grad()
def _with_targets(learner: Learner, lines: Sequence[Line]) -> list[Line]:
    """In logarithms: what may stand there can be so improbable that as a number it is 0, and is to be learnt most."""
    learner.policy.eval()
    with learner.piece(), autocast(learner.device):
        log_probs = log_probs_of(learner.policy, _plain(learner.batch(lines))).float().cpu().numpy()
    found, at = [], 0
    for line in lines:
        rows = log_probs[at : (at := at + len(line.allowed))]
        inside = [row[tokens] for row, tokens in zip(rows, line.allowed, strict=True)]
        whole = [np.logaddexp.reduce(each) for each in inside]
        shares = tuple(np.exp(each - total) for each, total in zip(inside, whole, strict=True))
        found.append(replace(line, target=shares, lacks=-float(sum(whole))))
    return found
