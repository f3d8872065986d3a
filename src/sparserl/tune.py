"""tune: a matrix goes in, candidates are ranked, judged and timed, and the best comes out as an Operator.

    op = sparserl.tune(A, op="spmv", dtype="float32", device="auto", candidates=16)

Where cuSPARSE is present it is the baseline and the fallback: if none of the candidates beats its best variant, the
operator runs cuSPARSE and says so. Results are kept in the cache (`SPARSERL_CACHE`), so the same pattern on the same
device takes milliseconds the second time. Ctrl-C keeps what is known: the best verified candidate so far is returned.

With a language model as policy, `turns=2` or 3 lets it rewrite its programs once they are judged; the turns share
`candidates` evenly, and each rewrites the best programs so far (`proposals.Turns`).

This module is loaded by `import sparserl`, so what it needs is imported when it runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from sparserl import policies
from sparserl.errors import SparseRLError
from sparserl.records import MODES, SHORT_DTYPES, VALUE_BYTES, Mode, Op, Order, Problem
from sparserl.version import VERSION

if TYPE_CHECKING:
    from sparserl.backends.backend import Backend, Binary, Device
    from sparserl.engine import Engine
    from sparserl.findings import Findings
    from sparserl.matrix import Matrix, Pattern
    from sparserl.operator import Operator
    from sparserl.referee import Ahead
    from sparserl.search import Progress

log = logging.getLogger(__name__)
DEVICES = ("auto", "cuda", "sim")
MOST_CANDIDATES = 4096
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Settings:
    """How a matrix is tuned; checked when made."""

    problem: Problem
    device: str = "auto"
    """'cuda', 'sim' (no GPU needed, times are modelled), or 'auto': cuda where there is one"""
    candidates: int = 16
    """programs to try, those of all turns together"""
    policy: str = "recipes"
    """'nano', 'recipes', the folder of a language model, or the path of a program or of a folder of them (*.cu)"""
    seed: int = 0
    """of the numbers that candidates are verified with"""
    mode: Mode = "solver"
    """what is timed: 'chain' back to back, 'solver' with x rewritten between products, 'cold' with an empty L2"""
    turns: int = 1
    """1 to 3: so often a language model writes, from the second time on told how its programs fared"""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise SparseRLError(f"The 'device' of tune must be one of {', '.join(DEVICES)}. Got {self.device!r}.")
        if self.mode not in MODES:
            raise SparseRLError(f"The 'mode' of tune must be one of {', '.join(MODES)}. Got {self.mode!r}.")
        if not 1 <= self.candidates <= MOST_CANDIDATES:
            raise SparseRLError(f"The 'candidates' of tune must be in 1..{MOST_CANDIDATES}. Got {self.candidates}.")
        if self.policy == "recipes" and self.problem.op == "spmv" and self.problem.value_bytes == 2:
            raise SparseRLError(
                f"The recipes multiply a vector in float32 or float64. Got {self.problem.dtype!r}, which they have for "
                "op='spmm' alone: with columns=1 that is one vector."
            )
        if not 0 <= self.seed <= LARGEST_SEED:
            raise SparseRLError(f"The 'seed' of tune must be in 0..{LARGEST_SEED}. Got {self.seed}.")
        if self.policy != "recipes" and not self.folder.exists():
            raise SparseRLError(
                f"The 'policy' of tune must be one of {', '.join(policies.NAMES)}, or the path of a policy, a program "
                f"or a folder of them. Got {self.policy!r}, which is not there."
            )
        if self.turns != 1:
            self._check_turns()

    @property
    def folder(self) -> Path:
        """Of a policy that is not 'recipes'."""
        return policies.folder_of(self.policy)

    def _check_turns(self) -> None:
        from sparserl.policy.feedback import MOST_TURNS

        if not 1 <= self.turns <= MOST_TURNS:
            raise SparseRLError(f"The 'turns' of tune must be in 1..{MOST_TURNS}. Got {self.turns}.")
        if not policies.is_policy(self.folder):
            raise SparseRLError(
                f"More than one turn needs a 'policy' that writes programs: the folder of a language model. Got turns="
                f"{self.turns} with {self.policy!r}, which can't answer a verdict: give such a folder, or turns=1."
            )
        if self.turns > self.candidates:
            raise SparseRLError(
                "The turns of tune share its candidates, so there must be one for each. "
                f"Got {self.turns} turns and {self.candidates} candidates."
            )


def tune(
    A: Any,
    op: Op = "spmv",
    *,
    dtype: Any = "float32",
    device: str = "auto",
    columns: int = 1,
    candidates: int = 16,
    policy: str | Path = "auto",
    seed: int = 0,
    mode: Mode = "solver",
    turns: int = 1,
    cache: bool = True,
    progress: Callable[[Progress], None] | None = None,
    b_order: Order = "row",
    c_order: Order = "row",
) -> Operator:
    """Find a fast, verified operator for A.

    A: a SciPy, torch or CuPy sparse matrix, a path (.mtx, .mtx.gz, .npz) or 'suitesparse:Group/Name'.
    op: 'spmv' (y = A x) or 'spmm' (C = A B with `columns` columns; `b_order`, `c_order`: 'row' or 'col' major).
    dtype: 'float32', 'float64', for spmm also 'float16' or 'bfloat16' (or f32 …, or a NumPy or torch dtype).
    policy: who writes: 'nano', the language model that comes with the package, 'recipes', or a path (`Settings`);
        'auto' is nano for what it writes well, as it says itself. If nothing it writes is right, recipes are tried too.
    progress: called with a `search.Progress` at every step.
    The other arguments: see `Settings`. The operator's `report` holds every candidate with its verdict and time.
    """
    from sparserl.engine import machine
    from sparserl.matrix import as_matrix
    from sparserl.operator import Operator
    from sparserl.phases import phase
    from sparserl.referee import ahead_of
    from sparserl.value_order import value_order

    problem = make_problem(op, dtype, columns, b_order, c_order)
    count, seed, turns = _whole("candidates", candidates), _whole("seed", seed), _whole("turns", turns)
    settings = Settings(problem, device, count, policies.settled(str(policy), problem), seed, mode, turns)
    began = time.perf_counter()
    matrix = as_matrix(A)
    if not matrix.pattern.rows:
        raise SparseRLError(f"A matrix of {matrix.shape[0]} x {matrix.shape[1]} has no rows: there is nothing to tune.")
    read_s = time.perf_counter() - began
    order = value_order(A, matrix.pattern)
    told = _told(device)
    kept = _Kept(matrix.pattern, settings, told) if cache else None
    if kept is not None and (hit := kept.get()) is not None and (backend := machine(device)).name == told[0]:
        engine = _engine(matrix, settings.problem, hit.source, backend, generated=hit.generated, binary=hit.binary)
        return Operator(matrix, settings.problem, engine, {**hit.report, "from_cache": True}, order)
    asked = matrix.pattern, settings.problem, settings.seed
    with ahead_of(told[0], settings.candidates, asked) as ahead:  # the judge starts while torch does
        backend = machine(device)
        if backend.name != told[0]:  # torch can't use the GPU that its driver has, and has said so
            return tune(
                A, op, dtype=dtype, device="sim", columns=columns, candidates=count, policy=policy, seed=seed,
                mode=mode, turns=turns, cache=cache, progress=progress, b_order=b_order, c_order=c_order,
            )  # fmt: skip
        start_s = time.perf_counter() - began - read_s
        found = explore(matrix.pattern, settings, ahead, progress)
        about = _about(matrix.pattern, settings, ahead.machine())
    found.phases_s = {"read": read_s, "start": start_s, **found.phases_s}
    with phase(found.phases_s, "operator"):
        engine, name = _settle(matrix, settings, found, backend)
    report = {**found.record(about, name), "from_cache": False}
    if kept is not None and found.complete:
        kept.put(engine, report)
    return Operator(matrix, settings.problem, engine, report, order)


def _told(device: str) -> tuple[str, str, str]:
    """Backend, name and arch of the machine; of a GPU by its driver, before torch is imported."""
    from sparserl.backends import cuda
    from sparserl.engine import machine

    told = cuda.identity() if device != "sim" else None
    if told is None:
        found = machine(device).device()
        return found.backend, found.name, found.arch
    return told


def make_problem(op: str, dtype: Any, columns: int, b_order: str = "row", c_order: str = "row") -> Problem:
    """A Problem from what a user writes; errors are the user's to read."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    name = SHORT_DTYPES.get(name, name)
    if name not in VALUE_BYTES:
        raise SparseRLError(f"The 'dtype' of tune must be one of {', '.join(VALUE_BYTES)}. Got {dtype!r}.")
    columns = _whole("columns", columns)
    if b_order not in get_args(Order) or c_order not in get_args(Order):
        raise SparseRLError(f"'b_order' and 'c_order' must be 'row' or 'col'. Got {b_order!r} and {c_order!r}.")
    try:
        return Problem(op, name, columns, b_order, c_order)  # type: ignore[arg-type]  # checked in __post_init__
    except ValueError as error:
        raise SparseRLError(str(error)) from error


