"""Cheating and broken kernels, one a file in tests/hostile, each stopped with the verdict that its first lines expect.

    // expect: WRONG                or, by machine:   // expect sim: FAILED   // expect cuda: WRONG|FAILED
    // tries: what it does, in words
    // problem: float64             (float32 where it isn't said)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparserl.judge.evaluate import Case, Judge
from sparserl.matrix import Pattern
from sparserl.recipes import admissible, summarise
from sparserl.records import Problem, Verdict

FILES = sorted((Path(__file__).parent / "hostile").glob("*.cu"))
ROWS = 203


def awkward() -> Pattern:
    """Square, of an odd size, with empty rows (the first too), a full row, and entries in the last row and column."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 14, ROWS)
    lengths[::9], lengths[100] = 0, ROWS
    row = np.repeat(np.arange(ROWS), lengths)
    col = np.concatenate([random.choice(ROWS, size, replace=False) for size in lengths])
    return Pattern.from_coordinates(ROWS, ROWS, np.append(row, ROWS - 1), np.append(col, ROWS - 1))


def read(path: Path) -> tuple[dict[str, set[Verdict]], Problem, str]:
    """What is expected of each machine, the problem, and the program without its leading notes."""
    expected: dict[str, set[Verdict]] = {}
    dtype, lines = "float32", path.read_text().splitlines(keepends=True)
    while note := re.match(r"// (expect|tries|problem)(?: (sim|cuda))?: (.*)", lines[0]):
        kind, machine, text = note.groups()
        if kind == "expect":
            for name in (machine,) if machine else ("sim", "cuda"):
                expected[name] = {Verdict[word] for word in text.split("|")}
        elif kind == "problem":
            dtype = text
        lines.pop(0)
    return expected, Problem(dtype=dtype), "".join(lines)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    with Judge(request.param, limit_s=6.0) as judge:
        yield judge


@pytest.fixture(scope="module")
def cases(judge: Judge) -> dict[Problem, Case]:
    pattern = awkward()
    problems = {read(path)[1] for path in FILES}
    return {problem: judge.open(pattern, problem, seed=11) for problem in problems}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_hostile_kernel_is_stopped_with_its_verdict(path: Path, judge: Judge, cases: dict[Problem, Case]) -> None:
    expected, problem, text = read(path)
    outcome = cases[problem].judge([text])[0]
    allowed = expected[judge.device.backend]
    assert outcome.verdict in allowed, f"{outcome.verdict.name}, expected {[v.name for v in allowed]}: {outcome.reason}"
    assert outcome.reason and not outcome.timings


def test_every_file_says_what_it_expects_and_tries() -> None:
    assert len(FILES) >= 30
    for path in FILES:
        expected, _, text = read(path)
        assert set(expected) == {"sim", "cuda"}, path.name
        assert Verdict.CORRECT not in expected["sim"] | expected["cuda"], path.name
        assert "// tries: " in path.read_text() and text.startswith("// layout:"), path.name


def test_nobody_else_is_blamed_for_what_a_stray_write_broke(judge: Judge) -> None:
    """Layouts of other programs stay in the worker, beside the one that writes outside. (A simulator stops it.)"""
    stray = read(FILES[0].with_name("writes_far_outside.cu"))[2]
    texts, seen = [], set()
    for recipe in admissible(summarise(awkward(), Problem(), judge.device.sms)):
        if recipe.layout.name not in seen and len(texts) < 6:
            seen.add(recipe.layout.name)
            texts.append(recipe.text)
    case = judge.open(awkward(), Problem(), seed=12)
    rounds = [*texts, stray, *texts, stray, *texts[:2]]
    outcomes = case.judge(rounds)
    blamed = {text: outcome.reason for text, outcome in zip(rounds, outcomes, strict=True) if not outcome.correct}
    assert set(blamed) == {stray}, blamed
    assert len(texts) == 6


def test_an_honest_program_passes_after_all_of_them(cases: dict[Problem, Case]) -> None:
    from sparserl.judge.plain import plain

    for problem, case in cases.items():
        outcome = case.judge([plain(problem)])[0]
        assert outcome.correct, outcome.reason
