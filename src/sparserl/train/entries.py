"""What a collection writes down: a line a program and matrix, a line a text, and last a line a case.

`measured.jsonl`, `programs.jsonl` and `cases.jsonl` in one folder; `collected` reads them. Lines of a case that has no
line in `cases.jsonl` are of a run that was stopped in between; the case is done again and its later lines count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparserl.bench import archive
from sparserl.bench.archive import sha
from sparserl.bench.reference import problem_name
from sparserl.errors import StoreError
from sparserl.recipes import Recipe
from sparserl.records import Problem, Verdict
from sparserl.store import append_jsonl

MEASURED, PROGRAMS, CASES = "measured", "programs", "cases"
"""names of the files, without their endings"""


@dataclass
class Entry:
    """One program on the matrix at hand."""

    recipe: Recipe
    """of a variant: its text and layout under the name of its mutations"""
    origin: str = "recipe"
    times_us: dict[str, float] = field(default_factory=dict)
    floor_us: dict[str, float] = field(default_factory=dict)
    registers: int = 0
    verdict: Verdict = Verdict.CORRECT
    reason: str = ""
    retimed: bool = False
    code: str | None = None
    parents: tuple[str, ...] = ()
    mutations: tuple[str, ...] = ()


class Written:
    """The records of one folder and problem."""

    def __init__(self, out: Path, problem: Problem, device: str) -> None:
        self._out, self._problem, self._device = out, problem_name(problem), device
        earlier = archive.read(out, CASES)
        others = {str(line["device"]) for line in earlier if line["device"] != device}
        if others:
            raise StoreError(
                f"The records in {out} are of {', '.join(sorted(others))}, not of {device}: "
                "choose another --out folder."
            )
        self.done = settled(earlier, self._problem)
        self._texts = {line["program"] for line in archive.read(out, PROGRAMS)}

    def add(self, line: dict[str, Any], entries: Sequence[Entry], baseline: Mapping[str, float]) -> None:
        """The case's own line comes last: with it the case counts as done."""
        new = {sha(e.recipe.text): e for e in entries}
        texts = [_text_record(name, entry) for name, entry in new.items() if name not in self._texts]
        append_jsonl(self._out / f"{PROGRAMS}.jsonl", *texts)
        measured = [self._record(line["case"], entry, baseline) for entry in entries]
        append_jsonl(self._out / f"{MEASURED}.jsonl", *measured)
        append_jsonl(self._out / f"{CASES}.jsonl", {**line, "device": self._device})
        self._texts |= new.keys()

    def _record(self, case: str, entry: Entry, baseline: Mapping[str, float]) -> dict[str, Any]:
        recipe = entry.recipe
        return {
            "case": case,
            "problem": self._problem,
            "program": sha(recipe.text),
            "origin": entry.origin,
            "family": recipe.family,
            "name": " ".join(entry.mutations) if entry.origin == "variant" else recipe.name,
            "verdict": entry.verdict.name,
            **({"reason": entry.reason} if entry.reason else {}),
            "solver_us": _rounded(entry.times_us.get("solver")),
            "chain_us": _rounded(entry.times_us.get("chain")),
            **{f"floor_{mode}_us": _rounded(us) for mode, us in entry.floor_us.items()},
            "registers": entry.registers,
            "retimed": entry.retimed,
            "baseline_solver_us": _rounded(baseline.get("solver")),
            "baseline_chain_us": _rounded(baseline.get("chain")),
            **({"cost_us": _rounded(recipe.cost_us)} if entry.origin == "recipe" else {}),
        }


def settled(lines: Iterable[Mapping[str, Any]], problem: str) -> set[str]:
    """The cases of a problem that are done, or not to be tried again."""
    return {
        line["case"]
        for line in lines
        if line["problem"] == problem and ("fault" not in line or line.get("fatal", False))
    }


def _rounded(us: float | None) -> float | None:
    return None if us is None else float(f"{us:.5g}")


def _text_record(name: str, entry: Entry) -> dict[str, Any]:
    return {
        "program": name,
        "text": entry.recipe.text,
        "parents": list(entry.parents),
        "mutations": list(entry.mutations),
        "binary": entry.code,
    }


def headline(line: dict[str, Any], entries: Sequence[Entry], baseline: Mapping[str, float]) -> str:
    """'fem-1000001  1234 nonzeros: 80 recipes, 12 variants (10 right): solver 2.1 us, 1.4 of the baseline's speed'."""
    if "fault" in line:
        return f"{line['case']:24s} {line['fault']}"
    variants = [e for e in entries if e.origin == "variant"]
    right = sum(e.verdict is Verdict.CORRECT for e in variants)
    best = min((e.times_us["solver"] for e in entries if "solver" in e.times_us), default=0.0)
    ratio = baseline.get("solver", 0.0) / best if best else 0.0
    return (
        f"{line['case']:24s} {line['nonzeros']:9d} nonzeros: {len(entries) - len(variants)} recipes, {len(variants)} "
        f"variants ({right} right): solver {best:.2f} us, {ratio:.2f} of the baseline's speed ({line['seconds']} s)"
    )
