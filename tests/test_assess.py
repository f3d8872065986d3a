"""An assessment from samples to page, on the simulator: what is counted, and that it goes on where it stopped."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparserl import families
from sparserl.bench import archive
from sparserl.errors import StoreError
from sparserl.evaluation import Case
from sparserl.judge.evaluate import Judge
from sparserl.recipes import space
from sparserl.records import Problem, Verdict
from sparserl.store import read_jsonl
from sparserl.train import assess, assess_page, assess_report, rules
from sparserl.train.assess import AssessConfig, Loaded, Run, Sample
from sparserl.train.assess_bars import bars, by_class, gap_closed
from sparserl.train.rules import PartSum

SAMPLES = 4
PROBLEM = Problem()
ROWS = next(r.text for r in space(PROBLEM) if r.family == "row_lanes" and r.setting("lanes") == 8 and not r.pdl)
SLICES = next(r.text for r in space(PROBLEM) if r.family == "slice_rows" and r.layout.number("c") == 32)
WRONG = ROWS.replace("sum +=", "sum -=")
NEW = ROWS.replace("acc_t sum = 0;", "acc_t sum = 1;\n    sum -= 1;")


def case_of(name: str, family: str, **params: int) -> Case:
    pattern = families.make(family, 3, **params)
    return Case(name, "regular", "generated", family, pattern.rows, pattern.columns, pattern.nonzeros,
                pattern.fingerprint()[:16], family=family, seed=3, params=params)  # fmt: skip


CASES = [case_of("one", "stencil2d", nx=12, ny=10, points=5), case_of("two", "stencil2d", nx=20, ny=15, points=9)]


class Fake:
    """Writes given texts, and counts how often it is asked."""

    def __init__(self, name: str, texts: Sequence[str], parts: dict[str, PartSum] | None = None) -> None:
        self.name, self.batch, self.asked = name, 1, 0
        self._texts, self._parts = texts, parts or {}

    def write(self, matrices: Sequence[Loaded]) -> list[list[Sample]]:
        self.asked += len(matrices)
        return [[Sample(text, parts=self._parts) for text in self._texts] for _ in matrices]


def writers() -> list[Fake]:
    drawn = {"layout": PartSum(4, -2.0, -2.0), "code": PartSum(100, -10.0, -12.5)}
    return [
        Fake("nano", [SLICES, SLICES, NEW, WRONG], drawn),
        Fake("blind", ["no program", WRONG, WRONG, ROWS], drawn),
        Fake("single", [ROWS] * SAMPLES),
    ]


def new_run(out: Path) -> Run:
    run = Run(out, AssessConfig("dev", PROBLEM, samples=SAMPLES, finalists=1))
    run.claim()
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is stopped after its first matrix and called again."""
    out = tmp_path_factory.mktemp("assess")
    run = new_run(out)
    for writer in writers():
        list(assess.write(run, CASES, writer))
    with Judge("sim") as judge:
        going = assess.measure(run, CASES, judge)
        next(going)
        going.close()
    assert [record["case"] for record in read_jsonl(out / assess.MEASURED)] == ["one"]
    with (out / assess.MEASURED).open("a") as file:
        file.write('{"case": "two", "torn')  # as a killed process leaves it
    again = writers()
    run = new_run(out)
    for writer in again:
        list(assess.write(run, CASES, writer))
    assert [writer.asked for writer in again] == [0, 0, 0]
    with Judge("sim") as judge:
        assert len(list(assess.measure(run, CASES, judge))) == 1
        assert list(assess.measure(run, CASES, judge)) == []
    return out


def test_a_text_is_judged_once_a_matrix_whoever_wrote_it_how_often(folder: Path) -> None:
    records = read_jsonl(folder / assess.MEASURED)
    assert [record["case"] for record in records] == ["one", "two"]
    for record in records:
        assert len(record["programs"]) == len({SLICES, NEW, WRONG, ROWS, "no program"})
    assert len(read_jsonl(folder / assess.PROGRAMS)) == 5


