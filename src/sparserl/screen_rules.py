"""The checks behind the screen's rules. Each takes the program cut up and yields (line, what was found)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sparserl.lexer import closing
from sparserl.outline import Function, Item, Outline, arguments, close_angle
from sparserl.records import Program
from sparserl.screen_pointers import pointer_addresses, pointer_arrays
from sparserl.vocabulary import (
    BUILTINS,
    CALLABLE,
    CONTROL,
    FORBIDDEN,
    KEYWORDS,
    MEMBERS,
    PREAMBLE_INTERNALS,
    RESERVED,
    SCALAR_WORDS,
    TYPES,
)

Complaint = tuple[int, str]
"""line of the program, what was found there"""

UNROLL_LIMIT = 1024
NUMBERS_LIMIT = 256
"""numbers written out in a body; the most found in a sample of the recipes is 58"""

_UNROLL = re.compile(r"#\s*pragma\s+unroll(?:\s+(\w+)|\s*\(\s*(\w+)\s*\))?\s*(?://.*)?", re.ASCII)
_INTEGER = re.compile(r"(?:0[xX][0-9a-fA-F]+|[0-9]+)(?:[uU]?[lL]{0,2}|[lL]{1,2}[uU])", re.ASCII)
_FLOATING = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?", re.ASCII)
_FUNCTION_WORDS = ("__device__", "__forceinline__", "__noinline__", "inline", "constexpr", "const")
_NOT_BEFORE_PARENTHESES = KEYWORDS - CONTROL - {"else", "do", "case"}
_READ_ONLY = ("read_only", "__ldg")


@dataclass(frozen=True)
class Subject:
    """A program under the screen."""

    program: Program
    outline: Outline
    arrays: frozenset[str]
    """the arrays of A in the layout's contract, 'vals' among them"""


def preprocessor(subject: Subject) -> Iterator[Complaint]:
    for token in subject.outline.tokens:
        if token.kind != "directive":
            continue
        match = _UNROLL.fullmatch(token.text.rstrip())
        if not match:
            yield token.line, f"the preprocessor line '{token.text.strip()}'"
            continue
        count = match[1] or match[2] or "1"
        if count.isdigit() and int(count) > UNROLL_LIMIT:
            yield token.line, f"unrolling {count} times; the limit is {UNROLL_LIMIT}"


def literals(subject: Subject) -> Iterator[Complaint]:
    for i, token in enumerate(subject.outline.tokens):
        linkage = token.text == '"C"' and subject.outline.text(i - 1) == "extern"
        if token.kind in ("string", "char") and not linkage:
            yield token.line, f"the literal {token.text}"
        if token.kind == "number" and not (_INTEGER.fullmatch(token.text) or _FLOATING.fullmatch(token.text)):
            yield token.line, f"the number '{token.text}'"


def forbidden_words(subject: Subject) -> Iterator[Complaint]:
    for i, token in enumerate(subject.outline.tokens):
        in_template = token.text == "class" and subject.outline.text(i - 1) in ("<", ",")
        if token.kind == "name" and token.text in FORBIDDEN and not in_template:
            yield token.line, f"'{token.text}' is refused: {FORBIDDEN[token.text]}"


def extern(subject: Subject) -> Iterator[Complaint]:
    text = subject.outline.text
    for i, token in enumerate(subject.outline.tokens):
        if token.text != "extern":
            continue
        kernel = [text(i + 1), text(i + 2), text(i + 3)] == ['"C"', "__global__", "void"]
        array = [text(i + 4), text(i + 5), text(i + 6)] == ["[", "]", ";"]
        shared = text(i + 1) == "__shared__" and text(i + 2) in TYPES and array
        if not kernel and not shared:
            yield token.line, f"'extern {text(i + 1)} {text(i + 2)}'"


def launch(subject: Subject) -> Iterator[Complaint]:
    for token in subject.outline.tokens:
        if token.text == "<<<":
            yield token.line, "'<<<' in the body"


def scope(subject: Subject) -> Iterator[Complaint]:
    text = subject.outline.text
    for i, token in enumerate(subject.outline.tokens):
        if token.text == "::":
            yield token.line, "'::'"
        if token.text == "[":
            before = subject.outline.tokens[i - 1] if i else token
            indexes = before.text in ("]", ")") or (before.kind == "name" and before.text not in KEYWORDS | TYPES)
            if not indexes:
                yield token.line, f"'{text(i - 1)} [' begins a lambda, an attribute or a binding"


