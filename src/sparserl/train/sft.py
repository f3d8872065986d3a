"""Stage: supervised fine-tuning. The policy learns to write, for a matrix, the programs that were fast on it.

    sparserl train sft --collection DIR --weights runs/pretrain --encoder runs/encoder/encoder --out runs/sft [--resume]

Which programs, and how much each counts, is decided in `chosen`; a program is drawn as often as its weight says. The
loss is on the program's tokens, or on its body's alone where `chosen` gives the header; the matrix stands before them
as the encoder's vectors, and the encoder learns along. With a `pull` the good token is also preferred to worse ones
wherever such are known (`forks`). `--blind`, `--features` and `--learnt` train the control
encoders on the same data; `--fraction` and `--seed` serve the study of what pretraining is worth. What the encoder
reads of each matrix is computed once (`--samples FILE`).

Not covered: several GPUs; programs longer than `longest` tokens, which are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sparserl.errors import SparseRLError
from sparserl.matrix import Array
from sparserl.policy.encoder import EncoderInput, collate
from sparserl.policy.model import Policy, make_policy, size_named
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode
from sparserl.store import write_json
from sparserl.train import collected
from sparserl.train.batches import padded, program_batches, spread_draws
from sparserl.train.chosen import ChoiceRules, Chosen, shares
from sparserl.train.collected import Collection
from sparserl.train.encode import load_encoder
from sparserl.train.encode_times import read_problem
from sparserl.train.forks import Drawn, Fork, pull_of
from sparserl.train.lessons import Known, Lessons, joined, lessons, without
from sparserl.train.loop import (
    NOT_BEGUN,
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
from sparserl.train.misfits import read_misfits
from sparserl.train.readers import READS, Reads, standardise, with_encoder
from sparserl.train.samples import Sampled, samples_of
from sparserl.train.thinning import thinned


@dataclass(frozen=True)
class SFTConfig:
    """What is learnt from, and how long."""

    size: str = "nano"
    """of a policy that begins without weights"""
    reads: Reads = "matrix"
    """what the encoder reads: the sample with sinusoids, nothing, named features, the sample with learnt tables, or
    what that of the weights does"""
    target: str = "h200"
    """the machine that the collection was measured on, as the policy is told it"""
    epochs: int = 6
    """an epoch has as many draws as there are programs for the usual mode, and those for chains and of bodies beside"""
    least_steps: int = 200
    """more epochs are done where the data is so little that there would be fewer steps"""
    batch_tokens: int = 32768
    """of a step, padding counted"""
    longest: int = 2560
    """tokens of a program"""
    fraction: float = 1.0
    """of the pairs of matrix and program"""
    again: float = 0.0
    """share of the draws that go over an earlier collection again, where a run is given one (`lessons.joined`)"""
    thin: float = 0.0
    """up to this share of a matrix's sample is left out, another part in every step"""
    frozen: bool = False
    """the encoder stays as it is: it has read tens of thousands of matrices, a collection has hundreds"""
    pull: float = 0.0
    """what a fork counts, where a token of a program counts 1; 0: forks are not looked for"""
    gap: float = 0.06
    """at a fork a worse way is slower by more than this, as a logarithm: twice the noise of a timing"""
    rules: ChoiceRules = field(default_factory=ChoiceRules)
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(learning_rate=6e-4, weight_decay=0.05))

    def __post_init__(self) -> None:
        size_named(self.size)
        if self.reads not in READS:
            raise SparseRLError(f"The 'reads' of fine-tuning must be one of {', '.join(READS)}. Got {self.reads!r}.")
        if self.epochs < 1 or self.batch_tokens < self.longest:
            raise SparseRLError("Fine-tuning needs at least 1 epoch and 'batch_tokens' of at least 'longest'.")
        for name in ("again", "thin"):
            if not 0 <= (given := getattr(self, name)) < 1:
                raise SparseRLError(f"The {name!r} of fine-tuning must be at least 0 and below 1. Got {given}.")
        if self.pull < 0 or not self.gap > 0:
            raise SparseRLError("The 'pull' of forks must not be negative, and their 'gap' must be above 0.")


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes."""

    out: Path
    collection: Path
    weights: Path | None = None
    """begin with these; None: with fresh ones"""
    encoder: Path | None = None
    """a pretrained encoder, in place of that of the weights"""
    samples: Path | None = None
    """None: OUT/samples.npz"""
    matrices: Path | None = None
    """folder of the real matrices"""
    resume: bool = False
    again: Path | None = None
    """a collection, or estimates, to be gone over again beside the other"""
    again_samples: Path | None = None
    """None: OUT/again.npz"""

    @property
    def samples_file(self) -> Path:
        return self.samples or self.out / "samples.npz"

    @property
    def again_samples_file(self) -> Path:
        return self.again_samples or self.out / "again.npz"


def matrix_samples(places: Places, collection: Collection) -> dict[str, Sampled]:
    """What the encoder reads of every matrix of a collection: read, or made and kept."""
    return samples_of(collection.cases, places.samples_file, places.matrices)


class Asked(NamedTuple):
    """What a program is written for."""

    case: str
    problem: str
    mode: Mode = "solver"


class Asking(Protocol):
    """An example that knows what it was written for."""

    @property
    def case(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def mode(self) -> Mode: ...


def asked(examples: Iterable[Asking]) -> list[Asked]:
    """What each was written for."""
    return [Asked(each.case, each.problem, each.mode) for each in examples]


class Prompts:
    """All that is asked for as the encoder reads it and every program as ids, ready for batches."""

    def __init__(
        self, prompts: Iterable[Asked], samples: Mapping[str, Sampled], target: str, device: torch.device
    ) -> None:
        self.place = {each: index for index, each in enumerate(dict.fromkeys(prompts))}
        seen = [samples[each.case].sample for each in self.place]
        problems, modes = [read_problem(each.problem) for each in self.place], [each.mode for each in self.place]
        self.matrix = collate(seen, problems, target, modes).to(device)
        self.device = device

    def batch(self, prompts: Sequence[Asked], ids: Sequence[Array]) -> tuple[Tensor, EncoderInput]:
        """Ids (batch, tokens) and the matrix of each."""
        return torch.from_numpy(padded(ids)[0]).to(self.device, non_blocking=True), self.matrices(prompts)

    def matrices(self, prompts: Iterable[Asked]) -> EncoderInput:
        """The matrix of each."""
        places = torch.tensor([self.place[each] for each in prompts], device=self.device)
        return EncoderInput(*(column[places] for column in self.matrix))


def program_loss(policy: Policy, ids: Tensor, targets: Tensor, matrix: EncoderInput) -> tuple[Tensor, Tensor]:
    """Nats of the targets (batch, tokens - 1) that are no padding, summed; and the logits. ids: (batch, tokens)."""
    logits: Tensor = policy(ids[:, :-1], matrix)
    nats = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=Tokenizer.pad, reduction="sum")
    return nats, logits


def in_body(ids: Tensor) -> Tensor:
    """(batch, tokens - 1): which of the tokens after the first stand behind the header."""
    return torch.cumsum(ids[:, :-1] == Tokenizer.code, dim=1) > 0


def learnt(ids: Tensor, given: Tensor) -> Tensor:
    """(batch, tokens - 1): the tokens after the first, with padding for the header where it is given (batch)."""
    return ids[:, 1:].masked_fill(given[:, None] & ~in_body(ids), Tokenizer.pad)


def token_log_probs(policy: Policy, ids: Tensor, matrix: EncoderInput) -> Tensor:
    """(batch, tokens - 1): log-probability of each token after the first; 0 for padding."""
    return log_probs_of(policy(ids[:, :-1], matrix), ids)


def log_probs_of(logits: Tensor, ids: Tensor) -> Tensor:
    """The same from the logits (batch, tokens - 1, vocabulary)."""
    wrong = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=Tokenizer.pad, reduction="none")
    return -wrong.view(ids.shape[0], -1)


class Drawing(Protocol):
    """How often examples are drawn: a part of a stage's settings."""

    @property
    def epochs(self) -> int: ...
    @property
    def least_steps(self) -> int: ...
    @property
    def batch_tokens(self) -> int: ...
    @property
    def loop(self) -> LoopConfig: ...


