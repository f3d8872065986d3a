"""The corpus, built from a tiny package index on this machine."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from corpus_server import Index, kernel, serving, tarball, wheel
from sparserl.train import corpus_index
from sparserl.train.commands_corpus import corpus as command
from sparserl.train.corpus import SHIPPED, CorpusConfig, Report, Step, build, read_manifest
from sparserl.train.corpus_files import PERMISSIVE, without_licence
from sparserl.train.corpus_index import CorpusError, Sources, pip_sources
from sparserl.train.corpus_twins import Twins, signature
from sparserl.train.shards import read_shards


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(corpus_index.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(corpus_index, "_pip", lambda *words: "")  # a second a start; it has tests of its own
    with serving() as index:
        yield index


def config(index: Index, out: Path, **changes: Any) -> CorpusConfig:
    out.mkdir(exist_ok=True)
    manifest = out / "pinned.json"
    manifest.write_text(json.dumps(index.lines))
    return CorpusConfig(out, manifest, index.url, **changes)


def run(index: Index, out: Path, **changes: Any) -> Report:
    return build(config(index, out, **changes))


def texts(out: Path, split: str = "train") -> dict[tuple[str, str], str]:
    return {(d.package, d.path): d.text for d in read_shards(out / "shards", split)}


def dropped(out: Path) -> dict[str, str]:
    with (out / "shards" / "dropped.csv").open() as file:
        return {row["path"].rpartition("/")[2]: row["reason"] for row in csv.DictReader(file)}


# ── Downloads ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_sdists_and_wheels_come_out_as_documents(index: Index, tmp_path: Path, as_json: bool) -> None:
    index.as_json = as_json
    index.add("one", {"src/a.cu": kernel(1), "src/plain.h": "int f();\n" * 99, "setup.py": "raise SystemExit"})
    index.add("Two_b", {"two/b.cuh": kernel(2), "two/c.h": kernel(3)}, kind="wheel")
    report = run(index, tmp_path)
    assert texts(tmp_path) == {
        ("one", "one-1.0/src/a.cu"): kernel(1),
        ("Two_b", "two/b.cuh"): kernel(2),
        ("Two_b", "two/c.h"): kernel(3),
    }
    assert (report.packages, report.files) == (2, 3)
    assert report.text_bytes == report.train_bytes == sum(len(kernel(i)) for i in (1, 2, 3))


def test_an_archive_with_another_checksum_is_refused_and_leaves_nothing(index: Index, tmp_path: Path) -> None:
    index.add("one", {"a.cu": kernel(1)})
    index.archives["one-1.0.tar.gz"] = tarball({"one-1.0/a.cu": kernel(2)})
    with pytest.raises(CorpusError, match=r"one-1\.0\.tar\.gz.*SHA-256 is .* the manifest pins"):
        run(index, tmp_path)
    assert list((tmp_path / "archives").iterdir()) == []
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize("ranges", [True, False], ids=["server sends a rest", "server sends all"])
def test_a_broken_download_goes_on_and_never_counts_as_whole(index: Index, tmp_path: Path, ranges: bool) -> None:
    index.add("one", {"a.cu": kernel(1, 400)})
    size = len(index.archives["one-1.0.tar.gz"])
    index.cut_after, index.ranges = size // 8, ranges
    with pytest.raises(CorpusError, match="broke off"):
        run(index, tmp_path)
    assert not (tmp_path / "archives" / "one-1.0.tar.gz").exists()
    part = (tmp_path / "archives" / "one-1.0.tar.gz.part").stat().st_size
    assert 0 < part < size
    index.cut_after = None
    index.asked.clear()
    assert run(index, tmp_path).files == 1
    assert index.asked == [("one-1.0.tar.gz", f"bytes={part}-")]
    assert not (tmp_path / "archives" / "one-1.0.tar.gz.part").exists()


def test_what_is_downloaded_and_right_is_not_downloaded_again(index: Index, tmp_path: Path) -> None:
    index.add("one", {"a.cu": kernel(1)})
    index.add("two", {"b.cu": kernel(2)})
    first = run(index, tmp_path)
    index.asked.clear()
    assert run(index, tmp_path) == first
    (tmp_path / "archives" / "two-1.0.tar.gz").write_bytes(b"rotten")
    assert run(index, tmp_path, similarity=0.9).files == 2
    assert [name for name, _ in index.asked] == ["two-1.0.tar.gz"]


def test_a_changed_shard_is_made_again(index: Index, tmp_path: Path) -> None:
    index.add("one", {"a.cu": kernel(1)})
    run(index, tmp_path)
    shard = tmp_path / "shards" / "train-0000.jsonl.xz"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9])
    run(index, tmp_path)
    assert shard.read_bytes() == whole


def test_missing_archives_are_an_error_unless_allowed(index: Index, tmp_path: Path) -> None:
    index.add("one", {"a.cu": kernel(1)})
    index.lines.append(index.lines[0] | {"name": "gone", "file": "gone-9.tar.gz"})
    with pytest.raises(CorpusError, match=r"1 of 2 archives.*--allow-missing.*gone-9"):
        run(index, tmp_path)
    del index.archives["one-1.0.tar.gz"]  # it was kept, so that it isn't asked for again
    report = run(index, tmp_path, allow_missing=True)
    assert report.files == 1
    assert len(report.missing) == 1 and "gone-9.tar.gz" in report.missing[0]


def test_pip_settings_name_the_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/first")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:9/second file:///third")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    sources = pip_sources()
    assert sources.indexes == ("http://127.0.0.1:9/first", "http://127.0.0.1:9/second", "file:///third")
    assert sources.links == (str(tmp_path),)
    assert pip_sources("http://127.0.0.1:9/only").indexes == ("http://127.0.0.1:9/only",)
    assert pip_sources("http://127.0.0.1:9/only").links == ()


def test_pip_says_which_index_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (only,) = pip_sources().indexes
    assert only.startswith("https://") and only.endswith("/simple")


@pytest.mark.parametrize("place", ["find-links", "file index"])
def test_local_folders_serve_archives(index: Index, tmp_path: Path, place: str) -> None:
    index.add("one", {"a.cu": kernel(1)})
    page = tmp_path / "simple" / "one"
    page.mkdir(parents=True)
    (page / "one-1.0.tar.gz").write_bytes(index.archives["one-1.0.tar.gz"])
    (page / "index.html").write_text('<a href="one-1.0.tar.gz">one-1.0.tar.gz</a>')
    links = Sources((), (str(page),)) if place == "find-links" else Sources(((tmp_path / "simple").as_uri(),))
    (archive,) = read_manifest(config(index, tmp_path).manifest)
    got = corpus_index.fetch(archive, tmp_path / "archives", links, lambda size: None)
    assert got.read_bytes() == index.archives["one-1.0.tar.gz"]


# ── What is kept ──────────────────────────────────────────────────────────────

HEADS = {
    "gpl.cu": "// This program is free software under the terms of the GNU\n// General Public License, version 3.\n",
    "spdx.cu": "// SPDX-License-Identifier: LGPL-2.1-or-later\n",
    "mpl.cu": "/* subject to the terms of the Mozilla\n * Public License v. 2.0. */\n",
    "none.cu": "/* Redistribution and use, with or without\n * modification, are not permitted. */\n",
    "research.cu": "// free for non-commercial use\n",
    "unknown.cu": "// SPDX-License-Identifier: LicenseRef-Acme\n",
}


@pytest.mark.parametrize("name", HEADS)
def test_a_file_that_is_not_permissive_is_dropped(index: Index, tmp_path: Path, name: str) -> None:
    index.add("one", {name: HEADS[name] + kernel(1), "open.cu": kernel(2)})
    run(index, tmp_path)
    assert dropped(tmp_path) == {name: "licence"}
    assert list(texts(tmp_path)) == [("one", "one-1.0/open.cu")]


@pytest.mark.parametrize("licence", ["Apache-2.0 WITH LLVM-exception", "GPL-2.0-only OR MIT", "BSD-3-Clause"])
def test_a_permissive_choice_is_kept_under_its_name(index: Index, tmp_path: Path, licence: str) -> None:
    index.add("one", {"a.cu": f"/* SPDX-License-Identifier: {licence} */\n" + kernel(1)})
    run(index, tmp_path)
    with (tmp_path / "shards" / "provenance.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["licence"] == licence


def test_files_below_a_closed_licence_file_are_dropped(index: Index, tmp_path: Path) -> None:
    closed = "GNU GENERAL PUBLIC LICENSE Version 3\n"
    listing = "MIT License. Permission is hereby granted. Tools are under the GNU General Public License.\n"
    index.add("one", {"third/LICENSE": closed, "third/deep/a.cu": kernel(1), "b.cu": kernel(2), "LICENSE.txt": listing})
    run(index, tmp_path)
    assert dropped(tmp_path) == {"a.cu": "licence"}


def test_files_that_teach_nothing_or_are_not_ours_to_take_are_dropped(index: Index, tmp_path: Path) -> None:
    toolkit = "/* NOTICE TO LICENSEE:\n * This source code and the Licensed\n * Deliverables are subject to NVIDIA */\n"
    index.add(
        "one",
        {
            "toolkit.h": toolkit + kernel(1),
            "made.cu": "// This file is auto-generated. See make.py\n" + kernel(2),
            "numbers.cu": "__device__ int t[] = {" + ",\n".join(str(10**6 + i) for i in range(500)) + "};\n",
            "large.cu": kernel(3, 9000),
            "short.cu": "// words\n" * 99 + "__global__ void f() {}\n",
            "binary.cu": kernel(4) + "\x00\x01",
            "other.cu": "#include <hip/hip_runtime.h>\n" + kernel(5),
            "list.cu": kernel(6, 5) + "template void run<float, 32>(const float* x, float* y);\n" * 99,
            "good.cu": kernel(7),
        },
    )
    report = run(index, tmp_path)
    assert dropped(tmp_path) == {
        "toolkit.h": "toolkit",
        "made.cu": "generated",
        "numbers.cu": "generated",
        "large.cu": "oversized",
        "short.cu": "short",
        "binary.cu": "not text",
        "other.cu": "other platform",
        "list.cu": "repetitive",
    }
    singles = ("oversized", "toolkit", "short", "not text", "other platform", "repetitive")
    assert report.dropped == {"generated": 2, **dict.fromkeys(singles, 1)}


def test_exact_and_near_duplicates_are_dropped_once(index: Index, tmp_path: Path) -> None:
    changed = kernel(1, 200).replace("fmaf(", "fma(", 9)
    index.add("one", {"a.cu": kernel(1, 200), "b.cu": "// another comment\n" + kernel(1, 200).replace("\n", "\r\n")})
    index.add("two", {"c.cu": changed, "d.cu": kernel(2, 200)})
    run(index, tmp_path)
    assert dropped(tmp_path) == {"b.cu": "duplicate", "c.cu": "near duplicate"}
    assert [path for _, path in texts(tmp_path)] == ["one-1.0/a.cu", "two-1.0/d.cu"]


def test_signatures_agree_as_much_as_the_files_share() -> None:
    for share in (0.0, 0.5, 0.9):
        rows = [f"line{i * 7919 % 10007:05d}+{i * 104729 % 99991:05d};{'q' * 30}" for i in range(4000)]
        own = [f"other{i * 7907 % 10009:05d}-{i * 104723 % 99989:05d};{'z' * 30}" for i in range(4000)]
        # keeping m of 4000 lines shares m and leaves 2 * (4000 - m) that only one file has
        kept = round(4000 * 2 * share / (1 + share))
        agree = np.mean(signature("\n".join(rows)) == signature("\n".join(rows[:kept] + own[kept:])))
        assert abs(agree - share) < 0.15


def test_a_short_file_is_no_twin_of_another_short_file() -> None:
    twins = Twins(0.6)
    assert twins.add("a", "__device__ float twice(float x) { return x + x; }") == ("", "")
    assert twins.add("b", "__global__ void fill(int* p) { p[threadIdx.x] = 7; }") == ("", "")
    assert twins.add("c", "__device__ float twice(float x)\n{ return x + x; }") == ("duplicate", "a")


def test_licence_comments_at_the_head_go_and_others_stay() -> None:
    code = "// Computes y = A x.\n#include <a.h>\n// Copyright: not at the head\n"
    assert without_licence("/* Copyright 2020 A. N. Other\n * licensed under MIT */\n\n" + code) == code


# ── Splits, provenance, archives that lie ─────────────────────────────────────


def test_a_held_out_package_is_never_in_a_training_shard(index: Index, tmp_path: Path) -> None:
    index.add("held", {"v.cu": kernel(1), "shared.cu": kernel(2)}, held_out=True)
    index.add("train", {"t.cu": kernel(3), "shared.cu": kernel(2)})
    report = run(index, tmp_path, shard_bytes=100)
    assert set(texts(tmp_path, "train")) == {("train", "train-1.0/t.cu"), ("train", "train-1.0/shared.cu")}
    assert set(texts(tmp_path, "validation")) == {("held", "held-1.0/v.cu")}
    assert report.shards == 3
    assert report.validation_bytes == len(kernel(1))


def test_every_document_has_its_line_of_provenance(index: Index, tmp_path: Path) -> None:
    head = "// Copyright Someone, MIT License\n"
    index.add("one", {"a.cu": head + kernel(1), "b.cu": kernel(2)})
    index.add("held", {"c.cu": kernel(3)}, held_out=True)
    run(index, tmp_path)
    with (tmp_path / "shards" / "provenance.csv").open() as file:
        rows = {(row["package"], row["path"]): row for row in csv.DictReader(file)}
    documents = {split: texts(tmp_path, split) for split in ("train", "validation")}
    assert set(rows) == set(documents["train"]) | set(documents["validation"])
    for split, found in documents.items():
        for place, text in found.items():
            assert rows[place]["split"] == split
            assert int(rows[place]["bytes"]) == len(text.encode())
            assert rows[place]["version"] == "1.0" and rows[place]["licence"] == "MIT"
    source = (head + kernel(1)).encode()
    assert rows["one", "one-1.0/a.cu"]["sha256"] == hashlib.sha256(source).hexdigest()
    assert int(rows["one", "one-1.0/a.cu"]["source_bytes"]) == len(source)


@pytest.mark.parametrize("path", ["../evil.cu", "/etc/evil.cu", "a/../../evil.cu", "a\\..\\evil.cu", "C:evil.cu"])
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_an_archive_with_a_path_that_leads_out_is_refused(index: Index, tmp_path: Path, path: str, kind: str) -> None:
    files = {"good.cu": kernel(1), path: kernel(2)}
    if kind == "sdist":
        index.put("evil", "evil.tar.gz", tarball(files))
    else:
        index.put("evil", "evil.whl", wheel(files), kind)
    with pytest.raises(CorpusError, match=r"is refused: its member .* leads out"):
        run(index, tmp_path / "out")
    assert not (tmp_path / "out" / "shards").exists()
    assert not list(tmp_path.rglob("evil.cu"))


def test_links_in_an_archive_are_not_followed(index: Index, tmp_path: Path) -> None:
    (tmp_path / "secret.cu").write_text(kernel(7))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        link = tarfile.TarInfo("one-1.0/link.cu")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.cu")
        tar.addfile(link)
        plain = tarfile.TarInfo("one-1.0/a.cu")
        plain.size = len(kernel(1))
        tar.addfile(plain, io.BytesIO(kernel(1).encode()))
    index.put("one", "one-1.0.tar.gz", out.getvalue())
    run(index, tmp_path / "out")
    assert list(texts(tmp_path / "out")) == [("one", "one-1.0/a.cu")]


def test_an_archive_that_is_no_archive_is_an_error_with_its_name(index: Index, tmp_path: Path) -> None:
    index.put("bad", "bad-1.0.tar.gz", b"no archive")
    with pytest.raises(CorpusError, match=r"bad-1\.0\.tar\.gz is broken"):
        run(index, tmp_path)


# ── The command and the shipped manifest ──────────────────────────────────────


def test_progress_reaches_the_end_of_every_stage(index: Index, tmp_path: Path) -> None:
    index.add("one", {"a.cu": kernel(1)})
    index.add("two", {"b.cu": kernel(2)})
    steps: list[Step] = []
    build(config(index, tmp_path), steps.append)
    last = {step.stage: (step.done, step.total) for step in steps}
    assert last == {"download": (2, 2), "extract": (2, 2), "write": (1, 1)}
    assert max(step.received_bytes for step in steps) == max(map(len, index.archives.values()))


def test_the_command_builds_and_reports(index: Index, tmp_path: Path) -> None:
    index.add("one", {"a.cu": kernel(1)})
    index.add("two", {"b.cu": kernel(2)})
    manifest = config(index, tmp_path).manifest
    app = Typer()
    app.command()(command)
    words = ["--out", str(tmp_path / "out"), "--manifest", str(manifest), "--index", index.url]
    result = CliRunner().invoke(app, [*words, "--limit", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["files"] == 1
    result = CliRunner().invoke(app, words)
    assert "in 2 files of 2 packages" in result.stdout


def test_the_shipped_manifest_pins_permissive_packages_and_holds_some_out() -> None:
    archives = read_manifest(SHIPPED)
    assert {archive.licence for archive in archives} <= PERMISSIVE
    assert {archive.kind for archive in archives} == {"sdist", "wheel"}
    held_out = [archive for archive in archives if archive.held_out]
    assert 5 <= len(held_out) <= len(archives) // 5


@pytest.mark.parametrize("change", [{"file": "../x.tar.gz"}, {"sha256": "abc"}], ids=["file", "sha256"])
def test_a_manifest_with_a_wrong_line_is_refused(index: Index, tmp_path: Path, change: dict[str, str]) -> None:
    index.add("one", {"a.cu": kernel(1)})
    index.lines[0] |= change
    with pytest.raises(CorpusError, match="one must be"):
        run(index, tmp_path)
    assert index.asked == []
