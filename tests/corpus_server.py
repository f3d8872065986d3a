"""A tiny package index on this machine, with archives made on the fly, that can be told to fail."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def kernel(seed: int, lines: int = 40) -> str:
    """A CUDA file of its own for every seed."""
    draw = np.random.default_rng(seed)
    words = ["".join(chr(97 + letter) for letter in row) for row in draw.integers(0, 26, (4 * lines, 6))]
    body = "\n".join("    {} = fmaf({}, x[{}], {});".format(*words[4 * i : 4 * i + 4]) for i in range(lines))
    return f"__global__ void kernel_{seed}(const float* x, float* y) {{\n{body}\n}}\n"


def tarball(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def wheel(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


@dataclass
class Index:
    """A package index that can fail: what it serves, what was asked of it, how it is to break."""

    archives: dict[str, bytes] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """path and Range of every request for an archive"""
    cut_after: int | None = None
    """break every archive off after so many bytes"""
    as_json: bool = False
    ranges: bool = True
    url: str = ""

    def add(self, name: str, files: dict[str, str], kind: str = "sdist", held_out: bool = False) -> None:
        file = f"{name}-1.0.tar.gz" if kind == "sdist" else f"{name}-1.0-py3-none-any.whl"
        inside = {f"{name}-1.0/{path}": text for path, text in files.items()}
        data = tarball(inside) if kind == "sdist" else wheel(files)
        self.put(name, file, data, kind, held_out)

    def put(self, name: str, file: str, data: bytes, kind: str = "sdist", held_out: bool = False) -> None:
        self.archives[file] = data
        line = {"name": name, "version": "1.0", "kind": kind, "file": file, "licence": "MIT", "held_out": held_out}
        self.lines.append(line | {"sha256": hashlib.sha256(data).hexdigest()})

    def page(self, project: str) -> tuple[str, bytes]:
        files = [line["file"] for line in self.lines if line["name"].replace("_", "-").lower() == project]
        if self.as_json:
            listed = [{"filename": file, "url": f"../../files/{file}"} for file in files]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": listed}).encode()
        links = "".join(f'<a href="../../files/{file}#sha256=0">{file}</a><br/>' for file in files)
        return "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


def handler(index: Index) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            last = self.path.rstrip("/").rpartition("/")[2]
            if self.path.startswith("/simple/"):
                kind, page = index.page(last)
                self.answer(200, page, {"Content-Type": kind})
                return
            wanted = self.headers.get("Range", "")
            index.asked.append((last, wanted))
            data = index.archives[last]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and index.ranges else 0
            self.answer(206 if start else 200, data[start:], {}, index.cut_after)

        def answer(self, code: int, data: bytes, headers: dict[str, str], cut_after: int | None = None) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:cut_after])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def serving() -> Iterator[Index]:
    index = Index()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(index))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
