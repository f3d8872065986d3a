"""Bytes of .mtx, .mtx.gz and .npz files → raw arrays. Making them canonical is `matrix.py`'s business.

Matrix Market: coordinate format; real, integer or pattern; general, symmetric or skew-symmetric. Symmetric files are
expanded. Comments and blank lines may stand anywhere. Not covered: complex and hermitian files, dense 'array' files.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.io
import scipy.sparse

from sparserl.errors import MatrixError

Array = np.ndarray[Any, np.dtype[Any]]

LARGEST = 2**31 - 1
"""the most rows, columns or nonzeros: kernels count in int"""


@dataclass(frozen=True)
class Coordinates:
    """Entries in any order, duplicates and all; row and column counted from 0."""

    rows: int
    columns: int
    row: Array
    col: Array
    data: Array


@dataclass(frozen=True)
class Compressed:
    """CSR arrays as a file gives them, unchecked."""

    rows: int
    columns: int
    row_start: Array
    cols: Array
    data: Array


def read(path: Path) -> Coordinates | Compressed:
    """Read a file by the ending of its name. Messages name the file."""
    name = path.name.lower()
    if not name.endswith((".mtx", ".mtx.gz", ".npz")):
        raise MatrixError(f"{path}: a matrix file must end in .mtx, .mtx.gz or .npz.")
    try:
        if name.endswith(".npz"):
            return _read_npz(path)
        raw = path.read_bytes()
        if name.endswith(".gz"):
            raw = gzip.decompress(raw)
    except FileNotFoundError:
        raise MatrixError(f"{path}: there is no such file.") from None
    except OSError as error:
        # gzip.BadGzipFile is an OSError too, but it has no errno text.
        raise MatrixError(f"{path}: can't be read: {error.strerror or error}.") from None
    except (EOFError, zlib.error) as error:
        raise MatrixError(f"{path}: the gzip file is broken: {error}.") from None
    return parse_mtx(raw, str(path))


@dataclass(frozen=True)
class _Header:
    """What the first lines of a Matrix Market file promise."""

    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int
    body_at: int
    """where the size line begins, in bytes"""


def parse_mtx(raw: bytes, name: str = "matrix") -> Coordinates:
    """The entries of a Matrix Market text. `name` stands in the messages."""
    header = _parse_header(raw, name)
    body = raw[header.body_at :]
    if b"D" in body or b"d" in body:
        body = body.translate(bytes.maketrans(b"Dd", b"ee"))  # Fortran exponents: 1.0D+03 would be read as 1
    # Blank lines stand for the comments above. Integers are read as reals: 3.5 in an 'integer' file is not cut to 3.
    field = "pattern" if header.field == "pattern" else "real"
    banner = f"%%MatrixMarket matrix coordinate {field} {header.symmetry}\n".encode()
    head = banner + b"\n" * (raw.count(b"\n", 0, header.body_at) - 1)
    try:
        try:
            entries: Any = scipy.io.mmread(io.BytesIO(head + body))
        except ValueError:  # rare, so it is cheaper to try again than to look through every file first
            entries = scipy.io.mmread(io.BytesIO(head + _tidied(body)))
    except (ValueError, OverflowError) as error:
        _explain(str(error), raw, name, header)
    return Coordinates(header.rows, header.columns, entries.row, entries.col, entries.data)


def _tidied(body: bytes) -> bytes:
    """Without comments between entries and without plus signs before numbers; line numbers stay true."""
    body = re.sub(rb"(?m)^[ \t]*%[^\n]*", b"", body)
    return re.sub(rb"(?m)(^|[ \t])\+", rb"\1", body)


def _parse_header(raw: bytes, name: str) -> _Header:
    at = raw.find(b"\n") + 1 or len(raw)
    words = raw[:at].decode("latin-1").lower().split()
    if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
        if raw.startswith(b"\x1f\x8b"):
            raise MatrixError(f"{name}: the file is compressed by gzip: let its name end in .mtx.gz.")
        shown = raw[: min(at, 60)].decode("latin-1").strip()
        raise MatrixError(
            f"{name}: line 1 must be '%%MatrixMarket matrix coordinate <field> <symmetry>'. Got {shown!r}."
        )
    form, field, symmetry = words[2:]
    if form != "coordinate":
        raise MatrixError(
            f"{name}: the file holds a dense matrix ('{form}' format); only 'coordinate' files are sparse."
        )
    if field == "complex" or symmetry == "hermitian":
        raise MatrixError(f"{name}: the matrix is complex ('{field} {symmetry}'); only real matrices can be tuned.")
    if field not in ("real", "double", "integer", "unsigned-integer", "pattern"):
        raise MatrixError(f"{name}: line 1: the field must be real, integer or pattern. Got {field!r}.")
    if symmetry not in ("general", "symmetric", "skew-symmetric"):
        raise MatrixError(
            f"{name}: line 1: the symmetry must be general, symmetric or skew-symmetric. Got {symmetry!r}."
        )
    line = 1
    while at < len(raw):
        end = raw.find(b"\n", at) + 1 or len(raw)
        text = raw[at:end].decode("latin-1").strip()
        line += 1
        if text and not text.startswith("%"):
            rows, columns, entries = _parse_sizes(text, f"{name}: line {line}", symmetry)
            shortest = 4 if field == "pattern" else 6  # '1 1\n', '1 1 1\n'
            if entries > (len(raw) - end + 1) // shortest:
                raise MatrixError(
                    f"{name}: line {line} promises {entries} entries, but the file is too short to hold them."
                )
            return _Header(field, symmetry, rows, columns, entries, at)
        at = end
    raise MatrixError(f"{name}: the file ends before the line with rows, columns and entries.")


def _parse_sizes(text: str, where: str, symmetry: str) -> tuple[int, int, int]:
    try:
        rows, columns, entries = (int(word) for word in text.split())
    except ValueError:
        raise MatrixError(f"{where} must hold rows, columns and entries. Got {text[:60]!r}.") from None
    if min(rows, columns, entries) < 0 or max(rows, columns, entries) > LARGEST:
        raise MatrixError(
            f"{where}: rows, columns and entries must lie in 0..{LARGEST}. Got {rows}, {columns}, {entries}."
        )
    if symmetry != "general" and rows != columns:
        raise MatrixError(f"{where}: a {symmetry} matrix must be square. Got {rows} x {columns}.")
    return rows, columns, entries


def _explain(said: str, raw: bytes, name: str, header: _Header) -> NoReturn:
    """Turn the parser's complaint into one line with the text it stumbled over."""
    shape = f"the matrix is {header.rows} x {header.columns} with {header.entries} entries"
    match = re.match(r"Line (\d+): (.*)", said)
    if match is None:
        raise MatrixError(f"{name}: {said.rstrip('.')} ({shape}).")
    line, what = int(match[1]), match[2].rstrip(".")
    text = raw.split(b"\n", line)[line - 1][:60].decode("latin-1").strip()
    raise MatrixError(f"{name}: line {line}: {what[:1].lower()}{what[1:]}: {text!r} ({shape}).")


