"""The training matrices: specs drawn from the kept families, and the real matrices of the training split.

    training_cases(Problem(), 800)     the first 800 for SpMV; another count gives a prefix or a longer list

A case is written down as family, parameters and seed (or the name of a file) and made when it is needed, never stored.
Structure classes take turns, families within a class are drawn by weight, and sizes run from 1e3 to 2e7 nonzeros, most
of them between 1e4 and 2e6. Problems of one operation share their matrices, so that the same matrix is seen with
another type or number of columns. For estimates there are also matrices like those that the encoder learns from
(`drawn_cases`), some of them with parts cut out (`cut_cases`), what real ones are made into (`twisted_cases`), and
generated ones with a few entries anywhere (`strewn_cases`): one far entry in a group of rows forbids what all others
allow. `far_cases` has sizes and row lengths that the others seldom have, or never; `shown_cases` are small ones of all
these kinds, many, to learn what matrices admit. Not covered: matrices of withheld families (`splits`), which are never
drawn here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparserl import splits
from sparserl.errors import MatrixError
from sparserl.families import FAMILIES, FITTED, Spec
from sparserl.families.building import generator
from sparserl.matrix import Pattern
from sparserl.records import Problem

SPMV_SEED, SPMM_SEED = 1_000_000, 1_500_000
"""the seed of the first case; the others follow"""
PURPOSE = 97
"""the stream that a case is drawn from, apart from those that families use"""
RENUMBERED = "permuted"

BY_CLASS: tuple[Mapping[str, float], ...] = (
    {"stencil2d": 2, "stencil3d": 2, "banded": 3, "mesh": 3},
    {"fem": 4, "fem8": 1},
    {"uniform": 3, "permuted": 4},
    {"rmat": 2, "powerlaw": 4, "circuit": 3},
    {"longrows": 3, "tall": 2, "wide": 4, "emptyrows": 4, "arrow": 2},
)
"""families by the class that they are designed for, with weights: regular, block, random, skewed, extreme"""
STREWN = BY_CLASS[:2]
"""what entries are strewn over: where all lie near the diagonal, or in blocks, a few that don't make the difference"""
FAR = (BY_CLASS[0], {"fem": 1, "solid": 2}, *BY_CLASS[2:])
"""of `far_cases`: large blocks in three dimensions, which are planned seldom, and then of eight"""
BLOCKS = (2, 3, 4, 6, 8)
"""their sizes"""
LOCAL = ("stencil2d", "stencil3d", "banded", "mesh", "fem", "circuit", "arrow")
"""what `permuted` may be made of"""
SIZES = ((0.08, 1e3, 1e4), (0.27, 1e4, 1e5), (0.57, 1e5, 2e6), (0.08, 2e6, 2e7))
"""(share, from, to) nonzeros, even on a logarithmic scale inside each"""
SPMM_SIZES = ((0.08, 1e3, 1e4), (0.32, 1e4, 1e5), (0.60, 1e5, 1.5e6))
"""B and C of an SpMM are wide: a product of 2e7 nonzeros and 128 columns takes milliseconds"""
LARGE_SIZES = ((0.3, 2e6, 8e6), (0.7, 8e6, 3e7))
"""of those that are asked for as large: the others have few of them, because they are slow to judge"""
STREWN_SIZES = ((0.15, 1e4, 1e5), (0.5, 1e5, 2e6), (0.35, 2e6, 2e7))
"""of those that entries are strewn over, for SpMV: short indices come to their end at 65 thousand columns"""
FAR_SIZES = {"spmv": ((0.3, 1e5, 2e6), (0.7, 2e6, 1e8)), "spmm": ((1.0, 1e5, 1e7),)}
"""of `far_cases`"""
FAR_PLAYED = {"spmv": 2e7, "spmm": 1.5e6}
"""nonzeros of those that are not too slow to judge"""
FAR_PER_ROW = (3.0, 300.0)
"""their mean row lengths, even on a logarithmic scale"""
SHOWN_SIZES = ((0.35, 1e3, 1e4), (0.35, 1e4, 1e5), (0.3, 1e5, 1.5e6))
"""of `shown_cases`: what is admitted goes by ratios and by 65 thousand columns, which small ones have as well"""
SHOWN_FROM = 10_000
"""their first number, far behind those that are played; their seeds lie apart as well"""
DRAWN_MOST = {"spmv": 3e6, "spmm": 1.5e6}
"""nonzeros of `drawn_cases`"""
LARGE_DRAWN = (2.5e6, 2e7)
"""nonzeros of `large_drawn_cases`"""
LARGE_DRAWN_ROWS = 20_000_000
"""of either dimension, before the twists: vectors of 200 million numbers are more than the memory of all judges"""
MOST_ROWS = {"spmv": 8_000_000, "spmm": 800_000}
"""of either dimension"""


