"""Text ↔ Program, and the check that every kernel has the parameter list its layout promises.

`parse` reads the header (layout, bake, workspace, launch lines, in this order) and keeps the body as it is; `render`
writes the canonical text; each undoes the other. What may stand in the body is the screen's business, what the numbers
come to is `assemble`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NoReturn, cast

from sparserl import layouts
from sparserl.errors import LayoutError, ProgramError
from sparserl.lexer import Token, closing, tokens
from sparserl.records import LaunchLine, Param, Problem, Program, Workspace

WORKSPACE_TYPES = ("int", "acc_t", "value_t")
WORKSPACE_KINDS = ("zeroed", "scratch")

_HEADER = re.compile(r"//[ \t]*(layout|bake|workspace|launch):(.*)", re.ASCII)
_WORKSPACE = re.compile(r"([A-Za-z_]\w*)\s+([A-Za-z_]\w*)\s*\[(.+)\]\s*([a-z]+)", re.ASCII)
_LAUNCH = re.compile(r"([A-Za-z_]\w*)\s*<<<(.*)>>>\s*(\S*)", re.ASCII)
_BAKED = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_FORMS = {
    "layout": "// layout: slices c=32 sigma=1024 group=1 index=int16",
    "bake": "// bake: WIDTH PADDED",
    "workspace": "// workspace: partial acc_t[div_up(rows, 32)] scratch",
    "launch": "// launch: spmv<<<div_up(rows, 128), 128>>> pdl",
}


def parse(text: str) -> Program:
    """Read a program's text. Raises ProgramError that names the line and shows the right form."""
    order = list(_FORMS)
    found: dict[str, list[tuple[int, str]]] = {key: [] for key in order}
    lines, body = header(text)
    reached = 0
    for number, (key, said) in enumerate(lines, 1):
        if order.index(key) < reached:
            _fail(number, key, f"a '{key}' line may not follow a '{order[reached]}' line")
        if found[key] and key in ("layout", "bake"):
            _fail(number, key, f"there is already a '{key}' line")
        reached = order.index(key)
        found[key].append((number, said))
    if not found["layout"]:
        _fail(1, "layout", "a program begins with its layout line")
    if not found["launch"]:
        _fail(len(lines) + 1, "launch", "the header needs at least one 'launch' line before the body")
    if not body.strip():
        raise ProgramError(f"Line {len(lines) + 1} of the program: the body with the kernels is missing.")
    line, layout_text = found["layout"][0]
    try:
        layout = layouts.parse_line(layout_text)
    except LayoutError as error:
        raise ProgramError(f"Line {line} of the program: {error}") from error
    return Program(
        layout=layout,
        bake=_parse_bake(*found["bake"][0]) if found["bake"] else (),
        workspaces=_parse_workspaces(found["workspace"]),
        launches=tuple(_parse_launch(*entry) for entry in found["launch"]),
        body=body,
    )


def header(text: str) -> tuple[list[tuple[str, str]], str]:
    """The header lines that any text begins with, (key, what it says), and what follows them. Nothing is checked."""
    lines, at = [], 0
    while match := _HEADER.match(text, at):
        lines.append((match[1], match[2].strip()))
        at = min(match.end() + 1, len(text))
    return lines, text[at:]


def render(program: Program) -> str:
    """The canonical text of a program: `parse(render(program)) == program`."""
    if _HEADER.match(program.body) or not program.body.strip() or not program.launches:
        raise ProgramError("A program needs a launch and a body that doesn't begin with a header line.")
    lines = [f"// layout: {program.layout}"]
    if program.bake:
        lines.append("// bake: " + " ".join(program.bake))
    lines += [f"// workspace: {w.name} {w.ctype}[{w.count}] {w.kind}" for w in program.workspaces]
    lines += ["// launch: " + _render_launch(launch) for launch in program.launches]
    return "\n".join(lines) + "\n" + program.body


