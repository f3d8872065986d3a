"""Cuts CUDA source into tokens for the signature check and the screen.

It knows comments, names, numbers, literals, preprocessor lines and punctuators; it is not a parser and does not expand
macros (a program has none). A literal without an end goes to the end of its line; a comment without an end is a
ProgramError.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

from sparserl.errors import ProgramError

Kind = Literal["name", "number", "string", "char", "directive", "punct"]

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n\f\v]+)
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
    | (?P<string>"(?:[^"\\\n]|\\.)*"?)
    | (?P<char>'(?:[^'\\\n]|\\.)*'?)
    | (?P<directive>\#[^\n]*)
    | (?P<punct><<<|>>>|<<=|>>=|\.\.\.|->\*|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\s\w"'#])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Token(NamedTuple):
    """One token, with the line of the text it begins on (from 1)."""

    kind: Kind
    text: str
    line: int


def tokens(text: str, first_line: int = 1) -> list[Token]:
    """The tokens of `text` without spaces and comments."""
    return list(_tokens(text, first_line))


@functools.lru_cache(maxsize=256)  # a program is cut for its signature, for the screen and for every change of it
def _tokens(text: str, first_line: int) -> tuple[Token, ...]:
    found: list[Token] = []
    at, line = 0, first_line
    while at < len(text):
        match = _TOKEN.match(text, at)
        kind = match.lastgroup if match else None
        if match is None or kind is None or (kind == "punct" and text.startswith("/*", at)):
            snippet = text[at : at + 20].partition("\n")[0]
            raise ProgramError(
                f"Line {line} of the program can't be cut into tokens at {snippet!r}: close the comment or "
                "remove the character."
            )
        if kind not in ("space", "comment"):
            found.append(Token(kind, match.group(), line))  # type: ignore[arg-type]
        if kind not in ("name", "number", "punct", "directive"):
            line += match.group().count("\n")
        at = match.end()
    return tuple(found)


def check_brackets(found: list[Token]) -> None:
    """Every bracket is closed by its own kind."""
    pairs = {")": "(", "]": "[", "}": "{"}
    opened: list[Token] = []
    for token in found:
        if token.text in pairs.values():
            opened.append(token)
        elif token.text in pairs and (not opened or opened.pop().text != pairs[token.text]):
            raise ProgramError(f"Line {token.line} of the program: '{token.text}' closes nothing.")
    if opened:
        raise ProgramError(f"Line {opened[-1].line} of the program: '{opened[-1].text}' is never closed.")


def closing(found: list[Token], at: int) -> int:
    """The index of the bracket that closes the one at `at`."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    opened = found[at].text
    depth = 0
    for i in range(at, len(found)):
        if found[i].text == opened:
            depth += 1
        elif found[i].text == pairs[opened]:
            depth -= 1
            if depth == 0:
                return i
    raise ProgramError(f"The '{opened}' on line {found[at].line} of the program is never closed.")
