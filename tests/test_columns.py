"""Records as columns and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparserl.bench import archive, columns
from sparserl.errors import StoreError

CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text("aé\"", max_size=4),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.sampled_from("xy"), st.integers(), max_size=2),
)  # fmt: skip
RECORDS = st.lists(st.dictionaries(st.sampled_from(["case", "us", "right", "column", "values"]), CELLS), max_size=8)


@given(RECORDS)
def test_what_was_put_away_as_columns_comes_back(records: list[dict[str, object]]) -> None:
    lines = [json.loads(json.dumps(line)) for line in columns.to_lines(records)]
    kept = records if lines else []  # of records without any key nothing is known
    assert [list(map(repr, sorted(each.items(), key=repr))) for each in columns.from_lines(lines)] == [
        list(map(repr, sorted(json.loads(json.dumps(each)).items(), key=repr))) for each in kept
    ]
    assert columns.are(lines) is bool(lines)


def test_a_large_table_is_put_away_as_columns_and_later_records_join_it(tmp_path: Path) -> None:
    def record(number: int) -> dict[str, object]:
        about = {"matrix": "m", "problem": "p", "family": "f", "settings": {"load": number}, "layout": "rows"}
        return {**about, "solver_us": 1.0 + number, **({"pdl": True} if number % 2 else {})}

    plain = tmp_path / "explored.jsonl"
    for first in (0, 5):
        lines = [json.dumps(record(number)) + "\n" for number in range(first, first + 6)]
        plain.write_text("".join(lines))
        (away,) = archive.pack(tmp_path)
        assert not plain.exists()
    assert archive.read(tmp_path, "explored") == [record(number) for number in (*range(5), *range(5, 11))]
    unpacked = archive._zstandard(away).ZstdDecompressor().decompressobj().decompress(away.read_bytes())
    (tmp_path / "unpacked").mkdir()
    here = tmp_path / "unpacked" / "explored.jsonl"  # as the error of a machine without the library asks for
    here.write_bytes(unpacked + json.dumps(record(11)).encode() + b"\n")
    assert archive.read(here.parent, "explored") == [record(number) for number in range(12)]
    away.write_bytes(archive._zstandard(away).ZstdCompressor().compress(b'{"column": "a", "names": [], "at": [3]}\n'))
    with pytest.raises(StoreError, match="Restore the file"):
        archive.read(tmp_path, "explored")
