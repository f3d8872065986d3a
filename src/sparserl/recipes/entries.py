"""Work cut by entries instead of rows: merge-path tiles and COO chunks. For the most skewed matrices."""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.writer import Kernel, Recipe, code, line, make, over, rest, when
from sparserl.records import Problem, Workspace

CARRY = (Workspace("carry", "acc_t", "tiles", "scratch"),)


def by_merge_path(problem: Problem, *, items: int, threads: int, lanes: int, index: str, pdl: bool) -> Recipe:
    """A block a tile: products into shared memory, `lanes` threads a row add them up.

    A row that a tile does not finish leaves its part in `carry`; the second launch adds the carries of earlier tiles to
    the rows that they belong to, in tile order.
    """
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        __shared__ acc_t products[{items}];
        const int begin = tile_entry[blockIdx.x], end = tile_entry[blockIdx.x + 1];
        const int first_row = tile_row[blockIdx.x], last_row = tile_row[blockIdx.x + 1];
        {when(pdl, "pdl_wait();")}
        #pragma unroll 4
        for (int j = begin + threadIdx.x; j < end; j += {threads}) products[j - begin] = vals[j] * x[cols[j]];
        __syncthreads();
        const int lane = {rest("threadIdx.x", lanes)};
        const int last_group = first_row + div_up(last_row - first_row + 1, {threads // lanes}) * {threads // lanes};
        for (int row = first_row + {over("threadIdx.x", lanes)}; row < last_group; row += {threads // lanes}) {{
        const bool mine = row <= last_row && row < rows;
        const int stop = mine ? min(row_start[row + 1], end) - begin : 0;
        acc_t sum = 0;
        for (int j = mine ? max(row_start[row], begin) - begin + lane : 0; j < stop; j += {lanes}) sum += products[j];
        sum = warp_sum<{lanes}>(sum);
        if (mine && lane == 0) {{
        if (row < last_row) y[row] = sum;
        else carry[blockIdx.x] = sum;
        }}
        }}
        if (threadIdx.x == 0 && last_row >= rows) carry[blockIdx.x] = 0;
    """)
    fix = code(f"""
        {when(pdl, "pdl_wait();")}
        const int tile = blockIdx.x * 128 + threadIdx.x;
        if (tile >= tiles) return;
        const int row = tile_row[tile];
        if (row >= rows || row == tile_row[tile + 1] || row_start[row] >= tile_entry[tile]) return;
        acc_t sum = 0;
        int from = tile;
        while (from > 0 && tile_row[from] == row) --from;
        for (int t = from; t < tile; ++t) sum += carry[t];
        y[row] += sum;
    """)
    kernels = [
        Kernel("spmv", "tiles", threads, body, pdl=pdl),
        Kernel("fix", "div_up(tiles, 128)", 128, fix, pdl=pdl),
    ]
    return make(
        "merge_path", problem, line("merge", index, items=items), kernels, workspaces=CARRY,
        threads=threads, lanes=lanes, pdl=pdl,
    )  # fmt: skip


def zero_kernel(pdl: bool = False) -> Kernel:
    """y = 0, for what is added to it atomically."""
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        {when(pdl, "pdl_wait();")}
        const int row = blockIdx.x * 256 + threadIdx.x;
        if (row < rows) y[row] = 0;
    """)
    return Kernel("zero", "div_up(rows, 256)", 256, body, pdl=pdl)


def by_chunk(problem: Problem, *, size: int, threads: int, index: str, pdl: bool) -> Recipe:
    """A warp a chunk; runs of equal rows are summed inside the warp and added to y atomically."""
    body = code(f"""
        {when(pdl, "pdl_wait();")}
        const int chunk = blockIdx.x * {threads // 32} + threadIdx.x / 32;
        if (chunk >= chunks) return;
        const int lane = threadIdx.x % 32;
        const int end = min(nonzeros, (chunk + 1) * {size});
        #pragma unroll 2
        for (int block = chunk * {size}; block < end; block += 32) {{
        const int j = block + lane;
        const int row = j < end ? row_index[j] : -1;
        const acc_t product = j < end ? vals[j] * x[cols[j]] : acc_t(0);
        const acc_t sum = warp_segmented_sum(product, row);
        const int next = __shfl_down_sync(0xffffffffu, row, 1);
        if (row >= 0 && (lane == 31 || next != row)) atomicAdd(y + row, sum);
        }}
    """)
    kernels = [
        zero_kernel(pdl),
        Kernel("spmv", f"div_up(chunks, {threads // 32})", threads, body, pdl=pdl),
    ]
    return make(
        "coo_chunks", problem, line("chunks", index, size=size), kernels, deterministic=False,
        threads=threads, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every merge-path and COO recipe for SpMV."""
    for pdl in (False, True):
        for index in ("int32", "abs16"):
            for items, threads in ((256, 64), (512, 128), (1024, 256), (2048, 256)):
                for lanes in (1, 4, 16):
                    yield by_merge_path(problem, items=items, threads=threads, lanes=lanes, index=index, pdl=pdl)
            for size in (32, 64, 128, 256, 1024):
                for threads in (128, 256):
                    yield by_chunk(problem, size=size, threads=threads, index=index, pdl=pdl)
