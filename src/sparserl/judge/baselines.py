"""What a user has without us on a GPU: cuSPARSE's variants for one case, put in the worker, each looked at once there.

A library that is called wrongly is no baseline: variants whose product is not right are left out, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparserl.judge.desk import Desk
from sparserl.judge.reference import ValueSet, reordered
from sparserl.judge.trial import part_of
from sparserl.judge.verify import compare
from sparserl.matrix import Pattern
from sparserl.records import Order, Problem

log = logging.getLogger(__name__)
ORDER_MARK = "@"
BOTH: tuple[Order, ...] = ("row", "col")


class Baselines:
    """Of one case, which has them multiply by the values of `check`."""

    def __init__(self, pattern: Pattern, problem: Problem, desk: Desk, check: ValueSet) -> None:
        self._pattern, self._problem, self._desk, self._check = pattern, problem, desk, check
        self._right: dict[str, tuple[str, ...]] = {}

    def put(self, every_order: bool = False) -> tuple[str, ...]:
        """The names of those that are right. every_order: of an SpMM also on row-major and on column-major B and C.

        The latter's names end in '@row' or '@col'. Raises WorkerError.
        """
        orders = [self._problem]
        if every_order and self._problem.op == "spmm":
            orders += [replace(self._problem, b_order=order, c_order=order) for order in BOTH]
        found: list[str] = []
        for order in dict.fromkeys(orders):
            mark = "" if order == self._problem else f"{ORDER_MARK}{order.b_order}"
            if not self._desk.has_baselines(mark) or mark not in self._right:
                self._right[mark] = tuple(self._put_and_looked_at(order, mark))
            found += self._right[mark]
        return tuple(found)

    def put_named(self, names: Sequence[str]) -> None:
        """Those that `names` may be among. Raises WorkerError."""
        if names:
            self.put(every_order=any(ORDER_MARK in name for name in names))

    def _put_and_looked_at(self, order: Problem, mark: str) -> Iterator[str]:
        desk, check, problem = self._desk, self._check, self._problem
        x = reordered(check.x, self._pattern.columns, problem.b_order, order.b_order)
        names = desk.baselines(self._pattern, order, check.values, mark)
        turned = desk.handed(replace(check, key=check.key + mark, x=x))
        count, part = self._pattern.rows * problem.columns, part_of(order, check)
        for name in names:
            y = desk.call("run_baseline", name=name, check=turned, y_count=count, part=part)
            if len(y):
                y = reordered(y, self._pattern.rows, order.c_order, problem.c_order)
            if reason := compare(self._pattern, problem, check, y):
                log.warning("The baseline '%s' is left out: %s", name, reason)
            else:
                yield name
