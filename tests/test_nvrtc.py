"""Compiling without a GPU: cubins, messages, the disk cache and the pool of compilers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparserl.backends import cubin, nvrtc
from sparserl.backends.backend import Binary
from sparserl.errors import CompileError

GOOD = """extern "C" __global__ void twice(int n, const float* a, float* b)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = a[i] * 2;
}
"""
BAD = GOOD.replace("a[i] * 2", "a[i] * two")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARSERL_CACHE", str(tmp_path))
    return tmp_path


def test_a_kernel_becomes_a_cubin_with_its_own_name_and_registers() -> None:
    binary = nvrtc.compile(GOOD, ["twice"])
    assert binary.code.startswith(b"\x7fELF")
    assert binary.kernels == {"twice": "twice"}
    assert 0 < binary.registers <= 255
    assert binary.log == ""


def test_the_registers_are_those_of_the_hungriest_kernel_and_are_known_from_the_cache_too() -> None:
    hungry = """extern "C" __global__ void __launch_bounds__(64) sums(const float* a, float* b)
{
    float v[48];
    for (int k = 0; k < 48; ++k) v[k] = a[threadIdx.x * 48 + k];
    __syncthreads();
    for (int k = 0; k < 48; ++k) b[threadIdx.x * 48 + 47 - k] = v[k] * v[0];
}
"""
    alone = [nvrtc.compile(source, [name]).registers for source, name in ((GOOD, "twice"), (hungry, "sums"))]
    assert alone[0] < 32 and 48 < alone[1] <= 255
    both = nvrtc.compile(GOOD + hungry, ["twice", "sums"])
    again = nvrtc.compile(GOOD + hungry, ["twice", "sums"])
    assert both.registers == again.registers == alone[1]
    assert [cubin.registers(code) for code in (b"", b"no cubin", both.code[:100])] == [0, 0, 0]


def test_an_error_names_the_line_and_quotes_it() -> None:
    with pytest.raises(CompileError, match=r'line 4: identifier "two" is undefined: `if \(i < n\)') as caught:
        nvrtc.compile(BAD, ["twice"])
    assert "two" in caught.value.log


def test_an_error_follows_a_line_directive() -> None:
    with pytest.raises(CompileError, match=r"^body, line 104: "):
        nvrtc.compile('#line 101 "body"\n' + BAD, ["twice"])


def test_a_kernel_that_is_not_there_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="no kernel 'thrice'"):
        nvrtc.compile(GOOD, ["twice", "thrice"])


def test_the_key_depends_on_source_kernels_and_architecture() -> None:
    keys = {
        nvrtc.key_of(GOOD, ["twice"], "sm_90"),
        nvrtc.key_of(BAD, ["twice"], "sm_90"),
        nvrtc.key_of(GOOD, [], "sm_90"),
        nvrtc.key_of(GOOD, ["twice"], "sm_80"),
    }
    assert len(keys) == 4


def test_a_kept_cubin_is_the_same_binary(own_cache: Path) -> None:
    first = nvrtc.compile(GOOD, ["twice"])
    kept = list((own_cache / "cubin").glob("*/*"))
    assert [path.name for path in kept] == [first.key]
    assert nvrtc._from_cache(first.key) == first


def test_a_damaged_cache_entry_is_compiled_again(own_cache: Path) -> None:
    first = nvrtc.compile(GOOD, ["twice"])
    (path,) = (own_cache / "cubin").glob("*/*")
    path.write_bytes(path.read_bytes()[:-10])
    assert nvrtc.compile(GOOD, ["twice"]) == first
    path.write_bytes(b"")
    assert nvrtc.compile(GOOD, ["twice"]) == first


def test_an_unwritable_cache_costs_only_the_next_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SPARSERL_CACHE", str(tmp_path / "file"))
    assert nvrtc.compile(GOOD, ["twice"]).code


def test_the_cache_keeps_what_was_used_last(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(nvrtc, "CACHE_ENTRIES", 1)
    old = nvrtc.compile(GOOD, ["twice"])
    (path,) = (own_cache / "cubin").glob("*/*")
    os.utime(path, (1000, 1000))
    newer = own_cache / "cubin" / "aa" / "aa0"
    newer.parent.mkdir(parents=True, exist_ok=True)
    newer.write_bytes(b"")
    os.utime(newer, (2000, 2000))
    assert nvrtc.compile(GOOD, ["twice"]) == old
    nvrtc._prune()
    assert path.exists() and not newer.exists()


def test_the_cache_keeps_only_the_newest_entries(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(nvrtc, "CACHE_ENTRIES", 2)
    for age in range(4):
        path = own_cache / "cubin" / "aa" / f"aa{age}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        os.utime(path, (1000 - age, 1000 - age))
    nvrtc._prune()
    assert sorted(path.name for path in (own_cache / "cubin").glob("*/*")) == ["aa0", "aa1"]


def test_a_pool_answers_in_order_with_errors_as_values() -> None:
    sources = [GOOD.replace("* 2", f"* {k}") if k % 3 else BAD for k in range(7)]
    with nvrtc.CompilePool(2) as pool:
        answers = pool.compile_many([(source, ["twice"]) for source in sources])
        assert pool.compile_many([]) == []
    assert [isinstance(answer, Binary) for answer in answers] == [bool(k % 3) for k in range(7)]
    assert [a.key for a in answers if isinstance(a, Binary)] == [
        nvrtc.key_of(sources[k], ["twice"], "sm_90") for k in range(7) if k % 3
    ]
    failed = answers[0]
    assert isinstance(failed, CompileError) and "two" in failed.log


def test_a_worker_that_died_is_replaced() -> None:
    with nvrtc.CompilePool(1) as pool:
        assert isinstance(pool.compile_many([(GOOD, ["twice"])])[0], Binary)
        os.kill(pool._crew[0].process.pid, signal.SIGKILL)
        pool._crew[0].process.wait()
        answers = pool.compile_many([(GOOD, ["twice"])] * 2)
        # the death is noticed on sending or on receiving; either way the pool goes on
        assert isinstance(answers[1], Binary)
        if isinstance(answers[0], CompileError):
            assert "died" in str(answers[0])


def test_a_compile_past_its_limit_is_an_error_and_the_pool_goes_on() -> None:
    with nvrtc.CompilePool(1, limit_s=20.0) as pool:
        assert isinstance(pool.compile_many([(GOOD, ["twice"])])[0], Binary)
        os.kill(pool._crew[0].process.pid, signal.SIGSTOP)
        pool.limit_s = 0.2
        started = time.monotonic()
        (late,) = pool.compile_many([(GOOD, ["twice"])])
        assert isinstance(late, CompileError) and "longer than 0.2 s" in str(late)
        assert time.monotonic() - started < 10
        pool.limit_s = 20.0
        assert isinstance(pool.compile_many([(GOOD, ["twice"])])[0], Binary)


def test_a_compiler_process_starts_without_torch() -> None:
    code = "import sys, sparserl.backends.nvrtc; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
