"""The statements of a function's body as a small tree that can be changed and printed again.

It knows simple statements, for, while, if and blocks; expressions stay text. Comments are dropped. Whatever it can't
follow (switch, do, goto-like flow) is a ProgramError, so that a mutation is simply not made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sparserl.errors import ProgramError
from sparserl.lexer import Token, closing, tokens

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
LINE_LENGTH = 116


@dataclass
class Simple:
    """One statement up to its ';' (which is not kept): a declaration, an assignment, a call, return, break."""

    text: str


@dataclass
class Pragma:
    """A '#' line; it belongs to the statement behind it."""

    text: str


@dataclass
class Loop:
    """for (init; test; update) body, or while (test) body with `init` and `update` None."""

    test: str
    body: list[Node]
    init: str | None = None
    update: str | None = None
    braced: bool = True


@dataclass
class Branch:
    """if (test) then else orelse."""

    test: str
    then: list[Node]
    orelse: list[Node] | None = None
    braced: bool = True
    word: str = "if"
    """'if' or 'if constexpr'"""


@dataclass
class Block:
    """Statements in braces of their own."""

    body: list[Node] = field(default_factory=list)


Node = Simple | Pragma | Loop | Branch | Block


def guard(test: str, body: list[Node]) -> Branch:
    """if (test) body, with braces where they help to read it."""
    return Branch(test, body, braced=len(body) != 1 or not isinstance(body[0], Simple))


def counting(var: str, count: str, body: list[Node]) -> list[Node]:
    """An unrolled loop over 0 … count - 1."""
    loop = Loop(f"{var} < {count}", body, f"int {var} = 0", f"++{var}")
    loop.braced = len(body) != 1 or not isinstance(body[0], Simple | Branch)
    return [Pragma("#pragma unroll"), loop]


def without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: " " + "\n" * match.group().count("\n"), text)


def names(text: str) -> set[str]:
    """The names in an expression or statement; members behind a '.' are not names."""
    return set(_NAME.findall(text))


def substitute(text: str, new: dict[str, str]) -> str:
    """Each name of `new` replaced wherever it stands as a whole name."""
    return _NAME.sub(lambda match: new.get(match.group(), match.group()), text)


def parse_statements(text: str) -> list[Node]:
    """The statements of a body, without its outer braces."""
    plain = without_comments(text)
    reader = _Reader(plain, tokens(plain))
    return reader.statements(0, len(reader.found))


class _Reader:
    """Statements from tokens, with the place of every token in the text."""

    def __init__(self, text: str, found: list[Token]) -> None:
        self.text, self.found = text, found
        self.places: list[tuple[int, int]] = []
        at = 0
        for token in found:
            at = text.index(token.text, at)
            self.places.append((at, at + len(token.text)))
            at += len(token.text)

    def between(self, first: int, last: int) -> str:
        """The source of tokens first..last, on one line."""
        if last < first:
            return ""
        return " ".join(self.text[self.places[first][0] : self.places[last][1]].split())

    def word(self, at: int) -> str:
        return self.found[at].text if at < len(self.found) else ""

    def statements(self, at: int, stop: int) -> list[Node]:
        result: list[Node] = []
        while at < stop:
            node, at = self.statement(at, stop)
            if node is not None:
                result.append(node)
        return result

    def statement(self, at: int, stop: int) -> tuple[Node | None, int]:
        token = self.found[at]
        if token.kind == "directive":
            return Pragma(token.text.strip()), at + 1
        if token.text == ";":
            return None, at + 1
        if token.text == "{":
            end = closing(self.found, at)
            return Block(self.statements(at + 1, end)), end + 1
        if token.text in ("do", "switch", "else", "case", "default"):
            raise ProgramError(f"Line {token.line}: '{token.text}' can't be followed by a mutation.")
        if token.text in ("for", "while"):
            return self.loop(at, stop)
        if token.text == "if":
            return self.branch(at, stop)
        end = at
        while end < stop and self.word(end) != ";":
            end = closing(self.found, end) + 1 if self.word(end) in ("(", "[", "{") else end + 1
        if end >= stop:
            raise ProgramError(f"Line {token.line}: a statement has no end.")
        return Simple(self.between(at, end - 1)), end + 1

    def body(self, at: int, stop: int) -> tuple[list[Node], bool, int]:
        """The statement behind a head; the pragmas in front of it come with it."""
        if self.word(at) == "{":
            end = closing(self.found, at)
            return self.statements(at + 1, end), True, end + 1
        inside: list[Node] = []
        while at < stop:
            node, at = self.statement(at, stop)
            if node is not None:
                inside.append(node)
            if not isinstance(node, Pragma):
                break
        return inside, False, at

    def loop(self, at: int, stop: int) -> tuple[Node, int]:
        end = closing(self.found, at + 1)
        inside, braced, following = self.body(end + 1, stop)
        if self.word(at) == "while":
            return Loop(self.between(at + 2, end - 1), inside, braced=braced), following
        cuts = [i for i in range(at + 2, end) if self.word(i) == ";"]
        if len(cuts) != 2:
            raise ProgramError(f"Line {self.found[at].line}: a loop's head has no three parts.")
        init, test = self.between(at + 2, cuts[0] - 1), self.between(cuts[0] + 1, cuts[1] - 1)
        return Loop(test, inside, init, self.between(cuts[1] + 1, end - 1), braced), following

    def branch(self, at: int, stop: int) -> tuple[Node, int]:
        word = "if constexpr" if self.word(at + 1) == "constexpr" else "if"
        opened = at + len(word.split())
        end = closing(self.found, opened)
        then, braced, following = self.body(end + 1, stop)
        node = Branch(self.between(opened + 1, end - 1), then, None, braced, word)
        if following < stop and self.word(following) == "else":
            node.orelse, other_braced, following = self.body(following + 1, stop)
            chain = len(node.orelse) == 1 and isinstance(node.orelse[0], Branch)
            node.braced = braced or (other_braced and not chain)
        return node, following


def every(nodes: list[Node]) -> Iterator[tuple[list[Node], int, Node]]:
    """Every statement with the list it stands in and its place there, outer ones first."""
    for at, node in enumerate(nodes):
        yield nodes, at, node
        for inside in inner(node):
            yield from every(inside)


def inner(node: Node) -> list[list[Node]]:
    """The lists of statements directly inside one."""
    if isinstance(node, Loop | Block):
        return [node.body]
    if isinstance(node, Branch):
        return [node.then] + ([node.orelse] if node.orelse is not None else [])
    return []


def texts(nodes: list[Node]) -> Iterator[str]:
    """All expression texts, in order."""
    for _, _, node in every(nodes):
        yield from own_texts(node)


def own_texts(node: Node) -> list[str]:
    if isinstance(node, Simple):
        return [node.text]
    if isinstance(node, Loop):
        return [part for part in (node.init, node.test, node.update) if part is not None]
    return [node.test] if isinstance(node, Branch) else []


def rewrite(nodes: list[Node], change: Callable[[str], str]) -> None:
    """Change every expression text in place."""
    for _, _, node in every(nodes):
        if isinstance(node, Simple):
            node.text = change(node.text)
        elif isinstance(node, Branch):
            node.test = change(node.test)
        elif isinstance(node, Loop):
            node.test = change(node.test)
            node.init = None if node.init is None else change(node.init)
            node.update = None if node.update is None else change(node.update)


def used(nodes: list[Node]) -> set[str]:
    return {name for text in texts(nodes) for name in names(text)}


def printed(nodes: list[Node], depth: int = 1) -> str:
    return "\n".join(line for node in nodes for line in _lines(node, depth))


def _lines(node: Node, depth: int) -> list[str]:
    pad = "    " * depth
    if isinstance(node, Simple):
        return [f"{pad}{node.text};"]
    if isinstance(node, Pragma):
        return [pad + node.text]
    if isinstance(node, Block):
        return [pad + "{", *_inside(node.body, depth), pad + "}"]
    if isinstance(node, Loop):
        return _headed(f"{pad}{_loop_head(node)}", node.body, node.braced, depth)
    lines = _headed(f"{pad}{node.word} ({node.test})", node.then, node.braced, depth)
    if node.orelse is None:
        return lines
    braced = lines[-1] == pad + "}"
    if len(node.orelse) == 1 and isinstance(node.orelse[0], Branch):
        tail = _lines(node.orelse[0], depth)
        head = f"{pad}else {tail[0].strip()}"
        tail = tail[1:]
    else:
        tail = _headed(f"{pad}else", node.orelse, node.braced, depth)
        head, tail = tail[0], tail[1:]
    if braced:
        return [*lines[:-1], f"{pad}}} {head.strip()}", *tail]
    return [*lines, head, *tail]


def _loop_head(node: Loop) -> str:
    if node.init is None:
        return f"while ({node.test})"
    return f"for ({node.init}; {node.test}; {node.update})"


def _inside(nodes: list[Node], depth: int) -> list[str]:
    return [line for node in nodes for line in _lines(node, depth + 1)]


def _headed(head: str, body: list[Node], braced: bool, depth: int) -> list[str]:
    """A head with its statement: on its line, on the next, or in braces."""
    real = [node for node in body if not isinstance(node, Pragma)]
    inside = _inside(body, depth)
    if braced or len(real) != 1 or (isinstance(real[0], Branch) and "if" in head.split("(", maxsplit=1)[0]):
        return [head + " {", *inside, "    " * depth + "}"]
    if len(inside) == 1 and isinstance(real[0], Simple) and len(head) + len(inside[0].strip()) < LINE_LENGTH:
        return [f"{head} {inside[0].strip()}"]
    return [head, *inside]
