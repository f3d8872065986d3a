"""A round that is killed, or given up because the time is up, is played again with the verdicts it has paid for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl_tiny import everything, fitted, judge, table
from sparserl.policy.checkpoint import load_policy, read_config
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train.commands_rl import rl_many
from sparserl.train.loop import Finished
from sparserl.train.rl import loop, remembering
from sparserl.train.rl.config import Places, RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.nouns import VARIED, Judged, Prompt, prompt_key, raced_texts
from sparserl.train.rl.referee import Referee, RefereeConfig, Remembering
from sparserl.train.rl.referee_local import Counts, Heard, Request
from sparserl.train.rl.remembering import Groups, TimeUpError
from sparserl.train.rl.rollout_store import FOLDER, JOURNAL, RolloutStore
from sparserl.train.rl.rounds import in_time

HEARD = Path(FOLDER) / JOURNAL.format(0)
CONFIG = everything("ppo", rounds=2)
CONFIG = replace(CONFIG, loop=replace(CONFIG.loop, save_every_s=1e9))


class KilledError(Exception):
    """In place of a signal."""


class Machine:
    """In place of a GPU: a text takes as long as `cost_s`, and the same text another time whenever it is asked for."""

    places = 1

    def __init__(self, sim: Referee) -> None:
        self.sim, self.counts = sim, Counts()
        self.now_s, self.cost_s, self.killed_after = 0.0, 1.0, 1e9
        self.asked: dict[tuple[str, str], int] = {}

    def monotonic(self) -> float:
        return self.now_s

    @property
    def programs(self) -> int:
        return sum(self.asked.values())

    def _spend(self, prompt: Prompt, judged: Judged, text: str) -> Judged:
        key = prompt_key(prompt), text
        self.asked[key] = self.asked.get(key, 0) + 1
        self.now_s += self.cost_s
        slower = 1 + 0.01 * self.asked[key]
        return replace(judged, times_us={mode: slower * time_us for mode, time_us in judged.times_us.items()})

    def judge(self, groups: Groups) -> Iterator[tuple[int, list[Judged]]]:
        for place, (prompt, texts) in enumerate(groups):
            if self.programs >= self.killed_after:
                raise KilledError
            ((_, said),) = self.sim.judge([(prompt, texts)])
            yield place, [self._spend(prompt, each, text) for each, text in zip(said, texts, strict=True)]

    def retime_many(
        self, requests: Sequence[Request], heard: Heard | None = None
    ) -> Iterator[tuple[int, dict[str, Judged]]]:
        for place, (prompt, texts, incumbent) in enumerate(requests):
            said = self.sim.retime(prompt, texts, incumbent)
            found = {text: self._spend(prompt, said[text], text) for text in raced_texts(texts, incumbent)}
            assert heard is not None
            heard(place, found)
            yield place, found

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tmp_path_factory.mktemp("tiny"), steps=110)


@pytest.fixture(scope="module")
def sim() -> Iterator[Referee]:
    with closing(judge()) as found:
        yield found


@pytest.fixture
def machine(sim: Referee, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Its clock is the one that budgets are read from."""
    found = Machine(sim)
    for module in (loop, remembering):
        monkeypatch.setattr(module, "time", found)
    return found


def called(machine: Machine, weights: Path, out: Path, config: RLConfig = CONFIG, budget_s: float = 0.0) -> Finished:
    """One call; nothing is remembered from an earlier one."""
    config = replace(config, loop=replace(config.loop, budget_s=budget_s))
    referee = Remembering(machine, RefereeConfig("cuda"))
    return loop.train(config, Places(out, weights, resume=True), table(referee), Crew())


