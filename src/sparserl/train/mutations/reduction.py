"""How the lanes of a row, or the threads of a block, add up: shuffles of one kind or another, or shared memory."""

from __future__ import annotations

import random
import re

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Loop, Node, Pragma, Simple, every, guard, inner, names, texts

FULL = "0xffffffffu"
_WARP = re.compile(r"(\w+) = warp_sum<(\w+)>\(\1\)")
_BLOCK = re.compile(r"(\w+) = block_sum<(\d+)>\(\1\)")
_DOWN = re.compile(r"(\w+) \+= __shfl_down_sync\(0xffffffffu, \1, (\w+)\)")


def lanes(draft: Draft, rng: random.Random) -> bool:
    """warp_sum becomes a loop of shuffles in another order, or a sum in shared memory by the first lane."""
    found = []
    for part, container, at, node in draft.places():
        if isinstance(node, Simple) and (match := _WARP.fullmatch(node.text)) and match[2] != "1":
            found.append((part, container, at, match[1], match[2]))
    if not found:
        return False
    part, container, at, total, width = rng.choice(found)
    ways = ["rising", "falling"] + (["down"] if _led(container, at, total) else [])
    threads = _threads(draft, part)
    if threads and width.isdigit() and _led(container, at, total) and not part.is_template:
        ways.append("shared")
    way = rng.choice(ways)
    step = draft.fresh(part, "o", "distance")
    if way == "shared":
        container[at : at + 1] = _in_shared(draft, part, total, width, threads)
        return True
    half = str(int(width) // 2) if width.isdigit() else f"{width} / 2"
    shuffles = {
        "rising": ("1", f"{step} < {width}", f"{step} *= 2", f"__shfl_xor_sync({FULL}, {total}, {step})"),
        "falling": (half, f"{step} > 0", f"{step} >>= 1", f"__shfl_xor_sync({FULL}, {total}, {step}, {width})"),
        "down": (half, f"{step} > 0", f"{step} /= 2", f"__shfl_down_sync({FULL}, {total}, {step}, {width})"),
    }[way]
    first, test, update, shuffle = shuffles
    loop = Loop(test, [Simple(f"{total} += {shuffle}")], f"int {step} = {first}", update, False)
    container[at : at + 1] = [Pragma("#pragma unroll"), loop]
    return True


def _led(container: list[Node], at: int, total: str) -> bool:
    """The sum is used once more, in a store that only the first lane of a group makes."""
    rest = [node for node in container[at + 1 :] if any(total in names(text) for text in texts([node]))]
    if len(rest) != 1:
        return False
    head = getattr(rest[0], "test", "")
    return bool(re.search(r"lane(?: % \d+)? == 0|threadIdx\.x % \d+ == 0", head)) and not _collective(rest[0])


def _collective(node: Node) -> bool:
    return any("sync" in text or "arrival" in text for text in texts([node]))


def _threads(draft: Draft, part: Part) -> str:
    launch = draft.launch_of(part) if part.kernel else None
    return launch.block if launch is not None and launch.block.isdigit() else ""


def _in_shared(draft: Draft, part: Part, total: str, width: str, threads: str) -> list[Node]:
    parts, lane = draft.fresh(part, "lane_sums", "lane_parts"), draft.fresh(part, "w", "other_lane")
    add: list[Node] = [Simple(f"{total} += {parts}[threadIdx.x + {lane}]")]
    adds = Loop(f"{lane} < {width}", add, f"int {lane} = 1", f"++{lane}", False)
    return [
        Simple(f"__shared__ acc_t {parts}[{threads}]"),
        Simple("__syncwarp()"),
        Simple(f"{parts}[threadIdx.x] = {total}"),
        Simple("__syncwarp()"),
        guard(f"threadIdx.x % {width} == 0", [adds]),
    ]


def blocks(draft: Draft, rng: random.Random) -> bool:
    """block_sum becomes a sum in shared memory: by the first thread over the warps, or as a tree over the threads."""
    found = []
    for part, container, at, node in draft.places():
        if isinstance(node, Simple) and (match := _BLOCK.fullmatch(node.text)) and not part.is_template:
            found.append((part, container, at, match[1], match[2]))
    if not found:
        return False
    part, container, at, total, threads = rng.choice(found)
    if container is not part.body and not _uniform(part, container):
        return False
    shared = draft.fresh(part, "warp_sums", "block_parts")
    step = draft.fresh(part, "w", "distance")
    size = int(threads)
    if rng.random() < 0.5:
        add: list[Node] = [Simple(f"{total} += {shared}[{step}]")]
        adds = Loop(f"{step} < {size // 32}", add, f"int {step} = 1", f"++{step}", False)
        new: list[Node] = [
            Simple(f"__shared__ acc_t {shared}[{size // 32}]"),
            Simple("__syncthreads()"),
            Simple(f"{total} = warp_sum<32>({total})"),
            guard("threadIdx.x % 32 == 0", [Simple(f"{shared}[threadIdx.x / 32] = {total}")]),
            Simple("__syncthreads()"),
            guard("threadIdx.x == 0", [adds]),
        ]
    else:
        pair = guard(f"threadIdx.x < {step}", [Simple(f"{shared}[threadIdx.x] += {shared}[threadIdx.x + {step}]")])
        new = [
            Simple(f"__shared__ acc_t {shared}[{size}]"),
            Simple("__syncthreads()"),
            Simple(f"{shared}[threadIdx.x] = {total}"),
            Simple("__syncthreads()"),
            Loop(f"{step} > 0", [pair, Simple("__syncthreads()")], f"int {step} = {size // 2}", f"{step} /= 2"),
            Simple(f"{total} = {shared}[0]"),
        ]
    container[at : at + 1] = new
    return True


def _uniform(part: Part, container: list[Node]) -> bool:
    """The list stands in branches on what is the same for the whole block (it held block_sum, which needs that)."""
    return any(inside is container for _, _, node in every(part.body) for inside in inner(node))


def butterflies(draft: Draft, rng: random.Random) -> bool:
    """A loop of downward shuffles becomes one of exchanges: every lane ends with the sum."""
    if draft.program.layout.name.startswith("block") and draft.program.layout.get("b") not in ("2", "4", "8"):
        return False  # lanes of one row are then not a power of two apart
    found = [
        node for _, _, _, node in draft.places() if isinstance(node, Simple) and _DOWN.fullmatch(node.text)
    ]
    if not found:
        return False
    node = rng.choice(found)
    node.text = node.text.replace("__shfl_down_sync", "__shfl_xor_sync")
    return True
