"""Loads of descriptors issued earlier or later than a recipe would."""

from __future__ import annotations

import random
import re
from itertools import takewhile

from sparserl.train.mutations.draft import Draft
from sparserl.train.mutations.tree import Node, Pragma, Simple, names, texts
from sparserl.train.mutations.walk import spelled_loads


def sink(draft: Draft, rng: random.Random) -> bool:
    """A `const` loaded from an array of A is loaded just before its first use instead of early, or as early as it can.

    Late: a register less while the row is walked. Early: its latency is hidden.
    """
    found = []
    for _, container, at, node in draft.places():
        if not isinstance(node, Simple):
            continue
        match = re.fullmatch(r"const (?:int|int2|int4|index_t|value_t) (\w+ = .+)", node.text)
        if match is None or not spelled_loads(match[1], draft.arrays):
            continue
        declared = set(re.findall(r"(\w+) = ", match[1]))
        late, soon = _first_use(container, at, declared), _soonest(container, at, match[1])
        if late is not None and late > at + 1:
            found.append((container, at, late - 1))
        if soon < at:
            found.append((container, at, soon))
    if not found:
        return False
    container, at, to = rng.choice(found)
    container.insert(to, container.pop(at))
    return True


def _first_use(container: list[Node], at: int, declared: set[str]) -> int | None:
    for place in range(at + 1, len(container)):
        if any(declared & names(text) for text in texts([container[place]])):
            return place - sum(1 for _ in takewhile(lambda n: isinstance(n, Pragma), reversed(container[:place])))
    return None


def _soonest(container: list[Node], at: int, value: str) -> int:
    """The place behind the last statement that the value depends on, or that may leave."""
    for place in range(at - 1, -1, -1):
        node = container[place]
        declares = isinstance(node, Simple) and set(re.findall(r"(\w+) = ", node.text)) & names(value)
        if declares or not isinstance(node, Simple) or "__sync" in node.text:
            return place + 1
    return 0
