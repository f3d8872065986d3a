"""Skips, all in one place: a test marked `gpu` or `browser` runs where there is one, or says why it does not."""

from __future__ import annotations

import shutil

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("chromium") is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="no chromium on the PATH"))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from sparserl.backends.cuda import why_not

    reason = why_not()
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no usable CUDA device: {reason}"))
