"""Tiles: every thread holds exactly `steps` entries, rows take as many neighbouring threads as they need.

The address of a thread's entries follows from its number alone, so columns and values are on their way at once; which
row they belong to is read beside them. Long rows are cut into pieces, one block each, and added up in fixed order by
the block that finishes last. How many pieces there are is compiled in, so where no row is cut nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sparserl.recipes.writer import Kernel, Recipe, code, line, make, times, when
from sparserl.records import Problem, Workspace

PIECES = (
    Workspace("partial", "acc_t", "max(1, pieces)", "scratch"),
    Workspace("arrived", "int", "max(1, pieces)", "zeroed"),
)


def by_tile(
    problem: Problem, *, steps: int, threads: int, order: str, load: str, index: str, pdl: bool, split: bool
) -> Recipe:
    """`split`: for matrices with rows longer than a block holds. The text is the same: it is right for all of them."""
    based = index == "int16"
    vector = order == "lane" and steps > 1
    name = "stream_load" if load == "stream" else "load"
    one = "stream({0} + j)" if load == "stream" else "{0}[j]"
    base = "base + " if based else ""
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int thread = threadIdx.x;
        {when(vector, f"const int first = (blockIdx.x * {threads} + thread) * {steps};")}
        {when(vector, f"const pack<index_t, {steps}> c = {name}<{steps}>(cols + first);")}
        {when(vector, f"const pack<value_t, {steps}> v = {name}<{steps}>(vals + first);")}
        {when(not vector, f"index_t c[{steps}];")}
        {when(not vector, f"value_t v[{steps}];")}
        {when(not vector, "#pragma unroll")}
        {when(not vector, f"for (int s = 0; s < {steps}; ++s) {{")}
        {when(not vector, f"const int j = ({times('blockIdx.x', steps)} + s) * {threads} + thread;")}
        {when(not vector, f"c[s] = {one.format('cols')};")}
        {when(not vector, f"v[s] = {one.format('vals')};")}
        {when(not vector, "}")}
        {when(based, "const int base = col_base[blockIdx.x];")}
        const int2 mine = work[blockIdx.x];
        const int lanes = mine.x;
        const bool leads = (thread & (lanes - 1)) == 0;
        const int row = leads ? row_of[mine.y + (thread >> (__ffs(lanes) - 1))] : -1;
        {when(pdl, "pdl_wait();")}
        acc_t sum = 0;
        #pragma unroll
        for (int s = 0; s < {steps}; ++s)
        if (!is_padding(c[s])) sum += v[s] * x[{base}c[s]];
        for (int o = min(lanes, 32) >> 1; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
        if (lanes > 32) {{
        __shared__ acc_t warps[{threads // 32}];
        if (thread % 32 == 0) warps[thread / 32] = sum;
        __syncthreads();
        if (leads)
        for (int w = 1; w < lanes / 32; ++w) sum += warps[thread / 32 + w];
        }}
        if (PIECES > 0 && blockIdx.x < PIECES) {{
        const int piece = piece_info[blockIdx.x] >> 12, count = piece_info[blockIdx.x] & 4095;
        if (count > 1) {{
        if (thread == 0) partial[blockIdx.x] = sum;
        if (!last_block_done(arrived + piece, count)) return;
        sum = 0;
        for (int i = thread; i < count; i += {threads}) sum += fresh(partial + piece + i);
        sum = block_sum<{threads}>(sum);
        }}
        }}
        if (row >= 0) y[row] = sum;
    """)
    return make(
        "tile", problem, line("tiles", index, steps=steps, threads=threads, order=order),
        [Kernel("spmv", "blocks", threads, body, pdl=pdl)], bake=("PIECES",), workspaces=PIECES,
        load=load, pdl=pdl, split=split,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every tile recipe for SpMV. Odd numbers of steps are for rows that they fit without padding."""
    for split in (False, True):
        for steps in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16):
            vector = steps in (2, 4, 8)
            for order in ("step", "lane") if vector else ("step",):
                for threads in _thread_choices(steps, split):
                    make_tile = partial(by_tile, problem, steps=steps, threads=threads, order=order, split=split)
                    for index in ("int32", "abs16"):
                        for pdl in (False, True):
                            yield make_tile(load="cached", index=index, pdl=pdl)
                    if threads in (128, 256, 512) and steps > 1:
                        for index, pdl in (("int32", False), ("int32", True), ("int16", False)):
                            yield make_tile(load="stream", index=index, pdl=pdl)


def _thread_choices(steps: int, split: bool) -> tuple[int, ...]:
    if steps not in (1, 2, 4, 8, 16):
        return (128, 256)
    return (64, 128, 256, 512, 1024) if split else (64, 128, 256, 512)