def test_duplicates_count_as_often_as_they_were_written_and_failures_count_a_quarter(folder: Path) -> None:
    found = assess_report.report(folder)
    nano = found.figures["nano"]
    for sheet in nano.sheets:
        assert sheet.verdicts == (Verdict.CORRECT, Verdict.CORRECT, Verdict.CORRECT, Verdict.WRONG)
        speeds = sheet.speeds["solver"]
        assert speeds[0] == speeds[1] != speeds[2]
        assert speeds[3] == rules.FAILURE
    assert nano.correct[1].value == pytest.approx(0.75)
    assert nano.compiles[1].value == 1.0
    assert found.figures["blind"].compiles[1].value == pytest.approx(0.75)
    assert found.figures["blind"].verdicts == {"UNREADABLE": 2, "WRONG": 4, "CORRECT": 2}
    single = found.figures["single"]
    assert single.at["chain"][1].value == pytest.approx(single.at["chain"][4].value)


def test_speeds_are_over_the_baseline_of_the_same_session(folder: Path) -> None:
    record = read_jsonl(folder / assess.MEASURED)[0]
    program, held = next((name, each) for name, each in record["programs"].items() if "raced_us" in each)
    baseline = record["races"][held["race"]]["plain:csr"]["solver"]
    speeds = assess_report.session_speeds(record)
    assert speeds[program]["solver"] == pytest.approx(baseline / held["raced_us"]["solver"])


def test_a_program_that_was_not_raced_never_counts_as_faster_than_those_that_were() -> None:
    right = {"verdict": "CORRECT", "judged_us": {"solver": 5.0, "chain": 5.0}}
    record = {
        "races": [{"a": {"solver": 12.0, "chain": 12.0}, "b": {"solver": 10.0, "chain": 20.0}}],
        "programs": {
            "raced": {**right, "raced_us": {"solver": 8.0, "chain": 6.0}, "race": 0},
            "lucky": {**right, "judged_us": {"solver": 2.0, "chain": 24.0}},
            "wrong": {"verdict": "WRONG", "judged_us": {}},
        },
    }
    assert assess_report.session_speeds(record) == {
        "raced": {"solver": pytest.approx(1.25), "chain": pytest.approx(2.0)},
        "lucky": {"solver": pytest.approx(1.25), "chain": pytest.approx(0.5)},
    }


def test_what_was_written_is_told_apart_from_recipes(folder: Path) -> None:
    written = assess_report.report(folder).figures["nano"].written
    assert written.samples == 8
    assert written.distinct == 3
    assert written.recipe_share == pytest.approx(0.5)
    assert (written.skeletons, written.new_skeletons) == (2, 1)
    assert written.new_share == pytest.approx(1 / 3)
    assert written.skeletons_each.value == 2
    assert written.parts["code"].entropy == pytest.approx(0.125)


def test_bars_compare_with_the_controls_that_are_there(folder: Path) -> None:
    found = assess_report.report(folder)
    held = {bar.title: bar for bar in bars(found)}
    versus = found.versus("nano", "single", "solver", 1)
    assert versus is not None
    assert held["nano: @1 over single"].value == pytest.approx(versus.value)
    assert held["nano: correct@1"].verdict == "MISS"
    assert held["nano: best of all samples over trees"].verdict == "OPEN"
    assert not any(title.startswith("blind:") for title in held)


def test_what_learnt_is_held_against_what_it_began_with(folder: Path) -> None:
    found = assess_report.report(folder)
    names = {"nano": "rl", "blind": "sft", "single": "trees"}
    goal = found.figures["single"].logs("solver", 0)
    found = replace(
        found,
        figures={names[each]: it for each, it in found.figures.items()},
        reference={"solver": {matrix: value + 1 for matrix, value in goal.items()}},
    )
    held = {bar.title: bar for bar in bars(found)}
    ours, theirs = (found.figures[name].logs("solver", 1) for name in ("rl", "sft"))
    assert held["rl: share of sft's gap to the reference search closed, @1"].value == pytest.approx(
        gap_closed(ours, theirs, found.reference["solver"])
    )
    versus = found.versus("rl", "sft", "solver", 1)
    assert versus is not None and held["rl: @1 over sft, lower bound"].value == pytest.approx(versus.low)
    assert held["rl: correct@1"].bar == 0.97 and held["sft: correct@1"].bar == 0.93
    assert (held["rl: skeletons of right samples, a matrix"].value, by_class(found).keys()) == (2, {"regular"})
    lowest = found.versus("rl", "sft", "solver", 0)
    assert lowest is not None
    assert held["rl: best of all samples over sft, lowest class (regular)"].value == pytest.approx(lowest.value)
    assert held["rl: best of all samples over trees"].verdict != "OPEN"
    alone = replace(found, figures={"rl": found.figures["rl"]})
    assert {bar.title: bar for bar in bars(alone)}["rl: correct@1"].bar == 0.93


