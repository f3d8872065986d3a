"""cuSPARSE's variants before a case, with a worker that multiplies with SciPy in place of the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparserl import families
from sparserl.judge.baselines import Baselines
from sparserl.judge.reference import Reference, reordered
from sparserl.matrix import Matrix
from sparserl.records import Problem

SPMM = Problem("spmm", "float32", columns=4)


class ScipyDesk:
    """Three variants a memory order; 'bad' is wrong by one element."""

    def __init__(self, pattern: Any) -> None:
        self.pattern, self.held, self.sets = pattern, {}, {}
        self.ran: list[str] = []

    def has_baselines(self, mark: str) -> bool:
        return mark in self.held

    def baselines(self, pattern: Any, order: Problem, values: np.ndarray, mark: str) -> tuple[str, ...]:
        self.held[mark] = (order, values)
        return tuple(f"cusparse:{name}{mark}" for name in ("csr1", "csr2", "bad"))

    def handed(self, check: Any) -> str:
        self.sets[check.key] = check
        return str(check.key)

    def call(self, command: str, name: str, check: str, y_count: int, part: Any) -> np.ndarray:
        assert command == "run_baseline" and part is None
        order, values = self.held["@" + name.partition("@")[2] if "@" in name else ""]
        b = reordered(self.sets[check].x, self.pattern.columns, order.b_order, "row").reshape(self.pattern.columns, -1)
        y = (Matrix(self.pattern, values).to_scipy() @ b).astype(np.float32).ravel()
        y[-1] += "bad" in name
        self.ran.append(name)
        return reordered(y, self.pattern.rows, "row", order.c_order)


@pytest.fixture
def desk() -> ScipyDesk:
    return ScipyDesk(families.make("banded", 3, rows=60, diagonals=5, reach=9, fill=0.8))


def baselines_of(desk: ScipyDesk, problem: Problem = SPMM) -> Baselines:
    check = Reference(desk.pattern, problem, 7).draw_chain(row_sums=False)
    return Baselines(desk.pattern, problem, desk, check)  # type: ignore[arg-type]


def test_those_that_are_wrong_are_left_out_with_a_warning(desk: ScipyDesk, caplog: pytest.LogCaptureFixture) -> None:
    assert baselines_of(desk).put() == ("cusparse:csr1", "cusparse:csr2")
    assert "The baseline 'cusparse:bad' is left out" in caplog.text


def test_every_order_has_its_own_and_each_is_looked_at_once(desk: ScipyDesk) -> None:
    found = baselines_of(desk)
    names = found.put(every_order=True)
    assert names == ("cusparse:csr1", "cusparse:csr2", "cusparse:csr1@col", "cusparse:csr2@col")
    assert len(desk.ran) == 6
    assert found.put(every_order=True) == names and len(desk.ran) == 6


def test_a_case_that_never_asked_for_every_order_still_races_one_by_name(desk: ScipyDesk) -> None:
    baselines_of(desk).put_named(["cusparse:csr1@col"])
    assert desk.has_baselines("@col") and "cusparse:csr1@col" in desk.ran
    other = ScipyDesk(desk.pattern)
    baselines_of(other).put_named([])
    assert not other.held
    baselines_of(other).put_named(["cusparse:csr1"])
    assert set(other.held) == {""}


def test_what_the_worker_lost_is_put_and_looked_at_again(desk: ScipyDesk) -> None:
    found = baselines_of(desk)
    names = found.put(every_order=True)
    desk.held.clear()
    assert found.put(every_order=True) == names and len(desk.ran) == 12


def test_an_spmv_has_no_memory_orders(desk: ScipyDesk) -> None:
    baselines_of(desk, Problem("spmv", "float32")).put(every_order=True)
    assert set(desk.held) == {""}