def _whole(name: str, value: object) -> int:
    """A user's whole number, NumPy's too, as a plain int: reports are JSON."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SparseRLError(f"The '{name}' of tune must be a whole number. Got {value!r}.")
    return int(value)


def explore(
    pattern: Pattern, settings: Settings, ahead: Ahead, progress: Callable[[Progress], None] | None = None
) -> Findings:
    """Choose candidates; `ahead`, their judge, verifies and times them. No Operator yet."""
    from sparserl.findings import Findings
    from sparserl.proposals import first_candidates, recipe_candidates
    from sparserl.referee import open_referee
    from sparserl.search import Progress, halve

    watch = progress or (lambda step: None)
    began = time.perf_counter()
    writes = settings.policy != "recipes" and policies.is_policy(settings.folder)
    watch(Progress("writing" if writes else "ranking", 0, settings.candidates))
    chosen, rewrite = first_candidates(pattern, settings, ahead.machine)
    source = "gpu" if ahead.device == "cuda" else "modelled"
    found = Findings(settings.mode, source, chosen, phases_s={"rank": time.perf_counter() - began})
    with open_referee(settings.mode, ahead) as referee:
        halve(found, referee, watch, rewrite)
        if found.best is None and not found.interrupted and settings.policy == "nano":
            written = len(found.candidates)
            found.candidates += recipe_candidates(pattern, settings, ahead.machine())
            halve(found, referee, watch, first=written)
        if found.complete:
            found.worker_s = referee.worker_s()
    return found


def _settle(matrix: Matrix, settings: Settings, found: Findings, backend: Backend) -> tuple[Engine, str]:
    """The engine of what won, and its name. cuSPARSE stays where nothing beat it."""
    best, baseline = found.best, found.baseline
    library = baseline is not None and baseline[0].startswith("cusparse")
    if baseline is not None and library and (best is None or baseline[1].median_us < (best.time_us or 0.0)):
        name = baseline[0]
        log.info("%s stays: none of %d candidates was faster.", name, len(found.candidates))
        return _engine(matrix, settings.problem, name, backend, generated=False), name
    if best is None:
        if found.interrupted:
            raise KeyboardInterrupt
        why = "; ".join(sorted({f"{c.verdict}: {c.reason}" for c in found.candidates})[:3]) or "the matrix admits none"
        raise SparseRLError(f"None of {len(found.candidates)} candidates was verified ({why}). Try more --candidates.")
    return _engine(matrix, settings.problem, best.text, backend, generated=True), best.name


def _engine(
    matrix: Matrix, problem: Problem, source: str, backend: Backend, *, generated: bool, binary: Binary | None = None
) -> Engine:
    from sparserl.engine import make_engine

    return make_engine(matrix, problem, source, backend, generated=generated, binary=binary)


def _about(pattern: Pattern, settings: Settings, device: Device) -> dict[str, Any]:
    """What was tuned, for what and where."""
    rows, columns = pattern.shape
    return {
        "sparserl": VERSION,
        "matrix": {
            "rows": rows,
            "columns": columns,
            "nonzeros": pattern.nonzeros,
            "fingerprint": pattern.fingerprint(),
        },
        "settings": {**asdict(settings), "problem": asdict(settings.problem)},
        "device": {**asdict(device), "versions": dict(device.versions)},
    }


def _content(policy: Path) -> list[str]:
    """What a policy is made of, wherever it lies."""
    import hashlib

    from sparserl.proposals import own_programs

    if policies.is_policy(policy):
        files = (policy / "config.json", policy / "model.safetensors")
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return [c.text for c in own_programs(policy)]


@dataclass(frozen=True)
class _Hit:
    source: str
    generated: bool
    report: dict[str, Any]
    binary: Binary | None


class _Kept:
    """The cache entry of one (pattern, settings, device, version)."""

    def __init__(self, pattern: Pattern, settings: Settings, machine: tuple[str, str, str]) -> None:
        from sparserl.store import Cache, content_key

        parts = asdict(settings)
        del parts["seed"]  # it moves the numbers a candidate is verified with, not the result
        if settings.policy != "recipes":
            parts["policy"] = _content(settings.folder)
        parts |= {"pattern": pattern.fingerprint(), "sparserl": VERSION}
        parts["device"] = list(machine)
        self._cache = Cache("tuned")
        self._key = content_key(parts)

    def get(self) -> _Hit | None:
        import json

        from sparserl.backends.backend import Binary
        from sparserl.store import read_folder

        folder = self._cache.get(self._key)
        if folder is None:
            return None
        about = read_folder(folder)
        held = about["binary"]
        binary = None
        if held is not None:
            code = (folder / "binary.bin").read_bytes()
            binary = Binary(held["key"], code, held["kernels"], "", held["registers"])
        report = json.loads((folder / "report.json").read_text())
        return _Hit((folder / "program.cu").read_text(), about["generated"], report, binary)

    def put(self, engine: Engine, report: dict[str, Any]) -> None:
        import json

        files = {"program.cu": engine.source.encode(), "report.json": json.dumps(report).encode()}
        held = None
        if engine.binary is not None:
            files["binary.bin"] = engine.binary.code
            binary = engine.binary
            held = {"key": binary.key, "kernels": dict(binary.kernels), "registers": binary.registers}
        self._cache.put(self._key, files, {"generated": engine.generated, "binary": held})
