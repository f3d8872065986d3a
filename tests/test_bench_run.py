"""The benchmark: records, resuming, peers that fail, and matrices by every name they may have."""

from __future__ import annotations

import ctypes
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import typer
from typer.testing import CliRunner

from sparserl import splits
from sparserl.backends.backend import Device, RunReport, TimingPlan
from sparserl.bench import archive, command, figures, matrices, peer_launched, tuned
from sparserl.bench.figures import OPERATOR
from sparserl.bench.peer_command import Command, parse_peer
from sparserl.bench.peer_scipy import SciPy
from sparserl.bench.peers import Reading, Subject, without_pdl
from sparserl.bench.run import COSTS, Bench, BenchConfig, Finished
from sparserl.bench.watermark import Watermark
from sparserl.errors import TRY_AGAIN, MatrixError, SparseRLError, StoreError
from sparserl.evaluation import evaluation_list
from sparserl.judge.plain import plain
from sparserl.matrix import Matrix, Pattern
from sparserl.records import Problem

SMALL = "family:stencil2d,nx=12,ny=10,points=5"
OTHER = "family:uniform,rows=90,columns=80,per_row=5,seed=3"
CONFIG = BenchConfig(Problem(), "sim", ("solver",), policy="recipes", candidates=2, rounds=2)


def subject(problem: Problem = Problem(), text: str = SMALL) -> Subject:  # noqa: B008 - frozen
    (entry,) = matrices.entries([text])
    return Subject("a", entry.load(), problem, ("solver", "chain"), rounds=3)


# ── the run, on the simulator ─────────────────────────────────────────────────


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Finished]]:
    """A folder after a run that was stopped behind its first matrix and went on."""
    out = tmp_path_factory.mktemp("bench")
    (out / "broken.mtx").write_text("hello\n")
    (out / "list.txt").write_text(
        f"# two, and one that can't be read\n{SMALL}\nbroken.mtx  # beside the list\n{OTHER}\n"
    )
    wanted = matrices.entries([str(out / "list.txt")])
    with Bench(CONFIG, out) as bench:
        first = next(bench.run(wanted))
        rest = list(bench.run(wanted))
        assert not list(bench.run(wanted)), "what is done is not done again"
    return out, [first, *rest]


def test_a_second_call_goes_on_and_a_failed_matrix_is_a_record(finished: tuple[Path, list[Finished]]) -> None:
    out, steps = finished
    assert [(s.done, s.total) for s in steps] == [(1, 3), (2, 3), (3, 3)]
    assert "hello" in steps[1].fault and not steps[0].fault and not steps[2].fault
    assert steps[0].mean == pytest.approx(steps[0].speedups["solver"])
    both = [s.speedups["solver"] for s in (steps[0], steps[2])]
    assert steps[2].mean == pytest.approx(np.sqrt(both[0] * both[1]))
    records = archive.read(out, "bench")
    names = [r["matrix"] for r in records if r["kind"] == "matrix"]
    assert len(names) == len(set(names)) == 3
    assert "mean so far" in command.line(steps[0]) and "failed: " in command.line(steps[1])


def test_records_hold_all_that_a_page_needs(finished: tuple[Path, list[Finished]]) -> None:
    records = archive.read(finished[0], "bench")
    (about,) = [r for r in records if r["kind"] == "about"]  # told twice, kept once
    assert about["source"] == "modelled" and about["candidates"] == 2
    assert {"device", "driver", "versions", "policy", "date", "command", "l2_bytes"} <= about.keys()
    record = next(r for r in records if r["kind"] == "matrix" and not r.get("fault"))
    assert record["run"] == about["id"] and record["structure"] == "small" and record["split"] == "fresh"
    assert sum(map(sum, record["spy"]["counts"])) == record["nonzeros"] == record["features"]["nonzeros"]
    assert sum(record["row_histogram"]["counts"]) == record["rows"]
    assert record["winner"]["text"].startswith("// layout: ") and record["tuning_s"] > 0
    assert {"judge", "race", "rank"} <= record["phases_s"].keys()
    assert record["peak_host_bytes"] > 1e6 and record["peak_memory_bytes"] is None, "there is no GPU's memory here"
    assert {"worker_checks", "worker_time"} <= record["worker_s"].keys()
    assert {"pack", "compile", "verify", "time"} <= record["programs_s"].keys()
    assert sum(record["worker_s"].values()) < record["tuning_s"]
    assert len(record["candidates"]) == 2
    best = record["candidates"][0]
    assert best["sha"] == record["winner"]["sha"] and best["verdict"] == "correct" and best["origin"] == "recipe"
    assert best["times_us"]["solver"] > 0 and record["packed_bytes"] > 0
    times = {r["side"]: r for r in records if r["kind"] == "time" and r["matrix"] == record["matrix"]}
    assert times.keys() >= {OPERATOR, "plain:csr"}
    for each in times.values():
        assert each["verified"] and each["source"] == "modelled" and each["mode"] == "solver"
        assert each["median_us"] >= 0.95 * each["floor_us"] > 0 and len(each["quantiles_us"]) == 4
    (standing,) = [s for s in figures.standings(records) if s.matrix == record["matrix"]]
    assert standing.speedup == pytest.approx(times["plain:csr"]["median_us"] / times[OPERATOR]["median_us"])


