"""Matrices come in from everywhere, become canonical, and what can't be read says so in one line."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparserl import suitesparse
from sparserl.errors import MatrixError
from sparserl.matrix import Matrix, Pattern, as_matrix, from_csr, read_matrix
from sparserl.reading import parse_mtx

GENERAL = "%%MatrixMarket matrix coordinate real general\n"


def small(seed: int = 0, shape: tuple[int, int] = (7, 5), density: float = 0.4) -> sp.csr_matrix:
    return sp.csr_matrix(sp.random_array(shape, density=density, rng=np.random.default_rng(seed), format="csr"))


def parsed(text: str) -> np.ndarray:
    raw = parse_mtx(text.encode())
    return sp.coo_matrix((raw.data, (raw.row, raw.col)), shape=(raw.rows, raw.columns)).toarray()


def same(matrix: Matrix, expected: sp.spmatrix) -> None:
    assert matrix.pattern.row_start.dtype == np.int32 and matrix.pattern.cols.dtype == np.int32
    np.testing.assert_array_equal(matrix.to_scipy().toarray(), expected.toarray())


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
def test_every_scipy_format_gives_the_same_matrix(fmt: str, kind: type) -> None:
    expected = small()
    same(as_matrix(kind(expected).asformat(fmt)), expected)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_every_torch_sparse_layout_gives_the_same_matrix(layout: str) -> None:
    expected = small(shape=(8, 6))
    dense = torch.from_numpy(expected.toarray())
    tensor = {
        "coo": dense.to_sparse_coo,
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "bsr": lambda: dense.to_sparse_bsr((2, 3)),
        "bsc": lambda: dense.to_sparse_bsc((2, 3)),
    }[layout]()
    same(as_matrix(tensor), expected)


def test_torch_bfloat16_widens_to_float32_without_loss() -> None:
    dense = torch.tensor([[1.5, 0.0], [0.0, -3.0]], dtype=torch.bfloat16)
    matrix = as_matrix(dense.to_sparse_csr())
    assert matrix.data.dtype == np.float32
    np.testing.assert_array_equal(matrix.data, [1.5, -3.0])


def test_an_uncoalesced_torch_tensor_has_its_duplicates_summed() -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([1.0, 2.0, 5.0]), (2, 2))
    np.testing.assert_array_equal(as_matrix(tensor).to_scipy().toarray(), [[0, 3], [5, 0]])


def test_a_cupy_matrix_is_recognised_by_its_name_alone() -> None:
    class csr_matrix:  # noqa: N801
        format = "csr"

        def get(self) -> sp.csr_matrix:
            return small()

    csr_matrix.__module__ = "cupyx.scipy.sparse._csr"
    same(as_matrix(csr_matrix()), small())


def test_a_pattern_and_a_matrix_pass_through() -> None:
    matrix = as_matrix(small())
    assert as_matrix(matrix) is matrix
    assert as_matrix(matrix.pattern).pattern is matrix.pattern
    assert set(as_matrix(matrix.pattern).data) == {1.0}


def test_the_callers_arrays_are_neither_changed_nor_shared() -> None:
    given_ = sp.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([2, 0, 0]), np.array([0, 3])), shape=(1, 3))
    matrix = as_matrix(given_)
    np.testing.assert_array_equal(given_.indices, [2, 0, 0])
    np.testing.assert_array_equal(matrix.pattern.cols, [0, 2])
    np.testing.assert_array_equal(matrix.data, [5.0, 1.0])
    canonical = small()
    assert not np.shares_memory(as_matrix(canonical).data, canonical.data)
    assert not np.shares_memory(as_matrix(canonical).pattern.cols, canonical.indices)


def test_explicit_zeros_and_duplicates_that_cancel_stay_entries() -> None:
    matrix = as_matrix(sp.coo_matrix(([0.0, 1.0, -1.0], ([0, 1, 1], [1, 0, 0])), shape=(2, 2)))
    assert matrix.nonzeros == 2
    np.testing.assert_array_equal(matrix.data, [0.0, 0.0])


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (4, 4)])
def test_an_empty_matrix_is_a_matrix(shape: tuple[int, int]) -> None:
    matrix = as_matrix(sp.csr_matrix(shape))
    assert matrix.shape == shape and matrix.nonzeros == 0
    assert matrix.pattern.fingerprint()


def test_int64_indices_are_narrowed() -> None:
    csr = small()
    csr.indices, csr.indptr = csr.indices.astype(np.int64), csr.indptr.astype(np.int64)
    same(as_matrix(csr), csr)


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [("f4", "f4"), ("f2", "f4"), ("f8", "f8"), ("i4", "f8"), ("u8", "f8"), ("?", "f8"), ("g", "f8")],
)
def test_real_types_become_float32_or_float64(dtype: str, becomes: str) -> None:
    matrix = from_csr(1, 2, np.array([0, 2]), np.array([0, 1]), np.array([1, 0], dtype=dtype))
    assert matrix.data.dtype == np.dtype(becomes)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda rows: st.integers(1, 12).flatmap(
            lambda columns: st.tuples(
                st.just((rows, columns)),
                st.lists(
                    st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1), st.integers(-3, 3)), max_size=60
                ),
            )
        )
    )
)
def test_any_list_of_coordinates_becomes_canonical(case: tuple[tuple[int, int], list[tuple[int, int, int]]]) -> None:
    shape, entries = case
    expected = np.zeros(shape)
    for r, c, v in entries:
        expected[r, c] += v
    row, col, data = (np.array([e[i] for e in entries], dtype=np.int64) for i in range(3))
    matrix = as_matrix(sp.coo_matrix((data, (row, col)), shape=shape))
    pattern = matrix.pattern
    assert pattern.nonzeros == len({(r, c) for r, c, _ in entries})
    for r in range(pattern.rows):
        assert (np.diff(pattern.cols[pattern.row_start[r] : pattern.row_start[r + 1]]) > 0).all()
    np.testing.assert_array_equal(matrix.to_scipy().toarray(), expected)
    assert pattern == Pattern.from_coordinates(*shape, row, col)


def test_the_fingerprint_follows_structure_and_shape_but_not_values() -> None:
    csr = small()
    first = as_matrix(csr).pattern.fingerprint()
    assert first == as_matrix(csr * 2).pattern.fingerprint() and len(first) == 64
    wider = from_csr(csr.shape[0], csr.shape[1] + 1, csr.indptr, csr.indices, csr.data)
    assert first != wider.pattern.fingerprint()
    assert first != as_matrix(sp.csr_matrix(csr[::-1])).pattern.fingerprint()


def test_the_fingerprint_of_a_known_pattern_never_changes() -> None:
    pattern = Pattern(2, 3, np.array([0, 1, 2], dtype=np.int32), np.array([0, 2], dtype=np.int32))
    text = b"csr 2 3 2;" + np.array([0, 1, 2, 0, 2], dtype="<i4").tobytes()
    assert pattern.fingerprint() == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("compress", [False, True])
def test_a_written_mtx_file_is_read_back_exactly(tmp_path: Path, compress: bool) -> None:
    expected = small(3, (40, 30))
    buffer = io.BytesIO()
    scipy.io.mmwrite(buffer, expected, symmetry="general")
    path = tmp_path / ("a.mtx.gz" if compress else "a.mtx")
    path.write_bytes(gzip.compress(buffer.getvalue()) if compress else buffer.getvalue())
    same(read_matrix(path), expected)
    same(as_matrix(str(path)), expected)


def test_symmetric_skew_pattern_and_integer_headers_are_honoured() -> None:
    head = "%%MatrixMarket matrix coordinate"
    np.testing.assert_array_equal(parsed(f"{head} pattern symmetric\n2 2 2\n1 1\n2 1\n"), [[1, 1], [1, 0]])
    np.testing.assert_array_equal(parsed(f"{head} integer skew-symmetric\n2 2 1\n2 1 4\n"), [[0, -4], [4, 0]])
    np.testing.assert_array_equal(parsed(f"{head} integer general\n1 2 2\n1 1 7\n1 2 -9\n"), [[7, -9]])
    np.testing.assert_array_equal(parsed(f"{head.upper()} REAL General\n1 1 1\n1 1 2.5\n"), [[2.5]])


def test_comments_blank_lines_and_odd_numbers_are_read() -> None:
    text = GENERAL + "% one\n\n%two\n2 3 5\n\n1 1 1.5D+01\n% inside\n1 2 +2\r\n  2\t1 3e0  \n2 2 nan\n2 3 -Inf"
    np.testing.assert_array_equal(parsed(text), [[15, 2, 0], [3, np.nan, -np.inf]])


def test_a_fraction_in_an_integer_file_is_not_cut_off() -> None:
    assert parsed("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 3.5\n")[0, 0] == 3.5


def test_duplicates_in_a_file_are_summed_and_rows_sorted(tmp_path: Path) -> None:
    matrix = read_matrix(write(tmp_path / "a.mtx", GENERAL + "1 3 4\n1 3 1\n1 1 2\n1 3 4\n1 2 0\n"))
    np.testing.assert_array_equal(matrix.pattern.cols, [0, 1, 2])
    np.testing.assert_array_equal(matrix.data, [2.0, 0.0, 5.0])


BROKEN = {
    "no banner": ("1 1 1\n1 1 1\n", "line 1 must be"),
    "empty file": ("", "line 1 must be"),
    "dense": ("%%MatrixMarket matrix array real general\n1 1\n1\n", "dense"),
    "complex": ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n", "complex"),
    "hermitian": ("%%MatrixMarket matrix coordinate complex hermitian\n1 1 1\n1 1 1 0\n", "complex"),
    "odd field": ("%%MatrixMarket matrix coordinate quaternion general\n1 1 1\n1 1 1\n", "'quaternion'"),
    "odd symmetry": ("%%MatrixMarket matrix coordinate real twisted\n1 1 1\n1 1 1\n", "'twisted'"),
    "no sizes": (GENERAL + "% nothing more\n", "ends before"),
    "two sizes": (GENERAL + "3 3\n1 1 1\n", "line 2 must hold"),
    "words for sizes": (GENERAL + "three 3 1\n1 1 1\n", "line 2 must hold"),
    "negative size": (GENERAL + "3 -3 1\n1 1 1\n", "-3"),
    "absurd rows": (GENERAL + "99999999999 3 1\n1 1 1\n", "99999999999"),
    "too many nonzeros": (GENERAL + "3 3 2147483648\n1 1 1\n", "2147483648"),
    "more promised than could fit": (GENERAL + "3 3 2000000000\n1 1 1\n", "promises 2000000000"),
    "one entry missing": (GENERAL + "3 3 2\n1 1 1.0000000\n", "another 1"),
    "one entry too many": (GENERAL + "3 3 1\n1 1 1\n2 2 2\n", "line 4"),
    "row out of range": (GENERAL + "3 3 2\n1 1 1\n4 1 1\n", "line 4: row index out of bounds: '4 1 1'"),
    "column out of range": (GENERAL + "% c\n\n3 3 2\n1 1 1\n1 9 1\n", "line 6: column index out of bounds: '1 9 1'"),
    "row zero": (GENERAL + "3 3 1\n0 1 1\n", "line 3"),
    "a word for a value": (GENERAL + "3 3 1\n1 1 many\n", "line 3"),
    "a value missing": (GENERAL + "3 3 2\n1 1\n1 2 1.0000\n", "line 3"),
    "symmetric but not square": ("%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n1 1 1\n", "square"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_says_what_and_where_in_one_line(name: str, tmp_path: Path) -> None:
    text, says = BROKEN[name]
    path = write(tmp_path / "broken.mtx", text)
    with pytest.raises(MatrixError) as caught:
        read_matrix(path)
    message = str(caught.value)
    assert says in message and str(path) in message and "\n" not in message


def test_files_that_are_no_matrix_are_refused(tmp_path: Path) -> None:
    for name, content, says in [
        ("a.txt", b"", "must end in"),
        ("a.mtx.gz", b"not gzip", "gzip"),
        ("b.mtx.gz", gzip.compress(b"x" * 1000)[:-20], "gzip"),
        ("a.npz", b"not zip", r"no \.npz file\.$"),
        ("zipped.mtx", gzip.compress(b"x" * 1000), r"end in \.mtx\.gz"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MatrixError, match=says) as caught:
            read_matrix(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(MatrixError, match="no such file"):
        read_matrix(tmp_path / "none.mtx")


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "bsr", "dia"])
def test_scipy_npz_files_are_read(fmt: str, tmp_path: Path) -> None:
    expected = small(5)
    sp.save_npz(tmp_path / "a.npz", expected.asformat(fmt))
    same(read_matrix(tmp_path / "a.npz"), expected)


def test_a_plain_csr_npz_is_read_and_checked(tmp_path: Path) -> None:
    csr = small(6)
    parts = {"indptr": csr.indptr, "indices": csr.indices, "data": csr.data, "shape": np.array(csr.shape)}
    np.savez(tmp_path / "a.npz", **parts)
    same(read_matrix(tmp_path / "a.npz"), csr)
    wrong = {
        "missing": {k: v for k, v in parts.items() if k != "indptr"},
        "out of range": parts | {"indices": csr.indices + 5},
        "ascend": parts | {"indptr": csr.indptr[::-1]},
        "complex": parts | {"data": csr.data * 1j},
        "row starts": parts | {"shape": np.array([99, 5])},
        "can't have": parts | {"shape": np.array([-1, 5])},
        "integers": parts | {"indices": csr.indices + 0.5},
    }
    for says, broken in wrong.items():
        np.savez(tmp_path / "b.npz", **broken)
        with pytest.raises(MatrixError, match=says) as caught:
            read_matrix(tmp_path / "b.npz")
        assert "b.npz" in str(caught.value)


def test_things_that_are_no_sparse_matrix_are_refused_with_the_way_out() -> None:
    with pytest.raises(MatrixError, match=r"scipy\.sparse\.csr_matrix"):
        as_matrix(np.eye(3))
    with pytest.raises(MatrixError, match="to_sparse_csr"):
        as_matrix(torch.eye(3))
    with pytest.raises(MatrixError, match="complex"):
        as_matrix(sp.csr_matrix(np.eye(2) * 1j))
    with pytest.raises(MatrixError, match="2 dimensions"):
        as_matrix(sp.coo_array(np.ones(3)))


def test_two_million_unsorted_nonzeros_become_canonical_in_no_time() -> None:
    # The bound is loose, for busy machines: 20 million a second on a free core.
    rng = np.random.default_rng(0)
    count = 2_000_000
    row, col = rng.integers(0, 200_000, (2, count), dtype=np.int32)
    began = time.process_time()
    Pattern.from_coordinates(200_000, 200_000, row, col)
    assert time.process_time() - began < 2.0


def test_a_million_nonzeros_are_read_in_a_second_or_two(tmp_path: Path) -> None:
    matrix = sp.random_array((100_000, 100_000), density=1e-4, rng=np.random.default_rng(1), format="coo")
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix)
    began = time.process_time()
    assert read_matrix(tmp_path / "a.mtx").nonzeros == matrix.nnz
    assert time.process_time() - began < 4.0


class Collection:
    """A local server that stands for the collection; `files` can be changed by a test."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        collection = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                collection.asked.append(self.path)
                body = collection.files.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/MM"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, path: str, members: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        self.files[f"/MM/{path}.tar.gz"] = buffer.getvalue()
        return buffer.getvalue()


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collection]:
    server = Collection()
    monkeypatch.setenv("SPARSERL_SUITESPARSE_URL", server.url)
    monkeypatch.setenv("SPARSERL_CACHE", str(tmp_path / "cache"))
    yield server
    server.server.shutdown()
    server.server.server_close()


