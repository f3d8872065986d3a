"""CUDA source → two host libraries, by the host's C++ compiler: a plain one, and a checked one whose every access reports
its address. The runtime is compiled once a machine, kernels are cached by content under $SPARSERL_CACHE/sim.

The checked build is compiled with -fsanitize=thread and linked without it, so the hooks lead to watch.h.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sparserl.errors import BackendError, CompileError

HERE = Path(__file__).parent
MAGIC = b"SRLSIM1\0"
COMMON = "-std=c++17 -O2 -fPIC -fvisibility=hidden -U_FORTIFY_SOURCE -fno-exceptions -fno-rtti".split()
# Whatever would merge, split or invent memory accesses is off, so that a float4 load stays one access of 16 bytes.
KERNEL = (
    "-w -DSPARSERL_SIM -include cuda_sim.h -ffp-contract=off -fno-strict-aliasing -fno-tree-sra -fno-tree-vectorize"
    " -fno-tree-loop-distribute-patterns -fno-unroll-loops -fno-store-merging -fno-ipa-icf -fno-stack-protector"
).split()
CHECKED_KERNEL = "-DSIM_CHECKED -fsanitize=thread --param=tsan-instrument-func-entry-exit=0".split()
COMPILE_LIMIT_S = 60.0
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
    runtimes = _runtime_objects()
    with tempfile.TemporaryDirectory(prefix="sparserl-sim-") as folder:
        (Path(folder) / "kernel.cpp").write_text(text)
        steps = [_start_build(Path(folder), checked, runtimes[checked]) for checked in (False, True)]
        plain, checked = (_finish_build(step, out) for step, out in steps)
    packed = MAGIC + struct.pack("<Q", len(plain)) + plain + checked
    _write_atomic(path, packed)
    return packed


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


@cache
def _toolchain_key() -> str:
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    machine = subprocess.run([compiler(), "-dumpmachine"], capture_output=True, text=True, check=True).stdout
    sources = b"".join(path.read_bytes() for path in sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")]))
    flags = " ".join([*COMMON, *KERNEL, *CHECKED_KERNEL, *_fiber_flags()])
    return _hash(version.encode(), machine.encode(), sources, flags.encode())


def _fiber_flags() -> list[str]:
    chosen = os.environ.get("SPARSERL_SIM_FIBERS", "native")
    if chosen not in ("native", "ucontext"):
        raise BackendError(f"SPARSERL_SIM_FIBERS must be 'native' or 'ucontext'. Got '{chosen}'.")
    return ["-DSIM_UCONTEXT"] if chosen == "ucontext" else []


def _runtime_objects() -> tuple[Path, Path]:
    """runtime.o plain and checked, compiled once for this machine and this version."""
    made = []
    for kind, flags in (("plain", []), ("checked", ["-DSIM_CHECKED"])):
        path = cache_folder() / f"runtime-{kind}-{_toolchain_key()}.o"
        if not path.exists():
            with tempfile.TemporaryDirectory(prefix="sparserl-sim-") as folder:
                out = Path(folder) / "runtime.o"
                command = [compiler(), *COMMON, *_fiber_flags(), *flags, "-c", str(HERE / "runtime.cpp"), "-o", str(out)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise BackendError(f"The simulator's runtime doesn't compile with {compiler()}: {done.stderr[-800:]}")
                _write_atomic(path, out.read_bytes())
        made.append(path)
    return made[0], made[1]


def _start_build(folder: Path, checked: bool, runtime: Path) -> tuple[subprocess.Popen[str], Path]:
    kind = "checked" if checked else "plain"
    compile_flags = [*COMMON, "-I", str(HERE), *KERNEL, *(CHECKED_KERNEL if checked else [])]
    unit, out = folder / f"{kind}.o", folder / f"{kind}.so"
    script = '"$1" $2 -c kernel.cpp -o "$3" && "$1" -shared -Wl,-Bsymbolic "$3" "$4" -o "$5" -lm -lpthread'
    command = ["sh", "-c", script, "sh", compiler(), " ".join(compile_flags), str(unit), str(runtime), str(out)]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True), out


def _finish_build(step: subprocess.Popen[str], out: Path) -> bytes:
    try:
        _, log = step.communicate(timeout=COMPILE_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        step.kill()
        step.communicate()
        raise CompileError(f"The host compiler took longer than {COMPILE_LIMIT_S:g} s.") from error
    if step.returncode:
        first = next((line for line in log.splitlines() if "error" in line), log.strip()[:200])
        raise CompileError(f"The host compiler refused the source: {first}", log)
    return out.read_bytes()


def _write_atomic(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError as error:
        raise BackendError(f"The cache folder {path.parent} can't be written ({error}); set SPARSERL_CACHE to another.") from error


def _hash(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
