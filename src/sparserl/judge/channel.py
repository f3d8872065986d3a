"""Messages between the judge and a worker: pickled objects whose arrays travel beside the pickle, uncopied.

One writer and one reader an end; every message is answered before the next. A pipe moves about 2 GB/s here, which is
more than a matrix is packed with, so shared memory would buy nothing.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any


def send(connection: Connection, message: Any) -> None:
    """Raises OSError (BrokenPipeError and kin) when the other end is gone."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    connection.send_bytes(pickle.dumps((head, [buffer.raw().nbytes for buffer in buffers])))
    for buffer in buffers:
        raw = buffer.raw()
        if raw.nbytes:
            connection.send_bytes(raw)
        buffer.release()


def receive(connection: Connection) -> Any:
    """Raises EOFError or OSError when the other end is gone."""
    head, sizes = pickle.loads(connection.recv_bytes())
    buffers = []
    for size in sizes:
        buffer = bytearray(size)  # writable, so that the arrays made from it are
        if size:
            connection.recv_bytes_into(buffer)
        buffers.append(buffer)
    return pickle.loads(head, buffers=buffers)
