"""Collection on the simulator: records, resuming, faults, what is never measured, and reading it back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparserl import splits
from sparserl.backends.sim import SimBackend
from sparserl.bench import archive
from sparserl.bench.explore import Explorer
from sparserl.bench.machine import Machine
from sparserl.bench.packing import PackPool
from sparserl.errors import BackendError, SparseRLError, StoreError
from sparserl.families import Spec
from sparserl.judge.evaluate import Judge
from sparserl.recipes import candidates, space
from sparserl.records import Problem, Verdict
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train import collected, withheld
from sparserl.train.cases import TrainingCase
from sparserl.train.collect import Plan, Setup, collect
from sparserl.train.commands_collect import counted, problem_of, share_of
from sparserl.train.entries import settled
from sparserl.train.shortlist import Ahead, Numbers, Task, shortlist

SPMV = Problem()
FEW = Plan(numbers=Numbers(cheapest=2, of_family=0, at_random=1), retimed=2, parents=1, random_parents=0, variants=6)
FIRST = splits.seed_range("train").start
TINY = [
    TrainingCase("uniform-tiny", Spec("uniform", FIRST + 1, {"rows": 60, "columns": 50, "per_row": 4.0})),
    TrainingCase("banded-tiny", Spec("banded", FIRST + 2, {"rows": 64, "diagonals": 3, "reach": 5})),
    TrainingCase("powerlaw-tiny", Spec("powerlaw", FIRST + 3, {"rows": 50, "columns": 50, "per_row": 5.0})),
]


@dataclass(frozen=True)
class Changed:
    text: str
    parents: tuple[str, ...] = ()
    mutations: tuple[str, ...] = ("changed",)


@dataclass
class Maker:
    """Variants of every fate: right, equal machine code, wrong, out of bounds, unreadable, withheld."""

    asked: list[str] = field(default_factory=list)

    def __call__(self, text: str, problem: Problem, rng: random.Random, count: int) -> Sequence[Changed]:
        self.asked.append(text)
        head, _, body = text.rpartition("}")
        rest = next(recipe.text for recipe in space(problem) if withheld.withheld_recipe(recipe))
        return [
            Changed(head + "    // the same machine code\n}" + body),
            Changed(head + "    if (blockIdx.x == 0 && threadIdx.x == 0) y[0] = to_value(acc_t(7.5));\n}" + body,
                    mutations=("wrong",)),
            Changed(head + "    y[1 << 20] = to_value(acc_t(0));\n}" + body, mutations=("outside",)),
            Changed(head + "    if (blockIdx.x > 1 << 29) y[0] = to_value(acc_t(1));\n}" + body, mutations=("idle",)),
            Changed("not a program", mutations=("unreadable",)),
            Changed(rest, mutations=("withheld",)),
        ]  # fmt: skip


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    backend = SimBackend(nvrtc=False)
    yield Machine(backend)
    backend.close()


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge("sim", compile_workers=1) as judge:
        yield judge


def setup(machine: Machine, out: Path, **others: object) -> Setup:
    given: dict[str, object] = {"plan": replace(FEW, variants=0), **others}
    return Setup(machine, lambda: PackPool(1, "", 132), SPMV, out, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def judged(machine: Machine, judge: Judge, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Maker]:
    """A collection of one matrix with variants."""
    out, maker = tmp_path_factory.mktemp("judged"), Maker()
    list(collect(TINY[:1], setup(machine, out, judge=judge, make_variants=maker, plan=FEW)))
    return out, maker


def test_variants_are_judged_and_every_fate_is_a_record(judged: tuple[Path, Maker]) -> None:
    rows = {row["name"]: row for row in read_jsonl(judged[0] / "measured.jsonl") if row["origin"] == "variant"}
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == {"wrong": "WRONG", "outside": "FAILED", "idle": "CORRECT", "unreadable": "UNREADABLE"}
    assert rows["outside"]["reason"]
    assert rows["idle"]["solver_us"] > 0
    assert rows["wrong"]["solver_us"] is None


def test_a_variant_of_equal_machine_code_is_not_measured_again(judged: tuple[Path, Maker]) -> None:
    texts = [row["text"] for row in read_jsonl(judged[0] / "programs.jsonl")]
    assert not any("the same machine code" in text for text in texts)


def test_withheld_combinations_are_never_measured(judged: tuple[Path, Maker]) -> None:
    for row in read_jsonl(judged[0] / "programs.jsonl"):
        assert not withheld.withheld_text(row["text"])


def test_records_have_all_that_training_needs(judged: tuple[Path, Maker]) -> None:
    out = judged[0]
    texts = {row["program"]: row for row in read_jsonl(out / "programs.jsonl")}
    for row in read_jsonl(out / "measured.jsonl"):
        assert row["program"] in texts
        assert row["problem"] == "spmv float32"
        assert row["baseline_solver_us"] > 0 and row["baseline_chain_us"] > 0
        if row["origin"] == "recipe":
            assert row["solver_us"] > row["floor_solver_us"] > 0 and texts[row["program"]]["binary"]
        else:
            assert texts[row["program"]]["parents"]
    assert any(row["retimed"] for row in read_jsonl(out / "measured.jsonl"))
    (line,) = read_jsonl(out / "cases.jsonl")
    assert line["source"] == TINY[0].source and line["split"] == "train"
    assert "rows index=int32" in line["admitted"]
    assert {"recipes", "baseline", "judge"} <= line["phases_s"].keys()
    assert 0 < sum(line["phases_s"].values()) <= line["seconds"] + 0.02
    assert {"pack", "compile", "verify"} <= line["parts_s"].keys()


def test_the_shortlist_never_holds_a_withheld_recipe_and_has_every_allowed_family() -> None:
    pattern = TINY[0].load()
    ranked = candidates(pattern, SPMV)
    assert any(map(withheld.withheld_recipe, ranked))
    chosen = shortlist(ranked, Numbers(), random.Random(0))
    assert not any(map(withheld.withheld_recipe, chosen))
    assert {r.family for r in chosen} == {r.family for r in ranked if not withheld.withheld_recipe(r)}
    assert len({r.text for r in chosen}) == len(chosen) >= 56
    assert chosen == shortlist(ranked, Numbers(), random.Random(0))


KILLED = """
import os, shutil, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_collect as t
from sparserl.backends.sim import SimBackend
from sparserl.train import collect as c
machine = t.Machine(SimBackend(nvrtc=False))
kept = c.Written.add
def add(self, line, entries, baseline):
    if line["case"] == t.TINY[1].name:  # the case is measured, half of its records are written
        c_records = [self._record(line["case"], e, baseline) for e in entries[:1]]
        t.append_jsonl(self._out / "measured.jsonl", *c_records)
        with (self._out / "measured.jsonl").open("ab") as file:
            file.write(b'{{"torn": ')
        shutil.rmtree(pools[0]._folder)  # a killed process can't; the test leaves nothing behind
        os._exit(9)
    kept(self, line, entries, baseline)
