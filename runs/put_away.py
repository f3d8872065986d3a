#!/usr/bin/env python3
"""A run of `sparserl train rl` that is not finished, small enough to be kept in a repository, and back.

    python runs/put_away.py pack RUN OUT        # a few files in OUT, some 10 MB in place of 300
    python runs/put_away.py unpack OUT RUN      # then: sparserl train rl … --out RUN --resume

The weights are kept as differences from the shipped policy, in steps of a sixth of each tensor's own spread: off by a
twentieth of what was learnt. The optimiser is not kept. `--base DIR` names another policy than the shipped one;
unpacking asks for the very same.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import sys
import tarfile
from pathlib import Path

import torch
from safetensors.torch import load, save

from sparserl.errors import SparseRLError, StoreError
from sparserl.policies import SHIPPED
from sparserl.policy.checkpoint import SCALE, TIED, load_policy, read_config, restore, save_policy
from sparserl.store import read_json, write_json

RUN, POLICY, ABOUT = "run.tar.xz", "policy.safetensors.xz", "about.json"
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
    write_json(out / ABOUT, {"base": _hash(base), "notes": read_config(run / "policy")["notes"]})
    (out / POLICY).write_bytes(lzma.compress(save(stored), lzma.FORMAT_XZ, filters=FILTERS))
    with tarfile.open(out / RUN, "w:xz", preset=6) as tar:
        for path in sorted(each for each in run.iterdir() if each.name not in LEFT_OUT):
            tar.add(path, path.name)


def unpack(out: Path, run: Path, base: Path) -> None:
    """Write RUN from OUT."""
    if run.exists():
        raise StoreError(f"{run} is there already: name another folder.")
    about = read_json(out / ABOUT)
    if about["base"] != _hash(base):
        raise StoreError(f"{out} was put away with another policy than {base} beside it: name that one, --base DIR.")
    policy = load_policy(base)
    state = policy.state_dict()
    with torch.no_grad():
        for name, apart in restore(load(lzma.decompress((out / POLICY).read_bytes()))).items():
            state[name] += apart
    with tarfile.open(out / RUN, "r:xz") as tar:
        tar.extractall(run, filter="data")
    save_policy(policy, run / "policy", tokenizer=base / "tokenizer.json", notes=about["notes"])


def _hash(folder: Path) -> str:
    read_config(folder)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--base", type=Path, default=SHIPPED)
    given = parser.parse_args()
    try:
        (pack if given.what == "pack" else unpack)(given.source, given.target, given.base)
    except (SparseRLError, OSError, lzma.LZMAError) as error:
        print(f"put_away.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
