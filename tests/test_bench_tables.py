"""Tables from records: figures that can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench_records import program, race, times, write_records
from sparserl.bench import archive, bars, digest, regret, results, second_opinion, tables
from sparserl.bench.__main__ import app
from sparserl.bench.matrices import of_cases
from sparserl.errors import BackendError, StoreError
from sparserl.evaluation import Case, evaluation_list
from sparserl.records import Problem
from sparserl.store import append_jsonl, read_jsonl


def two_by_class(solver: float, **more: Any) -> list[dict[str, Any]]:
    """Two matrices whose best programs gain `solver` times 2 and `solver` over 2 in solver mode."""
    return [
        race(f"{more.get('structure', 'small')} {k}", {"cusparse:coo1": times(8.0), "cusparse:csr1": times(16.0)},
             [program("tile(pdl=False) on tiles steps=1 index=int32", times(8.0 / (solver * k)))], **more)
        for k in (2.0, 0.5)
    ]  # fmt: skip


@pytest.fixture
def standing_row() -> tables.Row:
    baselines = {"cusparse:csr1": times(6.0, 8.0), "cusparse:csr2": times(5.0, 9.0), "cusparse:sell": times(4.0, 3.0)}
    programs = [
        program("tile(steps=4) on tiles steps=4 index=abs16", times(2.0, 1.0, floor=0.5), pdl=True),
        program("rows(lanes=2) on rows index=int32", times(2.5, 2.0)),
        program("wrong(x=1) on rows index=int32", {}, verdict="WRONG", reason="row 7 is off"),
    ]
    return tables.row(race("a", baselines, programs))


def test_a_row_holds_the_best_of_each_side_in_each_mode(standing_row: tables.Row) -> None:
    solver, chain = standing_row.standings["solver"], standing_row.standings["chain"]
    assert (solver.baseline.name, solver.best.family, solver.best.partition) == ("cusparse:sell", "tile", "tiles")
    assert (solver.speedup, solver.over_csr, solver.pdl_gain, solver.plain_speedup) == (2.0, 2.5, 1.25, 1.6)
    assert (chain.speedup, chain.over_csr, chain.pdl_gain) == (3.0, 8.0, 2.0)
    assert solver.best.floor_share("solver") == 0.25
    assert standing_row.tuning_s == 0.75


def test_a_program_that_is_not_correct_never_stands_for_us() -> None:
    programs = [program("fast() on rows", times(0.1), verdict="IMPLAUSIBLE"), program("slow() on rows", times(5.0))]
    row = tables.row(race("a", {"cusparse:coo1": times(4.0)}, programs))
    assert row.standings["solver"].best.name == "slow() on rows"
    assert row.standings["solver"].speedup == 0.8


def test_means_are_geometric_and_the_lowest_is_named() -> None:
    found = tables.rows(two_by_class(1.5, structure="random"))
    one = tables.summary(found, tables.BY_KEY["random"], "solver")
    assert one.speedup == pytest.approx(1.5)  # the root of 3 times 0.75
    assert one.over_csr == pytest.approx(3.0)
    assert (one.count, one.wins, one.lowest_matrix) == (2, 0.5, "random 0.5")
    assert one.lowest == pytest.approx(0.75)
    assert one.pdl_gain == pytest.approx(1.0)


def test_a_group_without_matrices_has_no_figures() -> None:
    nothing = tables.summary([], tables.BY_KEY["real"], "chain", evaluation_list())
    assert (nothing.count, nothing.expected, nothing.speedup, nothing.wins) == (0, 55, None, None)


def test_above_the_l2_counts_the_bytes_of_csr_in_float32() -> None:
    large = {"structure": "regular", "nonzeros": 7_500_000, "rows": 1}  # 60 000 004 bytes
    exact = {"structure": "block", "nonzeros": 7_500_000, "rows": 0}
    found = tables.rows(two_by_class(1.5, **large) + two_by_class(1.5, **exact))
    assert tables.summary(found, tables.BY_KEY["large regular"], "solver").count == 2
    expected = tables.summary(found, tables.BY_KEY["large regular"], "solver", evaluation_list()).expected
    assert expected == 10


def test_a_later_record_of_a_matrix_replaces_an_earlier_one() -> None:
    early, late = (race("a", {"cusparse:coo1": times(us)}, [program("p() on rows", times(1.0))]) for us in (2.0, 3.0))
    (row,) = tables.rows([early, late])
    assert row.standings["solver"].speedup == 3.0


def test_measured_and_modelled_times_are_never_compared() -> None:
    modelled = times(1.0)
    for each in modelled.values():
        each["source"] = "modelled"
    with pytest.raises(StoreError, match="mixes"):
        tables.row(race("a", {"cusparse:coo1": times(2.0)}, [program("p() on rows", modelled)]))
    ours = race("b", {"plain:csr": modelled}, [program("p() on rows", modelled)])
    with pytest.raises(StoreError, match="modelled"):
        tables.rows([race("a", {"cusparse:coo1": times(2.0)}, [program("p() on rows", times(1.0))]), ours])


# ---- bars


def bar(found: list[bars.Bar], words: str) -> bars.Bar:
    (only,) = [each for each in found if words in each.title]
    return only


def test_bars_pass_and_miss_at_the_asked_figures() -> None:
    records = two_by_class(1.6, structure="small") + two_by_class(1.04, structure="random")
    found = bars.bars(tables.rows(records))
    assert bar(found, "generated, small").verdict == "PASS"
    assert bar(found, "generated, random").verdict == "MISS"
    assert bar(found, "generated, skewed").verdict == "OPEN"
    lowest = bar(found, "every matrix")
    assert (lowest.verdict, lowest.value) == ("MISS", pytest.approx(0.52))
    assert "random 0.5" in lowest.title


def test_bars_in_float64_are_a_tenth_lower() -> None:
    found = bars.bars(tables.rows(two_by_class(1.45, structure="small", problem="spmv float64")))
    assert bar(found, "generated, small").bar == pytest.approx(1.44)
    assert bar(found, "generated, small").verdict == "PASS"


def test_the_bar_over_csr_is_judged_in_solver_mode_and_states_the_chain() -> None:
    baselines = {"cusparse:csr1": times(4.6, 9.2), "cusparse:coo1": times(3.0)}
    found = bars.bars(tables.rows([race("a", baselines, [program("p() on rows", times(2.0))], kind="real")]))
    over = bar(found, "over cuSPARSE CSR")
    assert (over.value, over.verdict, over.beside) == (2.3, "PASS", "chain 4.60")


def test_a_matrix_without_a_right_program_misses_the_bar_of_every_matrix() -> None:
    broken = race("b", {"cusparse:coo1": times(2.0)}, [program("p() on rows", {}, verdict="FAILED")])
    lowest = bar(bars.bars(tables.rows([*two_by_class(4.0), broken])), "every matrix")
    assert (lowest.value, lowest.verdict) == (0.0, "MISS")
    assert "no right program on b" in lowest.title


def test_a_verdict_is_one_so_far_while_matrices_of_the_list_are_missing() -> None:
    found = bars.bars(tables.rows(two_by_class(1.7)), expected=evaluation_list())
    small = bar(found, "generated, small")
    assert (small.said, small.count, small.expected) == ("PASS so far", 2, 10)


def test_spmm_has_one_bar_over_all_matrices() -> None:
    found = bars.bars(tables.rows(two_by_class(1.29, problem="spmm float32 64 row row")))
    assert [(b.title, b.bar, b.verdict) for b in found] == [("all matrices", 1.3, "MISS")]


# ---- regret


def explored(name: int, cost_us: float, solver_us: float, **more: Any) -> dict[str, Any]:
    return {"matrix": "a", "problem": "spmv float32", "family": "f", "settings": {"k": name}, "pdl": False,
            "layout": "rows index=int32", "cost_us": cost_us, "solver_us": solver_us, **more}  # fmt: skip


def test_regret_is_what_the_chosen_are_slower_than_the_best_of_all() -> None:
    tried = [explored(i, cost_us=1.0 + i, solver_us=5.0 - 0.1 * i) for i in range(10)]  # the dearest is the fastest
    (found,) = regret.regrets(tried, {("spmv float32", "a"): 10}, first=4)
    assert (found.mode, found.programs, found.best_us) == ("solver", 10, pytest.approx(4.1))
    assert found.value == pytest.approx(4.7 / 4.1 - 1)
    (nothing,) = regret.regrets(tried, {("spmv float32", "a"): 10}, first=10)
    assert nothing.value == 0
    halved = [explored(i, 1.0, 1.0, matrix="b") for i in range(4)]  # where halving ran it began with four
    (again,) = regret.regrets(tried + halved, {("spmv float32", "a"): 10})
    assert (again.first, again.value) == (4, found.value)


def test_regret_chooses_by_the_estimates_of_both_modes_as_the_search_does() -> None:
    tried = [explored(i, cost_us=1.0, solver_us=3.0, chain_cost_us=2.0) for i in range(20)]
    tried.append(explored(99, cost_us=9.0, solver_us=1.0, chain_cost_us=1.0))
    (found,) = regret.regrets(tried, {("spmv float32", "a"): 21}, first=8)
    assert found.value == 0


def test_a_fault_is_no_time_and_a_choice_of_faults_alone_is_infinite_regret() -> None:
    tried = [explored(0, 1.0, 0.5, fault="off by 1"), explored(1, 9.0, 2.0)]
    (found,) = regret.regrets(tried, {("spmv float32", "a"): 2}, first=1)
    assert (found.best_us, found.value) == (2.0, float("inf"))


def test_regret_is_silent_where_the_search_was_not_full() -> None:
    assert regret.regrets([explored(0, 1.0, 1.0)], {("spmv float32", "a"): 2}) == []
    assert regret.mean([]) is None


def test_the_regret_bar_is_the_mean_and_names_the_worst() -> None:
    found = [regret.Regret(name, "spmv float32", "solver", 9, 4, 1.0, us) for name, us in (("a", 1.0), ("b", 1.03))]
    made = bars.bars([], found)
    assert made[0].value == pytest.approx(0.015)
    assert (made[0].verdict, made[0].beside) == ("MISS", "worst 3.00 % on b")


# ---- second opinion

TOOL = """
class Case:
    def __init__(self, indptr, indices, shape, size, solver):
        self.size, self.solver, self.nonzeros = size, solver, len(indices)
        assert len(indptr) == shape[0] + 1