def test_a_gap_is_closed_by_the_share_of_the_way() -> None:
    theirs, goal = {"one": 0.0, "two": 0.1}, {"one": 0.4, "two": 0.5, "three": 9.0}
    assert gap_closed({"one": 0.3, "two": 0.2, "three": 9.0}, theirs, goal) == pytest.approx(0.5)
    assert gap_closed(goal, theirs, theirs) is None
    assert gap_closed({}, theirs, goal) is None


@pytest.mark.parametrize("name", ["features", "learnt"])
def test_no_bar_is_a_controls_own(folder: Path, name: str) -> None:
    found = assess_report.report(folder)
    renamed = replace(found, figures={name if each == "nano" else each: it for each, it in found.figures.items()})
    assert bars(found) and not bars(renamed)


def test_a_reference_that_was_raced_here_is_what_the_share_is_of(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    run = new_run(tmp_path)
    list(assess.write(run, CASES, Fake("reference", [SLICES])))
    with Judge("sim") as judge:
        assert list(assess.measure(run, CASES, judge)) == []  # all of its texts are measured already
    found = assess_report.report(tmp_path)
    share = found.share("nano", "solver")
    assert share is not None
    assert share.value >= 1.0
    assert found.raced_reference


class Reader(HTMLParser):
    """Follows every tag and keeps the attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_the_figures_and_nothing_from_outside(folder: Path) -> None:
    found = assess_report.report(folder)
    text = assess_page.write(folder, found, datetime.date(2026, 1, 1)).read_text()
    nano = found.figures["nano"]
    for mode in ("solver", "chain"):
        for at in nano.at[mode].values():
            assert f"<b>{at.value:.3f}</b>" in text
    assert "75.0 %" in text
    assert "modelled by the simulator" in text
    assert "0.125" in text  # the entropy of the code
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert not [value for name, value in reader.attributes if name in ("href", "src")]
    assert not re.search(r"https?://|@import|url\(|<script|<link", text)
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["policies"]["nano"]["at"]["solver"]["1"]["value"] == pytest.approx(nano.at["solver"][1].value)


def test_records_that_are_put_away_give_the_same_figures_and_take_more_behind_them(
    folder: Path, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    shutil.copytree(folder, away)
    written = archive.pack(away)
    assert {path.name for path in written} >= {"measured.jsonl.zst", "programs.jsonl.zst", "written-nano.jsonl.zst"}
    assert not list(away.glob("*.jsonl")) and archive.pack(away) == []
    assert assess_report.report(away).figures == assess_report.report(folder).figures
    with (away / "measured.jsonl").open("w") as more:
        more.write(json.dumps({"case": "later"}) + "\n")
    assert [record["case"] for record in archive.read_whole(away / "measured.jsonl")][-1] == "later"
    with pytest.raises(StoreError, match="eval"):
        archive.pack(tmp_path)


def test_a_folder_of_another_split_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="split 'dev', not 'real'"):
        Run(folder, AssessConfig("real", PROBLEM, samples=SAMPLES)).claim()


def test_records_of_another_machine_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / assess.MEASURED
    path.write_text(path.read_text().replace('"device":"', '"device":"other '))
    run = new_run(tmp_path)
    with Judge("sim") as judge, pytest.raises(StoreError, match="choose another --out"):
        list(assess.measure(run, CASES, judge))


def test_a_folder_without_measurements_says_what_to_do(tmp_path: Path) -> None:
    new_run(tmp_path)
    with pytest.raises(StoreError, match="run `sparserl eval` again"):
        assess_report.report(tmp_path)


def test_what_was_written_under_withheld_headers_is_judged_and_not_raced() -> None:
    from sparserl.train.assess import PROMPTED, _finalists

    found = {name: {"judged_us": dict.fromkeys(("solver", "chain"), us)} for name, us in (("a", 2.0), ("b", 1.0))}
    assert _finalists(found, {"p": ["a"], "p" + PROMPTED: ["b"]}, 3) == ["a"]
    assert _finalists(found, {"p": ["a", "b"], "p" + PROMPTED: ["b"]}, 3) == ["b", "a"]
