"""SpMM: C = A B with N columns. Vector loads along N, register tiles, rows or equal chunks of entries.

Row-major B: `lanes` threads stand side by side along N and read a row of B together. Column-major B: threads stand
side by side along the rows, as in SpMV, with `tile` columns in registers. Either order of C is written by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparserl.recipes.writer import Kernel, Recipe, code, line, make, over, rest, times, when
from sparserl.records import Problem

LOADED_BYTES = 16
"""the most that a thread loads at once"""


def c_at(problem: Problem, row: str, column: str) -> str:
    """Where C(row, column) lies."""
    if problem.c_order == "row":
        return f"c[(long long){row} * N + {column}]"
    return f"c[(long long)({column}) * rows + {row}]"


@dataclass(frozen=True)
class Columns:
    """The columns of C that a thread sums up: `tile` steps of `vec` neighbours, with `lanes` threads side by side.

    Loops over one step or one neighbour are not written. `column` is the thread's first one.
    """

    lanes: int
    vec: int
    tile: int

    @property
    def width(self) -> int:
        """of all lanes together"""
        return self.lanes * self.vec * self.tile

    @property
    def declared(self) -> str:
        shape = when_many(self.tile, f"[{self.tile}]") + when_many(self.vec, f"[{self.vec}]")
        return f"acc_t sum{shape} = {{}};" if shape else "acc_t sum = 0;"

    @property
    def sum(self) -> str:
        """One of them."""
        return "sum" + when_many(self.tile, "[t]") + when_many(self.vec, "[i]")

    @property
    def at(self) -> str:
        """Its column."""
        return "column" + self._further + when_many(self.vec, " + i")

    @property
    def slot(self) -> str:
        """Its place among those of a group of lanes, side by side in memory."""
        number = " + ".join(filter(None, [when_many(self.tile, times("t", self.vec)), when_many(self.vec, "i")]))
        return f"{f'({number})' if ' ' in number else number} * {self.lanes} + lane" if number else "lane"

    @property
    def _further(self) -> str:
        return when_many(self.tile, f" + t * {self.lanes * self.vec}")

    def each(self, statement: str, guarded: bool = False) -> str:
        """A statement, or some lines of them, for every sum."""
        return self._tiles(self._neighbours(statement), guarded)

    def entry(self, guarded: bool) -> str:
        """Add what the entry of A at `j` contributes."""
        return f"""
        const acc_t a = to_acc(vals[j]);
        const value_t* from = b + (long long)cols[j] * N + column;
        {self.step(guarded)}
        """

    def step(self, guarded: bool) -> str:
        """Add a * B(column of A, …) for one entry of A, whose row of B begins at `from`."""
        if self.vec == 1:
            place = times("t", self.lanes) if self.tile > 1 else "0"
            return self._tiles(f"{self.sum} += a * to_acc(from[{place}]);", guarded)
        return self._tiles(
            f"const pack<value_t, {self.vec}> right = load<{self.vec}>(from{self._further});\n"
            + self._neighbours(f"{self.sum} += a * to_acc(right[i]);"),
            guarded,
        )

    def store(self, problem: Problem, guarded: bool) -> str:
        """C(row, …) = sum."""
        if problem.c_order != "row" or self.vec == 1:
            return self.each(f"{c_at(problem, 'row', self.at)} = to_value({self.sum});", guarded)
        return self._tiles(
            f"pack<value_t, {self.vec}> out;\n"
            + self._neighbours(f"out[i] = to_value({self.sum});")
            + f"\nstore(&{c_at(problem, 'row', 'column' + self._further)}, out);",
            guarded,
        )

    def _neighbours(self, statement: str) -> str:
        if self.vec == 1:
            return statement
        block = f"{{\n{statement}\n}}" if "\n" in statement else statement
        return f"#pragma unroll\nfor (int i = 0; i < {self.vec}; ++i) {block}"

    def _tiles(self, text: str, guarded: bool) -> str:
        """guarded: columns past N are left out."""
        if self.tile == 1:
            return f"if (column < N) {{\n{text}\n}}" if guarded else text
        past = f"if (column + t * {self.lanes * self.vec} >= N) break;\n" if guarded else ""
        return f"#pragma unroll\nfor (int t = 0; t < {self.tile}; ++t) {{\n{past}{text}\n}}"


def vectors(problem: Problem) -> Iterator[int]:
    """Neighbouring columns that a thread may load at once; none where B is column-major."""
    if problem.b_order == "row":
        fit = (vec for vec in (1, 2, 4, 8) if vec * problem.value_bytes <= LOADED_BYTES)
        yield from (vec for vec in fit if problem.columns % vec == 0)


def when_many(count: int, text: str) -> str:
    """`text` where there is more than one."""
    return text if count > 1 else ""


def by_row(
    problem: Problem, *, lanes: int, vec: int, tile: int, threads: int, unroll: int, index: str,
    shuffle: bool = False, pdl: bool = False,
) -> Recipe:  # fmt: skip
    """`lanes` threads a row of C. `shuffle`: each lane loads one entry of A and the group passes them round."""
    mine = Columns(lanes, vec, tile)
    guarded = problem.columns % mine.width != 0
    later = guarded and (shuffle or tile > 1)
    direct = f"""
        #pragma unroll {unroll}
        for (int j = row_start[row]; j < end; ++j) {{
        {mine.entry(later)}
        }}
    """
    passed = f"""
        const int lane = threadIdx.x % {lanes};
        const unsigned group = {"0xffffffffu" if lanes == 32 else f"{(1 << lanes) - 1}u << (threadIdx.x % 32 / {lanes} * {lanes})"};
        for (int j0 = row_start[row]; j0 < end; j0 += {lanes}) {{
        const int mine = j0 + lane < end ? cols[j0 + lane] : 0;
        const acc_t value = j0 + lane < end ? to_acc(vals[j0 + lane]) : acc_t(0);
        const int count = min({lanes}, end - j0);
        #pragma unroll {unroll}
        for (int k = 0; k < count; ++k) {{
        const acc_t a = __shfl_sync(group, value, k, {lanes});
        const value_t* from = b + (long long)__shfl_sync(group, mine, k, {lanes}) * N + column;
        {mine.step(later)}
        }}
        }}
    """  # noqa: E501
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int tiles = div_up(N, {mine.width});
        const int row = blockIdx.x / tiles * {threads // lanes} + threadIdx.x / {lanes};
        const int column = blockIdx.x % tiles * {mine.width} + {times(f"threadIdx.x % {lanes}", vec)};
        {when(pdl, "pdl_wait();")}
        if (row >= rows{"" if shuffle or not guarded else " || column >= N"}) return;
        const int end = row_start[row + 1];
        {mine.declared}
        {passed if shuffle else direct}
        {mine.store(problem, later)}
    """)
    grid = f"div_up(rows, {threads // lanes}) * div_up(n, {mine.width})"
    return make(
        "spmm_row", problem, line("rows", index), [Kernel("spmm", grid, threads, body, pdl=pdl)], bake=("N",),
        lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=unroll, shuffle=shuffle, pdl=pdl,
    )  # fmt: skip