def cusparse_times(case): return {"csr1": 4.0 + case.solver, "sell": float("nan")}
def plain_times(case): return {"lanes1": 3.0}
def bins_times(case): return {"bins0": float(case.size)}
"""


@pytest.fixture
def tool(tmp_path: Path) -> second_opinion.Tool:
    path = tmp_path / "tool.py"
    path.write_text(TOOL)
    return second_opinion.load(path)


def smallest(kind: str = "generated") -> Case:
    return min((c for c in evaluation_list() if c.kind == kind), key=lambda c: c.nonzeros)


def test_a_second_opinion_is_recorded_once_a_matrix_and_mode(tool: second_opinion.Tool, tmp_path: Path) -> None:
    case = smallest()
    for _ in range(2):
        shown = [*second_opinion.ask(tool, of_cases([case], None), Problem(), tmp_path, solver=False),
                 *second_opinion.ask(tool, of_cases([case], None), Problem(), tmp_path, solver=True)]  # fmt: skip
    assert shown == []  # the second time both are there
    chain, solver = read_jsonl(tmp_path / "anchors.jsonl")
    assert (chain["mode"], chain["cusparse"]) == ("chain", {"csr1": 4.0, "sell": None})
    assert (solver["mode"], solver["cusparse"]["csr1"], solver["bins"]) == ("solver", 5.0, {"bins0": 4.0})


class Diary:
    """A turn on a GPU that writes down who holds it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def _held(self, name: str) -> Iterator[None]:
        self.lines.append(f"{name} begins")
        yield
        self.lines.append(f"{name} ends")

    def shared(self):
        return self._held("shared")

    def exclusive(self):
        return self._held("alone")


