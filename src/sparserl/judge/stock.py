"""The sets of numbers that a worker has of a case: by name on the host, and large ones on the device too.

A set is shown to many programs, and each of them has it put into the slots of its own layout, a dozen times: at ten
million nonzeros sending the values is most of what a verdict takes. So what is used again stays on the device, with its
hash, and is among what is looked at after every run (`holdings.touched`): a program that writes there has failed, and
nothing that it could reach is used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparserl.backends.backend import Backend, Buffer
from sparserl.judge.handed import Array, Check, Near, Which, kept_as
from sparserl.judge.holdings import Hash, Structure, hashes_of

KEPT_FROM: dict[Which, int] = {"x": 1 << 18, "values": 1 << 18}
"""bytes from which they stay on the device: what is smaller is sent faster than it is looked after. Page-locked memory
has room for 16 MB, and each time that is full all is waited for, among other processes that share the GPU"""
KEPT_SHARE = 1 / 32
"""of the room that is left, which one of them takes at most: there are some eight sets"""


@dataclass
class Stock:
    """All sets of one case."""

    backend: Backend
    sets: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    """values and x by name"""
    kept: dict[tuple[str, Which], tuple[Buffer, Hash]] = field(default_factory=dict)
    """on the device, as they were sent"""

    def put(self, key: str, values: Array, x: Array) -> None:
        self.drop([key])
        self.sets[key] = (values, x)

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.sets.pop(key, None)
            self.kept.pop((key, "values"), None)
            self.kept.pop((key, "x"), None)

    def clear(self) -> None:
        self.sets.clear()
        self.kept.clear()

    def x_of(self, check: Check) -> Array:
        if isinstance(check, Near):
            x = self.sets[check.key][1]
            return check.after(x) if check.of == "x" else x
        return (self.sets[check] if isinstance(check, str) else check)[1]

    def place_x(self, target: Buffer, check: Check, x: Array) -> Hash:
        """x of this set, as `x_of` has it, into a vector; its hash."""
        name = kept_as(check, "x")
        kept = self._kept(name, "x", x) if name else None
        if kept is not None:
            self.backend.copy(target, kept[0])
            return kept[1]
        self.backend.write(target, x)
        return hashes_of(self.backend, [target])[0]

    def place_values(self, held: Structure, check: Check) -> None:
        """The values of this set into the slots of a packed matrix."""
        values, staged = self._values_of(check)
        self.backend.scatter(held.vals, values, held.slot_of, held.padding, staged)

    def _values_of(self, check: Check) -> tuple[Array, Buffer | None]:
        """On the host and, where they stay there, on the device; then only type and count of the first are right."""
        if isinstance(check, Near):
            values, staged = self._values_of(check.key)
            if check.of == "x":
                return values, staged
            return (check.after(values), None) if staged is None else (values, self._near(staged, check))
        if isinstance(check, str):
            values = self.sets[check][0]
            kept = self._kept(check, "values", values)
            return values, None if kept is None else kept[0]
        return check[0], None

    def _near(self, kept: Buffer, check: Near) -> Buffer:
        """A copy on the device with one number changed."""
        changed, number = self.backend.alloc(kept.size_bytes), np.asarray(check.number).reshape(1)
        self.backend.copy(changed, kept)
        self.backend.write(changed, number, check.place * number.itemsize)
        return changed

    def _kept(self, key: str, of: Which, array: Array) -> tuple[Buffer, Hash] | None:
        """The copy on the device, made where there is none; None for what is too small or too large to stay there."""
        if (key, of) not in self.kept:
            if not KEPT_FROM[of] <= array.nbytes <= KEPT_SHARE * self.backend.room_bytes():
                return None
            buffer = self.backend.upload({"": array})[""]
            self.kept[key, of] = (buffer, hashes_of(self.backend, [buffer])[0])
        return self.kept[key, of]
