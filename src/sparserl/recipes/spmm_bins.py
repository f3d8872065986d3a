"""SpMM for uneven rows: a block for each segment of a long row, a group of lanes for each of the others.

The groups of a block take every so-manieth entry of its segment and add up in fixed order; where a row has several
segments, the one that arrives last adds those. All in one launch, the long rows first.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.spmm import Columns, vectors
from sparserl.recipes.spmm_items import ITEMS, add_segments, segment_workspaces
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, times
from sparserl.records import Problem


def by_bin(
    problem: Problem, *, lanes: int, vec: int, tile: int, threads: int, unroll: int, longest: int, segment: int,
    index: str,
) -> Recipe:  # fmt: skip
    """Rows of more than `longest` entries are shared by the groups of a block; all N columns are in registers."""
    mine, groups = Columns(lanes, vec, tile), threads // lanes
    width, guarded = mine.width, problem.columns % mine.width != 0
    body = code(f"""
        __shared__ acc_t other[{groups * width}];
        const int group = threadIdx.x / {lanes}, lane = threadIdx.x % {lanes};
        const bool together = blockIdx.x < segments;
        const int item = together ? blockIdx.x : segments + (blockIdx.x - segments) * {groups} + group;
        if (item >= {ITEMS}) return;
        const int4 mine = work[item];
        const int row = mine.x, column = {times("lane", vec)};
        if (row < 0) return;
        const int step = together ? {groups} : 1;
        {mine.declared}
        #pragma unroll {unroll}
        for (int j = mine.y + (together ? group : 0); j < mine.z; j += step) {{
        {mine.entry(guarded)}
        }}
        if (together) {{
        {mine.each(f"other[{times('group', width)} + {mine.slot}] = {mine.sum};")}
        __syncthreads();
        if (group > 0) return;
        for (int g = 1; g < {groups}; ++g) {{
        {mine.each(f"{mine.sum} += other[{times('g', width)} + {mine.slot}];")}
        }}
        const int first = mine.w >> 12, count = mine.w & 4095;
        if (count > 1) {{
        {add_segments(mine, "lane", not guarded)}
        }}
        }}
        {mine.store(problem, guarded)}
    """)
    grid = f"segments + div_up({ITEMS} - segments, {groups})"
    return make(
        "spmm_bins", problem, line("bins", index, per=32, long=longest, segment=segment, threads=64),
        [Kernel("spmm", grid, threads, body)], bake=("N",), workspaces=segment_workspaces(lanes),
        lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=unroll,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every such recipe: row-major B, shapes that hold all N columns at once."""
    n = problem.columns
    for vec in vectors(problem):
        for lanes in (8, 16, 32):
            tile = -(-n // (lanes * vec))
            if tile > 2 or (lanes > 8 and lanes * vec >= 2 * n):
                continue
            for threads in (128, 256, 512):
                for longest, segment in ((32, 128), (32, 256), (64, 256), (64, 1024), (128, 512)):
                    for index in ("int32", "abs16"):
                        yield by_bin(
                            problem, lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=4, longest=longest,
                            segment=segment, index=index,
                        )  # fmt: skip
