"""Which measured programs fine-tuning learns from, and how much each counts.

Of every matrix, problem and mode the right programs within a few `tau` of the fastest, at most eight, those of
equal header and machine code merged into one, none with a withheld combination of features. A program counts

    exp(log speed / tau), normalised over its matrix and problem,

and matrices count so that structure classes are even within a problem. At least `variant_share` of the programs are
verified variants, not recipe text: variants have that share of a matrix's places first, and where a collection has too
few of them, the recipes that count least are left out. The weights of variants are raised by one factor until they also
hold that share of all draws.

A matrix is asked for twice where both kinds of times are known: for `mode`, and for a chain of products, which wants
other programs (the policy is told which). Beside them, for a share of the draws, stand the other right programs of the
collection, each once, fast or slow: of those the body is learnt and not the header, so that a policy can write under
headers that it would seldom choose. Not covered: programs that failed (`forks` uses them).
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log

import numpy as np

from sparserl.errors import SparseRLError
from sparserl.matrix import Array
from sparserl.records import Mode
from sparserl.train.collected import CollectedCase, Collection, Measurement
from sparserl.train.withheld import withheld_text

logger = logging.getLogger(__name__)

LARGEST_LIFT = 20.0
"""of the weights of variants: within four tau, the slowest program counts a fiftieth of the fastest"""


@dataclass(frozen=True)
class ChoiceRules:
    """How programs are chosen."""

    tau: float = 0.03
    """of the logarithm of speed: about the noise of a timing"""
    reach: float = 4.0
    """programs further behind the fastest than so many tau are left out"""
    most: int = 8
    """programs a matrix, problem and mode"""
    variant_share: float = 0.4
    """of the programs, at least, and of the draws"""
    mode: Mode = "solver"
    """whose times count"""
    chain: float = 0.3
    """share of a matrix's draws that are for products behind one another, where such times are known"""
    dev_share: float = 0.05
    """of the matrices, kept for the dev loss and never trained on; chosen by name"""
    heaviest: float = 4.0
    """a matrix of a rare class counts at most so many times the average"""
    bodies: float = 0.25
    """share of the draws that are other right programs, of which the header is given and not learnt"""

    def __post_init__(self) -> None:
        if not self.tau > 0 or not self.reach > 0 or self.most < 1:
            raise SparseRLError("The 'tau', 'reach' and 'most' of ChoiceRules must be above 0.")
        if not 0 <= self.variant_share < 1 or not 0 <= self.dev_share < 1:
            raise SparseRLError("The 'variant_share' and 'dev_share' of ChoiceRules must be at least 0 and below 1.")
        if not 0 <= self.chain < 1:
            raise SparseRLError(f"The 'chain' of ChoiceRules must be at least 0 and below 1. Got {self.chain}.")
        if not 0 <= self.bodies < 1:
            raise SparseRLError(f"The 'bodies' of ChoiceRules must be at least 0 and below 1. Got {self.bodies}.")

    @property
    def modes(self) -> dict[Mode, float]:
        """What a matrix is asked for, and how often."""
        if self.mode == "chain" or not self.chain:
            return {self.mode: 1.0}
        return {self.mode: 1.0 - self.chain, "chain": self.chain}


@dataclass(frozen=True)
class Chosen:
    """One program of one matrix and problem."""

    case: str
    problem: str
    structure: str
    program: str
    """hash of its text"""
    variant: bool
    behind: float
    """log of its time over the fastest one's"""
    weight: float = 1.0
    """its share of the draws"""
    body: bool = False
    """its header is given: what follows it is learnt alone"""
    mode: Mode = "solver"
    """whose times"""


def is_dev(case: CollectedCase, rules: ChoiceRules) -> bool:
    """Whether a matrix is kept for the dev loss: by its name, so under every problem alike.

    What a real matrix was made into goes by the name of that one.
    """
    if case.split != "train":
        return True
    name = str(case.source.get("real", case.name))
    return hashlib.sha256(name.encode()).digest()[0] < rules.dev_share * 256


