"""What a worker holds of a case, and whether a program wrote to what is not its own.

A program on a GPU can reach everything there. So after each of its runs not only its own data is looked at, but that
of all others too: what one broke would otherwise be laid to whoever is run on it next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sparserl.backends.backend import Backend, Buffer, Executable, Inspected, Job, Later
from sparserl.judge.handed import Which
from sparserl.matrix import Array

Hash = Later[str]
"""of what lies in a buffer at the moment it is asked for"""


@dataclass
class Structure:
    """A packed matrix on the device. `placed` names the value set that lies in `vals`, '' if that can't be known."""

    arrays: dict[str, Buffer]
    slot_of: Buffer | None
    vals: Buffer
    padding: Array
    digests: dict[str, Hash]
    placed: str = ""

    @property
    def everything(self) -> dict[str, Buffer]:
        return {**self.arrays, "vals": self.vals, **({"slot_of": self.slot_of} if self.slot_of is not None else {})}


@dataclass
class Loaded:
    executable: Executable
    job: Job
    structure: str
    zeroed: dict[str, tuple[Buffer, Hash]] = field(default_factory=dict)
    """workspaces that are zero between products, with the hash of that"""


def hashes_of(backend: Backend, buffers: Sequence[Buffer]) -> list[Hash]:
    """Of each as it is now; none is waited for."""
    if not buffers:
        return []
    found = backend.inspect_later([], buffers)
    return [partial(_hash, found, at) for at in range(len(buffers))]


def _hash(found: Later[Inspected], at: int) -> str:
    return found()[1][at]


def touched(
    backend: Backend,
    others: tuple[Mapping[str, Structure], Mapping[str, Loaded], Mapping[tuple[str, Which], tuple[Buffer, Hash]]],
    around: dict[str, Buffer],
    inputs: dict[str, Buffer],
    expected: dict[str, Hash],
) -> Later[str]:
    """'' or the first thing that was written to: buffers with guards around them, and inputs with their hashes.

    Then, where a program can reach it (a simulator stops it before), what others have. Not covered: what the library's
    variants hold, and what other programs have in scratch.
    """
    own = {id(buffer) for buffer in around.values()}
    structures, programs, kept = ({}, {}, {}) if backend.bounded else others
    for key, other in structures.items():
        if id(other.vals) not in own:
            theirs = other.everything
            around |= {f"{name}' of '{key}": each for name, each in theirs.items()}
            inputs |= {f"{name}' of '{key}": theirs[name] for name in other.digests}
            expected |= {f"{name}' of '{key}": digest for name, digest in other.digests.items()}
    for key, program in programs.items():
        spaces = backend.workspaces(program.executable).items()
        around |= {f"{name}' of '{key}": each for name, each in spaces if id(each) not in own}
        for name, (each, digest) in program.zeroed.items():
            if id(each) not in own:
                inputs[f"{name}' of '{key}"], expected[f"{name}' of '{key}"] = each, digest
    for (key, what), (each, digest) in kept.items():
        name = f"{what}' of the numbers '{key}"
        around[name] = inputs[name] = each
        expected[name] = digest
    found = backend.inspect_later([*around.values()], [*inputs.values()])

    def finding() -> str:
        intact, digests = found()
        for name, fine in zip(around, intact, strict=True):
            if not fine:
                return f"wrote outside the bounds of '{name}'"
        for name, digest in zip(inputs, digests, strict=True):
            if digest != expected[name]():
                return f"changed its input '{name}'"
        return ""

    return finding
