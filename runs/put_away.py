#!/usr/bin/env python3
"""A run of `sparserl train rl` that is not finished, small enough to be kept in a repository, and back.

    python runs/put_away.py pack RUN OUT        # OUT/run.tar.xz and OUT/policy.xz, some 10 MB in place of 300
    python runs/put_away.py unpack OUT RUN      # then: sparserl train rl … --out RUN --resume

The weights are kept as differences from the shipped policy, in steps of a third of each tensor's own spread: off by a
tenth of what was learnt. The optimiser is not kept. `--base DIR` names another policy than the shipped one; unpacking
asks for the very same.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch

from sparserl.errors import SparseRLError, StoreError
from sparserl.policies import SHIPPED
from sparserl.policy.checkpoint import TIED, load_policy, read_config, save_policy

RUN, POLICY = "run.tar.xz", "policy.xz"
LEFT_OUT = ("policy", "resume.pt", "tensorboard", "samples.npz")
STEPS = 3
"""a standard deviation"""
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "pb": 0}]


def pack(run: Path, out: Path, base: Path) -> None:
    """Write OUT from RUN."""
    out.mkdir(parents=True, exist_ok=True)
    notes = read_config(run / "policy")["notes"]
    before, now = (load_policy(folder).state_dict() for folder in (base, run / "policy"))
    about: dict[str, object] = {"base": _hash(base), "notes": notes, "tensors": (tensors := {})}
    parts = []
    for name in (each for each in now if each != TIED):
        apart = (now[name].float() - before[name].float()).flatten()
        step = float(apart.std(correction=0)) / STEPS
        if step:
            tensors[name] = step
            parts.append((apart / step).round().clamp(-127, 127).to(torch.int8).numpy().tobytes())
    head = json.dumps(about).encode()
    whole = len(head).to_bytes(8, "little") + head + b"".join(parts)
    (out / POLICY).write_bytes(lzma.compress(whole, lzma.FORMAT_XZ, filters=FILTERS))
    with tarfile.open(out / RUN, "w:xz", preset=6) as tar:
        for path in sorted(each for each in run.iterdir() if each.name not in LEFT_OUT):
            tar.add(path, path.name)


def unpack(out: Path, run: Path, base: Path) -> None:
    """Write RUN from OUT."""
    if run.exists():
        raise StoreError(f"{run} is there already: name another folder.")
    whole = lzma.decompress((out / POLICY).read_bytes())
    first = 8 + int.from_bytes(whole[:8], "little")
    about = json.loads(whole[8:first])
    if about["base"] != _hash(base):
        raise StoreError(f"{out} was put away with another policy than {base} beside it: name that one, --base DIR.")
    policy = load_policy(base)
    state = policy.state_dict()
    with torch.no_grad():
        for name, step in about["tensors"].items():
            size = state[name].numel()
            apart = np.frombuffer(whole, np.int8, size, first).astype(np.float32) * step
            state[name] += torch.from_numpy(apart).reshape(state[name].shape)
            first += size
    with tarfile.open(fileobj=io.BytesIO((out / RUN).read_bytes()), mode="r:xz") as tar:
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
