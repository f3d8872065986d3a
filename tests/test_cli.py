"""The command line: one clear line and exit code 2 for bad input; a folder with the operator for good input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import sparserl
from sparserl.cli import open_matrix
from sparserl.errors import SparseRLError


def command(*args: str, cwd: Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run `sparserl …` as a user would, offline: a proxy that leads nowhere stands before every address."""
    dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    env = {**os.environ, **dead, "SPARSERL_CACHE": str(cwd / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "sparserl", *args], capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout_s,
        check=False,
    )  # fmt: skip


BAD_FILES = {
    "missing.mtx": None,
    "empty.mtx": "",
    "text.mtx": "hello\n",
    "complex.mtx": "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1.0 2.0\n",
    "range.mtx": "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1.0\n",
    "short.mtx": "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1.0\n",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path: Path, name: str) -> None:
    text = BAD_FILES[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    done = command("tune", name, "--device", "sim", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("sparserl: ") and name in line


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--dtype", "int8"], "float32"),
        (["--op", "spgemm"], "'spmv' or 'spmm'"),
        (["--op", "spmm", "--columns", "9999"], "1..512"),
        (["--device", "tpu"], "auto, cuda, sim"),
        (["--mode", "warm"], "chain, solver, cold"),
        (["--candidates", "0"], "1..4096"),
        (["--policy", "nowhere"], "nowhere"),
        (["--seed", "-1"], "'seed'"),
        (["--columns", "many"], "'--columns'"),
        (["--speed", "fast"], "--speed"),
        (["another.mtx"], "another.mtx"),
        (["--json", "."], "--json"),
        (["--json", "file/report.json"], "file is not a folder"),
        (["--out", "file"], "file is not a folder"),
        (["--dtype", "f16"], "spmm"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(tmp_path: Path, args: list[str], part: str) -> None:
    (tmp_path / "file").touch()
    done = command("tune", "family:stencil2d,nx=4,ny=4", *args, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("sparserl: ") and part in line
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # nothing is made for what can't be tuned


def test_no_arguments_show_the_help(tmp_path: Path) -> None:
    done = command(cwd=tmp_path)
    assert done.returncode == 0 and "tune" in done.stdout and done.stderr == ""


def test_a_suitesparse_name_without_a_network_says_so(tmp_path: Path) -> None:
    done = command("tune", "suitesparse:HB/bcsstk13", "--device", "sim", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("family:nothing", "nothing"),
        ("family:stencil2d,nx", "key=value"),
        ("family:stencil2d,nx=4,ny=4,wings=2", "wings"),
        ("family:stencil2d,nx=4,ny=4,seed=-1", "seed"),
        ("family:stencil2d,nx=a,ny=4", "can't be made"),
        ("family:stencil2d,nx=-4,ny=4", "can't be made.*sparserl families"),
        ("family:permuted,of=stencil2d", "can't be made"),
        ("", "empty name"),
    ],
)
def test_a_family_that_cannot_be_made_says_why(name: str, message: str) -> None:
    with pytest.raises(SparseRLError, match=message):
        open_matrix(name)


def test_a_family_is_made_with_its_settings_or_without() -> None:
    assert open_matrix("family:stencil2d,nx=5,ny=4,seed=3").shape == (20, 20)
    assert 1e4 < open_matrix("family:stencil2d").nonzeros < 1e6


def test_families_lists_every_family(tmp_path: Path) -> None:
    from sparserl.families import FAMILIES

    done = command("families", cwd=tmp_path)
    assert done.returncode == 0
    assert all(name in done.stdout for name in FAMILIES)


def test_import_sparserl_loads_no_stage() -> None:
    code = "import sys, sparserl; print([m for m in sys.modules if m in ('torch', 'scipy', 'sparserl.operator')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_doctor_passes_what_needs_no_gpu(tmp_path: Path) -> None:
    done = command("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for part in ("python", "cache", "host compiler", "nvrtc", "simulator", "sandbox", "policy"):
        assert f"PASS  {part}" in done.stdout


@pytest.mark.slow
def test_tune_writes_a_kernel_an_operator_a_report_and_a_page(tmp_path: Path) -> None:
    A = sp.random(300, 200, 0.03, format="csr", random_state=np.random.default_rng(0))
    scipy.io.mmwrite(tmp_path / "A.mtx", A)
    args = ["tune", "A.mtx", "--device", "sim", "--candidates", "3", "--json", "copy.json"]
    done = command(*args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "out" / "A"
    assert sorted(p.name for p in folder.iterdir()) == ["index.html", "kernel.cu", "operator.srl", "report.json"]
    report = json.loads((folder / "report.json").read_text())
    assert report == json.loads((tmp_path / "copy.json").read_text())
    assert report["matrix"]["nonzeros"] == A.nnz and report["result"]["time_source"] == "modelled"
    assert len(report["candidates"]) == 3
    for name in ("layout", "params", "verdict", "time_us", "speedup", "floor_share"):
        assert name in report["candidates"][0]
    assert "modelled time" in done.stdout and report["candidates"][0]["layout"] in done.stdout
    assert "__global__" in (folder / "kernel.cu").read_text()

    op = sparserl.load(folder / "operator.srl")
    x = np.random.default_rng(1).standard_normal(200)
    assert np.allclose(op @ x, A @ x, rtol=1e-4, atol=1e-4)

    again = command(*args, cwd=tmp_path)
    assert again.returncode == 0 and "from the cache" in again.stdout


@pytest.mark.slow
def test_a_cache_that_is_no_folder_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    done = command("tune", "family:stencil2d,nx=8,ny=8", "--device", "sim", "--candidates", "1", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "cache" in done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_json_on_stdout_is_nothing_but_json(tmp_path: Path) -> None:
    args = ["--device", "sim", "--candidates", "1", "--json", "-"]
    done = command("tune", "family:stencil2d,nx=8,ny=8", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["matrix"]["rows"] == 64
