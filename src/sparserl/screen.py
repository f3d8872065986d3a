"""What may not be in a program; every rule with its reason.

The screen reads text. It keeps out whatever could make the judged code differ from the code that runs, reach past the
kernel's own memory, keep state between launches, or do harm as host code in the simulator. What a kernel computes is
not its business: races, wrong numbers and stray addresses are found by running it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparserl import layouts, screen_rules
from sparserl.errors import ProgramError, ScreenError
from sparserl.lexer import check_brackets, tokens
from sparserl.outline import outline
from sparserl.program import parse, render
from sparserl.records import Program
from sparserl.screen_rules import Complaint, Subject

BYTES_LIMIT = 16 * 1024
LINES_LIMIT = 400
KERNELS_LIMIT = 4
LAUNCHES_LIMIT = 8
WORKSPACES_LIMIT = 8
NESTING_LIMIT = 24
"""brackets of all kinds inside one another"""


@dataclass(frozen=True)
class Rule:
    """One thing that may not be in a program. `check` yields (line, what was found)."""

    name: str
    why: str
    check: Callable[[Subject], Iterator[Complaint]]


@dataclass(frozen=True)
class TextRule:
    """A rule on the raw characters, looked at before the text is even cut into tokens."""

    name: str
    why: str
    check: Callable[[str], Iterator[Complaint]]


def _size(text: str) -> Iterator[Complaint]:
    if len(text) > BYTES_LIMIT:
        yield 1, f"the text has {len(text)} bytes; the limit is {BYTES_LIMIT}"
    if text.count("\n") > LINES_LIMIT:
        yield LINES_LIMIT, f"the text has {text.count(chr(10))} lines; the limit is {LINES_LIMIT}"


def _characters(text: str) -> Iterator[Complaint]:
    for match in re.finditer(r"[^\n\t\x20-\x7e]|[\\@$`]", text):
        yield text.count("\n", 0, match.start()) + 1, f"the character {match.group()!r}"


def _alternative_spellings(text: str) -> Iterator[Complaint]:
    code = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group().count("\n") or " ", text, flags=re.DOTALL)
    for match in re.finditer(r"\?\?|<:|:>|<%|%>|%:", code):
        yield code.count("\n", 0, match.start()) + 1, f"the sequence {match.group()!r}"


def _counts(subject: Subject) -> Iterator[Complaint]:
    kernels = sum(function.kernel for function in subject.outline.functions)
    for what, count, limit in (
        ("kernels", kernels, KERNELS_LIMIT),
        ("launches", len(subject.program.launches), LAUNCHES_LIMIT),
        ("workspaces", len(subject.program.workspaces), WORKSPACES_LIMIT),
    ):
        if count > limit:
            yield 1, f"the program has {count} {what}; the limit is {limit}"
    depth = 0
    for token in subject.outline.tokens:
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth > NESTING_LIMIT:
            yield token.line, f"brackets nest deeper than {NESTING_LIMIT}"
            return


TEXT_RULES = (
    TextRule("size", "A kernel is short; a long text is a table of answers or a burden on the compiler.", _size),
    TextRule(
        "characters",
        "Programs are plain ASCII without backslashes: a continued line or an escaped letter reads one way here and "
        "another way in the compiler.",
        _characters,
    ),
    TextRule(
        "alternative spellings",
        "Trigraphs and digraphs spell '#', brackets and braces in ways that only some compilers read.",
        _alternative_spellings,
    ),
)

RULES = (
    Rule("counts", "Few kernels and little nesting keep compile time bounded.", _counts),
    Rule(
        "preprocessor",
        "Only '#pragma unroll' may stand on a '#' line: with conditions and macros the judged code need not be the "
        "code that runs.",
        screen_rules.preprocessor,
    ),
    Rule(
        "forbidden words",
        "A program is made of numbers, the contract's names, its own, and the primitives and intrinsics.",
        screen_rules.forbidden_words,
    ),
    Rule(
        "literals",
        "Strings and characters have no use in a kernel; numbers are decimal, hexadecimal or floating.",
        screen_rules.literals,
    ),
    Rule(
        "extern",
        "Outside names reach past the contract. The contract's kernels and 'extern __shared__' are all there is.",
        screen_rules.extern,
    ),
    Rule(
        "launch",
        "Launches belong to the host: a kernel that launches kernels escapes the clock.",
        screen_rules.launch,
    ),
    Rule(
        "scope",
        "'::' and lambdas reach or make names that the screen can't follow.",
        screen_rules.scope,
    ),
    Rule(
        "globals",
        "A variable outside the functions would keep state between launches, so that a kernel could count its calls. "
        "Outside are only kernels, __device__ functions and constexpr constants.",
        screen_rules.globals_,
    ),
    Rule(
        "shared in template",
        "Host compilers don't place the statics of a template where they are told, so the simulator could not tell "
        "shared memory from other; declare it in the kernel and hand it down.",
        screen_rules.shared_in_template,
    ),
    Rule(
        "declarations",
        "A program may not give a new meaning to a type, a primitive, an intrinsic or a name that begins with '_', nor "
        "declare a function without its body.",
        screen_rules.declarations,
    ),
    Rule(
        "names",
        "Every name is one of the vocabulary, the contract, or the program's own: whatever else the compiler knows is "
        "not for kernels.",
        screen_rules.names,
    ),
    Rule(
        "calls",
        "Calls go to intrinsics, primitives and functions defined above; function values and recursion would hide what "
        "is called.",
        screen_rules.calls,
    ),
    Rule(
        "casts",
        "Pointers are cast by reinterpret_cast to pointers to numbers only; other casts could forge addresses or drop "
        "const.",
        screen_rules.casts,
    ),
    Rule(
        "addresses",
        "Pointers may be followed, not looked at: timed vectors lie elsewhere than checked ones, and a program that "
        "knew addresses could tell.",
        screen_rules.addresses,
    ),
    Rule(
        "tables",
        "The matrix comes in its arrays. A text full of numbers carries the pattern itself, and is right for no other.",
        screen_rules.tables,
    ),
    Rule(
        "plain char",
        "char is signed on one machine and unsigned on another: write 'signed char' or 'unsigned char'. long "
        "double has other bits on each.",
        screen_rules.plain_char,
    ),
    Rule(
        "pdl wait",
        "A kernel launched with pdl starts while the one before it still runs: it must call pdl_wait() itself, and "
        "touch x, y and workspaces only below that.",
        screen_rules.pdl_wait,
    ),
    Rule(
        "pdl read-only",
        "In a program with pdl the read-only path and __restrict__ are for the arrays of A alone: x may still be being "
        "written.",
        screen_rules.pdl_read_only,
    ),
)


def screen(program: Program | str) -> None:
    """Let a program through, or raise ScreenError with the first rule it breaks (ProgramError if it can't be read)."""
    text = program if isinstance(program, str) else render(program)
    for text_rule in TEXT_RULES:
        for complaint in text_rule.check(text):
            _refuse(text_rule, complaint)
    program = parse(text)
    subject = _subject(program, text)
    for rule in RULES:
        for complaint in rule.check(subject):
            _refuse(rule, complaint)


def _subject(program: Program, text: str) -> Subject:
    first_line = text.count("\n", 0, len(text) - len(program.body)) + 1
    arrays = frozenset(param.name for param in layouts.contract(program.layout) if param.is_array) | {"vals"}
    found = tokens(program.body, first_line)
    try:
        check_brackets(found)
    except ProgramError as error:
        raise ScreenError("brackets", f"{error} With brackets out of step no other rule could be trusted.") from error
    return Subject(program, outline(found), arrays)


def _refuse(rule: Rule | TextRule, complaint: Complaint) -> None:
    line, found = complaint
    raise ScreenError(rule.name, f"Line {line} of the program: {found}. {rule.why}")
