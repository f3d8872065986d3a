"""The SuiteSparse Matrix Collection by name: 'suitesparse:HB/bcsstk13' → a .mtx file in the user's cache.

A download is checked against the length the server names and against NAME.tar.gz.sha256 or .md5 where the server has
one; the SHA-256 of the file we keep stands beside it and is checked at every use. Files appear whole or not at all.
Not covered: authentication, resuming a broken download.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import IO

from sparserl.errors import MatrixError

PREFIX = "suitesparse:"
DEFAULT_URL = "https://sparse.tamu.edu/MM"
URL_VARIABLE = "SPARSERL_SUITESPARSE_URL"
CACHE_VARIABLE = "SPARSERL_CACHE"
TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 20

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where downloads are kept: $SPARSERL_CACHE, or ~/.cache/sparserl."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "sparserl")


def fetch(name: str, base_url: str | None = None, cache: Path | None = None) -> Path:
    """The cached .mtx file of 'suitesparse:Group/Name' (or 'Group/Name'), downloaded if it isn't there yet."""
    short = name.removeprefix(PREFIX)
    part = r"(?!\.)[A-Za-z0-9_.+-]+"
    if not re.fullmatch(f"{part}/{part}", short):
        raise MatrixError(
            f"A SuiteSparse name must be 'suitesparse:Group/Name', as in 'suitesparse:HB/bcsstk13'. Got {name!r}."
        )
    target = (cache or cache_folder()) / "suitesparse" / f"{short}.mtx"
    if _cached(target):
        return target
    base = (base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
    url = f"{base}/{short}.tar.gz"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            archive = Path(folder) / "archive.tar.gz"
            _download(url, archive, short, target)
            _check_published_sum(url, archive, short)
            _extract(archive, Path(folder) / "matrix.mtx", short)
            _keep(Path(folder) / "matrix.mtx", target)
    except OSError as error:
        raise MatrixError(
            f"{PREFIX}{short}: can't write to the cache {target.parent}: {error.strerror or error}; "
            f"set {CACHE_VARIABLE} to a folder you may write to."
        ) from None
    return target


def _cached(target: Path) -> bool:
    """The file is there and its sum is right; one whose sum is wrong is thrown away."""
    beside = target.with_suffix(".mtx.sha256")
    if not (target.is_file() and beside.is_file()):
        return False
    if _digest(target, "sha256") == beside.read_text().strip():
        return True
    log.warning("%s no longer has the SHA-256 it was saved with; downloading it again", target)
    return False


def _download(url: str, archive: Path, short: str, target: Path) -> None:
    way_out = f"Get {target.name} elsewhere and pass its path, or set {URL_VARIABLE} to a mirror you can reach."
    log.info("downloading %s", url)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, archive.open("wb") as out:
            promised = answer.headers.get("Content-Length")
            got = 0
            while block := answer.read(CHUNK_BYTES):
                out.write(block)
                got += len(block)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.NOT_FOUND:
            raise MatrixError(
                f"{PREFIX}{short}: {url} does not exist; check group and name (they are case-sensitive)."
            ) from None
        raise MatrixError(f"{PREFIX}{short}: {url} answered {error.code} {error.reason}. {way_out}") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise MatrixError(
            f"{PREFIX}{short}: offline? {url} can't be reached ({reason}) and the matrix is not in the cache. {way_out}"
        ) from None
    if promised is not None and got != int(promised):
        raise MatrixError(f"{PREFIX}{short}: the download stopped after {got} of {promised} bytes; try again.")


def _check_published_sum(url: str, archive: Path, short: str) -> None:
    """Compare with URL.sha256 or URL.md5. The collection itself publishes neither today; mirrors may."""
    for kind, digits in (("sha256", 64), ("md5", 32)):
        try:
            with urllib.request.urlopen(f"{url}.{kind}", timeout=TIMEOUT_S) as answer:
                words = answer.read(4096).decode("ascii", "replace").split()
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException):
            continue
        if not words or not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", words[0]):
            continue  # some servers answer a missing page with a web page
        if _digest(archive, kind) != words[0].lower():
            raise MatrixError(f"{PREFIX}{short}: the download's {kind} is not the one {url}.{kind} names; try again.")
        return


def _extract(archive: Path, out: Path, short: str) -> None:
    """Take the one member NAME.mtx; nothing else of the archive touches the disk, and no path of it is used."""
    wanted = f"{short.partition('/')[2]}.mtx"
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.isfile() and member.name.rpartition("/")[2] == wanted:
                    stream = tar.extractfile(member)
                    assert stream is not None  # isfile() was true
                    _copy(stream, out)
                    return
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise MatrixError(f"{PREFIX}{short}: the downloaded archive is broken: {error}; try again.") from None
    raise MatrixError(f"{PREFIX}{short}: the downloaded archive holds no {wanted}.")


def _copy(stream: IO[bytes], out: Path) -> None:
    with out.open("wb") as file:
        while block := stream.read(CHUNK_BYTES):
            file.write(block)


def _keep(file: Path, target: Path) -> None:
    """Move file and sum into place. The sum goes last: a file without one is not trusted."""
    beside = target.with_suffix(".mtx.sha256")
    note = file.with_suffix(".sha256")
    note.write_text(_digest(file, "sha256") + "\n")
    beside.unlink(missing_ok=True)
    os.replace(file, target)
    os.replace(note, beside)


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
