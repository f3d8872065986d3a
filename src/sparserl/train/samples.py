"""What the encoder reads of the collected matrices, computed once and kept in one file.

A matrix is made from its source, sampled, described by its named features and its structure class, and let go: training
needs 24 KB of it. The file is brought up to date with what is missing; several problems share a matrix. Not covered:
two processes that bring one file up to date at the same time (both compute; the last one's file stays, whole).
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sparserl import splits
from sparserl.errors import StoreError
from sparserl.features import structure_class
from sparserl.lifetime import helpers
from sparserl.matrix import Array, Pattern
from sparserl.policy.sample import FEATURE_NAMES, FIELDS, PLACES, Sample, sample_pattern
from sparserl.store import content_key, write_atomic
from sparserl.train.cases import from_source
from sparserl.train.collected import CollectedCase

log = logging.getLogger(__name__)

SAVE_EVERY = 200
"""matrices"""
FEW = 32
"""so many are done without other processes, which take seconds to start"""
Told = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Sampled:
    """One matrix, as training sees it."""

    sample: Sample
    structure: str
    """its class, `features.structure_class`"""


def load_pattern(name: str, split: str, source: Mapping[str, Any], matrices: Path | None = None) -> Pattern:
    """Make or read a collected matrix; `matrices` has the real ones."""
    if split == "train":
        return from_source(name, source).load(matrices)
    return next(case for case in splits.cases("dev") if case.name == name).load(matrices)


def samples_of(
    cases: Iterable[CollectedCase], path: Path, matrices: Path | None = None, told: Told | None = None
) -> dict[str, Sampled]:
    """By case name; what `path` lacks is computed and added to it."""
    wanted = {case.name: (case.name, case.split, dict(case.source)) for case in cases}
    known = _read(path) if path.exists() else {}
    missing = [each for name, each in wanted.items() if known.get(name, ("",))[0] != _key(each)]
    made = shared_out(partial(_sampled, matrices=matrices), missing)
    for done, (each, found) in enumerate(zip(missing, made, strict=True), 1):
        known[each[0]] = (_key(each), found)
        if done % SAVE_EVERY == 0 or done == len(missing):
            _write(path, known)
        if told:
            told(done, len(missing))
    return {name: known[name][1] for name in wanted}


Source = tuple[str, str, dict[str, Any]]
Item = TypeVar("Item")
Done = TypeVar("Done")


def shared_out(work: Callable[[Item], Done], items: Sequence[Item]) -> Iterator[Done]:
    """The work on each matrix, in order, by as many processes as there are cores but one; by this one if few."""
    if len(items) <= FEW:
        yield from map(work, items)
        return
    with helpers(max(1, (os.cpu_count() or 2) - 1)) as pool:
        yield from pool.map(work, items)


def _sampled(each: Source, matrices: Path | None) -> Sampled:
    pattern = load_pattern(*each, matrices)
    return Sampled(sample_pattern(pattern, with_features=True), structure_class(pattern))


def _key(each: Source) -> str:
    return content_key({"name": each[0], "split": each[1], "source": each[2]})


def _write(path: Path, known: Mapping[str, tuple[str, Sampled]]) -> None:
    samples = [found.sample for _, found in known.values()]
    columns: dict[str, Array] = {
        "name": np.array(list(known)),
        "key": np.array([key for key, _ in known.values()]),
        "structure": np.array([found.structure for _, found in known.values()]),
        "sizes": np.array([(each.rows, each.columns, each.nonzeros) for each in samples], dtype=np.int64),
        "entries": np.stack([each.entries for each in samples]),
        "named": np.stack([each.named for each in samples if each.named is not None]),
        "features": np.array(FEATURE_NAMES),
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **columns)  # type: ignore[arg-type]  # its own option is a bool, ours are arrays
    write_atomic(path, buffer.getvalue())


def _read(path: Path) -> dict[str, tuple[str, Sampled]]:
    try:
        with np.load(path) as file:
            columns = {name: file[name] for name in file.files}
        if columns["entries"].shape[1:] != (PLACES, len(FIELDS)) or tuple(columns["features"]) != FEATURE_NAMES:
            log.info("%s was made by another version of the sample: it is made again", path)
            return {}
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f"{path} is no file of samples ({error}). Delete it; it is made again.") from error
    found = {}
    for at, name in enumerate(columns["name"]):
        rows, width, nonzeros = (int(each) for each in columns["sizes"][at])
        sample = Sample(rows, width, nonzeros, columns["entries"][at], columns["named"][at])
        found[str(name)] = (str(columns["key"][at]), Sampled(sample, str(columns["structure"][at])))
    return found
