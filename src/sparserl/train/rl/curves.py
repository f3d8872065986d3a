"""Runs of reinforcement learning side by side: a table with the spread over seeds, and curves.

    sparserl train curves --out results/ablations runs/ablations/grpo-0 runs/ablations/grpo-1 runs/ablations/ppo-0 …

A run folder is called NAME-SEED; runs of one name are seeds of one arm. An `ablations.json` of before may stand among
them: its curves are taken as they are, but for runs that are named themselves, and its arms stay in their order.
Everything is computed from the stored rollouts under one rule, whatever reward a run learnt from, and from what the
policy wrote unaided (explored episodes, whose layout was given, are left out):

    reward      mean hierarchical reward of the first program of an episode
    correct     share of them that are right
    episode     mean hierarchical reward of the best program of an episode
    best        best of k judged programs: geometric mean of the speed over the baseline, a failure counted as in
                `sparserl eval`. Of several turns, of as many episodes as k programs make at the group's mean length,
                which is often no whole number: then between the two in proportion, at most all episodes of the group
    skeletons   distinct skeletons of a group's right programs
    new         share of the right programs whose skeleton no recipe has

over the number of judged programs (all of them, explored ones too). The table is about the last quarter of the rounds
of each run; the spread is the standard deviation over seeds, and differences from the first arm are paired by seed.

    ablations.json, ablations.md, and an SVG a figure; needs no machine
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from sparserl.errors import StoreError
from sparserl.judge.reward import reward
from sparserl.records import Verdict
from sparserl.store import read_json, write_atomic, write_json
from sparserl.train.rl.curves_svg import Band, chart
from sparserl.train.rl.diagnostics import distinct_skeletons
from sparserl.train.rl.episodes import log_speedup
from sparserl.train.rl.nouns import OWN, Judged, Rollout
from sparserl.train.rl.novelty import is_structurally_new
from sparserl.train.rl.rollout_store import open_rollouts
from sparserl.train.rules import FAILURE, log_best_of

FIGURES = {
    "reward": "mean reward",
    "correct": "share of right programs",
    "episode": "mean reward of an episode's best",
    "best": "best of k, speed over the baseline",
    "skeletons": "distinct skeletons a group",
    "new": "share with a new skeleton",
}
TABLE = "ablations.json"
TAIL = 0.25
"""of a run's rounds that the table is about. Not of its programs: with several turns rounds get smaller as the policy
gets better, and a quarter of the programs would be more of the run than in an arm of single turns"""
_NAME = re.compile(r"(.+)-(\d+)")


@dataclass(frozen=True)
class Point:
    """One round of one run."""

    judged: int
    """programs so far, this round's included"""
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """One run."""

    name: str
    seed: int
    points: tuple[Point, ...]

    def last(self, share: float = TAIL) -> dict[str, float]:
        """Every figure over the last rounds of the run."""
        begin = (1 - share) * len(self.points)
        tail = [point for number, point in enumerate(self.points, 1) if number > begin]
        return {name: statistics.fmean(point.figures[name] for point in tail) for name in FIGURES}


def read_curve(folder: Path, k: int, modes: Sequence[str] = ("solver",)) -> Curve:
    """The curve of a run folder called NAME-SEED."""
    match = _NAME.fullmatch(folder.name)
    if match is None:
        raise StoreError(f"A run folder must be called NAME-SEED, such as grpo-0. Got '{folder.name}'.")
    points: list[Point] = []
    judged = 0
    for _, found in groupby(open_rollouts(folder).rollouts(), key=lambda each: each[0]):
        rollouts = [rollout for _, rollout in found]
        judged += sum(len(rollout.turns) for rollout in rollouts)
        points.append(Point(judged, round_figures(rollouts, k, modes)))
    if not points:
        raise StoreError(f"{folder} has no rollouts yet: run `sparserl train rl` there first.")
    return Curve(match[1], int(match[2]), tuple(points))