def all_batches(weights: Array, lengths: Array, config: Drawing, draws: int = 0) -> list[Array]:
    """The examples of every step of all epochs: what step k sees depends on the seed and k alone.

    draws: of an epoch; 0: as many as there are examples.
    """
    batches: list[Array] = []
    epoch = 0
    while epoch < config.epochs or len(batches) < config.least_steps:
        rng = np.random.default_rng([config.loop.seed, epoch])
        batches += program_batches(lengths, spread_draws(weights, draws or len(weights), rng), config.batch_tokens, rng)
        epoch += 1
    return batches


class FineTuning:
    """The task: programs drawn by weight, anew in every epoch."""

    def __init__(self, config: SFTConfig, policy: Policy, learnt_from: Lessons, stage: str = "sft") -> None:
        self.config, self.device, self.stage = config, device_of(config.loop.device), stage
        self.policy = policy.to(self.device)
        self.policy.encoder.requires_grad_(not config.frozen)
        self._train, self._dev, self._forked = learnt_from.train, learnt_from.dev, learnt_from.forked
        self._ids = learnt_from.ids
        self._prompts = Prompts(asked((*self._train, *self._dev)), learnt_from.samples, config.target, self.device)
        weights = np.array([each.weight for each in self._train])
        lengths = np.array([len(self._ids[each.program]) for each in self._train])
        self._batches = all_batches(weights, lengths, config, learnt_from.draws)
        self.steps = len(self._batches)
        compile_layers(self.policy, config.loop)

    def _batch(self, examples: Sequence[Chosen]) -> tuple[Tensor, EncoderInput]:
        return self._prompts.batch(asked(examples), [self._ids[each.program] for each in examples])

    def _forks(self, examples: Sequence[Chosen]) -> list[Sequence[Fork]]:
        return [() if each.body or not self._forked else self._forked.get(Drawn.of(each), ()) for each in examples]

    def loss(self, step: int) -> Step:
        examples = [self._train[index] for index in self._batches[step]]
        ids, matrix = self._batch(examples)
        if self.config.thin:
            matrix = thinned(matrix, self.config.thin, (self.config.loop.seed, step))
        targets = learnt(ids, torch.tensor([each.body for each in examples], device=self.device))
        with autocast(self.device):
            nats, logits = program_loss(self.policy, ids, targets, matrix)
        tokens = (targets != Tokenizer.pad).sum().clamp(min=1)
        if not self._forked:
            return Step(nats / tokens, ids.numel())
        pulls = pull_of(logits, ids, self._forks(examples))
        parts = {"nats": nats / tokens, "fork": pulls.sum() / max(1, len(pulls))}
        return Step((nats + self.config.pull * pulls.sum()) / tokens, ids.numel(), parts)

    def check(self) -> dict[str, float]:
        """On matrices that were never trained on: nats a token by weight, of all, the header and the body; and, where
        forks are looked for, how often the good token is ahead of the worse ones."""
        sums = np.zeros((2, 2))  # (header, body), (nats, tokens)
        pulls: list[Tensor] = []
        for at in range(0, len(self._dev), 16):
            part = self._dev[at : at + 16]
            ids, matrix = self._batch(part)
            with autocast(self.device):
                logits = self.policy(ids[:, :-1], matrix)
                nats = -log_probs_of(logits, ids)
            if self._forked:
                pulls.append(pull_of(logits, ids, self._forks(part)))
            there = ids[:, 1:] != Tokenizer.pad
            body = in_body(ids)
            weight = torch.tensor([each.weight for each in part], device=self.device)[:, None]
            for row, mask in enumerate((there & ~body, there & body)):
                sums[row] += [float((nats * mask * weight).sum()), float((mask * weight).sum())]
        if not sums.any():
            return {}
        (header, headers), (code, codes) = sums.tolist()
        both = (header + code) / (headers + codes)
        found = {"dev_loss": both, "dev_header_loss": header / headers, "dev_body_loss": code / codes}
        if pulls and len(pulled := torch.cat(pulls)):
            ahead = (pulled < float(np.log(2.0))).float().mean()
            found |= {"forks_right": float(ahead), "dev_fork_loss": float(pulled.mean())}
        return found


