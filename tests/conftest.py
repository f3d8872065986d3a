"""The order of tests, and skips, in one place: a `gpu` or `browser` one runs where there is one, or says why not."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

# Before anything imports NumPy or torch, and for every process that a test starts: sums in another number of threads
# have other last bits, and tests of resuming compare runs bit by bit.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs chromium")
    config.addinivalue_line("markers", "nano: lets `tune` take the shipped policy, which takes half a minute a matrix")


@pytest.fixture(autouse=True)
def recipes_unless_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tune` in tests takes recipes, as if no policy were shipped."""
    if request.node.get_closest_marker("nano") is None:
        monkeypatch.setattr("sparserl.policies.SHIPPED", Path("no policy is shipped"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Where oneDNN refuses a product in bfloat16, torch does without it from then on, and later sums differ."""
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mkldnn.enabled = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes goes first: at the end one process would work at it and the others wait."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
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
