"""The records of a benchmark, read for a page: one Entry a matrix and problem, with its standing in every mode.

    board = read(Path("results/NAME"))      bench.jsonl, plain or put away as .zst

A later record of the same thing replaces an earlier one, so a resumed run reads like one that was never stopped. All
that is computed comes from `bench.figures`; a page only shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sparserl.bench import archive, breakeven, figures
from sparserl.bench.figures import Standing
from sparserl.errors import StoreError

Record = Mapping[str, Any]
MODE_ORDER = ("solver", "chain", "cold")
NAME = "bench"
"""of the file of records, without its ending"""
RACED = "raced"
"""the records of a reference search, which has a page of another kind"""
TRAINED = ("train", "dev")
"""splits that training or a choice has seen"""


@dataclass(frozen=True)
class Entry:
    """One matrix under one problem. The fields are those of its record; what is missing there is empty here."""

    matrix: str
    problem: str
    standings: Mapping[str, Standing] = field(default_factory=dict)
    """by mode"""
    clocks: Mapping[str, Mapping[str, Record]] = field(default_factory=dict)
    """every time record by side, then by mode"""
    origin: str = "generated"
    split: str = ""
    structure: str = ""
    headline: bool = False
    rows: int = 0
    columns: int = 0
    nonzeros: int = 0
    features: Mapping[str, float] = field(default_factory=dict)
    tuning_s: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    packed_bytes: int | None = None
    row_histogram: Record | None = None
    """edges, one more than counts"""
    spy: Record | None = None
    """counts of nonzeros in a grid of cells over the matrix"""
    candidates: Sequence[Record] = ()
    winner: Record | None = None
    winners: Mapping[str, Record] = field(default_factory=dict)
    """by the mode that was tuned for"""
    fault: str = ""

    @property
    def kind(self) -> str:
        return "real" if self.origin == "real" else "generated"

    @property
    def trained(self) -> bool:
        return self.split in TRAINED

    def winner_in(self, mode: str) -> Record | None:
        """The program that was measured in a mode."""
        return self.winners.get(mode) or self.winner

    def break_even(self, mode: str) -> float | None:
        """Products until tuning has paid; None of modelled times, which can't pay for real seconds."""
        standing = self.standings.get(mode)
        return None if standing is None or standing.source == "modelled" else breakeven.of(standing)


FIELDS = frozenset(each.name for each in fields(Entry)) - {"standings", "clocks"}


@dataclass(frozen=True)
class Board:
    """A whole benchmark."""

    abouts: Sequence[Record]
    """of the runs that added to it, the last one last"""
    entries: Sequence[Entry]
    modelled: bool

    @property
    def about(self) -> Record:
        """Of the last run."""
        return self.abouts[-1] if self.abouts else {}

    @property
    def problems(self) -> list[str]:
        """SpMV before SpMM, float32 first, few columns before many."""
        return sorted({e.problem for e in self.entries}, key=_place)

    @property
    def modes(self) -> list[str]:
        return _modes(self.entries)

    def modes_of(self, problem: str) -> list[str]:
        """Those that this problem was measured in, which may be fewer."""
        return _modes(self.of(problem))

    def tuned_for(self, problem: str, mode: str) -> str:
        """The mode for which the operators that are measured in `mode` were tuned; '' where no record says."""
        winners = [entry.winners for entry in self.of(problem) if entry.winners]
        if not winners:
            return ""
        return mode if any(mode in each for each in winners) else next(iter(winners[0]))

    def of(self, problem: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.problem == problem]

    def among(self, found: Iterable[Standing]) -> list[Entry]:
        """The entries of these standings."""
        by_name = {(entry.matrix, entry.problem): entry for entry in self.entries}
        return [by_name[s.matrix, s.problem] for s in found]

    def standings(self, problem: str, mode: str) -> list[Standing]:
        """Of every matrix that was measured in this mode."""
        return [entry.standings[mode] for entry in self.of(problem) if mode in entry.standings]

    def tested(self, problem: str, mode: str) -> list[Standing]:
        """Those that a headline may count; all where there are none."""
        found = self.standings(problem, mode)
        return [standing for standing in found if standing.headline] or found


def _place(problem: str) -> tuple[bool, str, int, str]:
    op, dtype, columns, *orders = [*problem.split(), "1"]
    return op != "spmv", dtype, int(columns), " ".join(orders)


def _modes(entries: Sequence[Entry]) -> list[str]:
    there = {mode for entry in entries for mode in entry.standings}
    return [mode for mode in MODE_ORDER if mode in there] or [MODE_ORDER[0]]


def read(folder: Path) -> Board:
    """The board of a folder that `sparserl bench` wrote."""
    records = archive.read(folder, NAME)
    if any(record.get("kind") == "matrix" for record in records):
        return board(records)
    raced = any(folder.glob(f"{RACED}.jsonl*"))
    raise StoreError(
        f"{folder} has no records of a benchmark ({NAME}.jsonl), but of a reference search: `python -m sparserl.bench "
        f"page {folder}` makes its page."
        if raced
        else f"{folder} has no records of a benchmark ({NAME}.jsonl). Make them with `sparserl bench --out {folder}`."
    )


def board(records: Iterable[Record]) -> Board:
    """Records of all kinds, in the order they were written."""
    every = list(records)
    abouts = [{k: v for k, v in r.items() if k not in ("kind", "id")} for r in every if r["kind"] == "about"]
    matrices = {(r["matrix"], r["problem"]): r for r in every if r["kind"] == "matrix"}
    clocks: dict[tuple[str, str], dict[str, dict[str, Record]]] = {}
    for record in every:
        if record["kind"] == "time":
            key = (record["matrix"], record["problem"])
            clocks.setdefault(key, {}).setdefault(record["side"], {})[record["mode"]] = record
    standings: dict[tuple[str, str], dict[str, Standing]] = {}
    for standing in figures.standings(every):  # which refuses measured beside modelled
        standings.setdefault((standing.matrix, standing.problem), {})[standing.mode] = standing
    entries = [
        Entry(
            **{name: value for name, value in record.items() if name in FIELDS and value is not None},
            standings=standings.get(key, {}),
            clocks=clocks.get(key, {}),
        )
        for key, record in matrices.items()
    ]
    entries.sort(key=lambda e: (e.problem, e.kind != "real", e.nonzeros, e.matrix))
    sources = {r["source"] for r in every if r["kind"] == "time"} | {about.get("source") for about in abouts}
    return Board(abouts, entries, "modelled" in sources)
