"""cuSPARSE as a baseline: every memory order of an SpMM, each checked before it counts."""

from __future__ import annotations

import pytest

from sparserl.evaluation import evaluation_list
from sparserl.judge.evaluate import Judge
from sparserl.judge.plain import plain
from sparserl.records import Problem

pytestmark = pytest.mark.gpu


def test_an_spmm_has_checked_baselines_in_both_memory_orders() -> None:
    pattern = next(c for c in evaluation_list() if c.name == "small_kkt").load()
    with Judge("cuda") as judge:
        case = judge.open(pattern, Problem("spmm", "float32", columns=16))
        own = case.baselines()
        both = case.baselines(every_order=True)
        raced = case.race({}, both, modes=("solver",), rounds=3)
    assert own and set(own) < set(both)
    assert {name.partition("@")[2] for name in both} == {"", "col"}
    assert set(raced) == set(both)


def test_a_case_that_was_opened_anew_races_them_by_name() -> None:
    pattern = next(c for c in evaluation_list() if c.name == "small_kkt").load()
    with Judge("cuda") as judge:
        problem = Problem("spmm", "float32", columns=16)
        first = judge.open(pattern, problem)
        names = first.baselines(every_order=True)
        first.close()
        raced = judge.open(pattern, problem).race({}, names[-2:], modes=("solver",), rounds=3)
        turns = judge.turns_s()
    assert names[-1].endswith("@col") and set(raced) == set(names[-2:])
    assert turns["alone"] > 0 and judge.device.backend == "cuda"


def test_programs_are_judged_beside_them_in_one_turn() -> None:
    pattern = next(c for c in evaluation_list() if c.name == "small_kkt").load()
    text = plain(Problem())
    wider = text.replace("<<<div_up(rows, 4), 128>>>", "<<<div_up(rows, 8), 256>>>").replace("* 4 +", "* 8 +")
    with Judge("cuda") as judge:
        case = judge.open(pattern, Problem(), pooled=True)
        names = case.baselines()
        alone = case.judge([text], ("solver",), beside=lambda: names)
        assert alone[0].correct and not case.beside, "one program is timed by itself"
        both = case.judge([text, wider], ("solver",), beside=lambda: names)
        raced = case.race({}, names, modes=("solver",), rounds=3)
    assert all(each.correct for each in both) and set(case.beside) == set(names)
    for name in names:
        ratio = case.beside[name]["solver"].median_us / raced[name]["solver"].median_us
        assert 0.7 < ratio < 1.4, (name, ratio)
