"""Two-turn examples from a collection: a program, what was said of it, and a better one made from it.

    <program> parent <eos> <feedback> line <program> child <eos>

The loss is on the child alone; `train/turns` is the stage that learns them. Two kinds: `faster`, a right parent and its
variant that is faster by more than the tie on the same matrix; `repair`, a program that failed and a right one that is
its variant or its parent. No child is slower than `slowest` of the best known there, neither of the two is withheld,
and a matrix that fine-tuning keeps for its dev loss stays there. Every matrix counts the same.

Not covered: chains of three programs, and pairs of two matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Literal

import numpy as np
import torch

from sparserl.errors import SparseRLError
from sparserl.matrix import Array
from sparserl.policy.encoder import EncoderInput
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode
from sparserl.train.batches import padded
from sparserl.train.chosen import ChoiceRules, is_dev
from sparserl.train.collected import TIE, CollectedCase, Collection, Measurement
from sparserl.train.rl.episodes import feedback_ids
from sparserl.train.rl.nouns import Judged
from sparserl.train.rl.objective import Batch
from sparserl.train.withheld import withheld_text

Kind = Literal["faster", "repair"]


@dataclass(frozen=True)
class PairRules:
    """Which pairs are taken."""

    tie: float = TIE
    """a child must be faster by more than this share; by twice as much where one of the two was timed briefly"""
    slowest: float = 0.8
    """of the speed of the matrix's best program: slower children teach nothing that is kept"""
    most: int = 6
    """pairs of the kind `faster` a matrix and problem, those with the fastest children"""
    repairs: int = 2
    """pairs of the kind `repair`, the same"""
    choice: ChoiceRules = field(default_factory=ChoiceRules)
    """whose mode counts, and which matrices are kept for the dev loss"""

    def __post_init__(self) -> None:
        if self.tie < 0 or not 0 <= self.slowest <= 1 or self.most < 0 or self.repairs < 0:
            raise SparseRLError(
                "The 'tie', 'most' and 'repairs' of PairRules must not be negative, 'slowest' in [0, 1]. "
                f"Got {self.tie}, {self.most}, {self.repairs} and {self.slowest}."
            )


@dataclass(frozen=True)
class TurnPair:
    """Two programs of one matrix and problem."""

    case: str
    problem: str
    kind: Kind
    parent: str
    child: str
    """hashes of the texts"""
    judged: Judged
    """of the parent"""
    gain: float
    """log of the parent's time over the child's; 0 for a repair"""
    mode: Mode = "solver"
    """whose times"""
    weight: float = 1.0
    """its share of the draws"""


@dataclass(frozen=True, eq=False)
class Example:
    """A sequence to learn from, as tokens, for one matrix and problem."""

    case: str
    problem: str
    ids: Array
    """int32, (tokens)"""
    written: Array
    """bool, (tokens): what is learnt; of a pair the child, its <eos> included"""
    weight: float = 1.0
    """its share of the draws"""
    mode: Mode = "solver"
    """what it is for"""


def find_pairs(collection: Collection, rules: PairRules | None = None) -> tuple[list[TurnPair], list[TurnPair]]:
    """(training, dev), in the collection's order, with weights that sum to 1 in each."""
    rules = rules or PairRules()
    train: list[TurnPair] = []
    dev: list[TurnPair] = []
    for case in collection.cases:
        (dev if is_dev(case, rules.choice) else train).extend(_of_case(case, collection, rules))
    return _weighted(train), _weighted(dev)


