"""The driver's calls, without a driver."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparserl.backends import driver


@pytest.mark.parametrize("left_behind", [b"", b"\0", b"\0\0\0   ", b"\0rubbish"])
def test_text_ends_at_the_first_zero_byte(monkeypatch: pytest.MonkeyPatch, left_behind: bytes) -> None:
    filled = b"NVIDIA H200" + left_behind
    monkeypatch.setattr(driver, "bindings", lambda: SimpleNamespace(cuDeviceGetName=lambda size, device: (0, filled)))
    assert driver.call_text("cuDeviceGetName", 256, 0) == "NVIDIA H200"
