"""How the work is cut into blocks: other block sizes, persistent grids, several virtual blocks a block, their order."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from sparserl.records import LaunchLine
from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Branch, Loop, Node, Pragma, Simple, every, guard, inner, names, rewrite, texts

_BLOCKS = "blockIdx.x"
_WIDE = ("__syncthreads", "__shared__", "block_sum", "last_block_done", "blockDim", "gridDim", "shared_copy")


def _all_text(part: Part) -> str:
    return "\n".join(texts(part.body))


def threads(draft: Draft, rng: random.Random) -> bool:
    """Another block size, where a thread's number is used only through its number in the grid and its lane."""
    found = [
        (kernel, launch)
        for kernel in draft.kernels
        if (launch := draft.launch_of(kernel)) is not None and launch.block.isdigit()
    ]
    rng.shuffle(found)
    for kernel, launch in found:
        old = int(launch.block)
        sizes = [new for new in (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024) if new != old]
        rng.shuffle(sizes)
        if any(_resized(draft, kernel, launch, old, new) for new in sizes):
            return True
    return False


def _resized(draft: Draft, kernel: Part, launch: LaunchLine, old: int, new: int) -> bool:
    text = _all_text(kernel)
    if any(word in text for word in _WIDE) or "threads" in dict(draft.program.layout.params):
        return False
    helpers = _in_parts(draft)
    if _BLOCKS in helpers or "threadIdx" in helpers:
        return False
    scaled = _Scale(old, new)
    lane = re.compile(r"threadIdx\.x % (\d+)")
    plain = lane.sub("LANE", text)
    if any(32 % int(m) for m in lane.findall(text)):
        return False
    # what is left of threadIdx.x must be part of the number in the grid
    forms = (
        r"\(?blockIdx\.x \* (?P<a>\d+) \+ threadIdx\.x\)?(?! /| %)|\(blockIdx\.x \* (?P<b>\d+) \+ threadIdx\.x\) / \d+",
        r"blockIdx\.x(?: / tiles)? \* (?P<c>\d+) \+ threadIdx\.x / (?P<d>\d+)",
    )
    rest = plain
    for form in forms:
        for match in re.finditer(form, plain):
            groups = match.groupdict()
            whole = int(groups.get("a") or groups.get("b") or 0) or int(groups["c"]) * int(groups["d"])
            if whole != old:
                return False
        rest = re.sub(form, "PLACE", rest)
    if "threadIdx" in rest or _BLOCKS in rest.replace("blockIdx.x % tiles", ""):
        return False
    grid = re.sub(
        r"div_up\((.+?), (\d+)\)", lambda m: f"div_up({m[1]}, {scaled(m[2])})", launch.grid, count=1
    )
    if grid == launch.grid or scaled.failed:
        return False

    def change(piece: str) -> str:
        return re.sub(
            r"(blockIdx\.x(?: / tiles)? \* )(\d+)( \+ threadIdx)", lambda m: m[1] + scaled(m[2]) + m[3], piece
        )

    rewrite(kernel.body, change)
    if scaled.failed:
        return False
    kernel.head = kernel.head.replace(f"__launch_bounds__({old})", f"__launch_bounds__({new})")
    draft.set_launch(launch, replace(launch, grid=grid, block=str(new)))
    return True


class _Scale:
    """Numbers that grow with the block; `failed` once one doesn't stay whole."""

    def __init__(self, old: int, new: int) -> None:
        self.old, self.new, self.failed = old, new, False

    def __call__(self, number: str) -> str:
        value, rest = divmod(int(number) * self.new, self.old)
        self.failed = self.failed or rest != 0 or value == 0
        return str(value)


def persistent(draft: Draft, rng: random.Random) -> bool:
    """A grid that fits the chip: each block walks over the virtual blocks of the old grid."""
    found = _virtual(draft)
    if not found:
        return False
    kernel, launch = rng.choice(found)
    block = draft.fresh(kernel, "virtual_block", "tile_of_blocks")
    _wrap(kernel, block, launch.grid, lambda body: Loop(
        f"{block} < {_count(launch.grid)}", body, f"int {block} = blockIdx.x", f"{block} += gridDim.x"
    ))
    waves = rng.choice((1, 2, 4, 6, 8, 12, 16))
    most = "sms" if waves == 1 else f"sms * {waves}"
    draft.set_launch(launch, replace(launch, grid=f"min({launch.grid}, {most})"))
    return True


