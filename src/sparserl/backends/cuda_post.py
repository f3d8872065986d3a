"""Numbers on their way between the host and one stream: many go together, and one wait ends them all.

A copy to or from ordinary memory is waited for, and among processes that share a GPU every wait may last until the
others had their slices. So what goes to the device is put in page-locked memory first, and what comes from it arrives
there, in the order of the stream; after a wait it is handed to those that asked. (A program on the device could reach
these pages like all that lies there, if it knew where they are; it is told no address but those of its own buffers.)
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparserl.backends.driver import call

Array = np.ndarray[Any, np.dtype[Any]]
ROOM_BYTES = 16 << 20
"""each way; what is larger goes in pieces, or, from the device, alone"""
ALIGNED = 64


@dataclass
class Letter:
    """What was asked of the device. Call it for the numbers."""

    post: Post
    data: Array
    there: bool = False

    def __call__(self) -> Array:
        if not self.there:
            self.post.wait()
        return self.data


class Post:
    """Of one stream, in the context of the thread that made it."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._sent = self._asked = 0
        self._letters: list[tuple[Letter, int]] = []
        self._to, self._from = (int(call("cuMemAllocHost", ROOM_BYTES)) for _ in range(2))
        self._outgoing, self._incoming = map(_bytes_at, (self._to, self._from))

    def send(self, address: int, data: Array) -> None:
        """To the device. `data` may change as soon as this returns."""
        flat = data.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), ROOM_BYTES):
            piece = flat[at : at + ROOM_BYTES]
            if self._sent + len(piece) > ROOM_BYTES:
                self.wait()
            self._outgoing[self._sent : self._sent + len(piece)] = piece
            call("cuMemcpyHtoDAsync", address + at, self._to + self._sent, len(piece), self._stream)
            self._sent += -(-len(piece) // ALIGNED) * ALIGNED

    def ask(self, data: Array, address: int) -> Letter:
        """What stands there once all that was told to the stream before is done; it is put into `data`."""
        letter = Letter(self, data)
        if data.nbytes > ROOM_BYTES:
            call("cuMemcpyDtoHAsync", data.ctypes.data, address, data.nbytes, self._stream)
            self.wait()
            letter.there = True
            return letter
        if self._asked + data.nbytes > ROOM_BYTES:
            self.wait()
        if data.nbytes:
            call("cuMemcpyDtoHAsync", self._from + self._asked, address, data.nbytes, self._stream)
        self._letters.append((letter, self._asked))
        self._asked += -(-data.nbytes // ALIGNED) * ALIGNED
        return letter

    def wait(self) -> None:
        """Until everything is done; who asked has its answer then."""
        call("cuStreamSynchronize", self._stream)
        for letter, at in self._letters:
            flat = letter.data.reshape(-1).view(np.uint8)
            flat[:] = self._incoming[at : at + len(flat)]
            letter.there = True
        self._letters.clear()
        self._sent = self._asked = 0


def _bytes_at(address: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_ubyte * ROOM_BYTES).from_address(address))
