"""One suite for every layout × shape: the packed arrays hold the matrix, exactly, where the contract says."""

from __future__ import annotations

import re
import time
from functools import cache

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layout_shapes import LINES, SHAPES, from_lengths
from sparserl import layouts
from sparserl.errors import LayoutError
from sparserl.layouts import memo
from sparserl.layouts.codec import INDEX_DTYPES
from sparserl.layouts.layout import refuse_slots
from sparserl.matrix import Pattern
from sparserl.records import Packed
from sparserl.values import widen

every_line = pytest.mark.parametrize("text", LINES)
every_shape = pytest.mark.parametrize("shape", SHAPES)


@cache
def pattern_of(shape: str) -> Pattern:
    return SHAPES[shape]()


@cache
def packed_of(text: str, shape: str) -> Packed | None:
    """The packed shape; None where the layout refuses it, and then packing fails with the same reason."""
    pattern, line = pattern_of(shape), layouts.parse_line(text)
    reason = layouts.admits(pattern, line)
    if reason is None:
        return layouts.pack(pattern, line)
    with pytest.raises(LayoutError) as error:
        layouts.pack(pattern, line)
    assert str(error.value) == reason
    return None


def numbers(pattern: Pattern, seed: int = 0) -> np.ndarray:
    """Small whole numbers, some of them explicit zeros: sums are exact in any order."""
    return np.random.default_rng(seed).integers(-8, 9, pattern.nonzeros).astype(np.float64)


def csr(pattern: Pattern, data: np.ndarray) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array((data, pattern.cols, pattern.row_start), shape=pattern.shape)


def assert_unpacks(packed: Packed, pattern: Pattern) -> None:
    data = numbers(pattern)
    row_start, cols, found = layouts.unpack(packed, layouts.place_values(packed, data, "float64"))
    np.testing.assert_array_equal(row_start, pattern.row_start)
    np.testing.assert_array_equal(cols, pattern.cols)
    np.testing.assert_array_equal(found, data)


@every_line
@every_shape
def test_unpack_gives_back_exactly_what_was_packed(text: str, shape: str) -> None:
    if packed := packed_of(text, shape):
        assert_unpacks(packed, pattern_of(shape))


@every_line
@every_shape
def test_truth_equals_scipy(text: str, shape: str) -> None:
    if packed := packed_of(text, shape):
        pattern = pattern_of(shape)
        matrix, vals = csr(pattern, numbers(pattern)), layouts.place_values(packed, numbers(pattern), "float64")
        b = np.random.default_rng(1).integers(-8, 9, (pattern.columns, 3)).astype(np.float64)
        np.testing.assert_array_equal(layouts.truth_spmv(packed, vals, b[:, 0]), matrix @ b[:, 0])
        np.testing.assert_array_equal(layouts.truth_spmm(packed, vals, b), matrix @ b)


