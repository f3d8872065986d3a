"""Synthetic records of a reference search, seeded, for the tests of tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparserl.store import append_jsonl

CLASSES = ("small", "regular", "block", "random", "skewed", "extreme")
PROBLEMS = ("spmv float32", "spmm float32 64 row row")
BASELINES = {"csr1": 1.4, "csr2": 1.9, "coo1": 1.0}
TEXT = """\
// layout: rows index=int32
// launch: spmv<<<1, 32>>>
extern "C" __global__ void spmv(int rows)
{ /* a < b */ }
"""


def times(solver: float, chain: float | None = None, floor: float = 0.5) -> dict[str, dict[str, Any]]:
    """The times of one candidate as the race writes them."""
    found = {"solver": solver, "chain": solver if chain is None else chain}
    return {
        mode: {
            "median_us": us,
            "quantiles_us": [us * 0.98, us * 0.99, us * 1.01, us * 1.02],
            "rounds": 7,
            "floor_us": floor,
            "source": "gpu",
        }
        for mode, us in found.items()
    }


def program(name: str, timed: Mapping[str, Any], pdl: bool = False, **more: Any) -> dict[str, Any]:
    """One program of a race."""
    base = {"name": name, "layout": name.partition(" on ")[2], "pdl": pdl, "sha": "0" * 16, "verdict": "CORRECT"}
    facts = {"reason": "", "registers": 32, "packed_bytes": 1000, "phases_s": {"pack": 0.25, "compile": 0.5}}
    return {**base, **facts, "times": dict(timed), **more}


def race(matrix: str, baselines: Mapping[str, Any], programs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One record of a race; a small generated matrix unless `more` says otherwise."""
    about = {
        "matrix": matrix,
        "problem": "spmv float32",
        "structure": "small",
        "kind": "generated",
        "rows": 100,
        "columns": 100,
        "nonzeros": 1000,
        "full_search": False,
        "admitted": 50,
        "device": "NVIDIA H200",
        "versions": {"driver": "13.0", "torch": "2.11"},
        "seconds": 2.5,
    }
    return {**about, **more, "baselines": dict(baselines), "programs": programs}


def write_records(out: Path, seed: int = 0, problems: tuple[str, ...] = PROBLEMS) -> list[str]:
    """A folder with a matrix of every class and kind in each problem; returns the names."""
    rng = np.random.default_rng(seed)
    names = []
    for problem in problems:
        for at, structure in enumerate(CLASSES):
            for kind in ("real", "generated"):
                name = f"{kind}_{structure}<{at}>"
                names.append(name)
                _write_matrix(out, rng, race(name, {}, [], problem=problem, structure=structure, kind=kind,
                                             nonzeros=int(10 ** rng.uniform(3, 8))))  # fmt: skip
    return sorted(set(names))


def _write_matrix(out: Path, rng: np.random.Generator, about: dict[str, Any]) -> None:
    base = float(rng.uniform(3, 6))
    baselines = {f"cusparse:{name}": times(base * k, base * k * 0.98) for name, k in BASELINES.items()}
    programs = [
        program("rows_warp(lanes=2) on rows index=int32", times(base / 1.5, base / 1.6)),
        program("rows_warp(lanes=2, pdl=True) on rows index=int32", times(base / 1.7, base / 2.2), pdl=True),
        program("bad(lanes=4) on rows index=int32", {}, verdict="WRONG", reason="row 3 </script><b>"),
    ]
    append_jsonl(out / "raced.jsonl", {**about, "baselines": baselines, "programs": programs})
    kept = {key: about[key] for key in ("matrix", "problem", "structure", "kind", "rows", "columns", "nonzeros")}
    texts = [{"name": p["name"], "text": TEXT.replace("{ ", f"{{ /* {p['name']} */ ")} for p in programs]
    append_jsonl(out / "finalists.jsonl", {**kept, "full_search": False, "admitted": 50, "finalists": texts})
