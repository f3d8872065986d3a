"""Examples for the encoder's pretraining: generated matrices, their samples, named features and admitted layouts.

Matrices are drawn from the kept families by seed. About half are twisted after that (every entry a block, blocks out of
step, a transpose, two matrices in one, …), so that features which a family ties together come apart: an encoder that
had learnt families instead of structure would fail on a withheld one. Work is cut into shards, one file each; a shard
that is there is not made again. Not covered: values, timings (`encode_times`).
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from sparserl import splits
from sparserl.errors import MatrixError, StoreError
from sparserl.families import FAMILIES, FITTED, Spec, building
from sparserl.layouts import admits, parse_line
from sparserl.lifetime import helpers
from sparserl.matrix import Array, Pattern
from sparserl.policy.sample import FIELDS, PLACES, VERSION, named_features, sample_pattern
from sparserl.store import content_key, write_atomic

log = logging.getLogger(__name__)

LINES = tuple(
    parse_line(text)
    for text in (
        "rows index=abs16",
        "rows index=int16",
        "ell c=32 group=1 index=int32",
        "slices c=32 sigma=1 group=1 index=int32",
        "slices c=32 sigma=1 group=1 index=int16",
        "slices c=256 sigma=1 group=1 index=int32",
        "slices c=32 sigma=1024 group=4 index=int32",
        "filled c=32 window=256 group=1 index=int32",
        "hybrid c=32 cover=75 index=int32",
        "hybrid c=32 cover=95 index=int32",
        "split c=32 sigma=256 group=1 long=128 segment=512 index=int32",
        "tiles steps=8 threads=128 order=step index=int32",
        *(f"blocks b={b} order=row index=int32" for b in (2, 3, 4, 6, 8)),
        "blockslices b=3 c=32 order=row index=int32",
        "diagonals fill=10 index=none",
        "diagonals fill=50 index=none",
        "diagonals fill=90 index=none",
        "colblocks width=1024 index=int16",
    )
)
"""layouts whose admission is a target, chosen because each refuses some matrices and takes others"""
TWISTED = 0.5
"""share of the matrices that are changed after they were drawn"""
NOT_BLOCKS = frozenset({"fem", "blockdiag"})
"""blocks of blocks are not drawn"""
PURPOSE = 61
"""the random stream of draws and twists, apart from those that families use"""


@dataclass(frozen=True)
class Examples:
    """Columns of a set of examples, all of one length."""

    sizes: Array
    """(n, 3) int64"""
    entries: Array
    """(n, PLACES, 8) int32"""
    named: Array
    """(n, features) float32"""
    admitted: Array
    """(n, LINES) bool"""

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Draws:
    """Which matrices are drawn."""

    split: Literal["train", "dev", "unseen"] = "train"
    """'train': kept families, twisted; the others: withheld families alone, as they are. Each has seeds of its own."""
    withheld: frozenset[str] = field(default_factory=splits.withheld_families)
    """families that 'train' never has, and that the others are drawn from"""
    least: float = 1e2
    most: float = 3e6
    """nonzeros, about, even on a logarithmic scale up to a tenth of the most; what is larger is rarer, unless all is"""

    def __post_init__(self) -> None:
        unknown = self.withheld - set(FAMILIES)
        if unknown:
            raise ValueError(f"There is no family {sorted(unknown)[0]!r}. Families: {', '.join(sorted(FAMILIES))}.")
        if self.split == "train" and not splits.withheld_families() <= self.withheld:
            missing = sorted(splits.withheld_families() - self.withheld)
            raise ValueError(f"The families {', '.join(missing)} are withheld from all training: name them too.")

    def takes(self, spec: Spec) -> bool:
        """Whether a spec belongs to these draws; a renumbered matrix goes by what it is made of."""
        return (splits.base_family(spec.family, spec.params) in self.withheld) != (self.split == "train")


def withheld_in(split: Literal["dev", "unseen"]) -> frozenset[str]:
    """The withheld families of a split."""
    bases = {splits.base_family(case.family, case.params) for case in splits.cases(split) if case.kind != "real"}
    return splits.withheld_families() & bases


def draw_spec(seed: int, draws: Draws) -> Spec:
    """A matrix of these draws: sizes spread evenly, row lengths as in the collection, a family by its weight."""
    rng = building.generator(seed, PURPOSE)
    names = [name for name in FAMILIES if name == "permuted" or (name in draws.withheld) != (draws.split == "train")]
    ends = np.cumsum([FAMILIES[name].weight for name in names])
    while True:
        high = draws.most if rng.random() < 0.2 or draws.most / 10 < draws.least else draws.most / 10
        nonzeros = float(draws.least * (high / draws.least) ** rng.random())
        normal = float(rng.random(12).sum()) - 6.0  # twelve uniforms: the same on every machine
        per_row = 10.0 ** (FITTED.log_per_row + FITTED.log_per_row_deviation * normal)
        per_row = float(np.clip(per_row, 1.2, max(2.0, 2 * nonzeros**0.5)))
        name = names[int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))]
        spec = Spec(name, seed, FAMILIES[name].plan(rng, nonzeros, per_row))
        if draws.takes(spec):
            return spec


def numbered_spec(number: int, draws: Draws, attempt: int = 0) -> Spec:
    """What matrix `number` of these draws is made of, before its twists; `attempt`: if those before gave way."""
    seeds = splits.seed_range(draws.split)
    first = seeds.start + len(seeds) // 2  # the first half belongs to matrices that are timed
    return draw_spec(first + (number + attempt * 7919 * 13) % (seeds.stop - first), draws)


def draw_pattern(number: int, draws: Draws) -> Pattern:
    """Matrix `number` of these draws; one that is too large or held out gives way to another."""
    for attempt in range(16):
        spec = numbered_spec(number, draws, attempt)
        try:
            pattern = twisted(spec, draws.most) if draws.split == "train" else spec.make()
            if draws.split == "train":
                splits.check_training(pattern)
            if pattern.nonzeros <= 2 * draws.most:
                return pattern
        except MatrixError as error:
            log.debug("Left out %s: %s", spec, error)
    raise MatrixError(f"No matrix number {number} came up for {draws}. Widen 'least' … 'most'.")


# ── Twists ────────────────────────────────────────────────────────────────────


def twisted(spec: Spec, most: float) -> Pattern:
    """The matrix of a spec, in about half of the cases changed by one or two twists."""
    pattern = spec.make()
    rng = building.generator(spec.seed, PURPOSE + 1)
    if rng.random() >= TWISTED or pattern.nonzeros == 0:
        return pattern
    blocky = splits.base_family(spec.family, spec.params) in NOT_BLOCKS
    if rng.random() < 0.5 and not blocky and pattern.nonzeros * 4 <= most:
        return _blocks(pattern, rng, spec.seed, most)
    return _twists(pattern, 1 + int(rng.integers(0, 2)), rng, spec.seed)


def _twists(pattern: Pattern, count: int, rng: np.random.Generator, seed: int) -> Pattern:
    for _ in range(count):
        if pattern.nonzeros:  # the one before may have left nothing
            pattern = TWISTS[int(rng.integers(0, len(TWISTS)))](pattern, rng, seed)
    return pattern


def _blocks(pattern: Pattern, rng: np.random.Generator, seed: int, most: float) -> Pattern:
    """Every entry a block, of any fill; sometimes out of step, sometimes with strays between."""
    sides = [b for b in (2, 3, 4, 5, 6, 8, 12) if pattern.nonzeros * b * b <= most]
    b = sides[int(rng.integers(0, len(sides)))]
    fill = (1.0, 0.95, 0.8, 0.6, 0.4)[int(rng.integers(0, 5))]
    out = building.expand_blocks(pattern, b, seed, fill)
    if rng.random() < 0.4:
        out = _cropped(out, rng, seed)
    if rng.random() < 0.3:
        strays = int(out.nonzeros * float(rng.random()) * 0.5)
        row, col = (rng.integers(0, n, strays, dtype=np.int32) for n in out.shape)
        out = building.stack([(0, 0, out), (0, 0, _from(out, row, col))], *out.shape)
    return out


def _from(pattern: Pattern, row: Array, col: Array) -> Pattern:
    return Pattern.from_coordinates(pattern.rows, pattern.columns, row, col)


def _window(pattern: Pattern, top: int, left: int, rows: int, columns: int) -> Pattern:
    """These rows and columns of it."""
    row, col = pattern.row_index() - np.int32(top), pattern.cols - np.int32(left)
    keep = (row >= 0) & (row < rows) & (col >= 0) & (col < columns)
    return Pattern.from_coordinates(rows, columns, row[keep], col[keep])


def _transposed(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    return Pattern.from_coordinates(pattern.columns, pattern.rows, pattern.cols, pattern.row_index())


def _cropped(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    """Without a few first rows and columns: blocks and diagonals are then out of step."""
    up, left = (int(rng.integers(0, min(8, n))) for n in pattern.shape)
    return _window(pattern, up, left, pattern.rows - up, pattern.columns - left)


def _thinned(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    return building.drop(pattern, seed + 1, 0.3 + 0.7 * float(rng.random()))


def _doubled(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    """With itself, moved along: two bands, two meshes, or a block matrix of two parts."""
    down, right = (int(float(rng.random()) * n) for n in pattern.shape)
    return building.stack([(0, 0, pattern), (down, right, pattern)], pattern.rows + down, pattern.columns + right)


def _reordered(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    """Rows shuffled inside windows, columns in place: what sorting by length or a domain split leaves."""
    window = (8, 64, 512, 4096)[int(rng.integers(0, 4))]
    return building.permute(
        pattern, building.window_order(pattern.rows, window, rng), np.arange(pattern.columns, dtype=np.int32)
    )


def _symmetric(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    size = max(pattern.shape)
    return building.both_ways(size, pattern.row_index(), pattern.cols)


def _repeated(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    """A window of it, or a small matrix as full as it, along the diagonal again and again: many alike components."""
    side = min(int(2 ** (3 + 6 * float(rng.random()))), *pattern.shape)
    middle = int(rng.integers(0, pattern.nonzeros))
    where = (int(pattern.row_of(np.array(middle))), int(pattern.cols[middle]))
    top, left = (max(0, min(place - side // 2, n - side)) for place, n in zip(where, pattern.shape, strict=True))
    part = _window(pattern, top, left, side, side)
    row, col = (each.astype(np.int64) for each in (part.row_index(), part.cols))
    if len(row) < side or rng.random() < 0.5:
        links = min(side, 1 + pattern.nonzeros // pattern.rows)
        row = np.repeat(np.arange(side, dtype=np.int64), links)
        col = rng.integers(0, side, len(row))
        col[::links] = np.arange(side)
    count = max(2, min(pattern.nonzeros // max(1, len(row)), 2 * max(pattern.shape) // side))
    shift = np.arange(count, dtype=np.int64)[:, None] * side
    every_row, every_col = ((shift + each).ravel().astype(np.int32) for each in (row, col))
    return Pattern.from_coordinates(count * side, count * side, every_row, every_col)


def _spiked(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    """A few rows, or columns, made 2 to 200 times as long as the mean: what one such row forbids is learnt here."""
    rows, columns = pattern.shape
    few = max(1, min(rows // 4, int(10 ** (3 * float(rng.random()) - 0.5))))
    times = 2 * 100 ** float(rng.random())
    length = max(1, min(columns, int(times * pattern.nonzeros / rows), pattern.nonzeros // few))
    row = np.repeat(rng.integers(0, rows, few, dtype=np.int32), length)
    col = rng.integers(0, columns, len(row), dtype=np.int32)
    spikes = _from(pattern, row, col)
    if rows == columns and rng.random() < 0.3:
        spikes = _transposed(spikes, rng, seed)
    return building.stack([(0, 0, pattern), (0, 0, spikes)], rows, columns)


def _part(pattern: Pattern, rng: np.random.Generator, seed: int) -> Pattern:
    """A window of its rows, and of the columns where those lie if it is square: one domain of several."""
    share, begin = 0.1 + 0.9 * float(rng.random()), float(rng.random())
    rows = max(1, int(share * pattern.rows))
    top = int(begin * (pattern.rows - rows))
    square = pattern.rows == pattern.columns
    return _window(pattern, top, *((top, rows, rows) if square else (0, rows, pattern.columns)))


def strewn(pattern: Pattern, seed: int) -> Pattern:
    """With entries anywhere, a thousandth to a fifth as many as it has; of a quarter in a stretch of its rows alone."""
    rng = building.generator(seed, PURPOSE + 4)
    strays = max(1, int(pattern.nonzeros * 0.2 / 200 ** float(rng.random())))
    share = 1.0 if rng.random() < 0.75 else 0.05 + 0.95 * float(rng.random())
    rows = max(1, int(share * pattern.rows))
    top = int(rng.integers(0, pattern.rows - rows + 1))
    row = top + rng.integers(0, rows, strays, dtype=np.int32)
    found = _from(pattern, row, rng.integers(0, pattern.columns, strays, dtype=np.int32))
    if pattern.rows == pattern.columns and rng.random() < 0.3:
        found = _symmetric(found, rng, seed)
    return building.stack([(0, 0, pattern), (0, 0, found)], *pattern.shape)


def twisted_real(pattern: Pattern, seed: int, most: float) -> Pattern:
    """A real matrix made into another: a part of it, one or two twists, or both. Raises MatrixError where none fits."""
    for attempt in range(64):
        rng = building.generator(seed + 7919 * attempt, PURPOSE + 2)
        found = _part(pattern, rng, seed) if rng.random() < 0.7 else pattern
        found = _twists(found, int(rng.integers(0, 3)), rng, seed)
        if 100 <= found.nonzeros <= most and found.shape != pattern.shape:
            return found
    raise MatrixError(f"No twist number {seed} of this real matrix has 100 to {most:.0f} nonzeros.")


CUT_FROM = 500_000
"""the first number of a drawn matrix that cells are cut out of: far from those that are taken whole"""


def cut_pattern(number: int, draws: Draws) -> Pattern:
    """A drawn matrix without some of its cells: squares of any side, each kept or not as a whole.

    Diagonals are then there in places, rows of one block are shorter than the next, and what a matrix is on the whole
    no longer says what it is at any one place.
    """
    for attempt in range(16):
        pattern = draw_pattern(CUT_FROM + 16 * number + attempt, draws)
        rng = building.generator(CUT_FROM + 16 * number + attempt, PURPOSE + 3)
        side = (2, 3, 4, 6, 8, 16, 32, 64)[int(rng.integers(0, 8))]
        share = (0.3, 0.5, 0.7, 0.85, 0.95)[int(rng.integers(0, 5))]
        up, left = (int(rng.integers(0, side)) for _ in range(2))
        cell = (pattern.row_index().astype(np.int64) + up) // side * (pattern.columns // side + 2)
        found = building.only(pattern, building.chance(cell + (pattern.cols + left) // side, number, share))
        if found.nonzeros >= 100:
            return found
    raise MatrixError(f"No matrix number {number} of 100 nonzeros is left for {draws}. Widen 'least' … 'most'.")


TWISTS = (_transposed, _cropped, _thinned, _doubled, _reordered, _symmetric, _repeated, _spiked)
"""one or two of them change a matrix"""


# ── Shards ────────────────────────────────────────────────────────────────────


def make_examples(numbers: Iterable[int], draws: Draws) -> Examples:
    """Draw, sample and describe these matrices."""
    sizes, entries, named, admitted = [], [], [], []
    for number in numbers:
        pattern = draw_pattern(number, draws)
        sample = sample_pattern(pattern)
        sizes.append((pattern.rows, pattern.columns, pattern.nonzeros))
        entries.append(sample.entries)
        named.append(named_features(pattern))
        admitted.append([admits(pattern, line) is None for line in LINES])
    return Examples(np.array(sizes, dtype=np.int64), np.stack(entries), np.stack(named), np.array(admitted))


def _make_shard(numbers: range, path: Path, draws: Draws) -> Path:
    found = make_examples(numbers, draws)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **vars(found))
    write_atomic(path, buffer.getvalue())
    return path


@dataclass(frozen=True)
class ShardPlan:
    """How many examples, in which files, by how many processes."""

    count: int
    shard: int = 250
    workers: int = 1
    draws: Draws = field(default_factory=Draws)


def build_examples(folder: Path, plan: ShardPlan, told: Callable[[int, int], None] | None = None) -> Examples:
    """Make what is missing of the shards and read them all; `told(done, total)` hears of every finished one."""
    starts = range(0, plan.count, plan.shard)
    facts = {**asdict(plan.draws), "withheld": sorted(plan.draws.withheld), "sample": VERSION}
    facts |= {"lines": [str(line) for line in LINES], "twists": [twist.__name__ for twist in TWISTS]}
    tag = f"{plan.draws.split}-{content_key(facts)[:8]}"  # other draws never share a file
    ranges = [range(at, min(at + plan.shard, plan.count)) for at in starts]
    paths = [folder / f"{tag}-{r.start:07d}-{r.stop:07d}.npz" for r in ranges]
    missing = [(r, path) for r, path in zip(ranges, paths, strict=True) if not path.exists()]
    done = len(paths) - len(missing)
    if told:
        told(done, len(paths))
    for _ in _each_made(missing, plan):
        done += 1
        if told:
            told(done, len(paths))
    return read_examples(paths)


def _each_made(jobs: list[tuple[range, Path]], plan: ShardPlan) -> Iterator[Path]:
    make = partial(_make_shard, draws=plan.draws)
    if plan.workers <= 1 or len(jobs) <= 1:
        yield from (make(*job) for job in jobs)
        return
    with helpers(min(plan.workers, len(jobs))) as pool:
        for future in [pool.submit(make, *job) for job in jobs]:
            yield future.result()


def read_examples(paths: Iterable[Path]) -> Examples:
    """All examples of these shards."""
    parts = []
    for path in paths:
        with np.load(path) as file:
            if file["entries"].shape[1:] != (PLACES, len(FIELDS)) or file["admitted"].shape[1] != len(LINES):
                raise StoreError(f"{path} was made by another version of the sample: delete it and run again.")
            parts.append({name: file[name] for name in ("sizes", "entries", "named", "admitted")})
    return Examples(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
