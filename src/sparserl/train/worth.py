"""What pretraining is worth: fine-tuning with it and without it, on parts of the pairs, with several seeds.

    sparserl train worth --out OUT --weights runs/pretrain --encoder runs/encoder/encoder --collection DIR

One process does all runs, because reading a collection and encoding its programs takes as long as a small run. Each run
is fine-tuning's own (`sft`), with a folder of its own; with and without pretraining it has the same pairs in the same
order, and the same pretrained encoder. What came out is a line in OUT/worth.jsonl: nats a token on matrices that were
never trained on. A run that has its line is not done again, and one that the time was up for goes on where it was.

Not covered: whether what is written is right and fast (`sparserl eval` on the policies in the runs' folders).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from sparserl.errors import SparseRLError
from sparserl.policy.checkpoint import read_config
from sparserl.policy.model import size_named
from sparserl.shares import TIME_IS_UP
from sparserl.store import append_jsonl, read_json, read_jsonl
from sparserl.train.chosen import is_dev
from sparserl.train.lessons import Known
from sparserl.train.loop import Watch, open_run, policy_folder, weights_sha
from sparserl.train.sft import Places, SFTConfig, known_of, sft

RECORDS = "worth.jsonl"
NATS = ("dev_loss", "dev_header_loss", "dev_body_loss")


@dataclass(frozen=True)
class WorthConfig:
    """Which runs."""

    fractions: tuple[float, ...] = (0.01, 0.1, 1.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    sft: SFTConfig = field(default_factory=lambda: SFTConfig(epochs=3))

    def __post_init__(self) -> None:
        if not self.fractions or not self.seeds or not all(0 < each <= 1 for each in self.fractions):
            raise SparseRLError("A study needs at least one seed, and fractions above 0 and up to 1.")


def worth(
    config: WorthConfig, places: Places, *, share: tuple[int, int] = (0, 1), budget_s: float = 0.0,
    watch: Watch | None = None,
) -> Iterator[str]:  # fmt: skip
    """Run after run; yields a line to show for each. `places.weights` are the pretrained ones.

    share: every n-th run from the i-th on, for n processes. budget_s: for all of them together; 0: no limit.
    """
    if places.weights is None or places.encoder is None:
        raise SparseRLError("The study needs pretrained weights and an encoder: give --weights DIR and --encoder DIR.")
    _same(config.sft, places)
    began, known = time.monotonic(), None
    runs = [(f, seed, told) for f in config.fractions for seed in config.seeds for told in (True, False)]
    for fraction, seed, pretrained in runs[share[0] :: share[1]]:
        if (fraction, seed, pretrained) in _done(places.out):
            continue
        if budget_s and time.monotonic() - began > budget_s:
            yield TIME_IS_UP
            return
        known = known or _with_dev(known_of(places), config.sft)
        left_s = max(1e-3, budget_s - (time.monotonic() - began)) if budget_s else 0.0
        own = replace(config.sft, loop=replace(config.sft.loop, budget_s=left_s))
        record = _one(own, places, known, (fraction, seed, pretrained), watch)
        if record is None:
            yield TIME_IS_UP
            return
        append_jsonl(places.out / RECORDS, record)
        yield said(record)


def _one(
    config: SFTConfig, places: Places, known: Known, which: tuple[float, int, bool], watch: Watch | None
) -> dict[str, Any] | None:
    """The line of a run; None where the time was up before its end."""
    fraction, seed, pretrained = which
    folder = places.out / f"{fraction:g}-{seed}-{'with' if pretrained else 'without'}"
    mine = replace(places, out=folder, weights=places.weights if pretrained else None, resume=True)
    config = replace(config, fraction=fraction, loop=replace(config.loop, seed=seed))
    found = sft(config, mine, watch, known)
    if not found.complete:
        return None
    data = read_json(folder / "data.json")["train"]
    pairs = int(data["programs"] - data["bodies"])
    about = {"fraction": fraction, "seed": seed, "pretrained": pretrained, "pairs": pairs, "steps": found.steps}
    return about | {"seconds": round(found.seconds, 1)} | {name: round(found.checks[name], 6) for name in NATS}


def _same(config: SFTConfig, places: Places) -> None:
    """Refuse a folder that is about something else, and weights of another size than runs without them would have."""
    assert places.weights is not None
    folder = policy_folder(places.weights)
    if read_config(folder)["size"]["language"] != size_named(config.size).language.as_dict():
        raise SparseRLError(f"The weights in {folder} are not of the size '{config.size}': give theirs as --size.")
    read = {"weights": weights_sha(folder), "encoder": places.encoder, "collection": places.collection}
    open_run(places.out, "worth", {"sft": asdict(config), **read}, resume=True)


def _with_dev(known: Known, config: SFTConfig) -> Known:
    if not any(is_dev(case, config.rules) for case in known.collection.cases):
        raise SparseRLError("The collection has no matrices that are kept from training: collect more of them.")
    return known


def _done(out: Path) -> set[tuple[float, int, bool]]:
    return {(each["fraction"], each["seed"], each["pretrained"]) for each in read_jsonl(out / RECORDS)}


def said(record: dict[str, Any]) -> str:
    """One run as a line."""
    nats = ", ".join(f"{name.removeprefix('dev_').replace('_', ' ')} {record[name]:.4f}" for name in NATS)
    how = "with" if record["pretrained"] else "without"
    return f"{100 * record['fraction']:g} % of the pairs, seed {record['seed']}, {how} pretraining: {nats} nats a token"


def table(records: Sequence[dict[str, Any]]) -> str:
    """Means over the seeds, what pretraining saves, and its deviation from seed to seed (of pairs of one seed)."""
    lines = ["pairs      with   without   saved   ± (seeds)"]
    for fraction in sorted({each["fraction"] for each in records}):
        by_seed: dict[int, dict[bool, float]] = {}
        for each in records:
            if each["fraction"] == fraction:
                by_seed.setdefault(each["seed"], {})[each["pretrained"]] = each["dev_loss"]
        both = [losses for losses in by_seed.values() if len(losses) == 2]
        if not both:
            continue
        saved = [losses[False] - losses[True] for losses in both]
        means = [mean(losses[told] for losses in both) for told in (True, False)]
        spread = f"{stdev(saved):.4f} ({len(saved)})" if len(saved) > 1 else "one seed"
        lines.append(f"{100 * fraction:4g} %  {means[0]:7.4f}  {means[1]:8.4f}  {mean(saved):6.4f}   {spread}")
    return "\n".join(lines)
