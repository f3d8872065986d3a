"""Dependent launch added to a program, taken out of it, or its trigger and wait moved.

The rules: x and y are not __restrict__, nothing that another kernel writes is touched before pdl_wait(), the arrays of
A may be. The first kernel triggers, every kernel waits.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import takewhile

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Branch, Node, Pragma, Simple, every, inner, names, texts


def _is(node: Node, text: str) -> bool:
    return isinstance(node, Simple) and node.text == text


def _guarded(draft: Draft) -> set[str]:
    return {draft.right, draft.left} | {workspace.name for workspace in draft.program.workspaces}


def switch(draft: Draft, rng: random.Random) -> bool:
    """pdl put in where there was none, taken out where there was."""
    return _remove(draft) if draft.waits else _add(draft)


def _remove(draft: Draft) -> bool:
    for part in draft.parts:
        for container, _, node in list(every(part.body)):
            if _is(node, "pdl_wait()") or _is(node, "pdl_trigger()"):
                container[:] = [other for other in container if other is not node]
        for name in (draft.right, draft.left):
            part.head = re.sub(rf"(value_t\*) ({name}\b)", r"\1 __restrict__ \2", part.head)
    launches = tuple(replace(launch, pdl=False) for launch in draft.program.launches)
    draft.program = replace(draft.program, launches=launches)
    return True


def _add(draft: Draft) -> bool:
    guarded = _guarded(draft)
    for part in draft.parts:
        head = part.head
        for name in guarded:
            head = re.sub(rf"\* __restrict__ {name}\b", f"* {name}", head)
        part.head = head
        if any("read_only" in text or "__ldg" in text for text in texts(part.body)):
            return False
    first = draft.program.launches[0].kernel
    for kernel in draft.kernels:
        at = _first_touch(kernel, guarded)
        if at is None:
            return False
        kernel.body.insert(at, Simple("pdl_wait()"))
        if kernel.name == first:
            kernel.body.insert(0, Simple("pdl_trigger()"))
    launches = tuple(replace(launch, pdl=True) for launch in draft.program.launches)
    draft.program = replace(draft.program, launches=launches)
    return True


def _first_touch(kernel: Part, guarded: set[str]) -> int | None:
    """The first statement at the top that names what must wait; a pragma before it belongs to it."""
    for at, node in enumerate(kernel.body):
        if any(names(text) & guarded for text in texts([node])):
            return at - sum(1 for _ in takewhile(lambda n: isinstance(n, Pragma), reversed(kernel.body[:at])))
    return None


def trigger(draft: Draft, rng: random.Random) -> bool:
    """The next kernel is let in later: behind the loads, or before the stores; or the wait comes first."""
    if not draft.waits:
        return False
    moved = [_trigger_later, _wait_first]
    rng.shuffle(moved)
    return any(move(draft, rng) for move in moved)


def _trigger_later(draft: Draft, rng: random.Random) -> bool:
    for kernel in draft.kernels:
        body = kernel.body
        at = next((i for i, node in enumerate(body) if _is(node, "pdl_trigger()")), None)
        if at is None:
            continue
        node = body.pop(at)
        last = next((i for i, other in enumerate(body) if _may_return(other)), len(body))
        places = [i for i in range(at + 1, last + 1) if i == 0 or not isinstance(body[i - 1], Pragma)]
        if not places:
            body.insert(at, node)
            continue
        body.insert(rng.choice(places), node)
        return True
    return False


def _may_return(node: Node) -> bool:
    """A return hides inside: behind it only some threads would trigger, which is legal, but later than meant."""
    if isinstance(node, Simple):
        return node.text.startswith("return")
    if isinstance(node, Branch) or inner(node):
        return any(_may_return(other) for body in inner(node) for other in body)
    return False


def _wait_first(draft: Draft, rng: random.Random) -> bool:
    """pdl_wait() at the top of the kernel: what was loaded early is now loaded behind it."""
    for kernel in draft.kernels:
        body = kernel.body
        at = next((i for i, node in enumerate(body) if _is(node, "pdl_wait()")), None)
        first = next((i for i, node in enumerate(body) if not _is(node, "pdl_trigger()")), 0)
        if at is not None and at > first:
            body.insert(first, body.pop(at))
            return True
    return False
