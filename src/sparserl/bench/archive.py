"""Records on disk: `NAME.jsonl` while they are being written, `NAME.jsonl.zst` once they are put away.

`read` takes either, or both: what was put away comes first, what was measured since follows, and of two records of the
same thing the later one counts. `pack` puts away, searches and collections with the digits that they are worth and as
columns (`columns`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparserl.bench import columns
from sparserl.errors import StoreError
from sparserl.store import append_jsonl, read_jsonl, write_atomic

KEYS = {
    "finalists": ("matrix", "problem"),
    "explored": ("matrix", "problem", "family", "settings", "layout"),
    "raced": ("matrix", "problem"),
    "anchors": ("matrix", "problem", "mode"),
    "bench": ("kind", "matrix", "problem", "side", "mode", "id", "command"),
    "measured": ("case", "problem", "program"),
    "programs": ("program",),
    "cases": ("case", "problem"),
}
"""by name, what a record is of; others are all kept"""
NAMES = tuple(KEYS)
COLLECTED = ("measured", "programs", "cases")
"""a collection's; an evaluation has other records under two of these names, and no cases"""
EVALUATED = ("written-*", "measured", "programs")
BEYOND = ("heats", "finals", "recipes", "elsewhere")
"""an evaluation's, and those of `train beyond`: the first of a row tells, and every record is kept as it is"""
LEVEL = 22
DIGITS = {"explored": 4, "measured": 4}
"""significant ones of the numbers of searches and collections, which are known to a percent; others keep theirs. These
are the large ones, and put away as columns."""


def sha(text: str) -> str:
    """The name of a program's text in the records."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_whole(path: Path) -> list[dict[str, Any]]:
    """Every record of a file, of what was put away and of what came since. Who unpacked it may have columns there."""
    away = path.with_name(path.name + ".zst")
    return _records(_packed(away), away) + _records(read_jsonl(path), path)


def put_away(plain: Path, records: Iterable[Mapping[str, Any]], level: int = LEVEL, as_columns: bool = False) -> Path:
    """These records, compressed, in place of a file; returns where they are."""
    records = columns.to_lines(records) if as_columns else records
    lines = (json.dumps(each, separators=(",", ":"), allow_nan=False) + "\n" for each in records)
    away = plain.with_name(plain.name + ".zst")
    write_atomic(away, _zstandard(plain).ZstdCompressor(level=level).compress("".join(lines).encode()))
    plain.unlink(missing_ok=True)  # only once its records are safe elsewhere
    return away


def read(out: Path, name: str) -> list[dict[str, Any]]:
    """The latest records of one name, the oldest first; none where there is no file."""
    records = read_whole(_plain(out, name))
    if name not in KEYS:
        return records
    kept: dict[str, dict[str, Any]] = {}
    for record in records:
        key = repr([record.get(part) for part in KEYS[name]])
        kept.pop(key, None)
        kept[key] = record
    return list(kept.values())


def pack(out: Path, level: int = LEVEL) -> list[Path]:
    """Compress every plain file of records in `out` and remove it; returns what was written."""
    for whole in (EVALUATED, BEYOND):
        if any(out.glob(f"{whole[0]}.jsonl*")):
            found = sorted(path for name in whole for path in out.glob(f"{name}.jsonl"))
            return [put_away(plain, read_whole(plain), level) for plain in found]
    written = []
    collection = _plain(out, "cases").exists() or _away(out, "cases").exists()
    names = [name for name in NAMES if collection or name not in COLLECTED]
    for name in names:
        plain = _plain(out, name)
        if not plain.exists():
            continue
        rounded = (_rounded(each, DIGITS.get(name)) for each in read(out, name))
        written.append(put_away(plain, rounded, level, name in DIGITS))
    if not written and not any(_away(out, name).exists() for name in names):
        raise StoreError(
            f"{out} has no records ({', '.join([*NAMES, EVALUATED[0], *BEYOND])}.jsonl). Make them with `explore` and "
            "`race`, `train collect`, `sparserl eval` or `train beyond`."
        )
    return written


def _rounded(record: dict[str, Any], digits: int | None) -> dict[str, Any]:
    """The record with so many significant digits; None: as it is."""
    if digits is None:
        return record
    return {key: float(f"{v:.{digits}g}") if isinstance(v, float) else v for key, v in record.items()}


def _plain(out: Path, name: str) -> Path:
    return out / f"{name}.jsonl"


def _away(out: Path, name: str) -> Path:
    return out / f"{name}.jsonl.zst"


def replace(out: Path, name: str, records: list[dict[str, Any]]) -> None:
    """All records of one name, written anew and put away."""
    _plain(out, name).unlink(missing_ok=True)
    _away(out, name).unlink(missing_ok=True)
    append_jsonl(_plain(out, name), *records)
    pack(out)


def _zstandard(path: Path) -> Any:
    """The library, which a machine that only measures need not have."""
    try:
        import zstandard
    except ImportError as error:
        raise StoreError(f"Records in {path} are compressed: pip install zstandard, or unpack them first.") from error
    return zstandard


def _packed(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    zstandard = _zstandard(path)
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            return [json.loads(line) for line in stream.read().splitlines()]
    except (zstandard.ZstdError, ValueError) as error:
        raise StoreError(f"Can't read the records in {path}: {error}. Restore the file.") from error


def _records(lines: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """What stands in the columns that a file begins with, if it does, and its records."""
    many = next((at for at, line in enumerate(lines) if not columns.are([line])), len(lines))
    try:
        return columns.from_lines(lines[:many]) + lines[many:]
    except (ValueError, LookupError) as error:
        raise StoreError(f"Can't read the records in {path}: {error}. Restore the file.") from error
