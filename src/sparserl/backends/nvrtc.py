"""CUDA source to cubin through NVRTC, which needs no GPU: one at a time (`compile`) or in processes (`CompilePool`).

NVRTC holds a lock for most of a compile, so threads do not scale and processes do. The workers are plain subprocesses
rather than `multiprocessing` children: they start with no copy of the caller's CUDA state, need no `__main__` guard in
the caller's script, and one that dies or hangs costs only the program it was compiling. Sources must declare their
kernels `extern "C"`: names are not mangled. Loading and launching are `cuda.py`'s.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from sparserl.backends import cubin
from sparserl.backends.backend import Binary
from sparserl.errors import BackendError, CompileError

log = logging.getLogger(__name__)

FILE_NAME = "program.cu"
"""what NVRTC calls the source in its messages, unless a #line directive says otherwise"""
CACHE_ENTRIES = 8192
CACHE_PRUNE_EVERY = 256
_writes = itertools.count(1)


def options(arch: str) -> tuple[str, ...]:
    """The compiler's options: '-minimal' leaves textures out and saves a sixth."""
    return ("-std=c++17", f"-arch={arch}", "-minimal")


@functools.cache
def version() -> str:
    """NVRTC's version, such as '13.0'."""
    nvrtc = _library()
    status, major, minor = nvrtc.nvrtcVersion()
    _check(status, "nvrtcVersion")
    return f"{major}.{minor}"


def key_of(source: str, kernels: Sequence[str], arch: str) -> str:
    """Everything that decides a binary, hashed."""
    parts = (source, *kernels, version(), *options(arch))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile(source: str, kernels: Sequence[str], arch: str = "sm_90", *, cache: bool = True) -> Binary:
    """Compile one translation unit. Raises CompileError with the log; `cache` keeps the cubin on disk by content."""
    key = key_of(source, kernels, arch)
    if cache and (kept := _from_cache(key)) is not None:
        return kept
    code, output = _compile(source, arch)
    missing = [name for name in kernels if f".text.{name}\0".encode() not in code]
    if missing:
        raise CompileError(
            f"The source has no kernel '{missing[0]}': declare it as extern \"C\" __global__ void {missing[0]}(...).",
            output,
        )
    binary = Binary(key, code, {name: name for name in kernels}, output, cubin.registers(code))
    if cache:
        _to_cache(binary)
    return binary


def _compile(source: str, arch: str) -> tuple[bytes, str]:
    nvrtc = _library()
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), FILE_NAME.encode(), 0, None, None)
    _check(status, "nvrtcCreateProgram")
    try:
        flags = [option.encode() for option in options(arch)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        output = _text(nvrtc, program)
        if int(status) == int(nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION):
            raise CompileError(first_error(output, source), output)
        _check(status, f"nvrtcCompileProgram for {arch}", output)
        status, size = nvrtc.nvrtcGetCUBINSize(program)
        _check(status, "nvrtcGetCUBINSize")
        code = bytes(bytearray(size))  # a fresh object: the library writes into it
        _check(nvrtc.nvrtcGetCUBIN(program, code)[0], "nvrtcGetCUBIN")
        return code, output
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def first_error(output: str, source: str) -> str:
    """The first error of a log as one line: where, what, and the line of the program it is about."""
    found = re.search(r"^(.*?)\((\d+)\): (?:catastrophic )?error(?: #\S+)?: (.*)$", output, re.MULTILINE)
    if found is None:
        lines = [line.strip() for line in output.splitlines() if "error" in line.lower()]
        return lines[0] if lines else "The compiler refused the source and said nothing."
    file, number, what = found.group(1), int(found.group(2)), found.group(3).strip()
    lines = source.splitlines()
    where = f"line {number}" if file == FILE_NAME else f"{file}, line {number}"
    if file == FILE_NAME and 0 < number <= len(lines):
        return f"{where}: {what}: `{lines[number - 1].strip()}`"
    return f"{where}: {what}"


def _text(nvrtc: Any, program: Any) -> str:
    status, size = nvrtc.nvrtcGetProgramLogSize(program)
    _check(status, "nvrtcGetProgramLogSize")
    text = bytes(bytearray(size))
    _check(nvrtc.nvrtcGetProgramLog(program, text)[0], "nvrtcGetProgramLog")
    return text.rstrip(b"\0").decode(errors="replace").strip()


@functools.cache
def _library() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"NVRTC can't be loaded ({error}). It comes with the package's own dependencies: "
            "pip install 'cuda-core[cu13]' nvidia-cuda-nvrtc."
        ) from error
    return nvrtc


def _check(status: Any, call: str, output: str = "") -> None:
    if int(status):
        raise BackendError(f"NVRTC's {call} failed: {getattr(status, 'name', status)}. {output}".rstrip())


# ---- cubins on disk, by content


def cache_folder() -> Path:
    """Where cubins are kept: $SPARSERL_CACHE/cubin, or ~/.cache/sparserl/cubin."""
    chosen = os.environ.get("SPARSERL_CACHE")
    return (Path(chosen) if chosen else Path.home() / ".cache" / "sparserl") / "cubin"


