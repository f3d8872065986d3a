"""CSR and DCSR: one thread, a few lanes, a warp or a block a row.

`early` entries a lane are loaded before x is touched: their loads are all in flight at once, and in a program that
waits for its producer (pdl) they overlap the end of the kernel before. The rest of a long row follows in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.writer import Kernel, Recipe, code, line, make, place, rest, times, when
from sparserl.records import Problem


def fetch(array: str, load: str) -> str:
    """Reading A: 'stream' leaves the caches to x, 'cached' lets A stay in the L2 for the next product."""
    return f"stream({array} + j)" if load == "stream" else f"{array}[j]"


def row_loop(*, lanes: int | str, early: int, unroll: int, load: str, based: bool, pdl: bool) -> str:
    """The inner product of one row over `lanes` lanes, a number or the name of one.

    `first`, `end` and `sum` are declared, x is not yet safe. `unroll` 1 leaves it to the compiler, which takes 4.
    """
    step = times("k", lanes) if isinstance(lanes, int) else f"k * {lanes}"
    skipped = early * lanes if isinstance(lanes, int) else f"{early} * {lanes}"
    column = "base + c" if based else "c"
    start = f"first + {skipped}" if early else "first"
    return f"""
        {when(early > 0, f"index_t c[{early}];")}
        {when(early > 0, f"value_t v[{early}];")}
        {when(early > 0, "#pragma unroll")}
        {when(early > 0, f"for (int k = 0; k < {early}; ++k) {{")}
        {when(early > 0, f"    const int j = first + {step};")}
        {when(early > 0, f"    c[k] = j < end ? {fetch('cols', load)} : index_t(0);")}
        {when(early > 0, f"    v[k] = j < end ? {fetch('vals', load)} : value_t(0);")}
        {when(early > 0, "}")}
        {when(pdl, "pdl_wait();")}
        {when(early > 0, "#pragma unroll")}
        {when(early > 0, f"for (int k = 0; k < {early}; ++k)")}
        {when(early > 0, f"    if (first + {step} < end) sum += v[k] * x[{column.replace('c', 'c[k]')}];")}
        {when(unroll > 1, f"#pragma unroll {unroll}")}
        for (int j = {start}; j < end; j += {lanes}) sum += {entry(load, based)};
    """


def entry(load: str, based: bool) -> str:
    """The product of entry `j`."""
    return f"{fetch('vals', load)} * x[{'base + ' if based else ''}{fetch('cols', load)}]"


def by_lanes(
    problem: Problem, *, lanes: int, threads: int, early: int, unroll: int, load: str, index: str, pdl: bool
) -> Recipe:
    """`lanes` neighbouring threads share a row and add up by shuffles."""
    based = index == "int16"
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int row = {place(threads, lanes)};
        {when(lanes > 1, f"const int lane = threadIdx.x % {lanes};")}
        int first = 0, end = 0;
        if (row < rows) {{
            first = row_start[row]{" + lane" if lanes > 1 else ""};
            end = row_start[row + 1];
        }}
        {when(based, "const int base = row < rows ? col_base[row] : 0;")}
        acc_t sum = 0;
        {row_loop(lanes=lanes, early=early, unroll=unroll, load=load, based=based, pdl=pdl).strip()}
        {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
        if (row < rows{" && lane == 0" if lanes > 1 else ""}) y[row] = sum;
    """)
    grid = f"div_up(rows, {threads // lanes})" if lanes < threads else "rows"
    return make(
        "row_lanes", problem, line("rows", index), [Kernel("spmv", grid, threads, body, pdl=pdl)],
        lanes=lanes, threads=threads, early=early, unroll=unroll, load=load, pdl=pdl,
    )  # fmt: skip


def by_lanes_late(problem: Problem, *, lanes: int, threads: int, index: str) -> Recipe:
    """The same, with the row's end read in the loop's condition, for short rows.

    A compiler that knows the number of steps unrolls by four and walks the rest one by one, each at full latency.
    Here it can't; the assembler unrolls instead, and its rest of two and one is predicated: all loads at once.
    """
    based = index == "int16"
    body = code(f"""
        const int row = {place(threads, lanes)};
        {when(lanes > 1, f"const int lane = threadIdx.x % {lanes};")}
        {when(based, "const int base = row < rows ? col_base[row] : 0;")}
        acc_t sum = 0;
        if (row < rows)
            for (int j = row_start[row]{" + lane" if lanes > 1 else ""}; j < row_start[row + 1]; j += {lanes})
                sum += {entry("stream", based)};
        {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
        if (row < rows{" && lane == 0" if lanes > 1 else ""}) y[row] = sum;
    """)
    return make(
        "row_lanes", problem, line("rows", index), [Kernel("spmv", f"div_up(rows, {threads // lanes})", threads, body)],
        lanes=lanes, threads=threads, early=0, unroll=4, load="stream", pdl=False, late=True,
    )  # fmt: skip


