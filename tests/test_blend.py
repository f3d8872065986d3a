"""Weights between a policy and the one that it was made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sparserl.cli import app
from sparserl.errors import SparseRLError
from sparserl.policy.checkpoint import TIED, load_policy, quantise, read_config, save_policy
from sparserl.policy.model import Policy, make_policy
from sparserl.train.blend import blended
from sparserl.train.loop import weights_sha


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in policy.named_parameters()}


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_every_weight_is_moved_the_same_way_once_those_that_stand_in_two_places_too(share: float) -> None:
    ours, theirs = weights(make_policy("tiny", 1)), weights(make_policy("tiny", 2))
    made = blended(make_policy("tiny", 1), make_policy("tiny", 2), share)
    for name, tensor in weights(made).items():
        assert torch.allclose(tensor, (1 - share) * ours[name] + share * theirs[name], atol=1e-6), name
    state = made.state_dict()
    assert torch.equal(state[TIED], state["language.model.embed_tokens.weight"])


def test_policies_of_other_sizes_and_shares_beyond_the_two_are_refused() -> None:
    with pytest.raises(SparseRLError, match="one size"):
        blended(make_policy("tiny"), make_policy("nano"), 0.5)
    for share in (-0.1, 1.1):
        with pytest.raises(SparseRLError, match=r"0\.\.1"):
            blended(make_policy("tiny"), make_policy("tiny"), share)


def test_what_is_shipped_says_what_it_was_blended_with(tmp_path: Path) -> None:
    for seed, name in enumerate(("learnt", "before")):
        save_policy(make_policy("tiny", seed), tmp_path / name, notes={"stage": "rl"})
    words = [
        "train",
        "ship",
        "--policy",
        tmp_path / "learnt",
        "--blend",
        tmp_path / "before",
        "--out",
        tmp_path / "nano",
    ]
    done = CliRunner().invoke(app, [*map(str, words), "--blend-share", "0.4"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = read_config(tmp_path / "nano")["notes"]
    assert told["blend"] == {"share": 0.4, "with": weights_sha(tmp_path / "before")} and told["stage"] == "rl"
    wanted = weights(blended(load_policy(tmp_path / "learnt"), load_policy(tmp_path / "before"), 0.4))
    for name, tensor in weights(load_policy(tmp_path / "nano")).items():
        step = quantise(wanted[name])[1] if tensor.dim() == 2 else torch.tensor(1e-6)
        assert ((tensor - wanted[name]).abs() <= 0.51 * step + 1e-7).all(), name
