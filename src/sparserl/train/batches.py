"""Token sequences as batches: documents packed into rows of one length, and programs grouped by length.

`Documents` is a text collection as ids, encoded once and kept in one compressed file. `EpochRows` packs them anew for
every epoch: half of the documents follow one another as they are; the other half are cut into rows, and in each row a
piece of one document is moved to the end, so that the model learns to fill in the middle:

    <fim_prefix> before <fim_suffix> after <fim_middle> piece <eos>

`program_batches` groups whole programs of similar length. All is a function of (seed, epoch) alone. Attention is not
cut between the documents of a row. Not covered: cuts inside a token, other forms of filling in.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from sparserl.errors import StoreError
from sparserl.lifetime import helpers
from sparserl.matrix import Array
from sparserl.policy.tokenizer import Tokenizer
from sparserl.store import write_atomic

Item = TypeVar("Item")

FIM_SPECIALS = 4
"""tokens that a filled-in row has beside those of its documents"""
CHUNK_BYTES = 4 << 20
"""text that one process encodes at a time"""


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents as ids, one after the other."""

    ids: Array
    """uint16, (tokens)"""
    lengths: Array
    """int64, (documents)"""

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, encoded: Sequence[Sequence[int]]) -> Documents:
        ids = [np.asarray(each, dtype=np.uint16) for each in encoded]
        flat = np.concatenate(ids) if ids else np.zeros(0, dtype=np.uint16)
        return cls(flat, np.array([len(each) for each in ids], dtype=np.int64))

    def joined(self, order: Array, begin: int, end: int) -> tuple[Array, Array]:
        """The documents of `order`, each between `begin` and `end`, and the number of the document of every token."""
        ends = np.cumsum(self.lengths)
        lengths = self.lengths[order] + 2
        out = np.empty(int(lengths.sum()), dtype=np.int32)
        owner = np.repeat(np.arange(len(order), dtype=np.int32), lengths)
        at = 0
        for index, length in zip(order, lengths, strict=True):
            out[at], out[at + length - 1] = begin, end
            out[at + 1 : at + length - 1] = self.ids[ends[index] - self.lengths[index] : ends[index]]
            at += int(length)
        return out, owner


def encode_documents(texts: Sequence[str], path: Path | None = None, workers: int = 1) -> Documents:
    """Encode texts with the tokenizer at `path` (None: the shipped one), in several processes; the order stays."""
    if workers <= 1:
        _begin(path)
        return _encode(texts)
    chunks: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size > CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(text)
        size += len(text)
    with helpers(workers, _begin, path) as pool:
        parts = list(pool.map(_encode, chunks))
    return Documents(np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts]))


_worker: list[Tokenizer] = []


def _begin(path: Path | None) -> None:
    _worker[:] = [Tokenizer.load(path)]


def _encode(texts: Sequence[str]) -> Documents:
    return Documents.of([_worker[0].encode(text) for text in texts])


def save_documents(path: Path, train: Documents, dev: Documents, tokenizer_sha256: str) -> None:
    """One compressed file: it is what travels to a training machine, a third of the text."""
    about = np.frombuffer(json.dumps({"tokenizer_sha256": tokenizer_sha256}).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, ids=train.ids, lengths=train.lengths, dev_ids=dev.ids, dev_lengths=dev.lengths, about=about
    )
    write_atomic(path, buffer.getvalue())


def load_documents(path: Path, tokenizer_sha256: str) -> tuple[Documents, Documents]:
    """(training, held out); refused where another tokenizer made the file."""
    try:
        with np.load(path) as file:
            about = json.loads(file["about"].tobytes())
            train, dev = Documents(file["ids"], file["lengths"]), Documents(file["dev_ids"], file["dev_lengths"])
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f"{path} is no file of tokens ({error}). Delete it; --corpus makes it again.") from error
    if about["tokenizer_sha256"] != tokenizer_sha256:
        raise StoreError(f"{path} was encoded with another tokenizer. Delete it; --corpus makes it again.")
    return train, dev