def by_chunk(problem: Problem, *, lanes: int, vec: int, tile: int, threads: int, size: int, index: str) -> Recipe:
    """Equal chunks of entries: rows that lie inside a chunk are stored, the others added atomically to a zeroed C."""
    mine = Columns(lanes, vec, tile)
    guarded = problem.columns % mine.width != 0 and tile > 1
    zero = code("""
        const long long at = (long long)blockIdx.x * 256 + threadIdx.x;
        if (at < (long long)rows * N) c[at] = value_t(0);
    """)
    add = f"atomicAdd(&{c_at(problem, 'row', mine.at)}, {mine.sum});"
    body = code(f"""
        const int tiles = div_up(N, {mine.width});
        const int chunk = blockIdx.x / tiles * {threads // lanes} + threadIdx.x / {lanes};
        const int column = blockIdx.x % tiles * {mine.width} + {times(f"threadIdx.x % {lanes}", vec)};
        if (chunk >= chunks || column >= N) return;
        const int first = chunk * {size}, end = min(nonzeros, first + {size});
        {mine.declared}
        int row = row_index[first];
        bool begun = first > 0 && row_index[first - 1] == row;
        for (int j = first; j < end; ++j) {{
        {mine.entry(guarded)}
        const int next = j + 1 < nonzeros ? row_index[j + 1] : -1;
        if (next == row && j + 1 < end) continue;
        if (begun || next == row) {{
        {mine.each(add, guarded)}
        }} else {{
        {mine.store(problem, guarded)}
        }}
        {mine.each(f"{mine.sum} = 0;")}
        row = next;
        begun = false;
        }}
    """)
    kernels = [
        Kernel("zero", "div_up(rows * n, 256)", 256, zero),
        Kernel("spmm", f"div_up(chunks, {threads // lanes}) * div_up(n, {mine.width})", threads, body),
    ]
    return make(
        "spmm_chunk", problem, line("chunks", index, size=size), kernels, bake=("N",), deterministic=False,
        lanes=lanes, vec=vec, tile=tile, threads=threads,
    )  # fmt: skip


