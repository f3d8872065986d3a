"""Layout lines that no recipe has: where a matrix is known to admit one, it may be written and is never taught away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparserl.families import Spec
from sparserl.layouts import LAYOUTS, admits, parse_line
from sparserl.program import parse, render
from sparserl.recipes import admissible, space, summarise
from sparserl.records import Problem, Verdict
from sparserl.train.controls import SMS
from sparserl.train.rl.admitted import lines_of
from sparserl.train.rl.explore import Elites
from sparserl.train.rl.found_lines import ANY, AT_LEAST, FoundLines, widened
from sparserl.train.rl.nouns import Judged, Prompt

SPMV = Problem()
PATTERNS = [
    Spec("powerlaw", 1_000_001, {"rows": 900, "columns": 900, "per_row": 9.0, "eighths": 4, "popular": 4}).make(),
    Spec("longrows", 1_000_002, {"rows": 500, "columns": 70_000, "per_row": 5.0, "long": 4, "long_share": 0.6,
                                 "reach": 500}).make(),
    Spec("stencil2d", 1_000_003, {"nx": 40, "ny": 30, "points": 5}).make(),
]  # fmt: skip
BINS = next(line for line in lines_of(SPMV) if line.startswith("bins ") and "int32" in line)


def admitted(number: int) -> tuple[str, ...]:
    return tuple(sorted({str(recipe.layout) for recipe in admissible(summarise(PATTERNS[number], SPMV, SMS))}))


def changed(line: str, **numbers: int | str) -> str:
    """The line with other numbers."""
    parsed = parse_line(line)
    return str(replace(parsed, params=tuple((key, str(numbers.get(key, value))) for key, value in parsed.params)))


@pytest.mark.parametrize("number", range(len(PATTERNS)))
def test_what_is_taken_to_be_admitted_is_admitted(number: int) -> None:
    """Every line of a recipe with each free number moved to every other that the layout has."""
    known = admitted(number)
    found = {
        changed(line, **{key: value})
        for line in lines_of(SPMV)
        for key in {*ANY.get(line.split()[0], ()), *AT_LEAST.get(line.split()[0], ())}
        for value in LAYOUTS[line.split()[0]].choices[key]
    } - {*lines_of(SPMV)}
    new = widened(known, tuple(sorted(found)))[len(known) :]
    assert new, "there is something to be taken"
    for line in new:
        assert admits(PATTERNS[number], parse_line(line)) is None, line


def test_shorter_pieces_and_other_numbers_are_not_taken() -> None:
    known = admitted(0)
    shortest = min(parse_line(line).number("segment") for line in known if line.startswith("bins "))
    line = next(line for line in known if line.startswith("bins ") and parse_line(line).number("segment") == shortest)
    longer, shorter = changed(line, segment=4 * shortest, per=3), changed(line, segment=shortest // 2)
    other_threads = changed(line, threads=64)
    assert widened(known, (longer, shorter, other_threads)) == (*known, longer)
    assert widened((), (longer,)) == ()


def test_lines_of_the_archive_are_found_for_their_operation_alone() -> None:
    recipe = next(each for each in space(SPMV) if str(each.layout) == BINS)
    line = changed(BINS, per=3)
    text = render(replace(parse(recipe.text), layout=parse_line(line)))
    spmv, spmm = (Prompt("a", {}, problem, "skewed") for problem in (SPMV, Problem("spmm", "float32", 64)))
    elites = Elites()
    judged = Judged(Verdict.CORRECT, times_us={"solver": 1.0}, baseline_us={"solver": 2.0}, retimed=True)
    found = FoundLines(lambda prompt: [BINS])
    found.look_through(elites)
    assert [*found(spmv)] == [BINS]
    assert elites.offer(spmv, text, judged, 0.0, 0) and elites.offer(spmv, recipe.text, judged, 0.0, 0) is not None
    found.look_through(elites)
    assert found.found == {"spmv": (line,)}, "a recipe's line is not new"
    assert [*found(spmv)] == [BINS, line] and [*found(spmm)] == [BINS]
