"""The reference search: packing in other processes, brief times on the simulator, finalists, resuming."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layout_shapes import SHAPES
from sparserl import layouts, program
from sparserl.assemble import assemble
from sparserl.backends.backend import Binary
from sparserl.backends.sim import SimBackend
from sparserl.bench import archive, reference
from sparserl.bench.explore import Effort, Explorer, Measured
from sparserl.bench.packing import PackPool
from sparserl.errors import BackendError, MatrixError, StoreError
from sparserl.evaluation import evaluation_list
from sparserl.judge.evaluate import Judge
from sparserl.recipes import Recipe, candidates
from sparserl.records import LayoutLine, Problem
from sparserl.search import choose
from sparserl.store import append_jsonl, read_jsonl

SPMV = Problem()
TINY = next(case for case in evaluation_list() if case.name == "small_uniform_tiny")
PLAN = reference.Plan(first=6, second=4, finalists=2, plain_finalists=1, full=False)


@pytest.fixture(scope="module")
def pool() -> Iterator[PackPool]:
    with PackPool(1, "", 132) as pool:
        yield pool


@pytest.fixture(scope="module")
def backend() -> Iterator[SimBackend]:
    backend = SimBackend(nvrtc=False)
    yield backend
    backend.close()


def chosen_from(shape: str, count: int, problem: Problem = SPMV) -> list[Recipe]:
    return choose(candidates(SHAPES[shape](), problem), count)


def plainest(shape: str) -> Recipe:
    """A plain CSR recipe: its text is easily spoiled."""
    found = candidates(SHAPES[shape](), SPMV)
    return next(r for r in found if r.family == "row_lanes" and r.params["early"] == 0 and not r.pdl)


def spoiled(recipe: Recipe, good: str, bad: str) -> Recipe:
    assert good in recipe.text
    return replace(recipe, text=recipe.text.replace(good, bad))


# ---- packing


def test_the_pool_hands_back_what_packing_and_assembling_here_would_make(pool):
    pattern, found = SHAPES["power law"](), chosen_from("power law", 20)
    seen = []
    for ready in pool.prepare(pattern, SPMV, [(r.layout, r.text) for r in found]):
        want = layouts.pack(pattern, ready.packed.layout)
        assert ready.packed.arrays.keys() == want.arrays.keys()
        for name, array in want.arrays.items():
            np.testing.assert_array_equal(ready.packed.arrays[name], array)
            assert ready.packed.arrays[name].dtype == array.dtype
        assert (ready.packed.slot_of is None) == (want.slot_of is None)
        if want.slot_of is not None:
            np.testing.assert_array_equal(ready.packed.slot_of, want.slot_of)
        assert ready.packed.scalars == want.scalars
        for at, job, binary in ready.programs:
            seen.append(at)
            assert binary == ""
            assert job == assemble(program.parse(found[at].text), want, SPMV, 132)
    assert sorted(seen) == list(range(len(found)))


def test_what_goes_wrong_in_a_worker_is_a_value(pool):
    wide = SHAPES["beyond 16 bits"]()
    good = plainest("beyond 16 bits")
    abs16 = LayoutLine("rows", (), "abs16")
    texts = [
        (good.layout, good.text),
        (abs16, good.text.replace("index=int32", "index=abs16")),
        (good.layout, good.text.replace("<<<div_up(rows", "<<<div_up(no_such_size")),
        (good.layout, "no program at all"),
    ]
    by_place = {}
    for ready in pool.prepare(wide, SPMV, texts):
        by_place.update({at: job for at, job, _ in ready.programs})
        by_place.update(dict(ready.refused))
    assert not isinstance(by_place[0], str)
    assert "abs16" in by_place[1]
    assert "no_such_size" in by_place[2]
    assert isinstance(by_place[3], str)


def test_a_pool_with_an_architecture_compiles_and_tells_what_does_not_compile():
    good = plainest("random")
    broken = spoiled(good, "acc_t sum = 0;", "acc_t sum = undeclared;")
    with PackPool(1, "sm_90", 132) as pool:
        (ready,) = pool.prepare(SHAPES["random"](), SPMV, [(r.layout, r.text) for r in (good, broken)])
    made = {at: binary for at, _, binary in ready.programs}
    assert isinstance(made[0], Binary)
    assert made[0].code
    assert "does not compile" in made[1]


def test_a_caller_that_stops_early_leaves_no_files_behind(pool):
    found = chosen_from("random", 12)
    home = pool._folder
    ready = pool.prepare(SHAPES["random"](), SPMV, [(r.layout, r.text) for r in found])
    next(ready)
    ahead = sum(path.is_dir() for path in home.glob("*/*"))
    ready.close()
    assert 1 <= ahead <= 1 + pool._ahead
    assert list(home.iterdir()) == []


# ---- measuring


def test_right_programs_are_timed_in_every_mode(backend, pool):
    found = chosen_from("power law", 6)
    explorer = Explorer(backend, pool, SHAPES["power law"](), SPMV)
    measured = list(explorer.measure(found, Effort(far_behind=1e9)))
    assert {m.recipe.text for m in measured} == {r.text for r in found}
    assert all(m.fault == "" and m.times_us.keys() == {"solver", "chain"} for m in measured)
    assert explorer.best_us["chain"] == min(m.times_us["chain"] for m in measured)


@pytest.mark.parametrize(
    "problem",
    [Problem("spmm", "float16", columns=8), Problem("spmm", "float32", columns=3, b_order="col", c_order="col")],
    ids=str,
)
def test_spmm_programs_are_timed_whatever_the_order(backend, pool, problem):
    explorer = Explorer(backend, pool, SHAPES["wide"](), problem)
    assert [m.fault for m in explorer.measure(chosen_from("wide", 3, problem))] == ["", "", ""]


@pytest.mark.parametrize(
    ("good", "bad", "fault"),
    [
        ("y[row] = sum;", "y[row] = sum * 2;", "off by"),
        ("y[row] = sum;", "y[row] = rows == 0;", "off by"),
        ("y[row] = sum;", "y[row + 1000000] = sum;", "y"),
        ("acc_t sum = 0;", "acc_t sum = undeclared;", "does not compile"),
    ],
)
def test_a_planted_fault_is_reported_and_its_program_not_timed(backend, pool, good, bad, fault):
    honest = plainest("random")
    explorer = Explorer(backend, pool, SHAPES["random"](), SPMV)
    measured = {m.recipe.text: m for m in explorer.measure([spoiled(honest, good, bad), honest])}
    wrong = measured.pop(honest.text.replace(good, bad))
    assert fault in wrong.fault
    assert wrong.times_us == {}
    assert measured[honest.text].fault == ""
    assert measured[honest.text].times_us


def test_a_program_far_behind_the_best_is_not_timed_in_the_second_mode(backend, pool):
    quick = plainest("random")
    loop = "for (int i = 0; i < 4000; ++i) if (vals[i % 64] == 123) sum += 1;"
    slow = spoiled(quick, "acc_t sum = 0;", f"acc_t sum = 0; {loop}")
    explorer = Explorer(backend, pool, SHAPES["random"](), SPMV)
    first, second = explorer.measure([quick, slow], Effort(far_behind=1.2))
    assert first.times_us.keys() == {"solver", "chain"}
    assert second.fault == ""
    assert second.times_us.keys() == {"solver"}


class Disturbed:
    """Runs of a GPU whose host has other things to do, so that its clock says a millisecond more."""

    name = "cuda"

    def __init__(self, inner, first_alone=False):
        self._inner, self.plans, self._first_alone, self._seen = inner, [], first_alone, []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def run(self, executable, *args):
        disturbed = not self._first_alone or all(each is not executable for each in self._seen)
        self._seen.append(executable)
        return replace(self._inner.run(executable, *args), host_us=1000.0 if disturbed else 10.0)

    def time(self, executables, plan):
        self.plans.append(plan)
        return self._inner.time(executables, plan)


def test_a_slow_host_does_not_make_a_program_slow(backend, pool):
    found = chosen_from("random", 6)
    disturbed = Disturbed(backend)
    explorer = Explorer(disturbed, pool, SHAPES["random"](), SPMV)
    measured = list(explorer.measure(found, Effort(far_behind=1e9)))
    assert all(m.times_us.keys() == {"solver", "chain"} for m in measured)
    assert any(plan.repetitions == 1 for plan in disturbed.plans)


def test_a_first_run_that_loads_code_costs_no_turn_of_its_own(backend, pool):
    disturbed = Disturbed(backend, first_alone=True)
    explorer = Explorer(disturbed, pool, SHAPES["random"](), SPMV)
    assert len(list(explorer.measure(chosen_from("random", 6), Effort(far_behind=1e9)))) == 6
    assert all(plan.repetitions != 1 for plan in disturbed.plans)


def test_a_program_beyond_hope_is_timed_once(backend, pool):
    quick = plainest("random")
    loop = "for (int i = 0; i < 4000; ++i) if (vals[i % 64] == 123) sum += 1;"
    slow = spoiled(quick, "acc_t sum = 0;", f"acc_t sum = 0; {loop}")
    disturbed = Disturbed(backend)
    explorer = Explorer(disturbed, pool, SHAPES["random"](), SPMV)
    _, second = explorer.measure([quick, slow], Effort(far_behind=1e9, hopeless=1.2))
    assert second.times_us.keys() == {"solver"}
    assert second.times_us["solver"] > 1.2 * explorer.best_us["solver"]
    assert disturbed.plans[-1].repetitions == 1


class Counting:
    """Notes how many programs are timed together; fails where the one with this text is among them."""

    def __init__(self, inner, failing=None):
        self._inner, self._failing, self.sides, self.broken = inner, failing, [], None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def prepare(self, binary, job, arrays):
        made = self._inner.prepare(binary, job, arrays)
        if self._failing and self._failing in job.source:
            self.broken = made
        return made

    def time(self, executables, plan):
        self.sides.append(len(executables))
        if self.broken is not None and any(each is self.broken for each in executables):
            raise BackendError("the clock stood still")
        return self._inner.time(executables, plan)


def test_the_first_program_is_timed_alone_and_the_others_together(backend, pool):
    found, counting = chosen_from("power law", 12), Counting(backend)
    explorer = Explorer(counting, pool, SHAPES["power law"](), SPMV)
    measured = list(explorer.measure(found, Effort(far_behind=1e9)))
    assert {m.recipe.text for m in measured} == {r.text for r in found}
    assert counting.sides == [1, 1, 11, 11]
    assert all(len(m.code) == 16 and m.registers and m.least_bytes for m in measured)


def test_of_programs_timed_together_only_the_one_that_fails_is_faulty(backend, pool):
    honest = plainest("random")
    failing = spoiled(honest, "acc_t sum = 0;", "acc_t sum = 0 * 1.0f;")
    third = spoiled(honest, "acc_t sum = 0;", "acc_t sum = 0 * 2.0f;")
    explorer = Explorer(Counting(backend, "0 * 1.0f"), pool, SHAPES["random"](), SPMV)
    measured = {m.recipe.text: m for m in explorer.measure([honest, failing, third], Effort(far_behind=1e9))}
    assert [measured[r.text].fault for r in (honest, failing, third)] == ["", "the clock stood still", ""]
    assert [len(measured[r.text].times_us) for r in (honest, failing, third)] == [2, 0, 2]


# ---- finalists


def test_finalists_hold_the_best_of_each_mode_and_some_that_do_not_overlap():
    found = candidates(SHAPES["random"](), SPMV)
    overlapping, plain = [r for r in found if r.pdl][:8], [r for r in found if not r.pdl][:8]
    measured = [Measured(r, {"solver": 1.0 + i, "chain": 9.0 - i}) for i, r in enumerate(overlapping)]
    measured += [Measured(r, {"solver": 20.0 + i, "chain": 20.0 + i}) for i, r in enumerate(plain)]
    measured.append(Measured(plain[-1], {"solver": 0.1}, fault="off by 1"))
    final = reference.finalists(measured, PLAN)
    assert [m.times_us["solver"] for m in final if m.recipe.pdl] == [8.0, 7.0, 1.0, 2.0]
    assert [m.recipe.text for m in final if not m.recipe.pdl] == [plain[0].text]


def test_a_short_list_has_room_for_programs_that_do_not_overlap():
    dear = {True: 1.0, False: 90.0}
    found = [replace(r, cost_us=dear[r.pdl], chain_cost_us=dear[r.pdl]) for r in candidates(TINY.load(), SPMV)]
    assert all(r.pdl for r in choose(found, 6))
    short = reference.shortlist(found, reference.Plan(first=6, plain_finalists=2))
    assert [r.pdl for r in short] == [True] * 4 + [False] * 2
    assert len({r.text for r in short}) == 6


def test_a_short_list_has_the_best_of_every_family_and_kind_of_load_however_dear():
    found = [replace(r, cost_us=1.0 + i, chain_cost_us=1.0 + i) for i, r in enumerate(candidates(TINY.load(), SPMV))]
    families = {(r.family, r.params.get("load")) for r in found}
    short = reference.shortlist(found, reference.Plan(first=len(families) + 4))
    assert {(r.family, r.params.get("load")) for r in short} == families
    assert [r.cost_us for r in short[-3:]] != sorted(r.cost_us for r in found)[-3:]
    assert {r.name for r in found[:4]} <= {r.name for r in short}


def test_names_choose_matrices_by_name_class_or_kind_and_a_wrong_one_is_told():
    assert [c.name for c in reference.chosen_cases(["small_uniform_tiny"])] == ["small_uniform_tiny"]
    assert {c.structure for c in reference.chosen_cases(["block"])} == {"block"}
    assert {c.kind for c in reference.chosen_cases(["generated"])} == {"generated"}
    assert len(reference.chosen_cases([])) == len(evaluation_list())
    with pytest.raises(MatrixError, match="small_uniform_tiny"):
        reference.chosen_cases(["small_uniform_tin"])


# ---- the search


def test_a_search_goes_on_where_it_stopped_and_its_finalists_race(backend, pool, tmp_path):
    def search() -> list[str]:
        given = {"folder": None, "problem": SPMV, "backend": backend, "pool": pool, "out": tmp_path, "plan": PLAN}
        return list(reference.explore([TINY], **given))

    assert len(search()) == 1
    (record,) = read_jsonl(tmp_path / "finalists.jsonl")
    assert len(archive.read(tmp_path, "explored")) == PLAN.first
    assert any("pdl_wait()" not in f["text"] for f in record["finalists"])
    assert not record["full_search"]
    assert search() == []
    assert len(archive.read(tmp_path, "explored")) == PLAN.first

    with Judge("sim") as judge:
        assert len(list(reference.race([TINY], None, SPMV, judge, tmp_path))) == 1
        assert list(reference.race([TINY], None, SPMV, judge, tmp_path)) == []
    (raced,) = read_jsonl(tmp_path / "raced.jsonl")
    assert list(raced["baselines"]) == ["plain:csr"]
    assert {p["verdict"] for p in raced["programs"]} == {"CORRECT"}
    assert {t["source"] for p in raced["programs"] for t in p["times"].values()} == {"modelled"}
    assert raced["device"] == "simulated H200"


def test_a_case_that_was_broken_off_goes_on_with_the_programs_that_have_no_record(backend, pool, tmp_path, monkeypatch):
    given = {"folder": None, "problem": SPMV, "backend": backend, "pool": pool, "out": tmp_path}
    plan, timed = replace(PLAN, first=6, second=2), []
    measure = Explorer.measure

    def watched(explorer, recipes, effort):
        for measured in measure(explorer, recipes, effort):
            timed.append(measured.recipe.name)
            yield measured
            if len(timed) == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(Explorer, "measure", watched)
    with pytest.raises(KeyboardInterrupt):
        list(reference.explore([TINY], **given, plan=plan))
    assert len(read_jsonl(tmp_path / "explored.jsonl")) == 4
    assert not (tmp_path / "finalists.jsonl").exists()
    assert len(list(reference.explore([TINY], **given, plan=plan))) == 1
    names = {(r["family"], r["layout"], str(r["settings"])) for r in read_jsonl(tmp_path / "explored.jsonl")}
    assert len(names) == 6 and len(set(timed)) == 6
    assert any(timed.count(name) == 1 for name in timed[:4])


def test_the_whole_space_is_tried_where_the_plan_and_the_matrix_say_so(backend, pool):
    """With a space of five, to keep it short."""
    found = candidates(SHAPES["one by one"](), SPMV)[:5]
    explorer = Explorer(backend, pool, SHAPES["one by one"](), SPMV)
    few = replace(PLAN, first=2)
    assert len(reference.explore_case(explorer, found, full=True, plan=few)[0]) == 5
    assert len(reference.explore_case(explorer, found, full=False, plan=few)[0]) == 2


def test_a_second_look_times_what_is_new_and_races_new_finalists(backend, pool, tmp_path):
    given = {"folder": None, "problem": SPMV, "backend": backend, "pool": pool, "out": tmp_path}
    assert len(list(reference.explore([TINY], **given, plan=replace(PLAN, first=3)))) == 1
    before = archive.read(tmp_path, "explored")
    assert list(reference.explore([TINY], **given, plan=replace(PLAN, first=3), again=True)) == []
    assert len(list(reference.explore([TINY], **given, plan=replace(PLAN, first=9), again=True))) == 1
    after = archive.read(tmp_path, "explored")
    assert len(before) == 3 and len(after) == 9
    names = [{(r["family"], r["layout"], str(r["settings"])) for r in records} for records in (before, after)]
    assert names[0] < names[1]
    with Judge("sim") as judge:
        assert len(list(reference.race([TINY], None, SPMV, judge, tmp_path))) == 1
        assert list(reference.race([TINY], None, SPMV, judge, tmp_path)) == []
        (kept,) = archive.read(tmp_path, "finalists")
        append_jsonl(tmp_path / "finalists.jsonl", {**kept, "finalists": kept["finalists"][:1]})
        assert len(list(reference.race([TINY], None, SPMV, judge, tmp_path))) == 1
    (raced,) = archive.read(tmp_path, "raced")
    assert len(raced["programs"]) == 1


def test_measured_and_modelled_times_never_go_into_one_folder(backend, pool, tmp_path):
    append_jsonl(tmp_path / "finalists.jsonl", {"matrix": "m", "problem": "spmv float32", "device": "NVIDIA H200"})
    given = {"folder": None, "problem": SPMV, "backend": backend, "pool": pool, "out": tmp_path}
    with pytest.raises(StoreError, match="NVIDIA H200"):
        list(reference.explore([TINY], **given))


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparserl.bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_commands_explore_and_race_on_the_simulator(tmp_path):
    common = ("--device", "sim", "--out", tmp_path, "--only", TINY.name)
    explored = bench("explore", *common, "--first", "2", "--no-full", "--workers", "1")
    assert explored.returncode == 0, explored.stderr
    assert "2 of" in explored.stdout
    raced = bench("race", *common, "--share", "0/1")
    assert raced.returncode == 0, raced.stderr
    assert "solver" in raced.stdout


def test_a_wrong_option_is_one_line_and_exit_code_2(tmp_path):
    done = bench("explore", "--device", "tpu", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: The '--device' of a measurement must be cuda or sim. Got 'tpu'.\n"
