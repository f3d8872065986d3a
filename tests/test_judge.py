"""From text to Outcome on the simulator: honest programs pass on every problem, failures are typed, races are fair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sparserl import recipes
from sparserl.backends.backend import Device
from sparserl.judge import timing
from sparserl.judge.case import Case
from sparserl.judge.desk import AT_ONCE, Desk
from sparserl.judge.evaluate import Judge
from sparserl.judge.handed import Near
from sparserl.judge.plain import NAME, plain
from sparserl.judge.reference import SHARED, Reference
from sparserl.judge.sandbox import TURN_LIMIT_S, WorkerError
from sparserl.judge.trial import Stopped, Trial
from sparserl.matrix import Pattern
from sparserl.records import Order, Outcome, Problem, Timing, Verdict

WAITING = """\
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>> pdl
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    pdl_trigger();
    const int row = blockIdx.x * 128 + threadIdx.x;
    const int first = row < rows ? row_start[row] : 0, end = row < rows ? row_start[row + 1] : 0;
    acc_t sum = 0;
    pdl_wait();
    for (int j = first; j < end; ++j) sum += vals[j] * x[cols[j]];
    if (row < rows) y[row] = sum;
}
"""
ATOMIC = """\
// layout: rows index=int32
// launch: clear<<<div_up(rows, 128), 128>>> pdl
// launch: spmv<<<div_up(rows, 4), 128>>> pdl
extern "C" __global__ void clear(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                 const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    pdl_wait();
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row < rows) y[row] = 0;
}
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    pdl_wait();
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row] + threadIdx.x % 32; j < row_start[row + 1]; j += 32) sum += vals[j] * x[cols[j]];
    if (row_start[row] + int(threadIdx.x % 32) < row_start[row + 1]) atomicAdd(y + row, sum);
}
"""
CRASHING = WAITING.replace("y[row] = sum;", "y[row + 1000000000] = sum;").replace(" pdl\n", "\n")
WRONG = plain(Problem()).replace("y[row] = to_value(sum)", "y[row] = to_value(-sum)")
DEVICE = Device("cuda", "an H200", "sm_90", 132, 60_000_000, 4.8, 8.0)


def pattern_of(rows: int, columns: int, seed: int = 0) -> Pattern:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, min(columns, 12) + 1, rows)
    lengths[rows // 2] = columns
    col = np.concatenate([random.choice(columns, size, replace=False) for size in lengths])
    return Pattern.from_coordinates(rows, columns, np.repeat(np.arange(rows), lengths), col)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge("sim") as judge:
        yield judge


def only(outcomes: list[Outcome]) -> Outcome:
    assert len(outcomes) == 1
    return outcomes[0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [("spmv", 1, "row", "row"), ("spmm", 5, "row", "col"), ("spmm", 3, "col", "col")])
def test_the_plain_kernel_is_correct_on_every_problem(judge: Judge, dtype, shape) -> None:
    op, columns, b_order, c_order = shape
    problem = Problem(op, dtype, columns, b_order, c_order)
    case = judge.open(pattern_of(70, 50), problem, seed=1)
    outcome = only(case.judge([plain(problem)]))
    assert outcome.correct, outcome.reason
    assert outcome.timings["chain"].source == "modelled"
    assert set(outcome.phases_s) == {"pack", "compile", "verify", "time"}
    assert outcome.packed_bytes > 0 and outcome.sectors > 0 and outcome.registers > 0
    case.close()


@pytest.mark.parametrize("rows,columns", [(1, 1), (1, 300), (300, 1), (64, 20), (20, 64)])
def test_odd_shapes_are_judged(judge: Judge, rows: int, columns: int) -> None:
    case = judge.open(pattern_of(rows, columns), Problem(), seed=2)
    for outcome in case.judge([plain(Problem()), WAITING], modes=("chain", "solver", "cold")):
        assert outcome.correct, outcome.reason
        assert set(outcome.timings) == {"chain", "solver", "cold"}


@pytest.mark.parametrize("rows,columns", [(0, 0), (0, 4), (5, 0), (6, 6)])
def test_matrices_without_entries_are_judged(judge: Judge, rows: int, columns: int) -> None:
    empty = Pattern(rows, columns, np.zeros(rows + 1, np.int32), np.zeros(0, np.int32))
    outcome = only(judge.open(empty, Problem(), seed=3).judge([plain(Problem())]))
    assert outcome.verdict in (Verdict.CORRECT, Verdict.IMPLAUSIBLE), outcome.reason


@pytest.mark.parametrize("text", [WAITING, ATOMIC], ids=["in order", "atomics"])
@pytest.mark.parametrize("columns", [90, 60])
def test_programs_that_wait_are_verified_as_a_chain(judge: Judge, text: str, columns: int) -> None:
    outcome = only(judge.open(pattern_of(90, columns), Problem(), seed=4).judge([text]))
    assert outcome.correct, outcome.reason


def test_outcomes_come_in_order_and_are_told_one_by_one(judge: Judge) -> None:
    case = judge.open(pattern_of(90, 90), Problem(), seed=5)
    texts = ["not a program", plain(Problem()), WRONG, CRASHING, WAITING, plain(Problem()) + "#define x y\n"]
    told: dict[int, Verdict] = {}
    outcomes = case.judge(texts, on_outcome=lambda index, outcome: told.update({index: outcome.verdict}))
    expected = [
        Verdict.UNREADABLE,
        Verdict.CORRECT,
        Verdict.WRONG,
        Verdict.FAILED,
        Verdict.CORRECT,
        Verdict.SCREENED,
    ]
    assert [outcome.verdict for outcome in outcomes] == expected
    assert [told[i] for i in range(len(texts))] == expected
    assert all(outcome.reason for outcome in outcomes if not outcome.correct)


def as_on_a_gpu(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are timed some at a time."""
    monkeypatch.setattr(case, "_modelled", False)
    monkeypatch.setattr(case, "_together", 3)
    monkeypatch.setattr("sparserl.judge.desk.RECYCLE_AFTER", 10_000)  # a GPU's worker isn't replaced on the way


