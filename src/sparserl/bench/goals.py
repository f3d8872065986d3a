"""What the benchmark was asked to show and what it shows, PASS or MISS; and its table for the README.

    python -m sparserl.bench goals results/NAME [--beside results/NAME-1 …] [--into README.md]

Only matrices that a headline may count are in a goal: real ones outside of training, generated ones that neither
training nor the work on recipes has seen. SpMV in float64 is asked for a tenth less. What tuning costs is taken from
the benchmarks beside, in which one process was alone on the machine. `bars` has the goals of the reference search.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from sparserl.bench import breakeven
from sparserl.bench.bars import AGREEMENT_BAR, EVERY_BAR, RELIEF, Bar
from sparserl.bench.digest import BEGIN, END, figure
from sparserl.bench.figures import Standing, groups, roofline, summary
from sparserl.bench.second_opinion import Opinion
from sparserl.bench.tables import BY_KEY, GROUPS, Record, geometric_mean, problems

# key of the group, mode, figure, what is asked in float32
SPMV = (
    ("real", "solver", "speedup", 1.55),
    ("real", "chain", "speedup", 1.7),
    ("real", "solver", "over_csr", 2.4),
    ("small", "solver", "speedup", 1.6),
    ("large regular", "solver", "speedup", 1.35),
    ("random", "solver", "speedup", 1.05),
    ("skewed", "solver", "speedup", 1.1),
)
SPMM = 1.4
ROOF, BEYOND_ROOF = 0.9, 1.0
TUNING_S, BREAK_EVEN = 2.0, 1e6
MILLION = (5e5, 2e6)
"""nonzeros of a matrix that counts as one of a million"""
CANDIDATES = 16
OVER = {"speedup": "over the best variant", "over_csr": "over CSR"}


def goals(
    found: Sequence[Standing], about: Record, opinions: Iterable[Opinion] = (),
    costs: Mapping[int, Sequence[Standing]] | None = None,
) -> list[Bar]:  # fmt: skip
    """Every goal there are records for. costs: by candidates, what was tuned by a process that was alone."""
    held = [s for s in found if s.headline]
    made: list[Bar] = []
    for problem in problems(held):  # type: ignore[arg-type]  # it reads `problem` alone
        here = [s for s in held if s.problem == problem]
        if problem.startswith("spmm"):
            made.append(_mean(here, problem, ("all", "solver", "speedup", SPMM)))
        else:
            asked = RELIEF.get(problem.split()[1], 1.0)
            made += [_mean(here, problem, each, asked) for each in SPMV]
        made += [_every(here, problem), *_roofs(here, problem, about)]
    return made + _cost((costs or {}).get(CANDIDATES, ())) + [
        Bar(o.problem, f"second opinion, {o.mode}: cuSPARSE's times differ by (median)", o.difference, AGREEMENT_BAR,
            least=False, percent=True, count=o.matrices, expected=o.matrices,
            beside="" if o.agreeing is None else f"{100 * o.agreeing:.0f} % of {o.variants} within 5 %")
        for o in opinions
    ]  # fmt: skip


def _mean(
    held: Sequence[Standing], problem: str, wanted: tuple[str, str, str, float], relief: float = 1.0
) -> Bar:
    key, mode, name, bar = wanted
    group = [s for s in held if s.mode == mode and BY_KEY[key].holds(s)]
    values = [value for s in group if (value := getattr(s, name)) is not None]
    title = f"{BY_KEY[key].title}, {OVER[name]}, {mode}"
    return Bar(problem, title, geometric_mean(values), bar * relief, count=len(values), expected=len(group))


def _every(held: Sequence[Standing], problem: str) -> Bar:
    """The lowest of all; a matrix without a right operator pulls it to nothing."""
    group = [s for s in held if s.mode == "solver"]
    low = summary(group)
    asked = EVERY_BAR * (RELIEF.get(problem.split()[1], 1.0) if problem.startswith("spmv") else 1.0)
    title = f"every matrix: the lowest ({low.worst_matrix})" if low.worst_matrix else "every matrix: the lowest"
    return Bar(problem, title, low.worst, asked, count=low.count, expected=len(group))


def _roofs(held: Sequence[Standing], problem: str, about: Record) -> list[Bar]:
    """How near to what the memory can move as CSR, of what is larger than the L2."""
    bandwidth = about.get("copy_tb_s") or about.get("memory_tb_s")
    if not bandwidth or not problem.startswith("spmv"):
        return []
    solver = [s for s in held if s.mode == "solver"]
    above = [r for r in roofline(solver, bandwidth, about.get("l2_bytes") or 0) if r.above_l2]
    regular = [r.csr_share for r in above if r.structure == "regular"]
    fewer = [r.csr_share for r in above if r.layout_share is not None and r.layout_share < r.csr_share]
    parts = ((regular, "regular", ROOF), (fewer, "where the layout moves fewer bytes", BEYOND_ROOF))
    return [
        Bar(problem, f"above the L2, {what}: share of the CSR roofline, solver", geometric_mean(shares), bar,
            percent=True, beside=f"lowest {100 * min(shares):.0f} %", count=len(shares), expected=len(shares))
        for shares, what, bar in parts
        if shares
    ]  # fmt: skip


def _cost(alone: Sequence[Standing]) -> list[Bar]:
    """Seconds of a tuning and what they are worth, in solver mode."""
    made = []
    for problem in problems(alone):  # type: ignore[arg-type]
        here = [s for s in alone if s.problem == problem and s.mode == "solver" and s.tuning_s is not None]
        seconds = [s.tuning_s for s in here if MILLION[0] <= s.nonzeros <= MILLION[1] and s.tuning_s is not None]
        if seconds:
            worst = f"at most {max(seconds):.1f} s"
            title, middle = "a tune of a million nonzeros, seconds (median)", statistics.median(seconds)
            made.append(Bar(problem, title, middle, TUNING_S, least=False, beside=worst, count=len(seconds),
                            expected=len(seconds)))  # fmt: skip
        paid = breakeven.median(s for s in here if s.source != "modelled")
        if paid is not None:
            made.append(Bar(problem, "products until tuning has paid (median)", paid, BREAK_EVEN, least=False,
                            count=len(here), expected=len(here)))  # fmt: skip
    return made


def markdown(found: Sequence[Standing], about: Record) -> str:
    """Groups of held-out matrices down, problems across, between the markers; what training saw comes last."""
    names = problems(found)  # type: ignore[arg-type]
    head = ["matrices", "count"]
    for first, problem in enumerate(names):
        chain = any(s.problem == problem and s.mode == "chain" for s in found)
        head += [problem.removesuffix(" row row")] + ["chain"] * chain + ["over CSR", "won", "lowest"] * (not first)
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for title, members in _rows(found):
        count, cells = 0, []
        for first, problem in enumerate(names):
            here = [s for s in members if s.problem == problem]
            solver = summary([s for s in here if s.mode == "solver"])
            cells.append(figure(solver.speedup.value if solver.speedup else None))
            if any(s.problem == problem and s.mode == "chain" for s in found):
                chained = summary([s for s in here if s.mode == "chain"]).speedup
                cells.append(figure(chained.value if chained else None))
            if not first:
                count = solver.count + solver.failed
                won = "–" if solver.wins is None else f"{100 * solver.wins:.0f} %"
                cells += [figure(solver.over_csr.value if solver.over_csr else None), won, figure(solver.worst)]
        lines.append("| " + " | ".join([title, str(count), *cells]) + " |")
    said = (
        f"Speed-up over the best cuSPARSE variant in solver mode, geometric means, {about.get('policy')} with "
        f"{about.get('candidates')} candidates on {about.get('device')}:"
    )
    return "\n".join([BEGIN, said, "", *lines, END])


def _rows(found: Sequence[Standing]) -> list[tuple[str, list[Standing]]]:
    held = [s for s in found if s.headline]
    rows = [(group.title, [s for s in held if group.holds(s)]) for group in GROUPS]
    solver = [s for s in found if s.mode == "solver"]
    trained = {id(s) for title, members in groups(solver) if title == "trained on" for s in members}
    seen = {s.matrix for s in solver if id(s) in trained}
    rows.append(("trained on", [s for s in found if s.matrix in seen]))
    return [(title, members) for title, members in rows if members]
