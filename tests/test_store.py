"""The store: a reader sees all of a folder or nothing, and a killed writer costs one line at most."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from sparserl.errors import StoreError
from sparserl.store import (
    MANIFEST,
    Cache,
    append_jsonl,
    cache_root,
    content_key,
    keep_jsonl,
    new_run_folder,
    read_folder,
    read_jsonl,
    write_atomic,
    write_folder,
)


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARSERL_CACHE", str(tmp_path / "c"))
    assert cache_root() == tmp_path / "c"
    monkeypatch.delenv("SPARSERL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_root() == tmp_path / "x" / "sparserl"


def test_a_key_does_not_depend_on_the_order_of_its_parts() -> None:
    assert content_key({"a": 1, "b": [2]}) == content_key({"b": [2], "a": 1})
    assert content_key({"a": 1, "b": [2]}) != content_key({"a": 1, "b": [3]})


def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_jsonl(path, {"a": 1})
    append_jsonl(path, {"a": 2})
    with path.open("ab") as file:
        file.write(b'{"a": 3, "half')
    assert [r["a"] for r in read_jsonl(path)] == [1, 2]
    append_jsonl(path, {"a": 4})
    assert [r["a"] for r in read_jsonl(path)] == [1, 2, 4]


def test_a_torn_only_line_longer_than_a_read_block_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"x" * 200_000)
    assert read_jsonl(path) == []
    append_jsonl(path, {"a": 1})
    assert read_jsonl(path) == [{"a": 1}]


def test_a_writer_that_is_killed_while_records_go_leaves_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*rest: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run.jsonl"
    assert keep_jsonl(path, lambda record: True) == 0 and not path.exists()
    append_jsonl(path, *({"a": value} for value in range(4)))
    monkeypatch.setattr(os, "replace", killed)
    assert keep_jsonl(path, lambda record: record["a"] >= 0) == 0, "nothing is written where nothing goes"
    with pytest.raises(KeyboardInterrupt):
        keep_jsonl(path, lambda record: record["a"] < 2)
    assert len(read_jsonl(path)) == 4
    monkeypatch.undo()
    assert keep_jsonl(path, lambda record: record["a"] < 2) == 2 and read_jsonl(path) == [{"a": 0}, {"a": 1}]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n{"a"\n{"a":3}\n')
    with pytest.raises(StoreError, match="Line 2"):
        read_jsonl(path)


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "none.jsonl") == []


def test_appends_from_many_threads_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    threads = [threading.Thread(target=lambda i=i: [append_jsonl(path, {"i": i}) for _ in range(20)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r["i"] for r in read_jsonl(path)) == sorted([0, 1, 2, 3] * 20)


def test_a_folder_reads_back_what_was_said_of_it_and_replaces_an_older_one(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    write_folder(folder, {"a.txt": b"one", "b.txt": b"two"}, {"n": 1})
    assert read_folder(folder) == {"n": 1}
    write_folder(folder, {"a.txt": b"three"}, {"n": 2})
    assert read_folder(folder) == {"n": 2}
    assert sorted(p.name for p in folder.iterdir()) == ["a.txt", MANIFEST]
    assert [p.name for p in tmp_path.iterdir()] == ["f"], "nothing temporary stays behind"


@pytest.mark.parametrize("harm", ["change", "truncate", "remove", "manifest", "format"])
def test_a_harmed_folder_is_refused_and_absent_from_the_cache(tmp_path: Path, harm: str) -> None:
    cache = Cache("tests", tmp_path)
    key = content_key({"k": harm})
    folder = cache.put(key, {"a.txt": b"one"}, {})
    assert folder is not None and cache.get(key) == folder
    if harm == "change":
        (folder / "a.txt").write_bytes(b"two")
    elif harm == "truncate":
        (folder / "a.txt").write_bytes(b"on")
    elif harm == "remove":
        (folder / "a.txt").unlink()
    elif harm == "manifest":
        (folder / MANIFEST).unlink()
    else:
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**manifest, "format": -1}))
    with pytest.raises(StoreError):
        read_folder(folder)
    assert cache.get(key) is None


def test_a_cache_that_cannot_be_written_says_none(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert Cache("tests", blocked).put("ab" * 32, {"a": b""}, {}) is None


def test_a_stored_file_cannot_leave_its_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="plain name"):
        write_folder(tmp_path / "f", {"../x": b""}, {})


def test_a_failed_atomic_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_run_folders_are_never_shared(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path, "tune") != new_run_folder(tmp_path, "tune")
