"""Hardware skips, all in one place: a test marked `gpu` runs where a CUDA device is usable and says why it does not."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from sparserl.backends.cuda import why_not

    reason = why_not()
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no usable CUDA device: {reason}"))