TIMING = """
def time_us(launch):
    launch()
    return 4.0

def cusparse_times(case): return {"csr1": time_us(lambda: case.diary.lines.append("timed"))}
"""


def test_a_script_shares_the_gpu_and_has_it_alone_while_it_times(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(TOOL + TIMING)
    tool, diary = second_opinion.load(tmp_path / "tool.py"), Diary()
    tool.Case.diary = diary  # type: ignore[attr-defined]
    before = tool.time_us  # type: ignore[attr-defined]
    turns = {"turn": diary, "before": lambda: diary.lines.append("the L2 is emptied")}
    list(second_opinion.ask(tool, of_cases([smallest()], None), Problem(), tmp_path, solver=False, **turns))  # type: ignore[arg-type]
    begins = ["shared begins", "shared ends", "alone begins", "the L2 is emptied", "timed", "alone ends"]
    assert diary.lines == [*begins, "shared begins", "shared ends"]
    assert tool.time_us is before  # type: ignore[attr-defined]


def test_a_script_that_does_not_say_when_it_times_has_the_gpu_alone(tool: second_opinion.Tool, tmp_path: Path) -> None:
    diary = Diary()
    list(second_opinion.ask(tool, of_cases([smallest()], None), Problem(), tmp_path, solver=False, turn=diary))  # type: ignore[arg-type]
    assert diary.lines == ["alone begins", "alone ends"]


def test_a_second_opinion_is_on_spmv_alone(tool: second_opinion.Tool, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="spmv"):
        list(second_opinion.ask(tool, [], Problem("spmm", columns=64), tmp_path, solver=False))


def test_a_tool_that_lacks_something_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "poor.py").write_text("Case = 1")
    with pytest.raises(BackendError, match="cusparse_times"):
        second_opinion.load(tmp_path / "poor.py")
    (tmp_path / "needy.py").write_text("import a_module_that_is_not_there")
    with pytest.raises(BackendError, match="a_module_that_is_not_there"):
        second_opinion.load(tmp_path / "needy.py")
    with pytest.raises(BackendError, match=r"none\.py"):
        second_opinion.load(tmp_path / "none.py")