def read_curves(path: Path, k: int, modes: Sequence[str] = ("solver",)) -> list[Curve]:
    """The curve of a run folder, or those of the table of an earlier call."""
    if path.suffix != ".json":
        return [read_curve(path, k, modes)]
    earlier = read_json(path)
    if not isinstance(earlier, dict) or "runs" not in earlier:
        raise StoreError(f"{path} is no table of `sparserl train curves`: name its {TABLE}, or run folders.")
    if (earlier["k"], earlier["modes"]) != (k, list(modes)):
        said = f"best of {earlier['k']} in {', '.join(earlier['modes'])} mode"
        raise StoreError(f"{path} is about the {said}: name its runs, or ask for the same --k and --mode.")
    return [
        Curve(name, run["seed"], tuple(Point(each["judged"], each["figures"]) for each in run["points"]))
        for name, runs in earlier["runs"].items()
        for run in runs
    ]


def round_figures(rollouts: Sequence[Rollout], k: int, modes: Sequence[str]) -> dict[str, float]:
    """The figures of one round."""
    unaided = sorted((each for each in rollouts if each.origin == OWN), key=lambda each: each.group)
    unaided = unaided or list(rollouts)
    groups = [list(group) for _, group in groupby(unaided, key=lambda each: each.group)]
    bests, kinds = [], []
    for group in groups:
        bests.append(_log_best(group, k, modes))
        kinds.append(distinct_skeletons(text for each in group for text in _right(each)))
    firsts = [each.turns[0].judged for each in unaided]
    right = [(text, each.prompt.problem) for each in unaided for text in _right(each)]
    return {
        "reward": statistics.fmean(_reward(judged, modes) for judged in firsts),
        "correct": statistics.fmean(judged.verdict is Verdict.CORRECT for judged in firsts),
        "episode": statistics.fmean(max(_reward(turn.judged, modes) for turn in each.turns) for each in unaided),
        "best": math.exp(statistics.fmean(bests)),
        "skeletons": statistics.fmean(kinds),
        "new": sum(is_structurally_new(text, problem) for text, problem in right) / max(1, len(right)),
    }


def _log_best(group: Sequence[Rollout], k: int, modes: Sequence[str]) -> float:
    """The expected logarithm of the best of so many episodes as k judged programs make."""
    speeds = [max(_speed(turn.judged, modes) for turn in each.turns) for each in group]
    episodes = min(max(1.0, k / statistics.fmean(len(each.turns) for each in group)), len(speeds))
    whole = math.floor(episodes)
    found = log_best_of(speeds, whole)
    return found if whole == episodes else found + (episodes - whole) * (log_best_of(speeds, whole + 1) - found)


def _right(rollout: Rollout) -> list[str]:
    return [turn.text for turn in rollout.turns if turn.judged.verdict is Verdict.CORRECT]


def _speed(judged: Judged, modes: Sequence[str]) -> float:
    speed = log_speedup(judged, modes)
    return FAILURE if speed is None else math.exp(speed)


def _reward(judged: Judged, modes: Sequence[str]) -> float:
    speed = log_speedup(judged, modes)
    return reward(judged.verdict, None if speed is None else math.exp(speed))


# ── Arms ──────────────────────────────────────────────────────────────────────


