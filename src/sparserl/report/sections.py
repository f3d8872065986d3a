"""The parts of one problem, as HTML: its headline, the groups, the plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from sparserl.bench.costs import MILLION
from sparserl.bench.figures import Standing, Summary, groups, paid_after, summary
from sparserl.bench.page_sections import title_of
from sparserl.report import paid, peer_table, plotted, table
from sparserl.report.board import Board, Entry
from sparserl.report.paid import Spent
from sparserl.report.plotted import address
from sparserl.report.words import MODELLED, count, figure, percent, ratio

HEADLINES = ("real, held out", "generated, held out", "all")
"""the groups that may stand at the top, the first of them that has members"""
COSTS = ("tuning s", "products to pay")
HEADS = ("matrices", "speed-up", "95 %", "over CSR", "without pdl", "won / tied / lost", "lowest", *COSTS)
NOTE = (
    "A tie is within 2 %; what failed is lost, and the lowest. “95 %”: of resamples of whole families and collections, "
    "where there are five. “Without pdl”: the operator with dependent launch off, not the best program without it."
)


def section(board: Board, problem: str, beside: Sequence[Board] = ()) -> str:
    """All of one problem. beside: benchmarks whose cost of tuning is set next to this one's."""
    entries, at, modes = board.of(problem), board.problems.index(problem), board.modes_of(problem)
    label = MODELLED if board.modelled else ""
    by_mode = {mode: board.standings(problem, mode) for mode in modes}
    tested = {mode: board.tested(problem, mode) for mode in modes}
    hidden = " hidden" if at else ""  # the script shows one problem at a time
    made = f'<section class="problem" id="problem-{at}" data-mode="{modes[0]}" data-modes="{" ".join(modes)}"{hidden}>'
    made += f"<h2>{escape(title_of(problem))} {label}</h2>"
    made += "".join(hero(board, problem, mode, paid.spent([board, *beside], problem)) for mode in modes)
    made += f'<h3>By group {label}</h3><p class="quiet">{NOTE}</p>'
    made += "".join(group_table(by_mode[mode], mode) for mode in modes)
    made += _peers(board, by_mode, label)
    made += "" if board.modelled else _cost([board, *beside], problem, modes)
    note = "held-out matrices" if any(e.headline for e in entries) else "all matrices"
    made += f'<h3>Plots {label}</h3><p class="quiet">Of {note}. A mark opens its matrix.</p>'
    return f"{made}{plotted.plots(board, tested)}{_tables(entries, modes, at, label)}</section>\n"


def _cost(boards: Sequence[Board], problem: str, modes: Sequence[str]) -> str:
    note = (
        "By one process that is alone on the machine. Medians, but the speed-up is a mean. To pay: products until "
        "tuning has paid for itself."
    )
    sizes = "".join(paid.by_size(boards, problem, mode) for mode in modes)
    return f'<h3>What tuning costs, by size</h3><p class="quiet">{note}</p>{sizes}'


def _peers(board: Board, by_mode: Mapping[str, Sequence[Standing]], label: str) -> str:
    """A table a mode of every peer, over the groups that a headline may count."""
    tables = ""
    for mode, found in by_mode.items():
        named = dict(groups(found))
        shown = [name for name in HEADLINES[:2] if name in named] or [name for name in HEADLINES[2:] if name in named]
        tables += peer_table.table({name: board.among(named[name]) for name in shown}, mode)
    note = peer_table.MODELLED_NOTE if board.modelled else peer_table.NOTE
    return f'<h3>By peer {label}</h3><p class="quiet">{note}</p>{tables}'


def _tables(entries: Sequence[Entry], modes: Sequence[str], at: int, label: str) -> str:
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
        f'<h3>{title} {label}</h3><p class="quiet">{note}</p>{table.matrices(modes, members, f"{name}-{at}")}'
        for title, note, members, name in parts
        if members
    )


# ---- headline


def headline(found: Sequence[Standing]) -> tuple[str, list[Standing]]:
    """The group whose mean stands at the top, and its name."""
    named = dict(groups(found))
    name = next((name for name in HEADLINES if name in named), "")
    return name, named.get(name, [])


def matrices_of(name: str) -> str:
    """'real, held out' → 'real held-out matrices'."""
    return "matrices" if name in ("", "all") else f"{name.partition(',')[0]} held-out matrices"


