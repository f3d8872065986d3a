"""What one tuning found, as records of a benchmark: so `page.single` shows it like any other matrix.

write(folder, operator, name)      → FOLDER/index.html, for `sparserl tune`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparserl import policies
from sparserl.bench.archive import sha
from sparserl.bench.figures import OPERATOR
from sparserl.bench.reference import problem_name
from sparserl.bench.tuned import row_histogram, spy
from sparserl.features import features, structure_class
from sparserl.matrix import Pattern
from sparserl.report import page
from sparserl.report.notebook import OperatorLike
from sparserl.store import write_atomic


def write(folder: Path, operator: OperatorLike, pattern: Pattern, name: str) -> Path:
    """Make FOLDER/index.html and say where it is."""
    path = folder / "index.html"
    write_atomic(path, page.single(records(operator, pattern, name)).encode())
    return path


def records(operator: OperatorLike, pattern: Pattern, name: str) -> list[dict[str, Any]]:
    """An about line, the matrix, and a time for the operator and for every baseline."""
    report = operator.report
    result, settings, device = report["result"], report["settings"], report["device"]
    head = {"matrix": name, "problem": problem_name(operator.problem)}
    about = {
        "kind": "about",
        "source": result["time_source"],
        "device": device["name"],
        "arch": device["arch"],
        "versions": {**device["versions"], "sparserl": report["sparserl"]},
        "policy": settings["policy"],
        "candidates": settings["candidates"],
    }
    timed = {baseline: timing["median_us"] for baseline, timing in report["baselines"].items()}
    if result["time_us"]:
        timed[OPERATOR] = result["time_us"]
    times = [
        {
            **head,
            "kind": "time",
            "side": side,
            "mode": result["mode"],
            "median_us": us,
            "quantiles_us": report["baselines"].get(side, {}).get("quantiles_us"),
            "verified": True,
            "source": result["time_source"],
        }
        for side, us in timed.items()
    ]
    return [about, *times, {**head, "kind": "matrix", **_described(pattern), **_tuned(operator)}]


def _described(pattern: Pattern) -> dict[str, Any]:
    return {
        "structure": structure_class(pattern),
        "rows": pattern.rows,
        "columns": pattern.columns,
        "nonzeros": pattern.nonzeros,
        "features": features(pattern),
        "row_histogram": row_histogram(pattern),
        "spy": spy(pattern),
    }


def _tuned(operator: OperatorLike) -> dict[str, Any]:
    report = operator.report
    mode, kept = report["result"]["mode"], report["result"]["kept"]
    candidates = [
        {
            **candidate,
            "times_us": {mode: candidate["time_us"]} if candidate["time_us"] else {},
            "origin": policies.origin(candidate["name"], report["settings"]["policy"]),
            "sha": sha(operator.source) if candidate["name"] == kept else "",
        }
        for candidate in report["candidates"]
    ]
    best = next((c for c in candidates if c["name"] == kept), {})
    text = operator.source if operator.generated else ""
    return {
        "tuning_s": sum(report["phases_s"].values()),
        "phases_s": report["phases_s"],
        "packed_bytes": best.get("packed_bytes"),
        "candidates": candidates,
        "winner": {"name": kept, "layout": operator.layout, "text": text, "pdl": ">>> pdl" in text},
    }