def globals_(subject: Subject) -> Iterator[Complaint]:
    functions = {function.item: function for function in subject.outline.functions}
    for item in subject.outline.items:
        function = functions.get(item)
        if not (_is_function(subject.outline, function) if function else _is_constant(subject.outline, item)):
            shown = " ".join(subject.outline.text(i) for i in range(item.first, min(item.first + 6, item.last + 1)))
            yield subject.outline.tokens[item.first].line, f"'{shown} …' at the outermost level"


def _is_function(outline: Outline, function: Function) -> bool:
    """extern "C" __global__ …, or [template <…>] __device__ … type name(…) {…}."""
    at = function.item.first
    if function.kernel:
        return outline.text(at) == "extern"
    if outline.text(at) == "template":
        at = close_angle(outline.tokens, at + 1) + 1
    words = [outline.text(i) for i in range(at, function.name_at)]
    leading = [word for word in words if word in _FUNCTION_WORDS]
    rest = [word for word in words if word not in _FUNCTION_WORDS]
    known = TYPES | outline.type_names | SCALAR_WORDS
    typed = bool(rest) and rest[0] in known
    return "__device__" in leading and typed and outline.text(function.open_body - 1) == ")"


def _is_constant(outline: Outline, item: Item) -> bool:
    """[__device__] constexpr type NAME = …; or extern __shared__ type NAME[];"""
    words = [outline.text(i) for i in range(item.first, item.last + 1)]
    if words[:2] == ["extern", "__shared__"]:
        return True
    head = words[: words.index("=")] if "=" in words else []
    return bool(head) and "constexpr" in head[:2] and "__shared__" not in head and words[-1] == ";"


def shared_in_template(subject: Subject) -> Iterator[Complaint]:
    text = subject.outline.text
    for function in subject.outline.functions:
        if text(function.item.first) == "template":
            for i in range(function.open_body, function.close_body):
                if text(i) == "__shared__":
                    yield subject.outline.tokens[i].line, f"'__shared__' in the template '{function.name}'"


def declarations(subject: Subject) -> Iterator[Complaint]:
    outline = subject.outline
    defined = {function.name_at for function in outline.functions}
    index = {id(token): i for i, token in enumerate(outline.tokens)}
    for token in outline.declared:
        if token.text in RESERVED or token.text in FORBIDDEN or token.text.startswith(("_", "sim_")):
            yield token.line, f"'{token.text}' is declared anew"
        if outline.text(index[id(token)] + 1) == "(" and index[id(token)] not in defined:
            yield token.line, f"'{token.text}(…)' is declared without a body (a variable is set with '=')"
    for name in sorted(outline.type_names):
        # A type may be "called" (T(0)), anywhere in the text: no function of the compiler's begins with a capital.
        if not name[0].isupper():
            yield 1, f"the template type '{name}' doesn't begin with a capital letter"
    names = [function.name for function in outline.functions if not function.kernel]
    for function in outline.functions:
        if function.name in RESERVED or function.name.startswith(("_", "sim_")):
            yield outline.tokens[function.name_at].line, f"the function '{function.name}' is defined anew"
        if names.count(function.name) > 1:
            yield outline.tokens[function.name_at].line, f"the function '{function.name}' is defined more than once"


def names(subject: Subject) -> Iterator[Complaint]:
    outline = subject.outline
    own = {token.text for token in outline.declared} | {function.name for function in outline.functions}
    known = own | (RESERVED - PREAMBLE_INTERNALS) | outline.type_names | BUILTINS | set(subject.program.bake)
    for i, token in enumerate(outline.tokens):
        if token.kind != "name":
            continue
        if outline.text(i - 1) in (".", "->"):
            if token.text not in MEMBERS:
                yield token.line, f"the member '{token.text}'; members are {', '.join(sorted(MEMBERS))}"
        elif token.text not in known:
            yield token.line, f"the name '{token.text}' is neither known nor declared in the program"


