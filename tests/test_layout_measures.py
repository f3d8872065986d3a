"""What `admits` measures without packing is what packing gives: slots, blocks, spans, diagonals."""

from __future__ import annotations

import numpy as np
import pytest

from sparserl import layouts
from sparserl.layouts import blocks, codec, diagonals, slices, tiles
from sparserl.layouts.layout import fold
from sparserl.layouts.lengths import Lengths, row_lengths
from sparserl.matrix import Pattern


def mixed(rows: int, columns: int, seed: int, most: int = 12, reach: int | None = None) -> Pattern:
    """Rows of 0 to `most` entries within `reach` columns, one of them fifty times as long."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, most + 1, rows)
    if rows:
        lengths[rows // 2] = min(columns, 50 * most)
    row = np.repeat(np.arange(rows), lengths)
    spread = reach or columns
    start = row * max(columns - spread, 0) // max(rows, 1)
    col = (start + random.integers(0, spread, len(row))) % columns
    return Pattern.from_coordinates(rows, columns, row, col)


def stencil(rows: int, offsets: tuple[int, ...]) -> Pattern:
    row = np.repeat(np.arange(rows), len(offsets))
    col = row + np.tile(offsets, rows)
    inside = (col >= 0) & (col < rows)
    return Pattern.from_coordinates(rows, rows, row[inside], col[inside])


PATTERNS = {
    "mixed": mixed(700, 900, 1),
    "wide": mixed(90, 200_000, 2),
    "wide but narrow rows": mixed(3000, 200_000, 3, reach=500),
    "tall": mixed(3000, 7, 4),
    "stencil": stencil(4000, (-64, -1, 0, 1, 64)),
    "one row": mixed(1, 50, 5),
    "no rows": Pattern(0, 5, np.zeros(1, np.int32), np.zeros(0, np.int32)),
    "no entries": Pattern(5, 5, np.zeros(6, np.int32), np.zeros(0, np.int32)),
}
each_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())


@each_pattern
def test_lengths_count_every_row(pattern: Pattern) -> None:
    found = row_lengths(pattern)
    assert found.counts.sum() == pattern.rows and found.total(found.values) == pattern.nonzeros
    assert found.longest == pattern.row_lengths.max(initial=0)
    assert found.empty == np.count_nonzero(pattern.row_lengths == 0)
    short = np.where(pattern.row_lengths > 6, 0, pattern.row_lengths)
    again, wanted = found.no_longer_than(6), Lengths.of(short)
    kept = again.counts > 0
    assert again.values[kept].tolist() == wanted.values.tolist()
    assert again.counts[kept].tolist() == wanted.counts.tolist()


@each_pattern
@pytest.mark.parametrize("sigma", [1, 32, 256, 1048576])
def test_sorted_lengths_are_the_lengths_in_sorted_order(pattern: Pattern, sigma: int) -> None:
    lengths = pattern.row_lengths
    wanted = lengths if sigma == 1 else lengths[slices.sorted_order(lengths, sigma)]
    assert slices.sorted_lengths(lengths, sigma).tolist() == wanted.tolist()


def test_lengths_past_16_bits_are_sorted_too() -> None:
    lengths = np.array([3, 70_000, 0, 65_536, 70_000, 1], dtype=np.int32)
    assert slices.sorted_lengths(lengths, 4).tolist() == [70_000, 65_536, 3, 0, 70_000, 1]


@each_pattern
@pytest.mark.parametrize(
    "text",
    [
        "slices c=4 sigma=1 group=2 index=int32",
        "slices c=8 sigma=32 group=1 index=int32",
        "split c=8 sigma=256 group=4 long=16 segment=128 index=int32",
        "split c=32 sigma=1048576 group=1 long=16 segment=128 index=int32",
        "tiles steps=2 threads=64 order=step index=int32",
        "blocks b=3 order=row index=int32",
        "blockslices b=2 c=4 order=row index=int32",
        "hybrid c=4 cover=75 index=int32",
    ],
)
def test_the_slots_that_admits_counts_are_those_of_the_packed_matrix(pattern: Pattern, text: str) -> None:
    line = layouts.parse_line(text)
    packed = layouts.LAYOUTS[line.name].pack(pattern, line)  # also where admits would refuse
    reason = layouts.admits(pattern, line)
    times, spare = (4, 65536) if line.name == "tiles" else (3, 4096)
    assert (reason is None) == (packed.slots <= times * pattern.nonzeros + spare)
    if reason is not None and line.name not in ("blocks", "blockslices"):  # those stop at a lower bound
        assert f" {packed.slots} slots" in reason


@each_pattern
@pytest.mark.parametrize("b", [2, 3, 4, 6, 8])
def test_blocks_are_counted_as_they_are_found(pattern: Pattern, b: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = blocks.find_blocks(pattern, b)
    monkeypatch.setattr(blocks, "PART", 100)
    assert blocks.count_blocks(pattern, b) == len(grid.block_cols)
    assert blocks.blocks_by_row(pattern, b).tolist() == np.diff(grid.block_start).tolist()


@each_pattern
@pytest.mark.parametrize("text", ["tiles steps=1 threads=64", "tiles steps=4 threads=128", "tiles steps=32 threads=64"])
def test_tiles_know_their_widest_block_before_they_are_packed(pattern: Pattern, text: str) -> None:
    line = layouts.parse_line(text + " order=step index=int32")
    steps, threads = line.number("steps"), line.number("threads")
    runs = tiles.plan_tiles(pattern, steps, threads).runs
    exact = codec.widest(tiles._bounds(pattern, runs))
    found = tiles.widest_block(pattern, steps, threads)
    assert found == exact or codec.REACH <= found <= exact
    assert tiles.count_blocks(pattern, steps, threads) == runs.blocks


@each_pattern
@pytest.mark.parametrize("text", ["slices c=4 sigma=1 group=1", "slices c=16 sigma=256 group=1"])
def test_slices_know_their_widest_slice_before_they_are_packed(pattern: Pattern, text: str) -> None:
    line = layouts.parse_line(text + " index=int32")
    c, sigma = line.number("c"), line.number("sigma")
    exact = codec.widest(slices.slice_bounds(pattern, slices.plan_slices(pattern, c, sigma, 1), c))
    found = slices.spans_by_sigma(pattern, sigma)[c]
    assert found == exact or codec.REACH <= found <= exact


@each_pattern
@pytest.mark.parametrize("bundles", [False, True])
@pytest.mark.parametrize("corner", [4, 1024])
def test_diagonals_are_counted_alike_one_by_one_and_in_bundles(
    pattern: Pattern, bundles: bool, corner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagonals, "COUNTED", 0 if bundles else 1 << 30)
    monkeypatch.setattr(diagonals, "CORNER", corner)
    numbers = pattern.cols.astype(np.int64) - pattern.row_index() + pattern.rows - 1
    some, counts = np.unique(numbers, return_counts=True)
    rows, columns = pattern.shape
    offset = some - (rows - 1)
    lengths = np.minimum(rows, columns - offset) - np.maximum(0, -offset)
    wanted = some[counts * 100 >= 10 * lengths]
    found, found_counts = diagonals._filled(diagonals._diagonal_of(pattern), pattern)
    assert found.tolist() == wanted.tolist()
    assert found_counts.tolist() == counts[counts * 100 >= 10 * lengths].tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 8, 12, 96])
@pytest.mark.parametrize("count", [1, 2, 7, 96, 97, 100])
def test_fold_takes_every_few_neighbours_and_the_rest(size: int, count: int) -> None:
    array = np.random.default_rng(count).integers(0, 1000, count)
    wanted = [max(array[i : i + size]) for i in range(0, count, size)]
    assert fold(np.maximum, array, size).tolist() == wanted
