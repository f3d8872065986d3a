"""Candidates of a matrix as HTML: each with its verdict and times, why the runner-up lost, and the winner's source."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sparserl.bench.archive import sha
from sparserl.report import runner_up
from sparserl.report.board import Entry, Record
from sparserl.report.runner_up import LONGEST, Facts
from sparserl.report.source import highlight
from sparserl.report.words import compact, percent


def section(entry: Entry, modes: Sequence[str]) -> str:
    """The table of candidates, below a sentence a mode that was tuned for."""
    if not entry.candidates:
        return ""
    timed = [mode for mode in modes if any(mode in runner_up.times(c) for c in entry.candidates)] or list(modes[:1])
    ranked = rank(entry, timed[0])
    won = {mode: winner_among(entry, ranked, mode) for mode in timed}
    rows = "".join(_row(c, timed, [mode for mode in timed if won[mode] is c]) for c in ranked)
    right = sum(runner_up.right(c) for c in ranked)
    figures = [*(f"{mode} µs" for mode in timed), "of floor", "packed", "registers", "launches"]
    heads = "".join(f'<th scope="col" class="number">{name}' for name in figures)
    return (
        f"<h4>Candidates <small>{right} of {len(ranked)} correct</small></h4>"
        f"{why_runner_up_lost(entry, timed)}"
        '<div class="scroll"><table class="candidates"><thead><tr><th scope="col">layout<th scope="col">verdict'
        f'{heads}<th scope="col">by</thead><tbody>{rows}</tbody></table></div>'
    )


def rank(entry: Entry, mode: str) -> list[Record]:
    """Correct ones by time, the rest behind them in the order they are stored."""
    return sorted(entry.candidates, key=lambda c: runner_up.time_us(c, mode))


def winner_among(entry: Entry, ranked: Sequence[Record], mode: str) -> Record | None:
    """The candidate that became the operator: by the name of its text; None where none did."""
    winner = entry.winner_in(mode) or {}
    if not winner.get("text"):
        return None
    name = winner.get("sha") or sha(str(winner["text"]))
    return next((c for c in ranked if c.get("sha") == name), None)


def why_runner_up_lost(entry: Entry, modes: Sequence[str]) -> str:
    """A paragraph a mode; two programs are compared once."""
    said: dict[str, None] = {}
    compared: set[tuple[int, int]] = set()
    for mode in modes:
        ranked = rank(entry, mode)
        won = winner_among(entry, ranked, mode)
        second = next((c for c in ranked if c is not won), None)
        if won is None:
            kept = str((entry.winner_in(mode) or {}).get("name") or "")
            words = f"<b>{escape(kept)}</b> stays: no candidate was faster." if kept else "No candidate was verified."
        elif second is None:
            words = "It was the only candidate."
        else:
            words = runner_up.verdict(second, won, mode)
            if runner_up.right(second) and (id(second), id(won)) not in compared:
                words += runner_up.compared(second, won, mode)
                compared.add((id(second), id(won)))
        said[f"<p>{words}</p>"] = None
    return "".join(said)


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
    times, facts = runner_up.times(candidate), Facts.of(candidate)
    shown = [f"{times[mode]:.2f}" if mode in times else "–" for mode in modes]
    shown.append(percent(runner_up.floor_share(candidate, modes[0])))
    shown.append(f"{compact(facts.packed_bytes)}B" if facts.packed_bytes else "–")
    shown += [str(facts.registers or "–"), facts.launched]
    cells = "".join(f'<td class="number">{each}' for each in shown)
    reason = f"<small>{escape(str(candidate['reason'])[:LONGEST])}</small>" if candidate.get("reason") else ""
    stage = f'<span class="quiet">{escape(str(candidate["stage"]))}</span>' if candidate.get("stage") else ""
    crown = f'<span class="crown">winner{"" if len(won) == len(modes) else f", {won[0]}"}</span>' if won else ""
    layout = escape(str(candidate["layout"]) or "–")
    name = str(candidate.get("name") or "").partition(" on ")[0]
    crown += f'<small class="quiet">{escape(name)}</small>' if name else ""
    return (
        f'<tr{" class=ours" if won else ""}><td><code>{layout}</code>{crown}<td class="wrap">'
        f"<span class={'good' if runner_up.right(candidate) else 'bad'}>{escape(str(candidate['verdict']).lower())}"
        f"</span> {stage}{reason}{cells}"
        f'<td class="quiet">{escape(str(candidate.get("origin") or "–"))}'
    )
