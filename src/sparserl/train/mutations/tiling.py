"""SpMM: the tiles of B's columns in another order, or one after the other in a thread."""

from __future__ import annotations

import copy
import random
import re

from sparserl.train.mutations.draft import Draft
from sparserl.train.mutations.tree import Loop, Node, Pragma, Simple, every, inner, rewrite, texts
from sparserl.train.mutations.walk import counted


def tile_order(draft: Draft, rng: random.Random) -> bool:
    """Blocks run over the rows first and then over the tiles of columns, not the other way round."""
    if draft.problem.op != "spmm":
        return False
    for kernel in draft.kernels:
        launch = draft.launch_of(kernel)
        text = "\n".join(texts(kernel.body))
        if launch is None or "gridDim" in text or "blockIdx.x / tiles" not in text:
            continue
        match = re.fullmatch(r"(.+) \* div_up\(n, (\d+)\)", launch.grid)
        if match is None or draft.problem.columns <= int(match[2]):
            continue
        groups = draft.fresh(kernel, "groups", "row_groups")
        at = next((i for i, n in enumerate(kernel.body) if isinstance(n, Simple) and "tiles = " in n.text), None)
        if at is None:
            continue
        rewrite(
            kernel.body,
            lambda piece, name=groups: piece.replace("blockIdx.x / tiles", "(blockIdx.x \0 groups)")  # type: ignore[misc]
            .replace("blockIdx.x % tiles", "blockIdx.x / groups")
            .replace("(blockIdx.x \0 groups)", "blockIdx.x % groups")
            .replace("groups", name),
        )
        kernel.body[at] = Simple(f"const int {groups} = {match[1]}")
        return True
    return False


def tiles_apart(draft: Draft, rng: random.Random) -> bool:
    """A thread's column tiles one after the other: A is walked once a tile, with a fraction of the registers."""
    if draft.problem.op != "spmm":
        return False
    for part, container, at, node in draft.places():
        declared = re.fullmatch(r"acc_t (\w+)\[(\d+)\]\[(\d+)\] = {}", node.text) if isinstance(node, Simple) else None
        if declared is None or declared[2] == "1" or container is not part.body:
            continue
        total, count = declared[1], declared[2]
        rest = copy.deepcopy(container[at + 1 :])
        loops = [n for _, _, n in every(rest) if isinstance(n, Loop) and counted(n) == ("t", count)]
        every_use = [text for text in texts(rest) if re.search(rf"\b{total}\[", text)]
        if not loops or any(f"{total}[t]" not in text for text in every_use) or "return" in "".join(texts(rest)):
            continue
        _unloop(rest, count)
        if any(re.search(r"\bt\b", text) is None and total in text for text in every_use):
            continue
        rewrite(rest, lambda text, total=total: text.replace(f"{total}[t]", total))  # type: ignore[misc]
        inside: list[Node] = [Simple(f"acc_t {total}[{declared[3]}] = {{}}"), *rest]
        container[at:] = [Loop(f"t < {count}", inside, "int t = 0", "++t")]
        if rng.random() < 0.3:
            container.insert(at, Pragma("#pragma unroll 1"))
        return True
    return False


def _unloop(nodes: list[Node], count: str) -> None:
    """Replace each `for (int t …)` by what is inside it."""
    at = 0
    while at < len(nodes):
        node = nodes[at]
        if isinstance(node, Loop) and counted(node) == ("t", count):
            first = at - 1 if at and isinstance(nodes[at - 1], Pragma) else at
            nodes[first : at + 1] = node.body
            at = first
            continue
        for body in inner(node):
            _unloop(body, count)
        at += 1

