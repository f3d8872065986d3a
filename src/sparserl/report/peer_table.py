"""The table of peers: the operator's speed-up over each of them, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from sparserl.bench.tables import LOST
from sparserl.report.board import Entry
from sparserl.report.peers import Tally, tallies
from sparserl.report.plotted import address
from sparserl.report.words import ratio

HEADS = ("matrices", "ours over it", "won / tied / lost", "lowest")
NOTE = (
    "The operator’s speed-up over each peer by itself, cuSPARSE’s formats each by its best variant: geometric means "
    "over the matrices on which both were right. In CUDA graphs: the operator was timed once more, beside that peer."
)
MODELLED_NOTE = "The operator’s speed-up over the plain program that the simulator counts beside it."


def table(by_group: Mapping[str, Sequence[Entry]], mode: str) -> str:
    """A row a peer, a few columns a group; '' where there is no peer."""
    found = {name: tallies(entries, mode) for name, entries in by_group.items()}
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    if not names:
        return ""
    over = "".join(f'<th scope="colgroup" colspan="{len(HEADS)}">{escape(name)}</th>' for name in found)
    top = "".join(f'<th scope="col" class="number">{head}</th>' for head in HEADS) * len(found)
    rows = ""
    for name in names:
        of_groups = [each.get(name) for each in found.values()]
        hows = dict.fromkeys(how for tally in of_groups if tally for how in tally.hows)
        cells = "".join(_cells(tally) for tally in of_groups)
        rows += f'<tr><th scope="row">{escape(name)}<small>{escape(", ".join(hows))}</small></th>{cells}</tr>'
    return (
        f'<div class="scroll in-{mode}"><table class="groups"><caption class="sr">Peers in {mode} mode</caption>'
        f'<thead><tr><td></td>{over}</tr><tr><th scope="col">peer</th>{top}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(tally: Tally | None) -> str:
    if tally is None:
        return '<td class="number">–</td>' * len(HEADS)
    tried = f"{tally.count}"
    tried += f' <span class="bad">+{tally.failed} failed</span>' if tally.failed else ""
    tried += f' <span class="quiet">+{tally.unchecked} not verified</span>' if tally.unchecked else ""
    mean = f"<b{_look(tally.mean)}>{ratio(tally.mean)}</b>" if tally.mean else "–"
    worst = "–"
    if tally.worst is not None:
        words = ratio(tally.worst) if tally.worst else "failed"
        worst = f'<a{_look(tally.worst)} href="{address(tally.worst_matrix)}">{words}</a>'
    won = f"{tally.won} / {tally.tied} / {tally.lost}" if tally.worst is not None else "–"
    shown = (tried, mean, won, worst)
    return "".join(f'<td class="number">{each}</td>' for each in shown)


def _look(gain: float) -> str:
    return ' class="bad"' if gain < LOST else ""
