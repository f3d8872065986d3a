"""The referees of reinforcement learning: local processes, a replay and a Ray cluster say the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparserl.errors import BackendError, MatrixError, StoreError
from sparserl.judge.evaluate import Judge
from sparserl.judge.plain import plain
from sparserl.judge.race import Race
from sparserl.records import Outcome, Problem, Timing, Verdict
from sparserl.store import read_jsonl
from sparserl.train.cases import from_source, range_up_to, training_cases
from sparserl.train.rl import referee_local
from sparserl.train.rl.nouns import OWN, VARIED, Judged, Prompt, Rollout, Turn, from_record, prompt_key, to_record
from sparserl.train.rl.referee import ManyPlaces, Remembering, open_referee, retime_all
from sparserl.train.rl.referee_local import Counts, Heard, LocalReferee
from sparserl.train.rl.referee_worker import GroupJudge, Job, RefereeConfig, open_judge
from sparserl.train.rl.remembering import TimeUpError, heard_by
from sparserl.train.rl.replay import ReplayReferee
from sparserl.train.rl.rollout_store import FOLDER, PROGRAMS, PROMPTS, ROLLOUTS, Journal, RolloutStore

SPMV = Problem()
PLAIN = plain(SPMV)
WIDER = PLAIN.replace("<<<div_up(rows, 4), 128>>>", "<<<div_up(rows, 8), 256>>>").replace("* 4 +", "* 8 +")
WRONG = PLAIN.replace("sum += ", "sum -= ")
HALF = PLAIN.replace("div_up(rows, 4)", "div_up(rows, 8)")
SCREENED = PLAIN.replace("to_acc(vals[j])", "to_acc(vals[j]) * oops")
DEADLY, HANGING = PLAIN.replace("int row ", "int deadly "), PLAIN.replace("int row ", "int hanging ")
TEXTS = [WIDER, WRONG, "rubbish", PLAIN, HALF, SCREENED, WIDER]
VERDICTS = ["CORRECT", "WRONG", "UNREADABLE", "CORRECT", "WRONG", "SCREENED", "CORRECT"]


def prompts(count: int = 2) -> list[Prompt]:
    cases = training_cases(SPMV, count, within=range_up_to(SPMV, 2000))
    return [Prompt(case.name, case.source, SPMV, "regular") for case in cases]


def alive(process: int) -> bool:
    """A process that has ended and that nobody has buried is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def names(verdicts: Sequence[Judged]) -> list[str]:
    return [each.verdict.name for each in verdicts]


class Trap:
    """A case in front of another one: some texts take the process along, before anything is judged."""

    def __init__(self, case: Any) -> None:
        self._case = case

    def judge(self, texts: Sequence[str], *how: Any, **more: Any) -> Any:
        if any("deadly" in text for text in texts):
            os._exit(13)
        if any("hanging" in text for text in texts):
            time.sleep(600)
        return self._case.judge(texts, *how, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._case, name)


class NoRace(Trap):
    """One that can't time side by side: by its own fault, or it takes the process along."""

    def race(self, texts: Any, *how: Any, **more: Any) -> Any:
        if "deadly" in "".join(texts):
            os._exit(13)
        if texts:
            raise KeyError("a fault of the judge")
        return self._case.race(texts, *how, **more)


def on_sim(config: RefereeConfig) -> Judge:
    """A judge on the simulator, whatever the config says."""
    return Judge("sim", 1, 20.0)


def behind(kind: type[Trap], config: RefereeConfig) -> Judge:
    """The same, with something in front of its cases."""
    judge = on_sim(config)
    opened = judge.open
    judge.open = lambda *which, **how: kind(opened(*which, **how))  # type: ignore[assignment]
    return judge


def trapped(config: RefereeConfig) -> Judge:
    """Some texts kill it."""
    return behind(Trap, config)


class DeadlyRace(Trap):
    """One that judges all texts and is ended by some while they are timed side by side."""

    def judge(self, texts: Sequence[str], *how: Any, **more: Any) -> Any:
        return self._case.judge(texts, *how, **more)

    def race(self, texts: Any, *how: Any, **more: Any) -> Any:
        if "deadly" in "".join(texts):
            os._exit(13)
        return self._case.race(texts, *how, **more)