def test_what_is_shown_says_that_times_are_modelled(finished: tuple[Path, list[Finished]]) -> None:
    said = command.show(archive.read(finished[0], "bench"))
    assert "modelled by the simulator, not measured" in said
    assert "generated, held out" in said and "spmv float32" in said


def test_the_command_passes_over_what_is_done_and_shows_the_figures(finished: tuple[Path, list[Finished]]) -> None:
    app = typer.Typer()
    app.command()(command.bench)
    arguments = ["--matrices", SMALL, "--matrices", OTHER, "--device", "sim", "--candidates", "2", "--rounds", "2"]
    arguments += ["--policy", "recipes"]
    before = (finished[0] / "bench.jsonl").read_bytes()
    done = CliRunner().invoke(app, [*arguments, "--out", str(finished[0])])
    assert done.exit_code == 0, done.output
    assert "modelled by the simulator" in done.output and "over the best variant" in done.output
    assert (finished[0] / "bench.jsonl").read_bytes() == before


def test_a_further_mode_keeps_what_is_known_of_the_others(tmp_path: Path) -> None:
    wanted = matrices.entries([SMALL])
    for mode in ("solver", "chain"):
        with Bench(BenchConfig(Problem(), "sim", (mode,), policy="recipes", candidates=1, rounds=1), tmp_path) as bench:
            assert [s.speedups.keys() for s in bench.run(wanted)] == [{mode}]
            assert not list(bench.run(wanted))
    both = BenchConfig(Problem(), "sim", ("solver", "chain"), policy="recipes", candidates=1, rounds=1)
    with Bench(both, tmp_path) as bench:
        assert not list(bench.run(wanted))
    record = [r for r in archive.read(tmp_path, "bench") if r["kind"] == "matrix"][-1]
    assert record["tuning_s_by_mode"].keys() == record["winners"].keys() == {"solver", "chain"}


def test_a_call_whose_time_was_up_says_so_with_its_code(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command.bench)
    asked = ["--matrices", SMALL, "--device", "sim", "--candidates", "1", "--policy", "recipes", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, [*asked, "--budget", "-1"]).exit_code == TRY_AGAIN
    assert not [r for r in archive.read(tmp_path, "bench") if r["kind"] == "matrix"]


