"""Where archives come from: the package index that pip is set up to use, asked for one file by its exact name.

The index, extra indexes, find-links, certificate and proxy are pip's own (`pip config list`, which knows the PIP_*
variables too), so a machine on which `pip install` works needs no further setting. An archive is only fetched and
checked against its pinned SHA-256: it is never built, installed or imported. A download that broke off goes on where it
stopped, where the server can do that. Not covered: keyring logins, client certificates, mirrors with other file names.
"""

from __future__ import annotations

import ast
import hashlib
import html.parser
import http.client
import json
import logging
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparserl.errors import SparseRLError

TIMEOUT_S = 60.0
ATTEMPTS = 3
CHUNK_BYTES = 1 << 18
PAGE_TYPES = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"  # PEP 691 and PEP 503

log = logging.getLogger(__name__)
Count = Callable[[int], None]
"""told the bytes of the archive that are on the disk so far"""


class CorpusError(SparseRLError):
    """An archive of the corpus can't be had, isn't the one that was pinned, or holds what no archive should."""


@dataclass(frozen=True)
class Archive:
    """One line of the manifest: an archive pinned by name and checksum."""

    name: str
    version: str
    kind: str
    """'sdist' or 'wheel'"""
    file: str
    sha256: str
    licence: str
    held_out: bool
    """all of its files are for validation, none for training"""

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file or self.file.startswith("."):
            raise CorpusError(f"The file of {self.name} must be a plain name. Got {self.file!r}; fix the manifest.")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise CorpusError(f"The sha256 of {self.name} must be 64 hexadecimal digits. Got {self.sha256!r}.")

    @property
    def project(self) -> str:
        """the name as an index spells it"""
        return re.sub(r"[-_.]+", "-", self.name).lower()


@dataclass(frozen=True)
class Sources:
    """What pip is told: where to look, and how to get there."""

    indexes: tuple[str, ...]
    links: tuple[str, ...] = ()
    certificate: str = ""
    proxy: str = ""

    def opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = []
        if self.certificate:
            context = ssl.create_default_context(cafile=self.certificate)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        if self.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy}))
        return urllib.request.build_opener(*handlers)


# ── pip's settings ────────────────────────────────────────────────────────────


def pip_sources(index: str | None = None) -> Sources:
    """What pip would ask; an `index` given by hand is the only place asked."""
    settings = _pip_settings()
    certificate, proxy = settings.get("cert", ""), settings.get("proxy", "")
    if index:
        return Sources((index,), (), certificate, proxy)
    indexes: list[str] = []
    if settings.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        main = settings.get("index-url") or _pip_default_index()
        indexes = [*([main] if main else []), *settings.get("extra-index-url", "").split()]
    links = tuple(settings.get("find-links", "").split())
    if not indexes and not links:
        raise CorpusError("pip names no package index here: pass --index URL, or set PIP_INDEX_URL.")
    return Sources(tuple(indexes), links, certificate, proxy)


