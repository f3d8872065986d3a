"""How far loops are unrolled, and how many entries are held at a time."""

from __future__ import annotations

import random
import re

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Loop, Node, Pragma, Simple, texts
from sparserl.train.mutations.walk import counted, walks

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)


def unroll(draft: Draft, rng: random.Random) -> bool:
    """Another count, or none, in front of a loop whose length is not known to the compiler."""
    found = []
    for walk in walks(draft):
        before = walk.container[walk.at - 1] if walk.at else None
        found.append((walk.container, walk.at, before if isinstance(before, Pragma) else None))
    for _, container, at, node in draft.places():
        head = container[at - 1] if at else None
        known = any(container is c and at == a for c, a, _ in found)
        if isinstance(node, Loop) and isinstance(head, Pragma) and head.text.split()[-1].isdigit() and not known:
            found.append((container, at, head))
    if not found:
        return False
    container, at, pragma = rng.choice(found)
    if pragma is None:
        container.insert(at, Pragma(f"#pragma unroll {rng.choice((1, 2, 3, 4, 6, 8))}"))
        return True
    word = pragma.text.split()[-1]
    choices = [n for n in (1, 2, 3, 4, 5, 6, 8, 12, 16) if str(n) != word]
    pragma.text = f"#pragma unroll {rng.choice(choices)}"
    return True


def depth(draft: Draft, rng: random.Random) -> bool:
    """Another number of entries in registers: of those loaded early, or of a batch."""
    found: list[tuple[Part, list[Node], int, Loop, str, str]] = []
    for part, container, at, node in draft.places():
        if isinstance(node, Loop) and node.init is not None and node.update is not None:
            found += _early_tail(part, container, at, node)
            found += _batch(part, container, at, node)
    if not found:
        return False
    part, container, at, loop, old, step = rng.choice(found)
    new = str(rng.choice([d for d in DEPTHS if str(d) != old]))
    region = loop.body if _is_batch(loop) else container
    _resize(region, old, new)
    far = str(int(new) * int(step)) if step.isdigit() else f"{new} * {step}"
    if _is_batch(loop):
        loop.update = f"{(loop.update or '').split(' ')[0]} += {far}"
    else:
        loop.init = re.sub(r" \+ (?:\d+|\d+ \* \w+)$", f" + {far}", loop.init or "")
    return True


def _is_batch(loop: Loop) -> bool:
    return any(counted(node) for node in loop.body)


def _early_tail(
    part: Part, container: list[Node], at: int, node: Loop
) -> list[tuple[Part, list[Node], int, Loop, str, str]]:
    """`for (j = first + D * S; …; j += S)` behind arrays of D entries."""
    step = re.fullmatch(r"\w+ \+= (\w+)", node.update or "")
    far = re.search(r" \+ (?:(\d+)|(\d+) \* (\w+))$", node.init or "")
    if step is None or far is None or _is_batch(node):
        return []
    if far[3]:
        held = far[2] if far[3] == step[1] else ""
    elif step[1].isdigit() and int(far[1]) % int(step[1]) == 0:
        held = str(int(far[1]) // int(step[1]))
    else:
        return []
    return [(part, container, at, node, held, step[1])] if held and _held(container, held) else []


def _batch(
    part: Part, container: list[Node], at: int, node: Loop
) -> list[tuple[Part, list[Node], int, Loop, str, str]]:
    """`for (start = …; start < end; start += D * S)` with arrays of D entries inside."""
    head = re.fullmatch(r"(\w+) \+= (\d+)", node.update or "")
    if head is None or not _is_batch(node):
        return []
    for text in texts(node.body):
        place = re.search(rf"= {head[1]} \+ \w+(?: \* (\d+))?$", text)
        if place:
            step = int(place[1] or 1)
            held = str(int(head[2]) // step)
            if int(held) * step == int(head[2]) and _held(node.body, held):
                return [(part, container, at, node, held, str(step))]
    return []


def _held(nodes: list[Node], size: str) -> bool:
    """Arrays and loops of that length stand directly in the list."""
    array = re.compile(rf"(?:index_t|value_t|pack<.*>) \w+\[{size}\]")
    arrays = any(isinstance(n, Simple) and array.fullmatch(n.text) for n in nodes)
    loops = [n for n in nodes if (head := counted(n)) is not None and head[1] == size]
    return arrays and len(loops) >= 2


def _resize(nodes: list[Node], old: str, new: str) -> None:
    for node in nodes:
        if isinstance(node, Simple):
            node.text = re.sub(rf"^((?:index_t|value_t|acc_t|pack<.*>) \w+)\[{old}\]$", rf"\1[{new}]", node.text)
        elif isinstance(node, Loop) and (head := counted(node)) is not None and head[1] == old:
            node.test = f"{head[0]} < {new}"


