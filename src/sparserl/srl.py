"""The .srl file: an operator on disk. A zip of about.json, program.cu, matrix.npz and report.json.

It carries the program's text and the canonical matrix, not binaries and not packed arrays: one file then serves every
machine, cuSPARSE too, and can't disagree with itself; loading packs, compiles and verifies again with fresh numbers. On
another device than the one it was tuned for it says so in the log and drops the times that no longer hold.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparserl.errors import OperatorError
from sparserl.matrix import Matrix, Pattern
from sparserl.records import Problem
from sparserl.store import write_atomic
from sparserl.value_order import ValueOrder
from sparserl.version import VERSION

if TYPE_CHECKING:
    from sparserl.backends.backend import Backend, Device
    from sparserl.operator import Operator

FORMAT = 1
log = logging.getLogger(__name__)


def save(operator: Operator, path: Path) -> None:
    try:
        write_atomic(path, dumps(operator))
    except OSError as error:
        raise OperatorError(f"Can't write {path}: {error.strerror or error}. Choose another path.") from error


def dumps(operator: Operator) -> bytes:
    """The bytes of an .srl file."""
    device = operator._backend.device()
    matrix = operator._matrix
    about = {
        "format": FORMAT,
        "sparserl": VERSION,
        "problem": asdict(operator.problem),
        "rows": matrix.pattern.rows,
        "columns": matrix.pattern.columns,
        "nonzeros": matrix.nonzeros,
        "fingerprint": matrix.pattern.fingerprint(),
        "generated": operator.generated,
        "layout": operator.layout,
        "backend": device.backend,
        "device": device.name,
        "arch": device.arch,
        "versions": dict(device.versions),
    }
    arrays = {"row_start": matrix.pattern.row_start, "cols": matrix.pattern.cols, "data": matrix.data}
    if operator._order.position is not None:
        arrays["position"] = operator._order.position
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("about.json", json.dumps(about, indent=2))
        archive.writestr("program.cu", operator.source)
        archive.writestr("report.json", json.dumps(operator.report, indent=2))
        archive.writestr("matrix.npz", packed.getvalue())
    return out.getvalue()


def load(path: str | Path, device: str = "auto") -> Operator:
    """Read an operator. `device`: 'auto' (the kind it was saved on), 'cuda' or 'sim'."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise OperatorError(f"Can't read {path}: {error.strerror or error}.") from error
    return loads(data, device, str(path))


def loads(data: bytes, device: str = "auto", name: str = "the operator") -> Operator:
    """An operator from the bytes of an .srl file: packed, compiled and verified on this machine."""
    from sparserl.engine import make_engine, verify
    from sparserl.operator import Operator

    about, source, report, arrays = _parts(data, name)
    problem = Problem(**about["problem"])
    matrix = Matrix(Pattern(about["rows"], about["columns"], arrays["row_start"], arrays["cols"]), arrays["data"])
    if matrix.pattern.fingerprint() != about["fingerprint"]:
        raise OperatorError(f"{name} is damaged: its pattern is not the one it was saved with. Save it again.")
    backend = _open(about, device, name)
    engine = make_engine(matrix, problem, source, backend, generated=about["generated"])
    verify(engine, matrix.pattern, problem, restore=matrix.data)
    report = _report_here(report, about, backend.device(), name)
    return Operator(matrix, problem, engine, report, ValueOrder(matrix.nonzeros, arrays.get("position")))


def _open(about: dict[str, Any], device: str, name: str) -> Backend:
    """The machine asked for. A file made on a GPU never falls to the simulator by itself."""
    from sparserl.engine import machine

    if device not in ("auto", "cuda", "sim"):
        raise OperatorError(f"The 'device' of load must be 'auto', 'cuda' or 'sim'. Got {device!r}.")
    wanted = about["backend"] if device == "auto" else device
    if wanted == "sim" and not about["generated"]:
        raise OperatorError(f"{name} holds a cuSPARSE operator, which needs a GPU: tune the matrix with device='sim'.")
    return machine(wanted)


def _report_here(report: dict[str, Any], about: dict[str, Any], here: Device, name: str) -> dict[str, Any]:
    """The report as it holds on this machine: times stay only on the device they were taken on."""
    if (about["backend"], about["device"], about["arch"]) == (here.backend, here.name, here.arch):
        log.info("%s: compiled and verified on %s.", name, here.name)
        return report
    log.warning(
        "%s was tuned on %s (%s): recompiled and verified on %s (%s). Its times don't hold here; "
        "sparserl.tune(A) again may find a faster kernel.",
        name, about["device"], about["arch"], here.name, here.arch,
    )  # fmt: skip
    kept = dict(report.get("result", {}))
    timeless = {key: value for key, value in kept.items() if "_us" not in key}
    return {**report, "tuned_on": about["device"], "tuned_result": kept, "result": timeless}


def _parts(data: bytes, name: str) -> tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            about = json.loads(archive.read("about.json"))
            if about.get("format") != FORMAT:
                raise OperatorError(
                    f"{name} has format {about.get('format')!r}, written by sparserl {about.get('sparserl')}; "
                    f"this is {VERSION}, which reads format {FORMAT}. Tune the matrix again."
                )
            source = archive.read("program.cu").decode()
            report = json.loads(archive.read("report.json"))
            with np.load(io.BytesIO(archive.read("matrix.npz")), allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
        raise OperatorError(f"{name} is not a whole .srl file ({error}). Save it again with op.save.") from error
    return about, source, report, arrays
