"""Which matrices a recipe is for, beyond what its layout admits: limits of registers, shared memory and patience.

Where a layout admits a matrix, no recipe on it is wrong: one that is unfit is slow, asks for more than the machine has,
or shares its text with another. So a policy that misreads a matrix loses speed, not the result.
"""

from __future__ import annotations

from sparserl.layouts.layout import refuse_slots
from sparserl.layouts.slices import ell_slots
from sparserl.matrix import Pattern
from sparserl.recipes.summary import Summary
from sparserl.recipes.writer import Recipe
from sparserl.records import LayoutLine

SHARED_BYTES = 200_000
"""of the 227 KB a block may have on Hopper; the rest is for the primitives' own"""
HELD_ENTRIES = 32
"""entries a thread keeps in registers before they spill"""
SERIAL_STEPS = 4096
"""entries one lane may add up one after the other before a row is hopelessly serial"""
FEW_LANES = ("row_lanes", "row_persistent", "row_staged", "nonempty_lanes", "slice_rows", "filled_slices")
"""families that give a row a fixed number of lanes, however long it is"""


def padded(pattern: Pattern, layout: LayoutLine) -> str | None:
    """None, or why recipes leave this layout alone, although it admits the matrix: it would be padding mostly."""
    if layout.name != "ell":
        return None
    return refuse_slots("ell", ell_slots(pattern, layout), pattern.nonzeros)


def _splits(recipe: Recipe, summary: Summary) -> bool:
    return summary.longest > recipe.layout.number("threads") * recipe.layout.number("steps")


def unfit(recipe: Recipe, summary: Summary) -> str | None:
    """None, or why this recipe is not for this matrix."""
    pattern, problem, longest = summary.pattern, summary.problem, summary.longest
    lanes = int(recipe.setting("lanes", 1))
    group = int(recipe.layout.get("group", "1"))
    if recipe.family == "row_staged":
        if pattern.columns * problem.value_bytes > SHARED_BYTES:
            return f"x of {pattern.columns} columns does not fit into shared memory"
        if recipe.setting("single") and pattern.nonzeros > 20_000:
            return f"{pattern.nonzeros} nonzeros are too many for a single block"
    if recipe.setting("full") and longest == 0:
        return "there are no entries to hold"
    if recipe.setting("full") and longest > HELD_ENTRIES * (lanes if lanes > 1 else 1):
        return f"rows of up to {longest} entries don't fit into registers"
    if recipe.setting("full") and group > 1 and lanes == 1 and longest < group:
        return "rows are shorter than a vector load"
    if recipe.family == "row_block" and pattern.nonzeros < 64 * pattern.rows:
        return "rows are too short for a block each"
    if recipe.family in FEW_LANES and longest > SERIAL_STEPS * lanes:
        return f"the longest row, {longest} entries, would be added up by {lanes} lanes"
    if recipe.family.startswith("spmm_") and recipe.family != "spmm_chunk" and longest > 16 * SERIAL_STEPS:
        return f"the longest row, {longest} entries, would be added up by one group"
    if recipe.family == "spmm_split" and longest < 2 * int(recipe.setting("parts")):
        return f"rows of up to {longest} entries are too short to share"
    if recipe.family == "spmm_bins" and longest <= recipe.layout.number("long"):
        return "no row is long enough for a block of its own"
    if recipe.family == "tile" and bool(recipe.setting("split")) != _splits(recipe, summary):
        return "no row needs to be split" if recipe.setting("split") else "a row is longer than a block holds"
    if (reason := padded(pattern, recipe.layout)) is not None:
        return reason
    if recipe.family == "split_slices" and longest <= recipe.layout.number("long"):
        return "no row is long enough to leave the slices"
    if recipe.family == "diagonals":
        kept, outside = summary.diagonals(recipe.layout.number("fill"))
        if kept * int(recipe.setting("rows_each")) > 2 * HELD_ENTRIES:
            return f"{kept} diagonals don't fit into registers"
        if bool(recipe.setting("tail_lanes")) != bool(outside):
            return f"{outside} entries lie outside the diagonals"
    if recipe.layout.name in ("nonempty", "filled") and not summary.lengths.empty:
        return "there are no empty rows"
    if recipe.family == "column_blocks" and not 0 < pattern.columns <= 200 * recipe.layout.number("width"):
        return f"{pattern.columns} columns make no column blocks, or too many"
    return None
