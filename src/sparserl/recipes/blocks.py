"""Small dense blocks: one index a block, so a 3×3 block moves 40 bytes where CSR moves 72."""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.writer import Kernel, Recipe, code, line, make, when
from sparserl.records import Problem


def by_sub_warp(problem: Problem, *, b: int, spread: int, threads: int, index: str, pdl: bool) -> Recipe:
    """BSR: b × `spread` lanes a block row; lane (u, k) has row u of every spread-th block from the k-th on."""
    lanes = b * spread
    groups = 32 // lanes
    based = index == "int16"
    warp = f"blockIdx.x * {threads // 32} + threadIdx.x / 32"
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int lane = threadIdx.x % 32;
        const int block_row = {f"({warp}) * {groups}" if groups > 1 else warp} + lane / {lanes};
        const int u = lane % {b}, k = lane % {lanes} / {b};
        const bool mine = lane < {groups * lanes} && block_row < block_rows;
        const int end = mine ? block_start[block_row + 1] : 0;
        const int begin = mine ? block_start[block_row] + k : 0;
        {when(based, "const int base = mine ? col_base[block_row] : 0;")}
        {when(pdl, "pdl_wait();")}
        acc_t sum = 0;
        #pragma unroll 2
        for (int j = begin; j < end; j += {spread}) {{
        const int column = ({"base + " if based else ""}cols[j]) * {b};
        #pragma unroll
        for (int v = 0; v < {b}; ++v) {{
        const value_t value = vals[(j * {b} + v) * {b} + u];
        if (!PADDED || !is_padding(value)) sum += value * x[column + v];
        }}
        }}
        #pragma unroll
        for (int o = {lanes // 2}; o >= {b}; o /= 2) sum += __shfl_down_sync(0xffffffffu, sum, o);
        const int row = block_row * {b} + u;
        if (mine && k == 0 && row < rows) y[row] = sum;
    """)
    return make(
        "bsr_sub_warp", problem, line("blocks", index, b=b, order="col"),
        [Kernel("spmv", f"div_up(block_rows, {threads // 32 * groups})", threads, body, pdl=pdl)], bake=("PADDED",),
        spread=spread, threads=threads, pdl=pdl,
    )  # fmt: skip


def by_block_slice(
    problem: Problem, *, b: int, c: int, order: str, threads: int, unroll: int, load: str, index: str, pdl: bool
) -> Recipe:
    """Sliced BSR: a thread a row (`order=row`) or a thread a block row (`order=block`); all loads of A coalesced."""
    based, rowwise = index == "int16", order == "row"
    slice_rows = c * b if rowwise else c
    count = "block_rows * " + str(b) if rowwise else "block_rows"
    at = f"(j0 * {b} + v) * {c * b} + place" if rowwise else f"(j0 * {b * b} + u * {b} + v) * {c} + place"
    value = f"stream(vals + {at})" if load == "stream" else f"vals[{at}]"
    column = f"cols[j0 * {c} + place{f' / {b}' if rowwise else ''}]"
    add = "sum += value * x[column + v]" if rowwise else "sum[u] += value * xv"
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int mine = blockIdx.x * {threads} + threadIdx.x;
        if (mine >= {count}) return;
        const int slice = mine / {slice_rows}, place = mine % {slice_rows};
        const int begin = slice_start[slice] / {c}, end = slice_start[slice + 1] / {c};
        {when(based, "const int base = col_base[slice];")}
        {when(pdl, "pdl_wait();")}
        acc_t sum{"" if rowwise else f"[{b}]"} = {"0" if rowwise else "{}"};
        #pragma unroll {unroll}
        for (int j0 = begin; j0 < end; ++j0) {{
        const index_t block = {column};
        if (PADDED && is_padding(block)) continue;
        const int column = ({"base + " if based else ""}block) * {b};
        #pragma unroll
        for (int v = 0; v < {b}; ++v) {{
        {when(not rowwise, "const value_t xv = column + v < columns ? x[column + v] : value_t(0);")}
        {when(not rowwise, "#pragma unroll")}
        {when(not rowwise, f"for (int u = 0; u < {b}; ++u) {{")}
        const value_t value = {value};
        if (!PADDED || !is_padding(value)) {add};
        {when(not rowwise, "}")}
        }}
        }}
        {when(rowwise, "if (mine < rows) y[mine] = sum;")}
        {when(not rowwise, "#pragma unroll")}
        {when(not rowwise, f"for (int u = 0; u < {b}; ++u)")}
        {when(not rowwise, f"if (mine * {b} + u < rows) y[mine * {b} + u] = sum[u];")}
    """)
    return make(
        "block_slices", problem, line("blockslices", index, b=b, c=c, order=order),
        [Kernel("spmv", f"div_up({count}, {threads})", threads, body, pdl=pdl)], bake=("PADDED",),
        threads=threads, unroll=unroll, load=load, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every block recipe for SpMV."""
    for b in (2, 3, 4, 6, 8):
        for spread in (1, 2, 4, 8):
            if b * spread <= 32:
                for index in ("int32", "int16"):
                    for pdl in (False, True):
                        yield by_sub_warp(problem, b=b, spread=spread, threads=128, index=index, pdl=pdl)
        for order in ("row", "block"):
            for threads in (64, 128, 256):
                for unroll in (1, 2, 4):
                    for load, index, pdl in (
                        ("stream", "int32", False), ("stream", "int16", False), ("cached", "int32", True),
                    ):  # fmt: skip
                        yield by_block_slice(
                            problem, b=b, c=32, order=order, threads=threads, unroll=unroll, load=load, index=index,
                            pdl=pdl,
                        )  # fmt: skip
