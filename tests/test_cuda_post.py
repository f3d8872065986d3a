"""Numbers on their way to a device and back, by a driver that does what it was told when it is waited for, in order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparserl.backends import cuda_post
from sparserl.backends.cuda_post import Post

ROOM = 1024


class Device:
    """Memory, and a stream that is as late as it can be."""

    def __init__(self) -> None:
        self.memory = np.zeros(1 << 16, np.uint8)
        self.waits = 0
        self._held: list[Any] = []
        self._told: list[Callable[[], None]] = []

    def call(self, name: str, *given: int) -> int | None:
        if name == "cuMemAllocHost":
            self._held.append(np.full(given[0], 0xEE, np.uint8))
            return int(self._held[-1].ctypes.data)
        if name == "cuStreamSynchronize":
            self.waits += 1
            for act in self._told:
                act()
            self._told.clear()
            return None
        assert name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync")
        target, source, size, _ = given
        self.later(lambda: ctypes.memmove(target, source, size))
        return None

    def later(self, act: Callable[[], Any]) -> None:
        self._told.append(act)

    def at(self, place: int) -> int:
        return int(self.memory.ctypes.data) + place


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(cuda_post, "call", made.call)
    monkeypatch.setattr(cuda_post, "ROOM_BYTES", ROOM)
    return made


def test_an_answer_is_what_stood_there_when_it_was_asked_for(device: Device) -> None:
    post = Post(1)
    numbers = np.arange(10, dtype=np.float32)
    post.send(device.at(0), numbers)
    numbers[:] = -1  # may change at once
    first = post.ask(np.empty(10, np.float32), device.at(0))
    post.send(device.at(0), numbers)
    second = post.ask(np.empty(10, np.float32), device.at(0))
    assert device.waits == 0
    assert np.array_equal(second(), numbers) and np.array_equal(first(), np.arange(10))
    assert device.waits == 1
    device.later(lambda: device.memory.fill(0))
    post.wait()
    assert np.array_equal(first(), np.arange(10)), "an answer stays what it was"


def test_more_than_fits_is_waited_for_in_between_and_comes_whole(device: Device) -> None:
    post = Post(1)
    sent = [
        np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8) for seed, size in enumerate([700, 900, 5000])
    ]
    places = [0, 4096, 8192]
    for data, place in zip(sent, places, strict=True):
        post.send(device.at(place), data)
    letters = [
        post.ask(np.empty(len(data), np.uint8), device.at(place)) for data, place in zip(sent, places, strict=True)
    ]
    assert device.waits > 2
    assert all(np.array_equal(letter(), data) for letter, data in zip(letters, sent, strict=True))


def test_nothing_and_rows_of_columns_go_too(device: Device) -> None:
    post = Post(1)
    post.send(device.at(0), np.empty(0))
    wide = np.arange(24, dtype=np.float64).reshape(4, 6)
    post.send(device.at(64), wide)
    nothing, back = post.ask(np.empty(0), device.at(0)), post.ask(np.empty((4, 6)), device.at(64))
    assert np.array_equal(back(), wide) and nothing().shape == (0,)
    assert device.waits == 1