def _of_case(case: CollectedCase, collection: Collection, rules: PairRules) -> list[TurnPair]:
    measured = {each.program: each for each in case.programs if not withheld_text(collection.texts[each.program].text)}
    found: dict[Kind, list[tuple[float, TurnPair]]] = {"faster": [], "repair": []}
    for child in measured.values():
        first = collection.texts[child.program].parents[:1]
        if not first or first[0] not in measured or first[0] == child.program:
            continue
        pair = _pair(case, measured[first[0]], child, rules)
        if pair is not None:
            speed = measured[pair.child].speed.get(rules.choice.mode, 0.0)
            if speed >= rules.slowest:
                found[pair.kind].append((speed, pair))
    kept = []
    limits: dict[Kind, int] = {"faster": rules.most, "repair": rules.repairs}
    for kind, most in limits.items():
        order = sorted(found[kind], key=lambda each: (-each[0], -each[1].gain, each[1].child, each[1].parent))
        kept += [pair for _, pair in order[:most]]
    return kept


def _pair(case: CollectedCase, parent: Measurement, child: Measurement, rules: PairRules) -> TurnPair | None:
    """A variant and what it was made from, whichever way round there is something to learn."""
    mode = rules.choice.mode
    if parent.correct and child.correct:
        if mode not in parent.times_us or mode not in child.times_us:
            return None
        gain = log(parent.times_us[mode] / child.times_us[mode])
        tie = log(1 + rules.tie) * (1 if parent.retimed and child.retimed else 2)
        return _made(case, parent, child, kind="faster", gain=gain, mode=mode) if gain > tie else None
    if parent.correct == child.correct:
        return None
    failed, right = (child, parent) if parent.correct else (parent, child)
    return _made(case, failed, right, kind="repair", gain=0.0, mode=mode)


def _made(
    case: CollectedCase, parent: Measurement, child: Measurement, *, kind: Kind, gain: float, mode: Mode
) -> TurnPair:
    judged = Judged(
        parent.verdict,
        parent.reason,
        times_us=dict(parent.times_us) if parent.correct else {},
        baseline_us=dict(case.baseline_us),
        floor_us=dict(parent.floor_us),
        registers=parent.registers,
        retimed=parent.retimed,
        source="collected",
    )
    return TurnPair(case.name, case.problem, kind, parent.program, child.program, judged, gain, mode)


def _weighted(pairs: list[TurnPair]) -> list[TurnPair]:
    each: dict[tuple[str, str], int] = {}
    for pair in pairs:
        each[pair.case, pair.problem] = each.get((pair.case, pair.problem), 0) + 1
    return [replace(pair, weight=1 / (len(each) * each[pair.case, pair.problem])) for pair in pairs]


def encode_pairs(
    pairs: Iterable[TurnPair], collection: Collection, longest: int, tokenizer: Tokenizer | None = None
) -> list[Example]:
    """As tokens. Those of more than `longest` tokens, or whose text is no canonical program, are left out."""
    tokenizer = tokenizer or Tokenizer.load()
    found = []
    for pair in pairs:
        try:
            parent, child = (
                tokenizer.encode_program(collection.texts[each].text) for each in (pair.parent, pair.child)
            )
        except SparseRLError:
            continue
        given = parent + feedback_ids(pair.judged, (pair.mode,), tokenizer)  # ends with the child's <program>
        ids = np.array(given + child[1:], dtype=np.int32)
        if len(ids) <= longest:
            learnt = np.arange(len(ids)) >= len(given)
            found.append(Example(pair.case, pair.problem, ids, learnt, pair.weight, pair.mode))
    return found


def imitation_batch(examples: Sequence[Example], matrix: EncoderInput, device: torch.device | str = "cpu") -> Batch:
    """What `objective.imitation` takes, every token that is learnt counting 1. matrix: one an example."""
    ids, _ = padded([each.ids for each in examples])
    written = np.zeros(ids.shape, dtype=bool)
    for row, each in zip(written, examples, strict=True):
        row[: len(each.written)] = each.written
    tokens = torch.from_numpy(ids).to(device)
    none = torch.zeros(tokens.shape, device=device)
    ones = torch.ones((len(examples), 1), device=device)
    return Batch(tokens, torch.from_numpy(written).to(device), none, ones, matrix.to(device))