MTX = (GENERAL + "2 2 2\n1 1 1\n2 2 3\n").encode()


def test_a_suitesparse_name_is_downloaded_once_and_then_cached(collection: Collection) -> None:
    extra = GENERAL.encode() + b"1 1 1\n1 1 9\n"
    collection.add("HB/tiny", {"tiny/tiny_b.mtx": extra, "../../evil.mtx": extra, "tiny/tiny.mtx": MTX})
    np.testing.assert_array_equal(as_matrix("suitesparse:HB/tiny").data, [1.0, 3.0])
    asked = len(collection.asked)
    np.testing.assert_array_equal(as_matrix("suitesparse:HB/tiny").data, [1.0, 3.0])
    assert len(collection.asked) == asked
    kept = sorted(p.name for p in (suitesparse.cache_folder() / "suitesparse" / "HB").iterdir())
    assert kept == ["tiny.mtx", "tiny.mtx.sha256"]


def test_a_cached_file_that_was_changed_is_downloaded_again(collection: Collection) -> None:
    collection.add("HB/tiny", {"tiny/tiny.mtx": MTX})
    path = suitesparse.fetch("suitesparse:HB/tiny")
    path.write_bytes(MTX.replace(b"3", b"4"))
    assert suitesparse.fetch("HB/tiny").read_bytes() == MTX


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_published_sum_is_checked(collection: Collection, kind: str) -> None:
    archive = collection.add("HB/tiny", {"tiny/tiny.mtx": MTX})
    collection.files[f"/MM/HB/tiny.tar.gz.{kind}"] = hashlib.new(kind, b"else").hexdigest().encode()
    with pytest.raises(MatrixError, match=kind):
        suitesparse.fetch("HB/tiny")
    assert not list(suitesparse.cache_folder().rglob("*.mtx"))
    collection.files[f"/MM/HB/tiny.tar.gz.{kind}"] = (
        hashlib.new(kind, archive).hexdigest().encode() + b"  tiny.tar.gz\n"
    )
    assert suitesparse.fetch("HB/tiny").is_file()


def test_a_wrong_name_a_missing_matrix_and_a_broken_archive_say_so(collection: Collection) -> None:
    for name in ("suitesparse:bcsstk13", "suitesparse:../x", "suitesparse:HB/../../x", "suitesparse:HB/a/b"):
        with pytest.raises(MatrixError, match="Group/Name"):
            as_matrix(name)
    with pytest.raises(MatrixError, match="does not exist"):
        as_matrix("suitesparse:HB/none")
    collection.add("HB/hollow", {"hollow/readme.txt": b"hello"})
    with pytest.raises(MatrixError, match=r"holds no hollow\.mtx"):
        as_matrix("suitesparse:HB/hollow")
    collection.files["/MM/HB/cut.tar.gz"] = collection.add("HB/x", {"cut/cut.mtx": MTX * 500})[:80]
    with pytest.raises(MatrixError, match="broken"):
        as_matrix("suitesparse:HB/cut")


def test_offline_says_so_in_one_line_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        suitesparse.fetch("suitesparse:HB/tiny", base_url="http://127.0.0.1:9/MM", cache=tmp_path)
    message = str(caught.value)
    assert "offline" in message and "SPARSERL_SUITESPARSE_URL" in message and "\n" not in message
