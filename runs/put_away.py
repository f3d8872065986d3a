#!/usr/bin/env python3
"""A run of `sparserl train rl` that is not finished, small enough to be kept in a repository, and back.

    python runs/put_away.py pack RUN OUT        # a few files in OUT, some 10 MB in place of 300
    python runs/put_away.py unpack OUT RUN      # then: sparserl train rl … --out RUN --resume
    python runs/put_away.py pack-policy POLICY OUT    # weights of 8 bits as they are, to the byte
    python runs/put_away.py unpack-policy OUT POLICY

The weights of a run are kept as differences from the shipped policy, in steps of a sixth of each tensor's own spread:
off by a twentieth of what was learnt. The optimiser is not kept. `--base DIR` names another policy than the shipped
one; unpacking asks for the very same. A policy's bytes are kept as differences as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from sparserl.errors import SparseRLError, StoreError
from sparserl.policies import SHIPPED
from sparserl.policy.checkpoint import SCALE, TIED, load_policy, read_config, restore, save_policy
from sparserl.store import read_json, write_folder, write_json

RUN, POLICY, ABOUT, NANO = "run.tar.xz", "policy.safetensors.xz", "about.json", "nano.xz"
WEIGHTS = "model.safetensors"
LEFT_OUT = ("policy", "resume.pt", "tensorboard", "samples.npz", "samples.jsonl")
STEPS = 6
"""a standard deviation"""
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "pb": 0}]


def pack(run: Path, out: Path, base: Path) -> None:
    """Write OUT from RUN."""
    before, now = (load_policy(folder).state_dict() for folder in (base, run / "policy"))
    stored: dict[str, torch.Tensor] = {}
    for name in (each for each in now if each != TIED):
        apart = now[name].float() - before[name].float()
        step = apart.std(correction=0) / STEPS
        if step:
            stored[name], stored[name + SCALE] = (apart / step).round().clamp(-127, 127).to(torch.int8), step
    _note(out, base, notes=read_config(run / "policy")["notes"])
    (out / POLICY).write_bytes(lzma.compress(save(stored), lzma.FORMAT_XZ, filters=FILTERS))
    with tarfile.open(out / RUN, "w:xz", preset=6) as tar:
        for path in sorted(each for each in run.iterdir() if each.name not in LEFT_OUT):
            tar.add(path, path.name)


def unpack(out: Path, run: Path, base: Path) -> None:
    """Write RUN from OUT."""
    if run.exists():
        raise StoreError(f"{run} is there already: name another folder.")
    about = _noted(out, base)
    policy = load_policy(base)
    state = policy.state_dict()
    with torch.no_grad():
        for name, apart in restore(load(lzma.decompress((out / POLICY).read_bytes()))).items():
            state[name] += apart
    with tarfile.open(out / RUN, "r:xz") as tar:
        tar.extractall(run, filter="data")
    save_policy(policy, run / "policy", tokenizer=base / "tokenizer.json", notes=about["notes"])


def pack_policy(policy: Path, out: Path, base: Path) -> None:
    """Write OUT/nano.xz: by how much each byte differs (mod 256) from the other policy's."""
    own, others = _bytes(policy), _bytes(base)
    if len(own) != len(others):
        raise StoreError(f"The weights of {policy} are not stored as those of {base} are: ship it first.")
    _note(out, base, nano=read_config(policy)["notes"])
    (out / NANO).write_bytes(lzma.compress((own - others).tobytes(), lzma.FORMAT_XZ, filters=FILTERS))


def unpack_policy(out: Path, policy: Path, base: Path) -> None:
    """Write POLICY from OUT/nano.xz."""
    if policy.exists():
        raise StoreError(f"{policy} is there already: name another folder.")
    config = {**read_config(base), "notes": _noted(out, base)["nano"]}
    apart = np.frombuffer(lzma.decompress((out / NANO).read_bytes()), np.uint8)
    files = {"config.json": (json.dumps(config, indent=2) + "\n").encode(), WEIGHTS: (_bytes(base) + apart).tobytes()}
    write_folder(policy, {**files, "tokenizer.json": (base / "tokenizer.json").read_bytes()}, {"kind": "policy"})


def _note(out: Path, base: Path, **said: Any) -> None:
    """Into about.json, beside what it says of the same base."""
    path = out / ABOUT
    before = read_json(path) if path.exists() else {}
    write_json(path, {**(before if before.get("base") == _hash(base) else {}), "base": _hash(base), **said})


def _noted(out: Path, base: Path) -> dict[str, Any]:
    about: dict[str, Any] = read_json(out / ABOUT)
    if about["base"] != _hash(base):
        raise StoreError(f"{out} was put away with another policy than {base} beside it: name that one, --base DIR.")
    return about


def _bytes(folder: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    read_config(folder)
    return np.frombuffer((folder / WEIGHTS).read_bytes(), np.uint8)


def _hash(folder: Path) -> str:
    return hashlib.sha256(_bytes(folder).tobytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = {"pack": pack, "unpack": unpack, "pack-policy": pack_policy, "unpack-policy": unpack_policy}
    parser.add_argument("what", choices=verbs)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--base", type=Path, default=SHIPPED)
    given = parser.parse_args()
    try:
        verbs[given.what](given.source, given.target, given.base)
    except (SparseRLError, OSError, lzma.LZMAError) as error:
        print(f"put_away.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
