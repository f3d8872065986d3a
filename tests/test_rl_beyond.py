"""Beyond the teacher: what is structurally new, how sure a ratio is, the climbing control, races on the simulator."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rl_tiny import PROGRAMS
from sparserl import splits
from sparserl.bench import archive
from sparserl.errors import SparseRLError, StoreError
from sparserl.program import parse
from sparserl.recipes import space
from sparserl.records import Problem, Verdict
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train.assess import text_sha
from sparserl.train.rl import beyond_report, commands, fresh
from sparserl.train.rl.beyond import FINALS, HEATS, BeyondConfig, field_of
from sparserl.train.rl.bounds import bound, share
from sparserl.train.rl.climbing import CLIMBS, STEPS, WANTED, batches_of, from_climbs
from sparserl.train.rl.elsewhere import Elsewhere, judged_elsewhere, read_elsewhere
from sparserl.train.rl.finals import final_bound, finalists, has_nearest, near_to, settled, to_race
from sparserl.train.rl.matrices import pattern_of
from sparserl.train.rl.nouns import Judged, Prompt, Rollout, Turn, prompt_key
from sparserl.train.rl.novelty import difference, folded, is_structurally_new, nearest_recipe
from sparserl.train.rl.rollout_store import RolloutStore
from sparserl.train.rl.side_by_side import RaceConfig
from sparserl.train.rl.tried import Tried, drawn, from_evaluation, from_rollouts
from sparserl.train.variants import variants

SPMV = Problem()
RECIPE = next(each for each in space(SPMV) if each.family == "row_lanes" and not each.pdl)
NEW, OTHER, SLOW = PROGRAMS["four lanes"], PROGRAMS["slices"], PROGRAMS["a warp a row"]
NEAR = {text: near_to(text, "spmv float32") for text in (NEW, OTHER)}
MODES = ("solver",)


# ── What is new ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("problem", [SPMV, Problem("spmm", "float32", 64)])
def test_no_recipe_is_structurally_new(problem: Problem) -> None:
    assert not any(is_structurally_new(each.text, problem) for each in space(problem)[::40])


def test_names_comments_and_numbers_alone_are_not_new() -> None:
    changed = RECIPE.text.replace("128", "96").replace("sum", "total").replace("{\n", "{\n    // a remark\n", 1)
    assert changed != RECIPE.text
    assert not is_structurally_new(changed, SPMV)


def test_arithmetic_between_numbers_is_a_number_and_so_is_a_second_launch_bound() -> None:
    assert folded("__launch_bounds__ ( # , # ) n0") == folded("__launch_bounds__ ( # ) n0")
    assert folded("n0 + # * # ;") == folded("n0 + ( # - # ) ;") == "n0 + # ;"
    assert folded("warp_sum ( # )") == "warp_sum ( # )", "a call keeps its parentheses"


def test_a_program_that_no_recipe_is_like_is_new_and_an_unreadable_one_is_not() -> None:
    assert is_structurally_new(NEW, SPMV)
    assert not is_structurally_new("int main() {}", SPMV)


def test_the_nearest_recipe_of_a_variant_is_near_its_parent_and_the_diff_shows_the_change() -> None:
    made = variants(RECIPE.text, SPMV, random.Random(3), 4)
    new = next(each for each in made if is_structurally_new(each.text, SPMV))
    near = nearest_recipe(new.text, SPMV)
    assert near.family == RECIPE.family
    shown = difference(new.text, near).splitlines()
    assert shown[0].startswith("---") and any(row.startswith("+") and not row.startswith("+++") for row in shown)


def test_numbers_that_no_recipe_has_run_beside_a_program_in_the_recipe_it_is_nearest_to() -> None:
    (threads,) = {str(launch.block) for launch in parse(RECIPE.text).launches}
    changed = RECIPE.text.replace(threads, "352")
    assert changed not in {each.text for each in space(SPMV)} and not is_structurally_new(changed, SPMV)
    new = changed.replace("if (row", "if (row < 0) return;\n    if (row", 1)
    assert new != changed and is_structurally_new(new, SPMV)
    near, numbered = near_to(new, "spmv float32")
    assert near == nearest_recipe(new, SPMV).text and numbered == changed
    same = RECIPE.text.replace("if (row", "if (row < 0) return;\n    if (row", 1)
    assert near_to(same, "spmv float32") == [RECIPE.text], "its numbers are a recipe's"
    lost = [{**each, "recipes": [near]} for each in finals((1.2, 1.2, 1.2), new=(new,))]
    assert not has_nearest(lost, new, "spmv float32")
    assert has_nearest([{**each, "recipes": [near, numbered]} for each in lost], new, "spmv float32")


# ── How sure a ratio is ───────────────────────────────────────────────────────


def test_the_bounds_are_those_of_student_with_one_observation_a_process() -> None:
    logs = [0.05, 0.04, 0.06]
    found = bound(logs)
    error = 0.01 / math.sqrt(3)
    assert math.log(found.ratio) == pytest.approx(0.05)
    assert math.log(found.low) == pytest.approx(0.05 - 2.91999 * error, abs=1e-6)
    assert math.log(found.high) == pytest.approx(0.05 + 2.91999 * error, abs=1e-6)
    assert bound(logs, comparisons=3).low < found.low
    assert bound([*logs, *logs]).low > found.low
    with pytest.raises(ValueError, match="at least 2 processes"):
        bound([0.1])


def test_a_share_of_few_matrices_has_a_wide_interval() -> None:
    assert share(1, 10) == pytest.approx((0.1, 0.0179, 0.4042), abs=1e-4)
    assert share(100, 1000)[1] > 0.08


# ── Who runs, and what counts ─────────────────────────────────────────────────


def raced(times: Mapping[str, float], **about: Any) -> dict[str, Any]:
    """A record of a race."""
    return {
        "pair": "p", "case": "grid", "problem": "spmv float32", "structure": "regular", "tries": 16, "device": "test",
        "recipes": [RECIPE.text, SLOW], "new": [NEW, OTHER], "best": NEW, "climbed": OTHER, "climb_tries": 12,
        "times_us": {text_sha(text): {"solver": us} for text, us in times.items()}, "failed": {}, **about,
    }  # fmt: skip


def finals(ratios: Sequence[float], new: Sequence[str] = (NEW,)) -> list[dict[str, Any]]:
    return [
        raced(
            {RECIPE.text: ratio, SLOW: 9.0, NEW: 1.0, **dict.fromkeys(new, 1.0)},
            process=at,
            new=list(new),
            recipes=[RECIPE.text, SLOW, *(near for text in (*NEAR, *new) for near in near_to(text, "spmv float32"))],
        )
        for at, ratio in enumerate(ratios)
    ]


def test_the_fastest_new_program_goes_to_the_final_only_where_it_was_ahead() -> None:
    heat = raced({RECIPE.text: 2.0, SLOW: 3.0, NEW: 1.9, OTHER: 1.8})
    assert finalists([heat], MODES) == {"p": ((RECIPE.text, SLOW, *NEAR[OTHER]), (OTHER,))}
    behind = raced({RECIPE.text: 1.7, SLOW: 3.0, NEW: 1.9, OTHER: 1.8})
    assert finalists([behind], MODES) == {}
    assert finalists([raced({NEW: 1.0})], MODES) == {}, "no recipe was right"
    assert finalists([{**heat, "fault": "it died"}], MODES) == {}
    assert finalists([heat], MODES, ahead=1.2) == {}
    farther = raced({RECIPE.text: 2.0, OTHER: 1.5}, pair="q")
    assert [*finalists([heat, farther], MODES)] == ["q", "p"], "the farthest ahead first"
    bounds = RECIPE.text.replace("__launch_bounds__(", "__launch_bounds__(2 * 32, ")
    known = raced({RECIPE.text: 2.0, bounds: 1.0, NEW: 1.5}, new=[bounds, NEW])
    assert finalists([known], MODES)["p"][1] == (NEW,), "what was taken for new and no longer is"


def test_what_is_raced_is_what_could_still_win() -> None:
    chosen = finalists([raced({RECIPE.text: 2.0, NEW: 1.0})], MODES)
    every = [("p", 0), ("p", 1), ("p", 2)]
    assert to_race(chosen, [], MODES, 3) == every
    assert to_race(chosen, finals((1.2, 1.2, 1.2))[:2], MODES, 3) == [("p", 2)]
    assert to_race(chosen, finals((1.2, 1.2, 1.2)), MODES, 3) == []
    alone = [{**each, "recipes": [RECIPE.text]} for each in finals((1.2, 1.2, 1.2))]
    assert to_race(chosen, alone, MODES, 3) == every, "without the recipe that it is nearest to"
    lost = [{**each, "recipes": [RECIPE.text]} for each in finals((1.01, 1.01, 1.01))]
    assert to_race(chosen, lost, MODES, 3) == [], "one rival more can't make it win"
    assert to_race(chosen, finals((1.2, 1.2, 1.2), new=(OTHER,)), MODES, 3) == every, "another program's"


def test_a_matrix_counts_only_if_the_lower_bound_is_three_per_cent_ahead() -> None:
    heat = raced({RECIPE.text: 1.1, SLOW: 3.0, NEW: 1.0, OTHER: 2.0})
    for ratios, counts in (((1.06, 1.061, 1.059), True), ((1.0, 1.1, 1.2), False), ((1.02, 1.02, 1.02), False)):
        (found,) = beyond_report.standings([heat], finals(ratios), MODES)
        assert found.beyond is counts, ratios
    (found,) = beyond_report.standings([heat], finals((1.5, 1.5)), MODES)
    assert found.bound is None and not found.beyond, "two processes are too few"
    alone = [{**each, "recipes": [RECIPE.text, SLOW]} for each in finals((1.5, 1.5, 1.5))]
    (found,) = beyond_report.standings([heat], alone, MODES)
    assert found.bound is not None and not found.beyond, "the recipe that it is nearest to was not raced"
    (found,) = beyond_report.standings([heat], [*alone, *finals((1.2, 1.2, 1.2))], MODES)
    assert found.beyond and found.bound is not None and found.bound.ratio == pytest.approx(1.2), "the last races count"


def test_the_other_side_is_the_fastest_recipe_of_each_process() -> None:
    races = finals((1.2, 1.2, 1.2))
    races[1]["times_us"][text_sha(SLOW)] = {"solver": 1.0}
    found = final_bound(races, NEW, MODES)
    assert found is not None and math.log(found.ratio) == pytest.approx(2 / 3 * math.log(1.2))


def test_a_program_that_failed_in_one_process_does_not_count() -> None:
    races = finals((1.2, 1.2, 1.2))
    del races[2]["times_us"][text_sha(NEW)]
    assert final_bound(races, NEW, MODES) is None


def test_wins_losses_and_ties_against_the_climb_are_counted_and_no_right_program_is_a_loss() -> None:
    times = {RECIPE.text: 1.0, SLOW: 3.0}
    heats = [
        raced({**times, NEW: 0.9, OTHER: 1.0}, pair="win"),
        raced({**times, NEW: 1.0, OTHER: 0.9}, pair="loss"),
        raced({**times, NEW: 1.0, OTHER: 1.01}, pair="tie"),
        raced({**times, OTHER: 1.0}, pair="nothing right"),
        raced({**times, NEW: 1.0}, pair="no climb", climbed=""),
    ]
    climb = beyond_report.figures(beyond_report.standings(heats, [], MODES))["climb"]
    assert (climb["matrices"], climb["wins"], climb["losses"], climb["ties"]) == (4, 1, 2, 1)
    assert (climb["tries"], climb["climb_tries"]) == (4 * 16, 4 * 12)
    assert (climb["ahead"], climb["climb_ahead"]) == (1, 1)


def test_the_programs_shown_have_different_skeletons_and_the_page_has_their_diffs(tmp_path: Path) -> None:
    heats = [raced({RECIPE.text: 1.2, SLOW: 3.0, NEW: 1.0, OTHER: 2.0}, pair=name, case=name) for name in "abc"]
    races = [{**each, "pair": name} for name in "ab" for each in finals((1.2, 1.2, 1.2))]
    races += [
        {
            **each,
            "pair": "c",
            "new": [OTHER],
            "times_us": {text_sha(RECIPE.text): {"solver": 1.5}, text_sha(OTHER): {"solver": 1.0}},
        }
        for each in finals((1.2, 1.2, 1.2))
    ]
    found = beyond_report.standings(heats, races, MODES)
    shown = beyond_report.shown(found)
    assert [each["text"] for each in shown] == [OTHER, NEW]
    assert all(each["diff"].startswith("---") for each in shown)
    assert f"## 1. c ({heats[0]['structure']}), " in beyond_report._program(1, shown[0])
    said = beyond_report.figures(found)
    assert said["all"]["beyond"] == 3 and said["all"]["share"] == 1.0


SHORT_ROWS = NEW.replace("j < row_start[row + 1]", "j < min(row_start[row + 1], row_start[row] + 16)")
"""right as long as no row has more than 16 entries"""


def test_a_program_that_is_right_for_its_own_pattern_alone_is_told_from_one_that_is_right_elsewhere(
    tmp_path: Path,
) -> None:
    assert SHORT_ROWS != NEW
    lines = list(judged_elsewhere([("spmv float32", NEW), ("spmv float32", SHORT_ROWS)], tmp_path))
    assert len(lines) == 2 and list(judged_elsewhere([("spmv float32", NEW)], tmp_path)) == []
    known = read_elsewhere(tmp_path)
    good, bad = (known["spmv float32", text_sha(text)] for text in (NEW, SHORT_ROWS))
    assert good.holds and good.right >= 10
    assert not bad.holds and bad.right >= 2
    assert {"rows of sixty", "two long rows"} <= {*bad.wrong} and "short rows" not in bad.wrong
    heats = [raced({RECIPE.text: 1.3, NEW: 1.0, SHORT_ROWS: 0.9}, pair=name, case=name) for name in "ab"]
    heats = [{**each, "new": [NEW, SHORT_ROWS], "problem": "spmv float32"} for each in heats]
    races = [
        {**each, "pair": pair}
        for pair, text, ratio in (("a", SHORT_ROWS, 1.3), ("b", NEW, 1.2))
        for each in finals((ratio, ratio, ratio), new=(text,))
    ]
    found = beyond_report.standings(heats, races, MODES, known)
    assert [each.beyond for each in found] == [True, True]
    counts = beyond_report.figures(found)["all"]
    assert (counts["beyond"], counts["looked_elsewhere"], counts["elsewhere"]) == (2, 2, 1)
    assert [each["text"] for each in beyond_report.shown(found)] == [NEW, SHORT_ROWS], "though it is less far ahead"
    assert "1 (50.0 % of the matrices) are right" in beyond_report._elsewhere(counts)
    assert beyond_report._elsewhere({**counts, "looked_elsewhere": 0}) == ""
    assert not Elsewhere(0, (), 15).holds, "it ran nowhere"


def test_a_race_that_failed_is_tried_once_more() -> None:
    fault = {"pair": "a", "fault": "x"}
    assert settled([fault]) == set()
    assert settled([fault, fault]) == {("a", 0)}
    assert settled([{"pair": "a", "process": 2}]) == {("a", 2)}


def test_fewer_than_three_processes_or_seven_rounds_are_refused() -> None:
    with pytest.raises(SparseRLError, match="at least 3 processes"):
        BeyondConfig(processes=2)
    with pytest.raises(SparseRLError, match=r"at least 7\. Got 6"):
        RaceConfig(rounds=6)


def test_a_process_that_dies_costs_its_own_call_alone() -> None:
    calls = [{"code": 3}, {"code": 0}]
    found = dict(fresh.fresh("fresh_calls:leave", calls, workers=1))
    assert found[0] == {"fault": "exit code 3"} and found[1]["fine"]
    assert not [*fresh.fresh("fresh_calls:leave", calls, 1, until=time.monotonic())], "too late to begin"


# ── On the simulator ──────────────────────────────────────────────────────────


def case(number: int) -> Prompt:
    source = {"family": "uniform", "seed": 1_000_002 + number, "params": {"rows": 40, "columns": 40, "per_row": 4}}
    return Prompt(f"tiny-{number}", source, SPMV, "random")


def rollout(prompt: Prompt, group: int, text: str, us: float) -> Rollout:
    judged = Judged(Verdict.CORRECT, times_us={"solver": us}, baseline_us={"solver": 1.0})
    return Rollout(prompt, group, (), (), (), (Turn(text, judged, 0.0, 0, 0),))


def played(folder: Path) -> Path:
    """A run on two matrices: three programs judged on the first, two on the second."""
    store = RolloutStore(folder / "rollouts")
    first, second = case(0), case(1)
    store.add(0, [rollout(first, 0, NEW, 2.0), rollout(first, 0, OTHER, 1.0), rollout(second, 1, RECIPE.text, 1.0)])
    store.add(1, [rollout(first, 0, RECIPE.text, 1.5), rollout(second, 1, RECIPE.text, 0.5)])
    store.add_retimed(1, first, {OTHER: Judged(Verdict.CORRECT, times_us={"solver": 4.0}, baseline_us={"solver": 1.0})})
    return folder


def test_a_longer_time_takes_the_place_of_a_brief_one_and_all_tries_are_counted(tmp_path: Path) -> None:
    found = from_rollouts([played(tmp_path)])
    first = found[prompt_key(case(0))]
    assert first.fastest() == [RECIPE.text, NEW, OTHER] and first.tries == 3
    assert from_rollouts([tmp_path], within=1)[prompt_key(case(0))].fastest() == [RECIPE.text]
    with pytest.raises(StoreError, match="name the folder of a `sparserl train rl` run"):
        from_rollouts([tmp_path / "none"])


def test_samples_of_an_evaluation_are_candidates_for_its_own_matrices(tmp_path: Path) -> None:
    matrix = min(splits.cases("unseen"), key=lambda each: each.nonzeros)
    programs = {text_sha(text): text for text in (NEW, OTHER, SLOW)}
    judged = {
        text_sha(NEW): {"verdict": "CORRECT", "judged_us": {"solver": 2.0, "chain": 2.0}},
        text_sha(OTHER): {"verdict": "CORRECT", "judged_us": {"solver": 4.0, "chain": 4.0}},
        text_sha(SLOW): {"verdict": "WRONG", "judged_us": {}},
    }
    (tmp_path / "about.json").write_text(json.dumps({"split": "unseen", "problem": "spmv float32"}))
    append_jsonl(tmp_path / "programs.jsonl", *({"program": sha, "text": text} for sha, text in programs.items()))
    append_jsonl(tmp_path / "written-rl.jsonl", {"case": matrix.name, "programs": [*programs, text_sha(NEW)]})
    session = {"case": matrix.name, "structure": "block", "races": [{"csr": {"solver": 8.0, "chain": 8.0}}]}
    append_jsonl(tmp_path / "measured.jsonl", {**session, "programs": judged})
    (found,) = from_evaluation(tmp_path, "rl").values()
    assert found.speeds == pytest.approx({NEW: math.log(4.0), OTHER: math.log(2.0)})
    assert found.tries == 4 and found.prompt.structure == "block"
    assert pattern_of(found.prompt).fingerprint()[:16] == matrix.fingerprint
    with pytest.raises(StoreError, match="no samples of 'sft', only of rl"):
        from_evaluation(tmp_path, "sft")


def test_a_field_has_the_fastest_new_programs_and_the_fastest_of_all() -> None:
    tried = Tried(case(0), {NEW: 0.1, OTHER: 0.2, RECIPE.text: 0.3}, 3)
    found = field_of(tried, [SLOW], Tried(case(0), {SLOW: 0.0}), few=1)
    assert found.new == (OTHER,) and found.best == RECIPE.text and found.climbed == SLOW
    assert found.heat.texts == (SLOW, OTHER, RECIPE.text), "no text twice"


def test_as_many_matrices_are_drawn_by_the_seed() -> None:
    held = {f"{at:02d}": at for at in range(20)}
    assert drawn(held, 5, 1) == drawn(held, 5, 1) != drawn(held, 5, 2)
    assert len(drawn(held, 5, 1)) == 5 and drawn(held, 0, 1) == held


def call(*words: str | Path) -> str:
    """One of the commands, as the command line calls it."""
    app = typer.Typer()
    for each in (commands.climb, commands.beyond, commands.curves):
        app.command()(each)
    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_climb_and_beyond_go_from_rollouts_to_a_page_and_do_nothing_twice(tmp_path: Path) -> None:
    run = played(tmp_path / "run")
    small = ("--device", "sim", "--workers", "1", "--first", "3")
    climb = ("climb", "--out", tmp_path / "climb", "--like", run, *small)
    call(*climb)
    climbs = {key: each.tries for key, each in from_climbs(tmp_path / "climb").items()}
    assert climbs == {prompt_key(case(0)): 3, prompt_key(case(1)): 2}, "as many tries as the run had"
    RolloutStore(run / "rollouts").add(2, [rollout(case(2), 0, NEW, 1.0)])  # the run goes on, with another matrix
    steps = read_jsonl(tmp_path / "climb" / STEPS)
    assert len(steps) == 5 and {each["try"] for each in steps} == {0, 1, 2}
    out = tmp_path / "beyond"
    beyond = ("beyond", "--out", out, "--rollouts", run, "--climb", tmp_path / "climb", "--ahead", "0.01", *small)
    said = call(*beyond)
    heats, races = read_jsonl(out / HEATS), read_jsonl(out / FINALS)
    assert len(heats) == 2 and len(races) == 3 and not any("fault" in each for each in [*heats, *races])
    assert {each["source"] for each in heats} == {"modelled"}
    found = json.loads((out / "beyond.json").read_text())
    assert found["all"]["matrices"] == found["climb"]["matrices"] == 2
    assert found["all"]["with_new"] == found["all"]["in_final"] == 1, "a recipe is not new"
    assert "of 2 matrices" in said and "```diff" in (out / "beyond.md").read_text()
    before = {path: path.read_bytes() for path in (tmp_path / "climb" / CLIMBS, out / HEATS, out / FINALS)}
    call(*climb)
    call(*beyond)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert {each["pair"] for each in read_jsonl(tmp_path / "climb" / WANTED)} == {*climbs}
    page = (out / "beyond.md").read_text()
    assert {path.name for path in archive.pack(out)} == {f"{n}.jsonl.zst" for n in ("heats", "finals", "recipes")}
    assert not list(out.glob("*.jsonl")) and archive.pack(out) == []
    call(*beyond)  # nothing is raced again
    call("beyond", "--out", out, "--report-only")
    assert not list(out.glob("*.jsonl")) and (out / "beyond.md").read_text() == page


def test_batches_are_of_one_problem_and_every_problem_has_one_before_any_has_two() -> None:
    problems = {**{f"a{at}": "spmm" for at in range(5)}, **{f"b{at}": "spmv" for at in range(2)}}
    assert batches_of(problems, 2) == [["a0", "a1"], ["b0", "b1"], ["a2", "a3"], ["a4"]]
    assert batches_of({}, 2) == []


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "about.json").write_text(json.dumps({"device": "cuda"}))
    with pytest.raises(StoreError, match="another 'device'"):
        call("beyond", "--out", tmp_path, "--rollouts", played(tmp_path / "run"), "--device", "sim")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("climb", "--device", "sim"), "--tries, or --like"),
        (("climb", "--device", "tpu", "--tries", "2"), "must be cuda or sim. Got 'tpu'"),
        (("beyond",), "either --rollouts, an RL run, or --evaluation"),
        (("beyond", "--rounds", "3"), "at least 7. Got 3"),
        (("beyond", "--report-only"), "has no heats.jsonl"),
    ],
)
def test_bad_input_is_named(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(SparseRLError, match=said):
        call(*words, "--out", tmp_path)
