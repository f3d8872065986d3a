"""What fine-tuning learns from: the programs of one collection, or of one and of another that is gone over again.

A collection that was measured has hundreds of matrices, the estimates that a policy learnt reading from have thousands.
Three epochs on the measured ones alone unlearn what the others taught: of the layouts that it names on other matrices,
0.6 % were refused before them and 5.6 % after. So a share of the draws may come from the earlier collection (`joined`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparserl.errors import SparseRLError
from sparserl.matrix import Array
from sparserl.policy.tokenizer import Tokenizer
from sparserl.train.chosen import ChoiceRules, Chosen, choose, fraction_of, with_bodies
from sparserl.train.collected import Collection
from sparserl.train.forks import Forked, all_forks
from sparserl.train.samples import Sampled

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """A collection as it was read; several runs may share it."""

    collection: Collection
    samples: Mapping[str, Sampled]
    misfits: Mapping[tuple[str, str], Sequence[str]]
    ids: dict[str, Array]
    """of programs that were encoded already"""


@dataclass(frozen=True)
class Lessons:
    """Programs with their weights, and what is known of them."""

    train: Sequence[Chosen]
    dev: Sequence[Chosen]
    ids: Mapping[str, Array]
    """tokens of the programs; one that is too long is missing"""
    samples: Mapping[str, Sampled]
    forked: Forked | None
    """None: forks were not looked for"""
    draws: int
    """of an epoch: as many as there are programs for the usual mode, and those for chains and of bodies beside"""


def lessons(
    known: Known, rules: ChoiceRules, *, longest: int, gap: float | None, fraction: float = 1.0, seed: int = 0
) -> Lessons:
    """Of one collection. gap: at a fork a worse way is slower by more than this; None: forks are not looked for."""
    collection, samples = known.collection, known.samples
    structures = {name: each.structure for name, each in samples.items()}
    train, dev = choose(collection, structures, rules)
    train = fraction_of(train, fraction, seed, rules)
    train = with_bodies(train, collection, structures, rules, fraction=fraction, seed=seed)
    programs = {each.program for each in (*train, *dev)} if gap is None else set(collection.texts)
    new = sorted(programs - known.ids.keys())
    known.ids.update(encode_programs({name: collection.texts[name].text for name in new}, longest))
    ids = {name: known.ids[name] for name in programs & known.ids.keys() if len(known.ids[name]) <= longest}
    train, dev = ([each for each in part if each.program in ids] for part in (train, dev))
    if not train:
        raise SparseRLError("No program of the collection is short enough to learn from: raise --longest.")
    forked = None if gap is None else all_forks(collection, (*train, *dev), ids, known.misfits, gap)
    whole = [each.weight for each in train if not each.body and each.mode == rules.mode]
    draws = round(len(whole) * sum(each.weight for each in train) / sum(whole))
    return Lessons(train, dev, ids, samples, forked, draws)


def without(known: Known, others: Collection) -> Known:
    """The same without the matrices that another collection has for the same problem."""
    there = {(case.name, case.problem) for case in others.cases}
    cases = tuple(case for case in known.collection.cases if (case.name, case.problem) not in there)
    return replace(known, collection=replace(known.collection, cases=cases))


def joined(own: Lessons, again: Lessons, share: float) -> Lessons:
    """A share of the draws for what is gone over again; an epoch has as many of its own as it had. Dev is its own.

    The two have no matrix and problem in common.
    """
    total, others = (sum(each.weight for each in part.train) for part in (own, again))
    train = [replace(each, weight=(1 - share) * each.weight / total) for each in own.train]
    train += [replace(each, weight=share * each.weight / others) for each in again.train]
    forked = None if own.forked is None else {**(again.forked or {}), **own.forked}
    ids, samples = {**again.ids, **own.ids}, {**again.samples, **own.samples}
    return Lessons(train, own.dev, ids, samples, forked, round(own.draws / (1 - share)))


def encode_programs(programs: Mapping[str, str], longest: int, tokenizer: Tokenizer | None = None) -> dict[str, Array]:
    """Ids by program; those that are too long, or no canonical program, are left out and counted in the log."""
    tokenizer = tokenizer or Tokenizer.load()
    found: dict[str, Array] = {}
    for name, text in programs.items():
        try:
            ids = tokenizer.encode_program(text)
        except SparseRLError:
            continue
        if len(ids) <= longest:
            found[name] = np.array(ids, dtype=np.int32)
    if len(found) < len(programs):
        log.info("%d of %d programs are left out: too long, or unreadable", len(programs) - len(found), len(programs))
    return found
