"""What `admits` has found out about a pattern, kept as long as the pattern lives.

A tuner asks the same layouts with many parameters: what they have in common is measured once. Patterns are told apart
by identity, so nothing is hashed, and nothing here keeps one alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from sparserl.matrix import Pattern

T = TypeVar("T")

_facts: dict[int, dict[Hashable, Any]] = {}


def remembered(pattern: Pattern, key: Hashable, measure: Callable[[], T]) -> T:
    """What `measure` gives for this pattern; called once a pattern and key. At most bytes a row."""
    facts = _facts.get(id(pattern))
    if facts is None:
        facts = _facts.setdefault(id(pattern), {})
        weakref.finalize(pattern, _facts.pop, id(pattern), None).atexit = False
    if key not in facts:
        facts[key] = measure()
    found: T = facts[key]
    return found
