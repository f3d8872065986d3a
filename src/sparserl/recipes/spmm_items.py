"""SpMM over work items: a group of lanes for each row, long rows cut into segments that are added up in fixed order.

The items of the `bins` layout are sorted by length, longest first: the bins themselves don't matter here, only that
the heavy work starts first and that no item is longer than a segment.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.spmm import LOADED_BYTES, Columns, vectors
from sparserl.recipes.writer import Kernel, Recipe, code, line, make, times, when
from sparserl.records import Problem, Workspace

ITEMS = "d1 + (blocks - b1) * 64"
"""all descriptors: those before the one-lane bin, and its own, 64 a block"""


def segment_workspaces(lanes: int) -> tuple[Workspace, ...]:
    """What `add_segments` needs."""
    return (
        Workspace("partial", "acc_t", "max(1, segments * n)", "scratch"),
        Workspace("arrived", "int", f"max(1, segments * {lanes})", "zeroed"),
    )


def add_segments(mine: Columns, lane: str, inside: bool) -> str:
    """Of a row in several segments: leave the sums behind, and go on, with those of all, only in the last to arrive.

    inside: no column lies past N.
    """
    check = "" if inside else f"if ({mine.at} < N)"
    leave = f"{check} partial[item * N + {mine.at}] = {mine.sum};".strip()
    again = f"for (int s = first; s < first + count; ++s) {mine.sum} += fresh(partial + s * N + {mine.at});"
    return f"""
        {mine.each(leave)}
        // every thread waits for its own columns of the other segments
        if (!last_arrival(arrived + first * {mine.lanes} + {lane}, count)) return;
        {mine.each(lines(f"{mine.sum} = 0;", check, again))}
    """


def lines(*rows: str) -> str:
    """Those that hold something, one below the other."""
    return "\n".join(filter(None, rows))


def by_item(
    problem: Problem, *, lanes: int, vec: int, tile: int, threads: int, unroll: int, longest: int, index: str, pdl: bool
) -> Recipe:
    """`lanes` threads an item, the whole width of C in registers."""
    mine = Columns(lanes, vec, tile)
    guarded = problem.columns % mine.width != 0
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int item = blockIdx.x * {threads // lanes} + threadIdx.x / {lanes};
        const int column = {times(f"threadIdx.x % {lanes}", vec)};
        if (item >= {ITEMS}) return;
        const int4 mine = work[item];
        {when(pdl, "pdl_wait();")}
        if (mine.x < 0) return;
        const int row = mine.x;
        {mine.declared}
        #pragma unroll {unroll}
        for (int j = mine.y; j < mine.z; ++j) {{
        {mine.entry(guarded)}
        }}
        const int first = mine.w >> 12, count = mine.w & 4095;
        if (item < segments && count > 1) {{
        {add_segments(mine, f"threadIdx.x % {lanes}", not guarded)}
        }}
        {mine.store(problem, guarded)}
    """)
    layout = line("bins", index, per=32, long=longest, segment=longest, threads=64)
    return make(
        "spmm_items", problem, layout,
        [Kernel("spmm", f"div_up({ITEMS}, {threads // lanes})", threads, body, pdl=pdl)],
        bake=("N",), workspaces=segment_workspaces(lanes),
        lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=unroll, pdl=pdl,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every item recipe: row-major B, shapes that hold all N columns at once."""
    n = problem.columns
    for vec in vectors(problem):
        for lanes in (4, 8, 16, 32):
            tile = -(-n // (lanes * vec))
            if tile > 4 or (lanes > 4 and lanes * vec >= 2 * n):
                continue
            for threads in (64, 128, 256):
                for unroll in (2, 4, 8):
                    for longest in (64, 256, 1024):
                        for index in ("int32", "abs16"):
                            yield by_item(
                                problem, lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=unroll,
                                longest=longest, index=index, pdl=False,
                            )  # fmt: skip
                if vec * problem.value_bytes == LOADED_BYTES:
                    yield by_item(
                        problem, lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=4, longest=256,
                        index="int32", pdl=True,
                    )  # fmt: skip
