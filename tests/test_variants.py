"""Variants of recipe programs: new texts that keep the contract, and that the judge finds right."""

from __future__ import annotations

import random
import re

import pytest

from sparserl.errors import ProgramError
from sparserl.families import make
from sparserl.judge.evaluate import Judge
from sparserl.program import check_signature, parse
from sparserl.recipes import Recipe, admissible, space, summarise
from sparserl.records import Problem
from sparserl.screen import screen
from sparserl.train.mutations import KINDS, Draft
from sparserl.train.mutations.tree import without_comments
from sparserl.train.skeleton import skeleton
from sparserl.train.variants import ALL_KINDS, CROSSOVER, Variant, mutate, variants

SPMV = Problem()
SPMM = Problem("spmm", "float32", 64)
PROBLEMS = {"spmv": SPMV, "spmm": SPMM}
SPMM_ONLY = ("tile_order", "tiles_apart", "broadcast")

NEW_SKELETONS = (
    "accumulators", "backwards", "batch", "broadcast", "coarsen", "descriptors", "early", "fuse", "lanes", "pairwise", 
    "persistent", "pipeline", "reverse", "tile_order", "tiles_apart", "vector", "window",
)  # fmt: skip


def bare(text: str) -> str:
    return re.sub(r"\s", "", without_comments("\n" + parse(text).body))


def spread(problem: Problem, stride: int, offset: int = 0) -> list[Recipe]:
    return list(space(problem))[offset::stride]


def first_made(kind: str, problem: Problem) -> Variant:
    """The first variant of a kind over a spread of the recipes."""
    for number, recipe in enumerate(spread(problem, 37)):
        made = mutate(recipe.text, problem, random.Random(number), kind)
        if made is not None:
            return made
    raise AssertionError(f"no recipe admits {kind}")


@pytest.mark.parametrize("op", PROBLEMS)
def test_a_draft_without_a_change_is_the_program_it_was_read_from(op: str) -> None:
    problem = PROBLEMS[op]
    for recipe in spread(problem, 41):
        again = Draft.read(recipe.text, problem).text
        assert bare(again) == bare(recipe.text)
        assert again[: again.index("extern")].startswith(recipe.text[: recipe.text.index("<<<")])


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_makes_a_program_that_keeps_the_contract(kind: str) -> None:
    problem = SPMM if kind in SPMM_ONLY else SPMV
    made = first_made(kind, problem)
    screen(made.text)
    check_signature(parse(made.text), problem)
    assert bare(made.text) != bare(made.parents[0]) or parse(made.text).layout != parse(made.parents[0]).layout
    assert made.mutations == (kind,)


@pytest.mark.parametrize("kind", NEW_SKELETONS)
def test_kinds_that_rewrite_a_loop_or_a_mapping_give_a_new_skeleton(kind: str) -> None:
    problem = SPMM if kind in SPMM_ONLY else SPMV
    assert skeleton(first_made(kind, problem).text) not in _skeletons(problem)


def _skeletons(problem: Problem) -> set[str]:
    known = _SKELETONS.setdefault(problem, set())
    if not known:
        known |= {skeleton(recipe.text) for recipe in spread(problem, 7)}
    return known


_SKELETONS: dict[Problem, set[str]] = {}


def test_variants_are_distinct_and_no_recipe() -> None:
    texts = {recipe.text for recipe in space(SPMV)}
    parent = spread(SPMV, 1)[5]
    found = variants(parent.text, SPMV, random.Random(3), 12)
    assert len(found) == 12
    assert len({variant.text for variant in found}) == 12
    assert not texts & {variant.text for variant in found}
    assert all(v.parents[0] == parent.text for v in found)


def test_variants_of_one_seed_are_the_same_and_of_another_are_not() -> None:
    text = spread(SPMV, 1)[700].text
    once, again = (variants(text, SPMV, random.Random(1), 4) for _ in range(2))
    assert once == again
    assert once != variants(text, SPMV, random.Random(2), 4)


def test_some_variants_are_several_mutations_away() -> None:
    found = variants(spread(SPMV, 1)[40].text, SPMV, random.Random(0), 16)
    assert {len(variant.mutations) for variant in found} >= {1, 2}


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"'kinds' of variants must be among .* Got 'melt'"):
        variants(space(SPMV)[0].text, SPMV, random.Random(0), 1, ("melt",))


def test_a_text_that_is_no_program_has_no_variants() -> None:
    assert variants("int main() {}", SPMV, random.Random(0), 2) == []


STRANGE = """// layout: rows index=int32
// launch: spmv<<<div_up(rows, 64), 64>>>
extern "C" __global__ void __launch_bounds__(64) spmv(
    int rows, int columns, int nonzeros, int padded, const int* row_start, const index_t* cols, const value_t* vals,
    const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    int j = row_start[row];
    while (j < row_start[row + 1]) {
        sum = sum + vals[j] * x[cols[j]];
        ++j;
    }
    y[row] = sum;
}
"""