def deadly_races(config: RefereeConfig) -> Judge:
    return behind(DeadlyRace, config)


def faulty(config: RefereeConfig) -> Judge:
    return behind(NoRace, config)


def nowhere(config: RefereeConfig) -> Judge:
    raise BackendError("there is no machine")


@pytest.fixture(scope="module")
def sim() -> Iterator[Remembering]:
    with closing(open_referee("sim", RefereeConfig(workers=1))) as referee:
        assert isinstance(referee, Remembering)
        yield referee


@pytest.fixture(scope="module")
def judged(sim: Remembering) -> dict[int, list[Judged]]:
    return dict(sim.judge([(prompt, TEXTS) for prompt in prompts()]))


def rollout(prompt: Prompt, text: str, verdict: Judged, reward: float = 1.5, group: int = 0) -> Rollout:
    ids, written = np.array([1, 5, 7, 2]), np.array([False, True, True, True])
    return Rollout(
        prompt, group, ids, [0.0, -0.5, -0.25, -1.0], written, [Turn(text, verdict, reward, 1, 4)], "explore"
    )


# ---- local processes


def test_each_program_gets_its_verdict_and_right_ones_their_times(judged: dict[int, list[Judged]]) -> None:
    assert sorted(judged) == [0, 1]
    for verdicts in judged.values():
        assert names(verdicts) == VERDICTS
        for each in verdicts:
            timed = each.verdict is Verdict.CORRECT
            assert set(each.times_us) == set(each.baseline_us) == ({"solver"} if timed else set())
            assert bool(each.reason) is not timed
            assert each.source == "modelled"
        same = verdicts[3]
        assert same.times_us == same.baseline_us  # it is the baseline
        assert 0 < same.floor_us["solver"] < same.times_us["solver"]
        assert same.registers > 0 and same.sectors > 0


def test_verdicts_do_not_depend_on_processes_order_or_company(judged: dict[int, list[Judged]]) -> None:
    first, second = prompts()
    with closing(LocalReferee(RefereeConfig(workers=2))) as referee:
        asked = [(second, TEXTS[::-1]), (first, TEXTS[:3][::-1]), (first, TEXTS[3:])]
        found = dict(referee.judge(asked))
    assert found[0] == judged[1][::-1]
    assert found[1][::-1] + found[2] == judged[0]


def test_other_numbers_are_drawn_with_another_seed(judged: dict[int, list[Judged]]) -> None:
    with closing(LocalReferee(RefereeConfig(workers=1, seed=1))) as referee:
        found = dict(referee.judge([(prompts(1)[0], [WRONG])]))
    assert found[0][0].verdict is Verdict.WRONG
    assert found[0][0].reason != judged[0][1].reason


def test_what_was_judged_is_not_judged_again(sim: Remembering, judged: dict[int, list[Judged]]) -> None:
    before, again = sim.counts.judged, prompts()[1]
    assert dict(sim.judge([(again, TEXTS)])) == {0: judged[1]}
    assert sim.counts.judged == before
    assert before <= 2 * (len(TEXTS) - 1)  # the text that comes twice in a group was judged once
    assert sim.counts.per_second > 0
    assert {"matrix", "compile", "verify", "time", "baseline", "group"} <= sim.counts.seconds.keys()


def test_winners_are_timed_again_beside_the_incumbent_and_the_baseline(sim: Remembering) -> None:
    one, two = prompts()
    found = dict(retime_all(sim, [(one, [WIDER, WRONG], PLAIN), (two, [WIDER], None)]))
    assert found[0].keys() == {WIDER, WRONG, PLAIN}
    assert found[1].keys() == {WIDER}
    assert all(each.retimed for each in found[0].values())
    assert found[0][WRONG].verdict is Verdict.WRONG
    assert found[0][PLAIN].times_us == found[0][PLAIN].baseline_us == found[0][WIDER].baseline_us
    assert sim.retime(two, [WIDER], None) == found[1]