# ── Rows of documents ─────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EpochRows:
    """Rows of context + 1 tokens: a row predicts its last `context` tokens."""

    documents: Documents
    context: int
    fim_share: float
    seed: int

    def _halves(self, epoch: int) -> tuple[Array, Array]:
        """Documents in plain and in filled-in form, shuffled."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.documents))
        # by tokens, not by number: one long document would otherwise decide
        reached = np.cumsum(self.documents.lengths[order] + 2)
        cut = int(np.searchsorted(reached, self.fim_share * (reached[-1] if len(reached) else 0)))
        return order[cut:], order[:cut]

    def count(self, epoch: int) -> int:
        """Rows of an epoch, without making them."""
        plain, moved = (int((self.documents.lengths[part] + 2).sum()) for part in self._halves(epoch))
        return max(0, plain - 1) // self.context + moved // self._piece

    @property
    def _piece(self) -> int:
        return self.context + 1 - FIM_SPECIALS

    def rows(self, epoch: int) -> Array:
        """int32, (rows, context + 1), shuffled."""
        plain, moved = self._halves(epoch)
        rng = np.random.default_rng([self.seed, epoch, 1])
        rows = np.concatenate([plain_rows(self.documents, plain, self.context), self._moved_rows(moved, rng)])
        return np.asarray(rows[rng.permutation(len(rows))])

    def _moved_rows(self, order: Array, rng: np.random.Generator) -> Array:
        stream, owner = self.documents.joined(order, Tokenizer.bos, Tokenizer.eos)
        count = len(stream) // self._piece
        cut = count * self._piece
        rows = np.empty((count, self.context + 1), dtype=np.int32)
        pairs = zip(stream[:cut].reshape(count, -1), owner[:cut].reshape(count, -1), strict=True)
        for row, (ids, owners) in zip(rows, pairs, strict=True):
            row[:] = fill_in_the_middle(ids, owners, rng)
        return rows


def plain_rows(documents: Documents, order: Array, context: int) -> Array:
    """Documents one after the other; a row begins with the last token of the one before, which it doesn't predict."""
    stream, _ = documents.joined(order, Tokenizer.bos, Tokenizer.eos)
    count = max(0, len(stream) - 1) // context
    at = np.arange(count)[:, None] * context + np.arange(context + 1)
    return np.asarray(stream[at]) if count else np.zeros((0, context + 1), dtype=np.int32)


def fill_in_the_middle(ids: Array, owners: Array, rng: np.random.Generator) -> Array:
    """Move a random piece of one document to that document's end, in the PSM form; four tokens longer."""
    own = owners == owners[int(rng.integers(0, len(ids)))]
    begin = int(own.argmax())
    end = begin + int(own.sum())
    first = begin + (ids[begin] == Tokenizer.bos)
    last = end - (ids[end - 1] == Tokenizer.eos)
    a, b = np.sort(rng.integers(first, max(first, last) + 1, 2)) if last > first else (first, first)
    tail = ids[last:end]  # its own <eos>, where the row has it, says that the document ends: it stays with the rest
    parts = [ids[:first], [Tokenizer.fim_prefix], ids[first:a], [Tokenizer.fim_suffix], ids[b:last], tail]
    parts += [[Tokenizer.fim_middle], ids[a:b], [Tokenizer.eos], ids[end:]]
    return np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])


# ── Whole programs ────────────────────────────────────────────────────────────


def padded(sequences: Sequence[Array], multiple: int = 64) -> tuple[Array, Array]:
    """Ids (batch, tokens) filled up with <pad> to a multiple, and which are there."""
    longest = max(len(each) for each in sequences)
    width = -(-longest // multiple) * multiple
    ids = np.full((len(sequences), width), Tokenizer.pad, dtype=np.int64)
    for row, each in zip(ids, sequences, strict=True):
        row[: len(each)] = each
    there = np.arange(width) < np.array([len(each) for each in sequences])[:, None]
    return ids, there


def program_batches(lengths: Array, drawn: Array, tokens: int, rng: np.random.Generator) -> list[Array]:
    """Batches of the numbers `drawn`, each of at most `tokens` padded tokens, similar lengths together, shuffled."""
    drawn = drawn[rng.permutation(len(drawn))]
    batches: list[Array] = []
    pool = 4096  # sorted within pools alone: no batch is always the same
    for at in range(0, len(drawn), pool):
        part = drawn[at : at + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        begin = 0
        for end in range(1, len(part) + 1):
            if end == len(part) or (end - begin + 1) * int(lengths[part[end]]) > tokens:
                batches.append(part[begin:end])
                begin = end
    return [batches[index] for index in rng.permutation(len(batches))]


def in_turn(queues: Iterable[Sequence[Item]]) -> list[Item]:
    """The first of every queue, then the second of every one that has so many, and so on."""
    lacking = object()
    rows = zip_longest(*queues, fillvalue=lacking)
    return [cast(Item, each) for row in rows for each in row if each is not lacking]


def spread_draws(weights: Array, count: int, rng: np.random.Generator) -> Array:
    """`count` numbers drawn by weight, each as often as its weight says or once more: no luck beyond rounding."""
    ends = np.cumsum(weights / weights.sum())
    order = (np.arange(count) + rng.random()) / count
    return np.minimum(np.searchsorted(ends, order, side="right"), len(weights) - 1)