def timed(case: CollectedCase, collection: Collection, mode: Mode) -> list[tuple[float, Measurement]]:
    """(log of microseconds, program), the fastest first: right, not withheld, one of each machine code.

    Where some were timed longer, those alone: the least of many brief times is luck.
    """
    right = [m for m in case.correct if mode in m.times_us and not withheld_text(collection.texts[m.program].text)]
    right = [m for m in right if m.retimed] or right
    kept: dict[tuple[str, str], Measurement] = {}
    for each in sorted(right, key=lambda m: (len(collection.texts[m.program].text), m.program)):
        kept.setdefault(collection.texts[each.program].same, each)
    return sorted(((log(m.times_us[mode]), m) for m in kept.values()), key=lambda pair: (pair[0], pair[1].program))


def choose(
    collection: Collection, structures: Mapping[str, str], rules: ChoiceRules
) -> tuple[list[Chosen], list[Chosen]]:
    """(training, dev), with weights. structures: class by case name."""
    train: list[Chosen] = []
    dev: list[Chosen] = []
    for case in collection.cases:
        (dev if is_dev(case, rules) else train).extend(_of_case(case, collection, structures[case.name], rules))
    if not train:
        raise SparseRLError("The collection has no right program to learn from: add to it, `sparserl train collect`.")
    return weighted(_enough_variants(train, rules), rules), weighted(dev, rules)


def _of_case(case: CollectedCase, collection: Collection, structure: str, rules: ChoiceRules) -> list[Chosen]:
    return [each for mode in rules.modes for each in _of_mode(case, collection, structure, rules, mode)]


def _of_mode(
    case: CollectedCase, collection: Collection, structure: str, rules: ChoiceRules, mode: Mode
) -> list[Chosen]:
    found = timed(case, collection, mode)
    near = [
        Chosen(case.name, case.problem, structure, m.program, m.origin == "variant", us - found[0][0], mode=mode)
        for us, m in found
        if us - found[0][0] <= rules.reach * rules.tau
    ]
    places = ceil(rules.variant_share * min(rules.most, len(near)))
    first = [each for each in near if each.variant][:places]
    rest = [each for each in near if each not in first][: rules.most - len(first)]
    return sorted(first + rest, key=lambda each: (each.behind, each.program))


def _enough_variants(chosen: list[Chosen], rules: ChoiceRules) -> list[Chosen]:
    """Without the recipes that count least, until variants have their share; every matrix keeps a program."""
    variants = sum(each.variant for each in chosen)
    surplus = len(chosen) - (int(variants / rules.variant_share) if rules.variant_share else len(chosen))
    left = Counter((each.case, each.problem, each.mode) for each in chosen)
    dropped: set[Chosen] = set()
    recipes = (each for each in chosen if not each.variant)
    for each in sorted(recipes, key=lambda c: (-c.behind, c.case, c.problem, c.mode, c.program)):
        if len(dropped) >= surplus:
            break
        if left[each.case, each.problem, each.mode] > 1:
            left[each.case, each.problem, each.mode] -= 1
            dropped.add(each)
    kept = [each for each in chosen if each not in dropped]
    if len(dropped) < surplus:
        share = variants / len(kept)
        logger.warning("only %.0f %% of the programs are variants, not %.0f %%: collect more of them",
                       100 * share, 100 * rules.variant_share)  # fmt: skip
    return kept


def weighted(chosen: Sequence[Chosen], rules: ChoiceRules) -> list[Chosen]:
    """The same with weights that sum to 1."""
    if not chosen:
        return []
    low, high = 0.0, log(LARGEST_LIFT)
    weights = _weights(chosen, rules, 0.0)
    variant = np.array([each.variant for each in chosen])
    if variant.any() and weights[variant].sum() < rules.variant_share:
        for _ in range(20):  # the share grows with the lift: bisect
            middle = (low + high) / 2
            enough = _weights(chosen, rules, middle)[variant].sum() >= rules.variant_share
            low, high = (low, middle) if enough else (middle, high)
        weights = _weights(chosen, rules, high)
    return [replace(each, weight=float(weight)) for each, weight in zip(chosen, weights, strict=True)]


