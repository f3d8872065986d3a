"""Stage: the ranking pass. Where two measured programs of a matrix part, the way to the better one is made more likely.

    sparserl train rank --collection DIR --weights runs/sft --out runs/rank [--resume]

It goes on with fine-tuning's own draws and loss, at a lower rate, and adds a preference at every fork (`forks`) of the
programs that are drawn:

    -log sigmoid(log p(token) - log p(worse tokens in its place))

This is what preference optimisation of pairs says of the one token at which a pair parts. What follows that token is
left alone: making the rest of a loser less probable unlearns how to write it (with whole texts, a third of the samples
that had been right no longer were; with whole headers, one in fifty was no longer a program). The worse tokens come
from slower programs of the matrix, from those that failed there or would (`misfits`), and from layouts that the matrix
does not admit. Fine-tuning's loss is the anchor: what nothing is known of stays as probable as it was.

The share of dev forks at which the good token is the more probable one is written down before and after (checks.jsonl:
step 0 and the last). Not covered: fresh samples of the policy (that is reinforcement learning).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from sparserl.errors import SparseRLError
from sparserl.matrix import Array
from sparserl.policy.model import Policy
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode
from sparserl.store import append_jsonl, write_json
from sparserl.train.chosen import Chosen, choose, shares, with_bodies
from sparserl.train.collected import CollectedCase, Collection
from sparserl.train.forks import Fit, Fork, Lines, Ways, forks, log_times, ways_of
from sparserl.train.loop import CHECKS, Finished, LoopConfig, Start, Step, Watch, autocast, open_run, run, start_from
from sparserl.train.misfits import read_misfits
from sparserl.train.samples import Sampled
from sparserl.train.sft import FineTuning, Places, SFTConfig, encode_programs, known_of, learnt
from sparserl.train.withheld import withheld_text


class Drawn(NamedTuple):
    """Whose forks: a matrix, a problem, a mode and a good program."""

    case: str
    problem: str
    mode: Mode
    program: str


@dataclass(frozen=True)
class RankConfig:
    """How hard forks pull, and what fine-tuning goes on beside."""

    pull: float = 4.0
    """what a fork counts, where a token of a program counts 1"""
    gap: float = 0.06
    """a worse way is slower by more than this, as a logarithm: twice the noise of a timing"""
    sft: SFTConfig = field(
        default_factory=lambda: SFTConfig(
            epochs=1, least_steps=1, loop=LoopConfig(learning_rate=1e-4, weight_decay=0.0, warmup=20)
        )
    )

    def __post_init__(self) -> None:
        if not self.pull > 0 or not self.gap > 0:
            raise SparseRLError("The 'pull' and 'gap' of a ranking pass must be above 0.")


def all_forks(
    collection: Collection, chosen: Iterable[Chosen], ids: Mapping[str, Array],
    misfits: Mapping[tuple[str, str], Sequence[str]], gap: float,
) -> dict[Drawn, list[Fork]]:  # fmt: skip
    """The forks of all good programs, those that have any."""
    wanted: dict[tuple[str, str], list[Chosen]] = {}
    for each in chosen:
        if not each.body and each.program in ids:
            wanted.setdefault((each.case, each.problem), []).append(each)
    lines = _lines(collection)
    found: dict[Drawn, list[Fork]] = {}
    for case in collection.cases:
        ways: dict[Mode, Ways] = {}
        key, fit = (case.name, case.problem), Fit(lines[case.problem], case.admitted)
        for each in wanted.get(key, ()):
            if each.mode not in ways:
                known = known_of_case(case, collection, ids, misfits.get(key, ()), each.mode)
                ways[each.mode] = ways_of(known, fit)
            if some := forks(ids[each.program], ways[each.mode], gap):
                found[Drawn(*key, each.mode, each.program)] = some
    return found


def _lines(collection: Collection) -> dict[str, Lines]:
    """By problem: every layout that some matrix of the collection admits."""
    names: dict[str, set[str]] = {}
    for case in collection.cases:
        names.setdefault(case.problem, set()).update(case.admitted)
    tokenizer = Tokenizer.load()
    return {problem: Lines.of(some, tokenizer) for problem, some in names.items()}


def known_of_case(
    case: CollectedCase, collection: Collection, ids: Mapping[str, Array], misfits: Sequence[str], mode: Mode
) -> Iterator[tuple[Array, float]]:
    times = dict.fromkeys(misfits, inf) | log_times(case, mode)
    for program, us in times.items():
        if program in ids and not withheld_text(collection.texts[program].text):
            yield ids[program], us


def pull_of(logits: Tensor, ids: Tensor, forked: Sequence[Sequence[Fork]]) -> Tensor:
    """-log sigmoid(log p(good) - log p(worse)), a fork each. logits: (batch, tokens - 1, vocabulary) of ids."""
    flat = [(row, fork) for row, some in enumerate(forked) for fork in some]
    most = max((len(fork.worse) for _, fork in flat), default=1)
    tokens = np.zeros((len(flat), most), dtype=np.int64)
    there = np.zeros((len(flat), most), dtype=bool)
    for k, (_, fork) in enumerate(flat):
        tokens[k, : len(fork.worse)] = fork.worse
        there[k, : len(fork.worse)] = True
    rows, at = (torch.tensor(each, dtype=torch.int64) for each in ([r for r, _ in flat], [f.at for _, f in flat]))
    rows, at, worse, known = (
        each.to(logits.device, non_blocking=True)
        for each in (rows, at, torch.from_numpy(tokens), torch.from_numpy(there))
    )
    good = logits[rows, at - 1, ids[rows, at]].float()
    others = logits[rows[:, None], at[:, None] - 1, worse].float().masked_fill(~known, -torch.inf)
    return softplus(torch.logsumexp(others, dim=1) - good)


class Ranking(FineTuning):
    """Fine-tuning with forks."""

    stage = "rank"

    def __init__(
        self,
        config: RankConfig,
        policy: Policy,
        examples: tuple[Sequence[Chosen], Sequence[Chosen]],
        ids: Mapping[str, Array],
        samples: Mapping[str, Sampled],
        *,
        forked: Mapping[Drawn, Sequence[Fork]],
    ) -> None:
        super().__init__(config.sft, policy, examples, ids, samples)
        self.pull, self._forks = config.pull, forked

    def _forked(self, examples: Sequence[Chosen]) -> list[Sequence[Fork]]:
        drawn = [Drawn(each.case, each.problem, each.mode, each.program) for each in examples]
        return [() if each.body else self._forks.get(key, ()) for each, key in zip(examples, drawn, strict=True)]

    def loss(self, step: int) -> Step:
        examples = [self._train[index] for index in self._batches[step]]
        ids, matrix = self._batch(examples)
        targets = learnt(ids, torch.tensor([each.body for each in examples], device=self.device))
        with autocast(self.device):
            logits = self.policy(ids[:, :-1], matrix)
            nats = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=Tokenizer.pad, reduction="sum")
        pulls = pull_of(logits, ids, self._forked(examples))
        tokens = (targets != Tokenizer.pad).sum().clamp(min=1)
        parts = {"nats": nats / tokens, "fork": pulls.sum() / max(1, len(pulls))}
        return Step((nats + self.pull * pulls.sum()) / tokens, ids.numel(), parts)

    def check(self) -> dict[str, float]:
        """Fine-tuning's, and the forks of matrices that were never trained on: how often the good token is ahead."""
        figures = super().check()
        ahead = count = 0
        nats = 0.0
        for at in range(0, len(self._dev), 16):
            part = self._dev[at : at + 16]
            ids, matrix = self._batch(part)
            with autocast(self.device):
                pulls = pull_of(self.policy(ids[:, :-1], matrix), ids, self._forked(part))
            ahead += int((pulls < float(np.log(2.0))).sum())
            count += len(pulls)
            nats += float(pulls.sum())
        return {**figures, "forks_right": ahead / count, "dev_fork_loss": nats / count} if count else figures