def calls(subject: Subject) -> Iterator[Complaint]:
    outline = subject.outline
    functions = {function.name: function for function in outline.functions}
    for i, token in enumerate(outline.tokens):
        following = outline.text(i + 1)
        if outline.text(i - 1) in (".", "->"):
            if following == "(":
                yield token.line, f"the member call '{token.text}(…)'"
        elif token.text in functions:
            function = functions[token.text]
            if i == function.name_at:
                continue
            if function.kernel or i <= function.close_body:
                yield token.line, f"'{token.text}' is a kernel, or used inside or above its own definition"
            elif following not in ("(", "<"):
                yield token.line, f"the function '{token.text}' is used without being called"
        elif token.text in CALLABLE and following not in ("(", "<"):
            yield token.line, f"the function '{token.text}' is used without being called"
        elif token.text == "(" and i > 0:
            yield from _call(subject, i)


def _call(subject: Subject, opened: int) -> Iterator[Complaint]:
    """The token before a '(' says what is called, if anything."""
    outline = subject.outline
    before = outline.tokens[opened - 1]
    own = {function.name for function in outline.functions}
    if before.kind == "name":
        if before.text not in KEYWORDS | TYPES | CALLABLE | outline.type_names | own:
            yield before.line, f"the call of '{before.text}'"
        elif before.text in _NOT_BEFORE_PARENTHESES and not _is_if(outline, opened - 1):
            yield before.line, f"'{before.text}(…)'"
    elif before.text == "]" or (before.text == ")" and not _may_precede_parentheses(outline, opened - 1)):
        yield before.line, "a call of something that is not a name"


def _may_precede_parentheses(outline: Outline, close: int) -> bool:
    """(type)(…) is a cast, if (…) (…) a statement."""
    depth = 0
    opened = close
    while opened >= 0:
        depth += (outline.text(opened) == ")") - (outline.text(opened) == "(")
        if depth == 0:
            break
        opened -= 1
    inside = [outline.text(i) for i in range(opened + 1, close)]
    is_type = bool(inside) and all(word in TYPES | outline.type_names | {"const"} for word in inside)
    return is_type or outline.text(opened - 1) in ("for", "while", "switch") or _is_if(outline, opened - 1)


def _is_if(outline: Outline, at: int) -> bool:
    return outline.text(at) == "if" or [outline.text(at - 1), outline.text(at)] == ["if", "constexpr"]


def casts(subject: Subject) -> Iterator[Complaint]:
    outline = subject.outline
    types = TYPES | outline.type_names
    for i, token in enumerate(outline.tokens):
        if token.text in ("static_cast", "reinterpret_cast"):
            end = close_angle(outline.tokens, i + 1)
            inside = [outline.text(k) for k in range(i + 2, end)]
            if token.text == "static_cast" and ("*" in inside or "&" in inside):
                yield token.line, f"'static_cast<{' '.join(inside)}>'; use reinterpret_cast for pointers"
            words = [word for word in inside if word not in ("const", "volatile")]
            to_numbers = words[-1:] == ["*"] and words.count("*") == 1 and words[0] in types - {"void", "auto"}
            if token.text == "reinterpret_cast" and not to_numbers:
                yield token.line, f"'reinterpret_cast<{' '.join(inside)}>'"
        if token.text == "(" and outline.text(i + 1) in types | {"const", "volatile"}:
            inside = [outline.text(k) for k in range(i + 1, closing(outline.tokens, i))]
            only_type = all(word in types | {"const", "volatile", "*", "&", "__restrict__"} for word in inside)
            if only_type and ("*" in inside or "&" in inside):
                yield token.line, f"the cast '({' '.join(inside)})'; use reinterpret_cast for pointers"


def addresses(subject: Subject) -> Iterator[Complaint]:
    yield from pointer_addresses(subject.outline)
    yield from pointer_arrays(subject.outline)


def tables(subject: Subject) -> Iterator[Complaint]:
    numbers = [token for token in subject.outline.tokens if token.kind == "number"]
    if len(numbers) > NUMBERS_LIMIT:
        yield numbers[NUMBERS_LIMIT].line, f"the body has {len(numbers)} numbers; the limit is {NUMBERS_LIMIT}"


def plain_char(subject: Subject) -> Iterator[Complaint]:
    for i, token in enumerate(subject.outline.tokens):
        if token.text == "long" and "double" in _type_words(subject.outline, i):
            yield token.line, "'long double'"
        if token.text == "char" and subject.outline.text(i - 1) not in ("signed", "unsigned"):
            yield token.line, "'char' without 'signed' or 'unsigned'"


