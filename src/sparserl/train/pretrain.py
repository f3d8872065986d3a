"""Stage: pretraining of the language model on CUDA text, half of it with a piece to fill in.

    sparserl train pretrain --corpus DIR --out runs/pretrain [--size nano] [--epochs 5] [--budget SECONDS] [--resume]

The corpus is what `sparserl train corpus` wrote, or any folder with .cu and .cuh files. It is encoded once, into one
file (`--tokens FILE`; by default OUT/tokens.npz) that is all a training machine needs. Every epoch packs the documents
anew. The matrix encoder is not trained here: the policy that comes out reads no matrix yet. `--weights` goes on from
weights alone, at the step where they broke off; `--resume` exactly, in the same folder.

Not covered: several GPUs; the texts of recipes, which belong to fine-tuning.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sparserl.errors import SparseRLError
from sparserl.policy.checkpoint import shipped_tokenizer
from sparserl.policy.model import Policy, make_policy, size_named
from sparserl.train.batches import Documents, EpochRows, encode_documents, load_documents, plain_rows, save_documents
from sparserl.train.loop import (
    NOT_BEGUN,
    Finished,
    LoopConfig,
    Start,
    Step,
    Watch,
    autocast,
    compiled,
    device_of,
    open_run,
    run,
    start_from,
)
from sparserl.train.shards import read_shards

log = logging.getLogger(__name__)

ENDINGS = frozenset((".cu", ".cuh"))


@dataclass(frozen=True)
class PretrainConfig:
    """What is learnt from, and how long."""

    size: str = "nano"
    """of the policy: tiny or nano"""
    epochs: int = 4
    context: int = 1024
    """tokens of a row"""
    batch_tokens: int = 32768
    """of a step"""
    fim_share: float = 0.5
    """of the text that has a piece to fill in"""
    dev_rows: int = 256
    """of held-out packages, looked at each time"""
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(learning_rate=2e-3))

    def __post_init__(self) -> None:
        longest = size_named(self.size).language.context
        if not 16 <= self.context <= longest:
            raise SparseRLError(f"The 'context' for the size {self.size!r} must be 16..{longest}. Got {self.context}.")
        if self.epochs < 1 or self.batch_tokens < self.context:
            raise SparseRLError("Pretraining needs at least 1 epoch and 'batch_tokens' of at least one 'context'.")
        if not 0 <= self.fim_share <= 1:
            raise SparseRLError(f"The 'fim_share' of pretraining must be 0..1. Got {self.fim_share}.")


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes."""

    out: Path
    corpus: Path | None = None
    tokens: Path | None = None
    """the encoded corpus; made from `corpus` where it is not there. None: OUT/tokens.npz"""
    weights: Path | None = None
    """begin with these"""
    resume: bool = False


def corpus_texts(folder: Path) -> tuple[list[str], list[str]]:
    """(training, held out) texts: of a corpus, or of the CUDA files below any folder, a tenth held out by name."""
    if not folder.is_dir():
        raise SparseRLError(f"There is no corpus folder {folder}. Make one with `sparserl train corpus`.")
    for shards in (folder, folder / "shards"):
        if any(shards.glob("*.jsonl.xz")):
            train, dev = ([each.text for each in read_shards(shards, split)] for split in ("train", "validation"))
            return train, dev
    files = sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file())
    if not files:
        raise SparseRLError(f"{folder} is no corpus: it has neither shards nor .cu or .cuh files.")
    train, dev = [], []
    for path in files:
        name = path.relative_to(folder).as_posix()
        held_out = hashlib.sha256(name.encode()).digest()[0] % 10 == 0
        (dev if held_out else train).append(path.read_text(encoding="utf-8", errors="replace"))
    return train, dev


