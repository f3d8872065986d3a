"""Most rows empty: a block zeroes the rows it owns in one sweep, then multiplies the few that hold something.

The sweep writes whole sectors one after the other and needs no list of empty rows; the barrier behind it orders it
before the sums.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.slices import walk_slice
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, over, times, when
from sparserl.records import Problem


def by_window(
    problem: Problem, *, window: int, lanes: int, batch: int, load: str, index: str, pdl: bool
) -> Recipe:
    """A block a window of filled rows, `lanes` threads a row."""
    c, threads = 32 // lanes, window * lanes
    row = f"blockIdx.x * {window} + {over('threadIdx.x', lanes)}"
    walk = walk_slice(
        lanes=lanes, group=lanes, step=32, early=0, load=load, based=False, pdl=pdl, batch=batch
    )  # fmt: skip
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int place = {row};
        const int slice = {over("place", c)};
        const int last_row = span_start[blockIdx.x + 1];
        int begin = 0, end = 0, row = -1;
        if (slice < slices) {{
        begin = slice_start[slice];
        end = slice_start[slice + 1];
        row = row_of[place];
        }}
        {when(pdl, "pdl_wait();")}
        for (int r = span_start[blockIdx.x] + threadIdx.x; r < last_row; r += {threads}) y[r] = 0;
        __syncthreads();
        const int first = begin + {times(f"(place % {c})", lanes) + f" + threadIdx.x % {lanes}" if lanes > 1 else "place % 32"};
        acc_t sum = 0;
        {walk.replace("pdl_wait();", "~")}
        {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
        if (row >= 0{f" && threadIdx.x % {lanes} == 0" if lanes > 1 else ""}) y[row] = sum;
    """)  # noqa: E501
    return make(
        "filled_slices", problem, line("filled", index, c=c, window=window, group=lanes),
        [Kernel("spmv", "windows", threads, body, pdl=pdl)],
        lanes=lanes, threads=threads, batch=batch, load=load, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every recipe over windows of filled rows for SpMV."""
    for lanes in (1, 2, 4, 8):
        for window in (32, 64, 128, 256, 512):
            if 64 <= window * lanes <= 512:
                for batch in (4, 8):
                    for index in ("int32", "abs16"):
                        for load, pdl in (("stream", False), ("cached", False), ("cached", True)):
                            yield by_window(
                                problem, window=window, lanes=lanes, batch=batch, load=load, index=index, pdl=pdl
                            )
