"""The figures beside the loss, against rollouts made by hand and the recipes themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparserl import recipes
from sparserl.families import make
from sparserl.matrix import Array
from sparserl.policy.encoder import EncoderSize, collate
from sparserl.policy.language import Shape
from sparserl.policy.model import Size, make_policy
from sparserl.policy.sample import sample_pattern
from sparserl.policy.sampler import SampleSettings
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Problem, Verdict
from sparserl.train import rules
from sparserl.train.loop import LoopConfig
from sparserl.train.rl import diagnostics
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.learner import Learner
from sparserl.train.rl.nouns import EXPLORED, Judged, Prompt, Rollout, Turn
from sparserl.train.rl.objective import Coefficients
from sparserl.train.rl.update import learn, lines_of, look_back
from sparserl.train.skeleton import skeleton


def a_rollout(turns: list[Turn], ids: list[int], log_probs: list[float], group: int = 0) -> Rollout:
    written = [any(turn.first <= place < turn.last for turn in turns) for place in range(len(ids))]
    return Rollout(Prompt("case", {}, Problem()), group, ids, log_probs, written, turns)


def a_turn(text: str, verdict: Verdict = Verdict.CORRECT, reward: float = 0.0, first: int = 1, last: int = 2) -> Turn:
    return Turn(text, Judged(verdict), reward, first, last)


def test_explained_variance_is_1_for_the_truth_0_for_a_constant_and_less_for_worse() -> None:
    returns: Array = np.array([1.0, 2.0, 4.0])
    assert diagnostics.explained_variance(returns, returns) == 1.0
    assert diagnostics.explained_variance(np.zeros(3), returns) == 0.0
    assert diagnostics.explained_variance(-returns, returns) < 0
    assert diagnostics.explained_variance(returns, np.ones(3)) == 0.0


def test_shares_by_level_hold_every_level_and_sum_to_1() -> None:
    found = diagnostics.shares([Verdict.CORRECT, Verdict.CORRECT, Verdict.WRONG, Verdict.UNREADABLE])
    assert list(found) == [verdict.name.lower() for verdict in Verdict]
    assert (found["correct"], found["wrong"], found["failed"]) == (0.5, 0.25, 0.0)
    assert sum(found.values()) == 1.0


def test_surprise_and_entropy_go_to_the_part_that_was_written_in_every_turn() -> None:
    t = Tokenizer
    first = [t.program, t.layout, 100, t.launch, 101, t.code, 102, t.eos]  # the layout is forced
    second = [t.feedback, 103, t.program, t.layout, 104, t.launch, t.code, t.eos]
    nats = [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 5.0, 7.0, 0.0, 0.0, 0.0, 1.0, 3.0, 4.0, 6.0, 3.0]
    turns = [a_turn("", first=3, last=8), a_turn("", first=11, last=16)]
    rollout = a_rollout(turns, first + second, [-each for each in nats])
    parts = {"header": (1 + 1 + 3 + 4) / 4, "launch": (2 + 4 + 6) / 3, "body": (5 + 7 + 3) / 3}
    assert diagnostics.surprise_by_part([rollout]) == pytest.approx(parts)
    twice = {name: 2 * each for name, each in parts.items()}
    assert diagnostics.entropy_by_part([rollout], [2 * np.array(nats)]) == pytest.approx(twice)


def test_parts_are_those_of_the_evaluation() -> None:
    rng = np.random.default_rng(0)
    special = [Tokenizer.special[f"<{part}>"] for part in rules.PARTS]
    for _ in range(20):
        ids = rng.choice([*special, 100, 101, 5000], size=30).tolist()
        nats = rng.random(30)
        rollout = a_rollout([a_turn("", first=int(rng.integers(1, 9)), last=30)], ids, (-nats).tolist())
        line = rules.Line(ids, rollout.log_probs, rollout.log_probs, rollout.turns[0].first)
        sums = {name: rules.PartSum() for name in diagnostics.PARTS.values()}
        for part, found in rules.by_part(line, Tokenizer.special).items():
            sums[diagnostics.PARTS[part]] += found
        expected = {name: found.surprise for name, found in sums.items()}
        assert diagnostics.surprise_by_part([rollout]) == pytest.approx(expected)
    assert set(diagnostics.surprise_by_part([a_rollout([a_turn("", first=0, last=0)], [], [])]).values()) == {0.0}


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_entropy_of_a_round_is_that_of_the_distribution_drawn_from(temperature: float) -> None:
    """It was minus the mean log-probability, at temperature 1, of what was drawn at 0.7: far too low."""
    t = Tokenizer
    config = RLConfig(imitate_steps=0, coefficients=Coefficients(keep=0.0), loop=LoopConfig(device="cpu"))
    config = replace(config, play=replace(config.play, settings=SampleSettings(temperature)))
    sample = sample_pattern(make("stencil2d", 0, nx=8, ny=8))
    policy = make_policy(Size(Shape(32, 1, 2, 1, 48, 256, 128), EncoderSize(inner=32, queries=4)), seed=1)
    for each in policy.language.parameters():  # fresh weights are all but uniform, whatever the temperature
        each.data *= 8
    ids = [t.program, t.layout, 100, 101, t.launch, 102, t.code, 103, 104, t.eos]
    rollout = a_rollout([a_turn("", first=2, last=10)], ids, [-9.0] * 10)
    with torch.no_grad():
        seen = collate([sample], [Problem()], config.play.machine, config.play.mode)
        logits = policy(torch.tensor([ids[:-1]]), seen)[0] / temperature
    nats = torch.distributions.Categorical(logits=logits).entropy().numpy()  # before ids[1], ids[2] …
    learner = Learner(config, policy, torch.device("cpu"), lambda prompt: sample, Crew())
    found = learn(learner, [rollout, rollout], look_back(learner, lines_of([rollout, rollout])), 0)
    parts = {"header": nats[1:4].mean(), "launch": nats[4:6].mean(), "body": nats[6:9].mean()}
    assert {name: found[f"entropy/{name}"] for name in parts} == pytest.approx(parts, rel=1e-3)


@pytest.mark.parametrize("problem", [Problem(), Problem(op="spmm", columns=32)], ids=["spmv", "spmm"])
def test_no_recipe_is_new_for_its_own_problem(problem: Problem) -> None:
    assert all(skeleton(recipe.text) in diagnostics.recipe_skeletons(problem) for recipe in recipes.space(problem)[::9])


def test_numbers_and_names_make_nothing_new_but_another_statement_does() -> None:
    problem = Problem()
    text = recipes.space(problem)[0].text
    assert not diagnostics.is_new(text.replace("sum", "total").replace("128", "96"), problem)
    assert diagnostics.is_new(text.rstrip().removesuffix("}") + "    __syncthreads();\n}\n", problem)
    assert not diagnostics.is_new("no program", problem)


def test_the_summary_counts_skeletons_by_group_and_novelty_among_the_right() -> None:
    space = recipes.space(Problem())
    kinds = list({skeleton(recipe.text): recipe.text for recipe in space[::50]}.values())
    new = kinds[0].rstrip().removesuffix("}") + "    __syncthreads();\n}\n"
    ids, nats = [Tokenizer.program, Tokenizer.layout], [0.0, -0.5]
    rollouts = [
        a_rollout([a_turn(kinds[0], reward=0.5)], ids, nats),
        a_rollout([a_turn(kinds[1], reward=1.5)], ids, nats),
        a_rollout([a_turn("nothing", Verdict.UNREADABLE, -2.0)], ids, nats),
        a_rollout([a_turn(new, reward=1.0)], ids, nats, group=1),
        a_rollout([a_turn(new + " ", Verdict.WRONG, -1.0)], ids, nats, group=1),
    ]
    found = diagnostics.summary(rollouts)
    assert found["reward/mean"] == pytest.approx(0.0)
    assert found["reward/best"] == pytest.approx(1.25)
    assert found["share/correct"] == pytest.approx(0.6)
    assert found["surprise/header"] == pytest.approx(0.5)
    assert found["skeletons"] == pytest.approx(1.5)
    assert found["novelty"] == pytest.approx(1 / 3)
    assert found["own/correct"] == pytest.approx(0.6)
    assert found["own/behind"] == pytest.approx((1.5 + 1.0) / 2)  # 1.5 - 0 and 1 - 0
    given = [replace(each, origin=EXPLORED) for each in rollouts]
    half = diagnostics.summary([given[0], *rollouts[1:3], *given[3:]])
    assert half["own/correct"] == pytest.approx(0.5) and half["own/behind"] == pytest.approx(1.5 + 0.25)
    assert "own/behind" not in diagnostics.summary(given)
    assert diagnostics.summary([]) == {}
