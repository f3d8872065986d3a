"""What a matrix would cost without us, measured beside its programs: the best of cuSPARSE, or the plain CSR program.

cuSPARSE's variants are timed in the same process and by the same plan as the programs, an SpMM in the problem's memory
order and with column-major B and C; the fastest in each mode are timed again, longer. Not covered: whether the
library's product is right, which the judge checks wherever results are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sparserl.backends.backend import Executable, TimingPlan
from sparserl.bench.explore import Effort, Explorer
from sparserl.bench.machine import Machine
from sparserl.errors import BackendError
from sparserl.judge import plain
from sparserl.matrix import Pattern
from sparserl.program import parse
from sparserl.recipes import Recipe
from sparserl.records import Problem
from sparserl.values import store

if TYPE_CHECKING:
    from sparserl.backends.cuda import CudaBackend

FINALISTS = 2
"""variants a mode that are timed longer"""


def baseline_us(
    machine: Machine, explorer: Explorer, pattern: Pattern, problem: Problem, efforts: tuple[Effort, Effort]
) -> dict[str, float]:
    """Microseconds of the best baseline by mode. `efforts`: the brief one and the longer one."""
    if machine.name != "cuda":
        text = plain.plain(problem)
        recipe = Recipe(plain.NAME, (), parse(text).layout, text, 0)
        return next(iter(explorer.measure([recipe], efforts[1]))).times_us
    from sparserl.backends.cuda import CudaBackend

    assert isinstance(machine.inner, CudaBackend)
    ready = _variants(machine, machine.inner, pattern, problem)
    brief, longer = efforts
    found: dict[str, float] = {}
    for mode in brief.modes:
        names = list(ready)
        for effort in (brief, longer):
            plan = explorer.plan(mode, effort)
            times_us = _timed(machine, ready, names, plan)
            names = sorted(times_us, key=times_us.__getitem__)[:FINALISTS]
        if times_us:
            found[mode] = min(times_us.values())
    return found


def _timed(
    machine: Machine, ready: Mapping[str, Executable], names: Sequence[str], plan: TimingPlan
) -> dict[str, float]:
    if not names:
        return {}
    readings = machine.time([ready[name] for name in names], plan)
    return {name: float(np.median(each)) for name, each in zip(names, readings, strict=True)}


def _variants(machine: Machine, backend: CudaBackend, pattern: Pattern, problem: Problem) -> dict[str, Executable]:
    from sparserl.backends import cusparse

    numbers = store(np.random.default_rng(0).standard_normal(pattern.nonzeros), problem.dtype)
    values = machine.as_backend.upload({"": numbers})[""]
    orders = [problem]
    if problem.op == "spmm":
        orders.append(replace(problem, b_order="col", c_order="col"))
    ready: dict[str, Executable] = {}
    for order in dict.fromkeys(orders):
        for name in cusparse.variants(order, pattern):
            try:
                made = cusparse.prepare(backend, name, pattern, order, values, held=machine.turn.shared)
            except BackendError:  # too little memory for this format: there are others
                continue
            if not isinstance(made, str):
                ready[f"{name}@{order.b_order}"] = made
    return ready
