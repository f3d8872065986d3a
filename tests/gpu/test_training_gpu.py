"""Training on a GPU: all stages walk through on a tiny policy, and the referee's verdicts and times are the GPU's."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sparserl.judge.plain import plain
from sparserl.records import Problem
from sparserl.store import read_jsonl
from sparserl.train.cases import range_up_to, training_cases
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.referee import open_referee
from sparserl.train.rl.referee_worker import RefereeConfig

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
RIGHT = {op: plain(Problem(op, columns=columns)) for op, columns in (("spmv", 1), ("spmm", 64))}  # type: ignore[arg-type]


@pytest.mark.timeout(300)
def test_all_stages_walk_through_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "run"
    environment = {**os.environ, "PYTHON": sys.executable, "DEVICE": "cuda"}
    walked = ["bash", str(ROOT / "runs" / "cpu.sh"), str(out)]
    done = subprocess.run(walked, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cases, measured = (read_jsonl(out / "collection" / f"{name}.jsonl") for name in ("cases", "measured"))
    assert len(cases) == 3 and not any("fault" in line for line in cases), cases
    right = [row for row in measured if row["verdict"] == "CORRECT"]
    assert {row["origin"] for row in right} == {"recipe", "variant"}
    assert all(row["registers"] > 0 and row["solver_us"] > 0.9 * row["floor_solver_us"] for row in right)
    assert all(row["baseline_solver_us"] > 0 for row in measured)
    words = ["train", "rl", "--weights", str(out / "rank"), "--out", str(out / "rl"), "--rounds", "1", "--prompts", "2"]
    words += ["--group", "4", "--cases", "4", "--most-nonzeros", "5e3", "--problem", "spmv f32", "--max-tokens", "120"]
    words += ["--workers", "1", "--imitate-steps", "1", "--k", "4"]
    learnt = [sys.executable, "-m", "sparserl", *words]
    done = subprocess.run(learnt, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("op", ["spmv", "spmm"])
def test_a_referee_judges_and_times_on_the_gpu(op: str) -> None:
    problem = Problem(op, columns=64 if op == "spmm" else 1)  # type: ignore[arg-type]
    right = RIGHT[op]
    wrong, rubbish = right.replace("sum += ", "sum -= "), "rubbish"
    cases = training_cases(problem, 3, within=range_up_to(problem, 2e5))
    prompts = [Prompt(case.name, case.source, problem, "regular") for case in cases]
    with closing(open_referee("cuda", RefereeConfig(workers=2))) as referee:
        found = dict(referee.judge([(prompt, [right, wrong, rubbish]) for prompt in prompts]))
        longer = referee.retime(prompts[0], [right], None)
    for verdicts in found.values():
        assert [each.verdict.name for each in verdicts] == ["CORRECT", "WRONG", "UNREADABLE"]
        assert verdicts[0].source == "gpu" and 0 < verdicts[0].floor_us["solver"] < verdicts[0].times_us["solver"]
        assert verdicts[0].baseline_us["solver"] > 0
    assert longer[right].retimed and longer[right].times_us["solver"] > 0
