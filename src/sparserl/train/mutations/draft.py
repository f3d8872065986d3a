"""A program taken apart for a mutation: header fields, functions with their statements; `text` puts it together.

A Draft is changed in place; make a new one from the text for every mutation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparserl import layouts
from sparserl.errors import ProgramError
from sparserl.lexer import tokens
from sparserl.outline import outline
from sparserl.program import parse, render
from sparserl.records import LaunchLine, Param, Problem, Program
from sparserl.train.mutations.tree import (
    Node,
    every,
    names,
    parse_statements,
    printed,
    used,
    without_comments,
)


@dataclass
class Part:
    """A function of the body: the text up to its '{' and its statements."""

    name: str
    kernel: bool
    head: str
    body: list[Node]

    @property
    def is_template(self) -> bool:
        return self.head.lstrip().startswith("template")


@dataclass
class Draft:
    """A program under change."""

    problem: Problem
    program: Program
    """its body is out of date; `parts` hold it"""
    parts: list[Part]

    @classmethod
    def read(cls, text: str, problem: Problem) -> Draft:
        """Raises ProgramError where the text has more than functions, or statements that the tree can't hold."""
        program = parse(text)
        return cls(problem, program, _parts(program.body))

    @property
    def text(self) -> str:
        body = "\n\n".join(part.head + "\n{\n" + printed(part.body) + "\n}" for part in self.parts) + "\n"
        return render(replace(self.program, body=body))

    @property
    def kernels(self) -> list[Part]:
        return [part for part in self.parts if part.kernel]

    @property
    def arrays(self) -> dict[str, str]:
        """The element type of every array of A, by name."""
        found = {}
        for param in layouts.contract(self.program.layout):
            if param.is_array:
                found[param.name] = element(param)
        return found

    @property
    def right(self) -> str:
        """What A is multiplied by."""
        return "x" if self.problem.op == "spmv" else "b"

    @property
    def left(self) -> str:
        return "y" if self.problem.op == "spmv" else "c"

    @property
    def waits(self) -> bool:
        return any(launch.pdl for launch in self.program.launches)

    def launch_of(self, kernel: Part) -> LaunchLine | None:
        """Its launch, if it has exactly one."""
        found = [launch for launch in self.program.launches if launch.kernel == kernel.name]
        return found[0] if len(found) == 1 else None

    def set_launch(self, old: LaunchLine, new: LaunchLine) -> None:
        launches = tuple(new if launch is old else launch for launch in self.program.launches)
        self.program = replace(self.program, launches=launches)

    def bake(self, *wanted: str) -> None:
        missing = tuple(name for name in wanted if name not in self.program.bake)
        self.program = replace(self.program, bake=self.program.bake + missing)

    def fresh(self, part: Part, *wishes: str) -> str:
        """A name that nothing in the part uses: the first free one of the wishes, then numbered ones."""
        taken = used(part.body) | names(part.head) | set(self.program.bake)
        taken |= {other.name for other in self.parts}
        choices = [*wishes, *(f"{wishes[0]}{number}" for number in range(2, 99))]
        return next(name for name in choices if name not in taken)

    def places(self) -> Iterator[tuple[Part, list[Node], int, Node]]:
        """Every statement of every function, with its list and its place in it."""
        for part in self.parts:
            for container, at, node in every(part.body):
                yield part, container, at, node


def element(param: Param) -> str:
    return param.ctype.removeprefix("const").replace("*", "").strip()


def _parts(body: str) -> list[Part]:
    plain = without_comments(body)
    found = tokens(plain)
    cut = outline(found)
    if len(cut.items) != len(cut.functions):
        raise ProgramError("The body has more than functions; a mutation can't follow it.")
    places, at = [], 0
    for token in found:
        at = plain.index(token.text, at)
        places.append(at)
        at += len(token.text)
    parts = []
    for function in cut.functions:
        head = plain[places[function.item.first] : places[function.open_body]]
        head = "\n".join(line.rstrip() for line in head.strip().split("\n"))
        inside = plain[places[function.open_body] + 1 : places[function.close_body]]
        parts.append(Part(function.name, function.kernel, head, parse_statements(inside)))
    return parts
