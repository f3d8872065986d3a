"""How the judge hands sets of numbers to its worker (by name, by what differs from one with a name, or whole), and asks
for products with them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from sparserl.backends.backend import Part

Array = np.ndarray[Any, np.dtype[Any]]
Which = Literal["values", "x"]


class Near(NamedTuple):
    """A set that differs in one number from one that the worker has."""

    key: str
    of: Which
    place: int
    number: Any
    """of the storage type"""

    def after(self, array: Array) -> Array:
        """The values, or x, of this set, from those of the other."""
        changed = array.copy()
        changed[self.place] = self.number
        return changed


Check = str | Near | tuple[Array, Array]
"""a set by the name under which it was put, by what is different there, or its values and x"""


def kept_as(check: Check, of: Which) -> str:
    """The name of the set whose values, or x, these are; '' where they are no set's."""
    if isinstance(check, Near):
        return "" if check.of == of else check.key
    return check if isinstance(check, str) else ""


class Asked(NamedTuple):
    """One product that a program is to make.

    poison=False leaves scratch workspaces and clear=False leaves y as the last product left them, so that a program
    which remembers results there gives the wrong one.
    """

    check: Check
    behind_writer: bool = False
    """with the pdl attribute, right behind a slow writer of x"""
    poison: bool = True
    clear: bool = True
    part: Part | None = None
    """of C, only this comes back"""
