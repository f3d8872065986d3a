"""Which charts a problem has, and what each mark of them says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from urllib.parse import quote

from sparserl.bench import breakeven, figures
from sparserl.bench.figures import OPERATOR, Standing
from sparserl.bench.plots import Point, legend_mark
from sparserl.evaluation import CLASSES
from sparserl.report import charts, peers
from sparserl.report.board import Board, Entry
from sparserl.report.charts import Axis, Steps, look_of
from sparserl.report.words import compact

PEER_LOOKS = {
    "cuSPARSE CSR": "regular", "cuSPARSE COO": "block", "cuSPARSE SELL": "random", "cuSPARSE BSR": "skewed",
    "torch": "chain dash1", "CuPy": "extreme dash1", "plain CSR": "regular",
}  # fmt: skip
SPARE_LOOK, DASHES = "plain", 3
"""of every other program"""
WORST_RATIO = 8.0
"""where a performance profile ends"""
Measure = Callable[[Standing], float | None]


def address(matrix: str) -> str:
    """What opens a matrix: '#' and its name."""
    return "#" + quote(matrix, safe="")


def plots(board: Board, by_mode: dict[str, list[Standing]]) -> str:
    """All plots of a problem, for every mode."""
    made = ""
    for mode, found in by_mode.items():
        boxes = [_profile(board.among(found), mode), _over_size(found), _over_skew(found)]
        boxes += [_roofline(board, found), _dependent(found), _paid(found)]
        made += "".join(box.replace("<figure", f'<figure class="in-{mode}"', 1) for box in boxes if box)
    return f'{class_legend(next(iter(by_mode.values()), []))}<div class="plots">{made}</div>'


def class_lanes(found: Sequence[Standing]) -> str:
    """Every matrix by its speed-up, in a lane a class: the drawing alone."""
    lanes = {name: [s for s in found if look_of(s.structure) == name] for name in CLASSES}
    points = {name: _points(members, lambda s: 1.0, over=lambda s: s.speedup) for name, members in lanes.items()}
    axis = Axis.around("speed-up over the baseline", [p.x for each in points.values() for p in each], "×", {1.0: ""})
    return charts.lanes(points, axis, "Speed-ups by structure class")


def by_class(found: Sequence[Standing]) -> str:
    """The same in its box, with a legend."""
    kinds = f"<span>{legend_mark('small', 'small real')}filled: real</span>"
    kinds += f"<span>{legend_mark('small', 'small generated')}hollow: generated</span>"
    note = "each mark is a matrix, the tick is the geometric mean of its class"
    return _box("Speed-up by structure", note, f'{class_lanes(found)}<p class="legend">{kinds}</p>')


def class_legend(found: Sequence[Standing]) -> str:
    """A mark and a word for every class there is."""
    there = [name for name in CLASSES if any(look_of(s.structure) == name for s in found)]
    marks = "".join(f"<span>{legend_mark(name, f'{name} real')}{name}</span>" for name in there)
    return f'<p class="legend">{marks}<span>filled: real</span><span>hollow: generated</span></p>'


def _points(found: Sequence[Standing], value: Measure, over: Measure = lambda s: s.nonzeros) -> list[Point]:
    """Marks of those that have both numbers; what they say is the speed-up, unless it is another figure on y."""
    made = []
    for s in found:
        x, y = over(s), value(s)
        if x and y and math.isfinite(y):
            look = look_of(s.structure)
            gain = f"{s.speedup:.2f}×" if s.speedup else "–"
            words = f"{s.matrix}: {gain} · {s.structure}, {compact(s.nonzeros)} nonzeros"
            kind = "real" if s.origin == "real" else "generated"
            made.append(Point(x, y, f"{look} {kind}", words, look, address(s.matrix)[1:]))
    return made


def _scatter(title: str, note: str, points: Sequence[Point], labels: tuple[str, str], unit: str = "×") -> str:
    """Over two axes that fit; a line at 1 where y is a ratio."""
    x = Axis.around(labels[0], [p.x for p in points])
    y = Axis.around(labels[1], [p.y for p in points], unit, {1.0: ""} if unit else {})
    return _box(title, note, charts.scatter(points, x, y, title)) if points else ""


def _over_size(found: Sequence[Standing]) -> str:
    points = _points(found, lambda s: s.speedup)
    return _scatter("Speed-up over size", "against the best variant of the baseline", points, ("nonzeros", "speed-up"))


def _over_skew(found: Sequence[Standing]) -> str:
    points = _points(found, lambda s: s.speedup, over=lambda s: s.skew)
    note = "from even rows on the left to one giant row on the right"
    return _scatter("Speed-up over skew", note, points, ("longest row over the mean row", "speed-up"))


def _dependent(found: Sequence[Standing]) -> str:
    points = _points(found, lambda s: s.pdl_gain)
    note = "time without it over time with it, of the operators that use it"
    return _scatter("Gain of dependent launch", note, points, ("nonzeros", "gain"))


def _paid(found: Sequence[Standing]) -> str:
    found = [s for s in found if s.source != "modelled"]  # modelled times can't pay for real seconds
    points = _points(found, breakeven.of)
    never = sum(breakeven.of(s) == math.inf for s in found)
    note = "products until tuning has paid for itself" + (f"; on {never} of {len(found)} never" if never else "")
    return _scatter("Break-even", note, points, ("nonzeros", "products"), "")


def _profile(entries: Sequence[Entry], mode: str) -> str:
    found = peers.profile(entries, mode)
    near = {name: steps for name, steps in found.curves.items() if steps and steps[0][0] <= WORST_RATIO}
    others = [name for name in near if name not in PEER_LOOKS and name != OPERATOR]
    looks = {OPERATOR: "ours-line", **PEER_LOOKS}
    looks |= {name: f"{SPARE_LOOK} dash{1 + at % DASHES}" for at, name in enumerate(others)}
    curves = [Steps(name, looks[name], steps) for name, steps in near.items()]
    drawn = charts.profile(curves, Axis("time over the best time", 1.0, WORST_RATIO, unit="×"), "Performance profile")
    legend = "".join(f'<span><span class="rule {c.look}"></span>{escape(c.label)}</span>' for c in curves)
    note = "on how many matrices a side is within a factor of the fastest; higher and further left is better"
    far = [name for name in found.curves if name not in near]
    note += f"; off the scale: {', '.join(far)}" if far else ""
    left_out = ", ".join(f"{name} ({why})" if why else name for name, why in found.left_out.items())
    note += f"; left out: {left_out}" if left_out else ""
    return _box("Performance profile", note, f'{drawn}<p class="legend">{legend}</p>') if curves else ""


def _roofline(board: Board, found: Sequence[Standing]) -> str:
    """Bytes over time as a share of the bandwidth, twice: as CSR would move them, and as the chosen layout does."""
    bandwidth = board.about.get("copy_tb_s") or board.about.get("memory_tb_s")
    if not bandwidth:
        return ""
    pairs = []
    for roof in figures.roofline(found, bandwidth, board.about.get("l2_bytes") or 0):
        if roof.layout_share is None or not roof.nonzeros:
            continue
        look, faint = look_of(roof.structure), "" if roof.above_l2 else " faint"
        words = (
            f"{roof.matrix}: {100 * roof.csr_share:.0f} % by CSR’s bytes, {100 * roof.layout_share:.0f} % by its own"
        )
        place = (words, look, address(roof.matrix)[1:])
        pairs.append((Point(roof.nonzeros, 100 * roof.csr_share, f"{look} hollow{faint}", *place),
                      Point(roof.nonzeros, 100 * roof.layout_share, f"{look} real{faint}", *place)))  # fmt: skip
    points = [point for pair in pairs for point in pair]
    x = Axis.around("nonzeros", [p.x for p in points])
    moved = sorted({s.copy_tb_s or bandwidth for s in found})  # each run measured its own
    line = "–".join(f"{each:g}" for each in dict.fromkeys((moved[0], moved[-1]))) if moved else ""
    y = Axis.around("share of the bandwidth", [p.y for p in points], " %", {100.0: f"{line} TB/s"})
    note = "hollow: CSR’s bytes over the time; full: those of the chosen layout; faint: may stay in the L2"
    return _box("Roofline", note, charts.scatter(points, x, y, "Roofline", pairs)) if points else ""


def _box(title: str, note: str, drawn: str) -> str:
    return f"<figure><figcaption>{escape(title)}<small>{escape(note)}</small></figcaption>{drawn}</figure>"