def known_of(places: Places) -> Known:
    """Read what a collection has."""
    collection = collected.load(places.collection)
    return Known(collection, matrix_samples(places, collection), read_misfits(places.collection), {})


def lessons_of(config: SFTConfig, places: Places, known: Known) -> Lessons:
    """What a run learns from: the collection, and what it goes over again."""
    gap = config.gap if config.pull else None
    own = lessons(known, config.rules, longest=config.longest, gap=gap, fraction=config.fraction, seed=config.loop.seed)
    if places.again is None or not config.again:
        return own
    earlier = replace(places, collection=places.again, samples=places.again_samples_file)
    others = without(known_of(earlier), known.collection)
    return joined(own, lessons(others, config.rules, longest=config.longest, gap=gap), config.again)


def sft(
    config: SFTConfig, places: Places, watch: Watch | None = None, known: Known | None = None, stage: str = "sft"
) -> Finished:
    """The whole stage. known: of this collection, where it was read before. stage: its name, 'sft' or 'rank'."""
    clock_s = time.monotonic()
    goes_on = open_run(places.out, stage, asdict(config), places.resume)
    found = lessons_of(config, places, known or known_of(places))
    policy, begin = make_policy(config.size, config.loop.seed), NOT_BEGUN
    if places.weights is not None:
        policy, begin = start_from(places.weights, stage)
    pretrained = load_encoder(places.encoder) if places.encoder is not None and not begin.step else None
    before, policy = policy, with_encoder(policy, config.reads, pretrained, config.loop.seed)
    if policy is not before:  # a fresh encoder; another one knows its scales
        standardise(policy, {each.case: found.samples[each.case] for each in found.train})
    task = FineTuning(config, policy, found, stage)
    counted = {"train": shares(found.train), "dev": shares(found.dev)}
    if found.forked is not None:
        counted["forked"] = {"programs": len(found.forked), "forks": sum(map(len, found.forked.values()))}
    write_json(places.out / "data.json", counted)
    return run(task, config.loop, places.out, Start(goes_on, begin, clock_s), watch)