def _pip(*words: str) -> str:
    """What pip answers; nothing where the environment has no pip."""
    # a wide terminal: pip's help would break a long address over two lines
    environment = {**os.environ, "COLUMNS": "2000", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [sys.executable, "-m", "pip", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _pip_settings() -> dict[str, str]:
    """pip's settings for a download, in pip's order: its files, the section of the command, then the environment."""
    found: dict[str, dict[str, str]] = {"global": {}, "download": {}, ":env:": {}}
    for line in _pip("config", "list").splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found and quoted:
            found[section][name] = str(ast.literal_eval(quoted))
    for name in ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy"):
        if value := os.environ.get("PIP_" + name.upper().replace("-", "_")):
            found[":env:"][name] = value  # also where pip itself is missing
    return found["global"] | found["download"] | found[":env:"]


def _pip_default_index() -> str:
    """The public index, as pip's own help names it."""
    match = re.search(r"--index-url\b.*?\(default (\S+?)\)", " ".join(_pip("help", "download").split()))
    return match[1] if match else ""


# ── Finding a file ────────────────────────────────────────────────────────────


class _Anchors(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _locate(archive: Archive, sources: Sources, opener: urllib.request.OpenerDirector) -> Iterator[str]:
    """Addresses of the archive, the likeliest first."""
    for place in sources.links:
        folder = Path(urllib.request.url2pathname(urllib.parse.urlsplit(place).path))
        if urllib.parse.urlsplit(place).scheme in ("", "file") and folder.is_dir():
            if (folder / archive.file).is_file():
                yield (folder / archive.file).resolve().as_uri()
        else:
            yield from _links_of(_address(place), archive.file, opener)
    for index in sources.indexes:
        yield from _links_of(f"{_address(index).rstrip('/')}/{archive.project}/", archive.file, opener)


def _address(place: str) -> str:
    return place if "://" in place else Path(place).expanduser().resolve().as_uri()


def _links_of(page: str, file: str, opener: urllib.request.OpenerDirector) -> Iterator[str]:
    """The links to `file` on a page; a page that isn't there has none."""
    if page.startswith("file:") and page.endswith("/"):
        page += "index.html"
    try:
        with opener.open(urllib.request.Request(page, headers={"Accept": PAGE_TYPES}), timeout=TIMEOUT_S) as answer:
            base, kind, text = answer.url, answer.headers.get("Content-Type", ""), answer.read().decode()
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:  # HTTPError and URLError are OSErrors
        log.info("no list of files at %s: %s", page, error)
        return
    if "json" in kind:
        links = [each["url"] for each in json.loads(text)["files"]]
    else:
        parser = _Anchors()
        parser.feed(text)
        links = parser.links
    for link in links:
        address = urllib.parse.urljoin(base, link).partition("#")[0]
        if urllib.parse.unquote(urllib.parse.urlsplit(address).path).rpartition("/")[2] == file:
            yield address


# ── Fetching it ───────────────────────────────────────────────────────────────


def on_disk(archive: Archive, folder: Path) -> Path | None:
    """The archive, if it is in `folder` and has the pinned SHA-256; one that has another is thrown away."""
    target = folder / archive.file
    if not target.is_file():
        return None
    if _sha256(target) == archive.sha256:
        return target
    log.warning("%s has not the SHA-256 of the manifest; fetching it again", target)
    target.unlink()
    return None


def fetch(archive: Archive, folder: Path, sources: Sources, count: Count) -> Path:
    """Download the archive, or go on with a download that broke off; it appears in `folder` whole and checked."""
    target, part = folder / archive.file, folder / (archive.file + ".part")
    folder.mkdir(parents=True, exist_ok=True)
    opener = sources.opener()
    problems: list[str] = []
    for address in _locate(archive, sources, opener):
        problem = _fetch_from(address, part, archive, opener, count)
        if not problem:
            os.replace(part, target)
            return target
        problems.append(problem)
    asked = len(sources.indexes) + len(sources.links)
    reason = "; ".join(problems) or f"none of the {asked} package indexes and folders that pip is set up with has it"
    raise CorpusError(f"{archive.file} ({archive.name} {archive.version}) can't be had: {reason}.")


def _fetch_from(address: str, part: Path, archive: Archive, opener: urllib.request.OpenerDirector, count: Count) -> str:
    """Fill `part` from one address: '' when it has the pinned sum, else what went wrong."""
    problem = ""
    for attempt in range(ATTEMPTS):
        try:
            _continue(address, part, opener, count)
        except (OSError, http.client.HTTPException) as error:
            problem = f"the download broke off ({getattr(error, 'reason', None) or error})"
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                return f"the server answered {error.code}"
            time.sleep(0.2 * 4**attempt)
            continue
        got = _sha256(part)
        if got == archive.sha256:
            return ""
        part.unlink()
        problem = f"its SHA-256 is {got}, the manifest pins {archive.sha256}"
    return problem


def _continue(address: str, part: Path, opener: urllib.request.OpenerDirector, count: Count) -> None:
    """Append to `part` what is missing; start again where the server can't send a rest."""
    start = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer = opener.open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return  # nothing is missing: the sum decides
    with answer:
        partial = getattr(answer, "status", None) == http.HTTPStatus.PARTIAL_CONTENT
        start = start if partial else 0
        promised = answer.headers.get("Content-Length")
        done = start
        with part.open("ab" if partial else "wb") as file:
            while block := answer.read(CHUNK_BYTES):
                file.write(block)
                done += len(block)
                count(done)
    if promised is not None and done - start != int(promised):
        raise ConnectionError(f"after {done - start} of {promised} bytes")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
