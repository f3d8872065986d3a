"""The corpus on disk: a folder of xz-compressed JSON Lines, one document a line, with a checksum for each file.

Documents stand in the order of the manifest's packages, not shuffled: like beside like compresses well, and a stage
that reads them shuffles by its own seed. xz is in the standard library, so a training machine needs nothing else.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sparserl.store import read_folder

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Document:
    """A file of the corpus and where it comes from."""

    package: str
    path: str
    text: str


def pack_shards(split: str, documents: Iterable[Document], shard_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files of a split, each with about `shard_bytes` of text."""
    lines: list[bytes] = []
    size, number = 0, 0
    for document in documents:
        lines.append(json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n")
        size += len(lines[-1])
        if size >= shard_bytes:
            yield _shard(split, number, lines)
            lines, size, number = [], 0, number + 1
    if lines:
        yield _shard(split, number, lines)


def _shard(split: str, number: int, lines: list[bytes]) -> tuple[str, bytes]:
    return f"{split}-{number:04d}.jsonl.xz", lzma.compress(b"".join(lines), preset=6)


def read_shards(folder: Path, split: str) -> Iterator[Document]:
    """The documents of 'train' or 'validation'. Every checksum of the folder is checked before the first one comes."""
    if split not in SPLITS:
        raise ValueError(f"The split of a corpus must be one of {', '.join(SPLITS)}. Got {split!r}.")
    read_folder(folder)
    for path in sorted(folder.glob(f"{split}-*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield Document(**json.loads(line))
