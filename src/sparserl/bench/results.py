"""A folder of records, read as one: rows, bars, regret, the second opinion and the winners' programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparserl.bench import archive, regret, second_opinion, tables
from sparserl.bench.bars import Bar, bars
from sparserl.bench.regret import Regret
from sparserl.bench.second_opinion import Opinion
from sparserl.bench.tables import Row, Summary
from sparserl.errors import StoreError
from sparserl.evaluation import Case, evaluation_list


@dataclass(frozen=True)
class Results:
    """All that tables and pages show."""

    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    regrets: tuple[Regret, ...]
    opinions: tuple[Opinion, ...]
    texts: Mapping[tuple[str, str, str], str]
    """programs by (problem, matrix, name)"""
    expected: Sequence[Case]

    @property
    def problems(self) -> list[str]:
        return tables.problems(self.rows)

    def of(self, problem: str) -> list[Row]:
        """The rows of one problem."""
        return [row for row in self.rows if row.problem == problem]

    def summaries(self, problem: str) -> list[Summary]:
        """Every group in every mode."""
        return tables.summaries(self.of(problem), self.expected)


def load(out: Path, expected: Sequence[Case] | None = None) -> Results:
    """Read a folder such as results/reference. `expected` is the evaluation list where nothing else is said."""
    cases = evaluation_list() if expected is None else expected
    rows = tables.rows(archive.read(out, "raced"))
    if not rows:
        raise StoreError(f"{out} has no records of a race (raced.jsonl or raced.jsonl.zst). Make them with `race`.")
    admitted = {(row.problem, row.matrix): row.admitted for row in rows if row.full_search}
    regrets = regret.regrets(archive.read(out, "explored"), admitted)
    opinions = second_opinion.opinions(archive.read(out, "anchors"), rows)
    texts = {
        (record["problem"], record["matrix"], each["name"]): each["text"]
        for record in archive.read(out, "finalists")
        for each in record["finalists"]
    }
    return Results(
        rows=tuple(rows),
        bars=tuple(bars(rows, regrets, opinions, cases)),
        regrets=tuple(regrets),
        opinions=tuple(opinions),
        texts=texts,
        expected=cases,
    )
