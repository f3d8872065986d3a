"""Tune: a spread choice, halving, ties to the simpler, Ctrl-C keeps what is known; then all of it on the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import sparserl
from layout_shapes import SHAPES
from sparserl import referee, store
from sparserl.backends.backend import Device
from sparserl.errors import BackendError, SparseRLError
from sparserl.findings import Candidate, Findings
from sparserl.judge.race import Race
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Mode, Outcome, Problem, Timing, Verdict
from sparserl.search import FINALISTS, Progress, best_of, choose, halve
from sparserl.tune import Settings, _Hit, _Kept, make_problem


@dataclass(frozen=True)
class FakeRecipe:
    name: str
    cost_us: float
    layout: LayoutLine
    simplicity: int = 1
    text: str = ""
    params: dict[str, object] = field(default_factory=dict)


@dataclass
class FakeReferee:
    """Times by text; a missing one is wrong. Counts what was asked of it."""

    times: dict[str, float]
    baselines: dict[str, float] = field(default_factory=lambda: {"plain:csr": 10.0})
    repeatable: bool = False
    stop_after: int = 10**9
    raced: list[int] = field(default_factory=list)

    def judge(self, texts: Sequence[str], rounds: int, told: Callable[[int, Outcome], None]) -> None:
        for index, text in enumerate(texts):
            if index == self.stop_after:
                raise KeyboardInterrupt
            told(index, self._outcome(text, rounds))

    def race(self, texts: Sequence[str], rounds: int, baselines: bool) -> tuple[list[Outcome], dict[str, Timing]]:
        self.raced.append(len(texts))
        known = {n: Timing("solver", "gpu", t) for n, t in self.baselines.items()} if baselines else {}
        return [self._outcome(t, rounds) for t in texts], known

    def _outcome(self, text: str, rounds: int) -> Outcome:
        if text not in self.times:
            return Outcome(Verdict.WRONG, "row 0 is off")
        timing = Timing("solver", "gpu", self.times[text], rounds=rounds, floor_us=1.0)
        return Outcome(Verdict.CORRECT, timings={"solver": timing}, phases_s={"verify": 0.5})


def candidate(name: str, simplicity: int = 1) -> Candidate:
    return Candidate(name, "rows index=int32", {"lanes": 4}, name, simplicity)


def searched(referee: FakeReferee, names: Sequence[str], simplicity: dict[str, int] | None = None) -> Findings:
    found = Findings("solver", "gpu", [candidate(n, (simplicity or {}).get(n, 1)) for n in names])
    halve(found, referee, lambda step: None)
    return found


# ── choice ────────────────────────────────────────────────────────────────────


def test_the_choice_is_by_estimate_but_spread_over_layouts() -> None:
    many = [FakeRecipe(f"slices {i}", 1 + i / 1000, LayoutLine("slices"), params={"i": i}) for i in range(50)]
    others = [FakeRecipe(name, 1.05, LayoutLine(name)) for name in ("rows", "bins", "merge")]
    chosen = choose([*others, *many], 10)
    assert chosen[0].name == "slices 0"
    assert {r.layout.name for r in chosen} == {"slices", "rows", "bins", "merge"}


def test_twins_that_differ_only_in_a_layout_parameter_are_not_all_chosen() -> None:
    twins = [FakeRecipe(f"f{i}", 1.0, LayoutLine("diagonals", (("fill", str(i)),)), params={"t": 1}) for i in range(9)]
    others = [FakeRecipe(f"t{i}", 1.2, LayoutLine("diagonals"), params={"t": i}) for i in range(2, 9)]
    assert sum(r.params["t"] == 1 for r in choose([*twins, *others], 4)) <= 2


def test_a_hopeless_layout_is_not_chosen_for_variety() -> None:
    good = [FakeRecipe(f"slices {i}", 1.0, LayoutLine("slices"), params={"i": i}) for i in range(8)]
    chosen = choose([*good, FakeRecipe("merge", 100.0, LayoutLine("merge"))], 8)
    assert all(r.layout.name == "slices" for r in chosen)


def test_fewer_recipes_than_candidates_are_all_chosen_once() -> None:
    few = [FakeRecipe(str(i), 1.0, LayoutLine("rows")) for i in range(3)]
    assert sorted(r.name for r in choose(few, 16)) == ["0", "1", "2"]


# ── halving ───────────────────────────────────────────────────────────────────


def test_the_fastest_correct_program_wins_and_everything_is_recorded() -> None:
    names = [f"p{i}" for i in range(16)]
    times = {n: 5.0 + i for i, n in enumerate(names) if n != "p0"}  # p0 would be fastest, but is wrong
    found = searched(FakeReferee(times), names)
    assert found.best is not None and found.best.name == "p1" and found.best.speedup == pytest.approx(10 / 6)
    report = found.record({}, "p1")
    assert report["result"]["time_us"] == 6.0 and report["result"]["baseline"] == "plain:csr"
    assert report["result"]["speedup"] == pytest.approx(10 / 6)
    assert len(report["candidates"]) == 16 and report["candidates"][0]["name"] == "p1"
    last = report["candidates"][-1]
    assert last["name"] == "p0" and last["verdict"] == "wrong" and last["reason"] == "row 0 is off"
    assert set(report["phases_s"]) == {"judge", "halve", "race"}


def test_the_field_is_halved_down_to_the_finalists() -> None:
    names = [f"p{i}" for i in range(32)]
    referee = FakeReferee({n: 1.0 + i for i, n in enumerate(names)})
    found = searched(referee, names)
    assert referee.raced == [16, 8, FINALISTS, FINALISTS]
    assert sum(c.stage == "final" for c in found.candidates) == FINALISTS


def test_a_machine_that_repeats_itself_times_everything_once() -> None:
    names = [f"p{i}" for i in range(32)]
    referee = FakeReferee({n: 1.0 + i for i, n in enumerate(names)}, repeatable=True)
    found = searched(referee, names)
    assert referee.raced == [0] and found.best is not None and found.best.name == "p0"
    assert found.baseline is not None


def test_ties_go_to_the_simpler_program() -> None:
    found = searched(FakeReferee({"fancy": 5.00, "plain": 5.05, "slow": 5.5}), ["fancy", "plain", "slow"], {"fancy": 9})
    assert found.best is not None and found.best.name == "plain"


def test_a_simpler_program_outside_the_noise_does_not_win() -> None:
    found = searched(FakeReferee({"fancy": 5.0, "plain": 5.2}), ["fancy", "plain"], {"fancy": 9})
    assert found.best is not None and found.best.name == "fancy"


def test_a_finalist_that_fails_in_the_race_does_not_win() -> None:
    class Fickle(FakeReferee):
        def race(self, texts: Sequence[str], rounds: int, baselines: bool) -> tuple[list[Outcome], dict[str, Timing]]:
            outcomes, known = super().race(texts, rounds, baselines)
            wrong = Outcome(Verdict.WRONG, "after timing")
            return [wrong if t == "p0" else o for t, o in zip(texts, outcomes, strict=True)], known

    found = searched(Fickle({"p0": 1.0, "p1": 2.0}), ["p0", "p1"])
    assert found.best is not None and found.best.name == "p1"
    assert found.candidates[0].verdict == "wrong" and found.candidates[0].time_us is None


def test_ctrl_c_keeps_the_best_so_far() -> None:
    found = searched(FakeReferee({"p0": 3.0, "p1": 2.0, "p2": 1.0}, stop_after=2), ["p0", "p1", "p2"])
    assert found.interrupted and found.best is not None and found.best.name == "p1"
    report = found.record({}, "p1")
    assert report["interrupted"] and report["result"]["speedup"] is None
    assert [c["verdict"] for c in report["candidates"]] == ["correct", "correct", "untried"]


def test_ctrl_c_before_anything_is_verified_leaves_nothing() -> None:
    found = searched(FakeReferee({}, stop_after=1), ["p0", "p1"])
    assert found.interrupted and found.best is None


def test_nothing_correct_is_no_best() -> None:
    assert searched(FakeReferee({}), ["p0"]).best is None
    assert best_of([]) is None


def test_progress_goes_from_nothing_to_all() -> None:
    steps: list[Progress] = []
    found = Findings("solver", "gpu", [candidate("a"), candidate("b")])
    halve(found, FakeReferee({"a": 2.0, "b": 1.0}), steps.append)
    judging = [(s.done, s.total, s.best_us) for s in steps if s.stage == "judging"]
    assert judging == [(0, 2, None), (1, 2, 2.0), (2, 2, 1.0)]
    assert steps[-1].stage == "racing" and steps[-1].done == steps[-1].total


# ── settings ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["float64", "f64", np.float64, np.dtype("float64"), torch.float64])
def test_a_dtype_may_be_written_in_any_usual_way(dtype: object) -> None:
    assert make_problem("spmv", dtype, 1).dtype == "float64"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "float32, float64, float16, bfloat16.*int8"),
        ({"op": "spgemm"}, "'spmv' or 'spmm'"),
        ({"op": "spmm", "columns": 1000}, "1..512"),
        ({"columns": 4}, "must be 1"),
        ({"device": "tpu"}, "auto, cuda, sim.*tpu"),
        ({"mode": "warm"}, "chain, solver, cold"),
        ({"candidates": 0}, "1..4096"),
        ({"candidates": 2.5}, "'candidates'.*whole number.*2.5"),
        ({"candidates": "many"}, "'candidates'.*whole number.*many"),
        ({"seed": -1}, "'seed'.*-1"),
        ({"seed": "x"}, "'seed'.*whole number"),
        ({"op": "spmm", "columns": 8.0}, "'columns'.*whole number.*8.0"),
        ({"policy": None}, "recipes, or the path"),
        ({"dtype": "float16"}, "op='spmm'"),
        ({"dtype": "bf16"}, "op='spmm'"),
        ({"policy": "nowhere.cu"}, "recipes, or the path.*not there"),
        ({"op": "spmm", "columns": 4, "b_order": "rows"}, "'row' or 'col'"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_read(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SparseRLError, match=message):
        sparserl.tune("no such file.mtx", **settings)  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_are_plain_ones_in_a_problem() -> None:
    assert type(make_problem("spmm", "f32", np.int64(8)).columns) is int  # type: ignore[arg-type]  # what users pass


@pytest.mark.parametrize("shape", [(0, 0), (0, 5)])
def test_a_matrix_without_rows_is_refused_by_name(shape: tuple[int, int]) -> None:
    with pytest.raises(SparseRLError, match=f"{shape[0]} x {shape[1]} has no rows"):
        sparserl.tune(sp.csr_matrix(shape), device="sim", cache=False)


def test_settings_hold_what_was_asked() -> None:
    settings = Settings(make_problem("spmm", "f32", 8), "sim", 4)
    assert settings.problem.columns == 8 and settings.mode == "solver"


# ── all of it, on the simulator ───────────────────────────────────────────────


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Results of its own; compiled kernels stay shared between tests."""
    monkeypatch.setattr(store, "cache_root", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def small_matrix() -> sp.csr_matrix:
    return sp.random(120, 90, 0.05, format="csr", random_state=np.random.default_rng(0))


@pytest.mark.slow
def test_tune_gives_a_verified_operator_and_remembers_it(own_cache: Path) -> None:
    A = small_matrix()
    op = sparserl.tune(A, device="sim", candidates=3)
    x = np.random.default_rng(1).standard_normal(90)
    assert np.allclose(op @ x, A @ x, rtol=1e-4, atol=1e-4)
    assert op.time_source == "modelled" and op.time_us is not None and op.speedup is not None
    assert op.report["result"]["baseline"] == "plain:csr" and not op.report["from_cache"]

    began = time.perf_counter()
    again = sparserl.tune(A, device="sim", candidates=3, seed=7)
    assert time.perf_counter() - began < 1.0
    assert again.report["from_cache"] and again.source == op.source and again.time_us == op.time_us
    assert np.array_equal(again @ x, op @ x)

    A.data *= 2  # new values, same pattern: still the same entry, with the new numbers
    assert np.allclose(sparserl.tune(A, device="sim", candidates=3) @ x, A @ x, rtol=1e-4, atol=1e-4)
    assert not sparserl.tune(A, device="sim", candidates=3, cache=False).report["from_cache"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_tune_makes_spmm_operators(own_cache: Path, dtype: str) -> None:
    A = small_matrix()
    op = sparserl.tune(A, "spmm", columns=8, dtype=dtype, device="sim", candidates=1)
    B = np.random.default_rng(2).standard_normal((90, 8))
    assert np.allclose(op @ B, A @ B, rtol=1e-9 if dtype == "f64" else 5e-2, atol=1e-9 if dtype == "f64" else 5e-2)


@pytest.mark.slow
def test_a_users_own_programs_are_tried_as_they_are(own_cache: Path, tmp_path: Path) -> None:
    from sparserl.doctor import TINY

    (tmp_path / "mine.cu").write_text(TINY)
    (tmp_path / "off.cu").write_text(TINY.replace("acc_t sum = 0;", "acc_t sum = 1;"))
    (tmp_path / "noise.cu").write_text("hello\n")
    op = sparserl.tune(small_matrix(), device="sim", policy=str(tmp_path))
    assert op.source == TINY
    verdicts = {c["name"]: c["verdict"] for c in op.report["candidates"]}
    assert verdicts == {"mine": "correct", "off": "wrong", "noise": "unreadable"}


@pytest.mark.slow
def test_where_nothing_is_right_the_error_says_why(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "noise.cu").write_text("hello\n")
    with pytest.raises(SparseRLError, match=r"None of 1 candidates was verified.*unreadable"):
        sparserl.tune(small_matrix(), device="sim", policy=str(tmp_path / "noise.cu"))


@pytest.mark.slow
def test_ctrl_c_returns_the_best_so_far_and_does_not_remember_it(own_cache: Path) -> None:
    def stop(step: Progress) -> None:
        if step.stage == "judging" and step.best_us is not None:
            raise KeyboardInterrupt

    A = small_matrix()
    op = sparserl.tune(A, device="sim", candidates=8, progress=stop)
    assert op.report["interrupted"] and np.allclose(op @ np.ones(90), A @ np.ones(90), atol=1e-4)
    assert not (own_cache / "tuned").exists()


# ---- a warm process


def opened(pattern: Pattern, mode: Mode = "solver", seed: int = 0) -> AbstractContextManager[referee.JudgeReferee]:
    return referee.open_referee(mode, referee.Ahead("sim", 1, (pattern, Problem(), seed)))


def test_the_next_tuning_finds_the_judge_warm_and_one_after_a_fault_does_not() -> None:
    pattern = SHAPES["random"]()
    with opened(pattern, "solver", 0) as first:
        worker = first.case._desk.sandbox
    with opened(pattern, "chain", 1) as second:
        assert second.case._desk.sandbox is worker
        with opened(pattern, "chain", 1) as beside:  # the warm one is taken
            assert beside.case._desk.sandbox is not worker
    with pytest.raises(ZeroDivisionError), opened(pattern, "chain", 1) as third:
        worker = third.case._desk.sandbox
        raise ZeroDivisionError
    with opened(pattern, "chain", 1) as fourth:
        assert fourth.case._desk.sandbox is not worker
    referee._warm.close()
    assert referee._warm._judges == {}


def test_a_judge_that_was_started_ahead_is_the_one_that_judges_and_stays_if_nobody_takes_it() -> None:
    referee._warm.close()
    asked = SHAPES["random"](), Problem(), 0
    ahead = referee.Ahead("sim", 3, asked)
    assert ahead.machine().backend == "sim"
    compilers = ahead._started.result()._compiler
    compilers._batches.submit(lambda: None).result()  # what stands before it in line is done
    assert len(compilers._pool._crew) == min(3, compilers.workers), "its compilers are up before there is a program"
    with referee.open_referee("solver", ahead) as first:
        worker = first.case._desk.sandbox
    unused = referee.Ahead("sim", 1, asked)
    unused.drop()
    with opened(SHAPES["random"]()) as second:
        assert second.case._desk.sandbox is worker
    broken = referee.Ahead("nonsense", 1, asked)
    with pytest.raises(ValueError, match="nonsense"):
        broken.machine()
    with pytest.raises(ValueError, match="nonsense"):
        broken.take()
    referee._warm.close()


@pytest.mark.nano
def test_a_policy_writes_when_the_judge_is_up_and_a_fault_of_it_loses_no_judge(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    order: list[str] = []

    class Watched(referee.Ahead):
        def machine(self) -> Device:
            order.append("judge")
            return super().machine()

    def write(self: Any, count: int) -> list[str]:
        order.append("policy")
        raise SparseRLError("nothing comes to mind")

    referee._warm.close()
    monkeypatch.setattr(referee, "Ahead", Watched)
    monkeypatch.setattr("sparserl.policy.rewriting.Rewriter.write", write)
    with pytest.raises(SparseRLError, match="comes to mind"):
        sparserl.tune(small_matrix(), device="sim", policy="nano")
    assert order == ["judge", "policy"] and set(referee._warm._judges) == {"sim"}
    referee._warm.close()


def test_a_gpu_that_torch_cannot_use_is_left_alone_and_the_simulator_taken(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setattr("sparserl.backends.cuda.identity", lambda: ("cuda", "a GPU", "sm_90"))
    A = small_matrix()
    op = sparserl.tune(A, device="auto", policy="recipes", candidates=1, cache=False)
    assert op.report["device"]["backend"] == "sim" and np.allclose(op @ np.ones(90), A @ np.ones(90), atol=1e-4)
    known = iter([_Hit("made when torch could use it", True, {}, None)])
    monkeypatch.setattr(_Kept, "get", lambda self: next(known, None))
    again = sparserl.tune(A, device="auto", policy="recipes", candidates=1)
    assert not again.report["from_cache"] and again.report["device"]["backend"] == "sim"


class ScriptedCase:
    """A GPU's case: what its library's variants take, and who was raced."""

    device = Device("cuda", "a GPU", "sm_90", 132, 1 << 20, 1.0, 1.0)

    def __init__(self, times_us: dict[str, float], timed_beside: bool = True) -> None:
        self.times_us, self.timed_beside = times_us, timed_beside
        self.beside: dict[str, dict[str, Timing]] = {}
        self.raced: list[tuple[str, ...]] = []
        self.wanted = 0

    def baselines(self) -> tuple[str, ...]:
        self.wanted += 1
        return tuple(self.times_us)

    def _timings(self, names: Sequence[str], rounds: int) -> dict[str, dict[str, Timing]]:
        return {
            name: {"solver": Timing("solver", "gpu", self.times_us.get(name, 1.0), (1.0,) * 4, rounds, 0.1)}
            for name in names
        }

    def judge(
        self, texts: Sequence[str], modes: Any, rounds: int, *rest: Any, beside: Callable[[], Sequence[str]]
    ) -> None:
        if self.timed_beside and not self.beside:  # as a Case
            self.beside = self._timings(beside(), rounds)

    def race(
        self, named: dict[str, str], names: Sequence[str], modes: Any, rounds: int, *rest: Any, verify: str
    ) -> Race:
        self.raced.append(tuple(names))
        race = Race()
        race.update(self._timings([*named, *names], rounds))
        race.outcomes = {name: Outcome(Verdict.CORRECT, timings=race[name]) for name in named}
        return race


def test_variants_of_the_library_that_are_far_behind_are_timed_briefly_and_not_raced() -> None:
    times = {"cusparse:csr1": 2.0, "cusparse:csr2": 2.6, "cusparse:sell": 2.4, "cusparse:coo1": 9.0}
    case = ScriptedCase(times)
    judge = referee.JudgeReferee(case, "solver")  # type: ignore[arg-type]
    judge.judge(["a", "b"], 3, lambda *told: None)
    judge.judge(["c", "d"], 3, lambda *told: None)
    assert case.wanted == 1, "the next turn's programs need none"
    outcomes, baselines = judge.race(["a"], 11, baselines=True)
    assert case.raced == [("cusparse:csr1", "cusparse:sell")] and outcomes[0].correct
    assert list(baselines) == list(times), "every variant has a time"
    assert {name: timing.rounds for name, timing in baselines.items()} == {
        "cusparse:csr1": 11, "cusparse:csr2": 3, "cusparse:sell": 11, "cusparse:coo1": 3,
    }  # fmt: skip
    assert judge.race(["a"], 6, baselines=False)[1] == {} and case.raced[-1] == ()


def test_where_nothing_was_timed_beside_them_all_variants_are_raced() -> None:
    case = ScriptedCase({"cusparse:csr1": 2.0, "cusparse:coo1": 9.0}, timed_beside=False)
    judge = referee.JudgeReferee(case, "solver")  # type: ignore[arg-type]
    judge.judge(["a"], 3, lambda *told: None)
    assert set(judge.race(["a"], 11, baselines=True)[1]) == set(case.raced[0]) == set(case.times_us)


def test_a_judge_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referee, "KEPT_S", 0.05)
    with opened(SHAPES["random"]()) as first:
        process = first.case._desk.sandbox.process_id
    for _ in range(200):
        if not referee._warm._judges and not Path(f"/proc/{process}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{process}").exists()


# ---- a machine that fails


class Failing(FakeReferee):
    def race(self, texts: Sequence[str], rounds: int, baselines: bool) -> tuple[list[Outcome], dict[str, Timing]]:
        raise BackendError("The worker failed twice.")


def test_what_was_right_counts_where_the_machine_fails_afterwards() -> None:
    found = searched(Failing({"p0": 3.0, "p1": 2.0}), ["p0", "p1", "p2"])
    assert found.fault == "The worker failed twice." and not found.interrupted and not found.complete
    assert found.best is not None and found.best.name == "p1"
    assert found.record({}, "p1")["fault"] == found.fault


def test_where_nothing_was_right_the_machines_fault_is_told() -> None:
    with pytest.raises(BackendError, match="failed twice"):
        searched(Failing({}), ["p0"])


def test_candidates_that_come_later_are_the_only_ones_to_be_judged_then() -> None:
    class Listening(FakeReferee):
        def judge(self, texts: Sequence[str], rounds: int, told: Callable[[int, Outcome], None]) -> None:
            judged.append(list(texts))
            super().judge(texts, rounds, told)

    judged: list[list[str]] = []
    found = Findings("solver", "gpu", [candidate("p0"), candidate("p1")])
    halve(found, Listening({}), lambda step: None)
    found.candidates.append(candidate("p2"))
    halve(found, Listening({"p2": 2.0}), lambda step: None, first=2)
    assert judged == [["p0", "p1"], ["p2"]]
    assert found.best is not None and found.best.name == "p2" and found.candidates[0].verdict == "wrong"
