"""Which matrices may train the policy and which test it: named splits, stored in `splits.json`, fixed.

train   generated matrices of the kept families with seeds of the training range, and the real ones of some groups
dev     for every choice: real ones of other groups, other seeds of kept families, and five families withheld for it
seen    the generated evaluation matrices of kept families (other seeds and sizes than in training)
unseen  matrices of the withheld families: those of the evaluation list and more that are drawn
real    the real matrices of the remaining groups

Real matrices go by origin group: what has one source, or is evidently of one kind from one hand, is in one split. A
withheld family also takes along what is derived from it (`permuted` of it). Test splits are run once a released
checkpoint. Real files are not shipped: `Case.load` takes the folder that has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from sparserl.errors import MatrixError
from sparserl.evaluation import Case, evaluation_list
from sparserl.families import Spec
from sparserl.matrix import Pattern

Split = Literal["train", "dev", "seen", "unseen", "real"]
SPLITS: tuple[Split, ...] = get_args(Split)
TESTS: tuple[Split, ...] = ("seen", "unseen", "real")


@cache
def _stored() -> dict[str, Any]:
    text = resources.files("sparserl").joinpath("splits.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def withheld_families() -> frozenset[str]:
    """Families that no training matrix comes from: those of 'unseen' and those of 'dev'."""
    return frozenset(_stored()["families"])


def base_family(family: str, params: Mapping[str, Any]) -> str:
    """The family itself, or the one that a permuted matrix is made of."""
    return str(params.get("of", family)) if family == "permuted" else family


def seed_range(split: Literal["train", "dev", "unseen"]) -> range:
    """The seeds that drawn matrices of a split have; the evaluation list has its own, outside all of them."""
    first, last = _stored()["seeds"][split]
    return range(first, last)


def origin_groups() -> dict[str, tuple[str, ...]]:
    """Real matrices by origin group."""
    return {group["group"]: tuple(group["matrices"]) for group in _stored()["real"]}


@cache
def _real_split() -> dict[str, Split]:
    return {name: group["split"] for group in _stored()["real"] for name in group["matrices"]}


def split_of(case: Case) -> Split:
    """Where a matrix of the evaluation list, or one stored with the splits, belongs."""
    if case.kind == "real":
        if case.name not in _real_split():
            raise MatrixError(f"The real matrix {case.name!r} is in no origin group: add it to splits.json.")
        return _real_split()[case.name]
    withheld = _stored()["families"].get(base_family(case.family, case.params))
    drawn_for_dev = case.seed in seed_range("dev")
    found: Split = "dev" if drawn_for_dev or withheld == "dev" else "unseen" if withheld else "seen"
    return found


@cache
def cases(split: Split) -> tuple[Case, ...]:
    """The matrices of a split. Of 'train' only the real ones: `train.cases` draws the others from their seeds."""
    if split not in SPLITS:
        raise MatrixError(f"The 'split' must be one of {', '.join(SPLITS)}. Got {split!r}.")
    stored = tuple(Case(**entry) for entry in _stored()["drawn"])
    return tuple(case for case in (*evaluation_list(), *stored) if split_of(case) == split)


@cache
def held_out_fingerprints() -> Mapping[str, str]:
    """The first 16 digits of the fingerprint of every matrix that may not train → its name."""
    return {case.fingerprint: case.name for split in SPLITS if split != "train" for case in cases(split)}


def may_train(spec: Spec) -> bool:
    """Whether a generated matrix may be used in training: its seed, its family and what it is made of say so."""
    return spec.seed in seed_range("train") and base_family(spec.family, spec.params) not in withheld_families()


def check_training(pattern: Pattern) -> None:
    """Raise MatrixError for a pattern that is held out; families without chance give equal ones for other seeds."""
    name = held_out_fingerprints().get(pattern.fingerprint()[:16])
    if name is not None:
        raise MatrixError(
            f"This pattern of {pattern.rows} x {pattern.columns} is the held-out matrix {name!r}: it may not train. "
            "Draw another."
        )
