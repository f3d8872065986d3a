"""Sorted slices for the short rows, a warp for each segment of a long one, in one launch.

The segments come first, so the longest work starts first. Segments of one row are added up in fixed order by the warp
that arrives last.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.bins import SEGMENTS
from sparserl.recipes.slices import walk_slice
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, times, when
from sparserl.records import Problem


def by_split(
    problem: Problem, *, sigma: int, group: int, lanes: int, long: int, segment: int, threads: int, early: int,
    load: str, index: str, pdl: bool, batch: int = 0,
) -> Recipe:  # fmt: skip
    """A warp a slice: `lanes` threads a row, so slices of 32 / lanes rows."""
    c = 32 // lanes
    width = group if lanes == 1 else 1
    one = ("stream(vals + j)", "stream(cols + j)") if load == "stream" else ("vals[j]", "cols[j]")
    walk = walk_slice(
        lanes=lanes, group=group, step=32 * width, early=early, load=load, based=False, pdl=pdl, batch=batch
    )
    # a slice is 32 lanes wide, whatever their mapping: lane l of it reads slots l * width + …, 32 * width apart
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int warp = (blockIdx.x * {threads} + threadIdx.x) / 32, lane = threadIdx.x % 32;
        if (warp < segments) {{
        const int4 mine = work[warp];
        {when(pdl, "pdl_wait();")}
        acc_t sum = 0;
        #pragma unroll 8
        for (int j = mine.y + lane; j < mine.z; j += 32) sum += {one[0]} * x[{one[1]}];
        sum = warp_sum<32>(sum);
        const int first = mine.w >> 12, count = mine.w & 4095;
        if (count > 1) {{
        int last = 0;
        if (lane == 0) {{
        partial[warp] = sum;
        last = last_arrival(arrived + first, count);
        }}
        __syncwarp();
        if (!__shfl_sync(0xffffffffu, last, 0)) return;
        sum = 0;
        for (int i = lane; i < count; i += 32) sum += fresh(partial + first + i);
        sum = warp_sum<32>(sum);
        }}
        if (lane == 0) y[mine.x] = sum;
        return;
        }}
        const int slice = warp - segments;
        if (slice >= slices) return;
        const int first = slice_start[slice] + {times("lane", width)}, end = slice_start[slice + 1];
        const int row = row_of[{times("slice", c)} + {"lane" if lanes == 1 else f"lane / {lanes}"}];
        acc_t sum = 0;
        {walk}
        {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
        if (row >= 0{f" && lane % {lanes} == 0" if lanes > 1 else ""}) y[row] = sum;
    """)
    layout = line("split", index, c=c, sigma=sigma, group=group, long=long, segment=segment)
    return make(
        "split_slices", problem, layout,
        [Kernel("spmv", f"div_up(segments + slices, {threads // 32})", threads, body, pdl=pdl)],
        bake=() if batch else ("PADDED",), workspaces=SEGMENTS,
        lanes=lanes, threads=threads, early=early, load=load, pdl=pdl, batch=batch or None,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every split recipe for SpMV."""
    for group, lanes in ((1, 1), (2, 1), (4, 1), (4, 4), (8, 8)):
        for long, segment in ((32, 512), (64, 1024), (128, 1024), (256, 2048)):
            for sigma in (256, 16384, 1048576):
                for index in ("int32", "abs16"):
                    for early, load, pdl in (
                        (0, "stream", False), (0, "cached", False), (4, "cached", False), (4, "cached", True),
                    ):  # fmt: skip
                        deep = max(1, early // (group if lanes == 1 else 1)) if early else 0
                        yield by_split(
                            problem, sigma=sigma, group=group, lanes=lanes, long=long, segment=segment, threads=128,
                            early=deep, load=load, index=index, pdl=pdl,
                        )  # fmt: skip
    for lanes in (1, 2, 4):
        for long, segment in ((32, 512), (64, 1024), (256, 2048)):
            for sigma in (256, 16384, 1048576):
                for index in ("int32", "abs16"):
                    for threads, batch in ((128, 4), (128, 8), (256, 8), (512, 8)):
                        yield by_split(
                            problem, sigma=sigma, group=lanes, lanes=lanes, long=long, segment=segment,
                            threads=threads, early=0, load="stream", index=index, pdl=False, batch=batch,
                        )  # fmt: skip
