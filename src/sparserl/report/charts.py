"""Charts as inline SVG, made of the marks and scales of `bench.plots`: marks over two logarithmic axes, marks in lanes
by class, step curves, bars. Colours are classes of the style sheet, so a chart follows the reader's light or dark
scheme; a class of matrices has a shape of its own too. Every chart says in words what it shows (`aria-label`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from sparserl.bench.plots import SHAPES, Point, Scale
from sparserl.bench.tables import geometric_mean
from sparserl.report.words import compact

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 18, 14, 48
LANE, LANE_LEFT = 44, 92
STEPS = tuple(digit * 10.0**power for power in range(-6, 13) for digit in (1, 2, 5))
CLOSE = 8.6
"""pixels between the middles of two marks in a lane that don't touch"""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: its range, its words, and where a line is drawn across."""

    label: str
    least: float
    most: float
    lines: Mapping[float, str] = field(default_factory=dict)
    """values that are marked, each with a word or two beside the line"""
    unit: str = ""

    @classmethod
    def around(
        cls, label: str, values: Sequence[float], unit: str = "", lines: Mapping[float, str] | None = None
    ) -> Axis:
        """Wide enough for the values and the lines, with a little room."""
        every = [value for value in [*values, *(lines or {})] if 0 < value < math.inf] or [1.0]
        room = max(1.06, (max(every) / min(every)) ** 0.03)
        return cls(label, min(every) / room, max(max(every) * room, min(every) * 1.4), lines or {}, unit)

    def ticks(self, at_most: int = 7) -> list[float]:
        """Round values in range: even steps where it is short, parts of a decade or whole ones where it is long."""
        if self.most / self.least < 1.8:
            step = next(s for s in STEPS if (self.most - self.least) / s <= at_most)
            return [step * k for k in range(math.ceil(self.least / step), math.floor(self.most / step) + 1)]
        first, last = math.floor(math.log10(self.least)), math.ceil(math.log10(self.most))
        fine = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0]
        for steps in (fine, [1.0, 1.5, 2.0, 3.0, 5.0, 7.0], [1.0, 2.0, 5.0], [1.0, 3.0], [1.0]):
            found = [s * 10.0**d for d in range(first, last + 1) for s in steps]
            found = [value for value in found if self.least <= value <= self.most]
            if len(found) <= at_most:
                return found
        return found[:: -(-len(found) // at_most)]

    def said(self, value: float) -> str:
        return compact(value) + self.unit


def scatter(points: Sequence[Point], x: Axis, y: Axis, title: str, links: Sequence[tuple[Point, Point]] = ()) -> str:
    """Marks over two axes; `links` joins two of them by a thin line."""
    if not points:
        return empty(title)
    to_x, to_y = Scale(x.least, x.most, LEFT, WIDTH - RIGHT), Scale(y.least, y.most, HEIGHT - BOTTOM, TOP)
    drawn = "".join(
        f'<path class="link" d="M{to_x(a.x):.1f},{to_y(a.y):.1f}L{to_x(b.x):.1f},{to_y(b.y):.1f}"/>' for a, b in links
    )
    drawn += "".join(_mark(p, to_x(p.x), to_y(p.y)) for p in points)
    least, most = min(p.y for p in points), max(p.y for p in points)
    said = f"{title}: {len(points)} marks, {y.label} from {y.said(least)} to {y.said(most)}"
    return _frame(said, _grid_x(x, to_x, HEIGHT) + _grid_y(y, to_y), drawn)


def lanes(groups: Mapping[str, Sequence[Point]], x: Axis, title: str) -> str:
    """A lane a class: each mark is a matrix, the tick its geometric mean."""
    groups = {name: points for name, points in groups.items() if points}
    if not groups:
        return empty(title)
    height = TOP + LANE * len(groups) + BOTTOM
    to_x = Scale(x.least, x.most, LANE_LEFT, WIDTH - RIGHT)
    axes, drawn, said = _grid_x(x, to_x, height), "", list[str]()
    for lane, (name, points) in enumerate(groups.items()):
        middle = TOP + LANE * (lane + 0.5)
        mean = geometric_mean(p.x for p in points) or 1.0
        axes += f'<text class="y lane" x="{LANE_LEFT - 12}" y="{middle - 2:.1f}">{escape(name)}</text>'
        axes += f'<text class="y mean" x="{LANE_LEFT - 12}" y="{middle + 14:.1f}">{mean:.2f}×</text>'
        axes += f'<path class="middle" d="M{to_x(mean):.1f},{middle - 17:.1f}v34"/>'
        drawn += "".join(_mark(p, px, middle + dy) for p, px, dy in _swarm(points, to_x))
        said.append(f"{name} {mean:.2f} over {len(points)}")
    return _frame(f"{title}; geometric means: {', '.join(said)}", axes, drawn, height)


def _swarm(points: Sequence[Point], to_x: Scale) -> list[tuple[Point, float, float]]:
    """Marks moved off the middle of their lane so that they don't hide each other, as far as the lane is wide."""
    placed: list[tuple[Point, float, float]] = []
    steps = [0.0] + [sign * 5.5 * k for k in range(1, 4) for sign in (1, -1)]
    for point in sorted(points, key=lambda p: p.x):
        at = to_x(point.x)
        near = [(x, y) for _, x, y in placed[-12:]]
        free = [dy for dy in steps if all(math.hypot(at - x, dy - y) >= CLOSE for x, y in near)]
        gaps = {dy: min((math.hypot(at - x, dy - y) for x, y in near), default=CLOSE) for dy in steps}
        placed.append((point, at, free[0] if free else max(steps, key=lambda dy: gaps[dy])))
    return placed


@dataclass(frozen=True)
class Steps:
    """A side of a performance profile: (ratio, share) in ascending order."""

    label: str
    look: str
    steps: Sequence[tuple[float, float]]


def profile(curves: Sequence[Steps], x: Axis, title: str) -> str:
    """For each side: on which share of the matrices it is within a factor of the best."""
    if not any(curve.steps for curve in curves):
        return empty(title)
    to_x = Scale(x.least, x.most, LEFT, WIDTH - RIGHT)
    top, base = TOP, HEIGHT - BOTTOM
    axes = _grid_x(x, to_x, HEIGHT)
    for part in (0, 25, 50, 75, 100):
        at = base + (top - base) * part / 100
        axes += f'<path d="M{LEFT},{at:.1f}H{WIDTH - RIGHT}"/>'
        axes += f'<text class="y" x="{LEFT - 8}" y="{at + 4:.1f}">{part} %</text>'
    drawn, said = "", []
    for curve in reversed(curves):  # ours last, on top
        path = f"M{LEFT},{base}"
        for ratio, share in curve.steps:
            if ratio <= x.most:
                path += f"H{max(LEFT, to_x(ratio)):.1f}V{base + (top - base) * share:.1f}"
        first = max((share for ratio, share in curve.steps if ratio <= 1.0), default=0.0)
        said.append(f"{curve.label} is the fastest on {100 * first:.0f} %")
        drawn += (
            f'<path class="curve {curve.look}" d="{path}H{WIDTH - RIGHT}"><title>{escape(curve.label)}</title></path>'
        )
    return _frame(f"{title}: {'; '.join(reversed(said))}", axes, drawn)


def bars(edges: Sequence[float], counts: Sequence[int], title: str, x_label: str) -> str:
    """A histogram. Heights are logarithmic: one long row among a million is what one looks for."""
    width, height, base = 420, 200, 164
    if not counts or not max(counts):
        return empty(title)
    top = math.log1p(max(counts))
    step = (width - 20) / len(counts)
    drawn = ""
    for at, count in enumerate(counts):
        tall = (base - 14) * math.log1p(count) / top
        low, high = (edges[at], edges[at + 1]) if at + 1 < len(edges) else (edges[at], edges[at])
        drawn += (
            f'<rect class="bar" x="{10 + at * step + 1:.1f}" y="{base - tall:.1f}" width="{max(1.0, step - 2):.1f}" '
            f'height="{tall:.1f}" rx="1.5"><title>{count} rows of {low:g} to {high:g}</title></rect>'
        )
    every = max(1, -(-len(edges) // 7))
    ticks = "".join(
        f'<text class="x" x="{10 + at * step:.1f}" y="{base + 18}">{compact(edge)}</text>'
        for at, edge in enumerate(edges)
        if at % every == 0
    )
    axes = f'<path d="M8,{base}H{width - 8}"/>{ticks}<text class="x" x="{width / 2}" y="{height - 2}">{x_label}</text>'
    said = f"{title}: {sum(counts)} rows, most of them in the bin from {edges[counts.index(max(counts))]:g}"
    return _frame(said, axes, drawn, height, width)


def empty(title: str) -> str:
    """A frame that says so."""
    words = f'<text class="none" x="{WIDTH / 2}" y="{HEIGHT / 2}">nothing to compare</text>'
    return _frame(f"{title}: nothing to compare", "", words)


def look_of(structure: str) -> str:
    """A structure class as a style class; one that has no shape of its own is drawn as a disc."""
    return structure if structure in SHAPES else "small"


def _mark(point: Point, x: float, y: float) -> str:
    drawn = (
        f'<path class="mark {escape(point.look)}" transform="translate({x:.1f},{y:.1f})" d="{SHAPES[point.shape]}">'
        f"<title>{escape(point.label, quote=False)}</title></path>"
    )
    return f'<a href="#{escape(point.target)}" tabindex="-1">{drawn}</a>' if point.target else drawn


def _grid_x(axis: Axis, to_x: Scale, height: float) -> str:
    base, drawn = height - BOTTOM, ""
    for value in axis.ticks():
        at = to_x(value)
        drawn += f'<path d="M{at:.1f},{TOP}V{base}"/>'
        drawn += f'<text class="x" x="{at:.1f}" y="{base + 18}">{axis.said(value)}</text>'
    for value, word in axis.lines.items():
        at = to_x(value)
        drawn += f'<path class="one" d="M{at:.1f},{TOP}V{base}"/>'
        drawn += f'<text class="word" x="{at + 5:.1f}" y="{base - 6}">{escape(word)}</text>' if word else ""
    middle = (to_x.low + to_x.high) / 2
    return f'{drawn}<text class="x name" x="{middle:.0f}" y="{height - 7}">{escape(axis.label)}</text>'


def _grid_y(axis: Axis, to_y: Scale) -> str:
    drawn = ""
    for value in axis.ticks():
        at = to_y(value)
        drawn += f'<path d="M{LEFT},{at:.1f}H{WIDTH - RIGHT}"/>'
        drawn += f'<text class="y" x="{LEFT - 8}" y="{at + 4:.1f}">{axis.said(value)}</text>'
    for value, word in axis.lines.items():
        at = to_y(value)
        drawn += f'<path class="one" d="M{LEFT},{at:.1f}H{WIDTH - RIGHT}"/>'
        drawn += f'<text class="word" x="{LEFT + 6}" y="{at - 5:.1f}">{escape(word)}</text>' if word else ""
    return drawn


def _frame(said: str, axes: str, marks: str, height: float = HEIGHT, width: float = WIDTH) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(said)}">'
        f'<g class="axes">{axes}</g>{marks}</svg>'
    )
