"""Pointers may be followed, not looked at: the screen's check that no program learns an address.

The vectors of a timed product lie elsewhere than those of a checked one, so a program that knew addresses could tell
the two apart; and an address in a number can be changed and made a pointer again. Refused are casts of a pointer to a
number, the address of a pointer itself, pointers to or arrays of pointers, and two pointers subtracted or compared.

It reads tokens, not types: a pointer is a name declared with '*', 'auto' or a template type. It can't follow one
through a function's result.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparserl.lexer import closing
from sparserl.outline import Outline
from sparserl.vocabulary import SCALAR_WORDS, TYPES

_STATEMENT_ENDS = (";", "{", "}", "(", ",", ")")
_COMPARING = ("-", "<", ">", "<=", ">=", "==", "!=")
_UNARY_AFTER = ("(", ",", "=", "return", "?", ":", "[", "{", ";", "&&", "||", "+", "-", "*", "!", "<", ">", "==", "!=")


def pointer_addresses(outline: Outline) -> Iterator[tuple[int, str]]:
    """(line, what was found) for every place where an address becomes a number."""
    text, found = outline.text, outline.tokens
    starred, opaque = _pointers(outline)
    for i, token in enumerate(found):
        bare = token.text in opaque and text(i - 1) not in (".", "->") and text(i + 1) not in ("[", "(")
        if bare and text(i - 1) == "&" and (text(i - 2) in _UNARY_AFTER or _ends_cast(outline, i - 2)):
            yield token.line, f"the address of the pointer '{token.text}'"
        if token.text in starred and text(i + 1) in _COMPARING and _is_pointer(outline, i + 2, starred) and bare:
            yield token.line, f"'{token.text} {text(i + 1)} {text(i + 2)}' of two pointers"
        if token.text == "-" and _is_subtracted(outline, i + 1, starred):
            yield token.line, f"the pointer behind '- {text(i + 1)}' is subtracted"
        if token.text in _COMPARING and text(i + 1) == "&":
            yield token.line, f"an address behind '{token.text}'"
        if token.text == "*" and text(i + 1) == "*" and text(i - 1) in TYPES:
            yield token.line, "a pointer to a pointer"
        cast = token.text == ")" and _ends_cast(outline, i)
        wide = text(i - 1) == "long"  # what holds a whole address: here even a name of unknown type is refused
        if (cast or (token.text in SCALAR_WORDS and text(i + 1) == "(")) and _names_pointer(
            outline, i + 1, opaque if wide or token.text == "long" else starred
        ):
            yield token.line, f"a cast of the pointer expression at '{text(i + 1)} {text(i + 2)}' to a number"


def pointer_arrays(outline: Outline) -> Iterator[tuple[int, str]]:
    text = outline.text
    starred = {id(token) for token in outline.declared}
    for i, token in enumerate(outline.tokens):
        if id(token) in starred and text(i - 1) == "*" and text(i + 1) == "[":
            yield token.line, f"'{token.text}' is an array of pointers"
        if token.text == "pack" and text(i + 1) == "<" and (
            "*" in (text(i + 3), text(i + 4)) or text(i + 2) in outline.type_names
        ):
            yield token.line, "a pack of pointers, or of a type that could be one"


def _pointers(outline: Outline) -> tuple[set[str], set[str]]:
    """Names declared with '*', and these with those whose type isn't spelt out."""
    index = {id(token): i for i, token in enumerate(outline.tokens)}
    starred: set[str] = set()
    opaque: set[str] = set()
    for token in outline.declared:
        at = index[id(token)] - 1
        words: set[str] = set()
        while at >= 0 and outline.text(at) not in _STATEMENT_ENDS:
            words.add(outline.text(at))
            at -= 1
        if "*" in words:
            starred.add(token.text)
        if words & (outline.type_names | {"*", "auto"}):
            opaque.add(token.text)
    return starred, opaque


def _ends_cast(outline: Outline, close: int) -> bool:
    """Whether the ')' at `close` ends '(scalar type)'."""
    at = close - 1
    while at >= 0 and outline.text(at) in SCALAR_WORDS:
        at -= 1
    return outline.text(close) == ")" and at < close - 1 and outline.text(at) == "("


def _is_pointer(outline: Outline, at: int, starred: set[str]) -> bool:
    """A pointer's name that stands alone: not a member of that name, nor indexed or called."""
    member = outline.text(at - 1) in (".", "->")
    return outline.text(at) in starred and not member and outline.text(at + 1) not in ("[", "(")


def _is_subtracted(outline: Outline, at: int, starred: set[str]) -> bool:
    """Behind a minus an address makes sense only if it is taken from another."""
    while outline.text(at) == "(":
        at += 1
    return outline.text(at) == "&" or _is_pointer(outline, at, starred)


def _names_pointer(outline: Outline, at: int, starred: set[str]) -> bool:
    """Whether the operand at `at` is a pointer, an address or a parenthesis with a pointer in it."""
    while outline.text(at) in ("+", "("):
        if outline.text(at) == "(":
            inside = range(at + 1, closing(outline.tokens, at))
            return any(_is_bare(outline, i, at, starred) for i in inside)
        at += 1
    return outline.text(at) == "&" or _is_pointer(outline, at, starred)


def _is_bare(outline: Outline, at: int, opened: int, starred: set[str]) -> bool:
    """A pointer that is neither indexed nor inside further brackets, nor behind '*'."""
    depth = sum((outline.text(i) in ("(", "[")) - (outline.text(i) in (")", "]")) for i in range(opened + 1, at))
    return depth == 0 and outline.text(at - 1) != "*" and _is_pointer(outline, at, starred)
