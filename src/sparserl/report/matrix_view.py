"""What opens when a matrix is chosen: its picture, row lengths and features, then for each problem the figures, every
side, the candidates and the winner's source (`candidates`). Made as HTML here; the page keeps it as text that the
browser doesn't look into until it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from sparserl.bench.figures import OPERATOR, WITHOUT_PDL
from sparserl.bench.page_sections import title_of
from sparserl.bench.peer_scipy import SIDE as SCIPY
from sparserl.report import candidates, charts
from sparserl.report.board import Entry, Record
from sparserl.report.peers import how_timed
from sparserl.report.words import MODELLED, compact, figure, integer, percent, products

LEVELS = 5
"""shades of the picture of a matrix"""
SHOWN_FEATURES = {
    "row_mean": "entries a row", "row_max": "longest row", "row_deviation": "deviation of rows",
    "row_gini": "Gini of rows", "empty_rows": "empty rows", "bandwidth_mean": "mean distance to diagonal",
    "diagonals_90": "diagonals for 90 %", "symmetric": "symmetric pattern", "block_fill_3": "fill of 3 × 3 blocks",
}  # fmt: skip
SHARES = ("empty_rows", "symmetric", "block_fill_3")


def structure(entry: Entry) -> str:
    """What does not depend on the problem: picture, histogram, features."""
    facts = [("size", f"{integer(entry.rows)} × {integer(entry.columns)}"), ("nonzeros", integer(entry.nonzeros))]
    facts += [("class", entry.structure), ("origin", entry.kind), ("split", entry.split)]
    for name, words in SHOWN_FEATURES.items():
        if name in entry.features:
            value = entry.features[name]
            facts.append((words, percent(value) if name in SHARES else compact(value)))
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts if value)
    return (
        f'<div class="pictures"><figure class="spy"><figcaption>Nonzeros</figcaption>{spy(entry.spy)}</figure>'
        "<figure><figcaption>Row lengths<small>how many rows have so many entries, logarithmic</small></figcaption>"
        f'{histogram(entry.row_histogram)}</figure></div><dl class="facts">{listed}</dl>'
    )


def spy(record: Record | None) -> str:
    """The pattern as a grid of shades; a shade is one path of horizontal strokes, so the picture stays small."""
    if not record or not record["counts"]:
        return '<p class="quiet">no picture was stored</p>'
    counts: Sequence[Sequence[int]] = record["counts"]
    rows, columns = len(counts), max(map(len, counts))
    most = max(map(max, counts))
    paths: dict[int, list[str]] = {}
    for y, line in enumerate(counts):
        for shade, x, length in _runs([_shade(count, most) for count in line]):
            paths.setdefault(shade, []).append(f"M{x} {y}h{length}")
    drawn = "".join(f'<path class="shade{shade}" d="{"".join(found)}"/>' for shade, found in sorted(paths.items()))
    filled = sum(count > 0 for line in counts for count in line)
    said = f"Spy plot: {filled} of {rows * columns} cells hold nonzeros"
    return f'<svg class="grid" viewBox="0 -.5 {columns} {rows}" role="img" aria-label="{said}">{drawn}</svg>'


def _runs(shades: Sequence[int]) -> list[tuple[int, int, int]]:
    """(shade, first, length) of every run of one shade that is not empty."""
    found, first = [], 0
    for at in range(1, len(shades) + 1):
        if at == len(shades) or shades[at] != shades[first]:
            if shades[first]:
                found.append((shades[first], first, at - first))
            first = at
    return found


def _shade(count: int, most: int) -> int:
    """0 for nothing, else 1 … LEVELS by the logarithm."""
    if count <= 0:
        return 0
    return LEVELS if most == 1 else 1 + round((LEVELS - 1) * math.log(count) / math.log(most))


def histogram(record: Record | None) -> str:
    if not record:
        return '<p class="quiet">no histogram was stored</p>'
    return charts.bars(record["edges"], record["counts"], "Histogram of row lengths", "entries in a row")


def result(entry: Entry, modes: Sequence[str], modelled: bool) -> str:
    """One problem of a matrix."""
    made = f"<h3>{escape(title_of(entry.problem))}</h3>"
    if entry.fault:
        part = " in part" if any(not standing.failed for standing in entry.standings.values()) else ""
        made += f'<p class="fault"><b>This matrix failed{part}.</b> {escape(entry.fault)}</p>'
    made += _numbers(entry, modes, modelled) + _sides(entry, modes)
    return made + candidates.section(entry, modes) + candidates.kernels(entry, modes)


def _numbers(entry: Entry, modes: Sequence[str], modelled: bool) -> str:
    """The speed-ups in large figures, and what tuning cost."""
    cells = []
    for mode in modes:
        s = entry.standings.get(mode)
        if s is not None and s.speedup is not None:
            look, label = "good" if s.speedup >= 1 else "bad", MODELLED if modelled else ""
            cells.append((f'<b class="{look}">{s.speedup:.2f}×</b>{label}', f"{mode}, over {s.baseline}"))
    if entry.tuning_s is not None:
        paid = entry.break_even(modes[0])
        after = (
            "tuning"
            if paid is None
            else "tuning, never paid back"
            if math.isinf(paid)
            else f"tuning, paid back after {products(paid)}"
        )
        cells.append((f"<b>{figure(entry.tuning_s)} s</b>", after))
    if entry.packed_bytes:
        peak = f", {compact(entry.peak_memory_bytes)}B at the peak" if entry.peak_memory_bytes else ""
        cells.append((f"<b>{compact(entry.packed_bytes)}B</b>", f"packed{peak}"))
    drawn = "".join(f"<div>{big}<span>{escape(small)}</span></div>" for big, small in cells)
    return f'<div class="numbers">{drawn}</div>' if drawn else ""


# ---- every side


def _sides(entry: Entry, modes: Sequence[str]) -> str:
    here = [mode for mode in modes if mode in entry.standings]
    if not here or not entry.clocks:
        return ""
    first = entry.standings[here[0]].times_us
    order = sorted(entry.clocks, key=lambda side: first.get(side, math.inf))
    shown = [us for mode in here for side, us in entry.standings[mode].times_us.items() if side != SCIPY]
    rows = "".join(_side(entry, side, here, max(shown, default=1.0)) for side in order)
    heads = "".join(
        f'<th scope="col" class="number">{each}' for mode in here for each in (f"{mode} µs", "ours over it")
    )
    return (
        '<h4>Side by side</h4><div class="scroll"><table class="sides"><thead><tr><th scope="col">side'
        f'{heads}<th scope="col">10–90 %, {here[0]}<th scope="col">timed</thead><tbody>{rows}</tbody></table></div>'
    )


def _side(entry: Entry, side: str, modes: Sequence[str], slowest: float) -> str:
    clocks: Mapping[str, Record] = entry.clocks[side]
    cells = ""
    for mode in modes:
        clock, standing = clocks.get(mode), entry.standings[mode]
        us, ours_us = standing.times_us.get(side), standing.operator_us
        ours_us = (clock or {}).get("beside_us") or ours_us if ours_us else None
        over = f"{us / ours_us:.2f}×" if us and ours_us and side != OPERATOR else "–"
        cells += f'{_timed(clock, us is not None, slowest)}<td class="number">{over}'
    quantiles = (clocks.get(modes[0]) or {}).get("quantiles_us")
    spread = f"{quantiles[0]:.2f}–{quantiles[-1]:.2f}" if quantiles else "–"
    look = " class=ours" if side in (OPERATOR, WITHOUT_PDL) else ""
    how = _how(side, clocks)
    return f'<tr{look}><th scope="row">{escape(side)}{cells}<td class="quiet">{spread}<td class="quiet how">{how}'


def _how(side: str, clocks: Mapping[str, Record]) -> str:
    """How it was timed, and what the operator took beside it where it was timed once more."""
    timed = [clock for clock in clocks.values() if clock.get("median_us")]
    hows = dict.fromkeys(how_timed(side, clock) for clock in timed if side != OPERATOR)
    again = [f"{clock['beside_us']:.2f}" for clock in timed if clock.get("beside_us")]
    return escape("; ".join(hows)) + (f", beside ours of {' and '.join(again)} µs" if again else "")


def _timed(clock: Record | None, counts: bool, slowest: float) -> str:
    """A time with a bar behind it, or why there is none."""
    if clock is None:
        return '<td class="number">–'
    us, fault = clock.get("median_us"), str(clock.get("fault") or ("" if counts else "not verified"))
    note = f'<small class="bad">{escape(fault)}</small>' if fault else ""
    if not us:
        return f'<td class="number wrap">–{note}'
    return f'<td class="number timed" style="--share:{min(100.0, 100 * us / slowest):.0f}%">{us:.2f}{note}'
