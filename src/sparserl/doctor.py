"""doctor: what works on this machine, part by part, found out by really doing it.

Every check does a small piece of work (compile, multiply, verify) and gives PASS with what it saw, or the reason.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sparserl.errors import SparseRLError
from sparserl.version import VERSION


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    part: str
    passed: bool
    detail: str
    seconds: float
    needed: bool
    """without it nothing can be tuned here; a GPU is not needed"""


def examine() -> Iterator[Check]:
    """All checks, each run when it is asked for."""
    parts: list[tuple[str, Callable[[], str], bool]] = [
        ("python", _python, True),
        ("cache", _cache, True),
        ("host compiler", _host_compiler, True),
        ("nvrtc", _nvrtc, False),
        ("simulator", lambda: _product("sim"), True),
        ("sandbox", _sandbox, True),
        ("policy", _policy, False),
        ("cuda", lambda: _product("cuda"), False),
        ("cusparse", _cusparse, False),
    ]
    for part, work, needed in parts:
        began = time.perf_counter()
        try:
            detail, passed = work(), True
        except (SparseRLError, OSError, ImportError) as error:
            detail, passed = " ".join(str(error).split()), False
        yield Check(part, passed, detail, time.perf_counter() - began, needed)


def _python() -> str:
    import scipy
    import torch

    versions = f"numpy {np.__version__}, scipy {scipy.__version__}, torch {torch.__version__}"
    return f"sparserl {VERSION}, Python {platform.python_version()} on {platform.machine()}, {versions}"


def _cache() -> str:
    from sparserl.store import cache_root

    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=root):
        return f"{root} can be written"


def _host_compiler() -> str:
    import shutil
    import subprocess

    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise SparseRLError(f"there is no {name}: install g++ (the simulator needs it), or set CXX")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return said.partition("\n")[0] or path


def _nvrtc() -> str:
    from sparserl.backends import nvrtc

    binary = nvrtc.compile('extern "C" __global__ void empty() {}\n', ("empty",), "sm_90", cache=False)
    return f"NVRTC {nvrtc.version()} made {len(binary.code)} bytes for sm_90"


def _product(name: str) -> str:
    """A small product of a generated kernel, verified against SciPy."""
    from sparserl.engine import machine, make_engine, verify
    from sparserl.families import make, values_for
    from sparserl.matrix import Matrix
    from sparserl.records import Problem

    backend = machine(name)
    pattern = make("stencil2d", 0, nx=20, ny=20)
    matrix = Matrix(pattern, values_for(pattern, 0))
    engine = make_engine(matrix, Problem(), TINY, backend, generated=True)
    verify(engine, pattern, Problem(), restore=matrix.data, seed=0)
    device = backend.device()
    return f"{device.name} ({device.arch}, {device.sms} SMs): a product of {pattern.nonzeros} nonzeros is right"


def _sandbox() -> str:
    from sparserl.judge.sandbox import Sandbox

    sandbox = Sandbox("sim")
    try:
        return sandbox.hello.lockdown
    finally:
        sandbox.close()


def _policy() -> str:
    """The shipped language model begins to write."""
    from sparserl.families import make
    from sparserl.policies import folder_of, problems
    from sparserl.policy.writer import Writer
    from sparserl.records import Problem

    writer = Writer(folder_of("nano"))
    few = replace(writer.settings, max_tokens=8, greedy=True, stop_at_eos=False)
    writer.write([make("stencil2d", 0, nx=20, ny=20)], Problem(), 1, machine=writer.machine, settings=few)
    size = sum(each.numel() for each in writer.policy.parameters())
    return f"nano, {size / 1e6:.1f} M parameters; `tune` takes it unasked for {', '.join(problems()) or 'nothing yet'}"


def _cusparse() -> str:
    from sparserl.engine import library_variants, machine, make_engine, verify
    from sparserl.families import make, values_for
    from sparserl.matrix import Matrix
    from sparserl.records import Problem

    backend = machine("cuda")
    pattern = make("stencil2d", 0, nx=20, ny=20)
    matrix = Matrix(pattern, values_for(pattern, 0))
    names = library_variants(pattern, Problem())
    for variant in names:
        engine = make_engine(matrix, Problem(), variant, backend, generated=False)
        verify(engine, pattern, Problem(), restore=matrix.data, seed=0)
    return f"{len(names)} variants are right: {', '.join(names)}"


TINY = """\
// layout: rows index=int32
// launch: spmv<<<div_up(rows, 128), 128>>>
extern "C" __global__ void spmv(int rows, int columns, int nonzeros, int padded, const int* row_start,
                                const index_t* cols, const value_t* vals, const value_t* x, value_t* y)
{
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    acc_t sum = 0;
    for (int j = row_start[row]; j < row_start[row + 1]; ++j) sum += to_acc(vals[j]) * to_acc(x[cols[j]]);
    y[row] = to_value(sum);
}
"""