def test_winners_that_are_asked_for_at_once_come_before_other_groups() -> None:
    """The one process has their matrix; asked for later, they would come when it is gone."""
    one, two = prompts()
    with closing(LocalReferee(RefereeConfig(workers=1))) as referee:
        assert referee.eager
        groups = referee.judge([(one, [WIDER]), (two, [WIDER])])
        assert next(groups)[0] == 0
        heard: list[int] = []
        winners = referee.retime_many([(one, [WIDER], None)], lambda which, said: heard.append(which))
        assert [each.job.retime for each in referee._waiting] == [False], "the process is at the winners"
        assert next(groups)[0] == 1
        assert heard == [0], "what they came to is known before anyone looks at it: it can be written down"
        ((_, said),) = winners
        assert said[WIDER].retimed


def test_a_group_in_parts_is_shared_out_while_nobody_who_knows_the_matrix_is_free() -> None:
    one, two = prompts()
    with closing(LocalReferee(RefereeConfig(workers=2))) as referee:
        while not all(each.ready for each in referee._crew):
            referee._listen()
        first, second = referee._crew
        first.prompts, second.prompts = {prompt_key(one)}, {prompt_key(two)}
        found = referee.judge([(one, [WIDER]), (one, [PLAIN]), (two, [WIDER])])
        assert first.task is not None and second.task is not None
        assert [first.task.place, second.task.place] == [0, 2], "each takes what it knows"
        assert sorted(place for place, _ in found) == [0, 1, 2]
        first.prompts = second.prompts = set()
        found = referee.judge([(one, [WIDER]), (one, [PLAIN]), (two, [WIDER])])
        assert [each.task.place for each in referee._crew if each.task is not None] == [0, 1], "the next part at once"
        assert sorted(place for place, _ in found) == [0, 1, 2]


@pytest.mark.parametrize("device", ["sim", "cuda"])
def test_a_program_that_ends_its_process_costs_itself_alone(device: Any) -> None:
    """As 'cuda' the whole group is judged in one call, and the culprit has to be found."""
    texts = [WIDER, DEADLY, WRONG, PLAIN]
    with closing(LocalReferee(RefereeConfig(device, workers=1), trapped)) as referee:
        found = dict(referee.judge([(prompts(1)[0], texts)]))[0]
        assert names(found) == ["CORRECT", "FAILED", "WRONG", "CORRECT"]
        assert "ended the process that judged it: exit code 13" in found[1].reason
        assert found[0].baseline_us and found[3].baseline_us
        assert referee.counts.deaths == (1 if device == "sim" else 2)


def test_a_winner_that_ends_its_process_while_it_is_timed_again_costs_itself_alone() -> None:
    """Side by side nobody knows who it was, so each is then timed alone; here it is the first and the last of four."""
    (prompt,) = prompts(1)
    with closing(LocalReferee(RefereeConfig(workers=1), deadly_races)) as referee:
        found = referee.retime(prompt, [DEADLY, WIDER, HALF], DEADLY + "\n")
        assert referee.counts.deaths == 3 and referee.counts.judged == 0 and referee.counts.retimed == 4
    assert names([*found.values()]) == ["FAILED", "CORRECT", "WRONG", "FAILED"]
    assert "ended the process that judged it: exit code 13" in found[DEADLY].reason
    assert found[WIDER].retimed and found[WIDER].baseline_us and found[WIDER].times_us


def test_winners_are_not_blamed_for_a_fault_of_the_judge(tmp_path: Path) -> None:
    (prompt,) = prompts(1)
    with closing(LocalReferee(RefereeConfig(workers=1), faulty)) as referee:
        assert referee.retime(prompt, [WIDER], PLAIN) == {}
        assert referee.counts.deaths == 2, "it was tried twice"
    with closing(LocalReferee(RefereeConfig(workers=1), faulty)) as referee:
        assert referee.retime(prompt, [WIDER, DEADLY], None) == {}, "the one before it had a fault"
    store = RolloutStore(tmp_path)
    store.add(0, [rollout(prompt, WIDER, Judged(Verdict.CORRECT))])
    store.add_retimed(0, prompt, {})
    assert ReplayReferee(tmp_path).retime(prompt, [WIDER], PLAIN) == {}, "nor does a replay say anything"


