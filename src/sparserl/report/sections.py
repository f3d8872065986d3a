"""The parts of one problem, as HTML: its headline, the groups, the plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from sparserl.bench.figures import Standing, Summary, groups, summary
from sparserl.bench.page_sections import title_of
from sparserl.report import paid, plotted, table
from sparserl.report.board import Board, Entry
from sparserl.report.plotted import address
from sparserl.report.words import MODELLED, count, figure, percent, ratio

HEADLINES = ("real, held out", "generated, held out", "all")
"""the groups that may stand at the top, the first of them that has members"""
COSTS = ("tuning s", "products to pay")
HEADS = ("matrices", "speed-up", "95 %", "over CSR", "without pdl", "won", "lowest", *COSTS)


def section(board: Board, problem: str, beside: Sequence[Board] = ()) -> str:
    """All of one problem. beside: benchmarks whose cost of tuning is set next to this one's."""
    entries, at = board.of(problem), board.problems.index(problem)
    label = MODELLED if board.modelled else ""
    costs = paid.alone([board, *beside], problem)
    by_mode = {mode: board.standings(problem, mode) for mode in board.modes}
    tested = {mode: board.tested(problem, mode) for mode in board.modes}
    made = f'<section class="problem" id="problem-{at}"{" hidden" if at else ""}>'  # the script shows one at a time
    made += f"<h2>{escape(title_of(problem))} {label}</h2>"
    made += "".join(hero(by_mode[mode], tested[mode], mode, board.modelled, costs) for mode in board.modes)
    made += f"<h3>By group {label}</h3>" + "".join(group_table(by_mode[mode], mode) for mode in board.modes)
    made += "" if board.modelled else _cost([board, *beside], problem, board.modes)
    note = "held-out matrices" if any(e.headline for e in entries) else "all matrices"
    made += f'<h3>Plots {label}</h3><p class="quiet">Of {note}. A mark opens its matrix.</p>'
    return f"{made}{plotted.plots(board, tested)}{_tables(board, entries, at, label)}</section>\n"


def _cost(boards: Sequence[Board], problem: str, modes: Sequence[str]) -> str:
    note = (
        "By one process that is alone on the machine. Medians, but the speed-up is a mean. To pay: products until "
        "tuning has paid for itself."
    )
    sizes = "".join(paid.by_size(boards, problem, mode) for mode in modes)
    return f'<h3>What tuning costs, by size</h3><p class="quiet">{note}</p>{sizes}'


def _tables(board: Board, entries: Sequence[Entry], at: int, label: str) -> str:
    """A table of the matrices a headline may count, one of those that training has seen, one of the rest."""
    rest = [e for e in entries if not e.headline and not e.trained]
    held = [e for e in entries if e.headline]
    parts = [
        ("Matrices" if not held else "Held-out matrices", "Choose one to see its pattern, every candidate and the "
         "kernel that won.", held or rest, "held"),
        ("Other matrices", "Neither trained on nor unknown to the work on recipes; no headline counts them.",
         rest if held else [], "other"),
        ("Trained on", "Training or a choice has seen these; no headline counts them.",
         [e for e in entries if e.trained], "trained"),
    ]  # fmt: skip
    return "".join(
        f'<h3>{title} {label}</h3><p class="quiet">{note}</p>{table.matrices(board, members, f"{name}-{at}")}'
        for title, note, members, name in parts
        if members
    )


# ---- headline


