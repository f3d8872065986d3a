"""Sums in another order: several accumulators, pairwise trees, walks from the end or by a count.

The order is fixed, so a program stays deterministic; no compensation, so what changes is the length of the chain of
dependent additions and the rounding.
"""

from __future__ import annotations

import random
import re

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Loop, Node, Pragma, Simple, counting, every, guard, names
from sparserl.train.mutations.walk import Walk, body_with, counted, walks


def accumulators(draft: Draft, rng: random.Random) -> bool:
    """Two or four accumulators take turns; they are added up in a fixed order behind the walk."""
    found = [(walk, dims) for walk in walks(draft) if (dims := _shape(walk)) is not None]
    if not found:
        return False
    walk, dims = rng.choice(found)
    total, count = walk.accumulators[0], rng.choice((2, 2, 4)) if not dims else 2
    others = [draft.fresh(walk.part, name) for name in ("odd", "third", "fourth")[: count - 1]]
    shape = "".join(f"[{d}]" for d in dims)
    head: list[Node] = [Simple(f"acc_t {name}{shape} = " + ("{}" if dims else "0")) for name in others]
    turn: list[Node] = list(walk.loop.body)
    local = draft.fresh(walk.part, "also", "further")
    for number, name in enumerate(others, 1):
        place = f"{walk.var} + {walk.step_times(number)}"
        inside = body_with(walk.loop.body, {walk.var: local, total: name})
        turn.append(
            guard(f"{place} < {walk.bound}", [Simple(f"const int {local} = {place}"), *inside])
        )
    at, pragmas = walk.take()
    loop = Loop(walk.loop.test, turn, walk.loop.init, f"{walk.var} += {walk.step_times(count)}")
    pragmas = [] if rng.random() < 0.5 else pragmas
    walk.container[at:at] = [*head, *pragmas, loop, *_merged(draft, walk.part, total, others, dims)]
    return True


def _shape(walk: Walk) -> tuple[str, ...] | None:
    """The dimensions of a walk's one accumulator, where it is declared in the same function as acc_t."""
    if len(walk.accumulators) != 1 or walk.stores or walk.skips:
        return None
    name = walk.accumulators[0]
    found = []
    for _, _, node in every(walk.part.body):
        if isinstance(node, Simple) and (m := re.fullmatch(rf"acc_t {name}((?:\[\w+\])*) = (?:0|{{}})", node.text)):
            found.append(tuple(re.findall(r"\[(\w+)\]", m[1])))
    return found[0] if found and all(shape == found[0] for shape in found) else None


def _merged(draft: Draft, part: Part, total: str, others: list[str], dims: tuple[str, ...]) -> list[Node]:
    if not dims:
        if len(others) == 3:
            return [Simple(f"{total} = ({total} + {others[0]}) + ({others[1]} + {others[2]})")]
        return [Simple(f"{total} += {others[0]}")]
    variables = [draft.fresh(part, name) for name in ("t", "i", "u")[: len(dims)]]
    index = "".join(f"[{v}]" for v in variables)
    nodes: list[Node] = [Simple(f"{total}{index} += {others[0]}{index}")]
    for variable, dim in reversed(list(zip(variables, dims, strict=True))):
        nodes = counting(variable, dim, nodes)
    return nodes


def backwards(draft: Draft, rng: random.Random) -> bool:
    """A walk from its end, or by a count of turns known beforehand."""
    found = walks(draft)
    if not found:
        return False
    walk = rng.choice(found)
    step = walk.step
    first = walk.start
    at, pragmas = walk.take()
    head: list[Node] = []
    if not first.isidentifier():
        first = draft.fresh(walk.part, "first", "begin_at")
        head.append(Simple(f"const int {first} = {walk.start}"))
    turn = draft.fresh(walk.part, "turn", "left")
    length = f"{walk.bound} - {first}"
    turns = length if step == "1" else f"div_up({length}, {step})"
    place = f"{first} + {turn}" if step == "1" else f"{first} + {turn} * {step}"
    body: list[Node] = [Simple(f"const int {walk.var} = {place}"), *walk.loop.body]
    if rng.random() < 0.6:
        loop = Loop(f"{turn} >= 0", body, f"int {turn} = {turns} - 1", f"--{turn}")
    else:
        count = draft.fresh(walk.part, "turns", "turn_count")
        head.append(Simple(f"const int {count} = {turns}"))
        loop = Loop(f"{turn} < {count}", body, f"int {turn} = 0", f"++{turn}")
    walk.container[at:at] = [*head, *pragmas, loop]
    return True


def pairwise(draft: Draft, rng: random.Random) -> bool:
    """A loop of fixed length keeps its products and adds them up as a tree."""
    found = []
    for part, container, at, node in draft.places():
        head = counted(node)
        if head is None or not isinstance(node, Loop) or head[1] in ("1", "0"):
            continue
        total = _lone_sum(node)
        if total is not None and _is_scalar(part, total):
            found.append((part, container, at, node, head, total))
    if not found:
        return False
    part, container, at, node, (var, count), total = rng.choice(found)
    products = draft.fresh(part, "p", "product", "products")
    for _, _, inside in every(node.body):
        if isinstance(inside, Simple):
            if inside.text.startswith(f"{total} += "):
                inside.text = f"{products}[{var}] = " + inside.text.removeprefix(f"{total} += ")
            elif inside.text == "break":
                inside.text = "continue"  # the products behind stay zero
    node.body.insert(0, Simple(f"{products}[{var}] = 0"))
    node.braced = True
    gap, place = draft.fresh(part, "gap", "distance"), draft.fresh(part, "i", "place")
    pair = Simple(f"{products}[{place}] += {products}[{place} + {gap}]")
    tree: list[Node] = [
        Pragma("#pragma unroll"),
        Loop(
            f"{gap} < {count}",
            [
                Pragma("#pragma unroll"),
                Loop(f"{place} + {gap} < {count}", [pair], f"int {place} = 0", f"{place} += 2 * {gap}", False),
            ],
            f"int {gap} = 1",
            f"{gap} *= 2",
            False,
        ),
        Simple(f"{total} += {products}[0]"),
    ]
    container[at + 1 : at + 1] = tree
    first = at - 1 if at and isinstance(container[at - 1], Pragma) else at
    container.insert(first, Simple(f"acc_t {products}[{count}]"))
    return True


def _lone_sum(loop: Loop) -> str | None:
    """The accumulator of a loop whose only effect is one `total += …`."""
    totals = []
    for _, _, node in every(loop.body):
        if isinstance(node, Loop):
            return None
        if not isinstance(node, Simple) or node.text in ("break", "continue"):
            continue
        if match := re.match(r"(\w+) \+= ", node.text):
            totals.append(match[1])
        elif not re.match(r"const \w+ \w+ = ", node.text) or re.search(r"sync|atomic", node.text):
            return None
    return totals[0] if len(totals) == 1 and totals[0] not in names(loop.test) else None


def _is_scalar(part: Part, name: str) -> bool:
    return any(
        isinstance(node, Simple) and re.match(rf"acc_t {name} = ", node.text) for _, _, node in every(part.body)
    )
