"""What the benchmark was asked to show and what it shows: PASS, MISS, or OPEN where nothing was measured yet.

    python -m sparserl.bench goals results/NAME [--beside results/NAME/16 …] [--of LIST …] [--into README.md]

The goals are fixed, and so are the matrices that count: those on the lists (`wanted`) that a headline may count, real
ones outside of training and generated ones that neither training nor the work on recipes has seen. A verdict is one 'so
far' until all of them were measured. Means of SpMV in float64 are asked for a tenth less. What tuning costs is in
`costs`, the README's table in `headline`; `bars` has the goals of the reference search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparserl.bench import costs
from sparserl.bench.bars import AGREEMENT_BAR, EVERY_BAR, RELIEF, Bar
from sparserl.bench.costs import Tunings
from sparserl.bench.figures import STAYS, Roof, Standing, roofline, summary
from sparserl.bench.second_opinion import Opinion
from sparserl.bench.tables import BY_KEY, Record, geometric_mean
from sparserl.bench.wanted import Wanted

PROBLEMS = ("spmv float32", "spmv float64", "spmm float32 32 row row", "spmm float32 128 row row")
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
SPMM = ("all", "solver", "speedup", 1.4)
ROOF, BEYOND_ROOF = 0.9, 1.0
OPINIONS = ("chain", "solver")
"""modes in which an independent script times cuSPARSE, on SpMV in float32"""
NAMED = 4
"""outliers by name"""
OVER = {"speedup": "over the best variant", "over_csr": "over CSR"}


def goals(
    found: Sequence[Standing], about: Record, wanted: Wanted, opinions: Iterable[Opinion] = (),
    tunings: Mapping[int, Tunings] | None = None,
) -> list[Bar]:  # fmt: skip
    """Every goal. tunings: by candidates, what was tuned by a process that was alone."""
    said = {(each.problem, each.mode): each for each in opinions}
    made: list[Bar] = []
    for problem in PROBLEMS:
        listed = wanted.of(problem)
        here = [s for s in found if s.problem == problem and s.headline and s.matrix in listed]
        group = _Group(problem, here, wanted)
        if problem.startswith("spmm"):
            made += [group.mean(SPMM), group.every()]
        else:
            made += [*(group.mean(each) for each in SPMV), group.every(), *group.roofs(about)]
    made += costs.bars((tunings or {}).get(costs.CANDIDATES[0], {}), wanted.costed)
    return made + [_opinion(said.get((PROBLEMS[0], mode)), mode, wanted) for mode in OPINIONS]


class _Group:
    """What was measured of one problem, among what was to be."""

    def __init__(self, problem: str, held: Sequence[Standing], wanted: Wanted) -> None:
        self.problem, self._held = problem, held
        self._listed = {name: s for name, s in wanted.of(problem).items() if s.headline}

    def mean(self, asked: tuple[str, str, str, float]) -> Bar:
        key, mode, name, bar = asked
        holds = BY_KEY[key].holds
        group = [s for s in self._held if s.mode == mode and holds(self._listed[s.matrix])]
        relief = RELIEF[self.problem.split()[1]] if self.problem.startswith("spmv") else 1.0
        value = geometric_mean(getattr(s, name) for s in group)
        title = f"{BY_KEY[key].title}, {OVER[name]}, {mode}"
        return Bar(self.problem, title, value, bar * relief, beside=_failed(group, ", in no mean"), count=len(group),
                   expected=sum(map(holds, self._listed.values())))  # fmt: skip

    def every(self) -> Bar:
        """The lowest of all; a matrix without a right operator pulls it to nothing."""
        group = [s for s in self._held if s.mode == "solver"]
        low = summary(group)
        where = f" ({low.worst_matrix})" if low.worst_matrix else ""
        return Bar(self.problem, f"every matrix: the lowest{where}", low.worst, EVERY_BAR, beside=_failed(group),
                   count=len(group), expected=len(self._listed))  # fmt: skip

    def roofs(self, about: Record) -> list[Bar]:
        """How near to what the memory can move as CSR, of what is larger than twice the L2."""
        bandwidth, l2_bytes = about.get("copy_tb_s") or about.get("memory_tb_s"), about.get("l2_bytes") or 0
        solver = [s for s in self._held if s.mode == "solver"]
        above = [r for r in roofline(solver, bandwidth, l2_bytes) if r.above_l2] if bandwidth else []
        listed = [s for s in self._listed.values() if replace(s, problem=self.problem).csr_bytes > STAYS * l2_bytes]
        regular = [r for r in above if r.structure == "regular"]
        fewer = [r for r in above if r.layout_share is not None and r.layout_share < r.csr_share]
        return [
            self._roof("regular", regular, ROOF, len(regular), sum(s.structure == "regular" for s in listed)),
            self._roof("where the layout moves fewer bytes", fewer, BEYOND_ROOF, len(above), len(listed)),
        ]

    def _roof(self, what: str, roofs: Sequence[Roof], bar: float, count: int, expected: int) -> Bar:
        shares = [each.csr_share for each in roofs]
        beside = f"lowest {100 * min(shares):.0f} % of {len(shares)}" if shares else ""
        title = f"above twice the L2, {what}: share of the CSR roofline, solver"
        return Bar(self.problem, title, geometric_mean(shares), bar, percent=True, beside=beside, count=count,
                   expected=expected)  # fmt: skip


def _failed(group: Sequence[Standing], more: str = "") -> str:
    count = sum(s.failed for s in group)
    return f"{count} failed{more}" if count else ""


def _opinion(said: Opinion | None, mode: str, wanted: Wanted) -> Bar:
    """By the median over all variants; beside it, on how many matrices the fastest of them is as near."""
    title, beside = f"second opinion, {mode}: cuSPARSE's times differ by (median)", ""
    apart = said.apart if said else {}
    if said and apart:
        near = 100 * (1 - len(said.outliers) / len(apart))
        beside = f"the fastest variant within 5 % on {near:.0f} % of {len(apart)} matrices"
        named = [f"{name} {100 * apart[name]:.0f} %" for name in said.outliers[:NAMED]]
        more = len(said.outliers) - len(named)
        beside += f", not on {', '.join(named)}" if named else ""
        beside += f" and {more} more" if more else ""
    return Bar(PROBLEMS[0], title, said.difference if said else None, AGREEMENT_BAR, least=False, percent=True,
               beside=beside, count=len(apart), expected=len(wanted.of(PROBLEMS[0])))  # fmt: skip