@pytest.fixture(scope="module")
def whole(weights: Path, sim: Referee, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of an unbroken run, and how many programs it had judged."""
    machine, out = Machine(sim), tmp_path_factory.mktemp("whole")
    called(machine, weights, out)
    assert not (out / HEARD).exists(), "a finished run has nothing that it could lose"
    return out, machine.programs


def curve(folder: Path) -> list[dict[str, Any]]:
    lines = read_jsonl(folder / loop.ROUNDS)
    return [{name: value for name, value in line.items() if not name.startswith(loop.CLOCKED)} for line in lines]


def same(one: Path, other: Path) -> bool:
    """Curves, weights and rollouts."""
    ours, theirs = load_policy(one / "policy").state_dict(), load_policy(other / "policy").state_dict()
    stores = [RolloutStore(each / FOLDER) for each in (one, other)]
    rollouts, retimed = ([[*each.rollouts()] for each in stores], [[*each.retimed()] for each in stores])
    weights = all(torch.equal(ours[name], theirs[name]) for name in ours)
    return weights and curve(one) == curve(other) and rollouts[0] == rollouts[1] and retimed[0] == retimed[1]


def test_a_round_that_can_not_end_in_time_is_given_up_and_costs_nothing_but_its_writing(
    whole: tuple[Path, int], weights: Path, machine: Machine, tmp_path: Path
) -> None:
    """However short the time of a call is: each gets on, and all together have each program judged once."""
    done, ends, given_up_in = False, [0], set()
    for budget_s in 20 * (9.0, 4.0, 1e-9, 30.0):
        began_s, before = machine.now_s, machine.programs
        found = called(machine, weights, tmp_path, budget_s=budget_s)
        ends.append(found.step)
        assert machine.programs > before or ends[-1] > ends[-2]
        assert machine.now_s - began_s < budget_s + 9, "one answer more at most"
        stored = [number for number, _ in RolloutStore(tmp_path / FOLDER).rollouts()]
        assert {*stored} == {*range(found.step)} == {line["round"] for line in curve(tmp_path)}, "no half of a round"
        if done := found.complete:
            break
        given_up_in |= {"raced" if "raced" in line else "judged" for line in read_jsonl(tmp_path / HEARD)[-1:]}
    assert done and len(ends) > 4 and ends == sorted(ends) and given_up_in == {"raced", "judged"}
    assert same(tmp_path, whole[0]) and machine.programs == whole[1]
    assert any(each.origin == VARIED for _, each in RolloutStore(tmp_path / FOLDER).rollouts())
    assert not (tmp_path / HEARD).exists()


def test_a_round_that_is_given_up_while_variants_are_judged_leaves_nothing_in_the_checkpoint(
    whole: tuple[Path, int], weights: Path, machine: Machine, tmp_path: Path
) -> None:
    """The round before it is saved only then: what this one has played must not be in the archive and the results."""
    assert called(machine, weights, tmp_path, budget_s=whole[1] - 4.0).step == 1
    kinds = ["raced" if "raced" in line else "judged" for line in read_jsonl(tmp_path / HEARD)]
    assert kinds[-1] == "judged" and "raced" in kinds, "in the midst of the variants"
    assert called(machine, weights, tmp_path).complete
    assert same(tmp_path, whole[0]) and machine.programs == whole[1]


def test_a_killed_run_has_every_verdict_again_that_was_heard_since_its_checkpoint(
    whole: tuple[Path, int], weights: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(learner: Any, rollouts: Any, lines: Any, number: int) -> Any:
        if number == 1:
            raise KilledError
        return learn(learner, rollouts, lines, number)

    learn = loop.learn
    monkeypatch.setattr(loop, "learn", dies)
    for after in (3, 11, 1e9):
        machine.killed_after = after
        with pytest.raises(KilledError):
            called(machine, weights, tmp_path)
    assert len(curve(tmp_path)) == 1 and not (tmp_path / loop.POLICY).exists(), "no checkpoint yet"
    assert {line["round"] for line in read_jsonl(tmp_path / HEARD)} == {0, 1}
    monkeypatch.setattr(loop, "learn", learn)
    assert called(machine, weights, tmp_path).complete and same(tmp_path, whole[0])
    assert machine.programs == whole[1], "a kill costs the group under way; there was none"


def test_a_round_is_given_up_that_takes_longer_than_the_one_before_and_learning_has_its_time(
    weights: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*rest: Any) -> Any:
        machine.now_s += 40.0
        machine.cost_s = 3.0
        return learn(*rest)

    learn = loop.learn
    monkeypatch.setattr(loop, "learn", slowly)
    found = called(machine, weights, tmp_path, budget_s=160.0)
    first_s = read_jsonl(tmp_path / loop.ROUNDS)[0]["seconds/play"] + 40.0
    assert found.step == 1 and 2 * first_s < 160.0, "a round as long as the first one would have fitted"
    assert 120.0 <= found.seconds < 150.0, "judged until there was just time for learning"


def test_a_run_whose_learning_took_all_the_time_ends_after_that_round_and_keeps_it(
    weights: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*rest: Any) -> Any:
        machine.now_s += 500.0
        return learn(*rest)

    learn = loop.learn
    monkeypatch.setattr(loop, "learn", slowly)
    found = called(machine, weights, tmp_path, budget_s=100.0)
    assert (found.step, found.complete) == (1, False) and len(curve(tmp_path)) == 1
    assert read_config(tmp_path / "policy")["notes"]["step"] == 1 and not (tmp_path / HEARD).exists()


def test_the_time_that_samples_take_is_the_budgets(
    weights: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def slow_table(*given: Any) -> Iterator[Any]:
        machine.now_s += 500.0
        yield table(Remembering(machine, RefereeConfig("cuda")))

    monkeypatch.setattr(loop, "open_table", slow_table)
    monkeypatch.setattr(loop, "open_crew", lambda cpu: Crew())
    found = loop.rl(replace(CONFIG, loop=replace(CONFIG.loop, budget_s=300.0)), Places(tmp_path, weights))
    assert found.step == 0 and machine.now_s < 510.0


def test_a_kill_while_a_run_is_taken_up_leaves_its_curve(
    whole: tuple[Path, int], weights: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*rest: Any) -> None:
        raise KilledError

    before = (whole[0] / loop.ROUNDS).read_bytes()
    monkeypatch.setattr(loop, "append_jsonl", killed)
    with suppress(KilledError):
        called(machine, weights, whole[0])
    assert (whole[0] / loop.ROUNDS).read_bytes() == before


def test_processes_that_wait_for_each_other_give_a_round_up_together() -> None:
    def late() -> str:
        raise TimeUpError

    others = SimpleNamespace(gather=lambda mine: [*mine, 1])
    other_is_late = SimpleNamespace(gather=lambda mine: [*mine, 0])
    assert in_time(others, lambda: "heard") == "heard"  # type: ignore[arg-type]
    for crew, hear in ((others, late), (other_is_late, lambda: "heard"), (other_is_late, late)):
        with pytest.raises(TimeUpError):
            in_time(crew, hear)  # type: ignore[arg-type]


def test_a_plan_of_three_turns_that_is_killed_goes_on_to_the_curve_of_an_unbroken_one(
    weights: Path, tmp_path: Path
) -> None:
    """As the arm of the ablations is called; the kill is a real one."""

    def plan(name: str) -> Path:
        small = "--device sim --learn-on cpu --cases 2 --most-nonzeros 1e3 --problem 'spmv f32' --max-tokens 230"
        short = "--rounds 2 --prompts 1 --group 4 --k 2 --explored 0 --imitate-steps 1 --minibatch 4 --workers 1"
        own = f"--out {tmp_path}/{name} --turns 3 --save-every 3600 --samples {tmp_path}/samples.npz --resume"
        (tmp_path / f"{name}.txt").write_text(f"--weights {weights} {small} {short} {own}\n")
        return tmp_path / f"{name}.txt"

    rl_many(plan("whole"))
    heard = tmp_path / "killed" / HEARD
    command = [sys.executable, "-m", "sparserl", "train", "rl-many", str(plan("killed"))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
        while killed.poll() is None and len(read_jsonl(heard)) < 2:
            time.sleep(0.02)
        killed.kill()
    assert killed.returncode == -signal.SIGKILL, "it was still at it"
    rl_many(plan("killed"))
    assert same(tmp_path / "killed", tmp_path / "whole") and not heard.exists()
    rollouts = [each for _, each in RolloutStore(tmp_path / "whole" / FOLDER).rollouts()]
    assert max(len(each.turns) for each in rollouts) == 3
    lines = [read_jsonl(tmp_path / name / loop.ROUNDS) for name in ("whole", "killed")]
    judged = [sum(line["judging/judged"] for line in each) for each in lines]
    assert judged[1] < judged[0], "what the killed call had heard was not judged again"
    append_jsonl(heard, {"round": 0, "prompt": "none", "judged": {}})
    rl_many(plan("killed"))  # is done, whatever lies there