c.Written.add = add
pools = []
def opened():
    pools.append(t.PackPool(1, "", 132))
    return pools[-1]
given = t.setup(machine, Path({out!r}))
given.open_pool = opened
list(c.collect(t.TINY, given))
"""


def test_a_killed_run_goes_on_to_the_same_set_of_cases(machine: Machine, tmp_path: Path) -> None:
    code = KILLED.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    with (tmp_path / "said").open("wb") as said:
        dies = subprocess.Popen([sys.executable, "-c", code], stderr=said, start_new_session=True)
        try:
            assert dies.wait(100) == 9, (tmp_path / "said").read_text()
        finally:
            os.killpg(dies.pid, signal.SIGKILL)  # the packing process it leaves behind
    assert [line["case"] for line in read_jsonl(tmp_path / "cases.jsonl")] == [TINY[0].name]
    shown = list(collect(TINY, setup(machine, tmp_path)))
    assert len(shown) == 2
    assert Counter(line["case"] for line in read_jsonl(tmp_path / "cases.jsonl")) == Counter(c.name for c in TINY)
    collection = collected.load(tmp_path)
    assert {len(case.programs) for case in collection.cases} == {3}
    assert len(read_jsonl(tmp_path / "programs.jsonl")) == len(collection.texts)
    assert list(collect(TINY, setup(machine, tmp_path))) == []


def test_a_case_that_raises_is_a_record_with_the_reason(machine: Machine, tmp_path: Path) -> None:
    withheld_one = TrainingCase("road-sneaked-in", Spec("road", FIRST + 4, {"nx": 9, "ny": 9, "kept": 0.6}))
    broken = TrainingCase("no-such-parameter", Spec("banded", FIRST + 5, {"sides": 3}))
    missing = TrainingCase("slam_cubicle", real="slam_cubicle")
    list(collect([withheld_one, broken, missing, TINY[1]], setup(machine, tmp_path)))
    collection = collected.load(tmp_path)
    assert [case.name for case in collection.cases] == [TINY[1].name]
    faults = {case: reason for (case, _), reason in collection.faults.items()}
    assert "may not train" in faults["road-sneaked-in"]
    assert "banded" in faults["no-such-parameter"]
    assert "name the folder" in faults["slam_cubicle"]
    shown = list(collect([broken, TINY[1]], setup(machine, tmp_path)))
    assert len(shown) == 1 and shown[0].startswith(broken.name)  # tried once more; the measured one is not


def test_a_run_in_which_every_case_fails_gives_up(machine: Machine, tmp_path: Path) -> None:
    broken = [TrainingCase(f"broken-{k}", Spec("banded", FIRST + k, {"sides": 3})) for k in range(9)]
    with pytest.raises(BackendError, match="5 cases in a row"):
        list(collect(broken, setup(machine, tmp_path)))
    assert len(read_jsonl(tmp_path / "cases.jsonl")) == 5


def test_dev_matrices_are_marked_as_such_and_made_again_from_their_source() -> None:
    from sparserl.train.cases import dev_cases, from_source

    cases = dev_cases(real=True)
    assert {case.name for case in cases} == {case.name for case in splits.cases("dev")}
    assert all(case.split == "dev" and from_source(case.name, case.source) == case for case in cases)
    small = next(case for case in splits.cases("dev") if case.kind == "generated" and case.nonzeros < 60_000)
    assert from_source(small.name, {"dev": small.name}).load().fingerprint()[:16] == small.fingerprint


def test_an_evaluation_matrix_under_another_name_is_not_measured(machine: Machine, tmp_path: Path) -> None:
    params = {"nx": 103, "ny": 97, "points": 5}  # small_stencil2d_5: the family takes no chances, so any seed gives it
    list(collect([TrainingCase("twin", Spec("stencil2d", FIRST + 6, params))], setup(machine, tmp_path)))
    assert "small_stencil2d_5" in collected.load(tmp_path).faults["twin", "spmv float32"]
    assert not read_jsonl(tmp_path / "measured.jsonl")


class Sick(Machine):
    """A machine that fails at the first timing and does nothing right from then on."""

    def time(self, executables: object, plan: object) -> list[list[float]]:
        raise RuntimeError("an illegal address was met")

    def well(self) -> bool:
        return False


def test_a_machine_that_stopped_working_ends_the_run_and_costs_one_case(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="fresh process"):
        list(collect(TINY, setup(Sick(machine.inner), tmp_path)))
    assert [line["case"] for line in read_jsonl(tmp_path / "cases.jsonl")] == [TINY[0].name]
    assert "illegal address" in read_jsonl(tmp_path / "cases.jsonl")[0]["fault"]
    assert len(list(collect(TINY[:2], setup(machine, tmp_path)))) == 1  # the one that broke it is not tried again


def test_times_of_two_machines_never_share_a_folder(machine: Machine, tmp_path: Path) -> None:
    append_jsonl(tmp_path / "cases.jsonl", {"case": "x", "problem": "spmv float32", "device": "another machine"})
    with pytest.raises(StoreError, match="another machine"):
        list(collect(TINY, setup(machine, tmp_path)))


def test_a_budget_that_is_spent_leaves_the_rest_for_the_next_call(machine: Machine, tmp_path: Path) -> None:
    assert list(collect(TINY, setup(machine, tmp_path), budget_s=-1.0)) == ["the time is up; call again to go on"]
    assert not (tmp_path / "cases.jsonl").exists()


def test_cases_prepared_ahead_come_in_order_with_their_exceptions() -> None:
    broken = TrainingCase("broken", Spec("banded", FIRST + 5, {"sides": 3}))
    tasks = [Task(case, SPMV, 132, None, FEW.numbers) for case in (TINY[0], broken, TINY[1])]
    ahead, alone = Ahead(1), Ahead(0)
    try:
        first = [(task.case.name, getattr(ready, "chosen", None)) for task, ready in ahead.each(tasks)]
        assert first == [(task.case.name, getattr(ready, "chosen", None)) for task, ready in alone.each(tasks)]
    finally:
        ahead.close()
    assert [chosen is None for _, chosen in first] == [False, True, False]


def written(out: Path, times: dict[str, tuple[float | None, bool, str]]) -> None:
    """A collection of one case with these (solver time, retimed, verdict) by program."""
    for name, (us, retimed, verdict) in times.items():
        append_jsonl(out / "programs.jsonl", {"program": name, "text": f"// layout: x\n{name}", "parents": [],
                                              "mutations": [], "binary": "b"})  # fmt: skip
        append_jsonl(out / "measured.jsonl", {
            "case": "c", "problem": "p", "program": name, "origin": "recipe", "family": "f", "name": name,
            "verdict": verdict, "solver_us": us, "chain_us": None, "retimed": retimed,
            "baseline_solver_us": 20.0, "baseline_chain_us": None})  # fmt: skip
    append_jsonl(out / "cases.jsonl", {"case": "c", "problem": "p", "split": "train", "source": {}, "rows": 1,
                                       "columns": 1, "nonzeros": 1, "admitted": [], "device": "d"})  # fmt: skip


def test_speed_is_relative_to_the_best_that_was_timed_longer_and_near_ties_are_ties(tmp_path: Path) -> None:
    written(tmp_path, {"best": (10.0, True, "CORRECT"), "tie": (10.15, True, "CORRECT"),
                       "lucky": (9.0, False, "CORRECT"), "slow": (20.0, False, "CORRECT"),
                       "wrong": (1.0, True, "WRONG"), "unmeasured": (None, False, "FAILED")})  # fmt: skip
    (case,) = collected.load(tmp_path).cases
    by_name = {each.program: each for each in case.programs}
    assert case.best_us == {"solver": 10.0} and case.baseline_us == {"solver": 20.0}
    assert {name: by_name[name].speed.get("solver") for name in by_name} == {
        "best": 1.0, "tie": 1.0, "lucky": 1.0, "slow": 0.5, "wrong": None, "unmeasured": None}  # fmt: skip
    assert by_name["best"].over_baseline == {"solver": 2.0}
    assert by_name["slow"].over_baseline == {"solver": 1.0}
    assert by_name["wrong"].verdict is Verdict.WRONG
    assert {each.program for each in case.correct} == {"best", "tie", "lucky", "slow"}


def test_texts_with_one_header_and_machine_code_count_as_the_same(tmp_path: Path) -> None:
    written(tmp_path, {"one": (1.0, True, "CORRECT"), "two": (1.0, True, "CORRECT")})
    texts = collected.load(tmp_path).texts
    assert texts["one"].same == texts["two"].same
    assert replace(texts["one"], binary=None).same != texts["two"].same


def test_records_that_were_put_away_read_like_plain_ones_and_are_not_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    written(tmp_path, {"one": (1.0, True, "CORRECT"), "two": (2.0, True, "CORRECT")})
    plain = collected.load(tmp_path)
    (line,) = read_jsonl(tmp_path / "cases.jsonl")
    archive.pack(tmp_path)
    assert not list(tmp_path.glob("*.jsonl"))
    assert collected.load(tmp_path) == plain
    assert settled(archive.read(tmp_path, "cases"), line["problem"]) == {line["case"]}
    (tmp_path / "programs.jsonl.zst").write_bytes(b"not zstandard")
    with pytest.raises(StoreError, match="Restore the file"):
        collected.load(tmp_path)


def test_records_of_an_evaluation_are_not_taken_for_a_collection(tmp_path: Path) -> None:
    append_jsonl(tmp_path / "measured.jsonl", {"case": "a", "programs": {}}, {"case": "a", "programs": {"x": 1}})
    before = (tmp_path / "measured.jsonl").read_bytes()
    with pytest.raises(StoreError, match="no records"):
        archive.pack(tmp_path)
    assert (tmp_path / "measured.jsonl").read_bytes() == before


def test_a_folder_without_a_collection_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="sparserl train collect"):
        collected.load(tmp_path)


def test_problems_and_shares_are_read_as_they_are_written() -> None:
    assert problem_of("spmv f64") == Problem(dtype="float64")
    assert problem_of("spmm-f32-128") == Problem("spmm", "float32", 128)
    assert share_of("2/3") == (2, 3)
    for wrong in ("spmv", "spmm f32", "spmv f32 64"):
        with pytest.raises(SparseRLError, match="--problem"):
            problem_of(wrong)
    with pytest.raises(SparseRLError, match="--share"):
        share_of("3/3")
    assert counted("spmv f64:300", 800) == (Problem(dtype="float64"), 300) and counted("spmv f32", 800)[1] == 800
    with pytest.raises(SparseRLError, match="number after ':'"):
        counted("spmv f32:many", 800)


def test_the_command_collects_on_the_simulator(tmp_path: Path) -> None:
    import typer

    from sparserl.train import commands_collect

    app = typer.Typer()
    app.command()(commands_collect.collect)
    words = "--problem spmv-f32 --cases 2 --share 1/2 --device sim --variants 0 --workers 1 --ahead 0 --cheapest 1"
    words += f" --at-random 1 --of-family 0 --most-nonzeros 400 --out {tmp_path}"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    (case,) = collected.load(tmp_path).cases
    assert case.source["seed"] in splits.seed_range("train") and case.nonzeros < 2000
    (line,) = read_jsonl(tmp_path / "cases.jsonl")
    assert line["device"] == SimBackend(nvrtc=False).device().name
    again = CliRunner().invoke(app, words.replace("--device sim", "--device cuda").split())
    assert again.exit_code == 0 and "are there" in again.output, "where nothing is left, no GPU is needed"
    more = CliRunner().invoke(app, [*words.split(), "--problem", "spmv f64:4"])
    assert more.exit_code == 0 and "are there" in more.output
    assert Counter(case.problem for case in collected.load(tmp_path).cases) == {"spmv float32": 1, "spmv float64": 2}
    late = CliRunner().invoke(app, [*words.split(), "--problem", "spmv f64:8", "--budget", "0"])
    assert late.exit_code == 0 and "time is up" in late.output


def test_a_matrix_with_a_time_that_can_not_be_is_left_out_and_tried_again(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Explorer, "floor_us", lambda self, mode, least_bytes: 1e9)
        list(collect(TINY[1:2], setup(machine, tmp_path)))
    (line,) = read_jsonl(tmp_path / "cases.jsonl")
    assert "less than its floor" in line["fault"] and not collected.load(tmp_path).cases
    list(collect(TINY[1:2], setup(machine, tmp_path)))
    assert [case.name for case in collected.load(tmp_path).cases] == [TINY[1].name]


def test_a_variant_s_time_that_can_not_be_leaves_the_whole_matrix_out(
    machine: Machine, judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, floor_us = Maker(), Explorer.floor_us
    monkeypatch.setattr(Explorer, "floor_us", lambda *given: 1e9 if maker.asked else floor_us(*given))
    list(collect(TINY[:1], setup(machine, tmp_path, judge=judge, make_variants=maker, plan=FEW)))
    assert "less than its floor" in read_jsonl(tmp_path / "cases.jsonl")[0]["fault"]