def test_processes_side_by_side_keep_no_seconds_of_a_tuning(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command.bench)
    asked = ["--matrices", SMALL, "--matrices", OTHER, "--device", "sim", "--candidates", "1", "--rounds", "1"]
    done = CliRunner().invoke(app, [*asked, "--policy", "recipes", "--share", "0/2", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (record,) = [r for r in archive.read(tmp_path, "bench") if r["kind"] == "matrix"]
    assert record["winner"] and not any(record[name] for name in COSTS)
    (standing,) = figures.standings(archive.read(tmp_path, "bench"))
    assert standing.speedup and standing.tuning_s is None and standing.peak_memory_bytes is None


def test_another_number_of_candidates_needs_another_folder(finished: tuple[Path, list[Finished]]) -> None:
    out = finished[0]
    before = (out / "bench.jsonl").read_bytes()
    with (
        Bench(BenchConfig(Problem(), "sim", policy="recipes", candidates=3), out) as bench,
        pytest.raises(StoreError, match="candidates"),
    ):
        next(bench.run(matrices.entries([SMALL])))
    assert (out / "bench.jsonl").read_bytes() == before


def test_measured_and_modelled_runs_never_share_a_folder(tmp_path: Path) -> None:
    old = {"kind": "about", "id": "0", "source": "gpu", "device": "NVIDIA H200"}
    (tmp_path / "bench.jsonl").write_text(json.dumps(old) + "\n")
    with Bench(CONFIG, tmp_path) as bench, pytest.raises(StoreError, match="never mixed"):
        next(bench.run(matrices.entries([SMALL])))


def test_a_tuning_that_breaks_costs_one_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("in the middle of it")

    monkeypatch.setattr(tuned, "explore", broken)
    with Bench(CONFIG, tmp_path) as bench:
        first, second = bench.run(matrices.entries([SMALL, OTHER]))
        assert first.fault == second.fault == "ZeroDivisionError: in the middle of it"
        monkeypatch.undo()
        assert not list(bench.run(matrices.entries([SMALL])))
        (again,) = bench.run(matrices.entries([SMALL]), retry=True)
    assert not again.fault and again.speedups["solver"] > 0


def test_a_program_that_is_not_right_leaves_the_baseline_and_a_fault(tmp_path: Path) -> None:
    wrong = plain(Problem()).replace("y[row] = to_value(sum)", "y[row] = to_value(sum + 1)")
    (tmp_path / "wrong.cu").write_text(wrong)
    config = BenchConfig(Problem(), "sim", policy=str(tmp_path / "wrong.cu"), candidates=1, rounds=1)
    with Bench(config, tmp_path / "out") as bench:
        (step,) = bench.run(matrices.entries([SMALL]))
    assert "no candidate was verified" in step.fault and "wrong" in step.fault and not step.speedups
    made = figures.summary(figures.standings(archive.read(tmp_path / "out", "bench")))
    assert (made.failed, made.worst, made.wins) == (1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "part"),
    [({"device": "auto"}, "cuda or sim"), ({"modes": ()}, "modes"), ({"modes": ("warm",)}, "solver"),
     ({"modes": ("solver", "solver")}, "modes"), ({"candidates": 0}, "candidates"), ({"rounds": 0}, "rounds"),
     ({"policy": "nowhere"}, "nowhere"), ({"tune_mode": "warm"}, "mode")],
)  # fmt: skip
def test_a_wrong_setting_is_told_before_anything_starts(change: dict[str, Any], part: str) -> None:
    with pytest.raises(SparseRLError, match=part):
        BenchConfig(**{"problem": Problem(), "device": "sim", "policy": "recipes", **change})


# ── matrices ──────────────────────────────────────────────────────────────────


def test_a_folder_a_file_a_list_and_words_are_matrices(tmp_path: Path) -> None:
    for name, size in (("big", 9), ("small", 3)):
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", scipy.sparse.eye_array(size).tocoo())
    (tmp_path / "notes.md").write_text("no matrix")
    assert [e.name for e in matrices.entries([str(tmp_path)])] == ["small", "big"]
    (tmp_path / "list.txt").write_text(f"\n# comment\nbig.mtx\n{OTHER}\n{tmp_path}/small.mtx\n")
    assert [e.name for e in matrices.entries([str(tmp_path / "list.txt")])] == ["big", OTHER[7:], "small"]
    assert len(matrices.entries(["evaluation"])) == len(evaluation_list()) == 115
    assert len(matrices.entries(["evaluation", evaluation_list()[0].name])) == 115
    (tmp_path / "named.txt").write_text(f"mine = {OTHER}  # as it is called in tables\n")
    (named,) = matrices.entries([str(tmp_path / "named.txt")])
    assert named.name == "mine" and named.spec == matrices.entries([OTHER])[0].spec
    with pytest.raises(MatrixError, match="no folder, file, list"):
        matrices.entries([str(tmp_path / "none.mtx")])
    with pytest.raises(MatrixError, match="no matrix"):
        (tmp_path / "empty").mkdir()
        matrices.entries([str(tmp_path / "empty")])
    with pytest.raises(MatrixError, match="no family"):
        matrices.entries(["family:nonesuch"])


def test_the_fresh_matrices_of_the_headline_are_unknown_to_training_and_to_the_evaluation_list() -> None:
    runs = Path(__file__).parents[1] / "runs"
    found = matrices.entries([str(runs / "fresh.txt"), str(runs / "fresh_large.txt")])
    specs = [entry.spec for entry in found]
    assert len({str(spec) for spec in specs}) == len(found) == 46
    seeds = {case.seed for case in evaluation_list()}
    for spec in specs:
        assert spec is not None
        assert not splits.may_train(spec) and spec.seed not in seeds
        assert matrices._split_of(spec) == matrices.FRESH


def test_a_matrix_is_known_by_its_pattern_whatever_its_file_is_called(tmp_path: Path) -> None:
    case = min((c for c in evaluation_list() if c.kind == "generated"), key=lambda c: c.nonzeros)
    pattern = case.load()
    scipy.io.mmwrite(tmp_path / "mine.mtx", Matrix(pattern, np.ones(pattern.nonzeros)).to_scipy().tocoo())
    (entry,) = matrices.entries([str(tmp_path)])
    where = matrices.place(entry, entry.load().pattern)
    assert where.structure == case.structure and where.origin == "generated"
    assert not where.headline, "the work on recipes has seen it"


def test_a_training_seed_is_never_in_a_headline() -> None:
    placed = {}
    for seed in (3, 1_000_000, 8_000_000_000):
        (entry,) = matrices.entries([f"family:uniform,rows=50,columns=50,per_row=4,seed={seed}"])
        placed[seed] = matrices.place(entry, entry.load().pattern)
    assert [(p.split, p.headline) for p in placed.values()] == [("fresh", True), ("train", False), ("fresh", True)]
    (withheld,) = matrices.entries(["family:road,nx=9,ny=9,kept=0.8,window=0,seed=1"])
    assert matrices.place(withheld, withheld.load().pattern).split == "unseen"


def test_a_setting_the_family_does_not_have_is_a_matrix_error() -> None:
    (entry,) = matrices.entries(["family:stencil2d,nx=4,ny=4,points=5,colour=blue"])
    with pytest.raises(MatrixError, match="colour"):
        entry.load()
    with pytest.raises(MatrixError, match="key=value"):
        matrices.entries(["family:stencil2d,nx"])


def test_the_spy_plot_and_the_histogram_count_everything_once() -> None:
    pattern = Pattern.from_coordinates(100, 3, np.array([0, 0, 0, 99]), np.array([0, 1, 2, 2]))
    found = tuned.spy(pattern, 4)
    assert np.asarray(found["counts"]).tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert tuned.row_histogram(pattern) == {"edges": [0, 1, 2, 4], "counts": [98, 1, 1]}


# ── peers ─────────────────────────────────────────────────────────────────────


def test_the_program_without_dependent_launch_differs_in_nothing_else() -> None:
    text = plain(Problem()).replace(">>>\n", ">>> pdl\n")
    assert without_pdl(plain(Problem())) is None
    assert without_pdl(text) == plain(Problem())


@pytest.mark.parametrize(
    "problem",
    [Problem(), Problem("spmv", "float64"), Problem("spmm", "float32", 3), Problem("spmm", "float16", 2, "col", "col"),
     Problem("spmm", "bfloat16", 2, "col", "row")],
    ids=str,
)  # fmt: skip
def test_scipy_is_verified_in_every_type_and_order(problem: Problem) -> None:
    found = list(SciPy().measure(subject(problem, OTHER)))
    assert [(r.mode, r.verified, r.fault) for r in found] == [("solver", True, ""), ("chain", True, "")]
    assert found[0].timing is not None and found[0].timing.median_us > 0 and "CPU" in found[0].record()["how"]


PRODUCT = """
import sys, numpy, scipy.io
a, x = scipy.io.mmread(sys.argv[1]).tocsr(), numpy.fromfile(sys.argv[2], sys.argv[4])
(a.astype(sys.argv[4]) @ x).astype(sys.argv[4]).tofile(sys.argv[3])
print("format", "time_us 99"); print("time_us 12.5"); print("time_us 11.5"); print("time_us 13")
"""


def external(tmp_path: Path, code: str, rest: str = "{mtx} {x} {y} {dtype}") -> Command:
    (tmp_path / "peer.py").write_text(code)
    return parse_peer(f"mine={shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'peer.py'))} {rest}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_another_program_is_timed_by_its_lines_and_verified_by_its_result(tmp_path: Path, dtype: Any) -> None:
    peer = external(tmp_path, PRODUCT)
    found = list(peer.measure(subject(Problem("spmv", dtype))))
    assert peer.why_not() == "" and [r.mode for r in found] == ["solver", "chain"]
    for reading in found:
        assert reading.verified and not reading.fault and reading.timing is not None
        assert reading.timing.median_us == 12.5 and reading.timing.rounds == 3


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (PRODUCT.replace("@ x)", "@ x + 1)"), "row 0"),
        (PRODUCT.replace(".tofile(sys.argv[3])", ""), "wrote no result"),
        (PRODUCT.replace("@ x)", "@ x)[:5]"), "5 results"),
        ("print('all well')", "printed no line 'time_us 12.3': 'all well'"),
        ("print('time_us nan')", "printed no line"),
        ("print('time_us -3')", "a time of -3.0 us"),
        ("import sys; sys.exit('out of memory')", "exit code 1: out of memory"),
        ("import time; time.sleep(60)", "took longer than 0.5 s"),
    ],
    ids=["wrong", "no result", "short", "no time", "not a number", "negative", "exit code", "hangs"],
)
def test_a_program_that_misbehaves_is_a_record(tmp_path: Path, code: str, part: str) -> None:
    made = external(tmp_path, code)
    peer = Command(made.name, made.command, timeout_s=0.5 if "sleep" in code else 60)
    for reading in peer.measure(subject()):
        record = reading.record()
        assert part in record["fault"] and not record["verified"] and record["side"] == "mine"


