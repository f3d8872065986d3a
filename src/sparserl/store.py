"""What is kept on disk: run folders, a content-addressed cache, JSON and JSON Lines.

A folder counts only when its `manifest.json` is there: it is written last and holds the size and SHA-256 of every other
file. Folders are built beside their place and renamed into it, so a reader sees all of one or nothing. Sharing a cache
between machines over a network file system without atomic rename is not covered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sparserl.errors import StoreError

MANIFEST = "manifest.json"
FORMAT = 1
"""raised when the meaning of a stored folder changes; older folders are then refused (or, in the cache, ignored)"""


def cache_root() -> Path:
    """`$SPARSERL_CACHE`, or `~/.cache/sparserl` (`$XDG_CACHE_HOME` is honoured). Not created here."""
    if chosen := os.environ.get("SPARSERL_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sparserl"


def content_key(parts: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of `parts`; every part that matters must be named in it."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp's 0600 would hide a result from the user's group
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"Can't read {path} as JSON: {error}. Delete it and make it again.") from error


def claim(path: Path, about: Mapping[str, Any], what: str) -> None:
    """Write down what the folder of `path` is about; refuse one whose `what` were made with something else."""
    if path.exists() and (earlier := read_json(path)) != about:
        other = next(name for name in about if earlier.get(name) != about[name])
        raise StoreError(
            f"The {what} in {path.parent} have another '{other}' ({earlier.get(other)!r}, not {about[other]!r}): "
            "choose another --out folder."
        )
    write_json(path, about)


# ── JSON Lines ────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows has no fcntl; one writer a file is then the caller's affair
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def append_jsonl(path: Path, *records: Mapping[str, Any]) -> None:
    """Append records. What a killed writer left unfinished at the end of the file is cut off first."""
    line = _lines(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b") as file, _locked(file):
        file.seek(_whole_lines_end(file))
        file.truncate()
        file.write(line)
        file.flush()  # while the lock is still held


def keep_jsonl(path: Path, wanted: Callable[[Mapping[str, Any]], bool]) -> int:
    """Leave the records that are wanted; how many were not. A writer that is killed leaves the old file or the new."""
    records = read_jsonl(path)
    kept = [record for record in records if wanted(record)]
    if len(kept) < len(records):
        write_atomic(path, _lines(kept))
    return len(records) - len(kept)


def _lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(each, separators=(",", ":"), allow_nan=False) + "\n" for each in records).encode()


def _whole_lines_end(file: IO[bytes]) -> int:
    """The offset just past the last newline, looked for from the end."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - 65536)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole records. A torn last line is left out; a broken line before it is an error."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is empty or torn
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise StoreError(
                f"Line {number} of {path} is not JSON ({error}). Only a last line may be torn: "
                "restore the file or cut it there."
            ) from error
    return records


# ── Folders with a manifest ───────────────────────────────────────────────────


def write_folder(folder: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Make `folder` hold exactly `files` and a manifest that says `about`, all at once; an older one is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:32]}."))
    try:
        listing = {}
        for name, data in files.items():
            if name == MANIFEST or Path(name).name != name:
                raise StoreError(f"A stored file must have a plain name other than {MANIFEST!r}. Got {name!r}.")
            (made / name).write_bytes(data)
            listing[name] = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        write_json(made / MANIFEST, {"format": FORMAT, "about": dict(about), "files": listing})
        made.chmod(0o755)
        _swap_in(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _swap_in(made: Path, folder: Path) -> None:
    """Rename `made` to `folder`. A folder already there is moved aside first: rename never overwrites a full one."""
    for _ in range(16):  # another writer may put its own in between
        try:
            os.rename(made, folder)
            return
        except OSError:
            if not folder.exists():
                raise
            aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:32]}.old."))
            with contextlib.suppress(OSError):
                os.rename(folder, aside / "old")
            shutil.rmtree(aside, ignore_errors=True)
    raise StoreError(f"Can't replace {folder}: other processes keep writing it. Stop them and try again.")


def read_folder(folder: Path) -> dict[str, Any]:
    """The `about` of a folder, after checking that every file of its manifest is there, whole and unchanged."""
    if not (folder / MANIFEST).exists():
        raise StoreError(f"{folder} has no {MANIFEST}: it was never finished. Delete it and make it again.")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoreError(
            f"{folder} was written by another version of sparserl (this one reads format {FORMAT}). Make it again."
        )
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != facts["size_bytes"] or _sha256(path) != facts["sha256"]:
            raise StoreError(f"{path} is missing or has changed: delete {folder} and make it again.")
    about = manifest["about"]
    assert isinstance(about, dict)
    return about


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Cache:
    """Folders by content key. A broken or outdated entry counts as absent: a cache may forget, never lie."""

    kind: str
    root: Path | None = None
    """None: `cache_root()`, looked up at every call"""

    def folder(self, key: str) -> Path:
        return (self.root or cache_root()) / self.kind / key[:2] / key

    def get(self, key: str) -> Path | None:
        """The entry's folder, checked, or None."""
        folder = self.folder(key)
        try:
            read_folder(folder)
        except (StoreError, KeyError, TypeError, AssertionError):
            return None
        return folder

    def put(self, key: str, files: Mapping[str, bytes], about: Mapping[str, Any]) -> Path | None:
        """Store an entry. None where the disk won't take it: a full or read-only cache must not stop the work."""
        folder = self.folder(key)
        try:
            write_folder(folder, files, about)
        except OSError:
            return None
        return folder


def new_run_folder(base: Path, name: str) -> Path:
    """A fresh folder `base/name-YYYYmmdd-HHMMSS[-k]`, made here, never shared between two callers."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base.mkdir(parents=True, exist_ok=True)
    for attempt in range(1000):
        folder = base / (f"{name}-{stamp}" + (f"-{attempt}" if attempt else ""))
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise StoreError(f"Can't make a new folder {base}/{name}-{stamp}: a thousand are there already. Clean up {base}.")
