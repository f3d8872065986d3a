"""Why the runner-up lost, in plain sentences: by how much, and in what its program differs from the winner's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from sparserl.report.board import Record
from sparserl.report.words import compact, percent

CORRECT = "correct"
TIE = 0.05
"""per cent that are not worth a figure"""
FINAL = "final"
"""the stage in which programs were timed side by side for the last time"""
LONGEST = 300
"""characters of a reason"""


@dataclass(frozen=True)
class Facts:
    """What is known of a program beside its time. None where no record says."""

    packed_bytes: int | None
    registers: int | None
    launches: int | None
    pdl: bool | None

    @classmethod
    def of(cls, candidate: Record) -> Facts:
        """A recipe says `pdl` among its parameters, a written program has its launch lines there."""
        params = candidate.get("params") or {}
        lines = str(params.get("launch") or "")
        counted, pdl = lines.count("<<<") or None, ">>> pdl" in lines if lines else params.get("pdl")
        return cls(
            packed_bytes=candidate.get("packed_bytes") or None,
            registers=candidate.get("registers") or None,
            launches=candidate.get("launches", counted),
            pdl=candidate.get("pdl", pdl),
        )

    @property
    def launched(self) -> str:
        """'2 pdl', '1 plain'; '–' where nothing is known."""
        words = [
            str(self.launches) if self.launches else "",
            "" if self.pdl is None else "pdl" if self.pdl else "plain",
        ]
        return " ".join(word for word in words if word) or "–"


def right(candidate: Record) -> bool:
    return str(candidate["verdict"]).lower() == CORRECT


def times(candidate: Record) -> Mapping[str, float]:
    return {mode: us for mode, us in (candidate.get("times_us") or {}).items() if us}


def time_us(candidate: Record, mode: str) -> float:
    """Infinite where it has none, or is not right."""
    return float(times(candidate).get(mode, math.inf)) if right(candidate) else math.inf


def floor_share(candidate: Record, mode: str) -> float | None:
    """The least that its product could take over what it took. The floor that is stored is that of its first mode."""
    known, floor_us = times(candidate), candidate.get("floor_us")
    return floor_us / known[mode] if floor_us and mode == next(iter(known), "") else None


def verdict(second: Record, won: Record, mode: str) -> str:
    """One sentence of HTML."""
    best_us, second_us = time_us(won, mode), time_us(second, mode)
    name = f"<code>{escape(str(second['layout']) or str(second.get('name', '')))}</code>"
    if not (math.isfinite(second_us) and math.isfinite(best_us)):
        reason = f": {escape(str(second['reason'])[:LONGEST])}" if second.get("reason") else ""
        said = escape(str(second["verdict"]).lower())
        return f"No other candidate was timed in {mode} mode. The runner-up, {name}, was <b>{said}</b>{reason}."
    slower = 100 * (second_us / best_us - 1)
    if slower < 0 and second.get("stage") == FINAL:
        words = f"was {-slower:.1f} % faster in {mode} mode, which is within the noise"
        return f"The runner-up, {name}, {words}: the simpler program was kept."
    if slower < 0:
        return f"{name} seemed {-slower:.1f} % faster in {mode} mode at first, and was slower when timed again."
    if slower < TIE:
        return f"The runner-up, {name}, was right too, and as fast in {mode} mode: a tie."
    return f"The runner-up, {name}, was right too, and slower by <b>{slower:.1f} %</b> in {mode} mode."


def compared(second: Record, won: Record, mode: str) -> str:
    """' It … against …. The same in both: …': what differs, then what does not; '' where nothing is known."""
    a, b = Facts.of(second), Facts.of(won)
    differs: list[str] = []
    same: list[str] = []
    if a.packed_bytes and b.packed_bytes:
        more = 100 * (a.packed_bytes / b.packed_bytes - 1)
        share = f"{abs(more):.0f} % {'more' if more > 0 else 'less'}"
        sizes = f"reads {share} ({compact(a.packed_bytes)}B against {compact(b.packed_bytes)}B)"
        _sort(abs(more) < 1, "bytes", sizes, same, differs)
    if a.registers and b.registers:
        words = f"takes {a.registers} registers against {b.registers}"
        _sort(a.registers == b.registers, "registers", words, same, differs)
    if a.launches and b.launches:
        words = f"needs {a.launches} launch{'es' * (a.launches > 1)} against {b.launches}"
        _sort(a.launches == b.launches, "launches", words, same, differs)
    if a.pdl is not None and b.pdl is not None:
        words = "has dependent launch, the winner has not" if a.pdl else "has no dependent launch, the winner has"
        _sort(a.pdl == b.pdl, "dependent launch", words, same, differs)
    shares = percent(floor_share(second, mode)), percent(floor_share(won, mode))
    if "–" not in shares and shares[0] != shares[1]:
        differs.append(f"reaches {shares[0]} of its floor against {shares[1]}")
    said = f" It {_listed(differs)}." if differs else ""
    return said + (f" The same in both: {_listed(same)}." if same else "")


def _sort(equal: bool, name: str, words: str, same: list[str], differs: list[str]) -> None:
    if equal:
        same.append(name)
    else:
        differs.append(words)


def _listed(words: list[str]) -> str:
    """'a, b and c'."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
