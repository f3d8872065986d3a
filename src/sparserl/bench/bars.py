"""The bars: what the reference search was asked to reach, what it reached, PASS or MISS.

Bars of SpMV are judged in solver mode except where they name the chain; the other mode's figure stands beside it. In
float64 each is a tenth lower. A matrix without one right program counts as a speed-up of nothing in "every matrix".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sparserl.bench import regret
from sparserl.bench.regret import Regret
from sparserl.bench.second_opinion import Opinion
from sparserl.bench.tables import BY_KEY, Placed, Row, Summary, problems, summary

Verdict = Literal["PASS", "MISS", "OPEN"]
RELIEF = {"float32": 1.0, "float64": 0.9}
"""what a bar of SpMV is multiplied by, by type"""
SPMM_BAR = 1.3
REGRET_BAR = 0.01
MANY = 1000
"""from here on decimals say nothing"""
AGREEMENT_BAR, OPINION_LOWEST, OPINION_MEAN = 0.05, 0.98, 1.10


@dataclass(frozen=True)
class Bar:
    """One bar. `least` says which side passes; `beside` is the same figure in the mode that is not judged."""

    problem: str
    title: str
    value: float | None
    bar: float
    least: bool = True
    percent: bool = False
    beside: str = ""
    count: int = 0
    expected: int = 0

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "OPEN"
        return "PASS" if (self.value >= self.bar if self.least else self.value <= self.bar) else "MISS"

    @property
    def complete(self) -> bool:
        """All matrices of the evaluation list are in it."""
        return self.count >= self.expected

    @property
    def said(self) -> str:
        """The verdict in words: 'PASS so far' while matrices are missing."""
        return self.verdict if self.complete or self.value is None else f"{self.verdict} so far"

    def shown(self, value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:.2f} %" if self.percent else f"{value:.2f}" if value < MANY else f"{value:,.0f}"

    @property
    def asked(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.shown(self.bar)}"


# key of the group, title, mode, figure, bar in float32
SPMV_BARS = (
    ("real", "real matrices, over the best cuSPARSE variant, solver", "solver", "speedup", 1.5),
    ("real", "real matrices, over the best cuSPARSE variant, chain", "chain", "speedup", 1.65),
    ("real", "real matrices, over cuSPARSE CSR", "solver", "over_csr", 2.3),
    ("small", "generated, small", "solver", "speedup", 1.6),
    ("large regular", "generated, regular and block above the L2", "solver", "speedup", 1.35),
    ("random", "generated, random", "solver", "speedup", 1.05),
    ("skewed", "generated, skewed", "solver", "speedup", 1.1),
)
EVERY_BAR = 0.98


def bars(
    found: Sequence[Row], regrets: Sequence[Regret] = (), opinions: Iterable[Opinion] = (),
    expected: Sequence[Placed] = (),
) -> list[Bar]:  # fmt: skip
    """Every bar there is a problem for, in the order of the problems; then regret and the second opinion."""
    made: list[Bar] = []
    for problem in problems(found):
        of_problem = [r for r in found if r.problem == problem]
        dtype = problem.split()[1]
        if problem.startswith("spmm"):
            made.append(_mean(of_problem, problem, ("all", "all matrices", "solver", "speedup", SPMM_BAR), expected))
        elif dtype in RELIEF:
            made += [_mean(of_problem, problem, each, expected) for each in SPMV_BARS]
            made.append(_every(of_problem, problem, expected))
    return made + _regret_bars(regrets, sum(bool(getattr(c, "full_search", False)) for c in expected)) + [
        bar for opinion in opinions for bar in _opinion_bars(opinion, len(expected))
    ]  # fmt: skip


def _mean(
    found: Sequence[Row], problem: str, wanted: tuple[str, str, str, str, float], expected: Sequence[Placed]
) -> Bar:
    key, title, mode, figure, bar = wanted
    here = summary(found, BY_KEY[key], mode, expected)
    other = "chain" if mode == "solver" else "solver"
    there = summary(found, BY_KEY[key], other, expected)
    beside = _figure(there, figure)
    return Bar(
        problem=problem,
        title=title,
        value=_figure(here, figure),
        bar=_relieved(problem, bar),
        beside=f"{other} {beside:.2f}" if beside is not None else "",
        count=here.count,
        expected=here.expected,
    )


def _every(found: Sequence[Row], problem: str, expected: Sequence[Placed]) -> Bar:
    """The lowest of all, in solver mode; a matrix without a right program pulls it to nothing."""
    here, there = (summary(found, BY_KEY["all"], mode, expected) for mode in ("solver", "chain"))
    beaten = [r.matrix for r in found if r.baselines and "solver" not in r.standings]
    where = f"no right program on {', '.join(beaten)}" if beaten else here.lowest_matrix
    return Bar(
        problem=problem,
        title=f"every matrix: the lowest ({where})" if where else "every matrix: the lowest",
        value=0.0 if beaten else here.lowest,
        bar=_relieved(problem, EVERY_BAR),
        beside=f"chain {there.lowest:.2f}" if there.lowest is not None else "",
        count=here.count,
        expected=here.expected,
    )


def _relieved(problem: str, bar: float) -> float:
    return bar if problem.startswith("spmm") else bar * RELIEF[problem.split()[1]]


def _figure(of: Summary, name: str) -> float | None:
    value = getattr(of, name)
    assert value is None or isinstance(value, float)
    return value


def _regret_bars(regrets: Sequence[Regret], expected: int) -> list[Bar]:
    made = []
    for problem in sorted({r.problem for r in regrets}, key=lambda name: (not name.startswith("spmv"), name)):
        for mode in ("solver", "chain"):
            here = [r for r in regrets if r.problem == problem and r.mode == mode]
            worst = max(here, key=lambda r: r.value, default=None)
            first = max((r.first for r in here), default=0)
            made.append(
                Bar(
                    problem=problem,
                    title=f"regret of halving from {first} programs against the full search, mean, {mode}",
                    value=regret.mean(here),
                    bar=REGRET_BAR,
                    least=False,
                    percent=True,
                    beside=f"worst {100 * worst.value:.2f} % on {worst.matrix}" if worst else "",
                    count=len(here),
                    expected=expected,
                )
            )
    return made


def _opinion_bars(opinion: Opinion, expected: int) -> list[Bar]:
    problem, mode, count = opinion.problem, opinion.mode, opinion.matrices
    share = "" if opinion.agreeing is None else f"{100 * opinion.agreeing:.0f} % of {opinion.variants} within 5 %"
    over = "" if opinion.mean_over_kernels is None else f"{opinion.mean_over_kernels:.2f} over its kernels alone"
    return [
        Bar(problem, f"second opinion, {mode}: cuSPARSE's times differ by (median)", opinion.difference, AGREEMENT_BAR,
            least=False, percent=True, beside=share, count=count, expected=expected),
        Bar(problem, f"second opinion, {mode}: over its best, the lowest ({opinion.lowest_matrix})", opinion.lowest,
            OPINION_LOWEST, count=count, expected=expected),
        Bar(problem, f"second opinion, {mode}: over its best, geometric mean", opinion.mean, OPINION_MEAN,
            beside=over, count=count, expected=expected),
    ]  # fmt: skip