@dataclass(frozen=True)
class TrainingCase:
    """A matrix that may train: a spec, a number, or the name of a real one. With the split 'dev', for choices alone."""

    name: str
    spec: Spec | None = None
    real: str = ""
    """the file is REAL.mtx.gz or REAL.mtx in the folder of real matrices"""
    drawn: tuple[int, float] | None = None
    """number and largest size of a matrix like those that the encoder learns from, half of them twisted"""
    least: float = 0.0
    """the smallest size of such a matrix, about; 0: as the encoder has them"""
    cut: tuple[int, float] | None = None
    """number and largest size of one like them that cells were cut out of"""
    twist: tuple[int, float] | None = None
    """number and largest size of a matrix that a real one was made into"""
    strewn: bool = False
    """the matrix of the spec, and a few entries anywhere"""
    far: bool = False
    """the matrix of the spec; its size and row length are of `far_cases`"""
    split: Literal["train", "dev"] = "train"

    @property
    def source(self) -> dict[str, Any]:
        """What is written down to make it again."""
        if self.split == "dev":
            return {"dev": self.name}
        if self.drawn is not None:
            return {"drawn": self.drawn[0], "most": self.drawn[1], **({"least": self.least} if self.least else {})}
        if self.cut is not None:
            return {"cut": self.cut[0], "most": self.cut[1]}
        if self.twist is not None:
            return {"real": self.real, "twist": self.twist[0], "most": self.twist[1]}
        if self.spec is None:
            return {"real": self.real}
        made = {"family": self.spec.family, "seed": self.spec.seed, "params": dict(self.spec.params)}
        return made | ({"strewn": True} if self.strewn else {}) | ({"far": True} if self.far else {})

    def load(self, folder: Path | None = None) -> Pattern:
        """Make or read it. Raises MatrixError where the pattern is one that may not train."""
        if self.drawn is not None:
            from sparserl.train.encode_data import Draws, draw_pattern

            usual = Draws(most=self.drawn[1])
            return draw_pattern(self.drawn[0], replace(usual, least=self.least) if self.least else usual)
        if self.cut is not None:
            from sparserl.train.encode_data import Draws, cut_pattern

            pattern = cut_pattern(self.cut[0], Draws(most=self.cut[1]))
            splits.check_training(pattern)
            return pattern
        if self.twist is not None:
            from sparserl.train.encode_data import twisted_real

            real = next(case for case in splits.cases("train") if case.name == self.real).load(folder)
            pattern = twisted_real(real, *self.twist)
            splits.check_training(pattern)
            return pattern
        if self.spec is None or self.split == "dev":
            return next(case for case in splits.cases(self.split) if case.name == self.name).load(folder)
        if not splits.may_train(self.spec):
            raise MatrixError(
                f"The matrix '{self.spec}' may not train: its family is withheld or its seed is not in "
                f"{splits.seed_range('train')}."
            )
        pattern = self.spec.make()
        if self.strewn:
            from sparserl.train.encode_data import strewn

            pattern = strewn(pattern, self.spec.seed)
        splits.check_training(pattern)
        return pattern


def from_source(name: str, source: Mapping[str, Any]) -> TrainingCase:
    """The case that `source` was written down for."""
    if "dev" in source:
        return TrainingCase(name, split="dev")
    if "twist" in source:
        return TrainingCase(name, real=str(source["real"]), twist=(int(source["twist"]), float(source["most"])))
    if "real" in source:
        return TrainingCase(name, real=str(source["real"]))
    if "cut" in source:
        return TrainingCase(name, cut=(int(source["cut"]), float(source["most"])))
    if "drawn" in source:
        drawn = (int(source["drawn"]), float(source["most"]))
        return TrainingCase(name, drawn=drawn, least=float(source.get("least", 0.0)))
    spec = Spec(source["family"], int(source["seed"]), dict(source["params"]))
    return TrainingCase(name, spec, strewn=bool(source.get("strewn")), far=bool(source.get("far")))


@dataclass(frozen=True)
class Range:
    """Which sizes are drawn; smaller ones for the simulator."""

    sizes: tuple[tuple[float, float, float], ...] = SIZES
    most_rows: int = MOST_ROWS["spmv"]
    first_seed: int = SPMV_SEED
    per_row: tuple[float, float] | None = None
    """mean row lengths from … to, even on a logarithmic scale; None: spread as in the collection"""
    tries: int = field(default=64, repr=False)
    """draws of one case before it is given up"""


def range_for(problem: Problem) -> Range:
    """The sizes that fit a problem."""
    if problem.op == "spmv":
        return Range()
    return Range(SPMM_SIZES, MOST_ROWS["spmm"], SPMM_SEED)


