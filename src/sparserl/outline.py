"""What a program's body consists of: the items at its outermost level, its functions, the names it declares.

It reads tokens, not C++: it relies on the screen to refuse whatever it can't follow (classes, lambdas, prototypes,
`::`, typedefs). Scopes are not told apart: a name declared anywhere counts as declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from sparserl.lexer import Token, closing
from sparserl.vocabulary import KEYWORDS, SCALAR_WORDS, TYPES

_DECORATIONS = ("*", "&", "&&", "const", "volatile", "__restrict__")
_QUALIFIERS = ("const", "volatile", "constexpr")


@dataclass(frozen=True)
class Item:
    """One definition at the outermost level: tokens first..last."""

    first: int
    last: int


@dataclass(frozen=True)
class Function:
    """A function with a body. Numbers are token indices; brackets included."""

    name: str
    kernel: bool
    item: Item
    name_at: int
    open_params: int
    close_params: int
    open_body: int
    close_body: int


@dataclass(frozen=True)
class Outline:
    """The body cut up."""

    tokens: list[Token]
    items: tuple[Item, ...]
    functions: tuple[Function, ...]
    type_names: frozenset[str]
    """the template type parameters"""
    declared: tuple[Token, ...]
    """every name in the place of a declaration, in order, reserved ones too"""

    def text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def function(self, name: str) -> Function | None:
        return next((function for function in self.functions if function.name == name), None)


def outline(found: list[Token]) -> Outline:
    """Cut the tokens of a body into items, functions and declared names."""
    items = tuple(_items(found))
    functions = tuple(function for item in items if (function := _function(found, item)) is not None)
    type_names = frozenset(
        after.text
        for before, after in pairwise(found)
        if before.text in ("class", "typename") and after.kind == "name"
    )
    return Outline(found, items, functions, type_names, tuple(_declared(found, TYPES | type_names)))


def close_angle(found: list[Token], at: int) -> int:
    """The index of the '>' that closes the '<' at `at`, or -1 where there is none before the statement ends."""
    depth = 0
    i = at
    while i < len(found):
        text = found[i].text
        if text in ("(", "[", "{"):
            i = closing(found, i)
        elif text == "<":
            depth += 1
        elif text in (">", ">>", ">>>"):
            depth -= len(text)
            if depth <= 0:
                return i
        elif text in (";", ")", "]", "}"):
            return -1
        i += 1
    return -1


def arguments(found: list[Token], opened: int) -> list[tuple[int, int]]:
    """The first and last token of each argument between the '(' at `opened` and its ')'."""
    end = closing(found, opened)
    result: list[tuple[int, int]] = []
    first = i = opened + 1
    while i <= end:
        if found[i].text in ("(", "[", "{"):
            i = closing(found, i)
        elif found[i].text == "," or i == end:
            if i > first:
                result.append((first, i - 1))
            first = i + 1
        i += 1
    return result


def _items(found: list[Token]) -> list[Item]:
    items: list[Item] = []
    first = at = 0
    while at < len(found):
        text = found[at].text
        ends = text == ";"
        if text in ("(", "[", "{"):
            is_body = text == "{" and at > 0 and found[at - 1].text == ")"
            at = closing(found, at)
            ends = is_body
        if ends:
            if at > first:
                items.append(Item(first, at))
            first = at + 1
        at += 1
    if first < len(found):
        items.append(Item(first, len(found) - 1))
    return items


def _function(found: list[Token], item: Item) -> Function | None:
    """An item is a function if it ends with a body; its parameters are the last parentheses before it."""
    if found[item.last].text != "}":
        return None
    opened = -1
    at = item.first
    while at <= item.last:
        text = found[at].text
        if text == "(":
            opened, at = at, closing(found, at)
        elif text == "[":
            at = closing(found, at)
        elif text == "{":
            break
        at += 1
    if opened < 1 or at > item.last:
        return None
    name = found[opened - 1]
    kernel = any(found[i].text == "__global__" for i in range(item.first, opened))
    return Function(name.text, kernel, item, opened - 1, opened, closing(found, opened), at, item.last)


def _declared(found: list[Token], types: frozenset[str]) -> list[Token]:
    """A type followed by a name declares it; so does a comma behind it in the same statement."""
    names: list[Token] = []
    at = 0
    while at < len(found):
        token = found[at]
        after_member = at > 0 and found[at - 1].text in (".", "->", "class", "typename")
        if token.text not in types or after_member:
            at += 1
            continue
        at = _skip_decorations(found, _skip_type(found, at))
        if at < len(found) and found[at].kind == "name" and found[at].text not in KEYWORDS:
            names.append(found[at])
            names += _further_declarators(found, at + 1, types)
            at += 1
    return names


def _skip_type(found: list[Token], at: int) -> int:
    """Past one type: a run of scalar words, or one name with its <…>."""
    if found[at].text in SCALAR_WORDS:
        while at < len(found) and (found[at].text in SCALAR_WORDS or found[at].text in _QUALIFIERS):
            at += 1
        return at
    at += 1
    if at < len(found) and found[at - 1].text == "pack" and found[at].text == "<":
        end = close_angle(found, at)
        return end + 1 if end > 0 else at
    return at


def _skip_decorations(found: list[Token], at: int) -> int:
    while at < len(found) and found[at].text in _DECORATIONS:
        at += 1
    return at


def _further_declarators(found: list[Token], at: int, types: frozenset[str]) -> list[Token]:
    """The names behind commas: int a = f(x, y), b, *c;"""
    names: list[Token] = []
    while at < len(found):
        text = found[at].text
        if text in (";", ")", "]", "}") or (text == "{" and found[at - 1].text == ")"):
            break
        if text in ("(", "[", "{"):
            at = closing(found, at)
        elif text == ",":
            following = _skip_decorations(found, at + 1)
            if following >= len(found) or found[following].kind != "name" or found[following].text in KEYWORDS | types:
                break
            names.append(found[following])
            at = following
        at += 1
    return names
