"""Stage: rewriting. The policy learns to answer what it is told of a program with a faster one, or with a right one.

    sparserl train turns --collection DIR --weights runs/sft --out runs/turns [--resume]

An example is two programs of one matrix with what was said of the first between them (`rl/turn_pairs`), token by token
as episodes are played (`rl/episodes`) and as `tune --turns` writes them. The loss is on the second program alone. So
that the first one is not forgotten, `alone` of the draws are fine-tuning's own examples: one program, nothing before.

It belongs between fine-tuning and ranking: it learns from examples as fine-tuning does, and the ranking pass, which
settles what is written first, then has the last word.

Not covered: several GPUs; pairs longer than `longest` tokens or the policy's context, which are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch

from sparserl.errors import SparseRLError
from sparserl.policy.model import Policy
from sparserl.store import write_json
from sparserl.train import collected
from sparserl.train.chosen import Chosen, choose
from sparserl.train.collected import Collection
from sparserl.train.lessons import encode_programs
from sparserl.train.loop import (
    Finished,
    LoopConfig,
    Start,
    Step,
    Watch,
    autocast,
    compile_layers,
    device_of,
    open_run,
    run,
    start_from,
)
from sparserl.train.rl.objective import Batch, figures, imitation
from sparserl.train.rl.turn_pairs import Example, PairRules, encode_pairs, find_pairs, imitation_batch
from sparserl.train.samples import Sampled
from sparserl.train.sft import Places, Prompts, all_batches, asked, matrix_samples


@dataclass(frozen=True)
class TurnsConfig:
    """What is learnt from, and how long."""

    target: str = "h200"
    """the machine that the collection was measured on, as the policy is told it"""
    epochs: int = 2
    """an epoch has as many draws as there are pairs and programs"""
    least_steps: int = 100
    """more epochs are done where the data is so little that there would be fewer steps"""
    batch_tokens: int = 32768
    """of a step, padding counted"""
    longest: int = 2816
    """tokens of a pair with the line between"""
    alone: float = 0.5
    """share of the draws that are first programs, chosen and weighted as in fine-tuning"""
    pairs: PairRules = field(default_factory=PairRules)
    """which pairs; its `choice` says which first programs, too"""
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(learning_rate=2e-4, weight_decay=0.05, warmup=50))

    def __post_init__(self) -> None:
        if not 0 <= self.alone < 1:
            raise SparseRLError(f"The 'alone' of TurnsConfig must be at least 0 and below 1. Got {self.alone}.")
        if self.epochs < 1 or self.batch_tokens < self.longest:
            raise SparseRLError("Learning to rewrite needs at least 1 epoch and 'batch_tokens' of at least 'longest'.")


@dataclass(frozen=True)
class Lessons:
    """Examples of both kinds."""

    pairs: Sequence[Example]
    programs: Sequence[Example]

    @property
    def all(self) -> list[Example]:
        return [*self.pairs, *self.programs]


class Rewriting:
    """The task: pairs and first programs, drawn by weight."""

    stage = "turns"

    def __init__(
        self, config: TurnsConfig, policy: Policy, train: Lessons, dev: Lessons, samples: dict[str, Sampled]
    ) -> None:
        self.config, self.device = config, device_of(config.loop.device)
        self.policy = policy.to(self.device)
        self._train, self._dev = train.all, dev
        if not train.pairs:
            raise SparseRLError(
                "The collection has no program with a faster variant, and none that a variant repairs, within "
                f"{config.longest} tokens: collect more variants (`sparserl train collect --variants`)."
            )
        self._prompts = Prompts(asked((*self._train, *dev.all)), samples, config.target, self.device)
        weights = np.array([each.weight for each in self._train])
        self._batches = all_batches(weights, np.array([len(each.ids) for each in self._train]), config)
        self.steps = len(self._batches)
        compile_layers(self.policy, config.loop)

    def batch(self, examples: Sequence[Example]) -> Batch:
        """As the objective takes them."""
        matrix = self._prompts.matrices(asked(examples))
        return imitation_batch(examples, matrix, self.device)

    def loss(self, step: int) -> Step:
        batch = self.batch([self._train[index] for index in self._batches[step]])
        with autocast(self.device):
            return replace(imitation(self.policy, batch), parts={})

    def check(self) -> dict[str, float]:
        """Nats a token on matrices that were never trained on, by weight: of second programs, and of first ones."""
        found = {"dev_loss": self._nats(self._dev.pairs), "dev_first_loss": self._nats(self._dev.programs)}
        return {name: nats for name, nats in found.items() if nats is not None}

    def _nats(self, examples: Sequence[Example]) -> float | None:
        nats = tokens = 0.0
        for at in range(0, len(examples), 16):
            part = examples[at : at + 16]
            batch = self.batch(part)
            with autocast(self.device):
                log_probs = figures(self.policy, batch).log_probs
            weight = torch.tensor([each.weight for each in part], device=self.device)[:, None]
            nats -= float((log_probs * weight).sum())
            tokens += float((batch.written * weight).sum())
        return nats / tokens if tokens else None


def programs_alone(chosen: Sequence[Chosen], collection: Collection, longest: int) -> list[Example]:
    """Fine-tuning's examples: all but '<program>' is learnt."""
    ids = encode_programs({each.program: collection.texts[each.program].text for each in chosen}, longest)
    return [
        Example(c.case, c.problem, ids[c.program], np.arange(len(ids[c.program])) > 0, c.weight, c.mode)
        for c in chosen
        if c.program in ids
    ]


def lessons(
    config: TurnsConfig, collection: Collection, samples: dict[str, Sampled], longest: int
) -> tuple[Lessons, Lessons]:
    """(training, dev), those of training with weights that make `alone` the share of first programs."""
    structures = {name: each.structure for name, each in samples.items()}
    both = zip(find_pairs(collection, config.pairs), choose(collection, structures, config.pairs.choice), strict=True)
    train, dev = (
        Lessons(encode_pairs(pairs, collection, longest), programs_alone(chosen, collection, longest))
        for pairs, chosen in both
    )
    programs = _share(train.programs, config.alone) if config.alone else []
    return Lessons(_share(train.pairs, 1 - config.alone), programs), dev


def _share(examples: Sequence[Example], share: float) -> list[Example]:
    """With weights that sum to `share`."""
    total = sum(each.weight for each in examples)
    return [replace(each, weight=share * each.weight / total) for each in examples]


def turns(config: TurnsConfig, places: Places, watch: Watch | None = None) -> Finished:
    """The whole stage."""
    clock_s = time.monotonic()
    if places.weights is None:
        raise SparseRLError("Learning to rewrite needs weights that can write: give --weights DIR, of an SFT run.")
    goes_on = open_run(places.out, "turns", asdict(config), places.resume)
    collection = collected.load(places.collection)
    samples = matrix_samples(places, collection)
    policy, begin = start_from(places.weights, "turns")
    longest = min(config.longest, policy.size.language.context - policy.prefix_length)
    train, dev = lessons(config, collection, samples, longest)
    task = Rewriting(config, policy, train, dev, samples)
    write_json(places.out / "data.json", {"train": _counts(train), "dev": _counts(dev)})
    return run(task, config.loop, places.out, Start(goes_on, begin, clock_s), watch)


def _counts(found: Lessons) -> dict[str, int]:
    return {
        "pairs": len(found.pairs),
        "programs": len(found.programs),
        "matrices": len({each.case for each in found.all}),
    }
