"""The named terms of the cost model: what a recipe does to a matrix, in about fifty numbers.

Physical ones (time to move the packed bytes, to gather x, to walk the longest loop) and the recipe's own settings, on
logarithmic scales. `cost` multiplies them with coefficients that were fitted to measured times.
"""

from __future__ import annotations

from math import ceil, log, log1p, log2

from sparserl.recipes.summary import Summary
from sparserl.recipes.writer import Recipe

L2_BYTES = 45e6
"""what stays in an L2 of 60 MB from product to product"""
L2_TB_S, MEMORY_TB_S, GATHER_TB_S = 5.5, 4.1, 5.0
STEP_US = 0.12
"""one more step of a loop that overlaps nothing"""
RESIDENT = 132 * 2048
"""threads that an H200 holds at once"""


def terms(recipe: Recipe, s: Summary) -> dict[str, float]:
    """All terms by name, in a fixed order."""
    wide, lanes = s.problem.columns, _number(recipe, "lanes", 1)
    packed_us, gathers_us, loop_us, big = _times(recipe, s)
    slots = s.slots(recipe.layout)
    base = log(1.1 + packed_us + 0.7 * gathers_us + loop_us)
    ratio = _log2(s.mean / lanes)
    stream, narrow = float(recipe.setting("load") == "stream"), float(recipe.layout.index != "int32")
    threads = _log2(_number(recipe, "threads", 0) or _param(recipe, "threads", 128)) - 7
    unroll, steps = _log2(_number(recipe, "unroll", 1)), _log2(_param(recipe, "steps", 1))
    vector = lanes * _number(recipe, "vec", 1) * _number(recipe, "tile", 1)
    return {
        "one": 1.0,
        "base": base,
        "packed": log(1.1 + packed_us),
        "gathers": log(1.1 + gathers_us),
        "loop": log(1 + loop_us),
        "waves": log1p(slots / RESIDENT),
        "rows": _log2(s.pattern.rows) / 10,
        "pdl": float(recipe.pdl),
        "pdl base": float(recipe.pdl) * base,
        "stream": stream,
        "stream big": stream * big,
        "big": big,
        "early": _number(recipe, "early", 0) / 4,
        "batch": _log2(1 + _number(recipe, "batch", 0)),
        "full": _number(recipe, "full", 0),
        "unroll": unroll,
        "unroll off four": (unroll - 2) ** 2,
        "unrolled": float(unroll > 0),
        "late": _number(recipe, "late", 0),
        "threads": threads,
        "threads squared": threads**2,
        "lanes": _log2(lanes),
        "mean by lanes": ratio,
        "mean by lanes squared": ratio**2 / 4,
        "mean off lanes": abs(ratio),
        "abs16": float(recipe.layout.index == "abs16"),
        "int16": float(recipe.layout.index == "int16"),
        "narrow big": big * narrow,
        "group": _log2(_param(recipe, "group", 1)),
        "sigma": _log2(_param(recipe, "sigma", 1)) / 5,
        "steps": steps,
        "steps squared": steps**2 / 4,
        "lane order": float(recipe.layout.get("order") == "lane"),
        "split": _number(recipe, "split", 0),
        "per": _log2(_param(recipe, "per", 1)),
        "long": _log2(_param(recipe, "long", 64)) - 6,
        "segment": _log2(_param(recipe, "segment", 1024)) - 10,
        "block": _log2(_param(recipe, "b", 1)),
        "column block": _log2(_param(recipe, "width", 8192)) - 13,
        "items": _log2(_param(recipe, "items", 512)) - 9,
        "chunk": _log2(_param(recipe, "size", 256)) - 8,
        "cover": _param(recipe, "cover", 0) / 100,
        "spread of rows": log1p(s.deviation / max(1e-6, s.mean)),
        "longest by mean": log1p(s.longest / max(1.0, s.mean)) / 3,
        "padding": _log2(slots / max(1, s.pattern.nonzeros)),
        "rows each": _number(recipe, "rows_each", 1),
        "grid waves": _number(recipe, "waves", 1),
        "spread": _number(recipe, "spread", 1),
        "tail": float(_number(recipe, "tail_lanes", 0) > 0),
        "single": _number(recipe, "single", 0),
        "vector": _log2(_number(recipe, "vec", 1)),
        "tile": _log2(_number(recipe, "tile", 1)),
        "share of N": _log2(vector / wide),
        "shuffle": _number(recipe, "shuffle", 0),
        "parts": _log2(_number(recipe, "parts", 1)),
    }


