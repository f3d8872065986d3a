"""A second opinion: an independent script times cuSPARSE and simple kernels on the same matrices, and we compare.

    python -m sparserl.bench anchors --tool PATH.py --matrices DIR --out results/NAME [--dtype f64] [--solver]

The script is loaded by its path and shares no code with this package. It must offer `Case(indptr, indices, shape, size,
solver)` and `cusparse_times`, `plain_times` and `bins_times` of a Case: microseconds by name, NaN where the answer was
wrong. Without `--solver` it multiplies back to back with the same x and y; that is set beside our chain mode, in which
each product reads what the last one wrote. With `--solver` both sides rewrite x between products.

On a GPU that searches and races use at the same time the script waits for its turn: its `time_us`, where it has one, is
alone on the GPU, all else it does is never during another's timing. Before each of these timings the L2 is emptied, as
it is for ours: otherwise the script times cuSPARSE among the dirty lines of what it did before, by up to 60 % slower.

Not covered: SpMM and cold caches, which such a script doesn't time.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from sparserl.bench import archive
from sparserl.bench.matrices import Entry
from sparserl.bench.tables import Record, Row, geometric_mean
from sparserl.errors import BackendError
from sparserl.judge.turn import Turn
from sparserl.matrix import Pattern
from sparserl.records import Problem
from sparserl.store import append_jsonl

CLOSE = 0.05
"""times this near agree"""
NEEDED = ("Case", "cusparse_times", "plain_times", "bins_times")


class Tool(Protocol):
    """What the script must offer."""

    def Case(self, indptr: Any, indices: Any, shape: tuple[int, int], size: int, solver: bool) -> Any: ...  # noqa: N802
    def cusparse_times(self, case: Any) -> Mapping[str, float]: ...
    def plain_times(self, case: Any) -> Mapping[str, float]: ...
    def bins_times(self, case: Any) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Opinion:
    """Our race beside the script's times, for one problem and mode. None where there was nothing to compare."""

    problem: str
    mode: str
    matrices: int
    variants: int
    """(matrix, cuSPARSE variant) pairs that both sides timed"""
    difference: float | None
    """median of |ours / theirs − 1| over these"""
    agreeing: float | None
    """share of them within five per cent"""
    lowest: float | None
    """its best time over ours on the worst matrix; its best is the fastest of cuSPARSE and its own kernels"""
    lowest_matrix: str
    mean: float | None
    mean_over_kernels: float | None
    """the same mean over its own kernels alone, cuSPARSE left out"""
    apart: Mapping[str, float] = field(default_factory=dict)
    """|ours / theirs − 1| by matrix, of the fastest of the variants that both sides timed: what a speed-up is over"""

    @property
    def outliers(self) -> list[str]:
        """The matrices on which they differ by more than five per cent, by most first."""
        return sorted((name for name in self.apart if self.apart[name] > CLOSE), key=lambda name: -self.apart[name])