def test_a_program_that_writes_no_result_is_shown_and_never_verified(tmp_path: Path) -> None:
    found = list(external(tmp_path, "print('time_us 7')", "{mtx}").measure(subject()))
    assert [(r.verified, r.fault) for r in found] == [(False, "")] * 2
    record = {"matrix": "a", "problem": "spmv float32", "kind": "time", **found[0].record()}
    about = {"kind": "matrix", "matrix": "a", "problem": "spmv float32", "modes": ["solver"]}
    assert figures.standings([about, record])[0].times_us == {}


@pytest.mark.parametrize(
    "text", ["ginkgo", "a b=cmd {mtx}", "a=cmd", "a=", "a=cmd {mtx} {matrix}", "a=cmd '{mtx}", "a=cmd {mtx} {"]
)
def test_a_peer_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SparseRLError, match="peer"):
        parse_peer(text)


def test_a_program_that_is_not_there_takes_no_part() -> None:
    assert "no-such-program" in parse_peer("a=no-such-program {mtx}").why_not()


class Memory:
    """A buffer in host memory."""

    def __init__(self, size_bytes: int) -> None:
        self.data = np.zeros(size_bytes, dtype=np.uint8)
        self.pointer, self.size_bytes = self.data.ctypes.data, size_bytes


class HostBackend:
    """Runs and times what is handed to it in this process; 'refuses' says which can't be captured."""

    name = "cuda"

    def device(self) -> Device:
        return Device("cuda", "a host", "sm_90", 1, 1 << 20, 1.0, 1.0)

    def alloc(self, size_bytes: int) -> Memory:
        return Memory(size_bytes)

    def write(self, buffer: Memory, array: Any) -> None:
        buffer.data[: array.nbytes] = array.view(np.uint8)

    def fill(self, buffer: Memory, byte: int) -> None:
        buffer.data[:] = byte

    def read(self, buffer: Memory, dtype: Any, count: int) -> Any:
        return buffer.data[: count * dtype.itemsize].view(dtype).copy()

    def run(self, executable: Any, x: Memory, y: Memory) -> RunReport:
        executable.launch(x.pointer, y.pointer, 0)
        return RunReport(True)

    def clock_mhz(self) -> int:
        return 0

    def time(self, executables: Any, plan: TimingPlan) -> list[list[float]]:
        if any(each.refuses for each in executables):
            raise RuntimeError("not while a stream is captured")
        self.repetitions = (1,) * len(executables)
        return [[each.us] * plan.rounds for each in executables]

    def floor_us(self, plan: TimingPlan) -> float:
        return 0.5


