"""What tuning costs and when it has paid, by the size of the matrix; a column a benchmark, such as 16 and 1 candidates.

Not covered: which matrices a benchmark has. Those that stand beside another should have the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sparserl.bench import breakeven
from sparserl.bench.figures import Standing, paid_after
from sparserl.bench.tables import geometric_mean
from sparserl.report.board import Board
from sparserl.report.words import count, figure, ratio

HEADS = ("matrices", "speed-up", "tuning s", "to pay")


def by_size(boards: Sequence[Board], problem: str, mode: str) -> str:
    """Medians by decade of nonzeros, of every board that has the problem in this mode; '' of none."""
    known = {id(board): board.standings(problem, mode) for board in boards}
    told = [board for board in boards if any(s.tuning_s is not None for s in known[id(board)])]
    named = [(label(board), known[id(board)]) for board in told]
    sized = [(name, breakeven.by_size(found)) for name, found in named if found]
    if not sized:
        return ""
    over = "".join(f'<th scope="colgroup" colspan="{len(HEADS)}">{escape(name)}</th>' for name, _ in sized)
    top = "".join(f'<th scope="col" class="number">{head}</th>' for head in HEADS) * len(sized)
    rows = ""
    for decade in sorted({size for _, sizes in sized for size in sizes}):
        cells = "".join(_cells(sizes.get(decade, ())) for _, sizes in sized)
        rows += f'<tr><th scope="row">10<sup>{decade}</sup> to 10<sup>{decade + 1}</sup></th>{cells}</tr>'
    return (
        f'<div class="scroll in-{mode}"><table class="groups"><caption class="sr">By size in {mode} mode</caption>'
        f'<thead><tr><td></td>{over}</tr><tr><th scope="col">nonzeros</th>{top}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


@dataclass(frozen=True)
class Spent:
    """Who says what tuning costs: one process, alone on its machine."""

    standings: Sequence[Standing]
    own: bool
    """whether they are the page's own matrices, not those of a benchmark beside it"""
    how: str
    """how many programs a tuning tried, and in what process"""


def spent(boards: Sequence[Board], problem: str) -> Spent | None:
    """Of the first of these benchmarks that knows what tuning costs, with as many candidates as the first of all; where
    several processes shared a machine none is known."""
    candidates = boards[0].about.get("candidates")
    for board in boards:
        if board.about.get("candidates") == candidates:
            found = [s for mode in board.modes for s in board.standings(problem, mode)]
            if any(s.tuning_s is not None for s in found):
                warm = "a process that had tuned before" if board.about.get("warm_up") else "one process"
                tried = f"{candidates} candidates each, " if candidates else ""
                return Spent(found, board is boards[0], f"{tried}one after the other in {warm}")
    return None


def label(board: Board) -> str:
    """'nano, 16 candidates'."""
    tried = board.about.get("candidates")
    words = [str(board.about.get("policy") or "")]
    words.append(f"{tried} candidate{'' if tried == 1 else 's'}" if tried else "")
    return ", ".join(word for word in words if word) or "this benchmark"


def _cells(found: Sequence[Standing]) -> str:
    seconds = [s.tuning_s for s in found if s.tuning_s is not None]
    shown = (
        str(len(found)) if found else "–",
        ratio(geometric_mean(s.speedup for s in found)),
        figure(statistics.median(seconds) if seconds else None),
        count(paid_after(found)),
    )
    return "".join(f'<td class="number">{each}</td>' for each in shown)
