"""The rounds of reinforcement learning on the simulator: broken off, resumed, carried elsewhere, replayed, launched."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_tiny import everything, fitted, judge, prompts, pure, table
from sparserl.cli import main
from sparserl.errors import SparseRLError, StoreError
from sparserl.policy.checkpoint import load_policy, read_config
from sparserl.policy.sample import Sample
from sparserl.recipes import space
from sparserl.records import Problem, Verdict
from sparserl.store import read_json, read_jsonl
from sparserl.train.loop import RESUME
from sparserl.train.rl import loop
from sparserl.train.rl.config import Places
from sparserl.train.rl.credit import ends_of, scores_of, with_group_advantages, with_token_advantages
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.curriculum import Results
from sparserl.train.rl.explore import Elites
from sparserl.train.rl.learner import Line
from sparserl.train.rl.loop import CLOCKED, ELITES, RESULTS, ROUNDS, train
from sparserl.train.rl.nouns import EXPLORED, OWN, VARIED, Judged, Prompt, Rollout, Turn
from sparserl.train.rl.referee import Referee
from sparserl.train.rl.replay import ReplayReferee
from sparserl.train.rl.rollout_store import RolloutStore
from sparserl.train.rl.rounds import Played, may_teach, recall, shuffled
from sparserl.train.withheld import withheld_recipe

TINY = Path(__file__).with_name("rl_tiny.py")
PROMPT = prompts()[0]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that writes right programs, not always."""
    return fitted(tmp_path_factory.mktemp("tiny"), steps=110)


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    found = judge()
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole(weights: Path, tmp_path_factory: pytest.TempPathFactory, referee: Referee) -> Path:
    """The folder of an unbroken run of four rounds."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(everything("ppo"), Places(out, weights), table(referee), Crew())
    return out


def curve(folder: Path) -> list[dict[str, Any]]:
    """What a run wrote of its rounds, without the clock."""
    lines = read_jsonl(folder / ROUNDS)
    return [{name: value for name, value in line.items() if not name.startswith(CLOCKED)} for line in lines]


def state(folder: Path) -> dict[str, torch.Tensor]:
    return load_policy(folder).state_dict()


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = state(one), state(other)
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


class KilledError(Exception):
    """In place of a signal."""


def test_a_killed_run_is_resumed_to_the_curve_and_the_weights_of_an_unbroken_one(
    whole: Path, weights: Path, referee: Referee, tmp_path: Path
) -> None:
    config, out = everything("ppo"), tmp_path / "broken"
    command = [sys.executable, str(TINY), str(weights), str(out), "ppo", "dies"]
    died = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert [line["round"] for line in curve(out)] == [0, 1]
    assert max(number for number, _ in RolloutStore(out / "rollouts").rollouts()) == 2, "the third had begun"
    with pytest.raises(StoreError, match="--resume"):
        train(config, Places(out, weights), table(referee), Crew())
    with pytest.raises(StoreError, match="begun with another 'epochs'"):
        train(replace(config, epochs=3), Places(out, weights, resume=True), table(referee), Crew())
    assert train(config, Places(out, weights, resume=True), table(referee), Crew()).complete
    assert curve(out) == curve(whole)
    assert same_weights(out / "policy", whole / "policy")
    assert not same_weights(whole / "policy", weights), "it learnt something"
    ours, theirs = RolloutStore(out / "rollouts"), RolloutStore(whole / "rollouts")
    assert [*ours.rollouts()] == [*theirs.rollouts()] and [*ours.retimed()] == [*theirs.retimed()]


def test_a_run_goes_on_for_more_rounds_and_with_more_matrices(
    whole: Path, weights: Path, referee: Referee, tmp_path: Path
) -> None:
    config, out = everything("ppo"), tmp_path / "longer"
    shutil.copytree(whole, out)
    longer = replace(config, rounds=5, curriculum=replace(config.curriculum, strewn=1))
    longer = replace(longer, varied=1, choose_steps=2, explore=replace(config.explore, kinds=1, even=0.2))
    assert train(longer, Places(out, weights, resume=True), table(referee), Crew()).step == 5
    assert curve(out)[:4] == curve(whole) and len(curve(out)) == 5
    stored = read_json(out / "config.json")
    assert (stored["rounds"], stored["curriculum"]["strewn"]) == (5, 1)


@pytest.mark.parametrize("exact", [True, False])
def test_a_run_goes_on_without_a_matrix_whose_winner_it_has(
    whole: Path, weights: Path, referee: Referee, tmp_path: Path, exact: bool
) -> None:
    config, out, all_of_it = everything("ppo"), tmp_path / "fewer", table(referee)
    shutil.copytree(whole, out)
    if not exact:
        (out / RESUME).unlink()
    gone = min(case for case, _ in Elites.load(out / ELITES).pairs)

    def look(prompt: Prompt) -> Sample:
        assert prompt.case != gone, "nobody has read this matrix"
        return all_of_it.look(prompt)

    fewer = replace(all_of_it, prompts=[each for each in all_of_it.prompts if each.case != gone], look=look)
    assert 0 < len(fewer.prompts) < len(all_of_it.prompts)
    assert train(replace(config, rounds=5), Places(out, weights, resume=True), fewer, Crew()).step == 5
    left = Elites.load(out / ELITES)
    assert gone not in {each.prompt.case for each in [*left.cells.values(), *left.pairs.values()]} and left.pairs


def test_a_round_has_every_part_and_every_rollout_is_stored(whole: Path, weights: Path) -> None:
    lines = curve(whole)
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    for name in ("reward/mean", "share/correct", "entropy/header", "skeletons", "novelty", "explained_variance"):
        assert name in lines[0]
    for name in ("loss/kl", "loss/clip_fraction", "loss/value_loss", "loss/policy_loss"):
        assert name in lines[0]
    for name in ("imitate/elites", "admit/lacks"):
        assert name in lines[0]
    stored = [*RolloutStore(whole / "rollouts").rollouts()]
    written = [rollout for _, rollout in stored if rollout.origin != VARIED]
    assert len(written) == sum(line["rollouts"] for line in lines) == 4 * 2 * 4
    assert {rollout.origin for rollout in written} == {OWN, EXPLORED}
    assert len(stored) - len(written) == sum(line["vary/judged"] for line in lines) > 4 * 2
    assert max(len(rollout.turns) for _, rollout in stored) == 2
    assert any(turn.judged.verdict is Verdict.CORRECT for _, rollout in stored for turn in rollout.turns)
    assert [*RolloutStore(whole / "rollouts").retimed()] and lines[-1]["imitate/elites"] > 0
    assert read_config(whole / "policy")["notes"]["step"] == 4
    assert (whole / "policy" / "tokenizer.json").read_bytes() == (weights / "tokenizer.json").read_bytes()


def test_a_run_is_replayed_from_its_rollouts_without_a_machine(whole: Path, weights: Path, tmp_path: Path) -> None:
    replay = ReplayReferee(whole / "rollouts")
    train(everything("ppo"), Places(tmp_path / "again", weights), table(replay), Crew())
    assert curve(tmp_path / "again") == curve(whole)
    assert same_weights(tmp_path / "again" / "policy", whole / "policy")


def test_winners_and_results_of_a_run_come_back_from_its_rollouts(
    whole: Path, weights: Path, referee: Referee, tmp_path: Path
) -> None:
    config, known = everything("ppo"), Elites.load(whole / ELITES)
    played = Played(Elites(config.play.modes), Results())
    recall(whole, prompts(), played, config)
    assert len(known) and played.elites.cells == known.cells and played.elites.pairs == known.pairs
    assert played.results.to_record() == read_json(whole / RESULTS)["results"]
    some = Played(Elites(config.play.modes), Results())
    recall(whole, prompts(1), some, config)
    assert {pair[0] for pair in some.elites.pairs} == {prompts(1)[0].case}, "what is not played is not known"
    other = Played(Elites(config.play.modes), Results())
    recall(whole, [replace(each, source={**each.source, "seed": 7}) for each in prompts()], other, config)
    assert not other.elites.pairs, "another matrix of the same name"
    with pytest.raises(StoreError, match="not 'gpu'"):
        recall(whole, prompts(), played, replace(config, judged_on="cuda"))
    places = Places(tmp_path / "next", weights, before=(whole,))
    train(everything("ppo", rounds=1), places, table(referee), Crew())
    (line,) = curve(places.out)
    assert line["imitate/elites"] >= len(known)  # from the first round on


def test_a_frozen_encoder_stays_as_it_is_while_the_policy_learns(
    weights: Path, referee: Referee, tmp_path: Path
) -> None:
    config = replace(everything("ppo", rounds=1), frozen=True)
    train(config, Places(tmp_path / "o", weights), table(referee), Crew())
    before, after = state(weights), state(tmp_path / "o" / "policy")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any(name.startswith("encoder.") for name in changed)


def test_weights_alone_go_on_elsewhere_with_a_warm_up(
    weights: Path, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = everything("ppo")
    config = replace(config, loop=replace(config.loop, warmup=3))
    monkeypatch.setattr(loop, "learn", _until(2, loop.learn))
    with pytest.raises(KilledError):
        train(config, Places(tmp_path / "here", weights), table(referee), Crew())
    monkeypatch.undo()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "policy").rename(tmp_path / "there" / "policy")
    run = loop.Run(config, Places(tmp_path / "out", tmp_path / "there"), table(referee), Crew())
    assert run.number == 2 and run.learner.steps == 0 and run.learner.fresh_head
    rates = []
    for _ in range(5):
        run.learner._set_rate(run.number, 1.0)
        rates.append(run.learner.optimiser.param_groups[0]["lr"])
        run.learner.steps += 1
    full = config.loop.learning_rate
    assert np.allclose(rates, [full / 4, full / 2, full * 3 / 4, full, full])
    train(config, Places(tmp_path / "out", tmp_path / "there"), table(referee), Crew())
    assert [line["round"] for line in curve(tmp_path / "out")] == [2, 3]


def test_without_its_optimiser_a_run_goes_on_with_its_archive_and_a_warm_up(
    weights: Path, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = everything("ppo"), tmp_path / "run"
    monkeypatch.setattr(loop, "learn", _until(2, loop.learn))
    with pytest.raises(KilledError):
        train(config, Places(out, weights), table(referee), Crew())
    monkeypatch.undo()
    (out / RESUME).unlink()
    elites, rows, learnt = (out / loop.ELITES).read_text(), curve(out), state(out / "policy")
    assert rows[-1]["imitate/elites"] > 0
    began: list[Any] = []
    monkeypatch.setattr(loop.Run, "round", _watched(began, loop.Run.round))
    assert train(config, Places(out, weights, resume=True), table(referee), Crew()).complete
    number, policy, archive, steps = began[0][:4]
    first, original = began[0][4], state(weights)
    assert all(torch.equal(first[name], original[name]) for name in original), "whose grammar is kept: the very first"
    assert number == 2 and steps == 0 and archive == elites
    assert all(torch.equal(policy[name], learnt[name]) for name in learnt)
    assert curve(out)[:2] == rows and [line["round"] for line in curve(out)] == [0, 1, 2, 3]
    stored = [each for _, each in RolloutStore(out / "rollouts").rollouts() if each.origin != VARIED]
    assert len(stored) == 4 * 2 * 4, "what the third had begun was dropped"


def _watched(began: list[Any], play: Any) -> Any:
    def watched(run: loop.Run, *rest: Any) -> Any:
        run.played.elites.save(run.places.out / "seen.json")
        weights = {name: tensor.clone() for name, tensor in run.learner.policy.state_dict().items()}
        assert run.learner.first is not None
        first = run.learner.first.state_dict()
        began.append((run.number, weights, (run.places.out / "seen.json").read_text(), run.learner.steps, first))
        return play(run, *rest)

    return watched


def _until(last: int, learn: Any) -> Any:
    def limited(learner: Any, rollouts: Any, lines: Any, number: int) -> Any:
        if number == last:
            raise KilledError
        return learn(learner, rollouts, lines, number)

    return limited


def test_rounds_since_the_last_checkpoint_are_played_again(
    whole: Path, weights: Path, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, save = everything("ppo"), loop.Run.save
    for last in (2, 0):  # 0: there is none yet
        out = tmp_path / f"run {last}"
        monkeypatch.setattr(loop, "learn", _until(3, loop.learn))
        monkeypatch.setattr(loop.Run, "save", lambda run, last=last: save(run) if run.number == last else None)
        with pytest.raises(KilledError):
            train(config, Places(out, weights), table(referee), Crew())
        monkeypatch.undo()
        assert len(curve(out)) == 3
        if last:
            assert read_config(out / "policy")["notes"]["step"] == 2
        assert train(config, Places(out, weights, resume=True), table(referee), Crew()).complete
        assert curve(out) == curve(whole) and same_weights(out / "policy", whole / "policy")
        assert [*RolloutStore(out / "rollouts").rollouts()] == [*RolloutStore(whole / "rollouts").rollouts()]


def test_a_run_draws_from_all_tokens() -> None:
    config = everything("grpo")
    with pytest.raises(SparseRLError, match="draws from all tokens"):
        replace(config, play=replace(config.play, settings=replace(config.play.settings, top_p=0.9)))


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_two_launched_processes_share_the_work_and_end_with_equal_weights(weights: Path, tmp_path: Path) -> None:
    # --multi_gpu is what starts processes without MPI; they see no GPU and train on the CPU, over gloo
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command = [*launch, str(TINY), str(weights), str(tmp_path / "run"), "grpo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    ends = sorted(line.split() for line in done.stdout.splitlines() if " of 2 " in line)
    assert [end[0] for end in ends] == ["0", "1"]
    assert ends[0][-1] == ends[1][-1], "equal weights"
    stored = [rollout for _, rollout in RolloutStore(tmp_path / "run" / "rollouts").rollouts()]
    rollouts = [each for each in stored if each.origin != VARIED]
    assert len(stored) > len(rollouts) == 4 * 2 * 4
    assert {each.prompt.case for each in rollouts} == {"grid", "random", "long"}
    assert len(curve(tmp_path / "run")) == 4


# ── Advantages of episodes ────────────────────────────────────────────────────


def episode(group: int, *rewards: float) -> Rollout:
    """Turns of three written tokens each, with one given token before each."""
    turns, written = [], [False]
    for reward in rewards:
        first = len(written)
        written += [True] * 3
        turns.append(Turn("text", Judged(Verdict.WRONG), reward, first, first + 3))
        written.append(False)
    ids = list(range(len(written)))
    return Rollout(PROMPT, group, ids, [0.0] * len(ids), written, turns)


def lines(rollouts: list[Rollout]) -> list[Line]:
    zeros = [np.zeros(len(each.ids)) for each in rollouts]
    return [
        Line(each.prompt, np.array(each.ids), np.array(each.written), {"old": zero, "values": zero})
        for each, zero in zip(rollouts, zeros, strict=True)
    ]


def test_every_turn_has_a_part_in_what_it_and_later_ones_add() -> None:
    rollouts = [episode(0, -1.0, 0.5), episode(0, 1.0, -2.0)]
    config = replace(pure("grpo", 1), unit=1.0)
    found = with_group_advantages(lines(rollouts), scores_of(rollouts, config), ends_of(rollouts))
    assert [each.columns["advantages"].tolist() for each in found] == [
        [-0.5] * 4 + [1.5] * 4 + [0.0],
        [0.5] * 4 + [-1.5] * 4 + [0.0],
    ]
    config = replace(pure("ppo", 1), noise=100.0)
    found = with_token_advantages(lines(rollouts), scores_of(rollouts, config).to_go, ends_of(rollouts), config, 1.0)
    written = [each.columns["returns"][each.written].tolist() for each in found]
    assert written == [[0.5] * 3 + [1.5] * 3, [1.0] * 3 + [0.0] * 3]
    assert np.isclose(sum(each.columns["advantages"].sum() for each in found), 0.0), "centred over the round"


def test_groups_are_compared_within_themselves_alone() -> None:
    rollouts = [episode(0, 1.0), episode(0, 3.0), episode(1, 11.0), episode(1, 13.0)]
    mean = replace(pure("grpo", 1), unit=1.0)
    assert scores_of(rollouts, mean).whole.tolist() == [-2.0, 2.0, -2.0, 2.0]
    best = replace(mean, objective="best", k=2, mean_share=0.0)
    assert scores_of(rollouts, best).whole.tolist() == [0.0, 4.0, 0.0, 4.0]
    assert scores_of(rollouts, replace(best, mean_share=0.25)).whole.tolist() == [-0.5, 3.5, -0.5, 3.5]
    assert scores_of(rollouts, replace(best, mean_share=1.0)).whole.tolist() == [-2.0, 2.0, -2.0, 2.0]
    with pytest.raises(SparseRLError, match="'mean_share'"):
        replace(best, mean_share=1.5)
    assert scores_of(rollouts, replace(best, objective="mean", algorithm="ppo")).whole.tolist() == [
        1.0,
        3.0,
        11.0,
        13.0,
    ]


@pytest.mark.parametrize("wrong", [{"unit": 0.0}, {"shared_blame": -1.0}])
def test_a_unit_is_above_0_and_shared_blame_not_below(wrong: dict[str, float]) -> None:
    with pytest.raises(SparseRLError, match=f"'{next(iter(wrong))}'"):
        replace(pure("grpo", 1), **wrong)  # type: ignore[arg-type]


def test_shuffled_rewards_are_the_same_ones_elsewhere() -> None:
    rollouts = [episode(at // 4, float(at)) for at in range(16)]
    dealt = shuffled(rollouts, seed=1)
    before, after = ([turn.reward for each in part for turn in each.turns] for part in (rollouts, dealt))
    assert sorted(after) == before != after
    assert [each.ids for each in dealt] == [each.ids for each in rollouts]


# ── Bad input ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--algorithm", "sac"], "must be ppo or grpo. Got 'sac'"),
        (["--objective", "max"], "must be mean or best. Got 'max'"),
        (["--k", "32"], "best-of-k must be 1..16"),
        (["--turns", "4"], "must be 1..3. Got 4"),
        (["--reward", "fast"], "must be hierarchical, speed, correct. Got 'fast'"),
        (["--device", "tpu"], "must be cuda or sim. Got 'tpu'"),
        (["--group", "1"], "at least 2 rollouts"),
        (["--judge", "nobody"], "'judge' must be"),
        ([], "There is no policy folder"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    options: list[str],
    said: str,
    *,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = tmp_path / "none" if not options else weights
    base = ["sparserl", "train", "rl", "--weights", str(chosen), "--out", str(tmp_path / "out")]
    small = ["--cases", "1", "--most-nonzeros", "1e3", "--problem", "spmv f32", "--learn-on", "cpu"]
    monkeypatch.setattr(sys, "argv", [*base, "--device", "sim", *small, *options])
    with pytest.raises(SystemExit) as left:
        main()
    error = capsys.readouterr().err.strip()
    assert left.value.code == 2 and said in error and error.count("\n") == 0, error


def test_a_program_of_a_withheld_combination_teaches_nothing() -> None:
    recipes = space(Problem())
    held, free = (next(r for r in recipes if withheld_recipe(r) is which) for which in (True, False))
    prompt = Prompt("a", {}, Problem())
    said = Judged(Verdict.CORRECT)
    played = [
        Rollout(prompt, 0, [0, 1], [0.0, -1.0], [False, True], [Turn(recipe.text, said, 1.0, 1, 2)])
        for recipe in (held, free, held)
    ]
    assert may_teach(played) == [played[1]]
