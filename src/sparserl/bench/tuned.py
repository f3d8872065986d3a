"""One matrix of a benchmark, tuned and described: everything in its record apart from times of peers.

The operator is the best verified candidate, also where the library was faster: `sparserl.tune` would then keep the
library, which is no candidate here. Tuning is timed from the loaded matrix to the operator on the device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparserl import phases, policies
from sparserl.backends.backend import Backend
from sparserl.bench import archive
from sparserl.bench.matrices import Entry, place
from sparserl.bench.watermark import Watermark
from sparserl.engine import make_engine
from sparserl.features import features
from sparserl.findings import Candidate, Findings
from sparserl.matrix import Matrix, Pattern
from sparserl.records import Mode
from sparserl.referee import ahead_of
from sparserl.tune import Settings, explore

SPY = 64
"""cells of a spy plot, either way"""


@dataclass(frozen=True)
class Tuned:
    """What one tuning found and took."""

    found: Findings
    seconds: float
    device_bytes: int | None
    """of the GPU's memory: the most that was live in this process and the most in the judge's worker, added up though
    it need not have been at one moment; None where that is not known"""
    host_bytes: int

    @property
    def best(self) -> Candidate | None:
        return self.found.best

    @property
    def fault(self) -> str:
        """Why there is no operator; '' where there is one."""
        if self.best is not None:
            return ""
        reasons = sorted({f"{c.verdict}: {c.reason}" for c in self.found.candidates})
        return f"no candidate was verified: {'; '.join(reasons[:3]) or 'the matrix admits none'}"


def tuned(matrix: Matrix, settings: Settings, backend: Backend) -> Tuned:
    """Choose, judge, time and settle; on a GPU the operator's arrays lie there when the clock stops."""
    on_gpu = settings.device == "cuda"
    with Watermark(on_gpu) as mark:
        began = time.perf_counter()
        asked = matrix.pattern, settings.problem, settings.seed
        with ahead_of(backend.name, settings.candidates, asked) as ahead:
            found = explore(matrix.pattern, settings, ahead)
        if found.interrupted:
            raise KeyboardInterrupt
        if found.best is not None and on_gpu:
            made = time.perf_counter()
            make_engine(matrix, settings.problem, found.best.text, backend, generated=True)
            found.phases_s["operator"] = time.perf_counter() - made
        seconds = time.perf_counter() - began
        worker_bytes = ahead.most_bytes() if on_gpu else None
    device_bytes = None if worker_bytes is None else mark.torch_bytes + worker_bytes
    return Tuned(found, seconds, device_bytes, mark.host_bytes)


def placed(entry: Entry, pattern: Pattern | None = None) -> dict[str, Any]:
    """Where the matrix belongs; before it is loaded, what its list or spec says: if it fails there it still counts."""
    case = entry.case
    sizes = {} if case is None else {"rows": case.rows, "columns": case.columns, "nonzeros": case.nonzeros}
    return {**asdict(place(entry, pattern)), **sizes}


def described(entry: Entry, pattern: Pattern) -> dict[str, Any]:
    """What the matrix is."""
    return {
        **placed(entry, pattern),
        "rows": pattern.rows,
        "columns": pattern.columns,
        "nonzeros": pattern.nonzeros,
        "fingerprint": pattern.fingerprint()[:16],
        "features": {name: float(f"{value:.6g}") for name, value in features(pattern).items()},
        "row_histogram": row_histogram(pattern),
        "spy": spy(pattern),
    }


def row_histogram(pattern: Pattern) -> dict[str, list[int]]:
    """Rows by length: empty ones, then lengths 1, 2-3, 4-7 … ; `edges` has one number more than `counts`."""
    longest = int(pattern.row_lengths.max(initial=0))
    edges = [0, *(1 << power for power in range(longest.bit_length() + 1))]
    counts = np.histogram(pattern.row_lengths, bins=np.asarray(edges))[0]
    return {"edges": edges, "counts": [int(count) for count in counts]}


def spy(pattern: Pattern, size: int = SPY) -> dict[str, Any]:
    """Nonzeros in a grid of at most size x size cells over the matrix."""
    down, across = min(size, max(1, pattern.rows)), min(size, max(1, pattern.columns))
    row = pattern.row_index().astype(np.int64) * down // max(1, pattern.rows)
    column = pattern.cols.astype(np.int64) * across // max(1, pattern.columns)
    counts = np.bincount(row * across + column, minlength=down * across).reshape(down, across)
    return {"size": size, "counts": counts.tolist()}


def tuning_record(by_mode: Mapping[Mode, Tuned], policy: str) -> dict[str, Any]:
    """Candidates, winners and costs. Figures that are one a matrix are those of the first mode."""
    first = next(iter(by_mode.values()))
    winners = {mode: winner(each.best) for mode, each in by_mode.items() if each.best is not None}
    return {
        "tuning_s": round(first.seconds, 4),
        "tuning_s_by_mode": {mode: round(each.seconds, 4) for mode, each in by_mode.items()},
        "phases_s": phases.rounded(first.found.phases_s),
        "worker_s": phases.rounded(first.found.worker_s),
        "programs_s": phases.rounded(_of_programs(first.found)),
        "peak_memory_bytes": first.device_bytes,
        "peak_host_bytes": first.host_bytes,
        "packed_bytes": first.best.packed_bytes if first.best else None,
        "candidates": _candidates(by_mode, policy),
        "winner": next(iter(winners.values()), None),
        "winners": winners,
    }


def _of_programs(found: Findings) -> dict[str, float]:
    """What all programs took by phase: packing, compiling, verifying …; some of it side by side."""
    together: dict[str, float] = {}
    for candidate in found.candidates:
        phases.add(together, candidate.phases_s)
    return together


def winner(best: Candidate) -> dict[str, Any]:
    """The program that the operator runs."""
    return {
        "name": best.name,
        "layout": best.layout,
        "text": best.text,
        "pdl": ">>> pdl" in best.text,
        "sha": archive.sha(best.text),
        "packed_bytes": best.packed_bytes,
    }


def _candidates(by_mode: Mapping[Mode, Tuned], policy: str) -> list[dict[str, Any]]:
    """Every program that was tried, the best first, with its times in the modes it was tuned for."""
    made: dict[str, dict[str, Any]] = {}
    for mode, each in by_mode.items():
        for candidate in each.found.ranked():
            key = archive.sha(candidate.text)
            record = made.setdefault(key, _candidate(candidate, key, policy))
            if candidate.time_us is not None:
                record["times_us"][mode] = round(candidate.time_us, 4)
    return list(made.values())


def _candidate(candidate: Candidate, key: str, policy: str) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "layout": candidate.layout,
        "params": candidate.params,
        "verdict": candidate.verdict,
        "reason": candidate.reason,
        "times_us": {},
        "floor_us": round(candidate.floor_us, 4),
        "registers": candidate.registers,
        "packed_bytes": candidate.packed_bytes,
        "stage": candidate.stage,
        "launches": candidate.text.count("\n// launch:"),
        "pdl": ">>> pdl" in candidate.text,
        "origin": policies.origin(candidate.name, policy),
        "sha": key,
    }
