"""The launch expression language: integer arithmetic over named sizes, read by a small parser of its own.

    sum     = term (('+' | '-') term)*
    term    = unary (('*' | '/' | '%') unary)*
    unary   = '-' unary | primary
    primary = integer | name | ('div_up' | 'min' | 'max') '(' sum ',' sum ')' | '(' sum ')'

Division and remainder are those of whole numbers, rounded down; `div_up` rounds up. There are no variables, calls or
types beyond these, and nothing is ever handed to Python's own evaluator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparserl.errors import ProgramError

LENGTH_LIMIT = 200
DEPTH_LIMIT = 16
MAGNITUDE_LIMIT = 1 << 62
"""larger intermediate numbers are refused, so that no expression can make huge integers"""

FUNCTIONS = ("div_up", "min", "max")

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|([-+*/%(),]))", re.ASCII)


@dataclass(frozen=True)
class Range:
    """What the number is for, and the least and the most it may be."""

    what: str
    low: int
    high: int


GRID = Range("grid size", 0, 2**31 - 1)
BLOCK = Range("block size", 1, 1024)
SHARED = Range("number of dynamic shared bytes", 0, 227 * 1024)
WORKSPACE_BYTES = Range("number of workspace bytes", 0, 1 << 30)


def evaluate(text: str, names: Mapping[str, int], within: Range | None = None) -> int:
    """The value of a launch expression over `names`; `within` bounds the result. Raises ProgramError."""
    if len(text) > LENGTH_LIMIT:
        raise ProgramError(
            f"A launch expression has at most {LENGTH_LIMIT} characters. Got {len(text)}: {text[:40]!r}…"
        )
    reader = _Reader(text, names)
    value = reader.sum(0)
    if reader.peek():
        raise reader.error(f"expected the end or an operator at {reader.peek()!r}")
    if within is not None:
        check_range(text, value, within)
    return value


def check_range(text: str, value: int, within: Range) -> None:
    """Refuse a value outside its range, naming the expression."""
    if not within.low <= value <= within.high:
        raise ProgramError(
            f"The {within.what} must be in {within.low}..{within.high}. Got {value} from the expression {text!r}."
        )


def names_in(text: str) -> tuple[str, ...]:
    """The names an expression uses, functions left out, each once, in order."""
    seen = dict.fromkeys(match[1] for match in _TOKEN.findall(text) if match[1] and match[1] not in FUNCTIONS)
    return tuple(seen)


class _Reader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str, names: Mapping[str, int]) -> None:
        self.text = text
        self.names = names
        self.at = 0
        self.tokens: list[str] = []
        end = 0
        stripped = text.rstrip()
        while end < len(stripped):
            match = _TOKEN.match(stripped, end)
            if match is None:
                raise self.error(f"{stripped[end:].strip()[:10]!r} is not part of the language")
            self.tokens.append(match.group().strip())
            end = match.end()

    def error(self, problem: str) -> ProgramError:
        return ProgramError(
            f"The launch expression {self.text!r} can't be read: {problem}. It may hold integers, "
            f"{', '.join(sorted(self.names)) or 'no names'}, + - * / %, div_up(a, b), min(a, b), max(a, b) and "
            "parentheses."
        )

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, wanted: str) -> None:
        got = self.take()
        if got != wanted:
            raise self.error(f"expected {wanted!r}, got {got or 'the end'!r}")

    def bounded(self, value: int) -> int:
        if abs(value) > MAGNITUDE_LIMIT:
            raise self.error("a number in it is larger than 2^62")
        return value

    def sum(self, depth: int) -> int:
        if depth > DEPTH_LIMIT:
            raise self.error(f"parentheses and calls nest deeper than {DEPTH_LIMIT}")
        value = self.term(depth)
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value = self.bounded(value + sign * self.term(depth))
        return value

    def term(self, depth: int) -> int:
        value = self.unary(depth)
        while self.peek() in ("*", "/", "%"):
            operator = self.take()
            right = self.unary(depth)
            value = self.bounded(value * right) if operator == "*" else self.divide(operator, value, right)
        return value

    def unary(self, depth: int) -> int:
        negative = False
        while self.peek() == "-":
            self.take()
            negative = not negative
        value = self.primary(depth)
        return -value if negative else value

    def divide(self, operator: str, left: int, right: int) -> int:
        if right == 0:
            raise self.error(f"division by zero ({left} {operator} 0)")
        if operator == "div_up":
            return -(-left // right)
        return left // right if operator == "/" else left % right

    def primary(self, depth: int) -> int:
        token = self.take()
        if token.isdigit():
            return self.bounded(int(token))
        if token == "(":
            value = self.sum(depth + 1)
            self.expect(")")
            return value
        if token in FUNCTIONS:
            self.expect("(")
            left = self.sum(depth + 1)
            self.expect(",")
            right = self.sum(depth + 1)
            self.expect(")")
            if token == "div_up":
                return self.divide(token, left, right)
            return min(left, right) if token == "min" else max(left, right)
        if token in self.names:
            return self.names[token]
        if re.fullmatch(r"[A-Za-z_]\w*", token):
            raise self.error(f"the name {token!r} is unknown")
        raise self.error(f"expected a number, a name or '(', got {token or 'the end'!r}")