def _weights(chosen: Sequence[Chosen], rules: ChoiceRules, lift: float) -> Array:
    own = np.array([exp(-each.behind / rules.tau + lift * each.variant) for each in chosen])
    groups = [(each.problem, each.case, each.mode) for each in chosen]
    total: Counter[tuple[str, str, Mode]] = Counter()
    for group, weight in zip(groups, own, strict=True):
        total[group] += weight  # type: ignore[assignment]  # a Counter of floats
    mass = _masses({group[:2]: each.structure for group, each in zip(groups, chosen, strict=True)}, rules)
    part = _parts(total, rules)
    found = np.array([w / total[group] * mass[group[:2]] * part[group] for group, w in zip(groups, own, strict=True)])
    return np.asarray(found / found.sum())


def _parts(groups: Iterable[tuple[str, str, Mode]], rules: ChoiceRules) -> dict[tuple[str, str, Mode], float]:
    """How much of its matrix every mode has: all of it where there is no other."""
    sums: Counter[tuple[str, str]] = Counter()
    for problem, case, mode in groups:
        sums[problem, case] += rules.modes.get(mode, 1.0)  # type: ignore[assignment]  # a Counter of floats
    return {group: rules.modes.get(group[2], 1.0) / sums[group[:2]] for group in groups}


def _masses(structures: Mapping[tuple[str, str], str], rules: ChoiceRules) -> dict[tuple[str, str], float]:
    """How much every (problem, case) counts: a problem by its cases, its classes evenly, none above `heaviest`."""
    cases = Counter(problem for problem, _ in structures)
    sizes = Counter((problem, structure) for (problem, _), structure in structures.items())
    classes = Counter(problem for problem, _ in sizes)
    return {
        (problem, case): min(rules.heaviest, cases[problem] / (classes[problem] * sizes[problem, structure]))
        for (problem, case), structure in structures.items()
    }


def fraction_of(chosen: Sequence[Chosen], fraction: float, seed: int, rules: ChoiceRules) -> list[Chosen]:
    """A random part of the pairs, weighted anew; of one seed a smaller part lies in a larger one."""
    if not 0 < fraction <= 1:
        raise SparseRLError(f"The 'fraction' of the pairs must be above 0 and at most 1. Got {fraction}.")
    if fraction == 1:
        return list(chosen)
    order = np.random.default_rng([seed, 77]).permutation(len(chosen))
    kept = np.sort(order[: max(1, round(fraction * len(chosen)))])
    return weighted([chosen[index] for index in kept], rules)


def with_bodies(
    chosen: Sequence[Chosen],
    collection: Collection,
    structures: Mapping[str, str],
    rules: ChoiceRules,
    *,
    fraction: float = 1.0,
    seed: int = 0,
) -> list[Chosen]:
    """The same, and other right programs, each on one matrix of training where it was right: this fraction of them."""
    taken = {each.program for each in chosen}
    found: dict[str, list[Chosen]] = {}
    for case in collection.cases:
        structure = structures[case.name]
        for each in () if is_dev(case, rules) else case.correct:
            if each.program not in taken and not withheld_text(collection.texts[each.program].text):
                one = Chosen(case.name, case.problem, structure, each.program, each.origin == "variant", 0.0, body=True,
                             mode=rules.mode)  # fmt: skip
                found.setdefault(each.program, []).append(one)
    drawn = {program: _drawn(f"{seed} {program}") for program in found}
    kept = [ones[drawn[program] % len(ones)] for program, ones in sorted(found.items())
            if drawn[program] < fraction * 2**64]  # fmt: skip
    if not kept or not rules.bodies:
        return list(chosen)
    bodies = [replace(each, weight=rules.bodies / len(kept)) for each in kept]
    return [replace(each, weight=(1 - rules.bodies) * each.weight) for each in chosen] + bodies


def _drawn(name: str) -> int:
    """A number below 2^64 that goes by the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def shares(chosen: Sequence[Chosen]) -> dict[str, float]:
    """What a run writes down of its data."""
    return {
        "programs": float(len(chosen)),
        "matrices": float(len({(each.case, each.problem) for each in chosen})),
        "variant_share": sum(each.variant for each in chosen) / max(1, len(chosen)),
        "variant_draws": sum(each.weight for each in chosen if each.variant),
        "bodies": float(sum(each.body for each in chosen)),
    }