def by_block(problem: Problem, *, b: int, lanes: int, vec: int, threads: int, index: str) -> Recipe:
    """BSR: a row of B, once loaded, serves b rows of C."""
    width = lanes * vec
    guarded = problem.columns % width != 0
    vector = problem.c_order == "row" and vec > 1
    target = c_at(problem, "row", "column" if vector else "column + i")
    body = code(f"""
        const int tiles = div_up(N, {width});
        const int block_row = blockIdx.x / tiles * {threads // lanes} + threadIdx.x / {lanes};
        const int column = blockIdx.x % tiles * {width} + {times(f"threadIdx.x % {lanes}", vec)};
        if (block_row >= block_rows{" || column >= N" if guarded else ""}) return;
        const int end = block_start[block_row + 1];
        acc_t sum[{b}][{vec}] = {{}};
        for (int j = block_start[block_row]; j < end; ++j) {{
        const int first = cols[j] * {b};
        #pragma unroll
        for (int v = 0; v < {b}; ++v) {{
        if (PADDED && first + v >= columns) break;
        const pack<value_t, {vec}> right = load<{vec}>(b + (long long)(first + v) * N + column);
        #pragma unroll
        for (int u = 0; u < {b}; ++u) {{
        const value_t a = vals[(j * {b} + v) * {b} + u];
        if (PADDED && is_padding(a)) continue;
        #pragma unroll
        for (int i = 0; i < {vec}; ++i) sum[u][i] += to_acc(a) * to_acc(right[i]);
        }}
        }}
        }}
        #pragma unroll
        for (int u = 0; u < {b}; ++u) {{
        const int row = block_row * {b} + u;
        if (row >= rows) break;
        {when(vector, f"pack<value_t, {vec}> out;")}
        #pragma unroll
        for (int i = 0; i < {vec}; ++i) {"out[i]" if vector else target} = to_value(sum[u][i]);
        {when(vector, f"store(&{target}, out);")}
        }}
    """)
    grid = f"div_up(block_rows, {threads // lanes}) * div_up(n, {width})"
    return make(
        "spmm_block", problem, line("blocks", index, b=b, order="col"), [Kernel("spmm", grid, threads, body)],
        bake=("N", "PADDED"), lanes=lanes, vec=vec, threads=threads,
    )  # fmt: skip


def by_columns(problem: Problem, *, lanes: int, tile: int, threads: int, index: str) -> Recipe:
    """Threads along the rows, `tile` columns of C in registers: column-major B."""
    guarded = problem.columns % tile != 0
    by_column = problem.b_order == "col"
    source = "b[(long long)(column + t) * columns + k]" if by_column else "b[(long long)k * N + column + t]"
    body = code(f"""
        const int tiles = div_up(N, {tile});
        const int row = blockIdx.x / tiles * {threads // lanes} + {over("threadIdx.x", lanes)};
        const int column = {times("blockIdx.x % tiles", tile)}, lane = {rest("threadIdx.x", lanes)};
        const int end = row < rows ? row_start[row + 1] : 0;
        acc_t sum[{tile}] = {{}};
        #pragma unroll 2
        for (int j = row < rows ? row_start[row] + lane : 0; j < end; j += {lanes}) {{
        const acc_t a = to_acc(vals[j]);
        const int k = cols[j];
        #pragma unroll
        for (int t = 0; t < {tile}; ++t) {"if (column + t < N) " if guarded else ""}sum[t] += a * to_acc({source});
        }}
        #pragma unroll
        for (int t = 0; t < {tile}; ++t) {{
        {when(lanes > 1, f"sum[t] = warp_sum<{lanes}>(sum[t]);")}
        if (row < rows && lane == 0{" && column + t < N" if guarded else ""}) {c_at(problem, "row", "column + t")} = to_value(sum[t]);
        }}
    """)  # noqa: E501
    grid = f"div_up(rows, {threads // lanes}) * div_up(n, {tile})"
    return make(
        "spmm_columns", problem, line("rows", index), [Kernel("spmm", grid, threads, body)], bake=("N",),
        lanes=lanes, tile=tile, threads=threads,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every SpMM recipe for this problem's N, orders and type."""
    n = problem.columns
    for lanes in (1, 2, 4, 8, 16, 32):
        for tile in (1, 2, 4, 8, 16) if problem.b_order == "col" else (1, 4):
            if tile <= max(1, n):
                for threads in (128, 256):
                    yield by_columns(problem, lanes=lanes, tile=tile, threads=threads, index="int32")
    for vec in vectors(problem):
        for lanes in (2, 4, 8, 16, 32):
            if lanes * vec >= 2 * n and lanes > 2:
                continue
            for tile in (1, 2, 4):
                if tile > 1 and lanes * vec * tile > n:
                    continue
                for threads in (64, 128, 256):
                    for unroll in (1, 2, 4):
                        for index in ("int32", "abs16"):
                            yield by_row(
                                problem, lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=unroll, index=index
                            )
                    yield by_row(
                        problem, lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=2, index="int32", pdl=True
                    )
                    if lanes >= 8:
                        yield by_row(
                            problem, lanes=lanes, vec=vec, tile=tile, threads=threads, unroll=4, index="int32",
                            shuffle=True,
                        )  # fmt: skip
                if problem.dtype in ("float32", "float64"):
                    for size in (32, 128, 512):
                        yield by_chunk(problem, lanes=lanes, vec=vec, tile=tile, threads=128, size=size, index="int32")
            for block in (2, 3, 4, 6, 8):
                for threads in (64, 128):
                    yield by_block(problem, b=block, lanes=lanes, vec=vec, threads=threads, index="int32")