def test_winners_on_a_gpu_are_checked_on_a_twin_of_the_matrix() -> None:
    """The first look draws from a pool and has no twin; a text that knows some columns by heart passes it."""
    prompt = prompts(2)[1]
    columns = from_source(prompt.case, prompt.source).load().cols
    learnt = "".join(f"j == {place} ? {columns[place]} : " for place in range(100, 1300, 150))
    knows = PLAIN.replace("x[cols[j]]", f"x[{learnt}cols[j]]")
    with closing(LocalReferee(RefereeConfig("cuda", workers=1), on_sim)) as referee:
        assert names(dict(referee.judge([(prompt, [knows])]))[0]) == ["CORRECT"]
        found = referee.retime(prompt, [knows], PLAIN)
        assert names(dict(referee.judge([(prompt, [knows])]))[0]) == ["CORRECT"]
    assert found[knows].verdict is Verdict.WRONG and "on another" in found[knows].reason
    assert found[PLAIN].verdict is Verdict.CORRECT


class Library:
    """A case as on a GPU: two variants of a library, timed with the first programs that are timed side by side."""

    def __init__(self) -> None:
        self.beside, self.asked = Race(), []

    def baselines(self, every_order: bool = False) -> tuple[str, ...]:
        return ("cusparse:slow", "cusparse:fast")

    def judge(self, texts: Sequence[str], *how: Any, beside: Callable[[], Sequence[str]]) -> list[Outcome]:
        wanted = beside()
        self.asked.append(list(wanted))
        if len(texts) > 1:
            self.beside.update({name: timings(7.0 if "fast" in name else 9.0) for name in wanted})
        return [Outcome(Verdict.CORRECT, timings=timings(5.0)) for _ in texts]

    def race(self, texts: Any, names: Sequence[str], *how: Any) -> Race:
        self.asked.append("race")
        race = Race()
        race.update({name: timings(6.0) for name in names})
        return race


def timings(time_us: float) -> dict[str, Timing]:
    return {"solver": Timing("solver", "gpu", time_us)}


@pytest.mark.parametrize(("texts", "baseline_us", "asked"), [
    ([PLAIN, WIDER], 7.0, [["cusparse:slow", "cusparse:fast"], []]),
    ([PLAIN], 6.0, [["cusparse:slow", "cusparse:fast"], "race", []]),
])  # fmt: skip
def test_baselines_are_timed_with_the_first_programs_and_once(
    texts: list[str], baseline_us: float, asked: list[Any]
) -> None:
    """And in a turn of their own where nothing was timed side by side."""
    case = Library()

    class Judges:
        def open(self, *which: Any, **how: Any) -> Library:
            return case

    judges = GroupJudge(RefereeConfig("cuda"), Judges())  # type: ignore[arg-type]
    job = Job(prompts(1)[0], dict(enumerate(texts)))
    for _ in range(2):
        assert judges.group(job, lambda *said: None) == {"solver": baseline_us}
    assert case.asked == asked


def test_a_program_that_hangs_its_process_costs_itself_alone() -> None:
    with closing(LocalReferee(RefereeConfig(workers=1, silence_s=8.0), trapped)) as referee:
        found = dict(referee.judge([(prompts(1)[0], [HANGING, WIDER])]))[0]
    assert names(found) == ["FAILED", "CORRECT"]
    assert "said nothing for 8 s" in found[0].reason


def test_answers_nobody_waited_for_are_not_taken_for_others(sim: Remembering) -> None:
    one, two = prompts()
    local = LocalReferee(RefereeConfig(workers=1))
    with closing(local):
        left = local.judge([(one, [WRONG]), (two, [WRONG])])
        next(left)
        left.close()  # type: ignore[attr-defined]
        assert names(dict(local.judge([(two, [WIDER, "rubbish"])]))[0]) == ["CORRECT", "UNREADABLE"]


