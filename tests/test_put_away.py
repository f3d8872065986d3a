"""A run that is not finished, put away small and taken out again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparserl.policy.checkpoint import load_policy, read_config, save_policy
from sparserl.policy.model import make_policy

SCRIPT = Path(__file__).parents[1] / "runs" / "put_away.py"


def put_away(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN beside BASE: what was learnt is a small difference, and nothing in the encoder."""
    folder = tmp_path_factory.mktemp("run")
    policy = make_policy("tiny")
    save_policy(policy, folder / "base")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.language.parameters():
            parameter.add_(1e-3 * torch.randn(parameter.shape, generator=generator))
    save_policy(policy, folder / "rl" / "policy", notes={"stage": "rl", "step": 7})
    (folder / "rl" / "rollouts").mkdir()
    (folder / "rl" / "rollouts" / "rollouts.jsonl").write_text('{"round": 6}\n')
    (folder / "rl" / "results.json").write_text('{"round": 7}')
    (folder / "rl" / "resume.pt").write_bytes(b"large")
    return folder


def test_a_run_comes_back_without_its_optimiser_and_with_nearly_its_weights(run: Path, tmp_path: Path) -> None:
    base = ("--base", run / "base")
    assert put_away("pack", run / "rl", tmp_path / "away", *base).returncode == 0
    assert put_away("unpack", tmp_path / "away", tmp_path / "rl", *base).returncode == 0
    back = tmp_path / "rl"
    assert sorted(path.name for path in back.iterdir()) == ["policy", "results.json", "rollouts"]
    assert (back / "rollouts" / "rollouts.jsonl").read_text() == '{"round": 6}\n'
    assert read_config(back / "policy")["notes"] == {"stage": "rl", "step": 7}
    first, learnt, found = (
        load_policy(folder).state_dict() for folder in (run / "base", run / "rl" / "policy", back / "policy")
    )
    for name, tensor in learnt.items():
        apart, error = (tensor - first[name]).norm(), (tensor - found[name]).norm()
        assert error <= 0.15 * apart, name
        assert bool(apart) is name.startswith("language."), name


def test_a_run_is_not_taken_out_over_another_or_beside_another_policy(run: Path, tmp_path: Path) -> None:
    assert put_away("pack", run / "rl", tmp_path / "away", "--base", run / "base").returncode == 0
    refused = put_away("unpack", tmp_path / "away", tmp_path / "rl", "--base", run / "rl" / "policy")
    assert refused.returncode == 2 and "another policy" in refused.stderr and not (tmp_path / "rl").exists()
    refused = put_away("unpack", tmp_path / "away", run / "rl", "--base", run / "base")
    assert refused.returncode == 2 and "is there already" in refused.stderr
    refused = put_away("pack", tmp_path / "nothing", tmp_path / "away")
    assert refused.returncode == 2 and "no policy folder" in refused.stderr


def test_a_policy_comes_back_to_the_byte_beside_the_run(run: Path, tmp_path: Path) -> None:
    for name, folder in (("base", run / "base"), ("learnt", run / "rl" / "policy")):
        save_policy(load_policy(folder), tmp_path / name, weights="int8", notes={"stage": name})
    base = ("--base", tmp_path / "base")
    assert put_away("pack", run / "rl", tmp_path / "away", *base).returncode == 0
    done = put_away("pack-policy", tmp_path / "learnt", tmp_path / "away", *base)
    assert done.returncode == 0, done.stderr
    assert put_away("unpack-policy", tmp_path / "away", tmp_path / "back", *base).returncode == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json", "manifest.json"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "learnt" / name).read_bytes(), name
    assert put_away("unpack", tmp_path / "away", tmp_path / "rl", *base).returncode == 0, "its notes are still there"
    refused = put_away("pack-policy", run / "rl" / "policy", tmp_path / "away", *base)
    assert refused.returncode == 2 and "ship it first" in refused.stderr