def _read_npz(path: Path) -> Coordinates | Compressed:
    try:
        with np.load(path, allow_pickle=False) as archive:
            kind = _npz_format(archive, path)
            if kind in ("bsr", "dia"):
                entries: Any = scipy.sparse.load_npz(path).tocoo()
                return Coordinates(*_shape(archive["shape"]), entries.row, entries.col, entries.data)
            rows, columns = _shape(archive["shape"])
            if kind == "coo":
                return Coordinates(rows, columns, archive["row"], archive["col"], archive["data"])
            start, index, data = archive["indptr"], archive["indices"], archive["data"]
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, zlib.error, AttributeError, TypeError) as error:
        why = "it is no .npz file" if "pickle" in str(error) else str(error).rstrip(".")  # NumPy advises to trust it
        raise MatrixError(f"{path}: the .npz file is broken or holds no sparse matrix: {why}.") from None
    if kind == "csr":
        return Compressed(rows, columns, start, index, data)
    if start.shape != (columns + 1,) or start[-1] != len(index) or bool((np.diff(start) < 0).any()):
        raise MatrixError(f"{path}: 'indptr' must ascend to {len(index)} over {columns + 1} numbers, one a column.")
    return Coordinates(rows, columns, index, np.repeat(np.arange(columns), np.diff(start)), data)


def _npz_format(archive: Any, path: Path) -> str:
    if "format" in archive:
        kind = archive["format"].item()
        kind = kind.decode() if isinstance(kind, bytes) else str(kind)
        if kind in ("csr", "csc", "coo", "bsr", "dia"):
            return kind
        raise MatrixError(f"{path}: the sparse format must be csr, csc, coo, bsr or dia. Got {kind!r}.")
    missing = [key for key in ("indptr", "indices", "data", "shape") if key not in archive]
    if missing:
        raise MatrixError(
            f"{path}: a CSR matrix in .npz needs indptr, indices, data and shape; {missing[0]!r} is missing."
        )
    return "csr"


def _shape(stored: Array) -> tuple[int, int]:
    rows, columns = (int(n) for n in stored)
    return rows, columns
