"""Stage: the ranking pass. Of two measured programs for a matrix, the better one is made more probable.

    sparserl train rank --collection DIR --weights runs/sft --out runs/rank [--resume]

A pair is two programs of one matrix and problem: the winner among those that fine-tuning learnt from, the loser slower
by more than the noise, or, for some pairs, one that failed there or would (`misfits`). The loss is that of direct
preference optimisation, with the fine-tuned weights as the reference, and an anchor that keeps the winner's probability
up:

    -log sigmoid(beta * ((log p(w) - log p_ref(w)) - (log p(l) - log p_ref(l)))) + anchor * (-log p(w) / tokens)

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
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sparserl.errors import SparseRLError
from sparserl.matrix import Array
from sparserl.policy.model import Policy
from sparserl.policy.tokenizer import Tokenizer
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
    compiled,
    device_of,
    open_run,
    run,
    start_from,
)
from sparserl.train.misfits import read_misfits
from sparserl.train.samples import Sampled
from sparserl.train.sft import Places, Prompts, encode_programs, matrix_samples, token_log_probs
from sparserl.train.withheld import withheld_text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankConfig:
    """Which pairs, and how hard they pull."""

    beta: float = 0.1
    anchor: float = 0.5
    """weight of the winner's own loss a token"""
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
        if min(self.pairs, self.batch_pairs, self.epochs) < 1 or not 0 <= self.failed_share <= 1:
            raise SparseRLError("The 'pairs', 'batch_pairs' and 'epochs' must be at least 1, 'failed_share' 0..1.")


@dataclass(frozen=True)
class Pair:
    """Hashes of two programs of one matrix and problem."""

    case: str
    problem: str
    winner: str
    loser: str


def pairs_of(
    case: CollectedCase, collection: Collection, config: RankConfig, misfits: Sequence[str] = ()
) -> list[Pair]:
    """A fixed random choice of a case's pairs."""
    found = timed(case, collection, config.rules.mode)
    if not found:
        return []
    best = found[0][0]
    winners = [(us, m) for us, m in found if us - best <= config.rules.reach * config.rules.tau][: config.rules.most]
    slower = [(w.program, m.program) for us, w in winners for other, m in found if other - us > config.gap]
    failed = [m.program for m in case.programs if not m.correct] + [p for p in misfits if p in collection.texts]
    failed = [program for program in failed if not withheld_text(collection.texts[program].text)]
    broken = [(w.program, program) for _, w in winners for program in failed]
    seed = hashlib.sha256(f"{config.loop.seed} {case.name} {case.problem}".encode()).digest()
    rng = np.random.default_rng(list(seed))
    few = min(len(broken), int(config.failed_share * config.pairs))
    drawn = [broken[i] for i in rng.permutation(len(broken))[:few]]
    drawn += [slower[i] for i in rng.permutation(len(slower))[: config.pairs - few]]
    return [Pair(case.name, case.problem, winner, loser) for winner, loser in drawn]


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
        both = [(each.case, each.problem) for each in (*self.train, *self.dev)]
        self._ids, self._prompts = ids, Prompts(both, samples, config.target, self.device)
        self._order = self._all_batches()
        self.steps = len(self._order)
        self._log_probs = compiled(token_log_probs, config.loop, wanted=False, any_shape=True)
        self.reference: dict[Pair, tuple[float, float]] = {}

    def _all_batches(self) -> list[Array]:
        each = min(self.config.batch_pairs, len(self.train))
        batches: list[Array] = []
        for epoch in range(self.config.epochs):
            order = np.random.default_rng([self.config.loop.seed, epoch, 2]).permutation(len(self.train))
            batches += [order[at : at + each] for at in range(0, len(order) - each + 1, each)]
        return batches

    def _both(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of winners and of losers, and tokens of the winners; each (pairs)."""
        cases = [(each.case, each.problem) for each in pairs]
        texts = [self._ids[each.winner] for each in pairs] + [self._ids[each.loser] for each in pairs]
        ids, matrix = self._prompts.batch(cases * 2, texts)
        with autocast(self.device):
            sums = self._log_probs(self.policy, ids, matrix).sum(dim=1)
        tokens = (ids[: len(pairs), 1:] != Tokenizer.pad).sum(dim=1)
        return sums[: len(pairs)], sums[len(pairs) :], tokens

    def loss(self, step: int) -> Step:
        pairs = [self.train[index] for index in self._order[step]]
        won, lost, tokens = self._both(pairs)
        reference = torch.tensor([self.reference[each] for each in pairs], device=self.device)
        preferred = preference(won - lost, reference[:, 0] - reference[:, 1], self.config.beta).mean()
        anchor = -(won / tokens).mean()
        parts = {"preference": preferred, "anchor": anchor, "kept": (won - reference[:, 0]).mean()}
        return Step(preferred + self.config.anchor * anchor, int(2 * tokens.sum()), parts)

    def check(self) -> dict[str, float]:
        """On dev pairs: how often the winner is the more probable one, and how often more so than in the reference."""
        right = moved = 0
        loss = 0.0
        for at in range(0, len(self.dev), 16):
            part = self.dev[at : at + 16]
            won, lost, _ = self._both(part)
            reference = torch.tensor([self.reference[each] for each in part], device=self.device)
            margin = reference[:, 0] - reference[:, 1]
            right += int((won > lost).sum())
            moved += int((won - lost > margin).sum())
            loss += float(preference(won - lost, margin, self.config.beta).sum())
        count = max(1, len(self.dev))
        figures = {"pair_accuracy": right / count, "moved_right": moved / count, "dev_preference": loss / count}
        return figures if self.dev else {}

    @torch.no_grad()
    def refer(self, path: Path, key: str) -> None:
        """Fill `reference` from the policy as it is now, or from `path` where that was done for the same weights."""
        pairs = [*self.train, *self.dev]
        if path.exists():
            with np.load(path) as file:
                if str(file["key"]) == key and len(file["sums"]) == len(pairs):
                    self.reference = {p: (float(a), float(b)) for p, (a, b) in zip(pairs, file["sums"], strict=True)}
                    return
        self.policy.eval()
        found: list[tuple[float, float]] = []
        for at in range(0, len(pairs), 16):
            won, lost, _ = self._both(pairs[at : at + 16])
            found += list(zip(won.tolist(), lost.tolist(), strict=True))
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
    key = content_key({"weights": _weights_sha(places.weights), "pairs": [asdict(p) for p in (*task.train, *task.dev)]})
    task.refer(places.out / "reference.npz", key)
    write_json(places.out / "data.json", {"train_pairs": len(task.train), "dev_pairs": len(task.dev)})
    if not goes_on:
        with torch.no_grad():
            append_jsonl(places.out / CHECKS, {"step": 0, **task.check()})
    return run(task, config.loop, places.out, Start(goes_on, clock_s=clock_s), watch)


def _weights_sha(weights: Path) -> str:
    """Of the reference's numbers: they name what was computed from them."""
    folder = weights / "policy" if (weights / "policy").is_dir() else weights
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
