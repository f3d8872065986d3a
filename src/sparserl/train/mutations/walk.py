"""Finds the loops that walk over the entries of a row, and the loads of A in them.

A walk is `for (int j = START; j < BOUND; j += STEP)` whose turns don't depend on each other but for sums: its body
only declares locals, adds to accumulators and, where `stores` is set, writes to elements of shared memory named by
j. No barrier, shuffle or atomic; no break out of it.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Branch, Loop, Node, Pragma, Simple, every, names, rewrite, texts

PURE_CALLS = frozenset(
    (
        "to_acc", "to_value", "is_padding", "stream", "stream_load", "load", "read_only", "fresh", "min", "max",
        "div_up", "index_t", "value_t", "acc_t", "int", "gather", "fma",
    )
)  # fmt: skip
_CALL = re.compile(r"(?<![.\w])([A-Za-z_]\w*)\s*(?:<[\w\s,]+>)?\s*\(")
_DECLARATION = re.compile(
    r"(?:const )?(?:int|acc_t|value_t|index_t|bool|unsigned|int4|int2|long long|pack<\w+, \w+>)(?: |\* )(\w+)"
)
_SUM = re.compile(r"(\w+)((?:\[[^\]]*\])*) \+= (.+)")
_STORE = re.compile(r"(\w+)\[(.+?)\] = (.+)")
_SIMPLE_BOUND = re.compile(r"\w+(?:\.\w+)?")
_COUNT = re.compile(r"\w+(?: / \w+)?")


@dataclass
class Walk:
    """A walk and where it stands."""

    part: Part
    container: list[Node]
    at: int
    loop: Loop
    var: str
    start: str
    bound: str
    step: str
    accumulators: tuple[str, ...]
    stores: bool
    """it writes to shared memory at places of its own"""
    skips: bool
    """it has a `continue` of its own"""

    def step_times(self, count: int) -> str:
        """count * step, folded where both are numbers."""
        return str(int(self.step) * count) if self.step.isdigit() else f"{count} * {self.step}"

    def take(self) -> tuple[int, list[Pragma]]:
        """Remove the loop and the pragmas in front of it; the place where something else may stand, and the pragmas."""
        first = self.at
        while first > 0 and isinstance(self.container[first - 1], Pragma):
            first -= 1
        pragmas = [node for node in self.container[first : self.at] if isinstance(node, Pragma)]
        del self.container[first : self.at + 1]
        return first, pragmas


@dataclass(frozen=True)
class Load:
    """A load of an array of A, as it is spelled."""

    text: str
    array: str
    index: str
    ctype: str
    """what it gives: value_t, index_t, int, pack<value_t, 4> …"""


def walks(draft: Draft) -> list[Walk]:
    """The walks of all functions that load something of A."""
    found = []
    for part, container, at, node in draft.places():
        walk = _walk(part, container, at, node)
        if walk is not None and loads(draft, walk.loop.body, walk.var):
            found.append(walk)
    return found


def counted(node: Node) -> tuple[str, str] | None:
    """(variable, count) of `for (int k = 0; k < COUNT; ++k)` with a count that is a number or baked."""
    if not isinstance(node, Loop) or node.init is None:
        return None
    init = re.fullmatch(r"int (\w+) = 0", node.init)
    if init is None or node.update not in (f"++{init[1]}", f"{init[1]}++"):
        return None
    test = re.fullmatch(rf"{init[1]} < ({_COUNT.pattern})", node.test)
    if test is None or not (test[1].isdigit() or (names(test[1]) and all(n.isupper() for n in names(test[1])))):
        return None
    return init[1], test[1]


def _walk(part: Part, container: list[Node], at: int, node: Node) -> Walk | None:
    if not isinstance(node, Loop) or node.init is None or node.update is None:
        return None
    init = re.fullmatch(r"int (\w+) = (.+)", node.init)
    if init is None or _has_comma(init[2]):
        return None
    var = init[1]
    test = re.fullmatch(rf"{var} < ({_SIMPLE_BOUND.pattern})", node.test)
    update = re.fullmatch(rf"(?:\+\+{var}|{var}\+\+|{var} \+= (\w+))", node.update)
    if test is None or update is None or test[1].isdigit():
        return None
    body = _Body(var)
    if not body.read(node.body, own=True) or not (body.sums or body.stores):
        return None
    outside = names(init[2]) | names(test[1])
    if outside & (body.sums | body.locals) or update[1] in body.sums | body.locals:
        return None
    return Walk(
        part, container, at, node, var, init[2], test[1], update[1] or "1",
        tuple(sorted(body.sums)), bool(body.stores), body.skips,
    )  # fmt: skip


class _Body:
    """What the body of a loop does; `read` is False where it does more than a walk may."""

    def __init__(self, var: str) -> None:
        self.var = var
        self.sums: set[str] = set()
        self.stores: set[str] = set()
        self.locals: set[str] = set()
        self.skips = False

    def read(self, nodes: list[Node], own: bool) -> bool:
        return all(self.statement(node, own) for node in nodes)

    def statement(self, node: Node, own: bool) -> bool:
        if isinstance(node, Pragma):
            return True
        if isinstance(node, Branch):
            return self.pure(node.test) and self.read(node.then, own) and self.read(node.orelse or [], own)
        if isinstance(node, Loop):
            head = counted(node)
            if head is None:
                return False
            self.locals.add(head[0])
            return self.read(node.body, own=False)
        if not isinstance(node, Simple):
            return False
        return self.simple(node.text, own)

    def simple(self, text: str, own: bool) -> bool:
        if text == "continue":
            self.skips = self.skips or own
            return True
        if text == "break":
            return not own
        if not self.pure(text):
            return False
        declared = _DECLARATION.match(text)
        if declared:
            self.locals.add(declared[1])
            return "=" in text and not _has_comma(text[declared.end() :])
        total, stored = _SUM.fullmatch(text), _STORE.fullmatch(text)
        if total and total[1] not in names(total[3]) | names(total[2]):
            self.sums.add(total[1])
            return True
        if stored and self.var in names(stored[2]) and stored[1] not in names(stored[3]):
            self.stores.add(stored[1])
            return True
        return False

    def pure(self, text: str) -> bool:
        changes = rf"(?<![.\w]){self.var} (?:[-+*/]?=(?!=))|(?:\+\+|--){self.var}\b|\b{self.var}(?:\+\+|--)"
        assigns = re.search(changes, text)
        return assigns is None and all(name in PURE_CALLS for name in _CALL.findall(text))


def _has_comma(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            return True
    return False


def loads(draft: Draft, body: list[Node], var: str) -> list[Load]:
    """The loads of A in a body whose place follows from `var` and what is known before the loop; each once."""
    arrays = draft.arrays
    local = set()
    for _, _, node in every(body):
        if isinstance(node, Simple) and (declared := _DECLARATION.match(node.text)):
            local.add(declared[1])
        if isinstance(node, Loop) and (head := counted(node)):
            local.add(head[0])
    found: dict[str, Load] = {}
    for text in texts(body):
        for load in spelled_loads(text, arrays):
            if var in names(load.index) and not names(load.index) & local:
                found.setdefault(load.text, load)
    return list(found.values())


def spelled_loads(text: str, arrays: dict[str, str]) -> list[Load]:
    """The loads in one expression: NAME[i], stream(NAME + i), load<K>(NAME + i) and their kin."""
    found = []
    for match in re.finditer(r"(?<![.\w])([A-Za-z_]\w*)", text):
        name = match[1]
        if name not in arrays:
            continue
        before = re.search(r"(stream|read_only|fresh|load|stream_load)(?:<(\d+)>)?\($", text[: match.start()])
        if text[match.end() : match.end() + 1] == "[":
            end = matching(text, match.end())
            found.append(Load(text[match.start() : end + 1], name, text[match.end() + 1 : end], arrays[name]))
        elif before and text[match.end() : match.end() + 3] == " + ":
            end = matching(text, match.start() - 1)
            width = before[2]
            kind = f"pack<{arrays[name]}, {width}>" if width else arrays[name]
            found.append(Load(text[before.start() : end + 1], name, text[match.end() + 3 : end], kind))
    return found


def matching(text: str, opened: int) -> int:
    """The place of the bracket that closes the one at `opened`."""
    depth = 0
    for at in range(opened, len(text)):
        depth += (text[at] in "([") - (text[at] in ")]")
        if depth == 0:
            return at
    return len(text)


def body_with(body: list[Node], new: dict[str, str]) -> list[Node]:
    """A copy of the body with pieces of text replaced, longest first."""
    copied = copy.deepcopy(body)
    pieces = sorted(new, key=len, reverse=True)

    def change(text: str) -> str:
        for piece in pieces:
            pattern = rf"(?<![.\w]){re.escape(piece)}" + (r"(?!\w)" if piece[-1].isalnum() else "")
            text = re.sub(pattern, lambda _, piece=piece: new[piece], text)  # type: ignore[misc]
        return text

    rewrite(copied, change)
    return copied


def hold(draft: Draft, walk: Walk) -> list[tuple[Load, str]]:
    """A name to hold each load of a walk in: columns, values, the rest."""
    wishes = {"index_t": ("c", "column", "held_column"), "value_t": ("v", "value", "held_value")}
    taken: set[str] = set()
    result = []
    for load in loads(draft, walk.loop.body, walk.var):
        base = "index_t" if "index_t" in load.ctype else "value_t" if "value_t" in load.ctype else ""
        options = [w for w in wishes.get(base, (f"held_{load.array}",)) if w not in taken]
        name = draft.fresh(walk.part, *(options or ["held"]))
        while name in taken:
            name += "_also"
        taken.add(name)
        result.append((load, name))
    return result
