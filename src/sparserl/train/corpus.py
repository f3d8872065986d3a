"""The corpus: CUDA sources of pinned open-source packages, filtered, without duplicates, with their provenance.

    sparserl train corpus --out carry/corpus

Stages: download (each archive checked against the SHA-256 of the manifest; what is there and right is not fetched
again) → extract and filter (`corpus_files`) → drop duplicates (`corpus_twins`) → write `OUT/shards/`, all at once:
train-*.jsonl.xz, validation-*.jsonl.xz (read them with `shards.read_shards`), provenance.csv (a line a file that was
kept), dropped.csv (a line a file that was not, and why) and manifest.json with the report and the checksums. The same
manifest and settings give the same bytes. Whole packages are held out for validation; their files lose duplicates
against the training files, never the other way round. Not covered: text other than CUDA, a shuffle, tokenizing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sparserl.errors import StoreError
from sparserl.store import content_key, read_folder, write_folder
from sparserl.train.corpus_files import Source, sources_of
from sparserl.train.corpus_index import Archive, CorpusError, Sources, fetch, on_disk, pip_sources
from sparserl.train.corpus_twins import Twins
from sparserl.train.shards import SPLITS, Document, pack_shards

SHIPPED = Path(__file__).with_name("manifest.json")
RULES = ("corpus_files.py", "corpus_twins.py", "shards.py")
"""the filters: shards made by other versions of these files are made again"""
PROVENANCE = ("package", "version", "path", "bytes", "source_bytes", "sha256", "licence", "split")
DROPPED = ("package", "version", "path", "source_bytes", "sha256", "licence", "reason", "twin")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusConfig:
    """What `build` is told."""

    out: Path
    """folder for archives/ and shards/"""
    manifest: Path = SHIPPED
    """the pinned archives: a JSON list of name, version, kind, file, sha256, licence, held_out"""
    index: str | None = None
    """the only package index to ask; None: those that pip is set up with"""
    limit: int = 0
    """take the first so many archives of the manifest; 0: all of them"""
    allow_missing: bool = False
    """go on without archives that can't be had, and say which; otherwise that is an error"""
    max_file_bytes: int = 256 * 1024
    """larger files are tables or generated, nearly always"""
    similarity: float = 0.6
    """share of common character runs from which two files are near-duplicates"""
    shard_bytes: int = 16 * 1024 * 1024
    """text in a shard"""

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise CorpusError(f"The similarity of a corpus must be above 0 and at most 1. Got {self.similarity}.")
        if self.limit < 0 or self.max_file_bytes < 1 or self.shard_bytes < 1:
            raise CorpusError("The limit of a corpus must be 0 or more, its byte sizes 1 or more.")


@dataclass(frozen=True)
class Step:
    """What a progress bar shows."""

    stage: str
    """'download', 'extract' or 'write'"""
    name: str
    done: int
    total: int
    received_bytes: int = 0
    """of the archive that is being downloaded"""


Watch = Callable[[Step], None]


@dataclass(frozen=True)
class Report:
    """What came out."""

    folder: str
    packages: int
    """with at least one file in the corpus"""
    files: int
    text_bytes: int
    train_bytes: int
    validation_bytes: int
    shards: int
    shard_bytes: int
    """of the shards, compressed"""
    dropped: dict[str, int]
    """files by the reason"""
    missing: tuple[str, ...]
    """archives that could not be had, each with its reason"""


def read_manifest(path: Path, limit: int = 0) -> list[Archive]:
    """The archives of a manifest, those for training first: a duplicate is taken from validation, not from training."""
    names = {field.name for field in fields(Archive)}
    try:
        lines: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        archives = [Archive(**{name: line[name] for name in names}) for line in lines]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CorpusError(
            f"{path} is no manifest of a corpus ({error!r}): "
            f"it must be a JSON list of objects with {', '.join(sorted(names))}."
        ) from error
    seen = Counter(archive.project for archive in archives) + Counter(archive.file for archive in archives)
    if twice := [name for name, count in seen.items() if count > 1]:
        raise CorpusError(f"{path} names {', '.join(twice)} more than once; a package has one line.")
    return sorted(archives[: limit or None], key=lambda archive: archive.held_out)


def build(config: CorpusConfig, progress: Watch = lambda step: None) -> Report:
    """Make the corpus; what an earlier run has finished is not done again."""
    archives = read_manifest(config.manifest, config.limit)
    folder = config.out / "shards"
    if (done := _finished(folder, _key(archives, config))) is not None:
        return done  # also where the archives have been deleted since
    paths, missing = _download(archives, config, progress)
    have = [archive for archive in archives if archive.file in paths]
    key = _key(have, config)
    if (done := _finished(folder, key)) is not None:
        return replace(done, missing=missing)
    kept, dropped = _select(have, paths, config, progress)
    progress(Step("write", "shards", 0, 1))
    files: dict[str, bytes] = {}
    for split in SPLITS:
        chosen = [(archive, source) for archive, source in kept if _split(archive) == split]
        documents = (Document(archive.name, source.path, source.text) for archive, source in chosen)
        files |= dict(pack_shards(split, documents, config.shard_bytes))
    report = _report(folder, kept, dropped, files, missing)
    files["provenance.csv"] = _table(PROVENANCE, (_provenance(archive, source) for archive, source in kept))
    files["dropped.csv"] = _table(DROPPED, iter(dropped))
    write_folder(folder, files, {"kind": "corpus", "key": key, "report": asdict(report)})
    progress(Step("write", "shards", 1, 1))
    return report


