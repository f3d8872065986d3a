"""A program's skeleton: what is left when names, numbers, comments and spacing are taken away.

Two programs with one skeleton differ at most in their parameters. The layout counts by its name alone; keywords,
types, primitives, intrinsics and built-in variables keep their names, all others are numbered as they appear.
"""

from __future__ import annotations

import re

from sparserl.lexer import Token, tokens
from sparserl.program import parse
from sparserl.vocabulary import BUILTINS, RESERVED

_NUMBER = re.compile(r"\b\d\w*")
_KEPT = RESERVED | BUILTINS


def skeleton(text: str) -> str:
    """Raises ProgramError where the text is no program."""
    program = parse(text)
    names: dict[str, str] = {}
    words = ["layout", program.layout.name, "bake", *sorted(program.bake)]
    for workspace in program.workspaces:
        words += ["workspace", *_words(tokens(f"{workspace.name} {workspace.ctype} {workspace.count}"), names)]
        words.append(workspace.kind)
    for launch in program.launches:
        parts = f"{launch.kernel} ( {launch.grid} , {launch.block} , {launch.shared} )"
        words += ["launch", *_words(tokens(parts), names)] + (["pdl"] if launch.pdl else [])
    return " ".join(words + _words(tokens(program.body), names))


def _words(found: list[Token], names: dict[str, str]) -> list[str]:
    words, before = [], ""
    for token in found:
        if token.kind == "number":
            words.append("#")
        elif token.kind == "directive":
            words.append(" ".join(_NUMBER.sub("#", token.text).split()))
        elif token.kind == "name" and token.text not in _KEPT and before != ".":
            words.append(names.setdefault(token.text, f"n{len(names)}"))
        else:
            words.append(token.text)
        before = token.text
    return words