def _type_words(outline: Outline, at: int) -> set[str]:
    """The words of the type that the scalar word at `at` is a part of, in whatever order they stand."""
    words = SCALAR_WORDS | {"const", "volatile", "constexpr"}
    first = last = at
    while outline.text(first - 1) in words:
        first -= 1
    while outline.text(last + 1) in words:
        last += 1
    return {outline.text(i) for i in range(first, last + 1)}


def pdl_wait(subject: Subject) -> Iterator[Complaint]:
    waiting = {line.kernel for line in subject.program.launches if line.pdl}
    workspaces = {workspace.name for workspace in subject.program.workspaces}
    for function in subject.outline.functions:
        if function.kernel and function.name in waiting:
            line = subject.outline.tokens[function.name_at].line
            if _wait_at(subject.outline, function) is None:
                yield line, f"the kernel '{function.name}' is launched with pdl but never calls pdl_wait()"
            guarded = (_parameter_names(subject.outline, function) & {"x", "y", "b", "c"}) | workspaces
            yield from _early_touches(subject, function, frozenset(guarded), 0)


def _wait_at(outline: Outline, function: Function) -> int | None:
    inside = range(function.open_body, function.close_body)
    return next((i for i in inside if [outline.text(i), outline.text(i + 1)] == ["pdl_wait", "("]), None)


def _parameter_names(outline: Outline, function: Function) -> set[str]:
    return {outline.text(last) for _, last in arguments(outline.tokens, function.open_params)}


def _early_touches(subject: Subject, function: Function, guarded: frozenset[str], depth: int) -> Iterator[Complaint]:
    """Uses of guarded pointers above the wait. Handing one to a function of the program is no use if that one waits."""
    outline = subject.outline
    end = _wait_at(outline, function) or function.close_body
    for i in range(function.open_body, end):
        token = outline.tokens[i]
        if token.kind != "name" or token.text not in guarded or outline.text(i - 1) in (".", "->"):
            continue
        callee, place = _handed_to(outline, i)
        if callee is None or depth > 4:
            yield token.line, f"'{token.text}' is used in '{function.name}' before pdl_wait()"
            continue
        params = arguments(outline.tokens, callee.open_params)
        if place < len(params):
            name = outline.text(params[place][1])
            yield from _early_touches(subject, callee, frozenset({name}), depth + 1)


def _handed_to(outline: Outline, at: int) -> tuple[Function | None, int]:
    """The program's own function that the token at `at` is a whole argument of, and which argument."""
    if outline.text(at - 1) not in ("(", ",") or outline.text(at + 1) not in (",", ")"):
        return None, 0
    depth, opened = 0, at
    while opened >= 0 and depth <= 0:
        depth += (outline.text(opened) == "(") - (outline.text(opened) == ")")
        if depth <= 0:
            opened -= 1
    name_at = opened - 1
    if outline.text(name_at) == ">":
        while name_at >= 0 and outline.text(name_at) != "<":
            name_at -= 1
        name_at -= 1
    callee = outline.function(outline.text(name_at))
    places = arguments(outline.tokens, opened)
    place = next((k for k, (first, last) in enumerate(places) if first == last == at), -1)
    return (callee, place) if callee is not None and place >= 0 else (None, 0)


def pdl_read_only(subject: Subject) -> Iterator[Complaint]:
    if not any(line.pdl for line in subject.program.launches):
        return
    outline = subject.outline
    kernels = [function for function in outline.functions if function.kernel]
    heads = {i for kernel in kernels for i in range(kernel.open_params, kernel.close_params)}
    vectors = {"x", "y", "b", "c"} & {name for kernel in kernels for name in _parameter_names(outline, kernel)}
    for i, token in enumerate(outline.tokens):
        if token.text == "__restrict__" and i not in heads and outline.text(i + 1) not in subject.arrays:
            yield token.line, f"'__restrict__ {outline.text(i + 1)}'"
        if token.text not in _READ_ONLY:
            continue
        opened = i + 1 if outline.text(i + 1) == "(" else close_angle(outline.tokens, i + 1) + 1
        if outline.text(opened) != "(":
            continue
        inside = {outline.text(k) for k in range(opened, closing(outline.tokens, opened))}
        if inside & vectors or not inside & subject.arrays:
            yield token.line, f"'{token.text}' of something that is not an array of A by name"