def _key(archives: list[Archive], config: CorpusConfig) -> str:
    return content_key(
        {
            "rules": [hashlib.sha256(SHIPPED.with_name(name).read_bytes()).hexdigest() for name in RULES],
            "archives": [asdict(archive) for archive in archives],
            "settings": [config.max_file_bytes, config.similarity, config.shard_bytes],
        }
    )


def _finished(folder: Path, key: str) -> Report | None:
    """The report of an earlier run with the same archives and settings, if its files are whole."""
    try:
        about = read_folder(folder)
    except StoreError:
        return None
    if about.get("key") != key:
        return None
    report = about["report"]
    return Report(**{**report, "folder": str(folder), "missing": tuple(report["missing"])})


def _download(
    archives: list[Archive], config: CorpusConfig, progress: Watch
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """The archives by file name, and why those that are missing are."""
    folder = config.out / "archives"
    sources: Sources | None = None  # pip is asked only when something has to be fetched
    paths: dict[str, Path] = {}
    missing: list[str] = []
    for done, archive in enumerate(archives):

        def count(received: int, done: int = done, name: str = archive.name) -> None:
            progress(Step("download", name, done, len(archives), received))

        count(0)
        if (there := on_disk(archive, folder)) is not None:
            paths[archive.file] = there
            continue
        sources = sources or pip_sources(config.index)
        try:
            paths[archive.file] = fetch(archive, folder, sources, count)
        except CorpusError as error:  # the others are fetched all the same: a second run then has less to do
            log.warning("%s", error)
            missing.append(str(error))
    progress(Step("download", "", len(archives), len(archives)))
    if missing and not config.allow_missing:
        raise CorpusError(
            f"{len(missing)} of {len(archives)} archives can't be had; run again to go on from here, or pass "
            f"--allow-missing to do without them. {' '.join(missing)}"
        )
    if not paths:
        raise CorpusError(f"No archive of {config.manifest} can be had: {' '.join(missing) or 'it names none'}")
    return paths, tuple(missing)


def _select(
    archives: list[Archive], paths: dict[str, Path], config: CorpusConfig, progress: Watch
) -> tuple[list[tuple[Archive, Source]], list[dict[str, Any]]]:
    """The files that are kept, and a line of DROPPED for each that is not."""
    twins = Twins(config.similarity)
    kept: list[tuple[Archive, Source]] = []
    dropped: list[dict[str, Any]] = []
    for done, archive in enumerate(archives):
        progress(Step("extract", archive.name, done, len(archives)))
        for source in sources_of(paths[archive.file], archive, config.max_file_bytes):
            reason, twin = source.dropped, ""
            if not reason:
                reason, twin = twins.add(f"{archive.name}:{source.path}", source.text)
            if reason:
                dropped.append(_about(archive, source) | {"reason": reason, "twin": twin})
            else:
                kept.append((archive, source))
    progress(Step("extract", "", len(archives), len(archives)))
    return kept, dropped


def _split(archive: Archive) -> str:
    return "validation" if archive.held_out else "train"


def _about(archive: Archive, source: Source) -> dict[str, Any]:
    return {
        "package": archive.name,
        "version": archive.version,
        "path": source.path,
        "source_bytes": source.source_bytes,
        "sha256": source.sha256,
        "licence": source.licence,
    }


def _provenance(archive: Archive, source: Source) -> dict[str, Any]:
    return _about(archive, source) | {"bytes": len(source.text.encode()), "split": _split(archive)}


def _table(columns: tuple[str, ...], rows: Iterator[dict[str, Any]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _report(
    folder: Path,
    kept: list[tuple[Archive, Source]],
    dropped: list[dict[str, Any]],
    shards: dict[str, bytes],
    missing: tuple[str, ...],
) -> Report:
    size = dict.fromkeys(SPLITS, 0)
    for archive, source in kept:
        size[_split(archive)] += len(source.text.encode())
    return Report(
        folder=str(folder),
        packages=len({archive.name for archive, _ in kept}),
        files=len(kept),
        text_bytes=sum(size.values()),
        train_bytes=size["train"],
        validation_bytes=size["validation"],
        shards=len(shards),
        shard_bytes=sum(map(len, shards.values())),
        dropped=dict(Counter(line["reason"] for line in dropped).most_common()),
        missing=missing,
    )