@pytest.mark.parametrize("kind", ["batch", "early", "pipeline", "vector", "accumulators", "backwards", "depth"])
def test_a_loop_that_is_no_known_walk_is_left_alone(kind: str) -> None:
    assert mutate(STRANGE, SPMV, random.Random(0), kind) is None


def test_a_sum_that_feeds_itself_is_no_walk() -> None:
    text = next(r.text for r in space(SPMV) if "sum += vals[j] * x[cols[j]]" in r.text and "c[k]" not in r.text)
    twisted = text.replace("sum += vals[j] * x[cols[j]]", "sum += sum * vals[j] * x[cols[j]]")
    assert mutate(text, SPMV, random.Random(0), "batch") is not None
    assert mutate(twisted, SPMV, random.Random(0), "batch") is None


def test_another_block_size_stands_in_the_bounds_and_the_launch_line() -> None:
    made = [mutate(r.text, SPMV, random.Random(i), "threads") for i, r in enumerate(spread(SPMV, 101))]
    found = [variant for variant in made if variant is not None]
    assert len(found) > 10
    for variant in found:
        bounds = re.findall(r"__launch_bounds__\((\d+)\)", variant.text)
        assert sorted(bounds) == sorted(launch.block for launch in parse(variant.text).launches)


def test_pdl_comes_and_goes_with_its_rules() -> None:
    plain = next(r for r in space(SPMV) if r.family == "row_persistent")
    added = mutate(plain.text, SPMV, random.Random(0), "pdl")
    assert added is not None
    assert parse(added.text).launches[0].pdl
    assert "__restrict__ x" not in added.text
    assert added.text.index("pdl_wait();") < added.text.index("x[stream(")
    removed = mutate(added.text, SPMV, random.Random(0), "pdl")
    assert removed is not None
    assert bare(removed.text) == bare(plain.text)


def test_a_crossover_names_both_parents() -> None:
    made = first_made(CROSSOVER, SPMV)
    assert len(made.parents) == 2
    assert made.parents[0] != made.parents[1]


# one matrix with long rows, short ones and empty ones: most layouts admit it, and every path is walked
MIXED = ("longrows", {"rows": 200, "columns": 220, "per_row": 4, "long": 150, "long_share": 0.02})


@pytest.mark.slow
@pytest.mark.parametrize("op", PROBLEMS)
def test_the_judge_finds_the_variants_right(op: str) -> None:
    problem = PROBLEMS[op]
    pattern = make(MIXED[0], 5, **MIXED[1])
    fitting = admissible(summarise(pattern, problem, 132))
    rng = random.Random(11)
    made: list[Variant] = []
    for kind in ALL_KINDS if op == "spmv" else ("batch", "persistent", "vector", "descriptors", *SPMM_ONLY):
        for recipe in rng.sample(fitting, 12):
            variant = mutate(recipe.text, problem, rng, kind)
            if variant is not None:
                made.append(variant)
                break
    assert len({v.mutations for v in made}) >= (20 if op == "spmv" else 6)
    with Judge("sim") as judge:
        outcomes = judge.open(pattern, problem, seed=1).judge([variant.text for variant in made])
    wrong = [(v.mutations, o.verdict.name, o.reason) for v, o in zip(made, outcomes, strict=True) if not o.correct]
    assert not wrong


def test_a_skeleton_forgets_names_numbers_comments_and_spacing() -> None:
    text = space(SPMV)[0].text
    changed = re.sub(r"\bsum\b", "total", text).replace("acc_t total = 0;", "acc_t   total = 0;  // begins at nothing")
    changed = changed.replace("64", "128").replace("div_up(rows, 64)", "div_up(rows, 128)")
    assert changed != text
    assert skeleton(changed) == skeleton(text)


def test_a_skeleton_knows_an_unrolled_loop_a_primitive_and_a_second_launch() -> None:
    text = next(r.text for r in space(SPMV) if r.family == "row_lanes" and "warp_sum" in r.text and "#" not in r.text)
    unrolled = text.replace("    for (int j", "    #pragma unroll 2\n    for (int j")
    assert skeleton(unrolled) != skeleton(text)
    assert skeleton(unrolled) == skeleton(unrolled.replace("unroll 2", "unroll 8"))
    assert skeleton(re.sub(r"warp_sum<\d+>", "block_sum<64>", text)) != skeleton(text)
    assert len({skeleton(r.text) for r in spread(SPMV, 50)}) > 8


def test_a_skeleton_of_no_program_is_refused() -> None:
    with pytest.raises(ProgramError):
        skeleton("nothing")


def test_every_kind_is_in_the_registry_once() -> None:
    assert set(ALL_KINDS) == set(KINDS) | {CROSSOVER}
    assert len(ALL_KINDS) >= 12
