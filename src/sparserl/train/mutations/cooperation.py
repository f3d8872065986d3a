"""Reading A together or in larger pieces: entries broadcast among lanes, vector loads of a row's own entries."""

from __future__ import annotations

import random
import re

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Branch, Loop, Node, Simple, counting, every, guard, names, texts
from sparserl.train.mutations.walk import Walk, body_with, hold, loads, walks


def broadcast(draft: Draft, rng: random.Random) -> bool:
    """SpMM: the lanes that share a row load its entries side by side and hand them round by shuffles.

    For a group of lanes that walks a row in step: nothing but the row's number decides who takes part.
    """
    if draft.problem.op != "spmm" or draft.problem.dtype not in ("float32", "float64"):
        return False
    found = [(walk, width) for walk in walks(draft) if (width := _group(draft, walk))]
    if not found:
        return False
    walk, width = rng.choice(found)
    lane, group = draft.fresh(walk.part, "lane", "lane_of_group"), draft.fresh(walk.part, "group", "lanes_of_group")
    start, turn = draft.fresh(walk.part, "j0", "batch_start"), draft.fresh(walk.part, "k", "turn")
    kinds = {"index_t": "int", "value_t": "value_t", "int": "int"}
    held = hold(draft, walk)
    own = {name: draft.fresh(walk.part, f"own_{name}") for _, name in held}
    place = f"{start} + {lane}"
    inside: list[Node] = [Simple(f"{kinds[load.ctype]} {own[name]} = 0") for load, name in held]
    fetched: list[Node] = [
        Simple(f"{own[name]} = " + load.text.replace(load.index, place)) for load, name in held
    ]
    inside.append(guard(f"{place} < {walk.bound}", fetched))
    shuffled: list[Node] = [
        Simple(f"const {kinds[load.ctype]} {name} = __shfl_sync({group}, {own[name]}, {turn}, {width})")
        for load, name in held
    ]
    body = body_with(walk.loop.body, {load.text: name for load, name in held})
    at, pragmas = walk.take()
    count = draft.fresh(walk.part, "count", "entries_here")
    inside.append(Simple(f"const int {count} = min({width}, {walk.bound} - {start})"))
    inside += [*pragmas, Loop(f"{turn} < {count}", [*shuffled, *body], f"int {turn} = 0", f"++{turn}")]
    mask = (1 << width) - 1
    walk.container[at:at] = [
        Simple(f"const int {lane} = threadIdx.x % {width}"),
        Simple(f"const unsigned {group} = {mask}u << (threadIdx.x % 32 / {width} * {width})"),
        Loop(f"{start} < {walk.bound}", inside, f"int {start} = {walk.start}", f"{start} += {width}"),
    ]
    return True


def _group(draft: Draft, walk: Walk) -> int:
    """How many lanes walk together; 0 where that isn't certain."""
    text = "\n".join(texts(walk.part.body))
    rows = re.findall(r"\+ threadIdx\.x / (\d+)$", text, re.MULTILINE)
    own = "\n".join(texts(walk.loop.body))
    branches = [node for _, _, node in every(walk.part.body) if isinstance(node, Branch)]
    leaves = [node.test for node in branches if "return" in "".join(texts(node.then))]
    found = loads(draft, walk.loop.body, walk.var)
    plain = all(load.index == walk.var and not load.ctype.startswith("pack") for load in found)
    if len(set(rows)) != 1 or int(rows[0]) not in (2, 4, 8, 16, 32) or walk.step != "1" or walk.skips or not plain:
        return 0
    alone = {"column", "lane", "threadIdx"} & names(walk.start)
    # a return by columns would leave the others of the group without an answer
    if alone or "is_padding" in own or walk.var in _other_uses(walk) or any("column" in names(t) for t in leaves[:1]):
        return 0
    return int(rows[0])


def _other_uses(walk: Walk) -> set[str]:
    """Names of the body outside its loads: the walk's own number must not be among them."""
    stripped = [re.sub(rf"\w+\[{walk.var}\]|\w+ \+ {walk.var}\b", "", text) for text in texts(walk.loop.body)]
    return {name for text in stripped for name in names(text)}


def vector(draft: Draft, rng: random.Random) -> bool:
    """A thread that walks neighbouring entries reads two or four at once, from the first aligned one on."""
    found = [walk for walk in walks(draft) if _contiguous(draft, walk)]
    if not found:
        return False
    walk = rng.choice(found)
    width = rng.choice((2, 4))
    var, bound = walk.var, walk.bound
    entry = draft.fresh(walk.part, "e", "entry_of_pack")
    held = hold(draft, walk)
    packs: list[Node] = []
    for load, name in held:
        word = "stream_load" if load.text.startswith("stream") else "load"
        packs.append(Simple(f"const pack<{load.ctype}, {width}> {name} = {word}<{width}>({load.array} + {var})"))
    body = body_with(walk.loop.body, {load.text: f"{name}[{entry}]" for load, name in held})
    single = Loop("", walk.loop.body, "", f"++{var}", walk.loop.braced)
    at, pragmas = walk.take()
    head = Loop(f"{var} < {bound} && {var} % {width} != 0", body_with(single.body, {}), "", f"++{var}", single.braced)
    inside = [*packs, *counting(entry, str(width), body)]
    middle = Loop(f"{var} + {width - 1} < {bound}", inside, "", f"{var} += {width}")
    tail = Loop(f"{var} < {bound}", single.body, "", f"++{var}", single.braced)
    nodes: list[Node] = [Simple(f"int {var} = {walk.start}"), head, *pragmas, middle, tail]
    if any(var in names(text) for text in _outside(walk.part, walk)):
        nodes = [Branch(f"{walk.start} < {bound}", nodes)]  # a scope for the walk's number
    walk.container[at:at] = nodes
    return True


def _contiguous(draft: Draft, walk: Walk) -> bool:
    """Every load of A stands at the walk's number itself, which has no other use."""
    found = loads(draft, walk.loop.body, walk.var)
    plain = all(load.index == walk.var and load.ctype in ("index_t", "value_t") for load in found)
    return plain and walk.step == "1" and not walk.skips and walk.var not in _other_uses(walk)


def _outside(part: Part, walk: Walk) -> list[str]:
    inside = set(map(id, walk.loop.body))
    return [text for node in part.body if id(node) not in inside for text in texts([node])]
