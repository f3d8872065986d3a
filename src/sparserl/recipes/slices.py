"""SELL-C-sigma and ELL: rows side by side in slices, so that neighbouring threads read neighbouring entries.

`lanes=1`: a thread a row, `group` entries a load (a vector load). `lanes=group`: `group` neighbouring threads a row.
ELL has no pointers at all: the first address follows from the thread's number, one round trip to memory less.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.recipes.writer import Kernel, Recipe, code, line, make, over, place, times, when
from sparserl.records import Problem


def load_entries(lanes: int, group: int, load: str) -> tuple[str, str]:
    """How a thread reads its next columns and values at slot j."""
    width = group if lanes == 1 else 1
    if width == 1:
        return ("stream(cols + j)", "stream(vals + j)") if load == "stream" else ("cols[j]", "vals[j]")
    name = "stream_load" if load == "stream" else "load"
    return f"{name}<{width}>(cols + j)", f"{name}<{width}>(vals + j)"


def multiply(width: int, based: bool, columns: str, values: str) -> str:
    """One step: `width` entries into `sum`, padding left out."""
    base = "base + " if based else ""
    if width == 1:
        return f"if (!PADDED || !is_padding({columns})) sum += {values} * x[{base}{columns}];"
    return (
        f"#pragma unroll\n            for (int i = 0; i < {width}; ++i)\n"
        f"                if (!PADDED || !is_padding({columns}[i])) sum += {values}[i] * x[{base}{columns}[i]];"
    )


def walk_slice(
    *, lanes: int, group: int, step: int, early: int, load: str, based: bool, pdl: bool, full: bool = False,
    batch: int = 0,
) -> str:  # fmt: skip
    """A thread's entries of its row, `step` slots apart from `first` to `end`, into `sum`; x is not yet safe.

    `early` of them are loaded before x is touched; `full`: all, by the width that is baked in; `batch`: so many at a
    time, the last ones too, where an unrolled loop would walk its rest one by one (not for vector loads).
    """
    if batch:
        return walk_batches(step=step, batch=batch, load=load, based=based, pdl=pdl)
    width = group if lanes == 1 else 1
    kind = (f"pack<index_t, {width}>", f"pack<value_t, {width}>") if width > 1 else ("index_t", "value_t")
    cols, vals = load_entries(lanes, group, load)
    depth = over("WIDTH", group) if full else str(early)
    held = full or early > 0
    return f"""
        {when(held, f"{kind[0]} c[{depth}];")}
        {when(held, f"{kind[1]} v[{depth}];")}
        {when(held, "#pragma unroll")}
        {when(held, f"for (int k = 0; k < {depth}; ++k) {{")}
        {when(held, f"const int j = first + k * {step};")}
        {when(held and not full, "if (j < end) {")}
        {when(held, f"c[k] = {cols};")}
        {when(held, f"v[k] = {vals};")}
        {when(held and not full, "}")}
        {when(held, "}")}
        {when(pdl, "pdl_wait();")}
        {when(held, "#pragma unroll")}
        {when(held, f"for (int k = 0; k < {depth}; ++k) {{")}
        {when(held and not full, f"if (first + k * {step} >= end) break;")}
        {when(held, multiply(width, based, "c[k]", "v[k]"))}
        {when(held, "}")}
        {when(not held, "#pragma unroll 4")}
        {when(not full, f"for (int j = first{f' + {early * step}' if early else ''}; j < end; j += {step}) {{")}
        {when(not full, f"const {kind[0]} column = {cols};")}
        {when(not full, f"const {kind[1]} value = {vals};")}
        {when(not full, multiply(width, based, "column", "value"))}
        {when(not full, "}")}
    """


def walk_batches(*, step: int | str, batch: int, load: str, based: bool, pdl: bool) -> str:
    """Entries `step` apart, a number or the name of one, from `first` to `end`: `batch` at a time, loaded at once."""
    stride = batch * step if isinstance(step, int) else f"{batch} * {step}"
    cols, vals = load_entries(1, 1, load)
    return f"""
        {when(pdl, "pdl_wait();")}
        for (int start = first; start < end; start += {stride}) {{
        index_t c[{batch}];
        value_t v[{batch}];
        #pragma unroll
        for (int k = 0; k < {batch}; ++k) {{
        const int j = start + k * {step};
        c[k] = j < end ? {cols} : index_t(-1);
        v[k] = j < end ? {vals} : value_t(0);
        }}
        #pragma unroll
        for (int k = 0; k < {batch}; ++k)
        if (!is_padding(c[k])) sum += v[k] * x[{"base + " if based else ""}c[k]];
        }}
    """


def by_slice(
    problem: Problem, *, c: int, sigma: int, group: int, lanes: int, threads: int, early: int, load: str, index: str,
    pdl: bool, ell: bool, full: bool = False, batch: int = 0,
) -> Recipe:  # fmt: skip
    """A row to `lanes` threads of a slice. `full`: the width is baked in and every entry is loaded before the wait."""
    based = index == "int16"
    step = c * group
    places = ([times(f"(row % {c})" if group > 1 else f"row % {c}", group)] if c > 1 else []) + (
        [f"threadIdx.x % {lanes}"] if lanes > 1 else []
    )
    first = " + ".join(places)
    target = "row_of[row]" if sigma > 1 else "row"
    begin = times("slice", c) + " * width" if ell else "slice_start[slice]"
    stop = "begin + " + times("width", c) if ell else "slice_start[slice + 1]"
    walk = walk_slice(
        lanes=lanes, group=group, step=step, early=early, load=load, based=based, pdl=pdl, full=full, batch=batch
    )  # fmt: skip
    body = code(f"""
        {when(pdl, "pdl_trigger();")}
        const int row = {place(threads, lanes)};
        const int slice = {over("row", c)};
        if (slice >= slices) return;
        const int begin = {begin};
        {when(not full, f"const int end = {stop};")}
        const int first = begin + {first};
        {when(based, "const int base = col_base[slice];")}
        {when(sigma > 1, f"const int target = {target};")}
        acc_t sum = 0;
        {walk}
        {when(lanes > 1, f"sum = warp_sum<{lanes}>(sum);")}
        if ({"target >= 0" if sigma > 1 else "row < rows"}{f" && threadIdx.x % {lanes} == 0" if lanes > 1 else ""}) y[{"target" if sigma > 1 else "row"}] = sum;
    """)  # noqa: E501
    layout = (
        line("ell", index, c=c, group=group) if ell else line("slices", index, c=c, sigma=sigma, group=group)
    )
    grid = f"div_up(slices * {c * lanes}, {threads})"
    return make(
        "ell_rows" if ell else "slice_rows", problem, layout, [Kernel("spmv", grid, threads, body, pdl=pdl)],
        bake=("PADDED", "WIDTH") if full else () if batch else ("PADDED",),
        lanes=lanes, threads=threads, early=early, full=full, load=load, pdl=pdl, batch=batch or None,
    )  # fmt: skip


def space(problem: Problem) -> Iterator[Recipe]:
    """Every SELL and ELL recipe for SpMV."""
    shapes = ((1, 1), (2, 1), (4, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32))  # (group, lanes)
    for group, lanes in shapes:
        c = 32 if lanes == 1 else max(1, 32 // lanes)
        for index in ("int32", "abs16", "int16"):
            for threads in (64, 128, 256):
                for early, load, pdl in (
                    (0, "stream", False), (0, "cached", False), (2, "cached", False), (4, "cached", False),
                    (2, "cached", True), (4, "cached", True), (0, "stream", True),
                ):  # fmt: skip
                    deep = max(1, early // (group if lanes == 1 else 1)) if early else 0
                    sigmas = (1, 256, 16384, 1048576) if threads == 128 else (1,)
                    kinds = [(sigma, False) for sigma in sigmas if index != "int16" or load == "stream"]
                    if threads == 128 or load == "cached":
                        kinds.append((1, True))
                    for sigma, ell in kinds:
                        yield by_slice(
                            problem, c=c, sigma=sigma, group=group, lanes=lanes, threads=threads, early=deep,
                            load=load, index=index, pdl=pdl, ell=ell,
                        )  # fmt: skip
                if index != "int16":
                    for pdl in (False, True):
                        yield by_slice(
                            problem, c=c, sigma=1, group=group, lanes=lanes, threads=threads, early=0, load="cached",
                            index=index, pdl=pdl, ell=True, full=True,
                        )  # fmt: skip
    for lanes in (1, 2, 4):
        for index in ("int32", "abs16", "int16"):
            for threads, batch in ((128, 4), (128, 8), (256, 8), (512, 8)):
                for sigma, load in ((1, "stream"), (256, "stream"), (16384, "stream"), (256, "cached")):
                    yield by_slice(
                        problem, c=32 // lanes, sigma=sigma, group=lanes, lanes=lanes, threads=threads, early=0,
                        load=load, index=index, pdl=False, ell=False, batch=batch,
                    )  # fmt: skip