@every_line
@every_shape
def test_nan_and_inf_of_x_reach_only_rows_with_an_entry_there(text: str, shape: str) -> None:
    packed, pattern = packed_of(text, shape), pattern_of(shape)
    if packed is None or not pattern.columns:
        return
    rng = np.random.default_rng(2)
    x = rng.integers(1, 9, pattern.columns).astype(np.float64)
    bad = rng.choice(pattern.columns, size=-(-pattern.columns // 10), replace=False)
    x[bad] = np.where(rng.random(len(bad)) < 0.5, np.nan, np.inf)
    data = np.abs(numbers(pattern)) + 1.0
    y = layouts.truth_spmv(packed, layouts.place_values(packed, data, "float64"), x)
    touched = csr(pattern, np.ones(pattern.nonzeros)) @ np.isin(np.arange(pattern.columns), bad) > 0
    np.testing.assert_array_equal(~np.isfinite(y), touched)


@every_line
@every_shape
def test_the_contract_names_what_is_packed_in_order_and_type(text: str, shape: str) -> None:
    packed = packed_of(text, shape)
    if packed is None:
        return
    *params, last = layouts.contract(packed.layout)
    assert (last.name, last.ctype) == ("vals", "const value_t*")
    assert [p.name for p in params if not p.is_array] == list(packed.scalars)
    assert [p.name for p in params if p.is_array] == list(packed.arrays)
    known = {**packed.scalars, **{k: int(v) for k, v in packed.layout.params if v.isdigit()}, "slots": packed.slots}
    for param in (p for p in params if p.is_array):
        array = packed.arrays[param.name]
        assert array.flags.c_contiguous
        assert array.dtype == (INDEX_DTYPES[packed.layout.index] if "index_t" in param.ctype else np.int32)
        assert array.shape[1:] == {"const int2*": (2,), "const int4*": (4,)}.get(param.ctype, ())
        length = re.split("[,:]", param.length)[0]
        if set(re.findall("[a-z_]+", length)) <= set(known):
            assert len(array) == eval(length, {}, known), param
    assert packed.scalars["padded"] == (packed.slots > packed.nonzeros)
    if packed.slot_of is None:
        assert packed.slots == packed.nonzeros
    else:
        assert packed.slot_of.dtype == np.int32
        assert len(np.unique(packed.slot_of)) == packed.nonzeros


@every_line
def test_new_values_equal_packing_anew(text: str) -> None:
    for shape in SHAPES:
        if packed := packed_of(text, shape):
            new = numbers(pattern_of(shape), seed=7)
            again = layouts.place_values(layouts.pack(pattern_of(shape), packed.layout), new, "float32")
            np.testing.assert_array_equal(layouts.place_values(packed, new, "float32"), again)
            assert len(again) == packed.slots


@every_line
def test_every_line_is_admitted_by_several_shapes(text: str) -> None:
    filled = [shape for shape in SHAPES if pattern_of(shape).nonzeros and packed_of(text, shape)]
    assert len(filled) >= 3, filled


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    rows, columns = draw(st.integers(1, 70)), draw(st.integers(1, 90))
    lengths = draw(st.lists(st.integers(0, min(columns, 12)), min_size=rows, max_size=rows))
    if draw(st.booleans()):
        lengths[draw(st.integers(0, rows - 1))] = columns
    return from_lengths(columns, np.array(lengths), draw(st.integers(0, 2**16)))


@pytest.mark.parametrize("name", layouts.LAYOUTS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_pattern_in_any_line_unpacks_exactly(name: str, data: st.DataObject) -> None:
    layout = layouts.LAYOUTS[name]
    values = [f"{key}={data.draw(st.sampled_from(all_of))}" for key, all_of in layout.choices.items()]
    line = layouts.parse_line(" ".join([name, *values, f"index={data.draw(st.sampled_from(layout.codecs))}"]))
    pattern = data.draw(patterns())
    if layouts.admits(pattern, line) is None:
        assert_unpacks(layouts.pack(pattern, line), pattern)


# Values


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_padding_is_negative_zero_and_nothing_else_is(dtype: str) -> None:
    pattern = from_lengths(9, np.array([2, 5, 0, 1]), 0)
    packed = layouts.pack(pattern, layouts.parse_line("ell c=4 group=1 index=int32"))
    data = np.array([-0.0, 0.0, -1e-320, 1.5, -2.0, np.nan, np.inf, -0.0])
    vals = layouts.place_values(packed, data, dtype)  # type: ignore[arg-type]
    wide = widen(vals, dtype)  # type: ignore[arg-type]
    negative_zero = (wide == 0) & np.signbit(wide)
    np.testing.assert_array_equal(negative_zero, packed.arrays["cols"] < 0)
    expected = data if dtype == "float64" else np.where(np.abs(data) < 1e-300, 0.0, data)
    np.testing.assert_array_equal(widen(layouts.unpack(packed, vals)[2], dtype), expected)  # type: ignore[arg-type]


def test_values_of_the_wrong_number_are_refused() -> None:
    packed = layouts.pack(pattern_of("one by one"), layouts.parse_line("rows index=int32"))
    with pytest.raises(LayoutError, match="must hold its 1 nonzeros"):
        layouts.place_values(packed, np.ones(2), "float32")


# Refusals


@pytest.mark.parametrize(
    ("shape", "text", "reason"),
    [
        ("beyond 16 bits", "rows index=abs16", "at most 65535 columns. Got 160000"),
        ("beyond 16 bits", "slices c=32 sigma=1 group=1 index=int16", "span fewer than 65535 columns"),
        ("single dense row", "diagonals fill=10 index=none", "at most 128"),
        ("power law", "ell c=1 group=1 index=int32", "6 · nonzeros"),
        ("power law", "tiles steps=32 threads=1024 order=step index=int32", "4 · nonzeros"),
        ("all rows empty", "diagonals fill=10 index=none", "no diagonal filled to 10 per cent"),
        ("random", "blocks b=8 order=row index=int32", "3 · nonzeros"),
        ("random", "blockslices b=4 c=64 order=row index=int32", "3 · nonzeros"),
    ],
)
def test_a_refusal_gives_its_reason(shape: str, text: str, reason: str) -> None:
    assert reason in (layouts.admits(pattern_of(shape), layouts.parse_line(text)) or "")


@every_line
@every_shape
def test_padding_is_refused_exactly_past_the_limit(text: str, shape: str) -> None:
    line, pattern = layouts.parse_line(text), pattern_of(shape)
    reason = layouts.admits(pattern, line) or ""
    if reason and "slots" not in reason:
        return
    slots = layouts.LAYOUTS[line.name].pack(pattern, line).slots
    times, spare = {"tiles": (4, 65536), "ell": (6, 4096)}.get(line.name, (3, 4096))
    assert ("slots" in reason) == (slots > times * pattern.nonzeros + spare)


def long_rows(rows: int, length: int) -> Pattern:
    """Only for `admits`, which doesn't look at columns here: they take no memory."""
    row_start = (np.arange(rows + 1) * length).astype(np.int32)
    return Pattern(rows, length, row_start, np.broadcast_to(np.int32(0), (rows * length,)))


@pytest.mark.parametrize(
    ("pattern", "text", "reason"),
    [
        (long_rows(1, 4096 * 256), "bins per=1 long=64 segment=256 threads=64 index=int32", "4096 pieces; the limit"),
        (long_rows(2**19, 65), "bins per=1 long=64 segment=256 threads=64 index=int32", "524288 pieces in all"),
        (long_rows(1, 4096 * 64), "tiles steps=1 threads=64 order=step index=int32", "4096 pieces; the limit"),
        (long_rows(2**18, 65), "tiles steps=1 threads=64 order=step index=int32", "524288 pieces in all"),
        (from_lengths(1024 * 4096 + 1, np.array([1]), 0), "colblocks width=1024 index=int16", "at most 4096 blocks"),
    ],
)
def test_limits_on_pieces_and_blocks_are_kept(pattern: Pattern, text: str, reason: str) -> None:
    assert reason in (layouts.admits(pattern, layouts.parse_line(text)) or "")


def test_more_slots_than_an_int_can_count_are_refused() -> None:
    assert "the limit is 2147483647" in (refuse_slots("ell", 2**31, 2**30) or "")
    assert refuse_slots("ell", 2**31 - 1, 2**30) is None


def test_what_is_remembered_of_a_pattern_goes_with_it() -> None:
    pattern = from_lengths(9, np.array([2, 5, 0, 1]), 0)
    before = len(memo._facts)
    layouts.admits(pattern, layouts.parse_line("slices c=2 sigma=32 group=1 index=int32"))
    assert len(memo._facts) == before + 1
    del pattern
    assert len(memo._facts) == before


# Layout lines


@every_line
def test_a_layout_line_prints_back_as_written(text: str) -> None:
    assert str(layouts.parse_line(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "A layout must be one of rows, nonempty, filled, slices"),
        ("csr index=int32", "A layout must be one of rows.* Got 'csr'"),
        ("rows", "last parameter of layout 'rows' must be 'index', one of int32, abs16, int16"),
        ("merge index=int32 items=64", "last parameter of layout 'merge' must be 'index'"),
        ("rows index=none", "'index' of layout 'rows' must be one of int32, abs16, int16. Got 'none'"),
        ("merge items index=int32", "must be written KEY=VALUE. Got 'items'"),
        ("merge items=65 index=int32", "'items' of layout 'merge' must be one of 64, .* Got '65'"),
        ("merge items=064 index=int32", "'items' of layout 'merge' must be one of"),
        ("merge size=64 index=int32", "no parameter 'size'. Its parameters are items, index"),
        ("ell c=32 index=int32", "needs the parameter 'group', one of 1, 2"),
        ("ell group=1 c=32 index=int32", "must be c, group, index, once each and in this order"),
        ("merge items=64 items=64 index=int32", "once each"),
        ("diagonals fill=10 index=int32", "must be one of none"),
    ],
)
def test_a_bad_layout_line_is_refused_with_the_valid_choices(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layouts.parse_line(text)


# Speed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "millions_a_second"),
    [
        ("rows index=int32", 20),
        ("nonempty index=int32", 20),
        ("bins per=2 long=1024 segment=1024 threads=256 index=int32", 20),
        ("merge items=512 index=int32", 20),
        ("chunks size=256 index=int32", 20),
        ("slices c=32 sigma=1024 group=4 index=int32", 5),
        ("ell c=32 group=1 index=int16", 5),
        ("tiles steps=4 threads=128 order=step index=int32", 5),
    ],
)
def test_packing_keeps_up_with_reading(text: str, millions_a_second: float) -> None:
    rows, length = 200_000, 25
    window = np.arange(rows) // 2
    cols = (np.arange(rows * length) % length + np.repeat(window, length)).astype(np.int32)
    pattern = Pattern(rows, rows, (np.arange(rows + 1) * length).astype(np.int32), cols)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        layouts.pack(pattern, layouts.parse_line(text))
        seconds.append(time.perf_counter() - begin)
    assert pattern.nonzeros / min(seconds) / 1e6 >= millions_a_second
