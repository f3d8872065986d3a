"""The headline of a benchmark as one SVG file, for a README: every matrix by its speed-up, in a lane a class.

    sparserl report results/NAME --picture results/NAME/picture.svg

It carries its own style and follows the reader's light or dark scheme. Not covered: anything but the first problem and
the first mode of the benchmark, which are what its page begins with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from sparserl.bench.figures import Standing, groups, summary
from sparserl.bench.page_sections import title_of
from sparserl.errors import StoreError
from sparserl.report import plotted
from sparserl.report.board import Board
from sparserl.report.sections import HEADLINES, headline
from sparserl.report.style import STYLE

LINE = 20
HEAD = 3 * LINE + 6
"""pixels above the chart, for three lines of words"""
FONT = "svg text { font-family: system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif }"
PLACE = re.compile(r'<svg([^>]*?) viewBox="0 0 (\d+) (\d+)"([^>]*)>')


def picture(board: Board) -> str:
    """The whole file."""
    problem = board.problems[0]
    mode = board.modes_of(problem)[0]
    tested = board.tested(problem, mode)
    drawn = plotted.class_lanes(tested)
    place = PLACE.search(drawn)
    if not summary(tested).count or place is None:
        raise StoreError("The benchmark has no matrix with an operator and a baseline: there is nothing to draw.")
    before, width, height, after = place.groups()
    how = "modelled" if board.modelled else f"on {board.about.get('device') or 'an unnamed device'}"
    over = "Held out; geometric means over" if any(s.headline for s in tested) else "Geometric means over"
    lines = (
        ("lane", f"{' and '.join(_gains(board.standings(problem, mode)))} matrices"),
        ("mean", f"{over} {'plain CSR' if board.modelled else 'the best of cuSPARSE'}, {how}."),
        ("mean", f"{title_of(problem)}, {mode} mode. Each mark is a matrix."),
    )
    said = "".join(
        f'<text class="{look}" x="16" y="{LINE * at - HEAD}">{escape(words)}</text>'
        for at, (look, words) in enumerate(lines, 1)
    )
    frame = (
        f'<svg xmlns="http://www.w3.org/2000/svg"{before} viewBox="0 -{HEAD} {width} {int(height) + HEAD}"{after}>'
        f"<style>{STYLE}{FONT}</style>{said}"
    )
    return drawn[: place.start()] + frame + drawn[place.end() :] + "\n"


def _gains(found: Sequence[Standing]) -> list[str]:
    """The figure that the page begins with, and that of generated matrices if that is another."""
    named = dict(groups(found))
    first, members = headline(found)
    shown = {first: members, **{name: named[name] for name in HEADLINES[1:2] if name in named}}
    tops = {name.partition(",")[0] if "," in name else "": summary(group) for name, group in shown.items()}
    return [f"{top.speedup.value:.2f}× on {top.count} {kind}".strip() for kind, top in tops.items() if top.speedup]
