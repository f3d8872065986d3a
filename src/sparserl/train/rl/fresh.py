"""Calls in processes of their own, each started for its call alone: what is timed there owes nothing to others.

    for at, answer in fresh("sparserl.train.rl.side_by_side:race", [argument, …], workers=4): …

Arguments and answers are JSON. A process that fails or dies costs its own call: its answer is {"fault": reason}.
Several run side by side; a timing waits for its turn on the GPU (`judge.turn`).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module
from pathlib import Path
from typing import Any

from sparserl.errors import SparseRLError
from sparserl.lifetime import leave_with
from sparserl.store import read_json, write_json

LIMIT_S = 1800.0
"""the longest that a call may take"""
FAULT = "fault"


def fresh(
    target: str, arguments: Sequence[Mapping[str, Any]], workers: int, until: float = math.inf
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(which argument, its answer), as they get done. What has not begun at `until` (`time.monotonic`) is left out."""
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        asked = {pool.submit(_call, target, each, until): at for at, each in enumerate(arguments)}
        for done in as_completed(asked):
            if (answer := done.result()) is not None:
                yield asked[done], answer
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _call(target: str, argument: Mapping[str, Any], until: float) -> dict[str, Any] | None:
    if time.monotonic() > until:
        return None
    with tempfile.TemporaryDirectory(prefix="sparserl-fresh-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-c", "from sparserl.train.rl.fresh import serve; serve()", target, str(answer)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        asked = json.dumps(argument)
        try:
            done = subprocess.run(
                command, input=asked, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
            )
        except subprocess.TimeoutExpired:
            return {FAULT: f"took longer than {LIMIT_S:g} s"}
        if not answer.exists():
            said = done.stderr.strip().splitlines()
            return {FAULT: f"exit code {done.returncode}" + (f": {said[-1]}" if said else "")}
        found: dict[str, Any] = read_json(answer)
        return found


def serve() -> None:
    """The life of a process: one call, argument on stdin, answer in the file that is named."""
    leave_with(os.getppid())
    target, answer = sys.argv[1:]
    module, _, name = target.partition(":")
    function = getattr(import_module(module), name)
    try:
        found = function(json.load(sys.stdin))
    except SparseRLError as error:
        found = {FAULT: str(error)}
    write_json(Path(answer), found)
