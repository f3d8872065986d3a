"""SpMM with several groups of lanes a row: each takes every `parts`-th entry, a block adds their sums in fixed order.

For matrices with too few rows to fill the machine, and for rows of a hundred entries among short ones: what a group
walks alone, entry after entry, is the time of the product there.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.spmm import Columns, vectors, when_many
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, over, rest, times, when
from sparserl.records import Problem


def by_part(
    problem: Problem, *, lanes: int, vec: int, tile: int, parts: int, threads: int, unroll: int, index: str, pdl: bool
) -> Recipe:
    """`parts` groups of `lanes` threads a row, `threads` a block."""
    mine, each = Columns(lanes, vec, tile), threads // (lanes * parts)
    width, guarded = mine.width, problem.columns % mine.width != 0
    over_rows = f"div_up(rows, {each})" if each > 1 else "rows"
    body = code(f"""
        __shared__ acc_t partial[{threads // lanes * width}];
        {when(pdl, "pdl_trigger();")}
        const int tiles = div_up(N, {width});
        const int group = threadIdx.x / {lanes}, lane = threadIdx.x % {lanes}, part = {rest("group", parts)};
        const int row = {times("blockIdx.x / tiles", each)}{when_many(each, f" + {over('group', parts)}")};
        const int column = blockIdx.x % tiles * {width} + {times("lane", vec)};
        {when(pdl, "pdl_wait();")}
        const int end = row < rows ? row_start[row + 1] : 0;
        {mine.declared}
        #pragma unroll {unroll}
        for (int j = row < rows ? row_start[row] + part : 0; j < end; j += {parts}) {{
        {mine.entry(guarded)}
        }}
        if (part > 0) {{
        {mine.each(f"partial[{times('group', width)} + {mine.slot}] = {mine.sum};")}
        }}
        __syncthreads();
        if (part > 0 || row >= rows) return;
        for (int p = group + 1; p < group + {parts}; ++p) {{
        {mine.each(f"{mine.sum} += partial[{times('p', width)} + {mine.slot}];")}
        }}
        {mine.store(problem, guarded)}
    """)
    return make(
        "spmm_split", problem, line("rows", index),
        [Kernel("spmm", f"{over_rows} * div_up(n, {width})", threads, body, pdl=pdl)], bake=("N",),
        lanes=lanes, vec=vec, tile=tile, parts=parts, threads=threads, unroll=unroll, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every split recipe: row-major B, up to 128 columns at once, one row a block or as many as 256 threads hold."""
    n = problem.columns
    for vec in vectors(problem):
        for lanes in (8, 16, 32):
            tile = min(2, -(-n // (lanes * vec)))
            if lanes * vec * tile < min(n, 128) or (lanes > 8 and lanes * vec >= 2 * n):
                continue
            for parts in (2, 4, 8, 16):
                for threads in sorted({max(64, lanes * parts), max(256, lanes * parts)}):
                    for unroll in (2, 4):
                        for index, pdl in (("int32", False), ("abs16", False), ("int32", True)):
                            yield by_part(
                                problem, lanes=lanes, vec=vec, tile=tile, parts=parts, threads=threads, unroll=unroll,
                                index=index, pdl=pdl,
                            )  # fmt: skip
