"""What failed on a matrix, by mode: in its record, and what stays of it when other modes are measured later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparserl.bench.tables import Record

LONGEST = 500
"""characters of a fault"""


def of(record: Record) -> dict[str, str]:
    """The faults of a matrix's record, by mode."""
    if "faults" in record:
        return dict(record["faults"])
    whole: str = record.get("fault") or ""
    return dict.fromkeys(record.get("modes", ()), whole) if whole else {}


def told(record: dict[str, Any], faults: Mapping[str, str]) -> None:
    """Put them into a matrix's record, and in one line too."""
    if faults:
        record["faults"] = dict(faults)
        record["fault"] = _together(faults, record["modes"])


def joined(earlier: Record | None, record: dict[str, Any]) -> dict[str, Any]:
    """A matrix that was measured in other modes before keeps what is known of them, also that they failed."""
    if earlier is None:
        return record
    now = record["modes"]
    made = {**record, "modes": [*now, *(mode for mode in earlier["modes"] if mode not in now)]}
    for key in ("tuning_s_by_mode", "winners"):
        before = {mode: each for mode, each in (earlier.get(key) or {}).items() if mode not in now}
        made[key] = {**before, **(record.get(key) or {})}
    told(made, {**{mode: why for mode, why in of(earlier).items() if mode not in now}, **of(record)})
    return made


def _together(faults: Mapping[str, str], modes: Sequence[str]) -> str:
    """A reason that holds for all modes stands alone, any other behind its modes."""
    reasons: dict[str, list[str]] = {}
    for mode, why in faults.items():
        reasons.setdefault(why, []).append(mode)
    said = [why if set(modes) <= set(held) else f"{' and '.join(held)}: {why}" for why, held in reasons.items()]
    return "; ".join(said)[:LONGEST]
