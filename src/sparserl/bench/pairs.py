"""Pairs of a program and a matrix whose time on a GPU is known, run once on the simulator: what `agreement` looks at.

`draw` chooses them by lot from records of measured times (rows with matrix, recipe, family, layout, pdl, and the
microseconds under chain and solver); `simulate` packs, compiles and runs them under the watch and yields one row a
pair, with the raw counts behind the modelled time, so that another model can be tried without another run. `collect`
does both, matrix by matrix; a call that comes later goes on where the last one stopped.

Not covered: problems other than SpMV in float32, and programs that are no recipe (their text is not in the records).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparserl import layouts, program, recipes
from sparserl.assemble import assemble
from sparserl.backends.backend import Buffer
from sparserl.backends.sim import SimBackend
from sparserl.backends.sim.executable import SimExecutable
from sparserl.bench import agreement, archive
from sparserl.errors import BackendError
from sparserl.evaluation import Case
from sparserl.layouts import padding_value
from sparserl.matrix import Pattern
from sparserl.recipes import Recipe
from sparserl.records import LayoutLine, Packed, Problem
from sparserl.store import append_jsonl
from sparserl.values import store

PROBLEM = Problem()
PROGRAMS = ((120_000, 54), (500_000, 44), (2**31, 36))
"""programs of a matrix with fewer nonzeros than this: large ones take long to simulate"""
LIMIT_S = 120.0
Record = Mapping[str, Any]


def collect(
    cases: Sequence[Case], records: Iterable[Record], out: Path, folder: Path | None, *, seed: int, budget_s: float
) -> Iterator[str]:
    """Draw and simulate, small matrices first, into out/pairs.jsonl; all there: compress. Yields a line a matrix."""
    began, done = time.monotonic(), {row["matrix"] for row in archive.read(out, "pairs")}
    drawn = draw(records, cases, seed)
    for case in sorted(cases, key=lambda case: case.nonzeros):
        if case.name not in drawn or case.name in done:
            continue
        if time.monotonic() - began > budget_s:
            return
        rows = list(simulate(case.load(folder), drawn[case.name], SimBackend(limit_s=LIMIT_S)))
        append_jsonl(out / "pairs.jsonl", *rows)
        yield f"{case.name}: {len(drawn[case.name])} programs"
    put_away(out)


def put_away(out: Path) -> None:
    """pairs.jsonl becomes pairs.jsonl.zst."""
    archive.put_away(out / "pairs.jsonl", archive.read(out, "pairs"))


def draw(records: Iterable[Record], cases: Sequence[Case], seed: int = 0) -> dict[str, list[Record]]:
    """Records by matrix: half of them family by family, so that rare ones are there, half by plain lot."""
    known = {recipe.name for recipe in recipes.space(PROBLEM)}
    wanted = {case.name: next(count for limit, count in PROGRAMS if case.nonzeros < limit) for case in cases}
    by_matrix: dict[str, list[Record]] = {}
    for record in records:
        timed = record.get("recipe") in known and "chain" in record and "solver" in record
        if timed and record["matrix"] in wanted:
            by_matrix.setdefault(record["matrix"], []).append(record)
    return {name: _chosen(found, wanted[name], random.Random(f"{seed} {name}")) for name, found in by_matrix.items()}


def _chosen(found: Sequence[Record], programs: int, lot: random.Random) -> list[Record]:
    mixed = lot.sample(list(found), len(found))
    turn: dict[tuple[str, bool], int] = {}
    order = []
    for at, record in enumerate(mixed):
        family = (record["family"], bool(record["pdl"]))
        turn[family] = turn.get(family, 0) + 1
        order.append((turn[family], at))
    by_family = [at for _, at in sorted(order)][: programs // 2]
    rest = [at for at in range(len(mixed)) if at not in set(by_family)]
    return [mixed[at] for at in by_family + rest[: programs - len(by_family)]]


def simulate(pattern: Pattern, chosen: Sequence[Record], backend: SimBackend) -> Iterator[dict[str, Any]]:
    """One row a pair; programs on the same layout come one after the other and share its arrays."""
    known = {recipe.name: recipe for recipe in recipes.space(PROBLEM)}
    by_line: dict[LayoutLine, list[tuple[Record, Recipe]]] = {}
    for record in chosen:
        recipe = known[record["recipe"]]
        by_line.setdefault(recipe.layout, []).append((record, recipe))
    values = store(np.random.default_rng(0).standard_normal(pattern.nonzeros), PROBLEM.dtype)
    x, y = _upload(backend, np.ones(pattern.columns, np.float32)), backend.alloc(max(1, 4 * pattern.rows))
    for line, group in by_line.items():
        packed = layouts.pack(pattern, line)
        arrays = _placed(backend, packed, values)
        for record, recipe in group:
            job = assemble(program.parse(recipe.text), packed, PROBLEM, backend.device().sms)
            executable = backend.prepare(backend.compile(job.source, job.kernels), job, arrays)
            report = backend.run(executable, x, y, plain=False)
            if not report.ok:
                raise BackendError(f"{recipe.name} fails on {record['matrix']}: {report.reason}.")
            yield _row(record, executable)


def _row(record: Record, executable: SimExecutable) -> dict[str, Any]:
    counts = executable.counts[executable.job.waits]
    return {
        "matrix": record["matrix"],
        "program": record["recipe"],
        "family": record["family"],
        "layout": record["layout"],
        "chain_us": round(record["chain"], 4),
        "solver_us": round(record["solver"], 4),
        "launches": [agreement.pack(each) for each in counts],
    }


def _placed(backend: SimBackend, packed: Packed, values: np.ndarray) -> dict[str, Buffer]:
    arrays: dict[str, Buffer] = {name: _upload(backend, array) for name, array in packed.arrays.items()}
    slot_of = None if packed.slot_of is None else _upload(backend, packed.slot_of)
    arrays["vals"] = backend.alloc(max(1, packed.slots * PROBLEM.value_bytes))
    backend.scatter(arrays["vals"], values, slot_of, padding_value(PROBLEM.dtype))
    return arrays


def _upload(backend: SimBackend, array: np.ndarray) -> Buffer:
    buffer = backend.alloc(max(1, array.nbytes))
    backend.write(buffer, array)
    return buffer