class Multiply:
    """A `Launched` and its Executable in one; `add` makes it wrong from product number `after` on."""

    def __init__(self, name: str, us: float, *, add: float = 0.0, after: int = 0, refuses: bool = False) -> None:
        self.name, self.us, self.add, self.after, self.refuses, self.count = name, us, add, after, refuses, 0

    def why_not(self) -> str:
        return ""

    def orders(self, problem: Problem) -> Problem:
        return problem

    def prepare(self, of: Subject) -> Any:
        if self.us < 0:
            raise RuntimeError("CUSPARSE_STATUS_NOT_SUPPORTED")
        pattern = of.matrix.pattern
        self.a = scipy.sparse.csr_matrix((of.check.values, pattern.cols, pattern.row_start), shape=pattern.shape)
        return self

    def launch(self, x: int, y: int, stream: int = 0) -> None:
        rows, columns = self.a.shape
        source = np.ctypeslib.as_array(ctypes.cast(x, ctypes.POINTER(ctypes.c_float)), (columns,))
        target = np.ctypeslib.as_array(ctypes.cast(y, ctypes.POINTER(ctypes.c_float)), (rows,))
        target[:] = self.a @ source + (self.add if self.count >= self.after else 0.0)
        self.count += 1


class Watch:
    """A stopwatch that always reads the same."""

    elapsed_ms = 0.2

    def around(self, stream: int) -> Any:
        return nullcontext()

    def close(self) -> None:
        pass


