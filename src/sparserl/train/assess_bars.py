"""The bars that a policy is held against, from a report: PASS, MISS, or OPEN where a control was not assessed.

Speeds are judged in solver mode. The comparisons with a blind policy (a writer named 'blind') and with the best single
program use the masked samples of both where they were drawn: the mask takes from neither what it didn't know of.
Writers named 'features' and 'learnt' are controls too.
"""

from __future__ import annotations

from sparserl.bench.bars import Bar
from sparserl.train.assess import CHAINED, MASKED, PROMPTED
from sparserl.train.assess_report import Figures, Report
from sparserl.train.rules import Interval

MODE, BESIDE = "solver", "chain"
COMPILE, CORRECT, WITHHELD, REFERENCE, TREES, SEEING = 0.97, 0.93, 0.60, 0.95, 0.98, 1.10
BLIND = "blind"
CONTROLS = (BLIND, "features", "learnt")
"""policies that something is compared with, by how their names begin: no bar is theirs"""


def policies(report: Report) -> list[str]:
    """Writers that draw token by token, unprompted and unmasked, and are no controls."""
    return [
        name
        for name, each in report.figures.items()
        if each.written.parts and not name.endswith((PROMPTED, MASKED, CHAINED)) and not name.startswith(CONTROLS)
    ]


def bars(report: Report) -> list[Bar]:
    """The bars of every policy."""
    return [bar for name in policies(report) for bar in _bars(report, name)]


def _bars(report: Report, name: str) -> list[Bar]:
    figures = report.figures[name]
    prompted = report.figures.get(name + PROMPTED)
    masked = name + MASKED if name + MASKED in report.figures else name
    made = [
        _bar(report, f"{name}: compile@1", figures.compiles[1], COMPILE, percent=True),
        _bar(report, f"{name}: correct@1", figures.correct[1], CORRECT, percent=True),
        _bar(report, f"{name}: correct@1 under withheld headers", _correct(prompted), WITHHELD, percent=True),
        _ratio(report, f"{name}: best of all samples over the reference search", REFERENCE, [
            report.share(name, mode) for mode in (MODE, BESIDE)
        ]),
    ]  # fmt: skip
    for other, budget, bar, ours in (
        ("trees", 0, TREES, name),
        (BLIND + MASKED if BLIND + MASKED in report.figures else BLIND, 1, SEEING, masked),
        ("single", 1, SEEING, masked),
    ):
        found = [
            report.versus(ours, other, mode, budget) if other in report.figures else None for mode in (MODE, BESIDE)
        ]
        what = "best of all samples" if budget == 0 else "@1"
        made.append(_ratio(report, f"{ours}: {what} over {other}", bar, found))
    return made


def _correct(figures: Figures | None) -> Interval | None:
    return None if figures is None else figures.correct[1]


def _ratio(report: Report, title: str, bar: float, found: list[Interval | None]) -> Bar:
    return _bar(report, title, found[0], bar, beside=found[1])


def _bar(
    report: Report, title: str, found: Interval | None, bar: float, *, percent: bool = False,
    beside: Interval | None = None,
) -> Bar:  # fmt: skip
    said = "" if found is None else f"95 % interval {interval(found, percent)}"
    said += "" if beside is None else f"; {BESIDE} {beside.value:.3f}"
    count = found.count if found else 0
    value = found.value if found else None
    return Bar(report.about["problem"], title, value, bar, percent=percent, beside=said, count=count, expected=count)


def interval(found: Interval, percent: bool = False) -> str:
    """'0.98 – 1.04', or in per cent."""
    if percent:
        return f"{100 * found.low:.1f} – {100 * found.high:.1f} %"
    return f"{found.low:.3f} – {found.high:.3f}"
