"""The bars that a policy is held against, from a report: PASS, MISS, or OPEN where a control was not assessed.

Speeds are judged in solver mode. The comparisons with a blind policy (a writer named 'blind') and with the best single
program use the masked samples of both where they were drawn: the mask takes from neither what it didn't know of.
Writers named 'features' and 'learnt' are controls too.

A writer named 'rl' beside the policy that it began with, named 'sft', has the bars of reinforcement learning in place
of these. The gap is that of the logarithms of @1, mean over matrices, to the reference search's best program.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from sparserl.bench.bars import Bar
from sparserl.train import rules
from sparserl.train.assess import CHAINED, MASKED, PROMPTED
from sparserl.train.assess_report import Figures, Logs, Report
from sparserl.train.rules import Interval

MODE, BESIDE = "solver", "chain"
COMPILE, CORRECT, WITHHELD, REFERENCE, TREES, SEEING = 0.97, 0.93, 0.60, 0.95, 0.98, 1.10
LEARNT, BEGAN = "rl", "sft"
LEARNT_COMPILE, LEARNT_CORRECT, LEARNT_FIRST, CLOSED, ABOVE, SKELETONS = 0.99, 0.97, 0.97, 0.5, 1.0, 4
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
    learns = {LEARNT, BEGAN} <= report.figures.keys()
    return [
        bar
        for name in policies(report)
        for bar in (_learnt(report) if learns and name == LEARNT else _bars(report, name))
    ]


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


def _learnt(report: Report) -> list[Bar]:
    """What reinforcement learning is held against."""
    figures, goal = report.figures[LEARNT], report.reference
    first = [rules.ratio(figures.logs(mode, 1), goal.get(mode, {})) for mode in (MODE, BESIDE)]
    best = [report.share(LEARNT, mode) for mode in (MODE, BESIDE)]
    trees = [report.versus(LEARNT, "trees", mode, 0) if "trees" in report.figures else None for mode in (MODE, BESIDE)]
    over = report.versus(LEARNT, BEGAN, MODE, 1)
    classes = by_class(report)
    lowest = min(classes, key=lambda name: classes[name].value, default="")
    where = f" ({lowest})" if lowest else ""
    return [
        _bar(report, f"{LEARNT}: compile@1", figures.compiles[1], LEARNT_COMPILE, percent=True),
        _bar(report, f"{LEARNT}: correct@1", figures.correct[1], LEARNT_CORRECT, percent=True),
        _ratio(report, f"{LEARNT}: @1 over the reference search", LEARNT_FIRST, first),
        _closed(report),
        _bar(report, f"{LEARNT}: @1 over {BEGAN}, lower bound", over, ABOVE, value=over.low if over else None),
        _ratio(report, f"{LEARNT}: best of all samples over the reference search", ABOVE, best),
        _ratio(report, f"{LEARNT}: best of all samples over trees", ABOVE, trees),
        _bar(report, f"{LEARNT}: skeletons of right samples, a matrix", figures.written.skeletons_each, SKELETONS),
        _bar(report, f"{LEARNT}: best of all samples over {BEGAN}, lowest class{where}", classes.get(lowest), ABOVE),
    ]


def by_class(report: Report) -> dict[str, Interval]:
    """The best of all samples of what learnt over that of what it began with, by structure class."""
    ours, theirs = (report.figures[name].logs(MODE, 0) for name in (LEARNT, BEGAN))
    logs: dict[str, Logs] = {}
    for sheet in report.figures[LEARNT].sheets:
        logs.setdefault(sheet.structure, {})[sheet.matrix] = ours[sheet.matrix]
    found = {structure: rules.ratio(each, theirs) for structure, each in sorted(logs.items())}
    return {structure: each for structure, each in found.items() if each is not None}


def gap_closed(ours: Mapping[str, float], theirs: Mapping[str, float], goal: Mapping[str, float]) -> float | None:
    """Share of the way from their logarithms to the goal's that ours have gone; None where there is no way to go."""
    every = sorted(ours.keys() & theirs.keys() & goal.keys())
    gap = fmean(goal[name] - theirs[name] for name in every) if every else 0.0
    return fmean(ours[name] - theirs[name] for name in every) / gap if gap > 0 else None


def _closed(report: Report) -> Bar:
    ours, theirs = (report.figures[name].logs(MODE, 1) for name in (LEARNT, BEGAN))
    goal = report.reference.get(MODE, {})
    count = len(ours.keys() & theirs.keys() & goal.keys())
    title = f"{LEARNT}: share of {BEGAN}'s gap to the reference search closed, @1"
    found = gap_closed(ours, theirs, goal)
    return Bar(report.about["problem"], title, found, CLOSED, percent=True, count=count, expected=count)


def _correct(figures: Figures | None) -> Interval | None:
    return None if figures is None else figures.correct[1]


def _ratio(report: Report, title: str, bar: float, found: list[Interval | None]) -> Bar:
    return _bar(report, title, found[0], bar, beside=found[1])


def _bar(
    report: Report, title: str, found: Interval | None, bar: float, *, percent: bool = False,
    value: float | None = None, beside: Interval | None = None,
) -> Bar:  # fmt: skip
    """The figure itself is held up, unless another `value` is given."""
    said = "" if found is None else f"95 % interval {interval(found, percent)}"
    said += "" if beside is None else f"; {BESIDE} {beside.value:.3f}"
    count = found.count if found else 0
    value = value if value is not None else found.value if found else None
    return Bar(report.about["problem"], title, value, bar, percent=percent, beside=said, count=count, expected=count)


def interval(found: Interval, percent: bool = False) -> str:
    """'0.98 – 1.04', or in per cent."""
    if percent:
        return f"{100 * found.low:.1f} – {100 * found.high:.1f} %"
    return f"{found.low:.3f} – {found.high:.3f}"
