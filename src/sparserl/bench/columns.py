"""Records as columns, a line each: many records of one kind compress to two thirds of what they do line by line.

    {"column": "case", "names": ["fem-1", "fem-2"], "at": [0, 0, 1]}        # words, and which one each record has
    {"column": "solver_us", "values": [2.04, null, ""]}                     # numbers; "" where a record lacks it

A record that lacks a word has -1 there. The order of a record's keys is that of the columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

COLUMN = "column"
LACKING = ""
"""among numbers; no number is a string"""


def are(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are columns, not records."""
    return bool(lines) and COLUMN in lines[0] and ("values" in lines[0] or "names" in lines[0])


def to_lines(records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The columns of these records."""
    rows = list(records)
    for name in dict.fromkeys(key for row in rows for key in row):
        plain = all(isinstance(row.get(name), int | float | None) for row in rows)
        yield {COLUMN: name, **(_numbers(rows, name) if plain else _words(rows, name))}


def from_lines(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records of these columns. Raises KeyError or ValueError where they are none."""
    records: list[dict[str, Any]] = [{} for _ in range(len(_cells(lines[0])) if lines else 0)]
    for line in lines:
        words = line.get("names")
        for record, cell in zip(records, _cells(line), strict=True):
            if cell != (LACKING if words is None else -1):
                record[line[COLUMN]] = cell if words is None else words[cell]
    return records


def _cells(line: Mapping[str, Any]) -> list[Any]:
    cells: list[Any] = line["at"] if "names" in line else line["values"]
    return cells


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    return {"values": [row.get(name, LACKING) for row in rows]}


def _words(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    spelt = [json.dumps(row[name]) if name in row else None for row in rows]
    place = {word: at for at, word in enumerate(dict.fromkeys(word for word in spelt if word is not None))}
    return {
        "names": [json.loads(word) for word in place],
        "at": [-1 if word is None else place[word] for word in spelt],
    }
