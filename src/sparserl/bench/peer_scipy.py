"""SciPy on the CPU: a sanity row. Its time says what a product costs without a GPU; it is never a baseline.

One thread, the host's clock, the fastest caches it can have; the same figure stands in every mode. float16 and bfloat16
are multiplied in float32, because SciPy has neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import scipy.sparse

from sparserl.bench.peers import Reading, Subject
from sparserl.judge.reference import as_rows
from sparserl.matrix import Array
from sparserl.records import Timing
from sparserl.values import store, widen

SIDE = "scipy:csr"
LEAST_S = 0.002
"""a round lasts at least so long"""


class SciPy:
    """Implements `peers.Peer`."""

    name = "scipy"

    def why_not(self) -> str:
        return ""

    def measure(self, subject: Subject) -> Iterator[Reading]:
        problem, pattern, check = subject.problem, subject.matrix.pattern, subject.check
        wide = np.float64 if problem.dtype == "float64" else np.float32
        values = widen(check.values, problem.dtype).astype(wide)
        a = scipy.sparse.csr_matrix((values, pattern.cols, pattern.row_start), shape=pattern.shape)
        x = np.ascontiguousarray(as_rows(widen(check.x, problem.dtype), pattern.columns, problem.columns,
                                         problem.b_order)).astype(wide)  # fmt: skip
        x = x[:, 0] if problem.op == "spmv" else x
        product = a @ x
        flat = (product.T if problem.c_order == "col" else product).reshape(-1)
        fault = subject.wrong(store(flat, problem.dtype))
        times = _times_us(a, x, subject.rounds)
        low, lower, median, upper, high = (float(q) for q in np.quantile(times, (0.1, 0.25, 0.5, 0.75, 0.9)))
        for mode in subject.modes:
            timing = Timing(mode, "gpu", median, (low, lower, upper, high), rounds=len(times))
            more = {"how": "on the CPU, by the host's clock"}
            yield Reading(SIDE, mode, "gpu", timing, verified=not fault, fault=fault, more=more)


def _times_us(a: scipy.sparse.csr_matrix, x: Array, rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        count, began = 0, time.perf_counter()
        while not count or time.perf_counter() - began < LEAST_S:
            a @ x
            count += 1
        times.append(1e6 * (time.perf_counter() - began) / count)
    return times