def beside(*members: Multiply) -> Iterator[Reading]:
    return peer_launched.SideBySide(HostBackend(), members, nullcontext).measure(subject())  # type: ignore[arg-type]


def test_libraries_are_timed_together_and_each_fault_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_launched, "Stopwatch", Watch)
    found = {(r.side, r.mode): r for r in beside(
        Multiply("good", 3.0), Multiply("wrong", 1.0, add=1.0), Multiply("breaks", -1.0),
        Multiply("late", 2.0, add=1.0, after=1), Multiply("uncaptured", 9.0, refuses=True),
    )}  # fmt: skip
    assert len(found) == 10
    for mode in ("solver", "chain"):
        good = found["good", mode].record()
        assert good["median_us"] == 3.0 and good["verified"] and good["how"] == "in CUDA graphs"
        assert "row 0" in found["wrong", mode].fault and found["wrong", mode].timing is None
        assert "NOT_SUPPORTED" in found["breaks", mode].fault
        assert not found["late", mode].verified and "row 0" in found["late", mode].fault
        streamed = found["uncaptured", mode].record()
        assert streamed["verified"] and streamed["median_us"] == pytest.approx(1000 * 0.2 / peer_launched.STREAMED)
        assert streamed["how"] == "on a stream, back to back"


def test_the_watermark_sees_what_was_taken() -> None:
    with Watermark(on_gpu=False) as mark:
        held = np.ones(60_000_000, dtype=np.uint8)
    assert mark.host_bytes > held.nbytes


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem", [Problem(), Problem("spmm", "float32", 32), Problem("spmm", "float32", 8, "col", "col")], ids=str
)
def test_every_peer_is_verified_on_a_gpu(tmp_path: Path, problem: Problem) -> None:
    config = BenchConfig(problem, "cuda", ("solver", "chain"), policy="recipes", candidates=2, rounds=3)
    with Bench(config, tmp_path) as bench:
        (step,) = bench.run(matrices.entries(["family:stencil2d,nx=60,ny=50,points=5"]))
    assert not step.fault and step.speedups.keys() == {"solver", "chain"}
    times = [r for r in archive.read(tmp_path, "bench") if r["kind"] == "time"]
    sides = {r["side"] for r in times if r["verified"]}
    assert {OPERATOR, "cusparse:csr1", "cusparse:coo1", "torch:csr", "scipy:csr"} <= sides
    assert all(r["clock_mhz"] > 0 for r in times if r["side"] == OPERATOR)
