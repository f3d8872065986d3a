"""What a fresh process is asked to do by a test: light, so that it starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leave(asked: Mapping[str, Any]) -> dict[str, Any]:
    """End the process where a code is given."""
    if asked["code"]:
        raise SystemExit(asked["code"])
    return {"fine": True}
