"""Parts of x, or the descriptors of a block's rows, in shared memory."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Node, Simple, names, rewrite, texts
from sparserl.train.mutations.walk import matching

WINDOWS = (512, 1024, 2048, 4096, 8192)


def window(draft: Draft, rng: random.Random) -> bool:
    """A window of x is copied into shared memory by each block: the first columns, or those near its own rows.

    A column outside the window is read as before, so the window is a matter of speed alone. For matrices whose
    columns come close to the row's number, or with a few hot ones.
    """
    if draft.problem.op != "spmv" or len(draft.kernels) > 2 or len(draft.parts) != len(draft.kernels):
        return False
    kernel = draft.kernels[-1] if draft.program.layout.name in ("chunks",) else draft.kernels[0]
    text = "\n".join(texts(kernel.body))
    reads = [match.start() for match in re.finditer(r"(?<![.\w])x\[", text)]
    if not reads or len(re.findall(r"(?<![.\w])x\b(?!\w)", text)) != len(reads) or "__shared__" in text:
        return False
    launch = draft.launch_of(kernel)
    if launch is None or launch.shared != "0" or not launch.block.isdigit():
        return False
    size = rng.choice([w for w in WINDOWS if w * draft.problem.value_bytes <= 32768])
    near = re.search(r"blockIdx\.x \* (\d+)", text)
    staged, low = draft.fresh(kernel, "staged", "staged_x"), draft.fresh(kernel, "low", "window_low")
    place = "0"
    if near and rng.random() < 0.7:
        place = f"max(0, min(int(blockIdx.x) * {near[1]} - {max(0, (size - int(near[1])) // 2)}, columns - {size}))"
    helper = draft.fresh(kernel, "gather", "gather_x")
    rewrite(kernel.body, lambda piece: _gathered(piece, helper, staged, low))
    head: list[Node] = [node for node in kernel.body if _is_call(node, "pdl_trigger()")]
    waits = [node for node in kernel.body if _is_call(node, "pdl_wait()")]
    body = [node for node in kernel.body if node not in head and node not in waits]
    kernel.body[:] = [
        Simple(f"__shared__ value_t {staged}[{size}]"),
        *head,
        Simple(f"const int {low} = {place}"),
        *waits,
        Simple(f"shared_copy({staged}, x + {low}, min({size}, columns - {low}))"),
        Simple("__syncthreads()"),
        *body,
    ]
    params = f"const value_t* x, const value_t* {staged}, int {low}, int column"
    head_text = f"__device__ __forceinline__ value_t {helper}({params})"
    inside: list[Node] = [
        Simple(f"const int at = column - {low}"),
        Simple(f"return at >= 0 && at < {size} ? {staged}[at] : x[column]"),
    ]
    draft.parts.insert(0, Part(helper, False, head_text, inside))
    return True


def _is_call(node: Node, text: str) -> bool:
    return isinstance(node, Simple) and node.text == text


def _gathered(text: str, helper: str, staged: str, low: str) -> str:
    """x[E] → helper(x, staged, low, E), innermost brackets kept."""
    match = re.search(r"(?<![.\w])x\[", text)
    while match:
        end = matching(text, match.end() - 1)
        inside = text[match.end() : end]
        text = text[: match.start()] + f"{helper}(\0, {staged}, {low}, {inside})" + text[end + 1 :]
        match = re.search(r"(?<![.\w])x\[", text)
    return text.replace("\0", "x")


def descriptors(draft: Draft, rng: random.Random) -> bool:
    """The starts of a block's rows or slices are copied into shared memory together, then read from there."""
    for kernel in draft.kernels:
        launch = draft.launch_of(kernel)
        if launch is None or launch.shared != "0" or len(draft.parts) != 1:
            continue
        found = _starts(draft, kernel)
        if found is not None:
            _stage(draft, kernel, found)
            return True
    return False


@dataclass(frozen=True)
class _Starts:
    """An array of starts that a block reads at NAME and NAME + 1 only."""

    array: str
    name: str
    base: str
    """the first value of the name in the block"""
    count: int
    length: str


def _starts(draft: Draft, kernel: Part) -> _Starts | None:
    text = "\n".join(texts(kernel.body))
    if "gridDim" in text or "__shared__" in text:
        return None
    for array, length in (("row_start", "rows"), ("slice_start", "slices")):
        if array not in draft.arrays or draft.program.layout.name not in ("rows", "slices"):
            continue
        index = re.findall(rf"{array}\[(\w+)(?: \+ 1)?\]", text)
        if not index or len(set(index)) != 1 or len(index) != text.count(array):
            continue
        name = index[0]
        base = _range(kernel, name)
        if base is not None:
            return _Starts(array, name, base[0], base[1], length)
    return None


def _range(kernel: Part, name: str) -> tuple[str, int] | None:
    """(first value, count) of a name in a block, where it is a group of lanes' number in the grid, or a slice."""
    declared: dict[str, str] = {}
    for node in kernel.body:
        if isinstance(node, Simple) and (match := re.fullmatch(r"const int (\w+) = (.+)", node.text)):
            declared[match[1]] = match[2]
    value = declared.get(name, "")
    through = re.fullmatch(r"(\w+)(?: / (\d+))?", value)
    if through and through[1] in declared:
        first = _range(kernel, through[1])
        size = int(through[2] or 1)
        if first is None or first[1] % size or "tiles" in first[0]:
            return None
        return first[0].replace(f"* {first[1]}", f"* {first[1] // size}"), first[1] // size
    if match := re.fullmatch(r"blockIdx\.x \* (\d+) \+ threadIdx\.x", value):
        return f"blockIdx.x * {match[1]}", int(match[1])
    if match := re.fullmatch(r"\(blockIdx\.x \* (\d+) \+ threadIdx\.x\) / (\d+)", value):
        count = int(match[1]) // int(match[2])
        return (f"blockIdx.x * {count}", count) if count * int(match[2]) == int(match[1]) else None
    if match := re.fullmatch(r"(blockIdx\.x / tiles) \* (\d+) \+ threadIdx\.x / \d+", value):
        return f"{match[1]} * {match[2]}", int(match[2])
    return None


def _stage(draft: Draft, kernel: Part, found: _Starts) -> None:
    array, name, count = found.array, found.name, found.count
    starts, low = draft.fresh(kernel, "starts", "staged_starts"), draft.fresh(kernel, "low", "starts_low")

    def change(text: str) -> str:
        text = re.sub(rf"{array}\[{name} \+ 1\]", f"{starts}[{name} - {low} + 1]", text)
        return re.sub(rf"{array}\[{name}\]", f"{starts}[{name} - {low}]", text)

    rewrite(kernel.body, change)
    at = next(
        i for i, node in enumerate(kernel.body) if any(starts in names(t) or "return" in t for t in texts([node]))
    )
    tiles = [n for n in kernel.body[:at] if isinstance(n, Simple) and n.text.startswith("const int tiles")]
    body = [node for node in kernel.body if node not in tiles]
    at = 1 if _is_call(body[0], "pdl_trigger()") else 0
    kernel.body[:] = [
        *body[:at],
        Simple(f"__shared__ int {starts}[{count + 1}]"),
        *tiles,
        Simple(f"const int {low} = {found.base}"),
        Simple(f"shared_copy({starts}, {array} + {low}, min({count + 1}, {found.length} + 1 - {low}))"),
        Simple("__syncthreads()"),
        *body[at:],
    ]
