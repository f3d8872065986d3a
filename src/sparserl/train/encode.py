"""Pretraining of the matrix encoder: named features, admitted layouts and, where there are any, measured times.

    sparserl train encoder --out runs/encoder [--matrices 50000] [--collection DIR] [--workers 16]

Matrices are generated, sampled and kept as shards in OUT/examples (made once); then the encoder learns to tell, through
one linear layer, the standardised features of a matrix, which layouts admit it and, from a collection folder, the best
time of every family of recipes. At the end, probes on withheld families are written to OUT/probes.json and the encoder
to OUT/encoder. A run that was stopped goes on from OUT/checkpoint.pt.

Not covered: training on several GPUs; telling a language model anything (that is fine-tuning).
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

from sparserl import splits
from sparserl.errors import StoreError
from sparserl.families import FAMILIES
from sparserl.matrix import Array
from sparserl.policy.checkpoint import load_policy
from sparserl.policy.encoder import (
    EXPLICIT,
    TIMED,
    EncoderInput,
    EncoderSize,
    FromFeatures,
    MatrixEncoder,
    problem_line,
)
from sparserl.policy.sample import ALONG, FEATURE_NAMES, FIELDS, RANKS
from sparserl.records import Problem
from sparserl.store import read_json, write_atomic, write_json
from sparserl.train.encode_data import LINES, Draws, Examples, ShardPlan, build_examples, withheld_in
from sparserl.train.encode_times import Timed
from sparserl.train.loop import policy_folder
from sparserl.train.probes import TARGETS, ProbeReport, probe

log = logging.getLogger(__name__)
Told = Callable[[str, int, int], None]
"""hears (stage, done, total)"""


@dataclass(frozen=True)
class EncodeConfig:
    """Everything that a run depends on."""

    matrices: int = 50_000
    """generated matrices to learn from"""
    withheld_matrices: int = 2_000
    """generated matrices of withheld families, for the probes"""
    probe_matrices: int = 4_000
    """matrices of kept families that probes are fitted on"""
    largest: float = 3e6
    """nonzeros of the largest, about"""
    width: int = 384
    """width of the language model that will read the output"""
    size: EncoderSize = field(default_factory=EncoderSize)
    epochs: float = 20.0
    batch: int = 256
    rate: float = 1e-3
    """learning rate at its peak"""
    warm_up: float = 0.05
    """share of the steps over which it rises; then it falls as a cosine"""
    weight_decay: float = 0.02
    times_weight: float = 0.5
    """of the loss on measured times, beside 1 for features and 0.5 for admitted layouts"""
    probe_split: Literal["dev", "unseen"] = "dev"
    """'dev' while choosing; 'unseen' once, for a released checkpoint"""
    also_withheld: tuple[str, ...] = ()
    """further families that are left out of training and probed"""
    workers: int = 16
    seed: int = 0
    save_every: int = 500
    """steps between checkpoints"""

    def __post_init__(self) -> None:
        if self.probe_split not in ("dev", "unseen"):
            raise ValueError(f"The 'probe_split' must be 'dev' or 'unseen'. Got {self.probe_split!r}.")
        if unknown := sorted(set(self.also_withheld) - set(FAMILIES)):
            raise ValueError(f"There is no family {unknown[0]!r} to withhold. Families: {', '.join(sorted(FAMILIES))}.")
        if min(self.matrices, self.batch, self.withheld_matrices) < 1:
            raise ValueError("The 'matrices', 'withheld_matrices' and 'batch' of an EncodeConfig must be at least 1.")

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.epochs * self.matrices / self.batch))


class Heads(nn.Module):
    """Linear readers of the prefix: a few numbers of every vector, then one layer a target. Dropped afterwards."""

    def __init__(self, width: int, prefix: int, times: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(width, 32)
        self.features = nn.Linear(32 * prefix, len(FEATURE_NAMES) + len(TARGETS) + ALONG)
        self.admitted = nn.Linear(32 * prefix, len(LINES))
        self.times = nn.Linear(32 * prefix, max(1, times))

    def forward(self, prefix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = self.squeeze(prefix).flatten(1)
        return self.features(flat), self.admitted(flat), self.times(flat)


def feature_targets(named: Array) -> Array:
    """What the features head learns, before standardising: logarithms of all, and the probed numbers as they are."""
    logs = np.log2(1.0 + named.astype(np.float64))
    return np.column_stack([logs, *(of(named) for of in TARGETS.values())]).astype(np.float32)


def along_targets(entries: Array) -> Array:
    """What it learns of diagonals: the shares of the nonzeros with at least 1, 2 … of the places along theirs filled.

    They stand in the sample, but only what is asked for comes through to the prefix.
    """
    ranks = entries[:, :RANKS]
    used = ranks[..., FIELDS.index("part")] >= 0
    reached = ranks[..., FIELDS.index("along"), None] > np.arange(ALONG)
    shares: Array = (reached & used[..., None]).sum(axis=1) / np.maximum(1, used.sum(axis=1))[:, None]
    return shares.astype(np.float32)


class Pool:
    """Examples as tensors on the training device, and the batches drawn from them."""

    def __init__(self, examples: Examples, device: torch.device) -> None:
        targets = np.column_stack([feature_targets(examples.named), along_targets(examples.entries)])
        self.mean, self.deviation = targets.mean(axis=0), targets.std(axis=0) + 1e-3
        self.sizes, self.entries = (torch.from_numpy(a).to(device) for a in (examples.sizes, examples.entries))
        self.named = torch.from_numpy(examples.named).to(device)
        scaled = np.clip((targets - self.mean) / self.deviation, -6.0, 6.0)
        self.targets = torch.from_numpy(scaled).to(device)
        self.admitted = torch.from_numpy(examples.admitted).float().to(device)
        self.device = device

    def batch(self, chosen: Tensor, generator: torch.Generator) -> EncoderInput:
        """These examples, each with a problem at random: what a matrix is like does not depend on it."""
        return EncoderInput(
            self.sizes[chosen],
            self.entries[chosen],
            random_problems(len(chosen), generator).to(self.device),
            self.named[chosen],
        )


def random_problems(count: int, generator: torch.Generator) -> Tensor:
    """(count, 5): half SpMV, half SpMM of 2 to 512 columns, of any type, order and mode, for any device of the list."""
    op = torch.randint(0, 8, (count,), generator=generator).sub(3).clamp(min=0)
    dtype = torch.randint(0, 4, (count,), generator=generator)
    wide = 2 ** torch.randint(1, 10, (count,), generator=generator)
    device = torch.randint(0, 3, (count,), generator=generator)
    mode = torch.randint(0, len(TIMED), (count,), generator=generator)
    return torch.stack([op, dtype, torch.where(op > 0, wide, 1), device, mode], dim=1)


def train_encoder(
    config: EncodeConfig, out: Path, timed: Timed | None = None, told: Told | None = None
) -> tuple[MatrixEncoder, ProbeReport]:
    """The whole stage; goes on where an earlier run into `out` with the same configuration stopped."""
    _same_config(config, out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kept, withheld = _examples(config, out, told)
    torch.manual_seed(config.seed)
    encoder = MatrixEncoder(config.width, config.size).to(device)
    heads = Heads(config.width, encoder.prefix_length, len(timed.families) if timed else 0).to(device)
    pool = Pool(kept, device)
    if isinstance(encoder.reader, FromFeatures):
        logs = torch.log1p(pool.named)
        encoder.reader.mean.copy_(logs.mean(0))
        encoder.reader.deviation.copy_(logs.std(0) + 1e-3)
    _fit(config, out, Fitting(encoder, heads, pool, timed.to(device) if timed else None), told)
    save_encoder(encoder, out / "encoder")
    return encoder, _probed(encoder, config, out, (kept, withheld))


def probe_policy(encoder: MatrixEncoder, config: EncodeConfig, out: Path, told: Told | None = None) -> ProbeReport:
    """Probes of an encoder that was trained before, such as a shipped policy's; the matrices made for it stay in `out`.

    Of the settings, those count that say which matrices are drawn.
    """
    return _probed(encoder, config, out, _examples(config, out, told))


def _probed(encoder: MatrixEncoder, config: EncodeConfig, out: Path, found: tuple[Examples, Examples]) -> ProbeReport:
    """Fitted on the first of the kept matrices, and written down."""
    report = probe_encoder(encoder, _first(found[0], config.probe_matrices), found[1])
    write_json(out / "probes.json", {"split": config.probe_split, **asdict(report), "barred": report.barred})
    return report


def _same_config(config: EncodeConfig, out: Path) -> None:
    """Write the configuration down; a run under another one is not continued."""
    path, text = out / "config.json", json.loads(json.dumps(asdict(config)))
    if path.exists() and (there := read_json(path)) != text:
        differing = sorted(k for k in text if there.get(k) != text[k])
        raise StoreError(f"{out} holds a run with other settings ({', '.join(differing)}). Choose another folder.")
    write_json(path, text)


def _examples(config: EncodeConfig, out: Path, told: Told | None) -> tuple[Examples, Examples]:
    also = frozenset(config.also_withheld)
    kept = Draws("train", splits.withheld_families() | also, most=config.largest)
    probed = withheld_in("dev") | also if config.probe_split == "dev" else withheld_in("unseen")
    others = replace(kept, split=config.probe_split, withheld=probed)
    found = []
    for draws, count in ((kept, config.matrices), (others, config.withheld_matrices)):
        plan = ShardPlan(count, workers=config.workers, draws=draws)
        heard = partial(told, f"matrices ({draws.split})") if told else None
        found.append(build_examples(out / "examples", plan, heard))
    return found[0], found[1]


def _first(examples: Examples, count: int) -> Examples:
    return Examples(**{name: column[:count] for name, column in vars(examples).items()})


# ── The loop ──────────────────────────────────────────────────────────────────


@dataclass
class Fitting:
    """What is trained, and on what."""

    encoder: MatrixEncoder
    heads: Heads
    pool: Pool
    timed: Timed | None

    def loss(self, chosen: Tensor, config: EncodeConfig, generator: torch.Generator) -> dict[str, Tensor]:
        """Each part of the loss, and their sum as 'loss'."""
        told, admitted, _ = self.heads(self.encoder(self.pool.batch(chosen, generator)))
        parts = {
            "features": smooth_l1_loss(told.float(), self.pool.targets[chosen]),
            "admitted": binary_cross_entropy_with_logits(admitted.float(), self.pool.admitted[chosen]),
        }
        loss = parts["features"] + 0.5 * parts["admitted"]
        if self.timed is not None:
            batch, wanted, known = self.timed.batch(max(8, config.batch // 4), generator)
            times = self.heads(self.encoder(batch))[2].float()
            wrong = smooth_l1_loss(times, wanted, reduction="none") * known
            parts["times"] = wrong.sum() / known.sum().clamp(min=1.0)
            loss = loss + config.times_weight * parts["times"]
        return {**parts, "loss": loss}


def _fit(config: EncodeConfig, out: Path, fitting: Fitting, told: Told | None) -> None:
    from torch.utils.tensorboard import SummaryWriter

    parameters = [*fitting.encoder.parameters(), *fitting.heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.rate, weight_decay=config.weight_decay)
    device = fitting.pool.device
    at = _resume(out, fitting, optimizer)
    with SummaryWriter(str(out / "tensorboard")) as writer:
        for step, chosen in _batches(config, at):
            rate = _rate(config, step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                parts = fitting.loss(chosen.to(device), config, generator)
            optimizer.zero_grad(set_to_none=True)
            parts["loss"].backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if step % 20 == 0 or step == config.steps - 1:
                seen = {name: float(value.detach()) for name, value in {**parts, "gradient norm": norm}.items()}
                for name, value in {**seen, "rate": rate}.items():
                    writer.add_scalar(f"encoder/{name}", value, step)  # type: ignore[no-untyped-call]
                log.info("step %d of %d: %s", step, config.steps, seen)
            if (step + 1) % config.save_every == 0 or step == config.steps - 1:
                _save(out, fitting, optimizer, step + 1)
            if told:
                told("steps", step + 1, config.steps)


def _rate(config: EncodeConfig, step: int) -> float:
    warm = max(1.0, config.warm_up * config.steps)
    if step < warm:
        return config.rate * (step + 1) / warm
    return config.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, config.steps - warm))))


def _batches(config: EncodeConfig, first: int) -> Iterator[tuple[int, Tensor]]:
    """(step, chosen examples) from a step on; every epoch goes through all in an order of its own."""
    each = min(config.batch, config.matrices)
    an_epoch = config.matrices // each
    for step in range(first, config.steps):
        epoch, place = divmod(step, an_epoch)
        order = torch.randperm(config.matrices, generator=torch.Generator().manual_seed(config.seed * 7919 + epoch))
        yield step, order[place * each : (place + 1) * each]


def _save(out: Path, fitting: Fitting, optimizer: torch.optim.Optimizer, step: int) -> None:
    buffer = io.BytesIO()
    state = {"encoder": fitting.encoder.state_dict(), "heads": fitting.heads.state_dict()}
    torch.save({**state, "optimizer": optimizer.state_dict(), "step": step}, buffer)
    write_atomic(out / "checkpoint.pt", buffer.getvalue())


def _resume(out: Path, fitting: Fitting, optimizer: torch.optim.Optimizer) -> int:
    path = out / "checkpoint.pt"
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path, map_location=fitting.pool.device, weights_only=True)
    fitting.encoder.load_state_dict(state["encoder"])
    fitting.heads.load_state_dict(state["heads"])
    try:
        optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        raise StoreError(
            f"{path} is of a version with other parameters ({error}): remove it, and the run begins again; its "
            "examples are kept."
        ) from error
    log.info("Going on from step %d of %s.", state["step"], path)
    return int(state["step"])


# ── Afterwards ────────────────────────────────────────────────────────────────


@torch.no_grad()
def pooled(encoder: MatrixEncoder, examples: Examples, batch: int = 64) -> Array:
    """The frozen output of every example, flattened: (n, pooled vectors * width)."""
    device = next(encoder.parameters()).device
    pool = Pool(examples, device)
    parts = []
    for at in range(0, len(examples), batch):
        chosen = torch.arange(at, min(at + batch, len(examples)), device=device)
        given = pool.batch(chosen, torch.Generator().manual_seed(0))._replace(
            problem=torch.tensor([problem_line(Problem())], device=device).expand(len(chosen), -1)
        )
        parts.append(encoder(given)[:, EXPLICIT:].float().flatten(1).cpu().numpy())
    return np.concatenate(parts)


def probe_encoder(encoder: MatrixEncoder, kept: Examples, withheld: Examples) -> ProbeReport:
    """Probes of an encoder: fitted on kept families, scored on withheld ones."""
    return probe(pooled(encoder, kept), kept.named, pooled(encoder, withheld), withheld.named)


def save_encoder(encoder: MatrixEncoder, folder: Path) -> None:
    """encoder.json and encoder.safetensors."""
    write_json(folder / "encoder.json", {"width": encoder.width, "size": asdict(encoder.size)})
    state = {name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()}
    write_atomic(folder / "encoder.safetensors", save(state))


def load_encoder(folder: Path) -> MatrixEncoder:
    """The encoder that `save_encoder` wrote, or that of a policy."""
    if not (folder / "encoder.json").is_file():
        return load_policy(policy_folder(folder)).encoder
    about = read_json(folder / "encoder.json")
    encoder = MatrixEncoder(int(about["width"]), EncoderSize(**about["size"]))
    encoder.load_state_dict(load_file(folder / "encoder.safetensors"))
    return encoder
