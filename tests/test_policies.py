"""Which policy 'auto' is, what a policy says of itself, and what happens where it writes nothing that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparserl
from sparserl import policies, store
from sparserl.errors import SparseRLError
from sparserl.policy.checkpoint import save_policy
from sparserl.policy.model import make_policy
from sparserl.policy.writer import Writer
from sparserl.records import Problem
from sparserl.tune import Settings

NOTES = {"machine": "h200", "problems": ["spmv float32", "spmm float32 row row"], "sampling": {"max_tokens": 24}}


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy in the place of the shipped one, which has learnt nothing."""
    folder = tmp_path / "shipped"
    save_policy(make_policy("tiny"), folder, notes=NOTES)
    monkeypatch.setattr(policies, "SHIPPED", folder)
    monkeypatch.setattr(store, "cache_root", lambda: tmp_path / "cache")
    return folder


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Problem(), "nano"),
        (Problem("spmm", columns=7), "nano"),
        (Problem(dtype="float64"), "recipes"),
        (Problem("spmm", columns=8, b_order="col"), "recipes"),
        (Problem("spmm", "float16", columns=8), "recipes"),
    ],
)
def test_auto_is_the_shipped_policy_for_what_it_has_learnt(shipped: Path, problem: Problem, name: str) -> None:
    assert policies.settled("auto", problem) == name
    assert policies.settled("recipes", problem) == "recipes" and policies.settled("nano", problem) == "nano"
    assert policies.folder_of("nano") == shipped and policies.folder_of("a/b") == Path("a/b")


def test_without_a_shipped_policy_auto_is_the_recipes_and_nano_is_refused() -> None:
    assert policies.settled("auto", Problem()) == "recipes"
    with pytest.raises(SparseRLError, match=r"auto, nano, recipes.*Got 'nano', which is not there"):
        Settings(Problem(), "sim", policy="nano")


@pytest.mark.parametrize(
    ("name", "policy", "origin"),
    [
        ("written 3", "nano", "policy"),
        ("written 1", "runs/sft/policy", "policy"),
        ("tile(load=cached)", "nano", "recipe"),
        ("tile(load=cached)", "recipes", "recipe"),
        ("mine", "folder", "file"),
    ],
)
def test_a_candidate_is_known_by_its_name(name: str, policy: str, origin: str) -> None:
    assert policies.origin(name, policy) == origin


def test_a_policy_of_one_machine_is_told_that_one_and_what_is_timed(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Writer(shipped).machine == "h200"
    told: list[tuple[str, str]] = []

    class Telling:
        def __init__(self, *given: Any, machine: str, mode: str, **named: Any) -> None:
            told.append((machine, mode))

        def write(self, count: int) -> list[str]:
            return ["rubbish"] * count

    monkeypatch.setattr("sparserl.policy.rewriting.Rewriter", Telling)
    for mode in ("solver", "chain"):
        sparserl.tune(sp.eye_array(9, format="csr"), device="sim", candidates=1, cache=False, mode=mode)
    assert told == [("h200", "solver"), ("h200", "chain")]


def test_where_nothing_that_it_wrote_is_right_recipes_are_tried_too(shipped: Path) -> None:
    a = sp.random_array((60, 50), density=0.1, format="csr", rng=np.random.default_rng(0), dtype=np.float32)
    op = sparserl.tune(a, device="sim", candidates=2)
    assert op.report["settings"]["policy"] == "nano"
    names = [c["name"] for c in op.report["candidates"]]
    verdicts = {policies.origin(c["name"], "nano"): c["verdict"] for c in op.report["candidates"]}
    assert len(names) == 4 and verdicts["recipe"] == "correct" and verdicts["policy"] != "correct"
    x = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    assert np.allclose(op @ x, a @ x, rtol=1e-5, atol=1e-5)


# ── The shipped policy ────────────────────────────────────────────────────────


@pytest.mark.nano
def test_the_shipped_policy_is_small_and_says_how_it_is_to_be_used() -> None:
    assert sum(path.stat().st_size for path in policies.SHIPPED.iterdir()) <= 25e6
    writer = Writer(policies.SHIPPED)
    assert 0 < writer.settings.temperature <= 1 and writer.machine == "h200"
    assert 12e6 <= sum(each.numel() for each in writer.policy.parameters()) <= 20e6
    assert set(policies.problems()) == {"spmv float32", "spmv float64", "spmm float32 row row"}


@pytest.mark.nano
@pytest.mark.slow
def test_the_shipped_policy_writes_programs_that_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "cache_root", lambda: tmp_path)
    a = sp.random_array((700, 500), density=0.02, format="csr", rng=np.random.default_rng(3), dtype=np.float32)
    op = sparserl.tune(a, device="sim", policy="nano", candidates=4)
    verdicts = [c["verdict"] for c in op.report["candidates"]]
    assert all(c["name"].startswith("written ") for c in op.report["candidates"]), "recipes had to help out"
    assert verdicts.count("correct") >= 2, verdicts
    x = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    assert np.allclose(op @ x, a @ x, rtol=1e-4, atol=1e-4)
