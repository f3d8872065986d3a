"""How a recipe becomes a program's text: header lines, the contract's signature, the kernel bodies.

A recipe writer says which layout, which launches and what the bodies are; this file knows how a program is spelled.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from sparserl import layouts
from sparserl.records import LayoutLine, Problem, Workspace

Setting = int | str | bool


@dataclass(frozen=True)
class Kernel:
    """One kernel of a recipe: its launch and the text between its braces."""

    name: str
    grid: str
    block: int
    body: str
    shared: str = ""
    pdl: bool = False


@dataclass(frozen=True)
class Recipe:
    """A program by an expert's hand that knows its own parameters."""

    family: str
    """the writer it came from"""
    settings: tuple[tuple[str, Setting], ...]
    layout: LayoutLine
    text: str
    simplicity: int
    """lower is simpler: lines of text, and 20 for each launch after the first; ties in time go to the simpler one"""
    deterministic: bool = True
    cost_us: float = 0.0
    """what the cost model thinks of it on the matrix at hand, in the mode asked for; 0 where nobody asked"""
    chain_cost_us: float = 0.0
    """the same in chain mode"""

    @property
    def params(self) -> dict[str, Setting]:
        return dict(self.settings)

    @property
    def name(self) -> str:
        return self.family + "(" + ", ".join(f"{k}={v}" for k, v in self.settings) + f") on {self.layout}"

    @property
    def pdl(self) -> bool:
        return "pdl_wait()" in self.text

    def setting(self, key: str, default: Setting = 0) -> Setting:
        return dict(self.settings).get(key, default)


def line(name: str, index: str = "int32", **params: int | str) -> LayoutLine:
    """A layout line with its parameters in the order given."""
    return LayoutLine(name, tuple((key, str(value)) for key, value in params.items()), index)


def code(text: str) -> str:
    """A body from a loose literal: lines that hold only '~' vanish, the others are indented by their braces."""
    depth, hanging, rows = 1, 0, []
    for row in (raw.strip() for raw in text.split("\n")):
        if row in ("", "~"):
            continue
        depth -= row.startswith("}")
        rows.append("    " * (depth + hanging) + row)
        opens = row.endswith("{")
        depth += opens
        # a loop or branch without braces: its one statement stands a step to the right
        header = row.startswith(("for (", "if (", "else", "while (")) and not row.endswith((";", "{"))
        hanging = hanging + 1 if header else hanging if row.startswith("#") else 0
    return "\n".join(rows)


def over(value: str, divisor: int) -> str:
    """value / divisor, without a division by one."""
    return value if divisor == 1 else f"{value} / {divisor}"


def rest(value: str, divisor: int) -> str:
    """value % divisor, which is 0 for one."""
    return "0" if divisor == 1 else f"{value} % {divisor}"


def times(value: str, factor: int) -> str:
    """value * factor, without a multiplication by one."""
    return value if factor == 1 else f"{value} * {factor}"


def place(threads: int, lanes: int = 1) -> str:
    """The number of a thread, or of its group of lanes, in the grid."""
    thread = f"blockIdx.x * {threads} + threadIdx.x"
    return thread if lanes == 1 else f"({thread}) / {lanes}"


def when(condition: bool, text: str) -> str:
    """`text`, or a line that `code` drops."""
    return text if condition else "~"


def signature(
    kernel: Kernel, layout: LayoutLine, problem: Problem, workspaces: Sequence[Workspace], *, waits: bool
) -> str:
    """The kernel's head: exactly the contract. x is never __restrict__ in a program that waits for its producer."""
    params = [
        p.ctype.replace("*", "* __restrict__") + " " + p.name if p.is_array else f"{p.ctype} {p.name}"
        for p in layouts.contract(layout)
    ]
    restrict = "" if waits else " __restrict__"
    source, target = ("x", "y") if problem.op == "spmv" else ("b", "c")
    params += [f"const value_t*{restrict} {source}", f"value_t*{restrict} {target}"]
    params += ["int n"] if problem.op == "spmm" else []
    params += [f"{w.ctype}* {w.name}" for w in workspaces]
    head = f'extern "C" __global__ void __launch_bounds__({kernel.block}) {kernel.name}(\n'
    wrapped = textwrap.wrap(", ".join(p.replace(" ", "\0") for p in params) + ")", 108, break_long_words=False)
    return head + "\n".join("    " + row.replace("\0", " ") for row in wrapped)


def write(
    problem: Problem,
    layout: LayoutLine,
    kernels: Sequence[Kernel],
    *,
    bake: Sequence[str] = (),
    workspaces: Sequence[Workspace] = (),
    helpers: str = "",
) -> str:
    """The program's canonical text."""
    waits = any(k.pdl for k in kernels)
    rows = [f"// layout: {layout}"]
    if bake:
        rows.append("// bake: " + " ".join(bake))
    rows += [f"// workspace: {w.name} {w.ctype}[{w.count}] {w.kind}" for w in workspaces]
    for k in kernels:
        shared = f", {k.shared}" if k.shared else ""
        rows.append(f"// launch: {k.name}<<<{k.grid}, {k.block}{shared}>>>" + (" pdl" if k.pdl else ""))
    parts = [helpers.strip("\n")] if helpers else []
    parts += [signature(k, layout, problem, workspaces, waits=waits) + "\n{\n" + k.body + "\n}" for k in kernels]
    return "\n".join(rows) + "\n" + "\n\n".join(parts) + "\n"


def make(
    family: str, problem: Problem, layout: LayoutLine, kernels: Sequence[Kernel], *, bake: Sequence[str] = (),
    workspaces: Sequence[Workspace] = (), helpers: str = "", deterministic: bool = True, **settings: Setting | None
) -> Recipe:
    """A Recipe whose text is written by `write`. A setting that is None is one that this recipe hasn't."""
    text = write(problem, layout, kernels, bake=bake, workspaces=workspaces, helpers=helpers)
    simplicity = text.count("\n") + 20 * (len(kernels) - 1)
    given = tuple((name, value) for name, value in settings.items() if value is not None)
    return Recipe(family, given, layout, text, simplicity, deterministic)
