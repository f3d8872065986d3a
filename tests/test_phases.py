"""Seconds by phase."""

from __future__ import annotations

import time

import pytest

from sparserl.phases import add, phase


def test_a_phase_adds_up_and_counts_what_raises():
    seconds: dict[str, float] = {}
    with phase(seconds, "work"):
        time.sleep(0.01)
    first = seconds["work"]
    with pytest.raises(KeyError), phase(seconds, "work"):
        time.sleep(0.01)
        raise KeyError
    assert first >= 0.01 and seconds["work"] >= first + 0.01


def test_phases_of_another_account_are_added_by_name():
    seconds = {"read": 1.0, "time": 2.0}
    add(seconds, {"time": 0.5, "verify": 3.0})
    assert seconds == {"read": 1.0, "time": 2.5, "verify": 3.0}
