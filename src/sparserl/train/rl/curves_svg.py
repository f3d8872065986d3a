"""Curves as one SVG file that stands alone: a line a name, with a band around it, on linear axes.

The colours hold on light and dark grounds, every line has dashes of its own (colour is never the only sign), and each
carries its words in a `<title>`. Not covered: logarithmic axes (`bench.plots`, `report.charts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 160, 16, 46
COLOURS = ("#3b78c2", "#c2571a", "#2f8f5b", "#8a5cc2", "#b8860b", "#c23b6e", "#1c8f9e", "#7a7a7a", "#5b6b1f")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
STEPS = (1.0, 2.0, 2.5, 5.0)


@dataclass(frozen=True)
class Band:
    """A curve and the band around it, all over `x`."""

    name: str
    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Axis:
    """Numbers to pixels."""

    least: float
    most: float
    low: float
    high: float

    def __call__(self, value: float) -> float:
        return self.low + (value - self.least) / (self.most - self.least) * (self.high - self.low)

    def ticks(self, at_most: int = 6) -> list[float]:
        """Round values in range."""
        wide = self.most - self.least
        power = 10.0 ** math.floor(math.log10(wide / at_most))
        step = next(s * power for s in (*STEPS, 10.0, 20.0) if wide / (s * power) <= at_most)
        return [step * k for k in range(math.ceil(self.least / step - 1e-9), math.floor(self.most / step + 1e-9) + 1)]


def chart(bands: Sequence[Band], x_label: str, y_label: str) -> str:
    """The file."""
    every = [value for band in bands for value in (*band.low, *band.high)]
    least, most = min(every), max(every)
    room = 0.05 * (most - least) or 0.05 * abs(most) or 0.5
    y = Axis(least - room, most + room, HEIGHT - BOTTOM, TOP)
    x = Axis(0.0, max(value for band in bands for value in band.x), LEFT, WIDTH - RIGHT)
    drawn = "".join(_band(band, number, x, y) for number, band in enumerate(bands))
    keys = "".join(_key(band.name, number) for number, band in enumerate(bands))
    said = f"{y_label} over {x_label}: {', '.join(f'{band.name} ends at {band.middle[-1]:.3f}' for band in bands)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(said)}" font-family="system-ui, sans-serif" font-size="12" fill="#777">'
        f"{_axes(x, y, x_label, y_label)}{drawn}{keys}</svg>\n"
    )


def _look(number: int) -> str:
    dashes = DASHES[number // len(COLOURS) % len(DASHES)] or DASHES[number % len(DASHES)]
    return f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"' + (
        f' stroke-dasharray="{dashes}"' if dashes else ""
    )


def _band(band: Band, number: int, x: Axis, y: Axis) -> str:
    upper = [f"{x(at):.1f},{y(value):.1f}" for at, value in zip(band.x, band.high, strict=True)]
    lower = [f"{x(at):.1f},{y(value):.1f}" for at, value in zip(band.x, band.low, strict=True)]
    line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in zip(band.x, band.middle, strict=True))
    title = f"<title>{escape(band.name)}: {band.middle[0]:.3f} to {band.middle[-1]:.3f}</title>"
    shade = f'fill="{COLOURS[number % len(COLOURS)]}" fill-opacity="0.12"'
    return (
        f'<polygon {shade} points="{" ".join(upper + lower[::-1])}"/>'
        f'<polyline fill="none" {_look(number)} points="{line}">{title}</polyline>'
    )


def _key(name: str, number: int) -> str:
    at, left = TOP + 12 + 19 * number, WIDTH - RIGHT + 14
    line = f'<path fill="none" {_look(number)} d="M{left},{at - 4}h26"/>'
    return f'{line}<text x="{left + 32}" y="{at}">{escape(name)}</text>'


def _axes(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    base, drawn = HEIGHT - BOTTOM, ""
    for value in y.ticks():
        drawn += f'<path stroke="#999" stroke-opacity="0.35" d="M{LEFT},{y(value):.1f}H{WIDTH - RIGHT}"/>'
        drawn += f'<text x="{LEFT - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
    for value in x.ticks():
        drawn += f'<path stroke="#999" d="M{x(value):.1f},{base}v5"/>'
        drawn += f'<text x="{x(value):.1f}" y="{base + 18}" text-anchor="middle">{value:g}</text>'
    middle = (TOP + base) / 2
    return drawn + (
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text transform="translate(14,{middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
