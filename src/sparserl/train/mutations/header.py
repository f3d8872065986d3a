"""What the header and the heads say: other numbers of the layout line, sizes baked in, a bound on registers."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from sparserl import layouts
from sparserl.errors import LayoutError
from sparserl.records import LayoutLine
from sparserl.train.mutations.draft import Draft
from sparserl.train.mutations.tree import names, rewrite, texts

# parameters of a layout that no program's code depends on: where rows are sorted, what counts as long, how it is cut
FREE = {
    "slices": ("sigma",),
    "split": ("sigma", "long", "segment"),
    "bins": ("per", "long", "segment"),
    "hybrid": ("cover",),
}


def packing(draft: Draft, rng: random.Random) -> bool:
    """Another number in the layout line, of those that the code doesn't know."""
    line = draft.program.layout
    keys = [key for key in FREE.get(line.name, ()) if not (key == "sigma" and line.get(key) == "1")]
    if not keys:
        return False
    key = rng.choice(keys)
    known = layouts.LAYOUTS[line.name].choices[key]
    values = [value for value in known if value != line.get(key) and not (key == "sigma" and value == "1")]
    params = tuple((k, rng.choice(values) if k == key else v) for k, v in line.params)
    changed = LayoutLine(line.name, params, line.index)
    try:
        layouts.check_line(changed)
    except LayoutError:
        return False
    draft.program = replace(draft.program, layout=changed)
    return True


def baked(draft: Draft, rng: random.Random) -> bool:
    """A size of the matrix becomes a constant: the compiler knows the bounds, and a register is saved."""
    scalars = [param.name for param in layouts.contract(draft.program.layout) if not param.is_array]
    if draft.problem.op == "spmm":
        scalars.append("n")
    used = {name for part in draft.kernels for text in texts(part.body) for name in names(text)}
    found = [name for name in scalars if name in used and name.upper() not in draft.program.bake]
    if not found or any(name.upper() in used for name in found):
        return False
    chosen = rng.sample(found, rng.randint(1, len(found)))
    new = {name: name.upper() for name in sorted(chosen)}
    for kernel in draft.kernels:
        rewrite(kernel.body, lambda text: re.sub(r"(?<![.\w])[A-Za-z_]\w*", lambda m: new.get(m[0], m[0]), text))
    draft.bake(*new.values())
    return True


def registers(draft: Draft, rng: random.Random) -> bool:
    """A second number in __launch_bounds__: so many blocks must fit an SM, whatever that costs in registers."""
    found = [kernel for kernel in draft.kernels if re.search(r"__launch_bounds__\((\d+)(?:, \d+)?\)", kernel.head)]
    if not found:
        return False
    kernel = rng.choice(found)
    match = re.search(r"__launch_bounds__\((\d+)(, \d+)?\)", kernel.head)
    assert match is not None
    most = 2048 // int(match[1])
    choices = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if n <= most and f", {n}" != match[2]]
    if not choices:
        return False
    kernel.head = kernel.head.replace(match[0], f"__launch_bounds__({match[1]}, {rng.choice(choices)})")
    return True