def by_block(problem: Problem, *, threads: int, early: int, load: str, index: str, pdl: bool) -> Recipe:
    """A whole block a row: few, very long rows."""
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int row = blockIdx.x;
        const int first = row_start[row] + threadIdx.x;
        const int end = row_start[row + 1];
        acc_t sum = 0;
        {row_loop(lanes=threads, early=early, unroll=4, load=load, based=False, pdl=pdl).strip()}
        sum = block_sum<{threads}>(sum);
        if (threadIdx.x == 0) y[row] = sum;
    """)
    return make(
        "row_block", problem, line("rows", index), [Kernel("spmv", "rows", threads, body, pdl=pdl)],
        threads=threads, early=early, load=load, pdl=pdl,
    )  # fmt: skip


def persistent(problem: Problem, *, lanes: int, blocks_per_sm: int, load: str, index: str) -> Recipe:
    """A grid that fits the chip once; each group of lanes walks over the rows."""
    threads = 256
    body = code(f"""
        const int lane = {rest("threadIdx.x", lanes)};
        const int groups = gridDim.x * {threads // lanes};
        for (int row = {place(threads, lanes)}; row < div_up(rows, {threads // lanes}) * {threads // lanes}; row += groups) {{
            const int end = row < rows ? row_start[row + 1] : 0;
            acc_t sum = 0;
            #pragma unroll 4
            for (int j = row < rows ? row_start[row] + lane : 0; j < end; j += {lanes})
                sum += {fetch("vals", load)} * x[{fetch("cols", load)}];
            {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
            if (row < rows{" && lane == 0" if lanes > 1 else ""}) y[row] = sum;
        }}
    """)  # noqa: E501
    grid = f"min(div_up(rows, {threads // lanes}), sms * {blocks_per_sm})"
    return make(
        "row_persistent", problem, line("rows", index), [Kernel("spmv", grid, threads, body)],
        lanes=lanes, blocks_per_sm=blocks_per_sm, load=load,
    )  # fmt: skip


def staged(problem: Problem, *, lanes: int, threads: int, index: str, single: bool, pdl: bool) -> Recipe:
    """x in shared memory: tall, thin matrices, and tiny ones in a single block."""
    body = code(f"""
        extern __shared__ value_t staged[];
        {when(pdl, "pdl_trigger();")}
        {when(pdl, "pdl_wait();")}
        shared_copy(staged, x, columns);
        __syncthreads();
        const int lane = {rest("threadIdx.x", lanes)};
        const int group = {place(threads, lanes)};
        for (int row = group; row < div_up(rows, {threads // lanes}) * {threads // lanes}; row += gridDim.x * {threads // lanes}) {{
            const int end = row < rows ? row_start[row + 1] : 0;
            acc_t sum = 0;
            #pragma unroll 4
            for (int j = row < rows ? row_start[row] + lane : 0; j < end; j += {lanes})
                sum += vals[j] * staged[cols[j]];
            {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
            if (row < rows{" && lane == 0" if lanes > 1 else ""}) y[row] = sum;
        }}
    """)  # noqa: E501
    grid = "1" if single else f"min(div_up(rows, {threads // lanes}), sms * 2)"
    kernel = Kernel("spmv", grid, threads, body, shared=f"columns * {problem.value_bytes}", pdl=pdl)
    return make(
        "row_staged", problem, line("rows", index), [kernel],
        lanes=lanes, threads=threads, single=single, pdl=pdl,
    )  # fmt: skip


def nonempty(problem: Problem, *, lanes: int, threads: int, early: int, index: str, pdl: bool) -> Recipe:
    """Only rows that hold something are multiplied; the others are set to zero by the threads behind them."""
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int which = {place(threads, lanes)};
        {when(lanes > 1, f"const int lane = threadIdx.x % {lanes};")}
        int first = 0, end = 0, row = -1;
        if (which < filled) {{
            first = row_start[which]{" + lane" if lanes > 1 else ""};
            end = row_start[which + 1];
            row = row_of[which];
        }} else if (which < rows) {{
            row = empty_rows[which - filled];
        }}
        acc_t sum = 0;
        {row_loop(lanes=lanes, early=early, unroll=4, load="cached", based=False, pdl=pdl).strip()}
        {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
        if (row >= 0{" && lane == 0" if lanes > 1 else ""}) y[row] = sum;
    """)
    return make(
        "nonempty_lanes", problem, line("nonempty", index),
        [Kernel("spmv", f"div_up(rows, {threads // lanes})", threads, body, pdl=pdl)],
        lanes=lanes, threads=threads, early=early, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every CSR and DCSR recipe for SpMV."""
    for lanes in (1, 2, 4, 8, 16, 32):
        for threads in (64, 128, 256):
            for index in ("int32", "abs16"):
                for pdl in (False, True):
                    for early, unroll in ((0, 1), (0, 4), (2, 1), (4, 1), (8, 1)):
                        yield by_lanes(
                            problem, lanes=lanes, threads=threads, early=early, unroll=unroll,
                            load="cached", index=index, pdl=pdl,
                        )  # fmt: skip
        for threads in (128, 256):
            for index in ("int32", "int16"):
                for early, unroll in ((0, 4), (2, 1), (4, 1)):
                    yield by_lanes(
                        problem, lanes=lanes, threads=threads, early=early, unroll=unroll,
                        load="stream", index=index, pdl=False,
                    )  # fmt: skip
                yield by_lanes_late(problem, lanes=lanes, threads=threads, index=index)
        for blocks_per_sm in (4, 8):
            yield persistent(problem, lanes=lanes, blocks_per_sm=blocks_per_sm, load="stream", index="int32")
        for threads, single in ((256, False), (512, False), (1024, False), (1024, True)):
            for pdl in (False, True):
                yield staged(problem, lanes=lanes, threads=threads, index="abs16", single=single, pdl=pdl)
        for early in (0, 2, 4):
            for pdl in (False, True):
                yield nonempty(problem, lanes=lanes, threads=128, early=early, index="int32", pdl=pdl)
    for threads in (128, 256, 512, 1024):
        for index in ("int32", "abs16"):
            for early in (0, 2, 4, 8):
                for pdl in (False, True):
                    yield by_block(problem, threads=threads, early=early, load="cached", index=index, pdl=pdl)
