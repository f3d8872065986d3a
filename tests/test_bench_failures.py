"""A matrix that fails stays in every figure: of its split and class, as lost, and in the modes that it failed in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparserl.bench import archive, faults, figures, matrices, run, tuned
from sparserl.bench.figures import OPERATOR, Standing
from sparserl.bench.run import Bench, BenchConfig
from sparserl.records import Mode, Problem
from sparserl.splits import cases

SMALL = "family:stencil2d,nx=12,ny=10,points=5"


def config(*modes: Mode, **more: Any) -> BenchConfig:
    return BenchConfig(Problem(), "sim", modes or ("solver",), policy="recipes", candidates=1, rounds=1, **more)


def standings(out: Path) -> dict[str, Standing]:
    """By mode, of the one matrix in a folder."""
    return {s.mode: s for s in figures.standings(archive.read(out, "bench"))}


def broken(*_: Any) -> None:
    raise ZeroDivisionError("in the middle of it")


def test_a_listed_matrix_that_cannot_be_read_is_still_one_of_its_split_and_class(tmp_path: Path) -> None:
    case = min((c for c in cases("real") if c.kind == "real"), key=lambda c: c.nonzeros)
    with Bench(config(), tmp_path) as bench:
        (step,) = bench.run(matrices.entries([case.name], tmp_path))
    assert "is not in" in step.fault
    (found,) = standings(tmp_path).values()
    assert (found.origin, found.split, found.structure, found.headline) == ("real", "real", case.structure, True)
    assert (found.rows, found.nonzeros) == (case.rows, case.nonzeros) and found.group and found.fault == step.fault
    made = figures.summary([found])
    assert (made.count, made.failed, made.lost, made.wins, made.worst) == (0, 1, 1, 0.0, 0.0)
    assert made.worst_matrix == case.name


@pytest.mark.parametrize("seed", [3, 1_000_000])
def test_a_spec_that_cannot_be_made_is_in_a_headline_if_no_training_seed_draws_it(tmp_path: Path, seed: int) -> None:
    with Bench(config(), tmp_path) as bench:
        list(bench.run(matrices.entries([f"family:uniform,rows=50,colour=blue,seed={seed}"])))
    (found,) = standings(tmp_path).values()
    assert (found.headline, found.split) == ((False, "train") if seed == 1_000_000 else (True, "fresh"))
    assert found.failed and found.group == "uniform"


def test_a_spec_that_lacks_what_it_is_made_of_says_so(tmp_path: Path) -> None:
    with Bench(config(), tmp_path) as bench:
        (step,) = bench.run(matrices.entries(["family:permuted,how=both"]))
    assert "of" in step.fault and "KeyError" not in step.fault


def test_a_tuning_that_crashes_is_lost_though_there_is_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "explore", broken)
    with Bench(config(), tmp_path) as bench:
        list(bench.run(matrices.entries([SMALL])))
    (found,) = standings(tmp_path).values()
    assert found.baseline_us is None and found.structure == "small"
    assert figures.summary([found]).worst == 0.0


def test_a_failure_is_not_forgotten_when_another_mode_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = matrices.entries([SMALL])
    with monkeypatch.context() as patched, Bench(config("solver"), tmp_path) as bench:
        patched.setattr(tuned, "explore", broken)
        list(bench.run(wanted))
    with Bench(config("cold"), tmp_path) as bench:
        (step,) = bench.run(wanted)
        assert step.speedups["cold"] > 0
        assert not list(bench.run(wanted, retry=True)), "what is asked for has not failed"
    found = standings(tmp_path)
    assert list(found) == ["solver", "cold"] and found["solver"].failed and not found["cold"].failed
    assert "middle" in found["solver"].fault and found["cold"].fault == ""
    assert figures.summary([found["solver"]]).lost == 1
    record = next(r for r in archive.read(tmp_path, "bench") if r["kind"] == "matrix")
    assert record["fault"].startswith("solver: ZeroDivisionError")
    with Bench(config("solver"), tmp_path) as bench:
        (step,) = bench.run(wanted, retry=True)
    assert not step.fault and {s.failed for s in standings(tmp_path).values()} == {False}


def record(modes: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"kind": "matrix", "matrix": "a", "problem": "spmv float32", "modes": list(modes), **more}


def test_what_was_known_of_a_mode_stays_until_it_is_measured_again() -> None:
    earlier = record(["solver", "chain"], fault="chain: wrong", faults={"chain": "wrong"},
                     winners={"solver": 1, "chain": 2}, tuning_s_by_mode={"solver": 1.0, "chain": 2.0})  # fmt: skip
    later = faults.joined(earlier, record(["cold", "chain"], winners={"cold": 3}, tuning_s_by_mode={"cold": 3.0}))
    assert later["modes"] == ["cold", "chain", "solver"] and "fault" not in later
    assert later["winners"] == {"solver": 1, "cold": 3} and later["tuning_s_by_mode"] == {"solver": 1.0, "cold": 3.0}
    assert faults.joined(None, earlier) is earlier


def test_an_older_record_has_its_fault_in_every_mode() -> None:
    assert faults.of(record(["solver", "chain"], fault="x")) == {"solver": "x", "chain": "x"}
    joined = faults.joined(record(["solver"], fault="x"), record(["cold"]))
    assert joined["faults"] == {"solver": "x"} and joined["fault"] == "solver: x"


def test_one_reason_for_all_modes_is_told_once() -> None:
    made = record(["solver", "chain"])
    faults.told(made, {"solver": "no room", "chain": "no room"})
    assert made["fault"] == "no room"


def test_an_operator_that_is_wrong_when_raced_is_a_fault_of_that_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run._readings

    def spoilt(*given: Any) -> Any:
        for reading in whole(*given):
            if reading.side == OPERATOR and reading.mode == "chain":
                object.__setattr__(reading, "verified", False)
                object.__setattr__(reading, "fault", "wrong: row 3")
            yield reading

    monkeypatch.setattr(run, "_readings", spoilt)
    with Bench(config("solver", "chain"), tmp_path) as bench:
        (step,) = bench.run(matrices.entries([SMALL]))
    assert step.fault == "chain: the operator, raced once more: wrong: row 3"
    found = standings(tmp_path)
    assert not found["solver"].failed and not found["solver"].fault and found["chain"].failed
