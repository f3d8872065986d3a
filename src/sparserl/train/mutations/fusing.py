"""Two launches made one: the block that comes last does what the second kernel did."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from sparserl.records import Workspace
from sparserl.train.mutations.draft import Draft, Part
from sparserl.train.mutations.tree import Branch, Loop, Node, Simple, every, inner, rewrite, texts
from sparserl.train.mutations.walk import matching


def fuse(draft: Draft, rng: random.Random) -> bool:
    """A second kernel that mends the first one's results (a tail, carries) runs in the first one's last block.

    It saves a launch and costs the width of the machine: for short tails.
    """
    launches, kernels = draft.program.launches, draft.kernels
    if len(launches) != 2 or len(kernels) != 2 or len(draft.parts) != 2:
        return False
    first, second = (next(k for k in kernels if k.name == launch.kernel) for launch in launches)
    text = "\n".join(texts(second.body))
    reads = [draft.left] + [workspace.name for workspace in draft.program.workspaces]
    mends = re.search(rf"(?<![.\w]){draft.left}\[.+\] \+= ", text)
    same_block = launches[0].block == launches[1].block or ("threadIdx" in text and launches[1].block.isdigit())
    barred = ("atomic", "__syncthreads", "block_sum", "gridDim", "__shared__")
    if not mends or not same_block or any(word in text for word in barred) or not _structured(first.body):
        return False
    if launches[0].block != launches[1].block and not _reblocked(second, launches[1].block, launches[0].block):
        return False
    grid = launches[1].grid
    if launches[0].block != launches[1].block:
        grid = _regrid(grid, int(launches[1].block), int(launches[0].block))
        if not grid:
            return False
    if draft.problem.dtype not in ("float32", "float64"):
        return False
    done = draft.fresh(first, "done", "blocks_done")
    block = draft.fresh(second, "tail_block", "block_of_tail")
    _nest(first.body)
    body = [node for node in second.body if not (isinstance(node, Simple) and node.text.startswith("pdl_"))]
    rewrite(body, lambda piece: _fresh_reads(piece.replace("blockIdx.x", block), reads))
    _continue(body)
    # a thread without work of its own has not waited yet, and the counter is a workspace
    first.body += [Simple("pdl_wait()")] if draft.waits else []
    first.body += [
        Branch(f"!last_block_done({done}, gridDim.x)", [Simple("return")], braced=False),
        Loop(f"{block} < {grid}", body, f"int {block} = 0", f"++{block}"),
    ]
    draft.parts.remove(second)
    end = first.head.rindex(")")
    first.head = first.head[:end] + f", int* {done}" + first.head[end:]
    workspaces = (*draft.program.workspaces, Workspace(done, "int", "1", "zeroed"))
    draft.program = replace(draft.program, launches=launches[:1], workspaces=workspaces)
    return True


def _structured(nodes: list[Node]) -> bool:
    """Every return is an `if (…) return;` at the top, so that the rest can be put under its opposite."""
    for node in nodes:
        if isinstance(node, Simple) and node.text.startswith("return"):
            return False
        plain = isinstance(node, Branch) and node.orelse is None and _is_return(node.then)
        if not plain and any(
            isinstance(n, Simple) and n.text.startswith("return") for body in inner(node) for _, _, n in every(body)
        ):
            return False
    return True


def _is_return(nodes: list[Node]) -> bool:
    return len(nodes) == 1 and isinstance(nodes[0], Simple) and nodes[0].text == "return"


def _nest(body: list[Node]) -> None:
    """if (c) return; rest → if (!(c)) { rest }."""
    for at, node in enumerate(body):
        if isinstance(node, Branch) and node.orelse is None and _is_return(node.then):
            rest = body[at + 1 :]
            _nest(rest)
            body[at:] = [Branch(_opposite(node.test), rest)]
            return


def _opposite(test: str) -> str:
    simple = re.fullmatch(r"(\w+) >= (\w+)", test)
    return f"{simple[1]} < {simple[2]}" if simple else f"!({test})"


def _continue(nodes: list[Node]) -> None:
    for _, _, node in every(nodes):
        if isinstance(node, Simple) and node.text == "return":
            node.text = "continue"


def _reblocked(second: Part, old: str, new: str) -> bool:
    """The second kernel's thread numbers for the first one's block size."""
    text = "\n".join(texts(second.body))
    forms = re.findall(r"\(?blockIdx\.x \* (\d+) \+ threadIdx\.x\)?", text)
    plain = re.sub(r"\(?blockIdx\.x \* \d+ \+ threadIdx\.x\)?|threadIdx\.x % (?:2|4|8|16|32)\b", "", text)
    if not new.isdigit() or not forms or set(forms) != {old} or "threadIdx" in plain or "blockIdx" in plain:
        return False
    rewrite(second.body, lambda piece: piece.replace(f"blockIdx.x * {old} +", f"blockIdx.x * {new} +"))
    return True


def _regrid(grid: str, old: int, new: int) -> str:
    match = re.fullmatch(r"div_up\((.+), (\d+)\)", grid)
    if match is None or int(match[2]) * new % old:
        return ""
    return f"div_up({match[1]}, {int(match[2]) * new // old})"


def _fresh_reads(text: str, arrays: list[str]) -> str:
    """What other blocks wrote is read past the first cache: A[i] → fresh(A + i)."""
    for name in arrays:
        if match := re.fullmatch(rf"{name}\[(.+)\] \+= (.+)", text):
            text = f"{name}[{match[1]}] = fresh({name} + {match[1]}) + {match[2]}"
            continue
        begin = 0
        while match := re.compile(rf"(?<![.\w]){name}\[").search(text, begin):
            end = matching(text, match.end() - 1)
            if re.match(r" = (?!=)", text[end + 1 :]):
                begin = end
                continue
            text = f"{text[: match.start()]}fresh({name} + {text[match.end() : end]}){text[end + 1 :]}"
            begin = match.start() + 6
    return text
