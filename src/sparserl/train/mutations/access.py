"""The way a load or a store takes: kept in the caches, streamed, or past the first cache."""

from __future__ import annotations

import random
import re

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Simple, rewrite, texts
from sparserl.train.mutations.walk import Load, spelled_loads


def load_way(draft: Draft, rng: random.Random) -> bool:
    """All loads of one array of A, or of x, go another way."""
    arrays = draft.arrays | {draft.right: "value_t"}
    found: dict[str, list[Load]] = {}
    for part in draft.parts:
        for text in texts(part.body):
            for load in spelled_loads(text, arrays):
                found.setdefault(load.array, []).append(load)
    choices = [name for name in found if arrays[name] in ("index_t", "value_t", "int")]
    if not choices:
        return False
    name = rng.choice([n for n in choices if n in ("cols", "vals", draft.right)] * 2 + choices)
    ways = ["stream", "fresh", "plain"]
    now = {_way(load) for load in found[name]}
    ways = [way for way in ways if {way} != now]
    if draft.waits and name == draft.right:
        ways = [way for way in ways if way != "stream"] or ["fresh"]
    way = rng.choice(ways)
    changed = False

    def change(text: str) -> str:
        nonlocal changed
        for load in sorted(spelled_loads(text, arrays), key=lambda load: len(load.text)):
            if load.array == name and (new := _spelled(load, way)) != load.text:
                text, changed = text.replace(load.text, new), True
        return text

    for part in draft.parts:
        rewrite(part.body, change)
    return changed


def _way(load: Load) -> str:
    word = load.text.split("(")[0].split("<")[0]
    return {"stream": "stream", "stream_load": "stream", "fresh": "fresh", "read_only": "read_only"}.get(word, "plain")


def _spelled(load: Load, way: str) -> str:
    vector = re.match(r"pack<\w+, (\d+)>", load.ctype)
    if vector:
        word = {"stream": "stream_load", "plain": "load"}.get(way)
        return f"{word}<{vector[1]}>({load.array} + {load.index})" if word else load.text
    index = f"({load.index})" if "?" in load.index else load.index
    return f"{load.array}[{load.index}]" if way == "plain" else f"{way}({load.array} + {index})"


def store_way(draft: Draft, rng: random.Random) -> bool:
    """The results are written past the caches' first choice: streaming or to the second cache only."""
    if draft.problem.dtype not in ("float32", "float64"):
        return False
    pattern = re.compile(rf"{draft.left}\[(.+)\] = (.+)")
    found: list[tuple[Part, Simple]] = []
    for part, _, _, node in draft.places():
        if isinstance(node, Simple) and pattern.fullmatch(node.text):
            found.append((part, node))
    if not found:
        return False
    way = rng.choice(("__stcs", "__stcg"))
    for _, node in found:
        match = pattern.fullmatch(node.text)
        assert match is not None
        node.text = f"{way}({draft.left} + {match[1]}, value_t({match[2]}))"
    return True
