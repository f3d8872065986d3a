"""The launch expression language says what it means and refuses everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparserl.errors import ProgramError
from sparserl.expression import BLOCK, DEPTH_LIMIT, GRID, LENGTH_LIMIT, SHARED, evaluate, names_in

NAMES = {"rows": 1000, "slices": 33, "sms": 132, "n": 64, "empty": 0}


@pytest.mark.parametrize(("text", "value"), [
    ("7", 7),
    ("rows", 1000),
    ("1 + 2 * 3", 7),
    ("(1 + 2) * 3", 9),
    ("20 - 5 - 3", 12),
    ("100 / 7", 14),
    ("100 % 7", 2),
    ("100 / 7 * 7", 98),
    ("2 - 5 + 4", 1),
    ("-3 + rows", 997),
    ("div_up(rows, 128)", 8),
    ("div_up(rows,1000)", 1),
    ("div_up(empty, 4)", 0),
    ("min(div_up(rows, 8), sms * 2)", 125),
    ("max(1, empty)", 1),
    ("  rows*  n ", 64000),
])  # fmt: skip
def test_an_expression_has_its_usual_value(text: str, value: int) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(("text", "complaint"), [
    ("", "got 'the end'"),
    ("rows +", "got 'the end'"),
    ("1 2", "operator at '2'"),
    ("nonsense", "'nonsense' is unknown"),
    ("rows / empty", "division by zero"),
    ("rows % 0", "division by zero"),
    ("div_up(rows, 0)", "division by zero"),
    ("div_up(rows)", "expected ','"),
    ("min(1, 2", r"expected '\)'"),
    ("max", r"expected '\('"),
    ("1 << 4", "not part of the language"),
    ("2 ** 3", "expected a number"),
    ("rows.bit_length", "not part of the language"),
    ("__import__('os')", "not part of the language"),
    ("rows; 1", "not part of the language"),
    ("1.5", "not part of the language"),
    ("0x10", "operator at 'x10'"),
    ("rows and 1", "operator at 'and'"),
    ("abs(3)", "'abs' is unknown"),
])  # fmt: skip
def test_everything_else_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ProgramError, match=complaint):
        evaluate(text, NAMES)


def test_a_refusal_names_the_expression_and_the_names_it_could_use() -> None:
    with pytest.raises(ProgramError, match=r"'colums' can't be read.*rows, slices, sms"):
        evaluate("colums", NAMES)


def test_long_deep_and_huge_expressions_are_refused() -> None:
    with pytest.raises(ProgramError, match="at most"):
        evaluate("1" + " + 1" * LENGTH_LIMIT, NAMES)
    with pytest.raises(ProgramError, match="nest deeper"):
        evaluate("(" * (DEPTH_LIMIT + 1) + "1" + ")" * (DEPTH_LIMIT + 1), NAMES)
    with pytest.raises(ProgramError, match=r"larger than 2\^62"):
        evaluate(" * ".join(["1000000"] * 12), NAMES)


def test_many_minus_signs_do_not_recurse() -> None:
    assert evaluate("-" * (LENGTH_LIMIT - 2) + "5", NAMES) == 5


def test_results_stay_within_what_a_launch_can_be() -> None:
    assert evaluate("empty", NAMES, GRID) == 0
    for text, within in (("2147483648", GRID), ("0 - 1", GRID), ("0", BLOCK), ("1025", BLOCK), ("300 * 1024", SHARED)):
        with pytest.raises(ProgramError, match="must be in"):
            evaluate(text, NAMES, within)


def test_the_names_of_an_expression_leave_out_functions() -> None:
    assert names_in("min(div_up(rows, 8), sms * rows)") == ("rows", "sms")


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["rows", "slices", "sms", "1", "7", "128"])
    return st.recursive(
        leaves,
        lambda inner: st.builds(lambda a, o, b: f"({a} {o} {b})", inner, st.sampled_from("+-*"), inner)
        | st.builds(lambda f, a, b: f"{f}({a}, {b})", st.sampled_from(["min", "max"]), inner, inner),
        max_leaves=8,
    )


@given(expressions())
def test_the_parser_agrees_with_python_on_what_both_can_read(text: str) -> None:
    try:
        value = evaluate(text, NAMES)
    except ProgramError as error:
        assert "2^62" in str(error) or "at most" in str(error) or "nest" in str(error)
    else:
        assert value == eval(text, {"__builtins__": {}}, {**NAMES, "min": min, "max": max})
