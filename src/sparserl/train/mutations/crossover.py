"""The walk of one program in the frame of another: header, mapping and store of one parent, inner loop of the other.

Both walks must run over the same slots: the same step, the same padding and base, the same names for where they begin
and end. Padded walks may stand over unpadded layouts, not the other way round.
"""

from __future__ import annotations

import copy
import random
import re
from dataclasses import dataclass

from sparserl import layouts
from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Loop, Node, Simple, every, inner, names, printed, texts
from sparserl.train.mutations.walk import counted, walks
from sparserl.vocabulary import BUILTINS, RESERVED

PADDED = frozenset({"slices", "ell", "split", "filled"})
PLAIN = frozenset({"rows", "nonempty", "bins"})


@dataclass
class Region:
    """The statements between an accumulator and the last use of x."""

    part: Part
    container: list[Node]
    first: int
    last: int
    total: str

    @property
    def nodes(self) -> list[Node]:
        return self.container[self.first : self.last + 1]


def cross(draft: Draft, donor: Draft, rng: random.Random) -> bool:
    """Put a walk of `donor` in the place of one of `draft`."""
    if not _compatible(draft, donor):
        return False
    pairs = [(mine, its) for mine in regions(draft) for its in regions(donor)]
    rng.shuffle(pairs)
    return any(_swap(draft, donor, mine, its) for mine, its in pairs)


def _compatible(draft: Draft, donor: Draft) -> bool:
    mine, its = draft.program.layout, donor.program.layout
    if draft.problem != donor.problem or draft.problem.op != "spmv":
        return False
    same = (mine.name in PADDED and its.name in PADDED) or (mine.name in PLAIN and its.name in PLAIN)
    over = mine.name in PLAIN and its.name in PADDED
    widths = all(mine.get(key) == its.get(key) for key in ("c", "group")) or (over and its.get("group") == "1")
    return (same or over) and widths and (mine.index == "int16") == (its.index == "int16")


def regions(draft: Draft) -> list[Region]:
    found = []
    for part, container, at, node in draft.places():
        match = re.fullmatch(r"acc_t (\w+) = 0", node.text) if isinstance(node, Simple) else None
        if match is None:
            continue
        uses = [
            i for i in range(at + 1, len(container)) if any(draft.right in names(t) for t in texts([container[i]]))
        ]
        if uses:
            region = Region(part, container, at + 1, uses[-1], match[1])
            barred = ("return", "sync", "warp_sum", "block_sum", "__shared__", "acc_t ")
            if not any(word in text for text in texts(region.nodes) for word in barred):
                found.append(region)
    return found


def _steps(nodes: list[Node]) -> set[str]:
    """How far apart a region's entries lie."""
    steps = {match for text in texts(nodes) for match in re.findall(r"\+ k(?: \* (\w+))?(?: |$|;|\))", text)}
    for _, _, node in every(nodes):
        batches = isinstance(node, Loop) and any(counted(inside) for inside in node.body)
        if isinstance(node, Loop) and counted(node) is None and not batches:
            match = re.fullmatch(r"\w+ \+= (\w+)", node.update or "")
            steps.add(match[1] if match else "1")
    return {step or "1" for step in steps}


def _declared(nodes: list[Node]) -> set[str]:
    found: set[str] = set()
    for text in texts(nodes):
        match = re.match(r"(?:const )?(?:int|acc_t|value_t|index_t|bool|pack<.+?>|int4|int2) (.+)", text)
        if match:
            found |= set(re.findall(r"(\w+)(?:\[[^\]]+\])* =(?!=)", match[1])) | {re.split(r"\W", match[1])[0]}
    return found


def _free(draft: Draft, region: Region) -> set[str]:
    every_name = {name for text in texts(region.nodes) for name in names(text)}
    known = RESERVED | BUILTINS | set(draft.arrays) | {"x", region.total} | _declared(region.nodes)
    return every_name - known


def _swap(draft: Draft, donor: Draft, mine: Region, its: Region) -> bool:
    steps = _steps(its.nodes)
    if len(steps) != 1 or steps != _steps(mine.nodes) or mine.total != its.total:
        return False
    free, old = _free(donor, its), _free(draft, mine)
    if ("base" in free) != ("base" in old) or "row" in free | old:
        return False
    scalars = {p.name.upper() for p in layouts.contract(draft.program.layout) if not p.is_array}
    baked = {name for name in free if name in donor.program.bake}
    if not baked <= scalars or ("WIDTH" in baked and draft.program.layout.name != "ell"):
        return False
    nodes = copy.deepcopy(its.nodes)
    head = _ends(draft, mine, free - baked)
    if head is None:
        return False
    nodes = head + _waited(nodes, mine, draft)
    if printed(nodes) == printed(mine.nodes):
        return False
    mine.container[mine.first : mine.last + 1] = nodes
    draft.bake(*sorted(baked))
    return True


def _ends(draft: Draft, mine: Region, needed: set[str]) -> list[Node] | None:
    """Declarations of `first` and `end` where the frame has them only in its loop's head; None if more is missing."""
    before = _visible(mine.part.body, mine) or set()
    missing = needed - before - names(mine.part.head)
    if not missing:
        return []
    own = [walk for walk in walks(draft) if any(walk.loop is node for node in mine.nodes)]
    later = _shallow(mine.container[mine.last + 1 :])
    if len(own) != 1 or not missing <= {"first", "end"} or missing & later:
        return None
    ends = {"first": own[0].start, "end": own[0].bound}
    return [Simple(f"const int {name} = {ends[name]}") for name in sorted(missing, reverse=True)]


def _shallow(nodes: list[Node]) -> set[str]:
    """Names declared in a list itself, not inside its loops and branches."""
    return _declared([node for node in nodes if isinstance(node, Simple)])


def _visible(nodes: list[Node], region: Region) -> set[str] | None:
    """The names in scope where the region begins, or None if it isn't in this list."""
    if nodes is region.container:
        return _shallow(nodes[: region.first])
    for at, node in enumerate(nodes):
        for body in inner(node):
            found = _visible(body, region)
            if found is not None:
                head = _declared([Simple(node.init)]) if isinstance(node, Loop) and node.init else set()
                return found | head | _shallow(nodes[:at])
    return None


def _waited(nodes: list[Node], mine: Region, draft: Draft) -> list[Node]:
    """The donor's walk with as many waits as the frame's had: its own place for it, or in front."""
    needs = any(_is_wait(node) for node in mine.nodes)
    has = any(_is_wait(node) for node in nodes)
    if not needs or not draft.waits:
        nodes = [node for node in nodes if not _is_wait(node)]
    elif not has:
        nodes = [Simple("pdl_wait()"), *nodes]
    return nodes


def _is_wait(node: Node) -> bool:
    return isinstance(node, Simple) and node.text == "pdl_wait()"
