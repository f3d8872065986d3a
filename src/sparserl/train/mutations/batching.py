"""Walks in batches: predicated batches, entries loaded early, loads one turn ahead.

An unrolled loop still walks its last entries one by one, each with the whole latency; a predicated batch has all its
loads in flight, the last ones too. Loads of A before pdl_wait() overlap the end of the kernel before.
"""

from __future__ import annotations

import random

from sparserl.train.mutations.draft import Draft
from sparserl.train.mutations.tree import Loop, Node, Pragma, Simple, counting, guard, names, substitute
from sparserl.train.mutations.walk import Load, Walk, body_with, hold, walks

BATCHES = (2, 3, 4, 5, 6, 8, 12)


def batch(draft: Draft, rng: random.Random) -> bool:
    """A rolled walk becomes predicated batches: all loads of A of a batch first, then what they are for."""
    walk = _choose(draft, rng)
    if walk is None:
        return False
    size = rng.choice(BATCHES)
    start = draft.fresh(walk.part, "start", "batch_start")
    loading, using = _phases(draft, walk, str(size), start, rng)
    at, _ = walk.take()
    walk.container[at:at] = [
        Loop(
            f"{start} < {walk.bound}",
            [*loading, *using],
            f"int {start} = {walk.start}",
            f"{start} += {walk.step_times(size)}",
        )
    ]
    return True


def early(draft: Draft, rng: random.Random) -> bool:
    """The first entries of a walk are loaded before it, and before the wait of a pdl program."""
    walk = _choose(draft, rng)
    if walk is None:
        return False
    start = walk.start
    if " ? " in start:  # more than a sum: it gets a name
        start = draft.fresh(walk.part, "first", "begin_at")
        first = walk.at
        while first > 0 and isinstance(walk.container[first - 1], Pragma):
            first -= 1
        walk.container.insert(first, Simple(f"const int {start} = {walk.start}"))
        walk.at += 1
    return _early(draft, walk, start, rng)


def _early(draft: Draft, walk: Walk, start: str, rng: random.Random) -> bool:
    size = rng.choice((1, 2, 3, 4, 6, 8))
    loading, using = _phases(draft, walk, str(size), start, rng)
    at, pragmas = walk.take()
    rest = Loop(
        walk.loop.test, walk.loop.body, f"int {walk.var} = {start} + {walk.step_times(size)}", walk.loop.update,
        walk.loop.braced,
    )  # fmt: skip
    wait = _wait_above(walk, at)
    moved: list[Node] = []
    if wait is not None:
        moved = [walk.container.pop(wait)]
        at -= 1
    walk.container[at:at] = [*loading, *moved, *using, *pragmas, rest]
    return True


def _wait_above(walk: Walk, at: int) -> int | None:
    """The place of a pdl_wait() that only plain declarations separate from the walk."""
    for place in range(at - 1, -1, -1):
        node = walk.container[place]
        if isinstance(node, Simple) and node.text == "pdl_wait()":
            return place
        if not isinstance(node, Simple) or names(node.text) & {"x", "y", "b", "c"} or "(" in node.text:
            return None
    return None


def pipeline(draft: Draft, rng: random.Random) -> bool:
    """The next turn's loads of A are issued before this turn's gather."""
    walk = _choose(draft, rng)
    if walk is None:
        return False
    held = hold(draft, walk)
    first = walk.start
    at, pragmas = walk.take()
    head: list[Node] = []
    if not first.replace("_", "").isalnum():
        first = draft.fresh(walk.part, "first", "begin_at")
        head.append(Simple(f"const int {first} = {walk.start}"))
    ahead = {name: draft.fresh(walk.part, "next_" + name) for _, name in held}
    following = draft.fresh(walk.part, "following", "following_entry")
    head += [Simple(f"{load.ctype} {ahead[name]} = {_nothing(draft, load)}") for load, name in held]
    head.append(guard(f"{first} < {walk.bound}", _fetch(walk, held, ahead, first)))
    body: list[Node] = [Simple(f"const {load.ctype} {name} = {ahead[name]}") for load, name in held]
    body.append(Simple(f"const int {following} = {walk.var} + {walk.step}"))
    body.append(guard(f"{following} < {walk.bound}", _fetch(walk, held, ahead, following)))
    body += body_with(walk.loop.body, {load.text: name for load, name in held})
    if rng.random() < 0.5:
        pragmas = []
    loop = Loop(walk.loop.test, body, f"int {walk.var} = {first}", walk.loop.update)
    walk.container[at:at] = [*head, *pragmas, loop]
    return True


def _fetch(walk: Walk, held: list[tuple[Load, str]], ahead: dict[str, str], place: str) -> list[Node]:
    index = place if place.isidentifier() else f"({place})"
    return [
        Simple(f"{ahead[name]} = " + substitute(load.text, {walk.var: index})) for load, name in held
    ]




def _nothing(draft: Draft, load: Load) -> str:
    """An empty value of a load's type; '{}' where it has no number to be made from."""
    if load.ctype == "value_t" and draft.problem.dtype in ("float16", "bfloat16"):
        return "{}"
    return f"{load.ctype}(0)" if load.ctype in ("index_t", "value_t", "int") else "{}"


def _choose(draft: Draft, rng: random.Random) -> Walk | None:
    found = walks(draft)
    return rng.choice(found) if found else None


def _turn(draft: Draft, walk: Walk) -> str:
    return draft.fresh(walk.part, *(("k", "turn") if walk.var != "k" else ("turn",)))


def _phases(
    draft: Draft, walk: Walk, size: str, start: str, rng: random.Random
) -> tuple[list[Node], list[Node]]:
    """(declarations and loads, uses) of `size` entries from `start`, both predicated by the walk's bound."""
    held = hold(draft, walk)
    turn = _turn(draft, walk)
    place = f"{start} + {turn} * {walk.step}" if walk.step != "1" else f"{start} + {turn}"
    loading: list[Node] = [Simple(f"{load.ctype} {name}[{size}]") for load, name in held]
    inside = f"{walk.var} < {walk.bound}"
    here: Node = Simple(f"const int {walk.var} = {place}")
    sets: list[Node]
    if all(_nothing(draft, load) != "{}" for load, _ in held) and rng.random() < 0.5:
        sets = [Simple(f"{name}[{turn}] = {inside} ? {load.text} : {_nothing(draft, load)}") for load, name in held]
    else:
        sets = [guard(inside, [Simple(f"{name}[{turn}] = {load.text}") for load, name in held])]
    loading += counting(turn, size, [here, *sets])
    body = body_with(walk.loop.body, {load.text: f"{name}[{turn}]" for load, name in held})
    again: Node = Simple(f"const int {walk.var} = {place}")
    if walk.skips or rng.random() < 0.5:
        return loading, counting(turn, size, [again, guard(f"{walk.var} >= {walk.bound}", [Simple("break")]), *body])
    return loading, counting(turn, size, [again, guard(inside, body)])
