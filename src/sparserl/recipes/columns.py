"""Column blocks: a piece of x in shared memory, 16-bit columns. For gathers that the L2 can't feed fast enough."""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.entries import zero_kernel
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, over, rest, times
from sparserl.records import Problem


def by_column_block(problem: Problem, *, width: int, threads: int, lanes: int, waves: int) -> Recipe:
    """Thread blocks share a column block between them; pieces of rows are added to y atomically."""
    body = code(f"""
        extern __shared__ value_t staged[];
        const int parts = gridDim.x / blocks;
        const int block = blockIdx.x / parts, part = blockIdx.x % parts;
        const int first = block_start[block], count = block_start[block + 1] - first;
        const int each = div_up(div_up(count, parts), {threads // lanes}) * {threads // lanes};
        if (part * each >= count) return;
        shared_copy(staged, x + block * {width}, min({width}, columns - block * {width}));
        __syncthreads();
        const int stop = first + min(count, (part + 1) * each);
        const int lane = {rest("threadIdx.x", lanes)};
        for (int k = 0; k < each; k += {threads // lanes}) {{
        const int entry = first + part * each + k + {over("threadIdx.x", lanes)};
        const int end = entry < stop ? entry_start[entry + 1] : 0;
        acc_t sum = 0;
        #pragma unroll 4
        for (int j = entry < stop ? entry_start[entry] + lane : 0; j < end; j += {lanes})
        sum += stream(vals + j) * staged[stream(cols + j)];
        sum = warp_sum<{lanes}>(sum);
        if (entry < stop && lane == 0) atomicAdd(y + entry_row[entry], sum);
        }}
    """)
    kernels = [
        zero_kernel(),
        Kernel(
            "spmv", f"blocks * max(1, {times('sms', waves)} / blocks)", threads, body,
            shared=f"min(columns, {width}) * {problem.value_bytes}",
        ),
    ]  # fmt: skip
    return make(
        "column_blocks", problem, line("colblocks", "int16", width=width), kernels, deterministic=False,
        threads=threads, lanes=lanes, waves=waves,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every column-block recipe for SpMV."""
    for width in (8192, 16384, 24576, 49152):
        if width * problem.value_bytes <= 200_000:
            for threads in (512, 1024):
                for lanes in (1, 2, 4, 8, 32):
                    for waves in (1, 2):
                        yield by_column_block(problem, width=width, threads=threads, lanes=lanes, waves=waves)