def _from_cache(key: str) -> Binary | None:
    """The kept binary, or None where there is none or the file is not whole."""
    path = cache_folder() / key[:2] / key
    try:
        head, _, code = path.read_bytes().partition(b"\n")
        facts = json.loads(head)
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or hashlib.sha256(code).hexdigest() != facts.get("sha256"):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # what is used stays: many programs are made for one matrix and never seen again
    return Binary(key, code, facts["kernels"], facts["log"], cubin.registers(code))


def _to_cache(binary: Binary) -> None:
    """Best effort: a full or read-only disk costs a later compile, nothing else."""
    facts = {
        "sha256": hashlib.sha256(binary.code).hexdigest(),
        "kernels": dict(binary.kernels),
        "log": binary.log,
    }
    path = cache_folder() / binary.key[:2] / binary.key
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft")
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(facts).encode() + b"\n" + binary.code)
        os.replace(draft, path)
        if next(_writes) % CACHE_PRUNE_EVERY == 0:
            _prune()
    except OSError as error:
        log.debug("cubin not kept: %s", error)


def _prune() -> None:
    """Keep what was used last: nothing else bounds the folder."""
    aged = []
    for path in cache_folder().glob("*/*"):
        with contextlib.suppress(OSError):  # another process may prune as well
            aged.append((path.stat().st_mtime, path))
    for _, path in sorted(aged)[:-CACHE_ENTRIES]:
        path.unlink(missing_ok=True)


# ---- many at once


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    item: int = -1
    """which program it has; -1: none"""
    deadline: float = 0.0


class CompilePool:
    """A pool of warm compilers. `compile_many` gives a Binary or a CompileError for each program, in order."""

    def __init__(
        self, workers: int | None = None, arch: str = "sm_90", limit_s: float = 30.0, cache: bool = False
    ) -> None:
        """`limit_s` is the longest one compile may take; `cache` keeps the cubins on disk."""
        if workers is not None and workers < 1:
            raise ValueError(f"The 'workers' of a CompilePool must be at least 1. Got {workers}.")
        self.workers = workers or os.cpu_count() or 1
        self.arch, self.limit_s, self.cache = arch, limit_s, cache
        self._crew: list[_Worker] = []

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def compile_many(self, programs: Iterable[tuple[str, Sequence[str]]]) -> list[Binary | CompileError]:
        """Compile (source, kernels) pairs; the order of the answers is the order of the programs."""
        pending = list(programs)
        answers: list[Binary | CompileError | None] = [None] * len(pending)
        queue = iter(range(len(pending)))
        self.hire(len(pending))
        try:
            for worker in self._crew:
                self._give(worker, next(queue, -1), pending)
            while busy := [worker for worker in self._crew if worker.item >= 0]:
                rest_s = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
                ready = wait([worker.pipe for worker in busy], rest_s)
                for worker in busy:
                    if worker.pipe in ready:
                        answers[worker.item] = self._take(worker)
                    elif worker.deadline <= time.monotonic():
                        self._replace(worker)
                        answers[worker.item] = CompileError(f"The compiler took longer than {self.limit_s:g} s.")
                    else:
                        continue
                    self._give(worker, next(queue, -1), pending)
        except BaseException:
            self.close()  # half-done workers would answer the next call with this one's results
            raise
        return [answer if answer is not None else CompileError("The compiler gave no answer.") for answer in answers]

    def hire(self, programs: int) -> None:
        """Start the workers that so many programs need, where there are fewer."""
        while len(self._crew) < min(self.workers, programs):
            self._crew.append(self._hire())

    def close(self) -> None:
        """End the workers; the pool can be used again and starts new ones."""
        for worker in self._crew:
            _dismiss(worker)
        self._crew.clear()

    def _hire(self) -> _Worker:
        ours, theirs = Pipe()
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        code = f"from sparserl.backends.nvrtc import serve; serve({theirs.fileno()}, {self.arch!r}, {self.cache!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        return _Worker(process, ours)

    def _replace(self, worker: _Worker) -> None:
        _dismiss(worker)
        fresh = self._hire()
        worker.process, worker.pipe = fresh.process, fresh.pipe

    def _give(self, worker: _Worker, item: int, pending: Sequence[tuple[str, Sequence[str]]]) -> None:
        worker.item, worker.deadline = item, time.monotonic() + self.limit_s
        if item < 0:
            return
        source, kernels = pending[item]
        try:
            worker.pipe.send((source, tuple(kernels)))
        except OSError:  # it died idle
            self._replace(worker)
            worker.pipe.send((source, tuple(kernels)))

    def _take(self, worker: _Worker) -> Binary | CompileError:
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            code = worker.process.wait()
            self._replace(worker)
            return CompileError(f"The compiler's process died on this program (exit code {code}).")
        if isinstance(answer, BackendError):
            raise answer
        assert isinstance(answer, Binary | CompileError)
        return answer


def _dismiss(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.wait()


def serve(descriptor: int, arch: str, cache: bool) -> None:
    """The life of a worker: read a program, answer a Binary or the error, until the pipe closes."""
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            source, kernels = pipe.recv()
            answer: Binary | CompileError | BackendError
            try:
                answer = compile(source, kernels, arch, cache=cache)
            except (CompileError, BackendError) as error:
                answer = error
            pipe.send(answer)
