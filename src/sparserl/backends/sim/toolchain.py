"""CUDA source → two host libraries by the host's C++ compiler: a plain one, and one that reports every access.

The runtime is compiled once a machine, kernels are cached by content under $SPARSERL_CACHE/sim.

The checked build is compiled with -fsanitize=thread and linked without it, so the hooks lead to watch.h.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from sparserl.errors import BackendError, CompileError

HERE = Path(__file__).parent
MAGIC = b"SRLSIM1\0"
COMMON = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-fno-exceptions", "-fno-rtti"]
# Whatever would merge, split or invent memory accesses is off, so that a float4 load stays one access of 16 bytes.
KERNEL = [
    "-w",
    "-DSPARSERL_SIM",
    "-include",
    "cuda_sim.h",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-tree-sra",
    "-fno-tree-vectorize",
    "-fno-tree-loop-distribute-patterns",
    "-fno-unroll-loops",
    "-fno-store-merging",
    "-fno-ipa-icf",
    "-fno-stack-protector",
    # A frame larger than the page that guards a stack would step over it, into whatever lies below.
    "-fstack-clash-protection",
    "--param=stack-clash-protection-guard-size=12",
]
CHECKED_KERNEL = ["-DSIM_CHECKED", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"]
# A variable that nobody set is whatever a register held, mostly 0 here; this makes it -1.7e38 or a wild index.
UNSET_VARIABLES = "-ftrivial-auto-var-init=pattern"
EDGES = ("shared_begin", "shared_end")
COMPILE_LIMIT_S = 60.0
CACHE_ENTRIES = 2048
"""kernels kept on disk, the least lately made go first; one is about 0.1 MB"""
CACHE_PRUNE_EVERY = 64
_writes = itertools.count(1)
_DYNAMIC_SHARED = re.compile(
    r"\bextern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?([\w\s:<>,]*?[\w>])\s+(\w+)\s*\[\s*\]\s*;"
)


def cache_folder() -> Path:
    """$SPARSERL_CACHE/sim, or ~/.cache/sparserl/sim."""
    chosen = os.environ.get("SPARSERL_CACHE")
    return (Path(chosen) if chosen else Path.home() / ".cache" / "sparserl") / "sim"


def build(source: str, kernels: Sequence[str]) -> bytes:
    """Both libraries in one byte string (`unpack` takes it apart). Raises CompileError with the compiler's log."""
    text = host_source(source, kernels)
    path = cache_folder() / f"{_hash(text.encode(), _toolchain_key().encode())}.bin"
    try:
        kept = path.read_bytes()
    except FileNotFoundError:
        kept = b""
    if kept.startswith(MAGIC):
        return kept
    with tempfile.TemporaryDirectory(prefix="sparserl-sim-") as folder:
        (Path(folder) / "kernel.cpp").write_text(text)
        with ThreadPoolExecutor(2) as both:
            plain, checked = both.map(lambda which: _build_one(Path(folder), which), (False, True))
    packed = MAGIC + struct.pack("<Q", len(plain)) + plain + checked
    _write_atomic(path, packed)
    if next(_writes) % CACHE_PRUNE_EVERY == 0:
        _prune(path.parent)
    return packed


def content_key(code: bytes) -> str:
    return _hash(code)


def unpack(code: bytes) -> tuple[bytes, bytes]:
    """The plain and the checked library."""
    if not code.startswith(MAGIC):
        raise BackendError("This binary was not made by the simulator's compiler: compile the source with SimBackend.")
    start = len(MAGIC) + 8
    (length,) = struct.unpack("<Q", code[len(MAGIC) : start])
    return code[start : start + length], code[start + length :]


def host_source(source: str, kernels: Sequence[str]) -> str:
    """The translation unit as the host compiler reads it.

    The unnamed namespace gives static shared memory inside templates internal linkage, without which the compiler
    refuses to put it into one section with the rest.
    """
    body = _DYNAMIC_SHARED.sub(r"static \1* const \2 = (\1*)sim_dynamic_shared;", source)
    entries = "\n".join(f"SIM_ENTRY({name})" for name in kernels)
    return f'namespace {{\n#line 1 "program"\n{body}\n}}\n{entries}\n'


