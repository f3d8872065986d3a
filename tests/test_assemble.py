"""A Job holds the source, the launches with their numbers and the workspaces; only what is baked is compiled in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparserl import layouts
from sparserl.assemble import TABLE_LIMIT, assemble
from sparserl.errors import ProgramError
from sparserl.matrix import Pattern
from sparserl.program import parameters, parse, spelled
from sparserl.records import Launch, Packed, Problem, Program


def pattern(rows: int, columns: int, offsets: tuple[int, ...] = (-1, 0, 1)) -> Pattern:
    row, col = np.nonzero(sum((np.eye(rows, columns, k=k) for k in offsets), np.zeros((rows, columns))))
    return Pattern.from_coordinates(rows, columns, row, col)


def program(
    layout: str, header: str = "// launch: spmv<<<div_up(rows, 128), 128>>>", problem: Problem | None = None
) -> Program:
    empty = parse(f"// layout: {layout}\n{header}\nbody")
    kernels = dict.fromkeys(launch.kernel for launch in empty.launches)
    params = spelled(parameters(empty, problem or Problem()))
    body = "".join(f'extern "C" __global__ void {name}({params}) {{ }}\n' for name in kernels)
    return parse(f"// layout: {layout}\n{header}\n{body}")


def packed(text: Program, rows: int = 300, columns: int = 300, offsets: tuple[int, ...] = (-1, 0, 1)) -> Packed:
    return layouts.pack(pattern(rows, columns, offsets), text.layout)


def test_the_source_is_the_same_for_every_matrix_when_nothing_is_baked() -> None:
    text = program("slices c=32 sigma=1 group=1 index=int16")
    small, large = (assemble(text, packed(text, size, size), Problem(), 132) for size in (50, 700))
    assert small.source == large.source
    assert small.launches != large.launches


def test_only_what_the_bake_line_names_is_compiled_in() -> None:
    text = program("ell c=32 group=1 index=int32", "// bake: WIDTH PADDED\n// launch: spmv<<<slices, 32>>>")
    job = assemble(text, packed(text), Problem(), 132)
    assert "constexpr int WIDTH = 3;" in job.source
    assert "constexpr int PADDED = 1;" in job.source
    assert "constexpr int ROWS" not in job.source


def test_a_baked_table_is_an_array_the_device_can_index() -> None:
    text = program("diagonals fill=50 index=none", "// bake: OFFSETS DIAGONALS\n// launch: spmv<<<1, 32>>>")
    job = assemble(text, packed(text, offsets=(-7, 0, 2)), Problem(), 132)
    assert "__device__ constexpr int OFFSETS[3] = {-7, 0, 2};" in job.source
    assert "constexpr int DIAGONALS = 3;" in job.source


def test_an_empty_table_still_compiles() -> None:
    text = program("diagonals fill=50 index=none", "// bake: OFFSETS\n// launch: spmv<<<1, 32>>>")
    job = assemble(text, replace(packed(text), tables={"OFFSETS": ()}), Problem(), 132)
    assert "OFFSETS[1] = {0};" in job.source


def test_a_table_too_long_to_bake_is_refused() -> None:
    text = program("diagonals fill=50 index=none", "// bake: OFFSETS\n// launch: spmv<<<1, 32>>>")
    long = replace(packed(text), tables={"OFFSETS": tuple(range(TABLE_LIMIT + 1))})
    with pytest.raises(ProgramError, match="Read the array instead"):
        assemble(text, long, Problem(), 132)


def test_an_unknown_bake_name_is_refused_with_the_choices() -> None:
    text = program("rows index=int32", "// bake: WIDTH\n// launch: spmv<<<1, 32>>>")
    with pytest.raises(ProgramError, match=r"'WIDTH', which layout 'rows' doesn't offer\. It may name ROWS, COLUMNS"):
        assemble(text, packed(text), Problem(), 132)


def test_the_width_of_b_can_be_baked_only_for_spmm() -> None:
    problem = Problem(op="spmm", columns=64)
    text = program("rows index=int32", "// bake: N\n// launch: spmm<<<rows * n / 64, n>>>", problem)
    job = assemble(text, packed(text), problem, 132)
    assert "constexpr int N = 64;" in job.source
    assert job.scalars["n"] == 64
    assert job.vector_names == ("b", "c")
    assert job.launches == (Launch("spmm", 300, 64),)
    alone = program("rows index=int32", "// bake: N\n// launch: spmv<<<1, 32>>>")
    with pytest.raises(ProgramError, match="'N'"):
        assemble(alone, packed(alone), Problem(), 132)


def test_launches_and_workspaces_get_their_numbers() -> None:
    text = program(
        "rows index=int32",
        "// workspace: partial acc_t[rows * 2] scratch\n// workspace: counter int[1] zeroed\n"
        "// workspace: copy value_t[columns] scratch\n"
        "// launch: spmv<<<min(rows, sms), 128, columns * 4>>>\n// launch: finish<<<div_up(rows, 256), 256>>> pdl",
    )
    for dtype, acc_bytes, value_bytes in (("float32", 4, 4), ("float64", 8, 8), ("float16", 4, 2), ("bfloat16", 4, 2)):
        job = assemble(text, packed(text), Problem(dtype=dtype), 132)  # type: ignore[arg-type]
        assert job.launches == (Launch("spmv", 132, 128, 1200), Launch("finish", 2, 256, 0, True))
        assert job.waits
        assert job.workspaces == {
            "partial": (600 * acc_bytes, "scratch"), "counter": (4, "zeroed"), "copy": (300 * value_bytes, "scratch"),
        }  # fmt: skip
    assert [param.name for param in job.params][-5:] == ["x", "y", "partial", "counter", "copy"]
    assert job.kernels == ("spmv", "finish")


def test_a_launch_with_an_empty_grid_is_skipped() -> None:
    text = program(
        "nonempty index=int32", "// launch: spmv<<<filled, 32>>>\n// launch: clear<<<div_up(empty, 32), 32>>>"
    )
    job = assemble(text, packed(text), Problem(), 132)
    assert [launch.kernel for launch in job.launches] == ["spmv"]
    assert job.kernels == ("spmv", "clear")


@pytest.mark.parametrize("header", [
    "// launch: spmv<<<rows - 301, 32>>>",
    "// launch: spmv<<<1, rows * 4>>>",
    "// launch: spmv<<<1, 0>>>",
    "// launch: spmv<<<1, 32, 1024 * 1024>>>",
    "// launch: spmv<<<cats, 32>>>",
    "// launch: spmv<<<n, 32>>>",
    "// workspace: w acc_t[rows * 1000000] scratch\n// launch: spmv<<<1, 32>>>",
    "// workspace: w acc_t[0 - 1] scratch\n// launch: spmv<<<1, 32>>>",
])  # fmt: skip
def test_numbers_a_machine_cannot_launch_are_refused(header: str) -> None:
    text = program("rows index=int32", header)
    with pytest.raises(ProgramError):
        assemble(text, packed(text), Problem(), 132)


def test_a_matrix_packed_for_another_layout_is_refused() -> None:
    text = program("rows index=int32")
    with pytest.raises(ProgramError, match="packed for layout"):
        assemble(text, packed(program("nonempty index=int32")), Problem(), 132)


def test_the_types_follow_the_problem_and_the_codec() -> None:
    for dtype, index, expected in (
        ("float32", "int32", ("float value_t", "float acc_t", "int index_t")),
        ("float64", "abs16", ("double value_t", "double acc_t", "unsigned short index_t")),
        ("float16", "int16", ("half_t value_t", "float acc_t", "unsigned short index_t")),
        ("bfloat16", "int32", ("bf16_t value_t", "float acc_t", "int index_t")),
    ):
        text = program(f"rows index={index}")
        source = assemble(text, packed(text), Problem(dtype=dtype), 132).source  # type: ignore[arg-type]
        assert all(f"typedef {line};" in source for line in expected)