def header_lines(program: Program) -> int:
    """How many lines stand before the body in the rendered text."""
    return 1 + bool(program.bake) + len(program.workspaces) + len(program.launches)


def parameters(program: Program, problem: Problem) -> tuple[Param, ...]:
    """The parameter list that every kernel of the program must have."""
    params = list(layouts.contract(program.layout))
    if all(param.name != "vals" for param in params):
        params.append(Param("vals", "const value_t*", "slots"))
    if problem.op == "spmv":
        params += [Param("x", "const value_t*", "columns"), Param("y", "value_t*", "rows")]
    else:
        params += [Param("b", "const value_t*", "columns*n"), Param("c", "value_t*", "rows*n"), Param("n", "int")]
    taken = {param.name for param in params}
    for workspace in program.workspaces:
        if workspace.name in taken:
            raise ProgramError(
                f"The workspace '{workspace.name}' has the name of a parameter of layout '{program.layout.name}'. "
                "Give it another."
            )
        params.append(Param(workspace.name, workspace.ctype + "*", workspace.count))
    return tuple(params)


def kernel_names(program: Program) -> tuple[str, ...]:
    """The kernels that the launch lines name, each once, in order of first launch."""
    return tuple(dict.fromkeys(launch.kernel for launch in program.launches))


def check_signature(program: Program, problem: Problem) -> None:
    """Every launched kernel is defined once, with exactly the contract's parameters, and none is defined unlaunched."""
    found = tokens(program.body, header_lines(program) + 1)
    params = parameters(program, problem)
    waits = any(launch.pdl for launch in program.launches)
    launched = kernel_names(program)
    defined: set[str] = set()
    for i, token in enumerate(found):
        if token.text != "__global__":
            continue
        name, inside = _kernel_head(found, i)
        if name in defined:
            raise ProgramError(f"Line {token.line} of the program: the kernel '{name}' is defined twice.")
        if name not in launched:
            raise ProgramError(
                f"Line {token.line} of the program: the kernel '{name}' is never launched. Launch it or remove it; "
                f"the launch lines name {', '.join(launched)}."
            )
        defined.add(name)
        _check_parameters(name, _split(inside), params, waits)
    for name in launched:
        if name not in defined:
            raise ProgramError(
                f"The launched kernel '{name}' is not in the program. It must stand in the body as "
                f"extern \"C\" __global__ void {name}({spelled(params)})."
            )


def spelled(params: Sequence[Param]) -> str:
    """A parameter list as a program would write it."""
    return ", ".join(f"{param.ctype} {param.name}" for param in params)


def _kernel_head(found: list[Token], at: int) -> tuple[str, list[Token]]:
    """The name and the parameter tokens of the kernel whose `__global__` is at `at`."""
    line = found[at].line

    def text(i: int) -> str:
        return found[i].text if 0 <= i < len(found) else ""

    form = 'extern "C" __global__ void [__launch_bounds__(…)] NAME(parameters) { … }'
    following = at + 2
    if text(following) == "__launch_bounds__" and text(following + 1) == "(":
        following = closing(found, following + 1) + 1
    if [text(at - 2), text(at - 1), text(at + 1), text(following + 1)] != ["extern", '"C"', "void", "("]:
        raise ProgramError(f"Line {line} of the program: a kernel is written as {form}.")
    end = closing(found, following + 1)
    if found[following].kind != "name" or text(end + 1) != "{":
        raise ProgramError(f"Line {line} of the program: a kernel is written as {form}; it has a name and a body.")
    return text(following), found[following + 2 : end]


def _split(inside: list[Token]) -> list[list[str]]:
    """Parameter tokens cut at commas."""
    groups: list[list[str]] = [[]]
    for token in inside:
        if token.text == ",":
            groups.append([])
        else:
            groups[-1].append(token.text)
    return groups if groups != [[]] else []