def _times(recipe: Recipe, s: Summary) -> tuple[float, float, float, float]:
    """Microseconds to move what is packed and dense, to gather x, to walk the longest loop; 1.0 if past the L2."""
    slots, value_bytes, wide = s.slots(recipe.layout), s.problem.value_bytes, s.problem.columns
    moved = slots * (value_bytes + _index_bytes(recipe)) + 4.0 * s.pattern.rows
    moved += (s.pattern.rows + s.pattern.columns) * value_bytes * wide
    big = moved > L2_BYTES
    gathers_us = s.gather_bytes * max(1.0, wide / 8) / GATHER_TB_S / 1e6
    at_once = max(2.0, *(_number(recipe, key, 1) for key in ("early", "unroll", "batch")))
    overlap = 32.0 if recipe.setting("full") else at_once
    loop_us = STEP_US * max(0.0, _serial_steps(recipe, s) / overlap - 1)
    return moved / (MEMORY_TB_S if big else L2_TB_S) / 1e6, gathers_us, loop_us, float(big)


def _index_bytes(recipe: Recipe) -> float:
    """Bytes of column index an entry carries."""
    if recipe.layout.name == "diagonals":
        return 0.0
    wide = 4.0 if recipe.layout.index == "int32" else 2.0
    if recipe.layout.name in ("blocks", "blockslices"):
        return wide / recipe.layout.number("b") ** 2
    return wide


def _serial_steps(recipe: Recipe, s: Summary) -> float:
    """Loop steps of the busiest lane."""
    lanes, layout = _number(recipe, "lanes", 1), recipe.layout
    by_row = s.longest / (lanes if lanes > 1 else _param(recipe, "group", 1))
    if layout.name in ("tiles", "diagonals"):
        return 1.0
    if layout.name == "split":
        short = min(s.longest, layout.number("long")) / (lanes if lanes > 1 else layout.number("group"))
        return max(short, layout.number("segment") / 32)
    if recipe.family == "spmm_items":
        return min(s.longest, layout.number("long")) * 0.3
    if recipe.family == "spmm_bins":
        together = min(s.longest, layout.number("segment")) * lanes / _number(recipe, "threads", 1)
        return max(min(s.longest, layout.number("long")), together) * 0.3
    if layout.name == "bins":
        longest = min(s.longest, layout.number("long"))
        return max(layout.number("per"), longest / 32, layout.number("segment") / layout.number("threads"))
    if layout.name in ("merge", "chunks", "colblocks"):
        return 8.0
    if layout.name in ("blocks", "blockslices"):
        return ceil(s.longest / layout.number("b")) / _number(recipe, "spread", 1)
    if layout.name == "hybrid":
        return s.row_quantile(layout.number("cover"))
    if recipe.family == "row_block":
        return s.longest / _number(recipe, "threads", 1)
    if recipe.family in ("spmm_row", "spmm_split"):
        return s.longest * 0.3 / _number(recipe, "parts", 1)
    return by_row


def _number(recipe: Recipe, key: str, default: float) -> float:
    """A setting as a number."""
    return float(recipe.setting(key, default))  # type: ignore[arg-type]


def _param(recipe: Recipe, key: str, default: float) -> float:
    """A parameter of the layout line as a number."""
    text = recipe.layout.get(key)
    return float(text) if text else default


def _log2(value: float) -> float:
    return log2(max(1e-3, value))
