"""What layouts have earned teaches the choice among them, and of those that were never tried nothing changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_tiny import LAYOUTS, PROGRAMS, fitted, prompts, pure, sampled
from sparserl.policy.checkpoint import load_policy
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Verdict
from sparserl.train.rl.choose import SHARP, _tried, choose, wanted
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.curriculum import Results
from sparserl.train.rl.explore import ExploreConfig, Explorer, pair_of
from sparserl.train.rl.learner import Learner
from sparserl.train.rl.nouns import Judged, Prompt, Rollout, Turn

ROWS, SLICES = LAYOUTS
GRID, RANDOM, LONG = prompts()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tmp_path_factory.mktemp("tiny"))


def config(steps: int) -> RLConfig:
    usual = replace(pure("grpo", 1), choose_steps=steps, choose_batch=3)
    return replace(usual, loop=replace(usual.loop, learning_rate=3e-4))


def opened(weights: Path, steps: int) -> tuple[Learner, Tokenizer]:
    policy = load_policy(weights)
    look = lambda prompt: sampled(prompt.case)  # noqa: E731
    return Learner(config(steps), policy, torch.device("cpu"), look, Crew()), Tokenizer.load(weights / "tokenizer.json")


def shares(learner: Learner, tokenizer: Tokenizer, prompt: Prompt) -> dict[str, float]:
    """How probable each layout line is."""
    machine = ExploreConfig(machine=learner.config.play.machine)
    asked = Explorer(learner.policy, tokenizer, learner.look, lambda prompt: LAYOUTS, machine)
    return {line: float(np.exp(score)) for line, score in asked.ranked(prompt)}


def test_what_lines_have_together_is_shared_out_by_what_they_have_and_what_they_earned() -> None:
    found = wanted(np.array([0.4, 0.2, 0.2]), np.array([0.1, 0.1, 0.1 + SHARP]))
    assert found.sum() == pytest.approx(0.8)
    assert found[0] / found[1] == pytest.approx(2.0) and found[2] / found[1] == pytest.approx(np.e)
    equal = np.array([0.5, 0.3])
    assert wanted(equal, np.array([0.2, 0.2])) == pytest.approx(equal)
    assert wanted(np.zeros(2), np.array([0.1, 0.2])) == pytest.approx(np.zeros(2)), "so improbable that nothing is left"


def test_each_matrix_comes_to_the_layout_that_was_fastest_there(weights: Path) -> None:
    learner, tokenizer = opened(weights, 40)
    before = {prompt.case: shares(learner, tokenizer, prompt) for prompt in prompts()}
    assert all(min(each.values()) > 0.05 for each in before.values()), "it is sure of none"
    results = Results()
    for prompt, rows, slices in ((GRID, 0.5, 0.1), (LONG, 0.0, 0.6)):
        results.lines[pair_of(prompt)] = {ROWS: rows, SLICES: slices}
    results.lines[pair_of(RANDOM)] = {ROWS: 0.5}  # one line is no choice
    told = choose(learner, results, prompts(), tokenizer, 0)
    after = {prompt.case: shares(learner, tokenizer, prompt) for prompt in prompts()}
    assert after["grid"][ROWS] > 0.85 and after["long"][SLICES] > 0.85
    for case in ("grid", "long"):
        assert sum(after[case].values()) == pytest.approx(sum(before[case].values()), abs=0.1), "together as before"
    assert 0 < told["choose/behind"] < 0.6 and 0.8 < told["choose/mass"] <= 1.0


def test_equally_fast_layouts_stay_as_probable_as_they_are(weights: Path) -> None:
    learner, tokenizer = opened(weights, 10)
    before = {prompt.case: shares(learner, tokenizer, prompt) for prompt in prompts()}
    results = Results()
    for prompt in prompts():
        results.lines[pair_of(prompt)] = {ROWS: 0.2, SLICES: 0.2}
    choose(learner, results, prompts(), tokenizer, 0)
    for prompt in prompts():
        assert shares(learner, tokenizer, prompt) == pytest.approx(before[prompt.case], abs=0.12)


def test_without_steps_or_anything_tried_nothing_is_learnt(weights: Path) -> None:
    results = Results()
    for steps in (0, 5):
        learner, tokenizer = opened(weights, steps)
        assert choose(learner, results, prompts(), tokenizer, 0) == {}
        results.lines[pair_of(GRID)] = {ROWS: 0.2}
        assert choose(learner, results, prompts(), tokenizer, 0) == {} and learner.steps == 0
        results.lines[pair_of(GRID)] = {ROWS + " index" * 60: 0.2, SLICES + " index" * 60: 0.1}
        assert choose(learner, results, prompts(), tokenizer, 0) == {}, "all too long"


def test_lines_that_are_too_long_for_any_recipe_are_left_out(weights: Path) -> None:
    tokenizer = Tokenizer.load(weights / "tokenizer.json")
    lines, earned = _tried(GRID, {ROWS: 0.1, SLICES: 0.2, ROWS + " index" * 60: 0.3}, tokenizer)
    assert [*earned] == [0.1, 0.2]
    assert [tokenizer.decode(line.ids[2:].tolist()).rstrip("\n") for line in lines] == [ROWS, SLICES]


def test_results_know_what_lines_earned_and_later_rounds_weigh_more() -> None:
    def rollout(text: str, reward: float) -> Rollout:
        return Rollout(GRID, 0, (), (), (), (Turn(text, Judged(Verdict.CORRECT), reward, 0, 0),))

    results = Results()
    one, two = PROGRAMS["four lanes"], PROGRAMS["slices"]
    results.add([rollout(one, 0.4), rollout(one, 0.2), rollout(two, 0.1), rollout("no program", -2.4)])
    assert results.lines[pair_of(GRID)] == pytest.approx({ROWS: 0.3, SLICES: 0.1})
    results.add([rollout(one, 0.5)])
    assert results.lines[pair_of(GRID)] == pytest.approx({ROWS: 0.4, SLICES: 0.1})
    assert Results.from_record(results.to_record()) == results
    old = [{name: value for name, value in each.items() if name != "lines"} for each in results.to_record()]
    assert Results.from_record(old).seen == results.seen and not Results.from_record(old).lines
