"""The headline of a benchmark as one SVG file, for a README: every matrix by its speed-up, in a lane a class.

    sparserl report results/NAME --picture results/NAME/picture.svg

It carries its own style and follows the reader's light or dark scheme. Not covered: anything but the first problem and
the first mode of the benchmark, which are what its page begins with.
"""

from __future__ import annotations

import re
from html import escape

from sparserl.bench.figures import summary
from sparserl.bench.page_sections import title_of
from sparserl.errors import StoreError
from sparserl.report import plotted
from sparserl.report.board import Board
from sparserl.report.style import STYLE

HEAD = 46
"""pixels above the chart, for two lines of words"""
FONT = "svg text { font-family: system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif }"
PLACE = re.compile(r'<svg([^>]*?) viewBox="0 0 (\d+) (\d+)"([^>]*)>')


def picture(board: Board) -> str:
    """The whole file."""
    problem, mode = board.problems[0], board.modes[0]
    found = board.tested(problem, mode)
    top = summary(found)
    gain = f"{top.speedup.value:.2f}×" if top.speedup else "–"
    how = ", modelled" if board.modelled else f" on {board.about.get('device') or 'an unnamed device'}"
    words = (
        f"{gain} over the best baseline, geometric mean of {top.count} matrices",
        f"{title_of(problem)}, {mode} mode{how}; each mark is a matrix",
    )
    drawn = plotted.class_lanes(found)
    place = PLACE.search(drawn)
    if not top.count or place is None:
        raise StoreError("The benchmark has no matrix with an operator and a baseline: there is nothing to draw.")
    before, width, height, after = place.groups()
    said = f'<text class="lane" x="16" y="{20 - HEAD}">{escape(words[0])}</text>'
    said += f'<text class="mean" x="16" y="{40 - HEAD}">{escape(words[1])}</text>'
    frame = (
        f'<svg xmlns="http://www.w3.org/2000/svg"{before} viewBox="0 -{HEAD} {width} {int(height) + HEAD}"{after}>'
        f"<style>{STYLE}{FONT}</style>{said}"
    )
    return drawn[: place.start()] + frame + drawn[place.end() :] + "\n"
