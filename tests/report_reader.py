"""Reads a page of the report in tests: every tag, and the packed views of its matrices."""

from __future__ import annotations

import base64
import zlib
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "hr", "img", "link"}
OPTIONAL = {"td", "th", "tr"}
"""end tags that HTML lets a page leave out"""


class Reader(HTMLParser):
    """Follows every tag and keeps ids, attributes, tags and the packed views."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.views: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] in OPTIONAL and tag not in OPTIONAL:
            self.open.pop()
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag == "script" and "data-matrix" in attributes and self.open[-1] == "script":
            self.views[str(attributes["data-matrix"])] = zlib.decompress(base64.b64decode(data)).decode()


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader
