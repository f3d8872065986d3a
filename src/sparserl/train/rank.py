"""Stage: the ranking pass. Of two measured programs for a matrix, the better one is made more probable.

    sparserl train rank --collection DIR --weights runs/sft --out runs/rank [--resume]

A pair is two programs of one matrix and problem: the winner among those that fine-tuning learnt from, the loser slower
by more than the noise, or, for some pairs, one that failed there or would (`misfits`). The loss is that of direct
preference optimisation, with the fine-tuned weights as the reference, and an anchor:

    -log sigmoid(beta * ((log q(w) - log q_ref(w)) - (log q(l) - log q_ref(l))))
        + anchor * beta * max(0, log p_ref(w) - log p(w) - slack)

q is the probability of what was decided, from where the two texts part: of the rest of the header, or, under one
header, of the next few tokens. The body that follows from a header is left alone: making a loser's body less probable
under its own header unlearns how to write it (with whole texts, a third of the samples that had been right no longer
were). p is the probability of the whole winner: losing a nat of it costs more than a nat of the margin can earn.

The reference's log-probabilities are computed once and kept in OUT/reference.npz. The share of dev pairs in which the
winner is the more probable one is written down before and after (checks.jsonl: step 0 and the last).

Not covered: pairs across matrices; fresh samples of the policy (that is reinforcement learning); going on elsewhere
from the weights of a broken-off pass, which would change the reference.
"""

from __future__ import annotations

import hashlib
import io
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sparserl.errors import SparseRLError
from sparserl.matrix import Array
from sparserl.policy.model import Policy
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode
from sparserl.store import append_jsonl, content_key, write_atomic, write_json
from sparserl.train import collected
from sparserl.train.chosen import ChoiceRules, is_dev, timed
from sparserl.train.collected import CollectedCase, Collection
from sparserl.train.loop import (
    CHECKS,
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
    weights_sha,
)
from sparserl.train.misfits import read_misfits
from sparserl.train.samples import Sampled
from sparserl.train.sft import Places, Prompts, asked, encode_programs, matrix_samples, token_log_probs
from sparserl.train.withheld import withheld_text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankConfig:
    """Which pairs, and how hard they pull."""

    beta: float = 0.1
    anchor: float = 2.0
    """what a nat that the winner loses costs, in nats of the margin"""
    slack: float = 0.5
    """nats of the whole winner that may be lost free: rounding alone moves it by some"""
    decision: int = 16
    """tokens that count from where two bodies part"""
    gap: float = 0.06
    """a loser is slower by more than this, as a logarithm: twice the noise of a timing"""
    pairs: int = 16
    """of a matrix and problem, at most"""
    failed_share: float = 0.25
    """of them, at most, against a program that failed on that matrix, or a misfit"""
    batch_pairs: int = 16
    longest: int = 2560
    """tokens of a program"""
    epochs: int = 1
    target: str = "h200"
    """the machine that the collection was measured on"""
    rules: ChoiceRules = field(default_factory=ChoiceRules)
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(learning_rate=2e-5, weight_decay=0.0, warmup=20))

    def __post_init__(self) -> None:
        if not self.beta > 0 or self.anchor < 0 or self.gap <= 0:
            raise SparseRLError("The ranking pass needs 'beta' and 'gap' above 0 and an 'anchor' of at least 0.")
        if min(self.pairs, self.batch_pairs, self.epochs, self.decision) < 1 or not 0 <= self.failed_share <= 1:
            raise SparseRLError(
                "'pairs', 'batch_pairs', 'epochs' and 'decision' must be at least 1, 'failed_share' 0..1."
            )


@dataclass(frozen=True)
class Pair:
    """Hashes of two programs of one matrix and problem."""

    case: str
    problem: str
    winner: str
    loser: str
    mode: Mode = "solver"


def pairs_of(
    case: CollectedCase, collection: Collection, config: RankConfig, misfits: Sequence[str] = ()
) -> list[Pair]:
    """A fixed random choice of a case's pairs, by every mode that fine-tuning asks for."""
    rules = config.rules
    others = {mode: int(share * config.pairs) for mode, share in rules.modes.items() if mode != rules.mode}
    counts = {rules.mode: config.pairs - sum(others.values()), **others}
    return [
        pair
        for mode, count in counts.items()
        if count
        for pair in _of_mode(case, collection, replace(config, pairs=count), misfits, mode)
    ]


def _of_mode(
    case: CollectedCase, collection: Collection, config: RankConfig, misfits: Sequence[str], mode: Mode
) -> list[Pair]:
    found = timed(case, collection, mode)
    if not found:
        return []
    best = found[0][0]
    winners = [(us, m) for us, m in found if us - best <= config.rules.reach * config.rules.tau][: config.rules.most]
    slower = [(w.program, m.program) for us, w in winners for other, m in found if other - us > config.gap]
    failed = [m.program for m in case.programs if not m.correct] + [p for p in misfits if p in collection.texts]
    failed = [program for program in failed if not withheld_text(collection.texts[program].text)]
    broken = [(w.program, program) for _, w in winners for program in failed]
    seed = hashlib.sha256(f"{config.loop.seed} {case.name} {case.problem} {mode}".encode()).digest()
    rng = np.random.default_rng(list(seed))
    few = min(len(broken), round(config.failed_share * config.pairs))
    drawn = [broken[i] for i in rng.permutation(len(broken))[:few]]
    drawn += [slower[i] for i in rng.permutation(len(slower))[: config.pairs - few]]
    return [Pair(case.name, case.problem, winner, loser, mode) for winner, loser in drawn]


def decided(one: Array, other: Array, count: int) -> tuple[slice, slice]:
    """The tokens of two programs that their difference was decided by: see the head of this file."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    first = int(differ[0]) if len(differ) else shorter
    ends = [int(np.flatnonzero(ids == Tokenizer.code)[0]) for ids in (one, other)]
    if first <= min(ends):  # the headers part; what ends the one is a decision too
        return slice(first, ends[0] + 1), slice(first, ends[1] + 1)
    return slice(first, first + count), slice(first, first + count)


def preference(policy_margin: Tensor, reference_margin: Tensor, beta: float) -> Tensor:
    """-log sigmoid(beta * (margin - reference margin)), a pair each; a margin is log p(w) - log p(l)."""
    return -logsigmoid(beta * (policy_margin - reference_margin))


class Ranking:
    """The task: batches of pairs in a fixed random order."""

    stage = "rank"

    def __init__(
        self,
        config: RankConfig,
        policy: Policy,
        pairs: tuple[Sequence[Pair], Sequence[Pair]],
        ids: Mapping[str, Array],
        samples: Mapping[str, Sampled],
    ) -> None:
        self.config, self.device = config, device_of(config.loop.device)
        self.policy = policy.to(self.device)
        self.train, self.dev = ([p for p in part if p.winner in ids and p.loser in ids] for part in pairs)
        if not self.train:
            raise SparseRLError(
                f"The collection has no two programs of one matrix that differ by more than {config.gap}: collect more."
            )
        self._ids = ids
        self._prompts = Prompts(asked((*self.train, *self.dev)), samples, config.target, self.device)
        self._order = self._all_batches()
        self.steps = len(self._order)
        compile_layers(self.policy, config.loop)
        self.reference: dict[Pair, tuple[float, ...]] = {}
        """as `_both` gives them"""

    def _all_batches(self) -> list[Array]:
        each = min(self.config.batch_pairs, len(self.train))
        batches: list[Array] = []
        for epoch in range(self.config.epochs):
            order = np.random.default_rng([self.config.loop.seed, epoch, 2]).permutation(len(self.train))
            batches += [order[at : at + each] for at in range(0, len(order) - each + 1, each)]
        return batches

    def _both(self, pairs: Sequence[Pair]) -> tuple[Tensor, int]:
        """(pairs, 3): log-probabilities of what winners and losers decided, and of whole winners; and tokens read."""
        won, lost = [self._ids[each.winner] for each in pairs], [self._ids[each.loser] for each in pairs]
        ids, matrix = self._prompts.batch(asked(pairs) * 2, won + lost)
        counted = torch.zeros(ids.shape, dtype=torch.bool)
        for row, (one, other) in enumerate(zip(won, lost, strict=True)):
            of_one, of_other = decided(one, other, self.config.decision)
            counted[row, of_one] = counted[row + len(pairs), of_other] = True
        with autocast(self.device):
            log_probs = token_log_probs(self.policy, ids, matrix)  # 0 for padding
        sums = (log_probs * counted[:, 1:].to(self.device)).sum(dim=1)
        whole = log_probs[: len(pairs)].sum(dim=1)
        return torch.stack([sums[: len(pairs)], sums[len(pairs) :], whole], dim=1), sum(map(len, won + lost))

    def _reference(self, pairs: Sequence[Pair]) -> Tensor:
        return torch.tensor([self.reference[each] for each in pairs], device=self.device)

    def loss(self, step: int) -> Step:
        config, pairs = self.config, [self.train[index] for index in self._order[step]]
        (now, tokens), before = self._both(pairs), self._reference(pairs)
        preferred = preference(now[:, 0] - now[:, 1], before[:, 0] - before[:, 1], config.beta).mean()
        kept = now[:, 2] - before[:, 2]
        lost = torch.relu(-kept - config.slack).mean()
        parts = {"preference": preferred, "lost": lost, "kept": kept.mean()}
        return Step(preferred + config.anchor * config.beta * lost, tokens, parts)

    def check(self) -> dict[str, float]:
        """On dev pairs, by what was decided: how often the winner is the more probable one, and more so than before."""
        right = moved = 0
        loss = kept = 0.0
        for at in range(0, len(self.dev), 16):
            part = self.dev[at : at + 16]
            now, before = self._both(part)[0], self._reference(part)
            margin, was = now[:, 0] - now[:, 1], before[:, 0] - before[:, 1]
            right += int((margin > 0).sum())
            moved += int((margin > was).sum())
            loss += float(preference(margin, was, self.config.beta).sum())
            kept += float((now[:, 2] - before[:, 2]).sum())
        figures = {"pair_accuracy": right, "moved_right": moved, "dev_preference": loss, "dev_kept": kept}
        return {name: value / len(self.dev) for name, value in figures.items()} if self.dev else {}

    @torch.no_grad()
    def refer(self, path: Path, key: str) -> None:
        """Fill `reference` from the policy as it is now, or from `path` where that was done for the same weights."""
        pairs = [*self.train, *self.dev]
        if path.exists():
            with np.load(path) as file:
                if str(file["key"]) == key and len(file["sums"]) == len(pairs):
                    self.reference = {p: tuple(each.tolist()) for p, each in zip(pairs, file["sums"], strict=True)}
                    return
        self.policy.eval()
        found: list[tuple[float, ...]] = []
        for at in range(0, len(pairs), 16):
            found += map(tuple, self._both(pairs[at : at + 16])[0].tolist())
        buffer = io.BytesIO()
        np.savez_compressed(buffer, sums=np.array(found), key=np.array(key))
        write_atomic(path, buffer.getvalue())
        self.reference = dict(zip(pairs, found, strict=True))


def rank(config: RankConfig, places: Places, watch: Watch | None = None) -> Finished:
    """The whole stage."""
    clock_s = time.monotonic()
    if places.weights is None:
        raise SparseRLError("The ranking pass needs fine-tuned weights: give --weights DIR, the folder of an SFT run.")
    goes_on = open_run(places.out, "rank", asdict(config), places.resume)
    collection = collected.load(places.collection)
    samples = matrix_samples(places, collection)
    train: list[Pair] = []
    dev: list[Pair] = []
    misfits = read_misfits(places.collection)
    for case in collection.cases:
        pairs = pairs_of(case, collection, config, misfits.get((case.name, case.problem), ()))
        (dev if is_dev(case, config.rules) else train).extend(pairs)
    programs = {name for pair in (*train, *dev) for name in (pair.winner, pair.loser)}
    ids = encode_programs({name: collection.texts[name].text for name in sorted(programs)}, config.longest)
    policy, broke_off = start_from(places.weights, "rank")
    if broke_off.step:
        raise SparseRLError(f"{places.weights} is a broken-off ranking pass: give the fine-tuned weights.")
    task = Ranking(config, policy, (train, dev), ids, samples)
    judged = [asdict(each) for each in (*task.train, *task.dev)]
    key = content_key({"weights": weights_sha(places.weights), "decision": config.decision, "pairs": judged})
    task.refer(places.out / "reference.npz", key)
    write_json(places.out / "data.json", {"train_pairs": len(task.train), "dev_pairs": len(task.dev)})
    if not goes_on:
        with torch.no_grad():
            append_jsonl(places.out / CHECKS, {"step": 0, **task.check()})
    return run(task, config.loop, places.out, Start(goes_on, clock_s=clock_s), watch)
