"""Plots as inline SVG, written by hand: points over nonzeros and sorted curves, both on logarithmic axes.

Colours are classes that the page's style sheet fills in, so a plot follows the reader's light or dark scheme. Every
class of matrices has a shape of its own: colour is never the only sign. Each mark carries its words in a `<title>`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sparserl.evaluation import CLASSES

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 46, 22, 12, 44
SPEEDUP_TICKS = (0.5, 0.7, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)
SHAPES = {
    "small": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",  # disc
    "regular": "M-3.6,-3.6h7.2v7.2h-7.2z",  # square
    "block": "M0,-5l5,5l-5,5l-5,-5z",  # diamond
    "random": "M0,-4.8l4.8,8.4h-9.6z",  # triangle
    "skewed": "M0,4.8l4.8,-8.4h-9.6z",  # triangle on its tip
    "extreme": "M-1.6,-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",  # cross
}


@dataclass(frozen=True)
class Point:
    """One mark of a scatter plot."""

    x: float
    y: float
    look: str
    """style classes, such as 'small real' or 'solver'"""
    label: str
    shape: str = "small"
    target: str = ""
    """id of what the mark stands for on the page"""


@dataclass(frozen=True)
class Curve:
    """Values to be sorted from high to low and drawn over the share of matrices."""

    look: str
    label: str
    values: Sequence[float]


@dataclass(frozen=True)
class Scale:
    """Numbers to pixels on a logarithmic axis; `low` may lie above `high` in pixels."""

    least: float
    most: float
    low: float
    high: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.low + share * (self.high - self.low)


def scatter(points: Sequence[Point], title: str, y_label: str, y_range: tuple[float, float]) -> str:
    """Marks over the number of nonzeros."""
    if not points:
        return _frame(title, "", '<text class="none" x="50%" y="50%">nothing measured</text>')
    x = Scale(*_decades([p.x for p in points]), LEFT, WIDTH - RIGHT)
    y = Scale(*y_range, HEIGHT - BOTTOM, TOP)
    marks = "".join(_mark(p, x(p.x), y(p.y)) for p in sorted(points, key=lambda p: p.look))
    decades = range(round(math.log10(x.least)), round(math.log10(x.most)) + 1)
    ticks = "".join(_x_tick(x(10**d), f'10<tspan dy="-5" class="power">{d}</tspan>') for d in decades)
    least, most = min(p.y for p in points), max(p.y for p in points)
    said = f"{title}: {len(points)} marks, {y_label} from {least:.2f} to {most:.2f}"
    return _frame(said, _axes(y, "nonzeros", y_label) + ticks, marks)


def sorted_curves(curves: Sequence[Curve], title: str, y_label: str, y_range: tuple[float, float]) -> str:
    """For each curve: how many matrices reach at least a speed-up."""
    y = Scale(*y_range, HEIGHT - BOTTOM, TOP)
    width = WIDTH - RIGHT - LEFT
    drawn = ""
    for curve in curves:
        values = sorted(curve.values, reverse=True)
        if not values:
            continue
        steps = [(LEFT + width * i / len(values), y(v)) for i, v in enumerate(values)]
        path = "".join(f"{'H' if i else 'M'}{px:.1f}{'V' if i else ','}{py:.1f}" for i, (px, py) in enumerate(steps))
        label = f"<title>{escape(curve.label)}</title>"
        drawn += f'<path class="curve {curve.look}" d="{path}H{WIDTH - RIGHT}">{label}</path>'
    ticks = "".join(_x_tick(LEFT + width * p / 100, f"{p} %") for p in (0, 25, 50, 75, 100))
    said = f"{title}: " + "; ".join(
        f"{c.label} from {min(c.values):.2f} to {max(c.values):.2f}" for c in curves if c.values
    )
    return _frame(said, _axes(y, "share of matrices, best first", y_label) + ticks, drawn)


def speedup_range(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the values need, 1 always inside."""
    least, most = min([*values, 1.0]), max([*values, 1.5])
    return least / 1.08, most * 1.08


def legend_mark(shape: str, look: str) -> str:
    """A mark, for a legend."""
    mark = f'<path class="mark {escape(look)}" d="{SHAPES[shape]}"/>'
    return f'<svg class="key" viewBox="-8 -8 16 16" aria-hidden="true">{mark}</svg>'


def bullet(value: float, bar: float, verdict: str) -> str:
    """A bar as long as value over bar, with a tick in the middle where the bar lies; longer ones are cut."""
    length = 120 * min(2.0, max(0.0, value / bar)) / 2
    return (
        '<svg class="bullet" viewBox="0 0 120 14" aria-hidden="true">'
        '<rect class="track" width="120" height="8" y="3" rx="2"/>'
        f'<rect class="{verdict.lower()}" width="{length:.1f}" height="8" y="3" rx="2"/>'
        '<path class="goal" d="M60,0V14"/></svg>'
    )


def _mark(point: Point, x: float, y: float) -> str:
    assert point.shape in SHAPES, f"no shape for {point.shape!r}: {CLASSES}"
    drawn = (
        f'<path class="mark {escape(point.look)}" transform="translate({x:.1f},{y:.1f})" d="{SHAPES[point.shape]}">'
        f"<title>{escape(point.label)}</title></path>"
    )
    return f'<a href="#{escape(point.target)}" tabindex="-1">{drawn}</a>' if point.target else drawn


def _axes(y: Scale, x_label: str, y_label: str) -> str:
    lines = ""
    for value in _spread(y):
        at = y(value)
        one = ' class="one"' if value == 1 else ""
        lines += f'<path{one} d="M{LEFT},{at:.1f}H{WIDTH - RIGHT}"/>'
        lines += f'<text class="y" x="{LEFT - 6}" y="{at + 4:.1f}">{value:g}</text>'
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return lines + (
        f'<text class="x" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">{escape(x_label)}</text>'
        f'<text class="x" transform="translate(12,{middle}) rotate(-90)">{escape(y_label)}</text>'
    )


def _spread(y: Scale) -> list[float]:
    """Ticks in range, 1 first of all, none closer than 18 pixels to another."""
    kept: list[float] = []
    for value in sorted(SPEEDUP_TICKS, key=lambda v: (v != 1, SPEEDUP_TICKS.index(v) % 2 == 1, v)):
        if y.least <= value <= y.most and all(abs(y(value) - y(other)) >= 18 for other in kept):
            kept.append(value)
    return sorted(kept)


def _x_tick(at: float, text: str) -> str:
    base = HEIGHT - BOTTOM
    return f'<path class="tick" d="M{at:.1f},{base}v5"/><text class="x" x="{at:.1f}" y="{base + 19}">{text}</text>'


def _decades(values: Sequence[float]) -> tuple[float, float]:
    least = 10.0 ** math.floor(math.log10(max(1.0, min(values))))
    most = 10.0 ** math.ceil(math.log10(max(10.0, *values)))
    return least, max(most, 10 * least)


def _frame(said: str, axes: str, marks: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">'
        f'<g class="axes">{axes}</g>{marks}</svg>'
    )
