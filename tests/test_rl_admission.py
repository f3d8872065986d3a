"""What matrices admit is learnt without a judge: the loss, the lines it is learnt from, and that it sticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_tiny import LAYOUTS, fitted, prompts, pure, sampled
from sparserl.errors import SparseRLError
from sparserl.policy.checkpoint import load_policy
from sparserl.policy.encoder import EncoderInput, collate
from sparserl.policy.sampler import Sampler, SampleSettings
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Problem
from sparserl.train.cases import FAR_PLAYED, shown_cases
from sparserl.train.rl.admission import FRESH, SPARE, Admission, of_every_kind
from sparserl.train.rl.config import Places, RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.curriculum import Curriculum, CurriculumConfig, Results, kind_of
from sparserl.train.rl.learner import Learner, Line
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.objective import admission
from sparserl.train.rl.table import open_table

ROWS, SLICES = LAYOUTS
GRID, RANDOM, LONG = prompts()


def lines(prompt: Prompt) -> Sequence[str]:
    """One of the three refuses slices, and one admits nothing that a recipe has."""
    return {"long": (ROWS,), "random": ()}.get(prompt.case, LAYOUTS)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tmp_path_factory.mktemp("tiny"), steps=110)


def opened(weights: Path, config: RLConfig) -> tuple[Learner, Admission, Tokenizer]:
    tokenizer = Tokenizer.load(weights / "tokenizer.json")
    policy = load_policy(weights)
    learner = Learner(config, policy, torch.device("cpu"), lambda prompt: sampled(prompt.case), Crew())
    return learner, Admission(Sampler(policy, tokenizer, "cpu"), tokenizer, prompts(), lines), tokenizer


def sliced(learner: Learner, tokenizer: Tokenizer, prompt: Prompt) -> float:
    """The share of programs with slices, nothing forbidden."""
    sampler = Sampler(learner.policy, tokenizer, "cpu")
    batch = collate([sampled(prompt.case)], [prompt.problem], "sim")
    (found,) = sampler.sample(batch, 64, SampleSettings(max_tokens=24))
    return float(np.mean([tokenizer.decode(each.ids).count(SLICES) for each in found]))


def test_lines_end_with_the_layout_and_say_what_may_stand_at_each_place(weights: Path) -> None:
    learner, taught, tokenizer = opened(weights, pure("grpo", 1))
    free, bound = taught.drawn(learner, [GRID, LONG], seed=3)
    for line, admitted in ((free, LAYOUTS), (bound, (ROWS,))):
        written = tokenizer.decode(line.ids[2:].tolist())
        assert written.endswith("\n") and written[:-1] in admitted
        assert line.ids[0] == tokenizer.program and line.ids[1] == tokenizer.layout
        assert line.written.tolist() == [False] + [True] * (len(line.ids) - 1)
        assert all(token in allowed for token, allowed in zip(line.ids[1:], line.allowed, strict=True))
        assert all(shares.sum() == pytest.approx(1.0, abs=1e-5) for shares in line.target)
    assert {len(allowed) for allowed in bound.allowed} == {1}, "there is one line"
    assert sorted({len(allowed) for allowed in free.allowed}) == [1, 2], "the two part at one token"


def test_the_loss_is_the_distance_from_what_would_be_said_under_the_mask(weights: Path) -> None:
    learner, taught, _ = opened(weights, pure("grpo", 1))
    found = taught.drawn(learner, [LONG, GRID], seed=3)
    batch = learner.batch(found)
    assert batch.matrix is not None
    expected, count = 0.0, 0
    prefix = learner.policy.prefix(batch.matrix)
    for place, line in enumerate(found):
        logits = learner.policy(torch.from_numpy(line.ids)[None, :-1], prefix=prefix[[place]])[0].detach()
        lacks = 0.0
        for said, allowed, shares in zip(logits.softmax(-1), line.allowed, line.target, strict=True):
            inside = float(said[allowed].sum())
            assert shares == pytest.approx((said[allowed] / inside).numpy(), rel=1e-3, abs=1e-6)
            expected += float((torch.from_numpy(shares) * (torch.from_numpy(shares) / said[allowed]).log()).sum())
            lacks -= math.log(inside)
            count += 1
        assert line.lacks == pytest.approx(lacks, rel=1e-3) and lacks > 1e-3
    with torch.no_grad():
        told = admission(learner.policy, batch)
    assert float(told.loss) == pytest.approx(expected / count, rel=1e-3)
    assert float(told.loss) == pytest.approx(sum(line.lacks for line in found) / count, rel=1e-3), "the mask is all"
    with pytest.raises(ValueError, match="target"):
        admission(learner.policy, replace(batch, target=None))


def test_what_a_policy_never_says_has_a_target_all_the_same(weights: Path) -> None:
    learner, taught, tokenizer = opened(weights, pure("grpo", 1))
    with torch.no_grad():
        learner.policy.language.lm_head.weight.mul_(40.0)
    other = "ell c=32 group=1 index=int32"
    never = Admission(taught.sampler, tokenizer, [GRID], lambda prompt: (other,))
    (line,) = never.drawn(learner, [GRID], seed=0)
    assert line.lacks > 104 * len(line.allowed), "exp(-104) is 0 in float32"
    assert all(shares.tolist() == [1.0] for shares in line.target)


def test_a_matrix_that_refuses_a_layout_gets_it_no_more_and_the_others_keep_it(weights: Path) -> None:
    config = replace(pure("grpo", 1), admit_steps=60, admit_batch=4)
    config = replace(config, loop=replace(config.loop, learning_rate=1e-3))
    learner, taught, tokenizer = opened(weights, config)
    before = {prompt.case: sliced(learner, tokenizer, prompt) for prompt in (GRID, LONG)}
    assert min(before.values()) > 0.08, "it begins with a policy that writes slices for all"
    figures = taught.teach(learner, 0)
    after = {prompt.case: sliced(learner, tokenizer, prompt) for prompt in (GRID, LONG)}
    assert after["long"] == 0.0
    assert after["grid"] > before["grid"] / 2
    assert learner.steps == 60
    again = taught.teach(learner, 1)
    assert again["admit/lacks"] < figures["admit/lacks"] / 10


def test_many_steps_draw_lines_anew_and_the_encoder_reads_a_part_of_them_at_a_time(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(pure("grpo", 1), admit_steps=FRESH + 1, admit_batch=2)
    config = replace(config, play=replace(config.play, settings=replace(config.play.settings, batch=30)))
    learner, taught, _ = opened(weights, config)
    drawn: list[tuple[int, int]] = []
    read: list[int] = []
    plain, prefix = taught.drawn, learner.policy.prefix

    def counted(learner: Learner, prompts: Sequence[Prompt], seed: int) -> list[Line]:
        drawn.append((learner.steps, len(prompts)))
        return plain(learner, prompts, seed)

    def noted(matrix: EncoderInput) -> torch.Tensor:
        read.append(len(matrix.sizes))
        return prefix(matrix)

    monkeypatch.setattr(taught, "drawn", counted)
    monkeypatch.setattr(taught.sampler.policy, "prefix", noted)
    figures = taught.teach(learner, 0)
    assert drawn == [(0, SPARE * 2 * FRESH), (FRESH, SPARE * 2)] and learner.steps == FRESH + 1
    assert max(read) == 30, "of 192 lines"
    assert figures["admit/lacks"] > 0


def test_what_is_admitted_is_learnt_at_temperature_1_whatever_programs_are_drawn_at(weights: Path) -> None:
    def lacking(temperature: float) -> tuple[float, float]:
        config = replace(pure("grpo", 1), admit_steps=1, admit_batch=4)
        config = replace(config, play=replace(config.play, settings=SampleSettings(temperature, max_tokens=40)))
        learner, taught, _ = opened(weights, config)
        (line,) = taught.drawn(learner, [LONG], seed=0)
        return line.lacks, taught.teach(learner, 0)["admit/loss"]

    cold, plain = lacking(0.3), lacking(1.0)
    assert cold == pytest.approx(plain, rel=1e-4) and min(cold) > 0


def test_far_matrices_are_learnt_from_as_kinds_of_their_own(weights: Path) -> None:
    config = replace(pure("grpo", 1), admit_steps=60, admit_batch=4)
    config = replace(config, loop=replace(config.loop, learning_rate=1e-3))
    learner, taught, tokenizer = opened(weights, config)
    many, far = [GRID] * 20, replace(LONG, source={**GRID.source, "far": True})
    assert (kind_of(GRID), kind_of(far)) == ("stencil2d", "far stencil2d")
    rare, both = [*many, far], [*many, *[far] * 20]
    assert [prompt.case for prompt in of_every_kind(rare, 8, np.random.default_rng(0))].count("long") == 1
    assert [prompt.case for prompt in of_every_kind(both, 8, np.random.default_rng(0))].count("long") == 4
    assert sliced(learner, tokenizer, LONG) > 0.08
    Admission(taught.sampler, tokenizer, both, lines).teach(learner, 0)
    assert sliced(learner, tokenizer, LONG) == 0.0 and sliced(learner, tokenizer, GRID) > 0.04


def test_the_largest_far_matrices_are_not_played_but_it_is_known_what_they_admit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAR_PLAYED, "spmv", 600)
    monkeypatch.setitem(FAR_PLAYED, "spmm", 0)
    problems = (Problem(), Problem(op="spmm", columns=32))
    few = CurriculumConfig(
        prompts=4, spmv_cases=5, spmm_cases=5, far=5, most_nonzeros=3e3, problems=problems, shares=(0.5, 0.5)
    )
    config = RLConfig(judged_on="sim", curriculum=few, admit_steps=1)
    with open_table(config, Places(tmp_path, tmp_path, workers=1), Crew()) as table:
        far = [prompt for prompt in table.prompts if "far" in prompt.source]
        assert 0 < len(far) < 5 and len(far) + len(table.unplayed) == 5 + 3
        assert all(prompt.problem.op == "spmv" and table.look(prompt).nonzeros <= 600 for prompt in far)
        assert all(prompt.problem.op == "spmm" or table.look(prompt).nonzeros > 600 for prompt in table.unplayed)
        assert all(prompt.case.startswith("far-") for prompt in (*far, *table.unplayed))
        assert all(prompt.structure and table.look(prompt).nonzeros for prompt in table.unplayed)
        assert any(table.admitted(prompt) for prompt in table.unplayed)
        played = Curriculum(table.prompts, few)
        drawn = {prompt.case for number in range(40) for prompt in played.round(number, Results())}
        assert drawn == {prompt.case for prompt in table.prompts}
    with pytest.raises(SparseRLError, match="--admit-steps"):
        replace(config, admit_steps=0)


def test_nothing_is_taught_unless_it_is_asked_for(weights: Path) -> None:
    learner, taught, _ = opened(weights, pure("grpo", 1))
    assert taught.teach(learner, 0) == {} and learner.steps == 0
    unasked = Admission(taught.sampler, taught.tokenizer, prompts(), lambda prompt: {}[prompt.case])
    assert unasked.teach(learner, 0) == {}, "no table of what is admitted was made"
    only = Admission(taught.sampler, taught.tokenizer, [RANDOM], lines)
    assert only.teach(opened(weights, replace(pure("grpo", 1), admit_steps=2))[0], 0) == {}, "nothing is admitted"


def test_shown_matrices_are_not_played_but_it_is_known_what_they_admit(tmp_path: Path) -> None:
    problems = (Problem(), Problem(op="spmm", columns=32))
    few = CurriculumConfig(
        prompts=4, spmv_cases=2, spmm_cases=2, shown=2, most_nonzeros=3e3, problems=problems, shares=(0.5, 0.5)
    )
    with pytest.raises(SparseRLError, match=r"'shown'.*--admit-steps"):
        RLConfig(judged_on="sim", curriculum=few)
    config = RLConfig(judged_on="sim", curriculum=few, admit_steps=1)
    with open_table(config, Places(tmp_path, tmp_path, workers=1), Crew()) as table:
        assert [prompt.case for prompt in table.unplayed] == [case.name for case in shown_cases(2, most_nonzeros=3e3)]
        assert {kind_of(prompt) for prompt in table.unplayed} >= {"drawn", "cut", "strewn"}
        assert all(prompt.problem == Problem() and table.look(prompt).nonzeros for prompt in table.unplayed)
        assert any(table.admitted(prompt) for prompt in table.unplayed)
        assert not {prompt.case for prompt in table.prompts} & {prompt.case for prompt in table.unplayed}