def arms(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Runs by name, in the order in which the names come; seeds in order."""
    found: dict[str, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.name, []).append(curve)
    for name, held in found.items():
        seeds = [curve.seed for curve in held]
        if len(set(seeds)) < len(seeds):
            raise StoreError(f"Two runs are called {name} with one seed. Got seeds {sorted(seeds)}.")
        held.sort(key=lambda curve: curve.seed)
    return found


def read_arms(paths: Sequence[Path], k: int, modes: Sequence[str] = ("solver",)) -> dict[str, list[Curve]]:
    """Those of run folders and earlier tables. A run that is named itself takes the place of its earlier row.

    The first arm is what the others are compared with: it stays the first if all of its runs are new.
    """
    found = [(path, curve) for path in paths for curve in read_curves(path, k, modes)]
    named = {path.name for path in paths}
    kept = [curve for path, curve in found if path.suffix != ".json" or f"{curve.name}-{curve.seed}" not in named]
    held = arms(kept)
    return {name: held[name] for name in dict.fromkeys(curve.name for _, curve in found)}


@dataclass(frozen=True)
class Figure:
    """A figure of an arm."""

    mean: float
    spread: float | None
    """standard deviation over seeds; None of one seed"""
    difference: float | None = None
    """from the first arm, the mean over the seeds that both have"""
    difference_spread: float | None = None
    """standard deviation of these differences"""


def table(held: Mapping[str, Sequence[Curve]]) -> dict[str, dict[str, Figure]]:
    """By arm and figure, over the last part of each run."""
    tails = {name: {curve.seed: curve.last() for curve in curves} for name, curves in held.items()}
    first = next(iter(tails.values()))
    found: dict[str, dict[str, Figure]] = {}
    for number, (name, by_seed) in enumerate(tails.items()):
        found[name] = {}
        for figure in FIGURES:
            values = [tail[figure] for tail in by_seed.values()]
            apart = [tail[figure] - first[seed][figure] for seed, tail in by_seed.items() if seed in first]
            pair = (statistics.fmean(apart), _spread(apart)) if number and apart else (None, None)
            found[name][figure] = Figure(statistics.fmean(values), _spread(values), *pair)
    return found


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def bands(held: Mapping[str, Sequence[Curve]], figure: str) -> list[Band]:
    """A curve an arm: the mean over seeds round by round, from the least seed to the highest."""
    found = []
    for name, curves in held.items():
        rounds = list(zip(*(curve.points for curve in curves), strict=False))  # as far as all seeds have come
        x = [statistics.fmean(point.judged for point in points) for points in rounds]
        values = [[point.figures[figure] for point in points] for points in rounds]
        middle = [statistics.fmean(each) for each in values]
        found.append(Band(name, x, middle, [min(each) for each in values], [max(each) for each in values]))
    return found


# ── On disk ───────────────────────────────────────────────────────────────────


def write(folders: Sequence[Path], out: Path, k: int = 8, modes: Sequence[str] = ("solver",), note: str = "") -> str:
    """Make the table and the curves; returns the table as Markdown. note: what else there is to say of it."""
    if not folders:
        raise StoreError("Name at least one run folder, called NAME-SEED.")
    held = read_arms(folders, k, modes)
    found = table(held)
    runs = {
        name: [{"seed": curve.seed, "points": [asdict(point) for point in curve.points]} for curve in curves]
        for name, curves in held.items()
    }
    figures = {name: {each: asdict(figure) for each, figure in by.items()} for name, by in found.items()}
    write_json(out / TABLE, {"k": k, "modes": list(modes), "tail": TAIL, "arms": figures, "runs": runs})
    for name, label in FIGURES.items():
        write_atomic(out / f"{name}.svg", chart(bands(held, name), "judged programs", label).encode())
    text = page(held, found, k) + (f"\n{note}\n" if note else "")
    write_atomic(out / "ablations.md", text.encode())
    return text


def page(held: Mapping[str, Sequence[Curve]], found: Mapping[str, Mapping[str, Figure]], k: int) -> str:
    """The table as Markdown: mean ± spread over seeds, and below it the difference from the first arm."""
    first = next(iter(found))
    head = [
        "arm",
        "seeds",
        "judged a seed",
        *(label.replace("best of k", f"best of {k}") for label in FIGURES.values()),
    ]
    rows = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for name, by in found.items():
        judged = min(curve.points[-1].judged for curve in held[name])
        cells = [name, str(len(held[name])), str(judged), *(_cell(by[figure]) for figure in FIGURES)]
        rows.append("| " + " | ".join(cells) + " |")
    note = (
        f"Over the last {100 * TAIL:.0f} % of each run's rounds: mean ± standard deviation over seeds; in brackets the "
        f"difference from {first}, paired by seed, ± its standard deviation. Curves: one SVG a figure, a band from the "
        "least seed to the highest.\n"
    )
    return "\n".join([*rows, "", note])


def _cell(figure: Figure) -> str:
    own = f"{figure.mean:.3f}" + ("" if figure.spread is None else f" ± {figure.spread:.3f}")
    if figure.difference is None:
        return own
    spread = "" if figure.difference_spread is None else f" ± {figure.difference_spread:.3f}"
    return f"{own} ({figure.difference:+.3f}{spread})"
