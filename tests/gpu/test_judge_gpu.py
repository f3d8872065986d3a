"""The judge on a matrix whose numbers stay on the GPU from one program to the next (`judge.stock`)."""

from __future__ import annotations

import pytest

from sparserl import recipes
from sparserl.families import make
from sparserl.judge import stock
from sparserl.judge.evaluate import Judge
from sparserl.judge.plain import plain
from sparserl.records import Problem, Verdict

pytestmark = pytest.mark.gpu


def test_a_large_matrix_tells_right_from_wrong_in_every_layout() -> None:
    problem, pattern = Problem(dtype="float64"), make("stencil2d", 0, nx=900, ny=800, points=5)
    assert 8 * pattern.nonzeros > stock.KEPT_FROM["values"]
    right = plain(problem)
    by_layout = {recipe.layout.name: recipe.text for recipe in recipes.admissible(recipes.summarise(pattern, problem))}
    wrong = right.replace("row_start[row + 1]", "row_start[row + 1] - (row == 4711)")
    assert wrong != right and len(by_layout) > 4
    with Judge("cuda") as judge:
        case = judge.open(pattern, problem, pooled=True)
        texts = [right, wrong, *by_layout.values(), right, wrong]
        first, again = (case.judge(texts, modes=("solver",)) for _ in range(2))
    for outcomes in (first, again):
        expected = [Verdict.WRONG if text == wrong else Verdict.CORRECT for text in texts]
        assert [each.verdict for each in outcomes] == expected, [each.reason for each in outcomes]
