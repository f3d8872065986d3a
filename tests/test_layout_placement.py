"""Where entries lie: small cases worked by hand from docs/contracts.md, for layouts that move entries or list work."""

from __future__ import annotations

import numpy as np
import pytest

from sparserl import layouts
from sparserl.matrix import Pattern
from sparserl.records import Packed


def packed_lengths(text: str, lengths: list[int], columns: int = 40) -> Packed:
    """Row r has the columns r, r + 1 … so that a column tells its place."""
    cols = np.concatenate([np.arange(length) + r for r, length in enumerate(lengths)]).astype(np.int32)
    row_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return layouts.pack(Pattern(len(lengths), columns, row_start, cols), layouts.parse_line(text))


def test_slices_sort_longest_first_and_stable_inside_windows() -> None:
    packed = packed_lengths("slices c=2 sigma=32 group=2 index=int32", [1, 3, 0, 3, 2])
    assert packed.arrays["row_of"].tolist() == [1, 3, 4, 0, 2, -1]
    assert packed.arrays["slice_start"].tolist() == [0, 8, 12, 12]
    assert packed.arrays["cols"].tolist() == [1, 2, 3, 4, 3, -1, 5, -1, 4, 5, 0, -1]


def test_hybrid_keeps_the_tail_behind_the_ell_slots() -> None:
    packed = packed_lengths("hybrid c=2 cover=75 index=int32", [1, 4, 1, 1])
    assert [packed.scalars[k] for k in ("slices", "width", "tail_rows")] == [2, 1, 1]
    assert packed.arrays["tail_row"].tolist() == [1]
    assert packed.arrays["tail_start"].tolist() == [4, 7]
    assert packed.arrays["cols"].tolist() == [0, 1, 2, 3, 2, 3, 4]


def test_bins_put_segments_first_and_then_the_widest_bins() -> None:
    lengths = [3, 600, 0, 40, 1]
    packed = packed_lengths("bins per=1 long=64 segment=256 threads=64 index=int32", lengths, columns=700)
    work = packed.arrays["work"].tolist()
    assert packed.scalars["segments"] == 3
    assert work[:3] == [[1, 3, 259, 3], [1, 259, 515, 3], [1, 515, 603, 3]]
    assert [packed.scalars[f"b{t}"] for t in (32, 16, 8, 4, 2, 1)] == [3, 4, 4, 4, 5, 5]
    assert [packed.scalars[f"d{t}"] for t in (32, 16, 8, 4, 2, 1)] == [3, 5, 5, 5, 21, 21]
    assert work[3:7] == [[3, 603, 643, 0], [-1, 0, 0, 0], [0, 0, 3, 0], [-1, 0, 0, 0]]
    assert work[21:23] == [[2, 603, 603, 0], [4, 643, 644, 0]]
    assert (packed.scalars["blocks"], len(work)) == (6, 21 + 64)


@pytest.mark.parametrize("order", ["step", "lane"])
def test_tiles_give_every_row_the_least_power_of_two_of_lanes(order: str) -> None:
    packed = packed_lengths(f"tiles steps=2 threads=64 order={order} index=int32", [1, 130, 5, 0, 3], columns=200)
    assert (packed.scalars["blocks"], packed.scalars["pieces"]) == (5, 2)
    assert packed.arrays["work"].tolist() == [[64, 0], [64, 1], [4, 2], [2, 18], [1, 50]]
    assert packed.arrays["piece_info"].tolist() == [2, 2]
    row_of = packed.arrays["row_of"].tolist()
    assert row_of[:4] == [1, 1, 2, -1]
    assert (row_of[18], row_of[50:53]) == (4, [0, 3, -1])
    row_2 = packed.arrays["cols"][2 * 128 : 3 * 128].tolist()
    if order == "step":
        assert (row_2[:4], row_2[64:68]) == ([2, 3, 4, 5], [6, -1, -1, -1])
    else:
        assert row_2[:8] == [2, 3, 4, 5, 6, -1, -1, -1]


def test_merge_tiles_hold_equal_numbers_of_row_ends_and_entries() -> None:
    packed = packed_lengths("merge items=64 index=int32", [0, 100, 0, 20], columns=200)
    assert packed.arrays["tile_row"].tolist() == [0, 1, 4]
    assert packed.arrays["tile_entry"].tolist() == [0, 63, 120]


def test_chunks_know_the_row_of_their_first_entry() -> None:
    packed = packed_lengths("chunks size=32 index=int16", [0, 40, 2, 0, 30], columns=100)
    assert packed.arrays["chunk_row"].tolist() == [1, 1, 4, 5]
    assert packed.arrays["col_base"].tolist() == [1, 2, 26]


def test_blocks_and_blockslices_order_values_as_the_contract_says() -> None:
    pattern = Pattern.from_coordinates(4, 5, np.array([0, 1, 1, 2, 3]), np.array([0, 0, 4, 3, 2]))
    data = np.arange(1.0, 6.0)
    expected = {
        "blocks b=2 order=row index=int32": [1, 0, 2, 0, 0, 0, 3, 0, 0, 4, 5, 0],
        "blocks b=2 order=col index=int32": [1, 2, 0, 0, 0, 3, 0, 0, 0, 5, 4, 0],
        "blockslices b=2 c=2 order=block index=int32": [1, 0, 0, 4, 2, 5, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
        "blockslices b=2 c=2 order=row index=int32": [1, 2, 0, 5, 0, 0, 4, 0, 0, 3, 0, 0, 0, 0, 0, 0],
    }
    for text, vals in expected.items():
        packed = layouts.pack(pattern, layouts.parse_line(text))
        assert layouts.place_values(packed, data, "float64").tolist() == vals, text
        assert packed.arrays["cols"].tolist() == ([0, 2, 1] if text.startswith("blocks ") else [0, 1, 2, -1])


def test_diagonals_lie_by_row_in_strides_of_32_with_the_tail_behind() -> None:
    pattern = Pattern.from_coordinates(3, 4, np.array([0, 0, 1, 1, 2, 2, 2]), np.array([0, 3, 1, 2, 0, 2, 3]))
    packed = layouts.pack(pattern, layouts.parse_line("diagonals fill=100 index=none"))
    assert packed.tables["OFFSETS"] == (-2, 0, 3)
    assert (packed.scalars["stride"], packed.scalars["tail_at"], packed.slots) == (32, 96, 98)
    assert packed.arrays["tail_row"].tolist() == [1, 2]
    assert packed.arrays["tail_cols"].tolist() == [2, 3]
    assert packed.slot_of is not None
    assert packed.slot_of.tolist() == [32, 64, 33, 96, 2, 34, 97]


def test_colblocks_list_the_pieces_of_rows_block_by_block() -> None:
    pattern = Pattern.from_coordinates(3, 3000, np.array([0, 0, 2, 2, 2]), np.array([5, 2049, 7, 8, 1024]))
    packed = layouts.pack(pattern, layouts.parse_line("colblocks width=1024 index=int16"))
    assert packed.arrays["block_start"].tolist() == [0, 2, 3, 4]
    assert packed.arrays["entry_row"].tolist() == [0, 2, 2, 0]
    assert packed.arrays["entry_start"].tolist() == [0, 1, 3, 4, 5]
    assert packed.arrays["cols"].tolist() == [5, 7, 8, 0, 1]
