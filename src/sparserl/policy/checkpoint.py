"""A policy on disk: a folder with config.json, model.safetensors, tokenizer.json and, written last, manifest.json.

Weights are stored as 'int8' (matrices as int8 with one float32 scale a row, the rest float32: a quarter of the size,
to be shipped), 'bfloat16' (half, to be carried from machine to machine) or 'float32' (exact, for training). A folder
that is half-written or changed is refused, and so is one whose weights belong to another tokenizer. Not here: the
state of an optimiser, which belongs to the stage that trains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from sparserl.errors import StoreError
from sparserl.policy.model import Policy, Size
from sparserl.store import read_folder, read_json, write_folder

FORMAT = 1
TIED = "language.lm_head.weight"
"""the same tensor as the embedding: stored once"""
SCALE = ".scale"
SMALLEST = 4096
"""matrices with fewer numbers stay in float32: there is nothing to gain"""

Weights = Literal["int8", "bfloat16", "float32"]


def shipped_tokenizer() -> Path:
    return Path(__file__).with_name("tokenizer.json")


def save_policy(
    policy: Policy,
    folder: Path,
    weights: Weights = "float32",
    tokenizer: Path | None = None,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write `policy` to `folder`, all at once; an older one is replaced. `tokenizer`: its file; None: the shipped one.

    notes: what the training stage wants to keep (JSON): steps, data, scores.
    """
    if weights not in get_args(Weights):
        raise ValueError(f"The 'weights' of save_policy must be one of {get_args(Weights)}. Got {weights!r}.")
    words = (tokenizer or shipped_tokenizer()).read_bytes()
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items() if name != TIED}
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        large = tensor.is_floating_point() and tensor.dim() == 2 and tensor.numel() >= SMALLEST
        if large and weights == "int8":
            stored[name], stored[name + SCALE] = quantise(tensor)
        elif large and weights == "bfloat16":
            stored[name] = tensor.bfloat16()
        else:
            stored[name] = tensor.float() if tensor.is_floating_point() else tensor
    config = {
        "format": FORMAT,
        "size": policy.size.as_dict(),
        "weights": weights,
        "tokenizer_sha256": hashlib.sha256(words).hexdigest(),
        "notes": dict(notes or {}),
    }
    files = {
        "config.json": (json.dumps(config, indent=2, allow_nan=False) + "\n").encode(),
        "model.safetensors": save(stored),
        "tokenizer.json": words,
    }
    write_folder(folder, files, {"kind": "policy"})


def load_policy(folder: Path, device: torch.device | str = "cpu", tokenizer: Path | None = None) -> Policy:
    """Read a policy, in float32 and evaluation mode. `tokenizer`: the file in use, refused if not the policy's own."""
    config = read_config(folder)
    own = folder / "tokenizer.json"
    for path in (own, tokenizer or own):
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != config["tokenizer_sha256"]:
            raise StoreError(
                f"The policy in {folder} was trained with the tokenizer {config['tokenizer_sha256'][:12]}…, but {path} "
                f"is {found[:12]}…: its words mean something else. Use the tokenizer.json that came with the policy."
            )
    policy = Policy(Size.from_dict(config["size"]), empty=True)
    state = restore(load_file(folder / "model.safetensors"))
    try:
        state[TIED] = state["language.model.embed_tokens.weight"]
        policy.load_state_dict(state, assign=True)
    except (KeyError, RuntimeError) as error:
        raise StoreError(f"The weights in {folder} don't fit its config.json: {error}. Make it again.") from error
    policy.language.tie()
    return policy.to(device).eval()


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a policy folder that is whole."""
    if not folder.is_dir():
        raise StoreError(f"There is no policy folder {folder}: give a folder that a training stage has written.")
    about = read_folder(folder)
    if about.get("kind") != "policy":
        raise StoreError(f"{folder} holds {about.get('kind', 'something else')!r}, not a policy: give another folder.")
    config = read_json(folder / "config.json")
    assert isinstance(config, dict)
    if config.get("format") != FORMAT:
        raise StoreError(
            f"The policy in {folder} has format {config.get('format')!r}; this version of sparserl reads {FORMAT}. "
            "Train or download it again."
        )
    return config


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """int8 and a float32 scale a row (rows, 1): the largest number of a row is 127 times its scale."""
    matrix = matrix.float()
    scale = matrix.abs().amax(dim=1, keepdim=True) / 127
    whole = torch.round(matrix / scale.clamp_min(torch.finfo(torch.float32).tiny))
    return whole.to(torch.int8), scale


def restore(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 tensors of a stored state."""
    state = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in stored:
            continue
        scale = stored.get(name + SCALE)
        wide = tensor.float() if tensor.dtype in (torch.int8, torch.bfloat16) else tensor
        state[name] = wide if scale is None else wide * scale
    return state
