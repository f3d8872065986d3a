"""Packing, assembling and compiling in processes of their own, so that the GPU never waits for the host.

A worker gets a layout line and the programs that use it; it packs the pattern, assembles each program into a Job and
compiles it. Arrays travel through files in shared memory, which the parent maps and deletes. Only a few layouts are
ahead of the parent at any time: packed forms of a large matrix would fill the memory otherwise.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import TracebackType

import numpy as np

from sparserl.backends.backend import Binary, Job
from sparserl.errors import CompileError, SparseRLError
from sparserl.lifetime import helpers
from sparserl.matrix import Pattern
from sparserl.records import LayoutLine, Packed, Problem, Program


@dataclass(frozen=True)
class Ready:
    """The programs of one layout line, ready to run; what failed on the way has its reason in place of the result."""

    packed: Packed | None
    """None where the layout can't be packed: then everything that asked for it is in `refused`"""
    programs: tuple[tuple[int, Job, Binary | str], ...]
    """(position in what was asked for, job, binary or reason); '' where compiling is left to the caller"""
    refused: tuple[tuple[int, str], ...] = ()
    """(position, reason) of programs that did not become a job"""


class PackPool:
    """Worker processes that know the pattern at hand."""

    def __init__(self, workers: int, arch: str, sms: int) -> None:
        """`arch` is what programs are compiled for; '' leaves compiling to the caller (the simulator has its own)."""
        if workers < 1:
            raise ValueError(f"The 'workers' of a PackPool must be at least 1. Got {workers}.")
        self._folder = Path(tempfile.mkdtemp(prefix="sparserl-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self._arch, self._sms, self._count, self._ahead = arch, sms, 0, workers + 2
        self._pool = helpers(workers)

    def prepare(self, pattern: Pattern, problem: Problem, texts: Sequence[tuple[LayoutLine, str]]) -> Iterator[Ready]:
        """Layout by layout, as they get ready; the arrays are good until the next one is asked for."""
        self._count += 1
        home = self._folder / str(self._count)
        home.mkdir()
        np.save(home / "row_start.npy", pattern.row_start)
        np.save(home / "cols.npy", pattern.cols)
        by_line: dict[LayoutLine, list[tuple[int, str]]] = {}
        for at, (line, text) in enumerate(texts):
            by_line.setdefault(line, []).append((at, text))
        waiting = iter(
            Task(str(home), pattern.shape, line, tuple(group), problem, self._arch, self._sms)
            for line, group in by_line.items()
        )
        under_way: set[Future[Ready]] = set()
        try:
            while True:
                under_way |= {self._pool.submit(_prepare, t) for t in islice(waiting, self._ahead - len(under_way))}
                if not under_way:
                    return
                done = next(iter(wait(under_way, return_when=FIRST_COMPLETED).done))
                under_way.remove(done)
                yield from self._handed_over(done.result(), home)
        finally:
            for future in under_way:
                future.cancel()
            wait(under_way)  # a worker must not write into a folder that is being deleted
            shutil.rmtree(home, ignore_errors=True)

    @staticmethod
    def _handed_over(ready: Ready, home: Path) -> Iterator[Ready]:
        """The same with its arrays mapped; their files are deleted as soon as the caller comes back for more."""
        if ready.packed is None:
            yield ready
            return
        folder = home / _name(ready.packed.layout)
        yield replace(ready, packed=_opened(ready.packed, folder))
        shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> PackPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _name(line: LayoutLine) -> str:
    return str(line).replace(" ", "_")


@lru_cache(maxsize=1)
def _pattern(home: str, shape: tuple[int, int]) -> Pattern:
    return Pattern(*shape, np.load(f"{home}/row_start.npy"), np.load(f"{home}/cols.npy"))


@lru_cache(maxsize=8192)
def _parsed(text: str) -> Program:
    from sparserl.program import parse

    return parse(text)


@dataclass(frozen=True)
class Task:
    """What a worker is told: where the pattern lies, one layout line and the programs on it."""

    home: str
    shape: tuple[int, int]
    line: LayoutLine
    texts: tuple[tuple[int, str], ...]
    problem: Problem
    arch: str
    sms: int


def _prepare(task: Task) -> Ready:
    """In a worker: pack once, then assemble and compile each program."""
    from sparserl import layouts
    from sparserl.assemble import assemble

    try:
        packed = layouts.pack(_pattern(task.home, task.shape), task.line)
    except SparseRLError as error:
        return Ready(None, (), tuple((at, str(error)) for at, _ in task.texts))
    programs: list[tuple[int, Job, Binary | str]] = []
    refused: list[tuple[int, str]] = []
    for at, text in task.texts:
        try:
            job = assemble(_parsed(text), packed, task.problem, task.sms)
        except SparseRLError as error:
            refused.append((at, str(error)))
            continue
        programs.append((at, job, _compiled(job, task.arch) if task.arch else ""))
    return Ready(_saved(packed, Path(task.home) / _name(task.line)), tuple(programs), tuple(refused))


def _compiled(job: Job, arch: str) -> Binary | str:
    from sparserl.backends import nvrtc

    try:
        return nvrtc.compile(job.source, job.kernels, arch)
    except CompileError as error:
        return f"does not compile: {error}"
    except SparseRLError as error:
        return str(error)


def _saved(packed: Packed, folder: Path) -> Packed:
    """The record without its arrays, which go into files."""
    folder.mkdir()
    for name, array in packed.arrays.items():
        np.save(folder / f"{name}.npy", array)
    if packed.slot_of is not None:
        np.save(folder / "slot of.npy", packed.slot_of)
    return replace(packed, arrays=dict.fromkeys(packed.arrays, np.zeros(0, np.int32)), slot_of=None)


def _opened(packed: Packed, folder: Path) -> Packed:
    slots = folder / "slot of.npy"
    return replace(
        packed,
        arrays={name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in packed.arrays},
        slot_of=np.load(slots, mmap_mode="r") if slots.exists() else None,
    )