def load(path: Path) -> Tool:
    """The script as a module. What it needs (CuPy, a GPU) must be there."""
    spec = importlib.util.spec_from_file_location("second_opinion_tool", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BackendError(f"The 'tool' must be a Python file. Got {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise BackendError(f"{path} can't be loaded: {error}. It may need CuPy and a CUDA device.") from error
    missing = [name for name in NEEDED if not hasattr(module, name)]
    if missing:
        raise BackendError(f"{path} has no {', '.join(missing)}: a second opinion needs {', '.join(NEEDED)}.")
    return cast(Tool, module)


def ask(
    tool: Tool, wanted: Iterable[Entry], problem: Problem, out: Path, *, solver: bool,
    turn: Turn | None = None, before: Callable[[], None] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Time matrix after matrix into `anchors.jsonl`; yields a line for each. Those already there are passed over.

    before: called before each of the script's timings, if its `time_us` can be told from the rest.
    """
    if problem.op != "spmv" or problem.dtype not in ("float32", "float64"):
        raise BackendError(f"A second opinion is on spmv in float32 or float64. Got {problem.op} in {problem.dtype}.")
    name, mode = f"spmv {problem.dtype}", "solver" if solver else "chain"
    done = {(r["matrix"], r["problem"], r["mode"]) for r in archive.read(out, "anchors")}
    for entry in wanted:
        if (entry.name, name, mode) in done:
            continue
        start = time.monotonic()
        pattern = entry.load().pattern
        with among_others(tool, turn, before) if turn else nullcontext():
            record = asked(tool, pattern, problem, solver=solver)
        about = {"matrix": entry.name, "problem": name, "mode": mode, "nonzeros": pattern.nonzeros}
        append_jsonl(out / "anchors.jsonl", {**about, **record, "seconds": round(time.monotonic() - start, 2)})
        fastest = {kind: min(_right(times).values(), default=math.nan) for kind, times in record.items()}
        yield f"{entry.name:36s} " + ", ".join(f"{kind} {us:.2f} us" for kind, us in fastest.items())


@contextmanager
def among_others(tool: Tool, turn: Turn, before: Callable[[], None] | None = None) -> Iterator[None]:
    """The script shares the GPU, and has it alone while its `time_us` runs; all the time where it has none."""
    timed = getattr(tool, "time_us", None)
    if timed is None:
        with turn.exclusive():
            yield
        return
    held = ExitStack()

    def alone(*arguments: Any, **named: Any) -> Any:
        held.close()
        try:
            with turn.exclusive():
                if before:
                    before()
                return timed(*arguments, **named)
        finally:
            held.enter_context(turn.shared())

    tool.time_us = alone  # type: ignore[attr-defined]
    try:
        with held:
            held.enter_context(turn.shared())
            yield
    finally:
        tool.time_us = timed  # type: ignore[attr-defined]


def asked(tool: Tool, pattern: Pattern, problem: Problem, *, solver: bool) -> dict[str, dict[str, float | None]]:
    """The script's times of one matrix, by kind and name; None for a wrong answer."""
    case = tool.Case(pattern.row_start, pattern.cols, pattern.shape, problem.value_bytes, solver)
    made = {"cusparse": tool.cusparse_times(case), "plain": tool.plain_times(case), "bins": tool.bins_times(case)}
    return {kind: {name: _clean(us) for name, us in times.items()} for kind, times in made.items()}


def opinions(anchors: Iterable[Record], found: Sequence[Row]) -> list[Opinion]:
    """One Opinion for each problem and mode that the script has timed."""
    latest = {(r["problem"], r["mode"], r["matrix"]): r for r in anchors}
    by_name = {(row.problem, row.matrix): row for row in found}
    grouped: dict[tuple[str, str], list[tuple[Record, Row]]] = {}
    for (problem, mode, matrix), record in latest.items():
        row = by_name.get((problem, matrix))
        if row is not None and mode in row.standings:
            grouped.setdefault((problem, mode), []).append((record, row))
    return [_opinion(problem, mode, pairs) for (problem, mode), pairs in sorted(grouped.items())]


def _opinion(problem: str, mode: str, pairs: Sequence[tuple[Record, Row]]) -> Opinion:
    off: list[float] = []
    apart: dict[str, float] = {}
    over: dict[str, float] = {}
    over_kernels: list[float] = []
    for record, row in pairs:
        theirs = _right(record["cusparse"])
        ours = {c.name: c.times_us[mode] for c in row.baselines if mode in c.times_us}
        both = [(ours[f"cusparse:{name}"], us) for name, us in theirs.items() if f"cusparse:{name}" in ours]
        off += [abs(mine / us - 1) for mine, us in both]
        if both:
            apart[row.matrix] = abs(min(mine for mine, _ in both) / min(us for _, us in both) - 1)
        kernels = [*_right(record["plain"]).values(), *_right(record["bins"]).values()]
        best_us = row.standings[mode].best_us
        if theirs or kernels:
            over[row.matrix] = min([*theirs.values(), *kernels]) / best_us
        if kernels:
            over_kernels.append(min(kernels) / best_us)
    lowest = min(over, key=lambda name: over[name], default="")
    return Opinion(
        problem=problem,
        mode=mode,
        matrices=len(over),
        variants=len(off),
        difference=statistics.median(off) if off else None,
        agreeing=sum(each <= CLOSE for each in off) / len(off) if off else None,
        lowest=over[lowest] if lowest else None,
        lowest_matrix=lowest,
        mean=geometric_mean(over.values()),
        mean_over_kernels=geometric_mean(over_kernels),
        apart=apart,
    )


def _right(times: Mapping[str, float | None]) -> dict[str, float]:
    return {name: us for name, us in times.items() if us is not None}


def _clean(us: float) -> float | None:
    return round(float(us), 4) if math.isfinite(us) else None
