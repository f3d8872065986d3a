"""Any program as a peer: `--peer 'ginkgo=./spmv_bench --matrix {mtx} --x {x} --out {y}'`.

The command is run once a mode, without a shell. What it may name in braces:

    {mtx}      a Matrix Market file (coordinate real general) with the matrix; must be there
    {x}        x, or B, as raw little-endian numbers of the problem's type, in its memory order
    {y}        where to write y, or C, in the same way; with it the result is verified, without it the time is shown and
               never counted as verified
    {op} {dtype} {columns} {mode}    spmv or spmm; float32 …; 1 …; chain, solver or cold

It must print a line `time_us 12.3`: microseconds of one product, format conversion left out. Several such lines are
rounds; the median counts. A time-out, another exit code than 0 and an output without such a line are faults.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io

from sparserl.bench.peers import Reading, Subject, faults
from sparserl.errors import SparseRLError
from sparserl.matrix import Matrix
from sparserl.records import Mode, Timing
from sparserl.values import STORAGE, widen

LINE = re.compile(r"^time_us[ \t]+([0-9.eE+-]+)[ \t]*$", re.MULTILINE)
DIGITS = {"float64": 17, "float32": 9, "float16": 9, "bfloat16": 9}
"""decimal digits from which a number comes back as it was"""
PLACES = ("mtx", "x", "y", "op", "dtype", "columns", "mode")
SHOWN = 200
"""characters of a program's last words"""


@dataclass(frozen=True)
class Command:
    """Implements `peers.Peer`."""

    name: str
    command: str
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise SparseRLError(f"The name of a '--peer' must be one word. Got {self.name!r}.")
        try:
            words = shlex.split(self.command)
            named = {name for _, name, _, _ in string.Formatter().parse(self.command) if name is not None}
        except ValueError as error:
            raise SparseRLError(f"The command of the peer {self.name!r} can't be read: {error}.") from error
        if not words or "mtx" not in named or not named <= set(PLACES):
            raise SparseRLError(
                f"The command of the peer {self.name!r} must name {{mtx}} and may name "
                f"{', '.join(f'{{{place}}}' for place in PLACES[1:])}. Got {self.command!r}."
            )

    def why_not(self) -> str:
        program = shlex.split(self.command)[0]
        return "" if "{" in program or shutil.which(program) else f"there is no program {program!r}"

    def measure(self, subject: Subject) -> Iterator[Reading]:
        with tempfile.TemporaryDirectory(prefix="sparserl-peer-") as folder:
            try:
                files = _written(subject, Path(folder))
            except OSError as error:
                yield from faults([self.name], subject, "gpu", f"its files can't be written: {error}")
                return
            for mode in subject.modes:
                yield self._reading(subject, mode, files)

    def _reading(self, subject: Subject, mode: Mode, files: Mapping[str, str]) -> Reading:
        problem = subject.problem
        facts = {"op": problem.op, "dtype": problem.dtype, "columns": str(problem.columns), "mode": mode}
        arguments = [word.format(**files, **facts) for word in shlex.split(self.command)]
        Path(files["y"]).unlink(missing_ok=True)
        more = {"how": "its own clock"}
        times, fault = _run(arguments, self.timeout_s)
        if fault:
            return Reading(self.name, mode, "gpu", fault=fault, more=more)
        low, lower, median, upper, high = (float(q) for q in np.quantile(times, (0.1, 0.25, 0.5, 0.75, 0.9)))
        timing = Timing(mode, "gpu", median, (low, lower, upper, high), rounds=len(times))
        if "{y}" not in self.command:
            return Reading(self.name, mode, "gpu", timing, more=more)
        fault = _checked(subject, Path(files["y"]))
        return Reading(self.name, mode, "gpu", timing, verified=not fault, fault=fault, more=more)


def parse_peer(text: str) -> Command:
    """'name=command with {mtx}'."""
    name, equals, command = text.partition("=")
    if not equals:
        raise SparseRLError(f"A '--peer' must read 'name=command {{mtx}}'. Got {text!r}.")
    return Command(name.strip(), command.strip())


def _written(subject: Subject, folder: Path) -> dict[str, str]:
    """The files a command may name, with the numbers that it is checked by."""
    files = {name: str(folder / f"{name}.{'mtx' if name == 'mtx' else 'bin'}") for name in ("mtx", "x", "y")}
    check, dtype = subject.check, subject.problem.dtype
    numbers = Matrix(subject.matrix.pattern, widen(check.values, dtype)).to_scipy()
    scipy.io.mmwrite(files["mtx"], numbers.tocoo(), field="real", symmetry="general", precision=DIGITS[dtype])
    check.x.tofile(files["x"])
    return files


def _run(arguments: list[str], timeout_s: float) -> tuple[list[float], str]:
    """(times, '') or ([], what went wrong). Its whole process group ends with it."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return [], f"can't be started: {error}"
    try:
        said, complained = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return [], f"took longer than {timeout_s:g} s"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        last = (complained.strip() or said.strip()).splitlines()[-1:]
        return [], f"ended with exit code {process.returncode}: {''.join(last)[:SHOWN]}".rstrip(": ")
    return _times(said)


def _times(said: str) -> tuple[list[float], str]:
    found = []
    for text in LINE.findall(said):
        with suppress(ValueError):
            found.append(float(text))
    if not found:
        return [], f"printed no line 'time_us 12.3': {said.strip()[-SHOWN:]!r}"
    bad = [value for value in found if not (math.isfinite(value) and value > 0)]
    return ([], f"printed a time of {bad[0]} us") if bad else (found, "")


def _checked(subject: Subject, path: Path) -> str:
    """'' where the file holds the product."""
    if not path.is_file():
        return "wrote no result to {y}"
    stored = STORAGE[subject.problem.dtype]
    if path.stat().st_size % stored.itemsize:
        return f"wrote {path.stat().st_size} bytes to {{y}}, not whole numbers of {stored.itemsize}"
    return subject.wrong(np.fromfile(path, dtype=stored))