def _check_parameters(kernel: str, written: list[list[str]], params: Sequence[Param], waits: bool) -> None:
    for position, param in enumerate(params):
        expected = [token.text for token in tokens(f"{param.ctype} {param.name}")]
        got = written[position] if position < len(written) else []
        bare = list(got)
        if len(bare) > 1 and bare[-2] == "__restrict__":
            del bare[-2]
            if bare == expected:
                _check_restrict(kernel, position, param, waits)
        if bare != expected:
            raise ProgramError(
                f"Kernel '{kernel}', parameter {position + 1}: expected '{param.ctype} {param.name}', got "
                f"'{' '.join(got) or 'nothing'}'. The contract is ({spelled(params)})."
            )
    if len(written) > len(params):
        raise ProgramError(
            f"Kernel '{kernel}', parameter {len(params) + 1}: expected no more, got "
            f"'{' '.join(written[len(params)])}'. The contract is ({spelled(params)})."
        )


def _check_restrict(kernel: str, position: int, param: Param, waits: bool) -> None:
    is_vector = param.name in ("x", "y", "b", "c")
    if is_vector and waits:
        raise ProgramError(
            f"Kernel '{kernel}', parameter {position + 1}: '{param.name}' may not be __restrict__ in a program with a "
            "pdl launch, or the compiler could read it before pdl_wait(). Remove __restrict__ or pdl."
        )
    if not is_vector and not param.ctype.startswith("const "):
        raise ProgramError(
            f"Kernel '{kernel}', parameter {position + 1}: '{param.name}' may not be __restrict__; only the arrays of "
            "A and the vectors may."
        )


def _fail(line: int, key: str, problem: str) -> NoReturn:
    raise ProgramError(f"Line {line} of the program: {problem}. The form is '{_FORMS[key]}'.")


def _parse_bake(line: int, text: str) -> tuple[str, ...]:
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if not _BAKED.fullmatch(name):
            _fail(line, "bake", f"{name!r} is not an upper-case name")
    if not names or len(set(names)) < len(names):
        _fail(line, "bake", "a 'bake' line names at least one constant, and each once")
    return names


def _parse_workspaces(entries: list[tuple[int, str]]) -> tuple[Workspace, ...]:
    result: list[Workspace] = []
    for line, text in entries:
        match = _WORKSPACE.fullmatch(text)
        if not match:
            _fail(line, "workspace", f"{text!r} is not NAME TYPE[COUNT] KIND")
        name, ctype, count, kind = match.groups()
        if ctype not in WORKSPACE_TYPES:
            _fail(line, "workspace", f"the type must be one of {', '.join(WORKSPACE_TYPES)}; got {ctype!r}")
        if kind not in WORKSPACE_KINDS:
            _fail(line, "workspace", f"the kind must be zeroed or scratch; got {kind!r}")
        if any(other.name == name for other in result):
            _fail(line, "workspace", f"there is already a workspace {name!r}")
        result.append(Workspace(name, ctype, count.strip(), cast(Literal["zeroed", "scratch"], kind)))
    return tuple(result)


def _parse_launch(line: int, text: str) -> LaunchLine:
    match = _LAUNCH.fullmatch(text)
    if not match:
        _fail(line, "launch", f"{text!r} is not KERNEL<<<GRID, BLOCK>>>")
    kernel, inside, flag = match.groups()
    if flag not in ("", "pdl"):
        _fail(line, "launch", f"after >>> only 'pdl' may stand; got {flag!r}")
    parts = _top_level_parts(inside)
    if len(parts) not in (2, 3) or not all(parts):
        _fail(line, "launch", f"<<<…>>> takes grid, block and, if need be, shared bytes; got {inside!r}")
    return LaunchLine(kernel, parts[0], parts[1], parts[2] if len(parts) > 2 else "0", flag == "pdl")


def _top_level_parts(text: str) -> list[str]:
    """Cut at commas outside parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _render_launch(launch: LaunchLine) -> str:
    shared = "" if launch.shared == "0" else f", {launch.shared}"
    return f"{launch.kernel}<<<{launch.grid}, {launch.block}{shared}>>>{' pdl' if launch.pdl else ''}"