def test_processes_that_are_busy_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fourteen one after the other were more than a minute of a budget that was spent."""
    monkeypatch.setattr(referee_local, "CLOSE_S", 1.0)
    referee = LocalReferee(RefereeConfig(workers=4), trapped)
    list(zip(range(4), referee.judge([(prompts(1)[0], ["rubbish"])] * 4), strict=True))  # all of them are ready
    left = referee.judge([(prompts(1)[0], [HANGING])] * 4)
    began = time.monotonic()
    referee.close()
    assert time.monotonic() - began < 3.0 and left is not None


KILLED = """
import sys, time
from sparserl.records import Problem
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.referee_local import LocalReferee
from sparserl.train.rl.referee_worker import RefereeConfig
referee = LocalReferee(RefereeConfig(workers=1))
prompt = Prompt("banded-1", {"family": "banded", "seed": 1250000, "params": PARAMS}, Problem())
list(referee.judge([(prompt, ["rubbish"])]))
print(referee._crew[0].process.pid, flush=True)
time.sleep(600)
"""


def test_judging_processes_end_with_a_caller_that_is_killed() -> None:
    code = KILLED.replace("PARAMS", repr(dict(prompts(1)[0].source["params"])))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        process = int(caller.stdout.readline())
        assert alive(process)
        caller.kill()
    until = time.monotonic() + 20
    while time.monotonic() < until and alive(process):
        time.sleep(0.2)
    assert not alive(process)


def test_a_matrix_that_may_not_be_made_is_an_error() -> None:
    stray = Prompt("stray", {"family": "rmat", "seed": 5, "params": {"scale": 5}}, SPMV)
    with (
        closing(LocalReferee(RefereeConfig(workers=1))) as referee,
        pytest.raises(MatrixError, match="may not train"),
    ):
        list(referee.judge([(stray, [PLAIN])]))


def test_a_machine_that_is_not_there_is_an_error() -> None:
    with (
        closing(LocalReferee(RefereeConfig(workers=1), nowhere)) as referee,
        pytest.raises(BackendError, match="there is no machine"),
    ):
        list(referee.judge([(prompts(1)[0], [PLAIN])]))


class Counting:
    """A referee that gives every judging another time."""

    places = 3

    def __init__(self) -> None:
        self.counts, self.asked = Counts(), 0

    def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
        for place, (_, texts) in enumerate(groups):
            self.asked += len(texts)
            yield place, [Judged(Verdict.CORRECT, times_us={"solver": float(self.asked)}) for _ in texts]

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        raise AssertionError

    def retime_many(
        self, requests: Sequence[Any], heard: Heard | None = None
    ) -> Iterator[tuple[int, dict[str, Judged]]]:
        for place, (_, texts, incumbent) in enumerate(requests):
            asked = [*texts, *([incumbent] if incumbent else [])]
            self.asked += len(asked)
            said = Judged(Verdict.CORRECT, times_us={"solver": float(self.asked)}, retimed=True, source="gpu")
            if heard is not None:
                heard(place, dict.fromkeys(asked, said))
            yield place, dict.fromkeys(asked, said)

    def close(self) -> None: ...


@pytest.mark.parametrize(("remember", "asked"), [(False, 4), (True, 2)])
def test_a_gpu_is_asked_again_unless_told_otherwise(remember: bool, asked: int) -> None:
    inner, prompt = Counting(), prompts(1)[0]
    referee = Remembering(inner, RefereeConfig("cuda", remember=remember))
    for _ in range(2):
        (answer,) = referee.judge([(prompt, ["a", "b", "a"])])
        assert answer[1][0] == answer[1][2]
    assert inner.asked == asked
    assert referee.unknown(prompt, ["a", "c", "b", "c"]) == (["c"] if remember else ["a", "c", "b"])
    assert isinstance(referee, ManyPlaces) and referee.places == 3


def test_what_other_runs_judged_stands(tmp_path: Path) -> None:
    prompt, other = prompts(2)
    store = RolloutStore(tmp_path / "run" / FOLDER)
    said = {text: Judged(Verdict.CORRECT, times_us={"solver": 9.0}, source="gpu") for text in "ab"}
    store.add(0, [rollout(prompt, text, judged) for text, judged in said.items()])
    store.add_retimed(0, prompt, {"a": replace(said["a"], retimed=True)})
    inner = Counting()
    referee = Remembering(inner, RefereeConfig("cuda"))
    assert referee.recall(tmp_path / "run") == 3
    assert dict(referee.judge([(prompt, ["a", "b"])])) == {0: [said["a"], said["b"]]} and inner.asked == 0
    assert referee.counts.remembered == 2
    found = dict(referee.judge([(other, ["a"]), (prompt, ["b", "c"])]))
    assert inner.asked == 2 and found[1][0] == said["b"]
    assert dict(referee.judge([(prompt, ["c"])]))[0][0] == found[1][1] and inner.asked == 2  # its own stand too


def test_a_longer_timing_stands_if_all_of_it_is_known(tmp_path: Path) -> None:
    prompt, inner = prompts(1)[0], Counting()
    referee = Remembering(inner, RefereeConfig("cuda", remember=True))
    first = dict(referee.retime_many([(prompt, ["a", "b"], None), (prompt, ["c"], "a")]))
    assert inner.asked == 4
    again = dict(referee.retime_many([(prompt, ["b"], "c"), (prompt, ["b"], "d")]))
    assert inner.asked == 6, "one of the two was asked for, as a whole"
    assert again[0] == {"b": first[0]["b"], "c": first[1]["c"]} and set(again[1]) == {"b", "d"}
    assert referee.retime(prompt, ["d"], None) == {"d": again[1]["d"]} and inner.asked == 6


def test_what_a_round_heard_that_was_broken_off_is_told_again_once_and_beyond_it_nothing_is(tmp_path: Path) -> None:
    """Although a GPU is asked again by default: of the round that is played again the verdicts are paid for."""
    prompt, inner, config = prompts(1)[0], Counting(), RefereeConfig("cuda")
    referee, journal = Remembering(inner, config), Journal(tmp_path)
    with heard_by(journal, referee):
        first = dict(referee.judge([(prompt, ["a", "b"]), (prompt, ["a"])]))
        winners = referee.retime(prompt, ["a"], "b")
    assert inner.asked == 5 and dict(referee.judge([(prompt, ["a"])]))[0][0] != first[0][0], "not written down"
    referee, journal, inner.asked = Remembering(inner, config), Journal(tmp_path), 50
    with heard_by(journal, referee):
        assert referee.unknown(prompt, ["a", "c"]) == ["c"]
        again = [dict(referee.judge([(prompt, ["a"])]))[0][0] for _ in range(3)]
        assert again[:2] == [first[0][0], first[1][0]], "what was judged twice has both"
        assert again[2] not in again[:2] and inner.asked == 51
        assert referee.retime(prompt, ["a"], None) != winners and inner.asked == 52, "not beside the same"
        assert referee.retime(prompt, ["a"], "b") == winners and inner.asked == 52
        journal.round = 1
        assert dict(referee.judge([(prompt, ["b"])]))[0] != first[0][1:] and inner.asked == 53


def test_asking_ends_when_the_time_is_up_and_something_new_was_heard(tmp_path: Path) -> None:
    prompt, journal = prompts(1)[0], Journal(tmp_path)
    referee = Remembering(Counting(), RefereeConfig("cuda"))
    with heard_by(journal, referee, until_s=time.monotonic() - 1.0):
        with pytest.raises(TimeUpError):
            list(referee.judge([(prompt, ["a"]), (prompt, ["b"])]))
        assert Journal(tmp_path).judged(prompt_key(prompt), ["a", "b"]).keys() == {"a"}, "it is kept all the same"
        for ask in (lambda: referee.judge([(prompt, ["b"])]), lambda: referee.retime(prompt, ["a"], None)):
            with pytest.raises(TimeUpError):
                ask()
    assert len(dict(referee.judge([(prompt, ["a"]), (prompt, ["b"])]))) == 2, "a time is a round's"


def test_modelled_verdicts_are_not_recalled_for_a_gpu(tmp_path: Path) -> None:
    RolloutStore(tmp_path).add(0, [rollout(prompts(1)[0], "a", Judged(Verdict.CORRECT, source="modelled"))])
    with pytest.raises(StoreError, match="their times don't mix"):
        Remembering(Counting(), RefereeConfig("cuda")).recall(tmp_path)
    with pytest.raises(StoreError, match=ROLLOUTS):
        Remembering(Counting(), RefereeConfig("cuda")).recall(tmp_path / "nowhere")


# ---- on disk


def test_a_rollout_survives_json() -> None:
    said = Judged(Verdict.CORRECT, "", {"solver": 2.0}, {"solver": 3.0}, {"solver": 1.0}, 32, 99, True, "gpu")
    there = rollout(prompts(1)[0], "a \udcff text", said)
    back = from_record(to_record(there))
    assert (back.prompt, back.turns[0], back.origin) == (there.prompt, there.turns[0], "explore")
    assert back.ids == (1, 5, 7, 2) and back.written == (False, True, True, True)
    assert back.log_probs == (0.0, -0.5, -0.25, -1.0)
    assert from_record(to_record(back)) == back


def test_a_record_of_another_kind_is_an_error() -> None:
    with pytest.raises(StoreError, match="another version"):
        from_record({"prompt": {}, "group": 0})


def test_the_class_of_a_matrix_does_not_tell_prompts_apart_and_the_problem_does() -> None:
    (prompt,) = prompts(1)
    relabelled = Prompt(prompt.case, prompt.source, prompt.problem, "other")
    assert prompt_key(relabelled) == prompt_key(prompt)
    assert prompt_key(Prompt(prompt.case, prompt.source, Problem(dtype="float64"))) != prompt_key(prompt)


@pytest.mark.parametrize("tokens", [False, True])
def test_stored_rollouts_come_back_and_texts_are_written_once(tmp_path: Path, tokens: bool) -> None:
    (prompt,) = prompts(1)
    store = RolloutStore(tmp_path, tokens)
    store.add(0, [rollout(prompt, "a", Judged(Verdict.WRONG, "no")), rollout(prompt, "b", Judged(Verdict.CORRECT))])
    RolloutStore(tmp_path, tokens).add(1, [rollout(prompt, "a", Judged(Verdict.WRONG, "still"), -0.5, group=3)])
    found = list(store.rollouts())
    assert [(r, each.turns[0].text, each.turns[0].judged.reason) for r, each in found] == [
        (0, "a", "no"),
        (0, "b", ""),
        (1, "a", "still"),
    ]
    assert found[2][1].turns[0].reward == -0.5 and found[2][1].group == 3
    assert found[0][1].prompt == prompt
    assert list(found[0][1].ids) == ([1, 5, 7, 2] if tokens else [])
    assert len(read_jsonl(tmp_path / PROGRAMS)) == 2
    assert len(read_jsonl(tmp_path / PROMPTS)) == 1


def test_a_killed_run_loses_its_last_line_and_goes_on(tmp_path: Path) -> None:
    (prompt,) = prompts(1)
    store = RolloutStore(tmp_path)
    for number in range(3):
        store.add(number, [rollout(prompt, f"text {number}", Judged(Verdict.WRONG))])
        store.add_retimed(number, prompt, {f"text {number}": Judged(Verdict.CORRECT, retimed=True)})
    with (tmp_path / ROLLOUTS).open("ab") as file:
        file.write(b'{"round":3,"prom')
    again = RolloutStore(tmp_path)
    assert again.drop_after(0) == 4
    again.add(1, [rollout(prompt, "text 9", Judged(Verdict.WRONG))])
    assert [(r, each.turns[0].text) for r, each in again.rollouts()] == [(0, "text 0"), (1, "text 9")]
    assert [(r, list(said)) for r, _, said in again.retimed()] == [(0, ["text 0"])]


def test_a_journal_has_rounds_that_no_checkpoint_has_and_loses_a_torn_line(tmp_path: Path) -> None:
    said = Judged(Verdict.CORRECT, times_us={"solver": 2.5}, retimed=True)
    journal = Journal(tmp_path, rank=1)
    for journal.round in range(3):
        journal.hear("key", {"a \udcff text": said, "b": Judged(Verdict.WRONG, "no")})
        journal.hear("key", {}, ["a", "b"])
    with journal.path.open("ab") as file:
        file.write(b'{"round":3,"prom')
    journal.drop_before(2)
    again = Journal(tmp_path, rank=1)
    assert not again.judged("key", ["b"]) and again.retimed("key", ["a", "b"]) is None
    again.round = 2
    assert again.judged("key", ["a \udcff text"], take=False) == again.judged("key", ["a \udcff text"] * 2)
    assert not again.judged("key", ["a \udcff text"]) and again.judged("key", ["b"])["b"].reason == "no"
    assert again.retimed("key", ["a", "b"]) == {} and again.retimed("key", ["a", "b"]) is None
    assert not Journal(tmp_path).path.exists(), "each process has its own"
    again.drop_before(3)
    assert not again.path.exists()


def test_a_replay_says_what_was_said(tmp_path: Path, sim: Remembering, judged: dict[int, list[Judged]]) -> None:
    store, asked = RolloutStore(tmp_path), prompts()
    for place, verdicts in judged.items():
        store.add(0, [rollout(asked[place], t, j) for t, j in zip(TEXTS, verdicts, strict=True)])
    retimed = sim.retime(asked[0], [WIDER], PLAIN)
    store.add_retimed(0, asked[0], retimed)
    with closing(open_referee(f"replay:{tmp_path}")) as referee:
        assert dict(referee.judge([(prompt, TEXTS) for prompt in asked])) == judged
        assert referee.retime(asked[0], [WIDER], PLAIN) == retimed
        with pytest.raises(StoreError, match="no program like this judged on"):
            list(referee.judge([(asked[0], [DEADLY])]))
        with pytest.raises(StoreError, match="retimed on"):
            referee.retime(asked[1], [WIDER], None)
    lenient = open_referee(f"replay:{tmp_path}", RefereeConfig(unknown="WRONG"))
    assert names(dict(lenient.judge([(asked[0], [DEADLY, PLAIN])]))[0]) == ["WRONG", "CORRECT"]


def test_a_replay_gives_later_times_later(tmp_path: Path) -> None:
    (prompt,) = prompts(1)
    times = [2.0, 3.0]
    for number, time_us in enumerate(times):
        said = Judged(Verdict.CORRECT, times_us={"solver": time_us})
        RolloutStore(tmp_path).add(number, [rollout(prompt, "a", said)])
    referee = ReplayReferee(tmp_path)
    heard = [next(referee.judge([(prompt, ["a"])]))[1][0].times_us["solver"] for _ in range(3)]
    assert heard == [2.0, 3.0, 3.0]


def test_a_replay_tells_first_turns_before_second_ones_and_variants_last(tmp_path: Path) -> None:
    """As they were asked for: a program that one episode began with, and another one came to."""
    (prompt,) = prompts(1)

    def said(time_us: float) -> Judged:
        return Judged(Verdict.CORRECT, times_us={"solver": time_us})

    def episode(*turns: tuple[str, float], origin: str = OWN) -> Rollout:
        return Rollout(prompt, 0, [], [], [], [Turn(text, said(us), 0.0, 0, 0) for text, us in turns], origin)

    store = RolloutStore(tmp_path)
    store.add(0, [episode(("b", 9.0), ("a", 3.0)), episode(("a", 2.0), ("b", 9.5))])
    store.add(0, [episode(("a", 4.0), origin=VARIED)])
    store.add(1, [episode(("a", 5.0))])
    referee = ReplayReferee(tmp_path)
    heard = [next(referee.judge([(prompt, ["a"])]))[1][0].times_us["solver"] for _ in range(4)]
    assert heard == [2.0, 3.0, 4.0, 5.0]


def test_a_folder_without_rollouts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=ROLLOUTS):
        open_referee(f"replay:{tmp_path}")


# ---- by name


@pytest.mark.parametrize("spec", ["", "gpu", "replay:", "ray://", "replay"])
def test_an_unknown_referee_is_refused_with_the_choices(spec: str) -> None:
    with pytest.raises(ValueError, match="replay:FOLDER"):
        open_referee(spec)


BAD = [("device", "tpu"), ("modes", ()), ("modes", ("warm",)), ("rounds", 0), ("unknown", "GOOD"), ("workers", -1)]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_config_names_what_is_wrong_with_it(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"'{field}'"):
        RefereeConfig(**{field: value})


def test_without_ray_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendError, match="pip install 'ray"):
        open_referee("ray://local")


@pytest.mark.slow
def test_a_local_ray_says_the_same(judged: dict[int, list[Judged]]) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: judging on a cluster is optional")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    asked = prompts()
    try:
        with closing(open_referee("ray://local", RefereeConfig(workers=1))) as referee:
            assert dict(referee.judge([(prompt, TEXTS) for prompt in asked])) == judged
            assert referee.retime(asked[0], [WIDER], None)[WIDER].retimed
            stray = Prompt("stray", {"family": "rmat", "seed": 5, "params": {"scale": 5}}, SPMV)
            with pytest.raises(MatrixError, match="may not train"):
                list(referee.judge([(stray, [PLAIN])]))
    finally:
        ray.shutdown()


def test_the_default_judge_is_the_one_that_is_configured() -> None:
    with open_judge(RefereeConfig(compile_workers=1)) as judge:
        assert judge.device.backend == "sim"
