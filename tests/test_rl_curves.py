"""Ablations: the figures of runs side by side, the curves, and the scripts that make the runs."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

from rl_tiny import PROGRAMS, fitted, prompts
from sparserl.errors import TRY_AGAIN, SparseRLError, StoreError
from sparserl.policy.checkpoint import read_config
from sparserl.records import Verdict
from sparserl.store import read_jsonl
from sparserl.train import rules
from sparserl.train.commands_rl import read_plan, rl_many
from sparserl.train.loop import Finished
from sparserl.train.rl import loop
from sparserl.train.rl import several as several_runs
from sparserl.train.rl.config import Places, RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.curriculum import CurriculumConfig
from sparserl.train.rl.curves import arms, read_curve, round_figures, table, write
from sparserl.train.rl.curves_svg import Band, chart
from sparserl.train.rl.nouns import Judged, Rollout, Turn
from sparserl.train.rl.rollout_store import FOLDER, JOURNAL, RolloutStore
from sparserl.train.rl.several import known_to, several
from sparserl.train.rl.table import open_table

ROOT = Path(__file__).parents[1]
MODES = ("solver",)
SPARSERL = os.environ.get("SPARSERL", f"{sys.executable} -m sparserl")
"""what the scripts call"""


def turn(speed: float | None, text: str = PROGRAMS["slices"]) -> Turn:
    """A right program of this speed, or a wrong one; the reward that the run learnt from is beside the point."""
    if speed is None:
        return Turn(text, Judged(Verdict.WRONG), 7.0, 0, 0)
    return Turn(text, Judged(Verdict.CORRECT, times_us={"solver": 1 / speed}, baseline_us={"solver": 1.0}), 7.0, 0, 0)


def episode(group: int, *speeds: float | None, origin: str = "policy") -> Rollout:
    return Rollout(prompts()[0], group, (), (), (), [turn(speed) for speed in speeds], origin)


def test_figures_are_under_one_rule_whatever_the_run_learnt_from() -> None:
    found = round_figures([episode(0, 1.0), episode(0, None), episode(1, None), episode(1, None)], 2, MODES)
    assert found["reward"] == pytest.approx((0 - 3 * 1.5) / 4)
    assert found["correct"] == 0.25
    assert found["best"] == pytest.approx(math.sqrt(1.0 * 0.25)), "a failure is a quarter of the baseline"
    assert found["skeletons"] == 0.5 and found["new"] == 1.0


def test_explored_episodes_are_left_out() -> None:
    assert round_figures([episode(0, None), episode(0, 1.0, origin="explore")], 2, MODES)["correct"] == 0.0


def test_three_turns_cost_three_judged_programs() -> None:
    rounds = [episode(0, None, 0.5, 2.0), episode(0, None, None, None), episode(0, None, None, None)]
    found = round_figures(rounds, 3, MODES)
    assert found["correct"] == 0.0, "the first turn alone"
    assert found["episode"] > found["reward"]
    assert found["best"] == pytest.approx(math.exp((math.log(2.0) + 2 * math.log(0.25)) / 3)), "one episode is k = 3"


def test_an_episode_is_as_long_as_it_was_played_and_not_as_the_longest_one() -> None:
    """One of three turns among seven of one made the best of 8 that of 2 episodes, of 2 to 4 programs."""
    mixed = [episode(0, None, 0.5, 2.0), *(episode(0, speed) for speed in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4))]
    found = round_figures(mixed, 8, MODES)["best"]
    logs = sorted((math.log(2.0), *(math.log(speed) for speed in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4))))
    six, seven = (rules.log_best_of([math.exp(each) for each in logs], count) for count in (6, 7))
    assert found == pytest.approx(math.exp(six + 0.4 * (seven - six))), "8 programs are 6.4 episodes of 1.25"
    assert round_figures(mixed[1:], 7, MODES)["best"] == pytest.approx(1.0)
    few = [episode(0, 2.0), episode(0, 1.0)]
    assert round_figures(few, 8, MODES)["best"] == pytest.approx(2.0), "no more than there are"


def run(folder: Path, *rounds: tuple[float | None, ...]) -> Path:
    """A run folder; a round is a group."""
    store = RolloutStore(folder / "rollouts")
    for number, speeds in enumerate(rounds):
        store.add(number, [episode(0, speed) for speed in speeds])
    return folder


def test_the_table_is_about_the_last_quarter_and_differences_are_paired_by_seed(tmp_path: Path) -> None:
    early: tuple[float | None, ...] = (None, None)
    folders = [
        run(tmp_path / "base-0", early, early, early, (1.0, None)),
        run(tmp_path / "base-1", early, early, early, (None, None)),
        run(tmp_path / "ppo-0", early, early, early, (1.0, 1.0)),
        run(tmp_path / "ppo-1", early, early, early, (1.0, None)),
    ]
    held = arms([read_curve(folder, 2) for folder in folders])
    assert [point.judged for point in held["base"][0].points] == [2, 4, 6, 8]
    correct = {name: by["correct"] for name, by in table(held).items()}
    assert correct["base"].mean == 0.25 and correct["base"].difference is None
    assert correct["ppo"].mean == 0.75 and correct["ppo"].spread == pytest.approx(math.sqrt(0.125))
    assert correct["ppo"].difference == 0.5 and correct["ppo"].difference_spread == 0.0
    said = write(folders, tmp_path / "results", k=2)
    assert "| ppo | 2 | 8 |" in said and "(+0.500 ± 0.000)" in said and "best of 2" in said
    assert set(json.loads((tmp_path / "results" / "ablations.json").read_text())["arms"]) == {"base", "ppo"}
    drawn = ElementTree.parse(tmp_path / "results" / "best.svg").getroot()
    assert "ppo ends at" in drawn.attrib["aria-label"]


def test_the_tail_of_a_run_is_its_last_rounds_however_many_programs_they_have(tmp_path: Path) -> None:
    """With several turns rounds get smaller: a quarter of the programs was more than one round of four."""
    same = [0.1, 0.2, 0.3, 0.4]
    rounds = [tuple([speed] * count) for speed, count in zip(same, (9, 6, 3, 2), strict=True)]
    assert read_curve(run(tmp_path / "turns-0", *rounds), 1).last()["best"] == pytest.approx(0.4)
    equal = read_curve(run(tmp_path / "base-0", *([(each,) * 4 for each in same] * 2)), 1)
    begin = 0.75 * equal.points[-1].judged
    before = [point.figures["best"] for point in equal.points if point.judged > begin]
    assert equal.last()["best"] == pytest.approx(sum(before) / len(before)), "of equal rounds it is what it was"


def test_an_arm_that_is_made_again_stays_in_its_place(tmp_path: Path) -> None:
    """Where all runs of the first arm were new, the second one became what the others are compared with."""
    folders = [run(tmp_path / "base-0", (1.0, None)), run(tmp_path / "ppo-0", (1.0, 1.0))]
    write(folders, tmp_path / "results", k=2)
    newer = run(tmp_path / "new" / "base-0", (1.0, 1.0), (1.0, 1.0))
    said = write([tmp_path / "results" / "ablations.json", newer], tmp_path / "results", k=2, note="Of one start.")
    rows = [line.split(" | ") for line in said.splitlines()[2:4]]
    assert [row[:3] for row in rows] == [["| base", "1", "4"], ["| ppo", "1", "2"]]
    assert rows[1][4] == "1.000 (+0.000)" and said.endswith("\n\nOf one start.\n")


def test_an_earlier_table_stands_in_for_its_runs(tmp_path: Path) -> None:
    folders = [run(tmp_path / "base-0", (1.0, None)), run(tmp_path / "ppo-0", (1.0, 1.0))]
    write(folders, tmp_path / "before", k=2)
    earlier = tmp_path / "before" / "ablations.json"
    again = write([earlier], tmp_path / "again", k=2)
    assert again == write(folders, tmp_path / "whole", k=2)
    longer = run(tmp_path / "more" / "ppo-0", (1.0, 1.0), (None, None))
    said = write([earlier, longer, run(tmp_path / "mean-0", (1.0, None))], tmp_path / "more", k=2)
    assert [line.split(" | ")[:3] for line in said.splitlines()[2:5]] == [
        ["| base", "1", "2"],
        ["| ppo", "1", "4"],
        ["| mean", "1", "2"],
    ], "a run that is named itself counts"
    with pytest.raises(StoreError, match="best of 2 in solver mode"):
        write([earlier], tmp_path / "other", k=4)
    (tmp_path / "not.json").write_text("[]")
    with pytest.raises(StoreError, match="no table"):
        write([tmp_path / "not.json"], tmp_path / "other", k=2)


def test_a_curve_that_never_moves_can_be_drawn() -> None:
    flat = Band("a", [1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert ElementTree.fromstring(chart([flat], "x", "y <1>")).tag.endswith("svg")


def test_folders_without_a_seed_in_their_name_or_without_rollouts_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="NAME-SEED"):
        read_curve(run(tmp_path / "base", (1.0, 1.0)), 2)
    with pytest.raises(StoreError, match=r"no rollouts\.jsonl"):
        read_curve(tmp_path / "none-0", 2)
    twice = [read_curve(run(tmp_path / where / "base-0", (1.0, 1.0)), 2) for where in "ab"]
    with pytest.raises(StoreError, match="with one seed"):
        arms(twice)


# ── The scripts ───────────────────────────────────────────────────────────────


TOLD = f'{sys.executable} -c print(__import__("json").dumps(__import__("sys").argv[1:]))'
"""in place of the command: its words as JSON"""


def refused(name: str, *words: str | Path, **environment: str) -> str:
    """What a script says that refuses its arguments."""
    done = subprocess.run(
        ["bash", str(ROOT / "runs" / name), *map(str, words)],
        env={**os.environ, "SPARSERL": "false", **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2) and not done.stdout
    return done.stderr


def script(name: str, *words: str | Path, sparserl: str = SPARSERL, **environment: str) -> str:
    """What a script prints."""
    done = subprocess.run(
        ["bash", str(ROOT / "runs" / name), *map(str, words)],
        env={**os.environ, "SPARSERL": sparserl, "PYTHON": sys.executable, **environment},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tmp_path_factory.mktemp("tiny"), steps=110)


def test_every_arm_differs_from_the_base_in_its_one_thing_and_judges_enough(tmp_path: Path) -> None:
    out = tmp_path / "with space"
    own = ("--turned", "turned", "--pretrained", "with", "--scratch", "without")
    said = script("ablations.sh", out, "--weights", "sft", *own, sparserl=TOLD)
    plans = [read_plan(out / f"plan-{seed}.txt") for seed in range(3)]
    made = {places.out.name: (config, places) for each in plans for config, places in each}
    assert all(len({places.workers for _, places in each}) == 1 for each in plans)
    names = ("base", "ppo", "mean", "blind", "speed", "correct", "single", "turns", "pretrained", "scratch")
    assert list(made) == [f"{name}-{seed}" for seed in range(3) for name in names]
    config = {name: made[f"{name}-0"][0] for name in names}
    assert (config["base"].algorithm, config["base"].objective) == ("grpo", "best")
    assert config["ppo"].algorithm == "ppo" and config["mean"].objective == "mean" and config["blind"].blind
    assert [config[name].weights.form for name in ("base", "speed", "correct")] == [
        "hierarchical",
        "speed",
        "correctness",
    ]
    assert (config["base"].play.turns, config["turns"].play.turns) == (1, 3)
    assert config["scratch"] == config["pretrained"] == config["single"] == config["base"]
    begun = {name: str(made[f"{name}-0"][1].weights) for name in names}
    own_start = {"single": "turned", "turns": "turned", "pretrained": "with", "scratch": "without"}
    assert begun == dict.fromkeys(names, "sft") | own_start
    for each, _ in made.values():
        assert each.rounds * each.curriculum.prompts * each.play.count * each.play.turns >= 5000
        assert round(each.curriculum.prompts * each.play.count / each.minibatch) == 20, "optimiser steps a round"
    assert len({each.loop.seed for each, _ in made.values()}) == 3
    assert [places.out.parent for _, places in made.values()] == [out] * 30
    tables = tables_of(said)
    assert {folder: arms_of(words, out) for folder, words in tables.items()} == {
        f"{out}/results": ["base", "ppo", "mean", "blind", "speed", "correct"],
        f"{out}/results/turns": ["single", "turns"],
        f"{out}/results/pretraining": ["pretrained", "scratch"],
    }
    assert all("one seed of fine-tuning" in words[words.index("--note") + 1] for words in tables.values())


def tables_of(said: str) -> dict[str, list[str]]:
    """The words of every `train curves` that a script called in place of which stood `told`, by --out."""
    calls = [json.loads(line) for line in said.splitlines() if line.startswith('["train", "curves"')]
    return {words[words.index("--out") + 1]: words for words in calls}


def arms_of(words: list[str], out: Path) -> list[str]:
    """The arms of the run folders that it names, in order."""
    found = [word.removeprefix(f"{out}/").rpartition("-")[0] for word in words if re.fullmatch(r".*-\d", word)]
    return list(dict.fromkeys(found))


def test_arms_that_come_later_are_added_to_the_tables_that_are_there(tmp_path: Path) -> None:
    """The tables were made of the named arms alone: without base, and in place of what was measured before."""
    for folder in (tmp_path / "results", tmp_path / "results" / "turns"):
        folder.mkdir()
        (folder / "ablations.json").touch()
    own = ("--turned", "turned", "--pretrained", "with", "--scratch", "without", "--seeds", "0 1")
    words = (tmp_path, "--weights", "sft", *own)
    said = tables_of(script("ablations.sh", *words, "turns", "pretrained", "mean", sparserl=TOLD))
    named = {folder: [word for word in told if word.startswith(f"{tmp_path}/")][1:] for folder, told in said.items()}
    results = f"{tmp_path}/results"
    assert named == {
        results: [f"{results}/ablations.json", f"{tmp_path}/mean-0", f"{tmp_path}/mean-1"],
        f"{results}/turns": [f"{results}/turns/ablations.json", f"{tmp_path}/turns-0", f"{tmp_path}/turns-1"],
        f"{results}/pretraining": [f"{tmp_path}/pretrained-0", f"{tmp_path}/pretrained-1"],
    }
    without = ("--weights", "sft")
    assert list(tables_of(script("ablations.sh", tmp_path, *without, sparserl=TOLD))) == [results]


def test_an_arm_that_can_not_be_played_is_refused_before_anything_runs(tmp_path: Path) -> None:
    words = (tmp_path, "--weights", "sft", "--turned", "turned", "turns")
    for size, more in (("16", ()), ("32", ("--", "--k", "16")), ("32", ("--", "--k=16"))):
        said = refused("ablations.sh", *words, *more, GROUP=size)
        assert f"of a GROUP of {size} the arm 'turns' plays" in said and ("set GROUP to 19" in said or more)
    script("ablations.sh", *words, "--", "--k", "4", sparserl=TOLD, GROUP="16")
    assert read_plan(tmp_path / "plan-0.txt")[0][0].play.count == 6
    assert "needs --turned DIR" in refused("ablations.sh", tmp_path, "--weights", "sft", "single")
    assert "no arm 'singel'" in refused("ablations.sh", tmp_path, "--weights", "sft", "singel")


def test_a_tiny_ablation_runs_through_the_script(weights: Path, tmp_path: Path) -> None:
    small = ("--device", "sim", "--learn-on", "cpu", "--cases", "2", "--most-nonzeros", "1e3", "--problem", "spmv f32")
    short = (
        "--max-tokens",
        "280",
        "--workers",
        "1",
        "--k",
        "2",
        "--explored",
        "0",
        "--imitate-steps",
        "1",
        "--minibatch",
        "4",
    )
    words = (tmp_path, "--weights", weights, "--seeds", "0", "--turned", weights, "base", "turns", "--", *small, *short)
    tiny = {"ROUNDS": "1", "PROMPTS": "2", "GROUP": "4", "OMP_NUM_THREADS": "1"}
    made = tmp_path / "samples-0.npz"
    said = script("ablations.sh", words[0], "--prepare", *words[1:], **tiny)
    assert said.startswith(f"{made}: 2 matrices") and not (tmp_path / "base-0").exists()
    before = made.stat().st_mtime_ns
    said = script("ablations.sh", *words, **tiny)
    assert made.stat().st_mtime_ns == before, "what was prepared is not made again"
    assert "| base | 1 | 8 |" in said and "| turns | 1 |" in said
    assert said.count("| arm |") == said.count("\nAll runs of an arm begin with the same weights") == 2, "two tables"
    (base,) = read_jsonl(tmp_path / "base-0" / loop.ROUNDS)
    assert base["judging/judged"] > 0 and base["judging/wall_s"] > 0
    assert read_config(tmp_path / "turns-0" / "policy")["notes"]["step"] == 1
    assert (tmp_path / "results" / "reward.svg").exists() and (tmp_path / "results" / "turns" / "best.svg").exists()


def plan(folder: Path, weights: Path, *runs: str) -> Path:
    """A plan of small runs on the simulator; what sets each apart is given."""
    small = (
        "--device sim --learn-on cpu --cases 2 --most-nonzeros 1e3 --problem 'spmv f32' --max-tokens 280 --workers 1"
    )
    short = "--rounds 2 --prompts 2 --group 4 --k 2 --explored 0 --imitate-steps 1 --minibatch 4 --resume"
    rows = [f"--weights {weights} --samples {folder}/samples.npz {small} {short} {each}" for each in runs]
    path = folder / "plan.txt"
    path.write_text("\n\n# a comment\n".join(rows) + "\n")
    return path


def test_runs_of_a_plan_share_a_judge_and_go_on_where_the_time_was_up(weights: Path, tmp_path: Path) -> None:
    written = plan(tmp_path, weights, f"--out {tmp_path}/one", f"--out {tmp_path}/two --objective mean")
    with pytest.raises(typer.Exit) as left:
        rl_many(written, budget=1e-3)
    assert left.value.exit_code == TRY_AGAIN and not read_jsonl(tmp_path / "one" / loop.ROUNDS)
    assert read_jsonl(tmp_path / "one" / FOLDER / JOURNAL.format(0)), "but the next call knows what this one judged"
    asked = read_plan(written)
    found = {each.folder.name: each for each in several(asked)}
    assert list(found) == ["one", "two"] and all(each.complete for each in found.values())
    two = read_jsonl(tmp_path / "two" / loop.ROUNDS)
    assert [each["round"] for each in two] == [0, 1]
    assert two[0]["judging/judged"] == 0 and two[0]["judging/remembered"] == 8  # the same weights wrote the same
    assert list(several(asked)) == []  # nothing is left to do
    third = read_plan(plan(tmp_path, weights, f"--out {tmp_path}/three --rounds 1 --known {tmp_path}/one"))
    assert known_to(third) == (tmp_path / "one",) and known_to(asked) == (tmp_path / "one", tmp_path / "two")
    assert [each.complete for each in several(third)] == [True]
    (line,) = read_jsonl(tmp_path / "three" / loop.ROUNDS)
    assert line["judging/judged"] == 0  # by a run that is not of its plan


def test_the_runs_of_a_plan_have_one_clock_that_starts_before_their_judge(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = read_plan(plan(tmp_path, weights, f"--out {tmp_path}/one", f"--out {tmp_path}/two"))
    now_s, told = [0.0], []

    def later(spent_s: float, made: Any) -> Any:
        now_s[0] += spent_s
        return made

    def slow(config: RLConfig, places: Places, *rest: Any, clock_s: float) -> Finished:
        told.append((config.loop.budget_s, now_s[0] - clock_s))
        return later(200.0, Finished(places.out, 2, 2, 9, 200.0, {}))

    monkeypatch.setattr(several_runs, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(several_runs, "train", slow)
    monkeypatch.setattr(several_runs, "open_table", lambda *each: later(30.0, nullcontext()))
    judge = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(several_runs, "open_judge", lambda *each, **how: later(10.0, judge))
    assert [each.complete for each in several(asked, budget_s=1000.0)] == [True, True]
    assert told == [(1000.0, 40.0), (1000.0, 270.0)]
    assert [(each.step, each.complete) for each in several(asked, budget_s=50.0)] == [(2, True), (0, False)]
    assert told[2:] == [(50.0, 40.0)], "the second is not begun"


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ((), "no run in the plan"),
        (("--out a", "--out a"), "the same --out"),
        (("--out a", "--out b --workers 2"), "b can't be judged by the referee of a"),
        (("--out a --turns 9",), "must be 1..3. Got 9"),
        (("--out a --fast",), "line 1: No such option: --fast"),
        (("--out 'a",), "line 1: No closing quotation"),
        (("--out a --only-samples",), "give --only-samples to `sparserl train rl`"),
    ],
)
def test_a_plan_that_can_not_be_run_is_refused_at_once(tmp_path: Path, runs: tuple[str, ...], said: str) -> None:
    with pytest.raises(SparseRLError, match=re.escape(said)):
        list(several(read_plan(plan(tmp_path, tmp_path, *runs))))
    with pytest.raises(SparseRLError, match="can't be read"):
        read_plan(tmp_path / "missing.txt")


def test_a_blind_run_sees_the_same_entries_everywhere_and_each_matrix_its_sizes(tmp_path: Path) -> None:
    curriculum = CurriculumConfig(prompts=2, spmv_cases=3, spmm_cases=1, most_nonzeros=1e3)
    config = RLConfig(judged_on="sim", blind=True, curriculum=curriculum)
    with open_table(config, Places(tmp_path, tmp_path, workers=1), Crew()) as held:
        seen = {prompt.case: held.look(prompt) for prompt in held.prompts}
    first, *others = seen.values()
    assert others and all((each.entries == first.entries).all() for each in others)
    assert len({each.nonzeros for each in seen.values()}) > 1


def test_the_training_script_goes_through_every_stage(tmp_path: Path) -> None:
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "weights.safetensors").write_bytes(b"")
    (tmp_path / "before" / "seen").mkdir(parents=True)
    (tmp_path / "before" / "seen" / "written-trees.jsonl.zst").write_bytes(b"")
    stages = ("rl", "ship", "eval", "climb", "play", "beyond")
    words = ("--weights", tmp_path / "sft", "--earlier", tmp_path / "before", *stages)
    said = script("rl.sh", tmp_path / "out", *words, sparserl="echo")
    rows = [row for row in said.splitlines() if row.startswith(("train", "eval"))]
    assert [" ".join(row.split()[:2]) for row in rows] == [
        "train rl", "train ship", *4 * ["eval --policy"], "train climb", "train play", *5 * ["train beyond"],
    ]  # fmt: skip
    assert [row.split()[-1] == "--elsewhere" for row in rows[-5:]] == [False, False, False, True, True]
    evaluated = [row.split() for row in rows if row.startswith("eval")]
    assert [row[-1] for row in evaluated] == 2 * ["--choose-only", "--report-only"]
    assert all(f"rl={tmp_path / 'out' / 'nano'}" in row for row in evaluated), "what is shipped is evaluated"
    assert [f"trees={tmp_path}/before/seen" in row for row in evaluated] == [False, False, True, True]
    measured = sorted((tmp_path / "out").glob("eval-unseen-*.log"))
    assert [path.read_text().split()[-1] for path in measured] == [f"{at}/8" for at in range(8)]
    words = shlex.split(rows[0])
    numbers = [int(words[words.index(name) + 1]) for name in ("--rounds", "--prompts", "--group")]
    assert math.prod(numbers) >= 120_000


def test_the_commands_of_a_stage_share_its_budget(tmp_path: Path) -> None:
    """Three races of one stage, and three splits: each has what those before it have left.

    A shell's clock has whole seconds: of four a nap of 2.1 leaves one or two, and a second nap none.
    """
    slow = tmp_path / "sparserl"
    slow.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *--share*) ;; *) sleep "${NAP:-1.1}" ;; esac\n')
    slow.chmod(0o755)
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "weights.safetensors").write_bytes(b"")
    out, words = tmp_path / "out", ("--weights", tmp_path / "sft", "--budget")
    said = script("rl.sh", out, *words, "100", "beyond", sparserl=str(slow))
    budgets = [int(row.split("--budget ")[1].split()[0]) for row in said.splitlines() if "--budget" in row]
    assert len(budgets) == 3 and budgets[0] >= 99 and budgets[0] > budgets[1] > budgets[2] >= 90
    done = subprocess.run(
        ["bash", str(ROOT / "runs" / "rl.sh"), str(out), *map(str, words), "4", "eval"],
        env={**os.environ, "SPARSERL": str(slow), "PYTHON": sys.executable, "RACES": "1", "NAP": "2.1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == TRY_AGAIN and "call again" in done.stdout, done.stderr
    (measured,) = [path.read_text().split() for path in out.glob("eval-*.log")]
    assert 0.0 < float(measured[measured.index("--minutes") + 1]) < 2 / 60
    assert "--split seen" not in done.stdout, "nor is another split begun"