def rank(config: RankConfig, places: Places, watch: Watch | None = None) -> Finished:
    """The whole stage."""
    clock_s = time.monotonic()
    if places.weights is None:
        raise SparseRLError("The ranking pass needs fine-tuned weights: give --weights DIR, the folder of an SFT run.")
    goes_on = open_run(places.out, "rank", asdict(config), places.resume)
    known, rules = known_of(places), config.sft.rules
    collection = known.collection
    structures = {name: each.structure for name, each in known.samples.items()}
    train, dev = choose(collection, structures, rules)
    misfits = read_misfits(places.collection)
    ids = encode_programs({name: text.text for name, text in collection.texts.items()}, config.sft.longest)
    found = all_forks(collection, (*train, *dev), ids, misfits, config.gap)
    if not found:
        raise SparseRLError(
            f"The collection has no two programs of one matrix that differ by more than {config.gap}: collect more."
        )
    train = with_bodies(train, collection, structures, rules, seed=config.sft.loop.seed)
    policy, broke_off = start_from(places.weights, "rank")
    task = Ranking(config, policy, (train, dev), ids, known.samples, forked=found)
    counted = {"programs": len(found), "forks": sum(map(len, found.values()))}
    write_json(places.out / "data.json", {"train": shares(train), "dev": shares(dev), "forked": counted})
    if not goes_on:
        with torch.no_grad():
            append_jsonl(places.out / CHECKS, {"step": 0, **_looked(task)})
    return run(task, config.sft.loop, places.out, Start(goes_on, broke_off, clock_s), watch)


def _looked(task: Ranking) -> dict[str, float]:
    task.policy.eval()
    return task.check()