def documents_of(places: Places, workers: int | None = None) -> tuple[Documents, Documents]:
    """The encoded corpus, (training, held out): read, or made and kept."""
    path = places.tokens or places.out / "tokens.npz"
    words = shipped_tokenizer()
    key = hashlib.sha256(words.read_bytes()).hexdigest()
    if path.exists():
        return load_documents(path, key)
    if places.corpus is None:
        raise SparseRLError(f"Pretraining needs a corpus: {path} is not there. Give --corpus DIR, or --tokens FILE.")
    texts = corpus_texts(places.corpus)
    large = sum(len(text) for text in texts[0]) > 16 << 20
    count = workers or (max(1, (os.cpu_count() or 2) - 1) if large else 1)
    train, dev = (encode_documents(part, words, count) for part in texts)
    save_documents(path, train, dev, key)
    log.info("%s: %d documents, %d tokens; held out %d, %d", path, len(train), len(train.ids), len(dev), len(dev.ids))
    return train, dev


def next_token_loss(policy: Policy, rows: Tensor) -> Tensor:
    """Mean over all predicted tokens. rows: (batch, context + 1)."""
    logits = policy.language(rows[:, :-1])
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


class Pretraining:
    """The task: rows of the epoch that a step falls into."""

    stage = "pretrain"

    def __init__(self, config: PretrainConfig, policy: Policy, documents: tuple[Documents, Documents]) -> None:
        train, dev = documents
        self.config, self.device = config, device_of(config.loop.device)
        self.policy = policy.to(self.device)
        self._epochs = EpochRows(train, config.context, config.fim_share, config.loop.seed)
        counts = [self._epochs.count(epoch) for epoch in range(config.epochs)]
        if min(counts) == 0:
            raise SparseRLError(
                f"The corpus has {len(train.ids)} tokens, too few for a row of {config.context}: lower --context, "
                "or give a larger corpus."
            )
        self._batch = min(config.batch_tokens // config.context, *counts)
        self._ends = np.cumsum([count // self._batch for count in counts])
        self.steps = int(self._ends[-1])
        self._dev = plain_rows(dev, np.arange(len(dev)), config.context)[: config.dev_rows]
        self._loss = compiled(next_token_loss, config.loop)
        self._rows = lru_cache(maxsize=1)(self._make_rows)

    def _make_rows(self, epoch: int) -> Tensor:
        """The whole epoch on the device: 30 M tokens are 120 MB, and no step waits for a copy."""
        return torch.from_numpy(self._epochs.rows(epoch)).to(self.device)

    def loss(self, step: int) -> Step:
        epoch = int(np.searchsorted(self._ends, step, side="right"))
        place = step - (int(self._ends[epoch - 1]) if epoch else 0)
        rows = self._rows(epoch)[place * self._batch : (place + 1) * self._batch].long()
        with autocast(self.device):
            loss = self._loss(self.policy, rows)
        return Step(loss, self._batch * self.config.context)

    def check(self) -> dict[str, float]:
        """The loss on packages that training never sees, nothing moved."""
        if not len(self._dev):
            return {}
        losses = []
        for at in range(0, len(self._dev), self._batch):
            rows = torch.from_numpy(self._dev[at : at + self._batch]).to(self.device).long()
            with autocast(self.device):
                losses.append((float(next_token_loss(self.policy, rows)), len(rows)))
        return {"dev_loss": sum(loss * rows for loss, rows in losses) / sum(rows for _, rows in losses)}


def pretrain(config: PretrainConfig, places: Places, watch: Watch | None = None) -> Finished:
    """The whole stage."""
    clock_s = time.monotonic()
    goes_on = open_run(places.out, "pretrain", asdict(config), places.resume)
    policy, begin = make_policy(config.size, config.loop.seed), NOT_BEGUN
    if places.weights is not None and not goes_on:
        policy, begin = start_from(places.weights, "pretrain")
    task = Pretraining(config, policy, documents_of(places))
    return run(task, config.loop, places.out, Start(goes_on, begin, clock_s), watch)