def range_up_to(problem: Problem, most_nonzeros: float) -> Range:
    """Small matrices only, for a machine that is slow: the same families, from a few hundred nonzeros on."""
    usual = range_for(problem)
    return replace(usual, sizes=((1.0, most_nonzeros / 10, most_nonzeros),), first_seed=usual.first_seed + 250_000)


def large_range() -> Range:
    """Large matrices only, for SpMV: the same families."""
    usual = range_for(Problem())
    return replace(usual, sizes=LARGE_SIZES, first_seed=usual.first_seed + 380_000)


def training_cases(
    problem: Problem, count: int, *, real: bool = False, within: Range | None = None
) -> list[TrainingCase]:
    """`count` generated cases, after the real ones where asked for (their folder is named when they are loaded)."""
    if count < 0:
        raise ValueError(f"The 'count' of training cases must not be negative. Got {count}.")
    chosen = within or range_for(problem)
    there = [TrainingCase(case.name, real=case.name) for case in splits.cases("train")] if real else []
    return [*there, *(_drawn(index, chosen) for index in range(count))]


def drawn_cases(problem: Problem, count: int, most_nonzeros: float = 0.0, first: int = 0) -> list[TrainingCase]:
    """`count` of the matrices that the encoder learns from: more kinds than `training_cases` has.

    most_nonzeros: of the largest, about; 0: what fits the problem. first: the number to begin with.
    """
    most = most_nonzeros or DRAWN_MOST[problem.op]
    return [TrainingCase(f"drawn{most:.0f}-{number}", drawn=(number, most)) for number in range(first, first + count)]


def large_drawn_cases(count: int) -> list[TrainingCase]:
    """`count` of such matrices that are large, for SpMV; not those that are next to nothing but empty rows."""
    from sparserl.train.encode_data import Draws, numbered_spec

    least, most = LARGE_DRAWN
    draws = Draws(least=least, most=most)
    short = (
        number for number in itertools.count() if _dimension(numbered_spec(number, draws).params) <= LARGE_DRAWN_ROWS
    )
    return [
        TrainingCase(f"drawnlarge-{number}", drawn=(number, most), least=least)
        for number in itertools.islice(short, count)
    ]


def cut_cases(problem: Problem, count: int, most_nonzeros: float = 0.0, first: int = 0) -> list[TrainingCase]:
    """`count` matrices like those, each without some of its cells."""
    most = most_nonzeros or DRAWN_MOST[problem.op]
    return [TrainingCase(f"cut{most:.0f}-{number}", cut=(number, most)) for number in range(first, first + count)]


def twisted_cases(problem: Problem, count: int, most_nonzeros: float = 0.0, first: int = 0) -> list[TrainingCase]:
    """`count` matrices that the real ones of the training split are made into, taking turns."""
    most = most_nonzeros or DRAWN_MOST[problem.op]
    real = [case.name for case in splits.cases("train") if case.nonzeros <= 4 * most]
    if count and not real:
        raise MatrixError(f"No real training matrix is small enough to be made into one of {most:.0f} nonzeros.")
    whose = [(number, real[number % len(real)]) for number in range(first, first + count)]
    return [TrainingCase(f"{name}-{most:.0f}-{number}", real=name, twist=(number, most)) for number, name in whose]


def strewn_cases(problem: Problem, count: int, most_nonzeros: float = 0.0) -> list[TrainingCase]:
    """`count` generated matrices with a few entries anywhere."""
    usual = range_for(problem)
    within = replace(usual, sizes=STREWN_SIZES) if problem.op == "spmv" else usual
    within = range_up_to(problem, most_nonzeros) if most_nonzeros else within
    return _strewn(count, replace(within, first_seed=usual.first_seed + (470_000 if most_nonzeros else 440_000)))


def _strewn(count: int, within: Range) -> list[TrainingCase]:
    cases = (_drawn(index, within, STREWN) for index in range(count))
    return [replace(case, name=f"strewn-{case.name}", strewn=True) for case in cases]


def far_cases(problem: Problem, count: int, most_nonzeros: float = 0.0) -> list[TrainingCase]:
    """`count` generated ones whose sizes and row lengths are spread evenly: other cases have few large ones with long
    rows, and hardly any of more than 30 million nonzeros."""
    usual = range_for(problem)
    within = range_up_to(problem, most_nonzeros) if most_nonzeros else replace(usual, sizes=FAR_SIZES[problem.op])
    chosen = replace(within, per_row=FAR_PER_ROW, first_seed=usual.first_seed + (495_000 if most_nonzeros else 490_000))
    cases = (_drawn(index, chosen, FAR) for index in range(count))
    return [replace(case, name=f"far-{case.name}", far=True) for case in cases]


