"""A program's text is read and written exactly, and its kernels must have the parameters that the layout promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparserl.errors import ProgramError
from sparserl.program import (
    WORKSPACE_KINDS,
    WORKSPACE_TYPES,
    check_signature,
    kernel_names,
    parameters,
    parse,
    render,
    spelled,
)
from sparserl.records import LaunchLine, LayoutLine, Problem, Program, Workspace

SPMV = Problem()
SPMM = Problem(op="spmm", columns=64)
HEAD = "int rows, int columns, int nonzeros, int padded, int slices"
ARRAYS = "const int* slice_start, const int* row_of, const int* col_base, const index_t* cols, const value_t* vals"
TEXT = f"""\
// layout: slices c=32 sigma=1024 group=1 index=int16
// bake: PADDED SLICES
// workspace: partial acc_t[div_up(rows, 32)] scratch
// workspace: counter int[1] zeroed
// launch: spmv<<<div_up(slices, 4), 128, 4 * 32>>> pdl
// launch: finish<<<1, 32>>>
extern "C" __global__ void __launch_bounds__(128) spmv({HEAD}, {ARRAYS},
    const value_t* x, value_t* y, acc_t* partial, int* counter)
{{ pdl_wait(); }}

extern "C" __global__ void finish({HEAD}, {ARRAYS}, const value_t* x, value_t* y, acc_t* partial, int* counter) {{}}
"""
SIMPLE = f"""\
// layout: slices c=32 sigma=1024 group=1 index=int16
// launch: spmv<<<slices, 32>>>
extern "C" __global__ void spmv({HEAD}, {ARRAYS}, const value_t* x, value_t* y)
{{ }}
"""


def test_canonical_text_is_read_and_written_exactly() -> None:
    program = parse(TEXT)
    assert program.bake == ("PADDED", "SLICES")
    assert program.workspaces == (
        Workspace("partial", "acc_t", "div_up(rows, 32)", "scratch"),
        Workspace("counter", "int", "1", "zeroed"),
    )
    assert program.launches == (
        LaunchLine("spmv", "div_up(slices, 4)", "128", "4 * 32", True),
        LaunchLine("finish", "1", "32"),
    )
    assert kernel_names(program) == ("spmv", "finish")
    assert render(program) == TEXT
    assert parse(render(program)) == program


WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
COUNTS = st.sampled_from(["1", "rows", "div_up(rows, 32)", "max(1, slices) * 4"])
PROGRAMS = st.builds(
    Program,
    layout=st.sampled_from([
        LayoutLine("rows", (), "int32"),
        LayoutLine("slices", (("c", "32"), ("sigma", "1"), ("group", "4")), "int16"),
    ]),
    bake=st.lists(st.sampled_from(["ROWS", "PADDED", "SLICES", "N"]), unique=True).map(tuple),
    workspaces=st.lists(
        st.builds(Workspace, WORDS, st.sampled_from(WORKSPACE_TYPES), COUNTS, st.sampled_from(WORKSPACE_KINDS)),
        max_size=3, unique_by=lambda workspace: workspace.name,
    ).map(tuple),
    launches=st.lists(
        st.builds(LaunchLine, WORDS, COUNTS, COUNTS, st.sampled_from(["0", "4 * columns"]), st.booleans()),
        min_size=1, max_size=3,
    ).map(tuple),
    body=st.text(st.characters(codec="ascii"), min_size=1).map(lambda text: "void " + text),
)  # fmt: skip


@given(PROGRAMS)
def test_parse_undoes_render(program: Program) -> None:
    assert parse(render(program)) == program


@pytest.mark.parametrize(("old", "new", "complaint"), [
    ("// layout:", "// lay out:", "Line 1 .*begins with its layout line"),
    ("// layout: slices", "// layout: slabs", "Line 1 .*slabs"),
    ("// bake: PADDED SLICES", "// bake: padded", "Line 2 .*'padded' is not an upper-case name"),
    ("// bake: PADDED SLICES", "// bake: ROWS ROWS", "Line 2 .*each once"),
    ("// bake: PADDED SLICES", "// bake:", "Line 2 .*at least one"),
    ("// workspace: counter int[1] zeroed", "// bake: ROWS", "Line 4 .*may not follow"),
    ("// bake: PADDED SLICES", "// layout: rows index=int32", "Line 2 .*already a 'layout' line"),
    ("counter int[1] zeroed", "counter int[1]", "Line 4 .*not NAME TYPE"),
    ("counter int[1] zeroed", "counter long[1] zeroed", "Line 4 .*one of int, acc_t, value_t; got 'long'"),
    ("counter int[1] zeroed", "counter int[1] cleared", "Line 4 .*zeroed or scratch; got 'cleared'"),
    ("counter int[1] zeroed", "partial int[1] zeroed", "Line 4 .*already a workspace 'partial'"),
    ("finish<<<1, 32>>>", "finish<<<1>>>", "Line 6 .*grid, block"),
    ("finish<<<1, 32>>>", "finish<<<1, 32, 0, 7>>>", "Line 6 .*grid, block"),
    ("finish<<<1, 32>>>", "finish(1, 32)", "Line 6 .*not KERNEL<<<GRID, BLOCK>>>"),
    ("finish<<<1, 32>>>", "finish<<<1, 32>>> cooperative", "Line 6 .*only 'pdl'"),
])  # fmt: skip
def test_a_broken_header_is_refused_by_line_with_the_right_form(old: str, new: str, complaint: str) -> None:
    with pytest.raises(ProgramError, match=complaint) as caught:
        parse(TEXT.replace(old, new, 1))
    assert "slabs" in new or "The form is '// " in str(caught.value)


def test_a_program_needs_a_launch_and_a_body() -> None:
    with pytest.raises(ProgramError, match="at least one 'launch' line"):
        parse("// layout: rows index=int32\nextern\n")
    with pytest.raises(ProgramError, match=r"Line 3 .*body"):
        parse("// layout: rows index=int32\n// launch: spmv<<<1, 32>>>\n\n")
    with pytest.raises(ProgramError):
        render(replace(parse(TEXT), body="// launch: spmv<<<1, 32>>>\n"))


def test_the_contract_ends_with_the_vectors_and_the_workspaces() -> None:
    program = parse(TEXT)
    assert (
        spelled(parameters(program, SPMV))
        == f"{HEAD}, {ARRAYS}, const value_t* x, value_t* y, acc_t* partial, int* counter"
    )
    assert spelled(parameters(program, SPMM)).endswith(
        "const value_t* vals, const value_t* b, value_t* c, int n, acc_t* partial, int* counter"
    )


def test_a_workspace_may_not_take_the_name_of_a_parameter() -> None:
    program = parse(TEXT.replace("partial", "cols"))
    with pytest.raises(ProgramError, match="'cols' has the name of a parameter"):
        parameters(program, SPMV)


@pytest.mark.parametrize("text", [
    TEXT,
    SIMPLE,
    SIMPLE.replace("const int* slice_start", "const   int *\n slice_start"),
    SIMPLE.replace("*", "* __restrict__"),
    SIMPLE.replace("value_t* y", "value_t* __restrict__ y"),
    TEXT.replace("const int* row_of", "const int* __restrict__ row_of"),
    SIMPLE.replace('extern "C"', "__device__ int twice(int a) { return 2 * a; }\nextern \"C\""),
])  # fmt: skip
def test_the_contract_may_be_spelled_freely_within_its_types_and_names(text: str) -> None:
    check_signature(parse(text), SPMV)


@pytest.mark.parametrize(("old", "new", "complaint"), [
    ("int nonzeros", "int nnz", "'spmv', parameter 3: expected 'int nonzeros', got 'int nnz'"),
    ("int padded, ", "", "parameter 4: expected 'int padded', got 'int slices'"),
    ("const index_t* cols", "const int* cols", "parameter 9: expected 'const index_t. cols', got 'const int . cols'"),
    ("const value_t* vals", "value_t* vals", "parameter 10"),
    ("value_t* y", "value_t* y, int extra", "parameter 13: expected no more, got 'int extra'"),
    (", value_t* y", "", "parameter 12: expected 'value_t\\* y', got 'nothing'"),
    ("void spmv", "void spmw", "'spmw' is never launched"),
    ("void spmv", "int spmv", "a kernel is written as"),
    ('extern "C" __global__', "__global__", "a kernel is written as"),
    ("{ }", ";", "has a name and a body"),
    ("{ }", "{ } __global__ void spmv() {}", "a kernel is written as"),
    ("__global__ ", "", "'spmv' is not in the program"),
])  # fmt: skip
def test_a_signature_off_the_contract_is_refused_by_kernel_and_position(old: str, new: str, complaint: str) -> None:
    program = parse(SIMPLE)
    with pytest.raises(ProgramError, match=complaint):
        check_signature(replace(program, body=program.body.replace(old, new, 1)), SPMV)


def test_every_kernel_is_defined_once() -> None:
    program = parse(SIMPLE)
    with pytest.raises(ProgramError, match="'spmv' is defined twice"):
        check_signature(replace(program, body=program.body * 2), SPMV)


@pytest.mark.parametrize("name", ["x", "y"])
def test_vectors_may_not_be_restrict_in_a_program_that_overlaps_its_producer(name: str) -> None:
    program = parse(TEXT.replace(f"value_t* {name}", f"value_t* __restrict__ {name}", 1))
    with pytest.raises(ProgramError, match=f"'{name}' may not be __restrict__ in a program with a pdl launch"):
        check_signature(program, SPMV)


def test_a_workspace_may_not_be_restrict() -> None:
    with pytest.raises(ProgramError, match="'partial' may not be __restrict__"):
        check_signature(parse(TEXT.replace("acc_t* partial", "acc_t* __restrict__ partial")), SPMV)