def test_opinions_compare_variant_by_variant_and_best_with_best() -> None:
    baselines = {"cusparse:csr1": times(9.0, 4.1), "cusparse:coo1": times(9.0, 5.0), "cusparse:bsr2": times(9.0, 1.0)}
    rows = tables.rows([race(name, baselines, [program("p() on rows", times(9.0, 2.0))]) for name in "ab"])
    timed = {"cusparse": {"csr1": 4.0, "coo1": 4.0, "sell": None}, "plain": {"lanes1": 2.4}, "bins": {"bins0": None}}
    about = {"problem": "spmv float32", "mode": "chain"}
    anchors = [{"matrix": "a", **about, **timed}, {"matrix": "b", **about, **timed, "plain": {"lanes1": 1.9}}]
    (found,) = second_opinion.opinions(anchors, rows)
    assert (found.matrices, found.variants, found.agreeing) == (2, 4, 0.5)
    assert found.difference == pytest.approx((0.025 + 0.25) / 2)
    assert (found.lowest_matrix, found.lowest) == ("b", pytest.approx(0.95))
    assert found.mean == pytest.approx((1.2 * 0.95) ** 0.5)
    verdicts = [b.verdict for b in bars.bars(rows, opinions=[found]) if "second opinion" in b.title]
    assert verdicts == ["MISS", "MISS", "MISS"]


def test_its_best_may_be_cusparse_itself() -> None:
    rows = tables.rows([race("a", {"cusparse:csr1": times(4.0)}, [program("p() on rows", times(2.0))])])
    record = {"matrix": "a", "problem": "spmv float32", "mode": "solver", "cusparse": {"csr1": 3.0},
              "plain": {"lanes1": 6.0}, "bins": {}}  # fmt: skip
    (found,) = second_opinion.opinions([record], rows)
    assert (found.mean, found.mean_over_kernels) == (pytest.approx(1.5), pytest.approx(3.0))


# ---- on disk and in a terminal


def test_packed_records_read_the_same_and_take_later_ones(tmp_path: Path) -> None:
    write_records(tmp_path)
    before = archive.read(tmp_path, "raced")
    written = archive.pack(tmp_path)
    assert {path.name for path in written} == {"raced.jsonl.zst", "finalists.jsonl.zst"}
    assert not list(tmp_path.glob("*.jsonl"))
    assert archive.read(tmp_path, "raced") == before
    append_jsonl(tmp_path / "raced.jsonl", {"matrix": "later"})
    assert archive.read(tmp_path, "raced") == [*before, {"matrix": "later"}]
    archive.pack(tmp_path)
    assert archive.read(tmp_path, "raced") == [*before, {"matrix": "later"}]
    assert archive.pack(tmp_path) == []


def test_packing_a_folder_without_records_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="explore"):
        archive.pack(tmp_path)
    with pytest.raises(StoreError, match="race"):
        results.load(tmp_path)


def test_broken_archives_are_named(tmp_path: Path) -> None:
    (tmp_path / "raced.jsonl.zst").write_bytes(b"not zstandard")
    with pytest.raises(StoreError, match=r"raced\.jsonl\.zst"):
        archive.read(tmp_path, "raced")


def test_the_table_command_prints_every_matrix_and_bar(tmp_path: Path) -> None:
    names = write_records(tmp_path)
    said = CliRunner().invoke(app, ["table", str(tmp_path)])
    assert said.exit_code == 0
    for words in (*names, "PASS so far", "generated, regular and block above the L2", "spmm float32 64 row row"):
        assert words in said.output


def test_the_markdown_table_goes_between_the_markers_of_a_file(tmp_path: Path) -> None:
    write_records(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{digest.BEGIN}\nold\n{digest.END}\nafter\n")
    assert CliRunner().invoke(app, ["table", str(tmp_path), "--into", str(readme)]).exit_code == 0
    text = readme.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("\nafter\n")
    assert text == f"before\n{digest.markdown(results.load(tmp_path))}\nafter\n"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    assert len(rows) == 2 + len(tables.GROUPS)
    readme.write_text("no markers")
    with pytest.raises(StoreError, match="figures: begin"):
        digest.write_into(readme, "x")


def test_brief_timings_are_put_away_with_four_digits_and_races_with_all(tmp_path: Path) -> None:
    times = {"solver_us": 53.5564321, "chain_us": None, "registers": 30, "name": "1.23456"}
    for name, key in (("explored", {"settings": {"share": 0.123456}}), ("raced", {})):
        append_jsonl(tmp_path / f"{name}.jsonl", {"matrix": "a", "problem": "p", **key, **times})
    archive.pack(tmp_path)
    (brief,), (raced,) = (archive.read(tmp_path, name) for name in ("explored", "raced"))
    assert {**times, "solver_us": 53.56}.items() <= brief.items() and times.items() <= raced.items()
    assert brief["settings"] == {"share": 0.123456}