def some_texts() -> list[str]:
    good, nonsense = plain(Problem()), "nonsense"
    wrong = good.replace("sum +=", "sum -=")
    assert wrong != good
    return [good, wrong, nonsense, WAITING, good, WAITING]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_timing_waits_for_the_spare_where_no_other_process_could_start_one(
    pooled: bool, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, settled = judge.open(pattern_of(60, 50), Problem(), seed=1, pooled=pooled), []
    as_on_a_gpu(case, monkeypatch)
    monkeypatch.setattr(case._desk.sandbox, "settle", lambda: settled.append(True))
    assert only(case.judge([plain(Problem())])).correct
    assert bool(settled) is not pooled


def test_programs_timed_together_get_the_verdicts_they_get_alone(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, told = pattern_of(60, 50), []
    alone = judge.open(pattern, Problem(), seed=1).judge(some_texts())
    case = judge.open(pattern, Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    timed = []
    time_some = case._time
    monkeypatch.setattr(case, "_time", lambda entries, *rest: timed.append(len(entries)) or time_some(entries, *rest))
    together = case.judge(some_texts(), on_outcome=lambda index, outcome: told.append(index))
    assert [o.verdict for o in together] == [o.verdict for o in alone]
    assert {Verdict.CORRECT, Verdict.WRONG, Verdict.UNREADABLE} == {o.verdict for o in together}
    assert sorted(told) == list(range(6)) and timed == [2, 2]
    assert all(o.timings["chain"].median_us > 0 and o.phases_s["time"] > 0 for o in together if o.correct)


def test_baselines_are_asked_for_once_and_when_programs_have_passed(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    seen: list[object] = []
    verify, time_some, began = case._verify, case._time, case.reference.begin

    def timed(entries, library, clocking):
        seen.append(tuple(library))
        found = time_some(entries, (), clocking)
        return found | {name: next(iter(found.values())) for name in library}

    monkeypatch.setattr(case, "_verify", lambda entry: seen.append("verified") or verify(entry))
    monkeypatch.setattr(case, "_time", timed)
    monkeypatch.setattr(case.reference, "begin", lambda: seen.append("other numbers") or began())
    said = case.judge([plain(Problem()), WRONG, WAITING] * 2, beside=lambda: seen.append("asked") or ("library",))
    assert [each.verdict.name for each in said] == ["CORRECT", "WRONG", "CORRECT"] * 2
    verified = ["verified"] * 3
    assert seen == ["other numbers", *verified, "asked", ("library",), *verified, ()]
    assert list(case.beside) == ["library"]
    del seen[:]
    monkeypatch.setattr("sparserl.judge.case.SHOWN", 3)
    case.judge([plain(Problem()), WRONG, WAITING] * 2)
    assert seen == ["other numbers", *verified, ()] * 2
    case.close()


def test_what_is_shown_to_several_is_sent_once_and_dropped_when_others_come(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    sent: list[str] = []
    dropped: list[str] = []
    call = case._desk.sandbox.call

    def watched(command: str, limit_s: float | None = None, **given: object) -> object:
        sent.extend([str(given["key"])] if command == "put_set" else ())
        dropped.extend(given["keys"] if command == "drop_sets" else ())  # type: ignore[arg-type]
        return call(command, limit_s, **given)

    monkeypatch.setattr(case._desk.sandbox, "call", watched)
    good = plain(Problem())
    outcomes = case.judge([good, WAITING, good])
    assert all(each.verdict is Verdict.CORRECT for each in outcomes)
    shared = [key for key in sent if key.startswith(SHARED)]
    assert len(shared) == len(set(shared)) >= 7 and not set(dropped) & set(shared[-1:])
    case.judge([good])
    assert set(shared) <= set(dropped), "nothing of the first programs is left"
    assert not set(dropped) & case._desk._sets


def test_programs_that_were_judged_right_are_verified_after_a_race_or_not_at_all(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    asked: list[str] = []
    call = case._desk.sandbox.call

    def watched(command: str, limit_s: float | None = None, **given: object) -> object:
        asked.append(command)
        return call(command, limit_s, **given)

    monkeypatch.setattr(case._desk.sandbox, "call", watched)
    good = plain(Problem())
    assert case.race([good], modes=("solver",)).outcomes[good].correct
    before, whole = asked.index("time"), asked.count("checks")
    assert "checks" in asked[:before]
    asked.clear()
    race = case.race([good, WRONG], modes=("solver",), verify="after")
    assert "checks" not in asked[: asked.index("time")] and 0 < asked.count("checks") < whole
    assert race.outcomes[good].correct and race[good]["solver"].median_us > 0
    assert race.outcomes[WRONG].verdict is Verdict.WRONG and WRONG not in race
    asked.clear()
    race = case.race([good], modes=("solver",), verify="not")
    assert race.outcomes[good].correct and race[good]["solver"].median_us > 0 and "checks" not in asked


def test_what_differs_in_one_number_is_handed_over_as_that_number(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    drawn, handed, hand = [], [], case._desk.handed

    def watched(check):
        drawn.append(check)
        handed.append(hand(check))
        return handed[-1]

    monkeypatch.setattr(case._desk, "handed", watched)
    assert case.judge([plain(Problem())])[0].correct
    near = [(check, each) for check, each in zip(drawn, handed, strict=True) if isinstance(each, Near)]
    assert [each.of for _, each in near] == ["values", "x"] * 2
    named = {each: check for check, each in zip(drawn, handed, strict=True) if isinstance(each, str)}
    for check, each in near:
        before = named[each.key]
        values = each.after(before.values) if each.of == "values" else before.values
        x = each.after(before.x) if each.of == "x" else before.x
        assert values.tobytes() == check.values.tobytes() and x.tobytes() == check.x.tobytes()
        assert np.count_nonzero(values != before.values) + np.count_nonzero(x != before.x) == 1


def test_where_timing_together_fails_each_is_judged_alone(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    time_some = case._time

    def refusing(entries, *rest):
        if len(entries) > 1:
            raise WorkerError("it hangs in company")
        return time_some(entries, *rest)

    monkeypatch.setattr(case, "_time", refusing)
    verdicts = [o.verdict.name for o in case.judge(some_texts())]
    assert verdicts == ["CORRECT", "WRONG", "UNREADABLE", "CORRECT", "CORRECT", "CORRECT"]


def test_damage_in_a_timing_is_laid_to_the_one_that_does_it_alone(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    asked, call, timed = [], case._desk.call, []

    def damaged(command, *rest, **named):
        if command == "time":
            timed.append(len(named["names"]))
        if command != "damage":
            asked.append(command)
            return call(command, *rest, **named)
        return "" if timed in ([2, 1], [2, 1, 1, 2]) else "wrote outside the bounds of 'cols' of 'rows'"

    monkeypatch.setattr(case._desk, "call", damaged)
    outcomes = case.judge(some_texts())
    verdicts = [o.verdict.name for o in outcomes]
    assert verdicts == ["CORRECT", "WRONG", "UNREADABLE", "FAILED", "CORRECT", "CORRECT"]
    assert outcomes[3].reason == "while it was timed: wrote outside the bounds of 'cols' of 'rows'"
    assert timed == [2, 1, 1, 2] and asked.count("renew") == 2, "nothing that was there before is used again"


def test_after_a_program_failed_everything_is_put_there_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [plain(Problem()), plain(Problem()), CRASHING, plain(Problem()), WRONG, plain(Problem())]
    asked: list[str] = []
    with Judge("sim") as judge:  # its worker is young: it is not replaced for its age
        case = judge.open(pattern_of(60, 50), Problem(), seed=1)
        call = case._desk.call
        monkeypatch.setattr(case._desk, "call", lambda what, *a, **b: asked.append(what) or call(what, *a, **b))
        verdicts = [outcome.verdict.name for outcome in case.judge(texts)]
    assert verdicts == ["CORRECT", "CORRECT", "FAILED", "CORRECT", "WRONG", "CORRECT"]
    assert asked.count("open") == asked.count("renew") == 1 and "put_structure" in asked[asked.index("renew") :]


def test_a_race_leaves_out_who_breaks_something_while_it_is_timed(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    call, sides = case._desk.call, []

    def damaged(command, *rest, **named):
        if command == "time":
            sides.append(len(named["names"]))
        if command == "damage":  # the second of the two, and whoever is timed beside it
            return "wrote outside" if sides[-1] == 2 or sides.count(1) == 2 else ""
        return call(command, *rest, **named)

    monkeypatch.setattr(case._desk, "call", damaged)
    race = case.race({"good": plain(Problem()), "bad": WAITING}, (), ("chain",), 1)
    assert set(race) == {"good"} and race.outcomes["good"].correct
    assert race.outcomes["bad"].verdict is Verdict.FAILED and "while it was timed" in race.outcomes["bad"].reason
    assert sides == [2, 2, 1, 1, 1]


def test_a_case_is_closed_after_a_failure_too(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    asked, call = [], case._desk.call
    monkeypatch.setattr(case._desk, "call", lambda what, *a, **b: asked.append(what) or call(what, *a, **b))
    assert not only(case.judge([CRASHING])).correct
    case.close()
    assert asked[-1] == "close_case" and case._desk.sandbox.tenant is None


def test_a_pool_of_checks_gives_the_same_verdicts(judge: Judge) -> None:
    case = judge.open(pattern_of(50, 50), Problem(), pooled=True)
    texts = [plain(Problem()), WRONG, WAITING, CRASHING, ATOMIC, WRONG]
    verdicts = [outcome.verdict for outcome in case.judge(texts)]
    right, wrong = Verdict.CORRECT, Verdict.WRONG
    assert verdicts == [right, wrong, right, Verdict.FAILED, right, wrong]


def test_another_pool_on_the_same_case_is_not_mistaken_for_the_first(judge: Judge) -> None:
    """Training looks at winners with other numbers while the worker still has the first ones."""
    problem = Problem("spmm", columns=16)
    case = judge.open(pattern_of(50, 50), problem, pooled=True)
    for _ in range(3):
        assert only(case.judge([plain(problem)])).correct
        case.reference = Reference(case.pattern, problem, pooled=True)
    right, wrong = plain(problem), plain(problem).replace("to_value(sum)", "to_value(column == 7 ? -sum : sum)")
    assert [each.correct for each in case.judge([right, wrong])] == [True, False]


@pytest.mark.parametrize("order", ["row", "col"])
def test_a_pool_of_checks_sees_one_wrong_column_of_c(judge: Judge, order: Order) -> None:
    """Each set looks at a quarter of the columns, and only these come back; together they look at all."""
    problem = Problem("spmm", columns=16, b_order=order, c_order=order)
    right, case = plain(problem), judge.open(pattern_of(50, 50), problem, pooled=True)
    spoilt = [right.replace("to_value(sum)", f"to_value(column == {column} ? -sum : sum)") for column in (0, 7, 15)]
    assert all(text != right for text in spoilt)
    verdicts = [outcome.verdict for outcome in case.judge([right, *spoilt])]
    assert verdicts == [Verdict.CORRECT, *[Verdict.WRONG] * 3]


def test_cases_side_by_side_keep_their_own_data(judge: Judge) -> None:
    one, other = judge.open(pattern_of(90, 90), Problem(), seed=6), judge.open(pattern_of(31, 77), Problem(), seed=7)
    for case in (one, other, one, other):
        assert only(case.judge([plain(Problem())])).correct


def test_a_race_times_programs_beside_the_baseline_and_drops_the_wrong_ones(judge: Judge) -> None:
    case = judge.open(pattern_of(300, 300), Problem(), seed=8)
    race = case.race({"good": WAITING, "bad": WRONG, "dead": CRASHING}, case.baselines(), rounds=7)
    assert set(race) == {"good", NAME} and set(race["good"]) == {"solver", "chain"}
    assert race["good"]["chain"].rounds == 7 and race["good"]["chain"].floor_us > 0
    verdicts = {name: outcome.verdict for name, outcome in race.outcomes.items()}
    assert verdicts == {
        "good": Verdict.CORRECT,
        "bad": Verdict.WRONG,
        "dead": Verdict.FAILED,
        NAME: Verdict.CORRECT,
    }


def test_the_same_seed_gives_the_same_modelled_time(judge: Judge) -> None:
    pattern = pattern_of(200, 200)
    times = {only(judge.open(pattern, Problem(), seed=9).judge([WAITING])).timings["chain"].median_us for _ in range(2)}
    assert len(times) == 1


def recipes_over_the_space(problem: Problem, pattern: Pattern, count: int) -> list[recipes.Recipe]:
    """Every family and layout in turn, evenly through the space."""
    admitted = recipes.admissible(recipes.summarise(pattern, problem, 132))
    step = max(1, len(admitted) // count)
    return admitted[::step][:count]


def blocky() -> Pattern:
    """A 3x3-block band with a few long rows: most layouts admit it."""
    random = np.random.default_rng(10)
    n = 96
    block_row, block_col = np.nonzero(np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= 2)
    row = (block_row[:, None, None] * 3 + np.arange(3)[:, None]).repeat(3, axis=2).ravel()
    col = (block_col[:, None, None] * 3 + np.arange(3)).repeat(3, axis=1).reshape(-1, 3, 3).ravel()
    far = random.integers(0, 3 * n, (2, 200))
    return Pattern.from_coordinates(3 * n, 3 * n, np.append(row, far[0]), np.append(col, far[1]))


@pytest.mark.parametrize("problem", [Problem(), Problem("spmm", "float32", 16)], ids=["spmv", "spmm"])
def test_honest_recipes_pass(judge: Judge, problem: Problem) -> None:
    pattern = blocky()
    chosen = recipes_over_the_space(problem, pattern, 12)
    outcomes = judge.open(pattern, problem, seed=12).judge([recipe.text for recipe in chosen])
    refused = {r.name: o.verdict.name + ": " + o.reason for r, o in zip(chosen, outcomes, strict=True) if not o.correct}
    assert not refused


@pytest.mark.slow
def test_a_hundred_honest_recipes_pass(judge: Judge) -> None:
    pattern, problem = blocky(), Problem()
    chosen = recipes_over_the_space(problem, pattern, 120)
    assert len(chosen) >= 100 and len({recipe.layout.name for recipe in chosen}) >= 6
    outcomes = judge.open(pattern, problem, seed=13).judge([recipe.text for recipe in chosen])
    refused = {r.name: o.verdict.name + ": " + o.reason for r, o in zip(chosen, outcomes, strict=True) if not o.correct}
    assert not refused


def test_a_time_below_the_floor_is_implausible() -> None:
    reading = Timing("chain", "gpu", 1.0, floor_us=1.2)
    assert "1.200 us" in timing.implausible(reading)
    assert timing.implausible(replace(reading, floor_us=0.9)) == ""
    assert timing.implausible(replace(reading, median_us=0.0))
    assert timing.implausible(replace(reading, median_us=float("nan")))


def test_matrices_of_about_one_size_share_the_empty_kernels_time_and_a_second_look_is_exact() -> None:
    def sized(rows: int, columns: int) -> Pattern:
        return Pattern(rows, columns, np.zeros(rows + 1, dtype=np.int32), np.zeros(0, dtype=np.int32))

    plans = [timing.floor_plan(sized(n, n), Problem(), "solver") for n in (513, 1000, 1024, 1025)]
    assert plans[0] == plans[1] == plans[2] != plans[3]
    assert (plans[0].x_elements, plans[0].y_elements, plans[3].x_elements) == (1024, 1024, 2048)
    assert timing.floor_plan(sized(1000, 1000), Problem(), "chain").feed_back
    wide = timing.floor_plan(sized(3, 100), Problem(op="spmm", columns=8), "solver")
    assert (wide.x_elements, wide.y_elements) == (1024, 32)
    again = timing.floor_plan(sized(1000, 999), Problem(), "solver", again=True)
    assert (again.x_elements, again.y_elements) == (999, 1000) and again.rounds > plans[0].rounds
    assert timing.floor_plan(sized(0, 0), Problem(), "solver").x_elements == 1


def test_the_floor_is_the_l2_where_all_fits_and_the_memory_where_it_does_not() -> None:
    assert timing.traffic_floor_us(8_000_000, DEVICE, "chain") == pytest.approx(1.0)
    assert timing.traffic_floor_us(480_000_000, DEVICE, "solver") == pytest.approx(100.0)
    assert timing.traffic_floor_us(4_800_000, DEVICE, "cold") == pytest.approx(1.0)
    between = timing.traffic_floor_us(108_000_000, DEVICE, "chain")
    assert between == pytest.approx(max(108 / 8.0, 48 / 4.8))


def test_quantiles_describe_the_rounds() -> None:
    summary = timing.summarise("cold", [3.0, 1.0, 2.0, 5.0, 4.0], 0.5, DEVICE)
    assert summary.median_us == 3.0 and summary.rounds == 5 and summary.source == "gpu"
    assert summary.quantiles_us == pytest.approx((1.4, 2.0, 4.0, 4.6))


def test_an_unknown_device_names_the_choices() -> None:
    with pytest.raises(ValueError, match="'auto', 'cuda' or 'sim'"):
        Judge("metal")  # type: ignore[arg-type]


def test_a_dense_matrix_is_the_same_in_either_memory_order() -> None:
    from sparserl.judge.reference import reordered

    matrix = np.arange(12).reshape(4, 3)
    by_column = matrix.T.ravel()
    assert (reordered(matrix.ravel(), 4, "row", "col") == by_column).all()
    assert (reordered(by_column, 4, "col", "row") == matrix.ravel()).all()
    assert reordered(by_column, 4, "col", "col") is by_column


def test_it_says_how_long_its_worker_waited_and_was_alone_since_it_was_last_asked() -> None:
    with Judge("sim") as fresh:
        assert fresh.turns_s()["alone"] > 0, "the worker measured its machine"
        assert fresh.turns_s() == {}, "nobody shares a simulator"
        assert fresh.open(pattern_of(6, 5), Problem(), seed=1).judge([plain(Problem())], ())[0].correct
        spent = fresh.turns_s()
    assert spent["worker_checks"] > 0 and spent["worker_load"] > 0
    assert not {"waiting", "alone", "worker_put_set", "worker_turns_s"} & set(spent), "these don't touch the machine"


def test_a_pooled_case_times_more_programs_in_one_go(judge: Judge) -> None:
    usual, pooled = (judge.open(pattern_of(6, 5), Problem(), seed=1, pooled=each) for each in (False, True))
    assert pooled._together > usual._together > 1


def test_what_was_foreseen_is_what_the_next_programs_are_shown_and_no_others(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 60), Problem(), seed=4)
    case.foresee()
    assert case.reference._together is not None
    foreseen = dict(case.reference._together)
    drawn: list[str] = []
    make = Reference._make
    monkeypatch.setattr(
        Reference, "_make", lambda self, kind, *where: drawn.append(kind) or make(self, kind, *where)
    )  # fmt: skip
    assert only(case.judge([WAITING])).correct and not drawn
    assert all(case.reference._together[key] is foreseen[key] for key in foreseen)
    assert only(case.judge([WAITING])).correct and drawn, "the next ones are shown others"
    assert all(case.reference._together[key] is not foreseen[key] for key in foreseen)
    case.close()


def test_a_foreseen_case_still_tells_wrong_programs(judge: Judge) -> None:
    case = judge.open(pattern_of(60, 60), Problem(), seed=4)
    case.foresee()
    said = case.judge([WRONG, plain(Problem())])
    assert [each.verdict for each in said] == [Verdict.WRONG, Verdict.CORRECT]
    case.close()


@pytest.mark.parametrize(
    ("backend", "nonzeros", "expected"), [("sim", 100, 20.0), ("cuda", 100, 2.0), ("cuda", 10**9, 20.0)]
)
def test_a_program_that_hangs_on_a_gpu_is_not_waited_for_long(backend: str, nonzeros: int, expected: float) -> None:
    sandbox = SimpleNamespace(backend=backend, limit_s=20.0)
    packs = SimpleNamespace(pattern=SimpleNamespace(nonzeros=nonzeros))
    assert Desk(Problem(), packs, sandbox).patience_s == pytest.approx(expected, rel=1e-3)  # type: ignore[arg-type]


COUNTING = """\
// layout: rows index=int32
// workspace: counter int[1] zeroed
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y, int* counter)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    acc_t sum = 0;
    for (int j = row < rows ? row_start[row] : 0; j < (row < rows ? row_start[row + 1] : 0); ++j)
        sum += vals[j] * x[cols[j]];
    if (row < rows) y[row] = sum;
    if (row == 0) y[atomicAdd(counter, 1) * 1000000000] = sum;
}
"""


def test_a_later_failure_counts_before_an_earlier_wrong_result(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dirty after its first product, out of bounds in its second: the worker has dropped the layout of all by then."""
    monkeypatch.setitem(AT_ONCE, "sim", 8)
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    outcomes = case.judge([plain(Problem()), COUNTING, plain(Problem())])
    assert [each.verdict for each in outcomes] == [Verdict.CORRECT, Verdict.FAILED, Verdict.CORRECT]
    case.close()


def test_who_loses_what_the_timing_left_behind_is_timed_again_before_it_is_looked_at(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    timed, time_some = [], case._time
    monkeypatch.setattr(case, "_time", lambda entries, *rest: timed.append(len(entries)) or time_some(entries, *rest))

    def recheck(trial) -> None:
        if len(timed) == 1:
            raise Stopped(Verdict.FAILED, "crashed after it was timed")

    monkeypatch.setattr(Trial, "recheck", recheck)
    verdicts = [each.verdict.name for each in case.judge([plain(Problem()), WAITING, plain(Problem())])]
    assert verdicts == ["FAILED", "CORRECT", "CORRECT"]
    assert timed == [3, 1, 1], "both that are left were put there anew"
    case.close()


def test_a_race_leaves_out_who_hangs_in_it(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    case = judge.open(pattern_of(60, 50), Problem(), seed=1)
    as_on_a_gpu(case, monkeypatch)
    time_some = case._time

    def hanging(entries, *rest):
        if "bad" in entries:
            raise WorkerError("ran past the time limit")
        return time_some(entries, *rest)

    monkeypatch.setattr(case, "_time", hanging)
    race = case.race({"good": plain(Problem()), "bad": WAITING}, (), ("chain",), 1)
    assert set(race) == {"good"} and race.outcomes["bad"].verdict is Verdict.FAILED
    assert race.outcomes["bad"].reason == "while it was timed: ran past the time limit"


def test_nobody_keeps_others_from_timing_until_they_give_up() -> None:
    sandbox = SimpleNamespace(backend="cuda", limit_s=20.0)
    packs = SimpleNamespace(pattern=SimpleNamespace(nonzeros=10**9))
    desk = Desk(Problem(), packs, sandbox)  # type: ignore[arg-type]
    assert desk.timing_limit_s(3) == 60.0 and desk.timing_limit_s(40) == TURN_LIMIT_S / 2


def test_what_is_not_wanted_any_more_is_not_foreseen(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    case = judge.open(pattern_of(60, 60), Problem(), seed=4)
    drawn: list[str] = []
    make = Reference._make
    monkeypatch.setattr(
        Reference, "_make", lambda self, kind, *where: drawn.append(kind) or make(self, kind, *where)
    )  # fmt: skip
    case.foresee(lambda: len(drawn) < 2)
    assert len(drawn) == 2
    assert only(case.judge([WAITING])).correct, "the others are drawn when they are needed"
    case.close()