@cache
def compiler() -> str:
    """The host's C++ compiler: $CXX, or g++."""
    chosen = os.environ.get("CXX") or "g++"
    found = shutil.which(chosen)
    if not found:
        raise BackendError(f"The simulator needs a C++ compiler; '{chosen}' is not on PATH. Install g++ or set CXX.")
    return found


def _toolchain_key() -> str:
    return _hash(_compiler_key().encode(), " ".join(_fiber_flags()).encode())


@cache
def _compiler_key() -> str:
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    machine = subprocess.run([compiler(), "-dumpmachine"], capture_output=True, text=True, check=True).stdout
    sources = b"".join(path.read_bytes() for path in sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")]))
    flags = " ".join([*_common(), *_kernel(), *CHECKED_KERNEL])
    return _hash(version.encode(), machine.encode(), sources, flags.encode())


def _common() -> list[str]:
    # The hand-written switch does not keep a shadow stack, so the object must not claim to.
    return [*COMMON, "-fcf-protection=none"] if platform.machine() in ("x86_64", "AMD64") else COMMON


@cache
def _kernel() -> list[str]:
    """KERNEL, and UNSET_VARIABLES where the compiler knows it (g++ from 12 on)."""
    command = [compiler(), UNSET_VARIABLES, "-x", "c++", "-fsyntax-only", os.devnull]
    known = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return [*KERNEL, UNSET_VARIABLES] if known else KERNEL


def _fiber_flags() -> list[str]:
    chosen = os.environ.get("SPARSERL_SIM_FIBERS", "native")
    if chosen not in ("native", "ucontext"):
        raise BackendError(f"SPARSERL_SIM_FIBERS must be 'native' or 'ucontext'. Got '{chosen}'.")
    return ["-DSIM_UCONTEXT"] if chosen == "ucontext" else []


def _runtime_object(name: str, flags: Sequence[str]) -> Path:
    """An object of the runtime, compiled once for this machine and this version."""
    path = cache_folder() / f"{name}-{_toolchain_key()}.o"
    if not path.exists():
        source = HERE / ("edge.cpp" if name in EDGES else "runtime.cpp")
        with tempfile.TemporaryDirectory(prefix="sparserl-sim-") as folder:
            out = Path(folder) / "object.o"
            command = [compiler(), *_common(), *_fiber_flags(), *flags, "-c", str(source), "-o", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BackendError(f"{source.name} doesn't compile with {compiler()}: {done.stderr[-800:]}")
            _write_atomic(path, out.read_bytes())
    return path


def _objects(checked: bool) -> tuple[Path, Path, Path]:
    """What goes before the kernel's object and after it: the order makes static shared memory one piece (edge.cpp)."""
    begin, end = (_runtime_object(name, [f"-DSIM_EDGE=sim_{name}"]) for name in EDGES)
    flags = ["-DSIM_CHECKED"] if checked else []
    return begin, end, _runtime_object("runtime-checked" if checked else "runtime-plain", flags)


def _build_one(folder: Path, checked: bool) -> bytes:
    kind = "checked" if checked else "plain"
    unit, out = folder / f"{kind}.o", folder / f"{kind}.so"
    extra = CHECKED_KERNEL if checked else []
    flags = [*_common(), "-I", str(HERE), *_kernel(), *extra]
    _run([compiler(), *flags, "-c", str(folder / "kernel.cpp"), "-o", str(unit)])
    begin, end, runtime = _objects(checked)
    objects = [str(path) for path in (begin, unit, end, runtime)]
    _run([compiler(), "-shared", "-Wl,-Bsymbolic", *objects, "-o", str(out), "-lm", "-lpthread"])
    return out.read_bytes()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"The host compiler took longer than {COMPILE_LIMIT_S:g} s.") from error
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CompileError(f"The host compiler refused the source: {first}", done.stderr)


def _write_atomic(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError as error:
        raise BackendError(
            f"The cache folder {path.parent} can't be written ({error}); set SPARSERL_CACHE to another."
        ) from error


def _prune(folder: Path) -> None:
    kept = []
    for path in folder.glob("*.bin"):
        try:
            kept.append((path.stat().st_mtime, path))
        except FileNotFoundError:  # another process prunes too
            continue
    for _, path in sorted(kept)[: max(0, len(kept) - CACHE_ENTRIES)]:
        path.unlink(missing_ok=True)


def _hash(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
