"""Peers beside the operator: each one's time on a matrix, the operator's that it stands against, how it was timed.

A peer is what a reader chooses between: a format of cuSPARSE by its best variant, torch, CuPy, SciPy, another program.
cuSPARSE is timed in turns with the operator. torch and CuPy are captured beside the operator once more, in another
process, and stand against that second time of it (`beside_us`). The rest has a clock of its own: a library that can't
be captured, SciPy on the CPU, a command.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparserl.bench import figures
from sparserl.bench.figures import OPERATOR, WITHOUT_PDL
from sparserl.bench.tables import LOST, WON, geometric_mean
from sparserl.report.board import Board, Entry, Record

IN_TURNS = "in turns with ours"
"""how a side was timed whose record doesn't say: the judge's own race"""
STREAMED = "on a stream, back to back"
"""how a library is timed that can't be captured: with its host code, where that takes longer"""
CPU = "SciPy on the CPU"
NAMES = {"torch": "torch", "cupy": "CuPy", "scipy": CPU, "plain": "plain CSR"}
FORMAT = re.compile(r"cusparse:([a-z]+)")


@dataclass(frozen=True)
class Beside:
    """A peer on one matrix in one mode, by the fastest of its sides that is right."""

    matrix: str
    side: str
    us: float | None
    """None where none of its sides was verified"""
    ours_us: float | None
    """the operator's, in the same measurement where there is one; None where it is not right"""
    how: str = ""
    checked: bool = True
    """False of a command that gives no result to be verified"""

    @property
    def gain(self) -> float | None:
        """The operator's speed-up over it."""
        return self.us / self.ours_us if self.us and self.ours_us else None


def peer_of(side: str) -> str:
    """'cusparse:csr2@col' → 'cuSPARSE CSR', 'torch:csr' → 'torch'; a command keeps its name."""
    kind, colon, _ = side.partition(":")
    if form := FORMAT.match(side):
        return f"cuSPARSE {form[1].upper()}"
    return NAMES.get(kind, side) if colon else side


def how_timed(side: str, clock: Record) -> str:
    """In a few words."""
    return str(clock.get("how") or ("counted by the simulator" if clock.get("source") == "modelled" else IN_TURNS))


def beside(entry: Entry, mode: str) -> dict[str, Beside]:
    """By peer, of all that were tried."""
    standing = entry.standings.get(mode)
    operator_us = standing.operator_us if standing else None
    found: dict[str, Beside] = {}
    for side, clocks in entry.clocks.items():
        clock = clocks.get(mode)
        if clock is None or side in (OPERATOR, WITHOUT_PDL):
            continue
        us = clock.get("median_us") if clock.get("verified") else None
        checked = bool(clock.get("verified") or clock.get("fault") or not clock.get("median_us"))
        ours_us = (clock.get("beside_us") or operator_us) if operator_us else None
        one = Beside(entry.matrix, side, us, ours_us, how_timed(side, clock), checked)
        there = found.get(peer_of(side))
        if there is None or (us or math.inf) < (there.us or math.inf):
            found[peer_of(side)] = one
    return found


def faster(entry: Entry, mode: str) -> tuple[str, Beside] | None:
    """The peer other than cuSPARSE that beats the operator by most, and by more than a tie."""
    ahead = [
        (each.gain, name, each)
        for name, each in beside(entry, mode).items()
        if not figures.BASELINE.match(each.side) and each.gain is not None and each.gain < LOST
    ]
    return min(ahead, key=lambda one: one[:2])[1:] if ahead else None


@dataclass(frozen=True)
class Tally:
    """A peer over a group of matrices."""

    count: int
    """matrices with its time and the operator's"""
    mean: float | None
    """geometric, of the operator's speed-up over it"""
    won: int
    tied: int
    """within the noise"""
    lost: int
    worst: float | None
    """0 where it is right and the operator is not"""
    worst_matrix: str
    failed: int
    """it was tried and not right"""
    unchecked: int
    """it was timed and gave nothing to be verified"""
    hows: tuple[str, ...]

    @classmethod
    def of(cls, found: Sequence[Beside]) -> Tally:
        gains = {one.matrix: one.gain for one in found if one.gain is not None}
        gains |= {one.matrix: 0.0 for one in found if one.us and not one.ours_us}
        worst = min(gains, key=lambda name: gains[name], default="")
        return cls(
            count=sum(gain > 0 for gain in gains.values()),
            mean=geometric_mean(gain for gain in gains.values() if gain),
            won=sum(gain > WON for gain in gains.values()),
            tied=sum(LOST <= gain <= WON for gain in gains.values()),
            lost=sum(gain < LOST for gain in gains.values()),
            worst=gains.get(worst),
            worst_matrix=worst,
            failed=sum(one.us is None and one.checked for one in found),
            unchecked=sum(not one.checked for one in found),
            hows=tuple(dict.fromkeys(one.how for one in found if one.us or not one.checked)),
        )


def tallies(entries: Sequence[Entry], mode: str) -> dict[str, Tally]:
    """By peer: cuSPARSE's formats first, SciPy last."""
    found: dict[str, list[Beside]] = {}
    for entry in entries:
        for name, one in beside(entry, mode).items():
            found.setdefault(name, []).append(one)
    ordered = sorted(found, key=lambda name: (not name.startswith("cuSPARSE"), name == CPU))
    return {name: Tally.of(found[name]) for name in ordered}


@dataclass(frozen=True)
class Profiled:
    """Who is in a performance profile."""

    curves: Mapping[str, Sequence[tuple[float, float]]]
    left_out: Mapping[str, str]
    """who is not, and why"""


def profile(entries: Sequence[Entry], mode: str) -> Profiled:
    """A curve a peer: each by its best variant, its time set in relation to the operator's of the same measurement.

    A peer whose time has its host code in it, on whichever matrix, has no curve, nor has the CPU.
    """
    left_out = {CPU: ""} if any(CPU in beside(entry, mode) for entry in entries) else {}
    shown = []
    for entry in entries:
        standing, there = entry.standings[mode], beside(entry, mode)
        left_out |= {name: "timed with its host code" for name, one in there.items() if one.how == STREAMED}
        times = {name: _beside_operator(one, standing.operator_us) for name, one in there.items() if one.us}
        times |= {OPERATOR: standing.operator_us} if standing.operator_us else {}
        shown.append(replace(standing, times_us=times))
    kept = [replace(s, times_us={k: us for k, us in s.times_us.items() if k not in left_out}) for s in shown]
    return Profiled(figures.performance_profile(kept), left_out)


def _beside_operator(one: Beside, operator_us: float | None) -> float:
    """Its time as it would be beside the operator's of the race."""
    assert one.us is not None
    return one.us * operator_us / one.ours_us if operator_us and one.ours_us else one.us


def took_part(board: Board) -> tuple[list[str], Mapping[str, str]]:
    """The peers beside cuSPARSE that were timed, and why others were not."""
    sides = {side for entry in board.entries for side in entry.clocks}
    sides -= {OPERATOR, WITHOUT_PDL}
    others = {peer_of(side) for side in sides if not figures.BASELINE.match(side)}
    missing: Mapping[str, str] = board.about.get("peers_missing") or {}
    absent = {NAMES.get(name.partition(":")[0], name): str(why) for name, why in missing.items() if name not in sides}
    return sorted(others, key=lambda name: (name == CPU, name.lower())), absent
