"""ELL for the common part of the rows, a second launch for what long rows have left."""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.diagonals import tail_kernel
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, when
from sparserl.records import Problem


def by_hybrid(problem: Problem, *, cover: int, threads: int, unroll: int, lanes: int, index: str, pdl: bool) -> Recipe:
    """A thread a row in the ELL part; `lanes` threads a row in the tail."""
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        {when(pdl, "pdl_wait();")}
        const int row = blockIdx.x * {threads} + threadIdx.x;
        if (row >= rows) return;
        const int first = (row / 32) * 32 * width + row % 32;
        acc_t sum = 0;
        #pragma unroll {unroll}
        for (int k = 0; k < width; ++k) {{
        const index_t column = cols[first + k * 32];
        if (!PADDED || !is_padding(column)) sum += vals[first + k * 32] * x[column];
        }}
        y[row] = sum;
    """)
    kernels = [
        Kernel("spmv", f"div_up(rows, {threads})", threads, body, pdl=pdl),
        tail_kernel(lanes, pdl, "cols[j]", "vals[j]"),
    ]
    return make(
        "hybrid", problem, line("hybrid", index, c=32, cover=cover), kernels, bake=("PADDED",),
        threads=threads, unroll=unroll, tail_lanes=lanes, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every ELL-and-tail recipe for SpMV."""
    for cover in (50, 75, 90, 95, 99):
        for lanes in (4, 32):
            for index in ("int32", "abs16"):
                for pdl in (False, True):
                    yield by_hybrid(
                        problem, cover=cover, threads=128, unroll=4, lanes=lanes, index=index, pdl=pdl
                    )