def hero(
    found: Sequence[Standing], tested: Sequence[Standing], mode: str, modelled: bool, costs: Sequence[Standing]
) -> str:
    """The largest figure of all, a few beside it, and every matrix as a mark. costs: who says what tuning costs, where
    those found don't."""
    named = dict(groups(found))
    name = next((name for name in HEADLINES if name in named), "")
    top = summary(named.get(name, []))
    if top.tuning_s is None and (others := [each for each in costs if each.mode == mode]):
        other = summary(others)
        top = replace(top, tuning_s=other.tuning_s, break_even=other.break_even)
    spread = f"; 95 % of resamples lie in {top.speedup.low:.2f}–{top.speedup.high:.2f}" if top.speedup else ""
    label = f" {MODELLED}" if modelled else ""
    big = f"{top.speedup.value:.2f}<sup>×</sup>" if top.speedup else "–"
    what = {"all": "matrices"}.get(name, f"{name.partition(',')[0]} held-out matrices")
    one = what.removesuffix("s") if top.count == 1 and not what.endswith("matrices") else what
    return (
        f'<div class="hero in-{mode}"><div><div class="big">{big}</div><p>as fast as {_rival(found)}{label} '
        f'<span class="quiet">Geometric mean over {top.count} {escape(one)} in {mode} mode{spread}.</span></p>'
        f'<dl class="stats">{_stats(top, name, named)}</dl></div>{plotted.by_class(tested)}</div>'
    )


def _rival(found: Sequence[Standing]) -> str:
    """Whom the speed-up is over."""
    names = {s.baseline for s in found if s.baseline}
    if any(name.startswith("cusparse") for name in names):
        return "the best of cuSPARSE’s variants."
    return f"{escape(' or '.join(sorted(names)))}." if names else "a baseline, where there is one."


def _stats(top: Summary, name: str, named: dict[str, list[Standing]]) -> str:
    pairs = []
    other = HEADLINES[1]
    if name != other and other in named and (beside := summary(named[other])).speedup:
        pairs.append((f"on {beside.count} generated held-out matrices", ratio(beside.speedup.value)))
    if top.over_csr:
        pairs.append(("over CSR alone", ratio(top.over_csr.value)))
    if top.wins is not None:
        failed = f", {top.failed} failed" if top.failed else ""
        pairs.append((f"of matrices won{failed}", percent(top.wins)))
    if top.worst_matrix:
        pairs.append((f"lowest, on {_link(top.worst_matrix)}", ratio(top.worst) if top.worst else "failed"))
    if top.tuning_s is not None:
        pairs.append(("to tune a matrix, at the median", f"{top.tuning_s:.1f} s"))
    if top.break_even is not None:
        pairs.append(("products until tuning has paid, at the median", count(top.break_even)))
    return "".join(f"<div><dt>{words}</dt><dd>{value}</dd></div>" for words, value in pairs)


def _link(matrix: str) -> str:
    return f'<a href="{address(matrix)}">{escape(matrix)}</a>'


def group_table(found: Sequence[Standing], mode: str) -> str:
    """Geometric means by group."""
    heads = HEADS if any(s.tuning_s is not None for s in found) else HEADS[: -len(COSTS)]
    top = "".join(f'<th scope="col" class="number">{name}</th>' for name in heads)
    rows = ""
    for name, members in groups(found):
        s = summary(members)
        shown = f"{s.count}" + (f' <span class="bad">+{s.failed} failed</span>' if s.failed else "")
        gain, spread = (
            (f"<b>{s.speedup.value:.2f}×</b>", f"{s.speedup.low:.2f}–{s.speedup.high:.2f}") if s.speedup else ("–", "")
        )
        cells = (shown, gain, f'<span class="quiet">{spread}</span>', ratio(s.over_csr.value if s.over_csr else None),
                 ratio(s.without_pdl), percent(s.wins), ratio(s.worst) if s.worst else "–", figure(s.tuning_s),
                 count(s.break_even))  # fmt: skip
        row = "".join(f'<td class="number">{cell}</td>' for cell in cells[: len(heads)])
        where = _link(s.worst_matrix) if s.worst_matrix else ""
        look = ' class="headline"' if name in HEADLINES[:2] else ""
        rows += f'<tr{look}><th scope="row">{escape(name)}</th>{row}<td class="quiet">{where}</td></tr>'
    return (
        f'<div class="scroll in-{mode}"><table class="groups"><caption class="sr">Groups in {mode} mode</caption>'
        f'<thead><tr><th scope="col">group</th>{top}<th scope="col">lowest on</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
