"""A stored policy that writes programs for matrices: everything from a folder and patterns to texts, in one place.

Temperature, top-p and length are those stored with the policy (`notes` of its config, under 'sampling'); a policy that
stores none is sampled at temperature 1. Under 'machine' stands the one machine that it has learnt to write for, if it
is one: the names of others are words that it has never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sparserl.errors import SparseRLError
from sparserl.matrix import Pattern
from sparserl.policy.checkpoint import load_policy, read_config
from sparserl.policy.encoder import collate
from sparserl.policy.masks import Mask
from sparserl.policy.sample import sample_pattern
from sparserl.policy.sampler import Piece, Sampler, SampleSettings, Written
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Mode, Problem


class Writer:
    """One policy on one device."""

    def __init__(self, folder: Path, device: str = "cpu", piece: Piece = nullcontext) -> None:
        """piece: see `Sampler`."""
        self.settings = stored_settings(folder)
        self.machine: str = read_config(folder)["notes"].get("machine", "")
        """what to tell it on any machine; '' where it knows several"""
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json")
        self.policy = load_policy(folder, device)
        self.sampler = Sampler(self.policy, self.tokenizer, device, piece=piece)

    def write(
        self, patterns: Sequence[Pattern], problem: Problem, count: int, *, machine: str, settings: SampleSettings,
        mode: Mode = "solver", forced: Sequence[Sequence[int]] = (), mask: Mask = None,
    ) -> list[list[Written]]:  # fmt: skip
        """`count` programs for each pattern (one object may stand several times) for the machine of this name.

        mode: what will be timed; forced: a prompt for each pattern, or none; mask: see `Sampler.sample`.
        """
        features = self.policy.encoder.size.source == "features"
        drawn = {id(pattern): sample_pattern(pattern, with_features=features) for pattern in patterns}
        batch = collate([drawn[id(pattern)] for pattern in patterns], [problem] * len(patterns), machine, mode)
        longest = max(map(len, forced), default=0)
        room = self.policy.size.language.context - self.policy.prefix_length - 1 - longest
        settings = replace(settings, max_tokens=min(settings.max_tokens, room))
        return self.sampler.sample(batch, count, settings, forced if longest else (), mask)


def warm_writer(folder: Path, device: str, pieces: Callable[[torch.device], Piece]) -> Writer:
    """The writer of this folder, kept for the next call as long as its weights are those on disk.

    pieces: what each piece of its work on a device is done within.
    """
    return _kept(folder.resolve(), device, pieces, (folder / "model.safetensors").stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _kept(folder: Path, device: str, pieces: Callable[[torch.device], Piece], written_ns: int) -> Writer:
    return Writer(folder, device, pieces(torch.device(device)))


def stored_settings(folder: Path) -> SampleSettings:
    """How the policy is to be sampled, as stored with it."""
    stored: dict[str, Any] = read_config(folder)["notes"].get("sampling", {})
    unknown = stored.keys() - {"temperature", "top_p", "max_tokens"}
    if unknown:
        raise SparseRLError(
            f"The 'sampling' notes of {folder} may have temperature, top_p and max_tokens. "
            f"Got {', '.join(sorted(unknown))}."
        )
    return SampleSettings(**stored)
