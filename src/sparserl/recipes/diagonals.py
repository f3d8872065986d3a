"""Diagonals: no column indices at all, half of CSR's bytes. The offsets are compiled in.

What does not lie on a kept diagonal is added by a second, small launch; where all does, that launch has no blocks and
is not made.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.writer import Kernel, Recipe, code, line, make, place, rest, when
from sparserl.records import Problem


def tail_kernel(lanes: int, pdl: bool, columns: str = "tail_cols[j]", value: str = "vals[tail_at + j]") -> Kernel:
    """y += what the main kernel left out, `lanes` threads a row."""
    body = code(f"""
        {when(pdl, "pdl_wait();")}
        const int which = {place(128, lanes)};
        const int lane = {rest("threadIdx.x", lanes)};
        const int end = which < tail_rows ? tail_start[which + 1] : 0;
        acc_t sum = 0;
        #pragma unroll 4
        for (int j = which < tail_rows ? tail_start[which] + lane : 0; j < end; j += {lanes})
        sum += {value} * x[{columns}];
        {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
        if (which < tail_rows && lane == 0) y[tail_row[which]] += sum;
    """)
    return Kernel("tail", f"div_up(tail_rows, {128 // lanes})", 128, body, pdl=pdl)


def by_diagonal(
    problem: Problem, *, fill: int, rows_each: int, threads: int, load: str, lanes: int, pdl: bool
) -> Recipe:
    """A thread has `rows_each` neighbouring rows. `lanes`: threads a row in the tail; 0: for matrices without one."""
    name = "stream_load" if load == "stream" else "load"
    one = "stream(vals + d * stride + row)" if load == "stream" else "vals[d * stride + row]"
    several = rows_each > 1
    thread = place(threads)
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int row = {f"({thread}) * {rows_each}" if several else thread};
        if (row >= rows) return;
        {when(several, f"pack<value_t, {rows_each}> v[DIAGONALS];")}
        {when(not several, "value_t v[DIAGONALS];")}
        #pragma unroll
        for (int d = 0; d < DIAGONALS; ++d)
        v[d] = {f"{name}<{rows_each}>(vals + d * stride + row)" if several else one};
        {when(pdl, "pdl_wait();")}
        {when(several, "#pragma unroll")}
        {when(several, f"for (int r = 0; r < {rows_each}; ++r) {{")}
        acc_t sum = 0;
        #pragma unroll
        for (int d = 0; d < DIAGONALS; ++d) {{
        const int column = row + {"r + " if several else ""}OFFSETS[d];
        const value_t value = v[d]{"[r]" if several else ""};
        if (column >= 0 && column < columns && !(PADDED && is_padding(value))) sum += value * x[column];
        }}
        {"if (row + r < rows) y[row + r] = sum;" if several else "y[row] = sum;"}
        {when(several, "}")}
    """)
    grid = f"div_up(rows, {threads * rows_each})"
    kernels = [Kernel("spmv", grid, threads, body, pdl=pdl), tail_kernel(lanes or 1, pdl)]
    return make(
        "diagonals", problem, line("diagonals", "none", fill=fill), kernels, bake=("PADDED", "DIAGONALS", "OFFSETS"),
        rows_each=rows_each, threads=threads, load=load, tail_lanes=lanes, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every diagonal recipe for SpMV."""
    for fill in (10, 25, 50, 75):
        for rows_each in (1, 2, 4):
            for threads in (64, 128, 256):
                for load, pdl in (("stream", False), ("cached", False), ("cached", True), ("stream", True)):
                    for lanes in (0, 1, 8):
                        if lanes == 0 or (threads == 128 and load == "cached"):
                            yield by_diagonal(
                                problem, fill=fill, rows_each=rows_each, threads=threads, load=load, lanes=lanes,
                                pdl=pdl,
                            )  # fmt: skip
