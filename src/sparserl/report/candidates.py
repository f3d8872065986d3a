"""Candidates of a matrix as HTML: each with its verdict and times, why the runner-up lost, and the winner's source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from sparserl.bench.archive import sha
from sparserl.report.board import Entry, Record
from sparserl.report.source import highlight

CORRECT = "correct"
TIE = 0.05
"""per cent that are not worth a figure"""
LONGEST = 300
"""characters of a reason"""


def section(entry: Entry, modes: Sequence[str]) -> str:
    """The table of candidates, below a sentence a mode that was tuned for."""
    if not entry.candidates:
        return ""
    timed = [mode for mode in modes if any(mode in _times(c) for c in entry.candidates)] or list(modes[:1])
    ranked = rank(entry, timed[0])
    won = {mode: winner_among(entry, ranked, mode) for mode in timed}
    rows = "".join(_row(c, timed, [mode for mode in timed if won[mode] is c]) for c in ranked)
    right = sum(_right(c) for c in ranked)
    heads = "".join(f'<th scope="col" class="number">{mode} µs' for mode in timed)
    said = dict.fromkeys(why_runner_up_lost(entry, mode) for mode in timed)
    return (
        f"<h4>Candidates <small>{right} of {len(ranked)} correct</small></h4>"
        f"{''.join(f'<p>{each}</p>' for each in said)}"
        '<div class="scroll"><table class="candidates"><thead><tr><th scope="col">layout<th scope="col">verdict'
        f'{heads}<th scope="col">by</thead><tbody>{rows}</tbody></table></div>'
    )


def rank(entry: Entry, mode: str) -> list[Record]:
    """Correct ones by time, the rest behind them in the order they are stored."""
    return sorted(entry.candidates, key=lambda c: _time_us(c, mode))


def winner_among(entry: Entry, ranked: Sequence[Record], mode: str) -> Record | None:
    """The candidate that became the operator: by the name of its text; None where none did."""
    winner = entry.winner_in(mode) or {}
    if not winner.get("text"):
        return None
    name = winner.get("sha") or sha(str(winner["text"]))
    return next((c for c in ranked if c.get("sha") == name), None)


def why_runner_up_lost(entry: Entry, mode: str) -> str:
    """One sentence of HTML."""
    ranked = rank(entry, mode)
    won = winner_among(entry, ranked, mode)
    others = [c for c in ranked if c is not won]
    if won is None:
        kept = str((entry.winner_in(mode) or {}).get("name") or "")
        return f"<b>{escape(kept)}</b> stays: no candidate was faster." if kept else "No candidate was verified."
    if not others:
        return "It was the only candidate."
    second, best_us, second_us = others[0], _time_us(won, mode), _time_us(others[0], mode)
    name = f"<code>{escape(str(second['layout']) or str(second.get('name', '')))}</code>"
    if math.isfinite(second_us) and math.isfinite(best_us):
        slower = 100 * (second_us / best_us - 1)
        if slower < 0:
            return f"{name} seemed {-slower:.1f} % faster in {mode} mode at first, and was slower when timed again."
        if slower < TIE:
            return f"The runner-up, {name}, was right too, and as fast in {mode} mode: a tie."
        return f"The runner-up, {name}, was right too, and slower by <b>{slower:.1f} %</b> in {mode} mode."
    reason = f": {escape(str(second['reason'])[:LONGEST])}" if second.get("reason") else ""
    verdict = escape(str(second["verdict"]).lower())
    return f"No other candidate was timed in {mode} mode. The runner-up, {name}, was <b>{verdict}</b>{reason}."


def kernels(entry: Entry, modes: Sequence[str]) -> str:
    """The winner's source; two where modes have winners of their own."""
    by_text: dict[str, tuple[Record, list[str]]] = {}
    for mode in modes:
        winner = entry.winner_in(mode)
        if winner and winner.get("text"):
            by_text.setdefault(str(winner["text"]), (winner, []))[1].append(mode)
    return "".join(_kernel(winner, won, len(by_text) > 1) for winner, won in by_text.values())


def _kernel(winner: Record, modes: Sequence[str], several: bool) -> str:
    launch = '<span class="tag">dependent launch</span>' if winner.get("pdl") else ""
    where = f" in {' and '.join(modes)} mode" if several else ""
    return (
        f"<h4>The winning kernel{where} {launch}<small>{escape(str(winner.get('name') or ''))}</small></h4>"
        f'<div class="code"><button type="button" class="copy">Copy</button>'
        f'<pre tabindex="0" aria-label="CUDA source of the winner">{highlight(str(winner["text"]))}</pre></div>'
    )


def _row(candidate: Record, modes: Sequence[str], won: Sequence[str]) -> str:
    """End tags of rows and cells are left out, as HTML allows: there are thousands of them."""
    times = _times(candidate)
    cells = "".join(f'<td class="number">{f"{times[mode]:.2f}" if mode in times else "–"}' for mode in modes)
    reason = f"<small>{escape(str(candidate['reason'])[:LONGEST])}</small>" if candidate.get("reason") else ""
    crown = f'<span class="crown">winner{"" if len(won) == len(modes) else f", {won[0]}"}</span>' if won else ""
    layout = escape(str(candidate["layout"]) or "–")
    name = str(candidate.get("name") or "").partition(" on ")[0]
    crown += f'<small class="quiet">{escape(name)}</small>' if name else ""
    return (
        f'<tr{" class=ours" if won else ""}><td><code>{layout}</code>{crown}<td class="wrap">'
        f"<span class={'good' if _right(candidate) else 'bad'}>{escape(str(candidate['verdict']).lower())}</span>"
        f'{reason}{cells}<td class="quiet">{escape(str(candidate.get("origin") or "–"))}'
    )


def _right(candidate: Record) -> bool:
    return str(candidate["verdict"]).lower() == CORRECT


def _times(candidate: Record) -> Mapping[str, float]:
    return {mode: us for mode, us in (candidate.get("times_us") or {}).items() if us}


def _time_us(candidate: Record, mode: str) -> float:
    return float(_times(candidate).get(mode, math.inf)) if _right(candidate) else math.inf
