"""Row bins in one launch: 1 to 32 lanes a row by its length, a block for each segment of a long row.

The bin follows from the block's number; a row's place in A comes with its descriptor. Split rows are added up in fixed
order by the segment that arrives last.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.rows import row_loop
from sparserl.recipes.slices import walk_batches
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, over, rest, when
from sparserl.records import Problem, Workspace

SEGMENTS = (
    Workspace("partial", "acc_t", "max(1, segments)", "scratch"),
    Workspace("arrived", "int", "max(1, segments)", "zeroed"),
)

HELPER = """\
template <int LANES>
__device__ void few_lanes(int4 mine, int lane, const index_t* __restrict__ cols, const value_t* __restrict__ vals,
                          const value_t*{restrict} x, value_t*{restrict} y)
{{
    const int first = mine.y + lane, end = mine.z;
    acc_t sum = 0;
{loop}
    sum = warp_sum<LANES>(sum);
    if (mine.x >= 0 && lane == 0) y[mine.x] = sum;
}}"""


def by_bin(
    problem: Problem, *, per: int, long: int, segment: int, threads: int, early: int, index: str, load: str, pdl: bool,
    batch: int = 0,
) -> Recipe:  # fmt: skip
    """One launch for all bins. `batch`: so many entries at a time, the last ones of a row too."""

    def loop(lanes: int | str) -> str:
        if batch:
            return walk_batches(step=lanes, batch=batch, load=load, based=False, pdl=pdl)
        return row_loop(lanes=lanes, early=early, unroll=4, load=load, based=False, pdl=pdl)

    helper = HELPER.format(restrict="" if pdl else " __restrict__", loop=code(loop("LANES")))
    bins = "\n".join(
        f"if (block >= b{t}) return few_lanes<{t}>(work[d{t} + (block - b{t}) * {threads // t} + {over('thread', t)}], "
        f"{rest('thread', t)}, cols, vals, x, y);"
        for t in (1, 2, 4, 8, 16, 32)
    )
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int block = blockIdx.x, thread = threadIdx.x;
        {bins}
        const int4 mine = work[block];
        const int first = mine.y + thread, end = mine.z;
        acc_t sum = 0;
        {loop(threads)}
        sum = block_sum<{threads}>(sum);
        const int segment = mine.w >> 12, count = mine.w & 4095;
        if (count > 1) {{
        if (thread == 0) partial[block] = sum;
        if (!last_block_done(arrived + segment, count)) return;
        sum = 0;
        for (int i = thread; i < count; i += {threads}) sum += fresh(partial + segment + i);
        sum = block_sum<{threads}>(sum);
        }}
        if (thread == 0) y[mine.x] = sum;
    """)
    layout = line("bins", index, per=per, long=long, segment=segment, threads=threads)
    return make(
        "row_bins", problem, layout, [Kernel("spmv", "blocks", threads, body, pdl=pdl)], workspaces=SEGMENTS,
        helpers=helper, early=early, load=load, pdl=pdl, batch=batch or None,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every row-bin recipe for SpMV."""
    for per, long, segment in (
        (1, 64, 1024), (1, 256, 1024), (2, 128, 1024), (2, 512, 2048), (4, 256, 2048), (4, 1024, 4096),
        (8, 1024, 4096), (16, 2048, 8192),
    ):  # fmt: skip
        for threads in (128, 256, 512):
            for index in ("int32", "abs16"):
                for early, load, pdl in (
                    (0, "cached", False), (2, "cached", False), (4, "cached", False), (2, "cached", True),
                    (4, "cached", True),
                ):  # fmt: skip
                    yield by_bin(
                        problem, per=per, long=long, segment=segment, threads=threads, early=early, index=index,
                        load=load, pdl=pdl,
                    )  # fmt: skip
            for batch, load, index in (
                (0, "stream", "int32"), (4, "stream", "int32"), (8, "stream", "int32"), (4, "cached", "int32"),
                (4, "cached", "abs16"),
            ):  # fmt: skip
                yield by_bin(
                    problem, per=per, long=long, segment=segment, threads=threads, early=0, index=index, load=load,
                    pdl=False, batch=batch,
                )  # fmt: skip
