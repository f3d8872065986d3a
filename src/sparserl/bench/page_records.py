"""What the page shows when a matrix is opened: candidates with verdicts and times, cuSPARSE's variants, sources.

It is stored once as JSON in the page. Texts that several matrices share are stored once.
"""

from __future__ import annotations

import json
from typing import Any

from sparserl.bench.results import Results
from sparserl.bench.tables import REPORTED, Candidate, Row

TIMES_HEAD = ("solver µs", "chain µs", "10–90 % solver")
PROGRAM_HEAD = ("program", "verdict", "pdl", *TIMES_HEAD, "registers", "packed MB", "pack + compile s")
BASELINE_HEAD = ("variant", *TIMES_HEAD)


def payload(results: Results) -> str:
    """JSON that may stand inside a script element."""
    texts: dict[str, int] = {}
    records = {row_id(results, row): _record(results, row, texts) for row in results.rows}
    whole = {
        "program_head": PROGRAM_HEAD,
        "baseline_head": BASELINE_HEAD,
        "records": records,
        "texts": list(texts),
    }
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def row_id(results: Results, row: Row) -> str:
    """The id of a matrix on the page, such as 'p0-bcsstk33'."""
    return f"p{results.problems.index(row.problem)}-{row.matrix}"


def _record(results: Results, row: Row, texts: dict[str, int]) -> dict[str, Any]:
    search = "all of them were tried" if row.full_search else "successive halving"
    about = f"{row.rows} × {row.columns}, {row.nonzeros} nonzeros; {row.admitted} programs admitted, {search}"
    solver = REPORTED[0]
    fastest = sorted(row.programs, key=lambda c: c.times_us.get(solver, float("inf")))
    variants = sorted(row.baselines, key=lambda c: c.times_us.get(solver, float("inf")))
    return {
        "about": f"{about}; {len(row.programs)} in the race, which took {row.seconds:.1f} s.",
        "programs": [_program(c) for c in fastest],
        "baselines": [[c.name, *_times(c)] for c in variants],
        "sources": _sources(results, row, texts),
    }


def _sources(results: Results, row: Row, texts: dict[str, int]) -> list[tuple[str, int]]:
    """The winner of each mode, with the index of its text; one entry where one program wins both."""
    winners: dict[str, list[str]] = {}
    for mode, standing in row.standings.items():
        winners.setdefault(standing.best.name, []).append(mode)
    found = []
    for name, modes in winners.items():
        text = results.texts.get((row.problem, row.matrix, name))
        if text is not None:
            found.append((f"The fastest in {' and '.join(modes)} mode: {name}", texts.setdefault(text, len(texts))))
    return found


def _program(candidate: Candidate) -> list[str]:
    verdict = candidate.verdict + (f": {candidate.reason}" if candidate.reason else "")
    spent = sum(candidate.phases_s.get(phase, 0.0) for phase in ("pack", "compile"))
    facts = [str(candidate.registers or "–"), f"{candidate.packed_bytes / 1e6:.2f}", f"{spent:.2f}"]
    return [candidate.name, verdict, "yes" if candidate.pdl else "no", *_times(candidate), *facts]


def _times(candidate: Candidate) -> list[str]:
    times = [f"{candidate.times_us[mode]:.2f}" if mode in candidate.times_us else "–" for mode in REPORTED]
    spread = candidate.spreads_us.get(REPORTED[0])
    return [*times, f"{spread[0]:.2f}–{spread[1]:.2f}" if spread else "–"]
