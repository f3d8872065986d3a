"""A policy plays the matrices of a run, or of climbs, again, and learns nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rl_tiny import CASES, fitted, judge
from sparserl.errors import SparseRLError, StoreError
from sparserl.records import Problem, Verdict
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train.rl import commands
from sparserl.train.rl.climbing import WANTED, Wanted
from sparserl.train.rl.nouns import OWN, Prompt, prompt_key, prompt_to_record
from sparserl.train.rl.playing import ROUNDS, PlayingConfig, complete, playing, rounds_of
from sparserl.train.rl.referee import Referee
from sparserl.train.rl.rollout_store import FOLDER, Journal, RolloutStore
from sparserl.train.rl.tried import from_rollouts

PROMPTS = [Prompt(case.name, case.source, Problem(), case.name) for case in CASES]
WANTED_HERE: Wanted = {prompt_key(prompt): (prompt, tries) for prompt, tries in zip(PROMPTS, (4, 3, 8), strict=True)}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    with closing(judge()) as found:
        yield found


def config(weights: Path, seed: int = 0) -> PlayingConfig:
    return PlayingConfig(weights, "sim", group=4, prompts=3, machine="sim", learn_on="cpu", seed=seed)


def test_every_matrix_is_played_as_often_as_its_tries_take_and_not_twice_in_a_row(weights: Path) -> None:
    rounds = rounds_of(WANTED_HERE, config(weights))
    names = [prompt.case for prompt in rounds.prompts]
    assert names == ["grid", "random", "long", "long"] and rounds.count == 2


def test_it_writes_anew_with_its_own_weights_and_every_program_is_judged_and_stored(
    weights: Path, referee: Referee, tmp_path: Path
) -> None:
    before = (weights / "model.safetensors").read_bytes()
    lines = [*playing(WANTED_HERE, referee, config(weights), tmp_path)]
    assert len(lines) == 2 and complete(WANTED_HERE, config(weights), tmp_path)
    tried = from_rollouts([tmp_path])
    assert {key: each.tries for key, each in tried.items()} == dict(zip(WANTED_HERE, (4, 4, 8), strict=True))
    stored = [rollout for _, rollout in RolloutStore(tmp_path / "rollouts").rollouts()]
    assert {each.origin for each in stored} == {OWN}
    verdicts = {turn.judged.verdict for each in stored for turn in each.turns}
    assert Verdict.CORRECT in verdicts and len({turn.text for each in stored for turn in each.turns}) > 2
    assert [*RolloutStore(tmp_path / "rollouts").retimed()], "the fastest were timed longer"
    assert (weights / "model.safetensors").read_bytes() == before
    assert [*playing(WANTED_HERE, referee, config(weights), tmp_path)] == [], "nothing is left"
    with pytest.raises(StoreError, match="another 'seed'"):
        next(playing(WANTED_HERE, referee, config(weights, seed=1), tmp_path))


def test_of_more_programs_than_are_judged_those_that_differ_are(
    weights: Path, referee: Referee, tmp_path: Path
) -> None:
    def texts(draws: int) -> dict[str, list[str]]:
        out = tmp_path / str(draws)
        for _ in playing(WANTED_HERE, referee, replace(config(weights), draws=draws), out):
            pass
        found: dict[str, list[str]] = {}
        for _, rollout in RolloutStore(out / "rollouts").rollouts():
            found.setdefault(rollout.prompt.case, []).append(rollout.turns[0].text)
        return found

    usual, choosy = texts(1), texts(6)
    assert {case: len(each) for case, each in choosy.items()} == {"grid": 4, "random": 4, "long": 8}
    different = {draws: sum(len({*each}) for each in found.values()) for draws, found in ((1, usual), (6, choosy))}
    assert different[6] > different[1]
    assert all({*each[: len({*each})]} == {*each} for each in choosy.values()), "repeats come last"
    (tmp_path / "again").mkdir()
    half = replace(config(weights), draws=6)
    next(playing(WANTED_HERE, referee, half, tmp_path / "again"))
    for _ in playing(WANTED_HERE, referee, half, tmp_path / "again"):
        pass  # a second call knows what the first one played
    stored = [rollout for _, rollout in RolloutStore(tmp_path / "again" / "rollouts").rollouts()]
    assert sorted(each.turns[0].text for each in stored) == sorted(text for each in choosy.values() for text in each)


def test_a_round_that_was_broken_off_is_played_again(weights: Path, referee: Referee, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for _ in playing(WANTED_HERE, referee, config(weights), whole):
        pass
    next(playing(WANTED_HERE, referee, config(weights), broken))
    store = RolloutStore(broken / "rollouts")
    store.add(1, [rollout for number, rollout in store.rollouts() if number == 0][:2])  # killed before the round's line
    assert not complete(WANTED_HERE, config(weights), broken)
    assert len([*playing(WANTED_HERE, referee, config(weights), broken)]) == 1
    ours, theirs = (RolloutStore(each / "rollouts") for each in (broken, whole))
    assert [*ours.rollouts()] == [*theirs.rollouts()]
    assert read_jsonl(broken / ROUNDS) == read_jsonl(whole / ROUNDS)


def call(*words: str | Path) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(commands.play)
    app.command()(commands.climb)
    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


def test_the_command_plays_what_climbs_were_on_and_goes_on_after_its_time_was_up(weights: Path, tmp_path: Path) -> None:
    climbs = tmp_path / "climbs"
    append_jsonl(
        climbs / WANTED,
        *({"pair": key, "prompt": prompt_to_record(p), "tries": n} for key, (p, n) in WANTED_HERE.items()),
    )
    words = ("play", "--like", climbs, "--out", tmp_path / "play", "--weights", weights, "--device", "sim")
    words = (*words, "--group", "4", "--prompts", "2", "--workers", "1", "--learn-on", "cpu", "--problem", "spmv f32")
    code, said = call(*words, "--budget", "1e-9")
    assert code == commands.TRY_AGAIN and "call again" in said
    heard = Journal(tmp_path / "play" / FOLDER).path
    assert len(read_jsonl(heard)) == 1, "one group, which the next call does not have judged again"
    code, said = call(*words)
    assert not heard.exists()
    assert code == 0 and "round 2 of 2" in said
    assert {key: each.tries for key, each in from_rollouts([tmp_path / "play"]).items()} == {
        key: -(-tries // 4) * 4 for key, (_, tries) in WANTED_HERE.items()
    }


@pytest.mark.parametrize(
    ("words", "said"), [(("--device", "tpu"), "must be cuda or sim"), (("--group", "1"), "must be at least 2")]
)
def test_bad_input_is_named(words: tuple[str, ...], said: str, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(SparseRLError, match=said):
        call("play", "--like", tmp_path, "--out", tmp_path / "out", "--weights", weights, *words)
