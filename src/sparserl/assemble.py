"""Program + packed matrix + problem → Job: one translation unit, the launches with their numbers, the workspaces.

Only what the bake line names is compiled in, so a program without one has the same source for every matrix. The text is
checked against its contract here, but not screened: `screen.screen` comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from sparserl.backends.backend import Job
from sparserl.errors import ProgramError
from sparserl.expression import BLOCK, GRID, SHARED, WORKSPACE_BYTES, check_range, evaluate
from sparserl.program import check_signature, kernel_names, parameters
from sparserl.records import VALUE_BYTES, Launch, LaunchLine, Packed, Problem, Program

VALUE_TYPES = {"float32": "float", "float64": "double", "float16": "half_t", "bfloat16": "bf16_t"}
ACC_TYPES = {"float32": "float", "float64": "double"}
INDEX_TYPES = {"int32": "int", "abs16": "unsigned short", "int16": "unsigned short", "none": "int"}
TABLE_LIMIT = 512
"""entries a baked table may have; longer ones belong in an array"""


def assemble(program: Program, packed: Packed, problem: Problem, sms: int) -> Job:
    """Make a program ready for a machine with `sms` multiprocessors. Raises ProgramError."""
    if packed.layout != program.layout:
        raise ProgramError(f"The matrix is packed for layout '{packed.layout}', the program wants '{program.layout}'.")
    check_signature(program, problem)
    scalars = dict(packed.scalars)
    if problem.op == "spmm":
        scalars["n"] = problem.columns
    names = {**scalars, "sms": sms}
    launches = [_launch(line, names) for line in program.launches]
    return Job(
        source=source(program, packed, problem),
        kernels=kernel_names(program),
        params=parameters(program, problem),
        scalars=scalars,
        launches=tuple(launch for launch in launches if launch.grid > 0),
        workspaces={w.name: (_bytes(w.count, w.ctype, names, problem), w.kind) for w in program.workspaces},
        vector_names=("x", "y") if problem.op == "spmv" else ("b", "c"),
    )


def source(program: Program, packed: Packed, problem: Problem) -> str:
    """The whole translation unit: types, preamble, baked constants, body."""
    constants = _constants(program, packed, problem)
    return "\n".join([types(problem, program.layout.index), preamble(), *constants, program.body])


def types(problem: Problem, index: str) -> str:
    """The typedefs that stand in front of the preamble."""
    return (
        "struct half_t;\nstruct bf16_t;\n"
        f"typedef {VALUE_TYPES[problem.dtype]} value_t;\n"
        f"typedef {ACC_TYPES[problem.accumulator]} acc_t;\n"
        f"typedef {INDEX_TYPES[index]} index_t;\n"
    )


@cache
def preamble() -> str:
    """The text of preamble.cuh."""
    return files("sparserl").joinpath("preamble.cuh").read_text(encoding="ascii")


def _constants(program: Program, packed: Packed, problem: Problem) -> list[str]:
    known: dict[str, int] = {name.upper(): value for name, value in packed.scalars.items()}
    if problem.op == "spmm":
        known["N"] = problem.columns
    lines = []
    for name in program.bake:
        if name in known:
            lines.append(f"constexpr int {name} = {known[name]};")
        elif name in packed.tables:
            lines.append(_table(name, packed.tables[name]))
        else:
            choices = ", ".join([*known, *packed.tables])
            raise ProgramError(
                f"The bake line names '{name}', which layout '{program.layout.name}' doesn't offer. "
                f"It may name {choices}."
            )
    return lines


def _table(name: str, numbers: tuple[int, ...]) -> str:
    if len(numbers) > TABLE_LIMIT:
        raise ProgramError(
            f"The table '{name}' has {len(numbers)} entries; at most {TABLE_LIMIT} can be baked. "
            "Read the array instead."
        )
    # An array can't have length 0; a program never reads past the count it is given.
    listed = ", ".join(map(str, numbers or (0,)))
    # __device__: device code may index it; constexpr: the entries fold where a loop over them is unrolled.
    return f"__device__ constexpr int {name}[{max(len(numbers), 1)}] = {{{listed}}};"


def _launch(line: LaunchLine, names: Mapping[str, int]) -> Launch:
    return Launch(
        kernel=line.kernel,
        grid=evaluate(line.grid, names, GRID),
        block=evaluate(line.block, names, BLOCK),
        shared_bytes=evaluate(line.shared, names, SHARED),
        pdl=line.pdl,
    )


def _bytes(count: str, ctype: str, names: Mapping[str, int], problem: Problem) -> int:
    sizes = {"int": 4, "acc_t": VALUE_BYTES[problem.accumulator], "value_t": problem.value_bytes}
    size = evaluate(count, names) * sizes[ctype]
    check_range(f"{count} entries of {ctype}", size, WORKSPACE_BYTES)
    return size