def shown_cases(count: int, *, real: bool = False, most_nonzeros: float = 0.0) -> list[TrainingCase]:
    """For SpMV `count` of each kind: generated ones, with strays, drawn, cut, and where asked for twisted real ones."""
    problem, most = Problem(), most_nonzeros or SHOWN_SIZES[-1][-1]
    usual = range_for(problem)
    within = range_up_to(problem, most_nonzeros) if most_nonzeros else replace(usual, sizes=SHOWN_SIZES)
    first = usual.first_seed + SHOWN_FROM
    return [
        *drawn_cases(problem, count, most, SHOWN_FROM),
        *cut_cases(problem, count, most, SHOWN_FROM),
        *twisted_cases(problem, count if real else 0, most, SHOWN_FROM),
        *training_cases(problem, count, within=replace(within, first_seed=first + 100_000)),
        *_strewn(count, replace(within, first_seed=first + 150_000)),
    ]


def dev_cases(*, real: bool = False) -> list[TrainingCase]:
    """The matrices of the dev split, on which choices are made."""
    return [TrainingCase(case.name, split="dev") for case in splits.cases("dev") if real or case.kind == "generated"]


def _drawn(index: int, within: Range, by_class: tuple[Mapping[str, float], ...] = BY_CLASS) -> TrainingCase:
    """Case `index`: its class by turns, all else from a stream of its own."""
    seed = within.first_seed + index
    rng = generator(seed, PURPOSE)
    for _ in range(within.tries):
        nonzeros = _size(rng, within)
        per_row = _per_row(rng, nonzeros, within)
        family, params = _planned(rng, by_class[index % len(by_class)], nonzeros, per_row)
        spec = Spec(family, seed, params)
        if splits.may_train(spec) and _dimension(params) <= within.most_rows:
            return TrainingCase(f"{family}-{seed}", spec)
    raise MatrixError(f"No training matrix of at most {within.most_rows} rows came up for the seed {seed}.")


def _size(rng: np.random.Generator, within: Range) -> float:
    ends = np.cumsum([share for share, _, _ in within.sizes])
    _, low, high = within.sizes[int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))]
    return _between(rng, low, high)


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Even on a logarithmic scale."""
    return float(low * (high / low) ** rng.random())


def _per_row(rng: np.random.Generator, nonzeros: float, within: Range) -> float:
    """The mean row length, spread as in the collection, wider at the long end; never longer than the matrix is high."""
    if within.per_row is None:
        normal = float(rng.random(12).sum()) - 6.0
        length = 10.0 ** (FITTED.log_per_row + FITTED.log_per_row_deviation * normal)
    else:
        length = _between(rng, *within.per_row)
    return float(np.clip(length, 1.5, max(2.0, nonzeros**0.5)))


def _planned(
    rng: np.random.Generator, weights: Mapping[str, float], nonzeros: float, per_row: float
) -> tuple[str, dict[str, Any]]:
    """A family of the class and its parameters."""
    names = list(weights)
    ends = np.cumsum([weights[name] for name in names])
    name = names[int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))]
    if name == "fem8":  # blocks of eight, which the family's own plan never draws
        return "fem", {**FAMILIES["fem"].plan(rng, nonzeros * 0.4, max(per_row, 40.0)), "b": 8}
    if name == "solid":  # finite elements in three dimensions, blocks of every size alike
        b = BLOCKS[int(rng.integers(0, len(BLOCKS)))]
        grid = FAMILIES["mesh"].plan(rng, nonzeros / (b * b), 10 + 20 * float(rng.random()))
        del grid["window"]
        return "fem", {**grid, "b": b, "fill": (1.0, 1.0, 0.95, 0.85)[int(rng.integers(0, 4))]}
    if name == RENUMBERED:
        of = LOCAL[int(rng.integers(0, len(LOCAL)))]
        how = ("both", "both", "rows", "columns")[int(rng.integers(0, 4))]
        within = (0, 0, 4096)[int(rng.integers(0, 3))]
        return RENUMBERED, {"of": of, "how": how, "within": within, **FAMILIES[of].plan(rng, nonzeros, per_row)}
    return name, FAMILIES[name].plan(rng, nonzeros, per_row)


def _dimension(params: Mapping[str, Any]) -> int:
    """The larger of rows and columns, as far as the parameters name them."""
    nodes = int(params.get("nx", 0)) * int(params.get("ny", 1)) * int(params.get("nz", 1)) * int(params.get("b", 1))
    scale = 1 << int(params["scale"]) if "scale" in params else 0
    return max(nodes, scale, int(params.get("rows", 0)), int(params.get("columns", 0)))