def hero(board: Board, problem: str, mode: str, spent: Spent | None) -> str:
    """The largest figure of all, a few beside it, and every matrix as a mark. spent: who says what tuning costs."""
    found = board.standings(problem, mode)
    name, members = headline(found)
    top = summary(members)
    label = f" {MODELLED}" if board.modelled else ""
    big = f"{top.speedup.value:.2f}<sup>×</sup>" if top.speedup else "–"
    said = f"Geometric mean over {top.count} {escape(matrices_of(name))} in {mode} mode{_resampled(top)}."
    said += _tuned(board, problem, mode)
    costs = "" if board.modelled or spent is None else _spent(spent, mode)
    return (
        f'<div class="hero in-{mode}"><div><div class="big">{big}</div><p>as fast as {_rival(found)}{label} '
        f'<span class="quiet">{said}</span></p><dl class="stats">{_stats(top, name, found)}</dl>{costs}</div>'
        f"{plotted.by_class(board.tested(problem, mode))}</div>"
    )


def _resampled(top: Summary) -> str:
    known = top.speedup is not None and top.speedup.known
    return f"; 95 % of resamples lie in {top.speedup.spread}" if top.speedup and known else ""


def _tuned(board: Board, problem: str, mode: str) -> str:
    """What the operators were tuned for."""
    tuned_for, others = board.tuned_for(problem, mode), [each for each in board.modes_of(problem) if each != mode]
    if not tuned_for:
        return ""
    if tuned_for != mode:
        return f" The operators are those that were tuned for {tuned_for} mode."
    apart = f", apart from that of {' and '.join(others)} mode" if others else ""
    return f" Each operator was tuned for this mode{apart}."


def _rival(found: Sequence[Standing]) -> str:
    """Whom the speed-up is over."""
    names = {s.baseline for s in found if s.baseline}
    if any(name.startswith("cusparse") for name in names):
        return "the best of cuSPARSE’s variants."
    return f"{escape(' or '.join(sorted(names)))}." if names else "a baseline, where there is one."


def _stats(top: Summary, name: str, found: Sequence[Standing]) -> str:
    pairs, other = [], HEADLINES[1]
    beside = summary(dict(groups(found)).get(other, []))
    if name != other and beside.speedup:
        pairs.append((f"on {beside.count} generated held-out matrices", ratio(beside.speedup.value)))
    if top.over_csr:
        pairs.append(("over CSR alone", ratio(top.over_csr.value)))
    if top.wins is not None:
        failed = f" ({top.failed} failed)" if top.failed else ""
        pairs.append((f"won, {top.tied} tied, {top.lost} lost{failed}", percent(top.wins)))
    if top.worst_matrix:
        pairs.append((f"lowest, on {_link(top.worst_matrix)}", ratio(top.worst) if top.worst else "failed"))
    return _cells(pairs)


def _spent(spent: Spent, mode: str) -> str:
    """What tuning costs, with the set that this was measured on: it may be another than the headline's."""
    here = [s for s in spent.standings if s.mode == mode]
    near = [s for s in here if MILLION[0] <= s.nonzeros <= MILLION[1]]
    seconds, after = summary(near or here).tuning_s, paid_after(here)
    pairs = []
    if seconds is not None:
        size = "about a million nonzeros" if near else "any size"
        pairs.append((f"to tune a matrix of {size}, median of {len(near or here)}", f"{seconds:.1f} s"))
    if after is not None:
        pairs.append((f"products until tuning has paid, median of {len(here)}", count(after)))
    if not pairs:
        return ""
    which = "the matrices of this page" if spent.own else "a set of their own"
    held = "held-out matrices" if all(s.headline for s in here) else "matrices"
    note = f"What tuning costs, on {which}: {len(here)} {held} of every size, {escape(spent.how)}."
    return f'<p class="set">{note}</p><dl class="stats">{_cells(pairs)}</dl>'


def _cells(pairs: Sequence[tuple[str, str]]) -> str:
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
        gain, spread = (f"<b>{s.speedup.value:.2f}×</b>", s.speedup.spread or "–") if s.speedup else ("–", "–")
        lowest = "–" if s.worst is None else ratio(s.worst) if s.worst else '<span class="bad">failed</span>'
        cells = (shown, gain, f'<span class="quiet">{spread}</span>', ratio(s.over_csr.value if s.over_csr else None),
                 ratio(s.without_pdl), f"{s.won} / {s.tied} / {s.lost}", lowest, figure(s.tuning_s),
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
