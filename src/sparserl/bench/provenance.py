"""Where records come from: a machine, its versions, a policy, a commit, a command. One 'about' record a way to measure.

Records of a folder must agree in the machine, the policy and the number of candidates, and in the versions that a time
depends on unless whoever measures says otherwise; what differs then is in the figures of the folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from sparserl.backends.backend import Device
from sparserl.bench.tables import Record
from sparserl.errors import StoreError
from sparserl.store import content_key
from sparserl.version import VERSION

log = logging.getLogger(__name__)

SAME = ("source", "device", "policy", "policy_sha", "candidates")
"""what all records of a folder must agree in"""
HARMLESS = ("python", "numpy", "scipy")
"""versions that no time of the operator or of a library on the GPU depends on"""
UNSTEADY = ("date", "command", "copy_tb_s")
"""what differs from call to call that measure in one way; calls with other commands are kept apart by `archive`"""
PART_OF_WORK = ("--share", "--budget")
"""options that say which part of the work a call did, not how; they are left out of its command"""


def machine(device: Device) -> dict[str, Any]:
    """What was measured on, and with what."""
    ours = {"sparserl": VERSION, "python": platform.python_version(), "numpy": np.__version__}
    return {
        "device": device.name,
        "arch": device.arch,
        "driver": _driver() or device.versions.get("driver", ""),
        "versions": {**device.versions, **ours, "scipy": scipy.__version__},
        "memory_tb_s": device.memory_tb_s,
        "l2_bytes": device.l2_bytes,
        "commit": commit(),
    }


def record_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """The 'about' record, with the id by which others name it."""
    key = content_key({name: value for name, value in about.items() if name not in UNSTEADY})[:12]
    return {"kind": "about", "id": key, **about}


def refuse_mixing(records: Iterable[Record], about: Record, out: Path, other_versions: bool) -> None:
    """Raise StoreError where a folder was measured otherwise. other_versions: warn of versions, and go on."""
    for earlier in (r for r in records if r["kind"] == "about"):
        for key in SAME:
            if earlier.get(key) != about[key]:
                raise StoreError(
                    f"The records in {out} have the {key} {earlier.get(key)!r}, this run has {about[key]!r}: they are "
                    "never mixed. Choose another --out folder."
                )
        said = "; ".join(f"{name} {' and '.join(values)}" for name, values in differing([earlier, about]).items())
        if not said:
            continue
        if not other_versions:
            raise StoreError(
                f"The records in {out} were measured with other versions: {said} (the last is here). Choose another "
                "--out folder, or mix them on purpose with --other-versions: the figures will say so."
            )
        log.warning("%s mixes versions: %s.", out, said)


def differing(abouts: Sequence[Record]) -> dict[str, list[str]]:
    """Versions that times depend on and in which these records differ, with their values in order."""
    found: dict[str, dict[str, None]] = {}
    for about in abouts:
        known = {"kernel driver": about.get("driver"), **(about.get("versions") or {})}
        for name, value in known.items():
            if value and name not in HARMLESS:
                found.setdefault(name, {})[str(value)] = None
    return {name: list(values) for name, values in found.items() if len(values) > 1}


def command() -> str:
    """This process's, but for what says which part of the work it did."""
    words, kept = iter(sys.argv[1:]), ["sparserl"]
    for word in words:
        if word in PART_OF_WORK:
            next(words, None)
        elif word.partition("=")[0] not in PART_OF_WORK:
            kept.append(word)
    return shlex.join(kept)


def commit() -> str | None:
    """Of the repository this package runs from, with '+' where its source was changed.

    A copy without its repository, on a machine that is lent for the measurement, say, is told by `SPARSERL_COMMIT`;
    None where nobody says.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return os.environ.get("SPARSERL_COMMIT") or None
    with suppress(OSError, subprocess.SubprocessError):
        named = _git(root, "rev-parse", "--short=12", "HEAD")
        return named + "+" * bool(_git(root, "status", "--porcelain", "--untracked-files=no", "--", "src"))
    return None


def sha_of(policy: Path) -> str:
    """Of a policy's weights; '' where it is none."""
    weights = policy / "model.safetensors"
    if not weights.is_file():
        return ""
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _git(root: Path, *words: str) -> str:
    asked = ["git", "--no-optional-locks", "-C", str(root), *words]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


def _driver() -> str:
    """The kernel driver's version, such as '580.95.05'; '' where there is none."""
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split() if path.is_file() else []
    return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), "")