def coarsen(draft: Draft, rng: random.Random) -> bool:
    """Each block does the work of two or four old ones, neighbours or far apart."""
    found = _virtual(draft)
    if not found:
        return False
    kernel, launch = rng.choice(found)
    count = rng.choice((2, 2, 3, 4))
    part = draft.fresh(kernel, "part", "piece_of_work")
    block = draft.fresh(kernel, "virtual_block", "tile_of_blocks")
    place = rng.choice((f"blockIdx.x * {count} + {part}", f"blockIdx.x + {part} * gridDim.x"))

    def loop(body: list[Node]) -> Loop:
        head: list[Node] = [
            Simple(f"const int {block} = {place}"),
            guard(f"{block} >= {_count(launch.grid)}", [Simple("break")]),
        ]
        return Loop(f"{part} < {count}", head + body, f"int {part} = 0", f"++{part}")

    _wrap(kernel, block, launch.grid, loop)
    if rng.random() < 0.5:
        at = next(i for i, node in enumerate(kernel.body) if isinstance(node, Loop))
        kernel.body.insert(at, Pragma("#pragma unroll"))
    draft.set_launch(launch, replace(launch, grid=f"div_up({launch.grid}, {count})"))
    return True


def _count(grid: str) -> str:
    return f"({grid})" if re.search(r"[-+*/%] ", grid) else grid


def _virtual(draft: Draft) -> list[tuple[Part, LaunchLine]]:
    """Kernels whose blocks can be numbered anew: by nothing but blockIdx.x, with a grid that the kernel can compute."""
    found = []
    for kernel in draft.kernels:
        launch = draft.launch_of(kernel)
        text = _all_text(kernel)
        if launch is None or launch.grid == "1" or "sms" in names(launch.grid) or _BLOCKS not in text:
            continue
        if "gridDim" in text or any(_BLOCKS in _all_text(part) for part in draft.parts if not part.kernel):
            continue
        if not _returns_at_top(kernel.body) or "extern __shared__" in text or "pdl_wait" in _in_parts(draft):
            continue
        if "last_block_done" in text or "last_arrival" in text:
            continue  # a block that comes back would count itself in twice before the others
        found.append((kernel, launch))
    return found


def _in_parts(draft: Draft) -> str:
    return "".join(_all_text(part) for part in draft.parts if not part.kernel)


def _returns_at_top(nodes: list[Node], inside_loop: bool = False) -> bool:
    """No return stands inside a loop, so that each can become `continue`."""
    for node in nodes:
        if isinstance(node, Simple) and node.text.startswith("return") and inside_loop:
            return False
        looping = inside_loop or isinstance(node, Loop)
        if not all(_returns_at_top(body, looping) for body in inner(node)):
            return False
    return True


def _wrap(kernel: Part, block: str, grid: str, loop: object) -> None:
    """The body inside a loop over virtual blocks; what must happen once stays in front of it."""
    once: list[Node] = []
    body = kernel.body
    for first in list(body):
        if not (isinstance(first, Simple) and first.text == "pdl_trigger()"):
            break
        once.append(body.pop(0))
    wait = next((n for n in body if isinstance(n, Simple) and n.text == "pdl_wait()"), None)
    if wait is not None:
        body.remove(wait)
        once.append(wait)
    for container, at, node in list(every(body)):
        if isinstance(node, Simple) and node.text.startswith("__shared__"):
            container[at] = Simple("")
            once.append(node)
        elif isinstance(node, Simple) and node.text == "return":
            node.text = "continue"
        elif isinstance(node, Branch) and len(node.then) == 1 and isinstance(node.then[0], Simple):
            _return_call(node)
    _drop_empty(body)
    if any("__shared__" in getattr(n, "text", "") for n in once):
        body.insert(0, Simple("__syncthreads()"))
    rewrite(body, lambda text: text.replace(_BLOCKS, block))
    kernel.body[:] = [*once, loop(list(body))]  # type: ignore[operator]


def _return_call(node: Branch) -> None:
    """`return f(…);` of a void function becomes the call and `continue`."""
    only = node.then[0]
    if isinstance(only, Simple) and only.text.startswith("return "):
        node.then = [Simple(only.text.removeprefix("return ")), Simple("continue")]
        node.braced = True


def _drop_empty(nodes: list[Node]) -> None:
    nodes[:] = [node for node in nodes if not (isinstance(node, Simple) and not node.text)]
    for node in nodes:
        for body in inner(node):
            _drop_empty(body)


def reverse(draft: Draft, rng: random.Random) -> bool:
    """The blocks take the work from its end: what the hardware starts first is what was last."""
    found = [
        kernel
        for kernel in draft.kernels
        if _BLOCKS in _all_text(kernel) and "gridDim" not in _all_text(kernel)
    ]
    if not found or any(_BLOCKS in _all_text(part) for part in draft.parts if not part.kernel):
        return False
    kernel = rng.choice(found)
    block = draft.fresh(kernel, "turned_block", "block_from_end")
    rewrite(kernel.body, lambda text: text.replace(_BLOCKS, block))
    at = 1 if isinstance(kernel.body[0], Simple) and kernel.body[0].text == "pdl_trigger()" else 0
    kernel.body.insert(at, Simple(f"const int {block} = gridDim.x - 1 - blockIdx.x"))
    return True
