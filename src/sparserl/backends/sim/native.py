"""The seam between Python and runtime.cpp: the plain structs of sim.h, and a loaded pair of host libraries.

Field order and sizes must agree with sim.h. Signals and their stack belong to a process, so one kernel runs at a time.
"""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparserl.errors import BackendError

SHARED_LIMIT = 232448
COUNTERS = [
    "instructions",
    "requested",
    "l2_read",
    "l2_written",
    "lines",
    "rounds",
    "atomics",
    "shared",
    "early",
    "warp_ops",
    "barriers",
    "trips",
    "early_trips",
    "loops",
    "serial_shared",
]

BUFFER_WRITABLE = 1
BUFFER_AFTER_WAIT = 2
ROLE_SHIFT = 8

_one_at_a_time = threading.Lock()
_loads = itertools.count()
_stacks = ctypes.c_void_p(0)


class NativeBuffer(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("initialised", ctypes.c_void_p),
        ("cells", ctypes.c_void_p),
        ("touched", ctypes.c_void_p),
        ("virtual_sector", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("distinct", ctypes.c_uint32),
        ("name", ctypes.c_char * 32),
    )


class NativeRequest(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("buffers", ctypes.c_void_p),
        ("counters", ctypes.c_void_p),
        ("stacks", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("limit_s", ctypes.c_double),
        ("buffer_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("pdl", ctypes.c_uint32),
        ("l1_sectors", ctypes.c_uint32),
    )


class NativeReport(ctypes.Structure):
    _fields_ = (("failed", ctypes.c_uint32), ("waited", ctypes.c_uint32), ("reason", ctypes.c_char * 504))


_retired: list[int] = []
"""handles of libraries that nobody holds any more; closed when the next one is loaded"""


class Library:
    """One host library, loaded from its bytes; unloaded some time after nobody holds it any more."""

    def __init__(self, code: bytes, kernels: Sequence[str]) -> None:
        self._handle = 0
        while _retired:
            _ctypes.dlclose(_retired.pop())
        self._cdll = _load(code)
        self._handle = self._cdll._handle
        self._launch = self._cdll.sim_launch
        self.entries = {name: self._address(f"sim_entry_{name}") for name in kernels}
        self.arity = {name: int(self._cdll[f"sim_arity_{name}"]()) for name in kernels}

    def _address(self, symbol: str) -> int:
        return ctypes.cast(self._cdll[symbol], ctypes.c_void_p).value or 0

    def __del__(self) -> None:
        # Only noted here: this may run in any thread at any moment, also while another one is being started, and the
        # loader does not like to lose a library then.
        if getattr(self, "_handle", 0) and _retired is not None:  # at exit modules are emptied before objects go
            _retired.append(self._handle)

    def launch(self, request: NativeRequest) -> str:
        """Run one kernel to its end; '' or what went wrong, in words."""
        report = NativeReport()
        request.stacks = ctypes.addressof(_stacks)
        with _one_at_a_time:
            if self._launch(ctypes.byref(request), ctypes.byref(report)) != 0:
                raise BackendError(
                    "The simulator could not get memory for its threads' stacks (64 MB). Free some memory."
                )
        return bytes(report.reason).decode(errors="replace") if report.failed else ""


def _load(code: bytes) -> Any:
    # An anonymous file needs no folder to write to, so a locked-down worker can load what another process compiled.
    try:
        descriptor = os.memfd_create("sparserl-kernel")
    except (AttributeError, OSError):
        with tempfile.TemporaryDirectory(prefix="sparserl-") as folder:
            path = Path(folder) / "kernel.so"
            path.write_bytes(code)
            return ctypes.CDLL(str(path))
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(code)
        return ctypes.CDLL(f"/proc/self/fd{_unique_detour()}/{descriptor}")
    except OSError as error:
        raise BackendError(f"The compiled kernel can't be loaded: {error}.") from error
    finally:
        os.close(descriptor)


def _unique_detour() -> str:
    # The loader takes a name it has seen before for the library it has loaded before, and descriptors are used again:
    # the bits of a counter, written as "/." and "/", make each name new and lead nowhere else.
    number = next(_loads)
    return "".join("/." if number >> bit & 1 else "/" for bit in range(24))
