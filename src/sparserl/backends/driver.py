"""The CUDA driver as this package uses it: checked calls, modules, packed launches, graphs and a stopwatch.

Rare calls go through cuda.bindings; the launch itself goes through ctypes with everything packed beforehand, because
the host time of an eager product is a user's time. Memory belongs to `cuda.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparserl.errors import BackendError

PROGRAMMATIC_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"""
MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""
INVALID_CONTEXT = 201
STICKY = frozenset({4, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721})
"""codes after which every call in this process fails: faults, traps, timeouts, a lost context"""


class StickyError(BackendError):
    """A fault that the process can't recover from: it must be started again."""


class LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_int * 16))


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


@functools.cache
def bindings() -> Any:
    """cuda.bindings.driver; BackendError where it or libcuda is missing."""
    try:
        from cuda.bindings import driver

        driver.cuDriverGetVersion()
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"The CUDA driver can't be reached ({error}). Install an NVIDIA driver, or use the simulator: --device sim."
        ) from error
    return driver


@functools.cache
def launch_function() -> Callable[..., int]:
    # No argtypes: every argument is a ready ctypes object, and converting them again would cost half a microsecond.
    function: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    return function


def name_of(status: int) -> str:
    """CUDA's name for a status code."""
    with contextlib.suppress(ValueError, BackendError):
        return str(bindings().CUresult(status).name)
    return f"CUDA error {status}"


def check(status: int, what: str) -> None:
    """Raise where `status` is not success; a StickyError says that the process is of no further use."""
    if status == 0:
        return
    if status in STICKY:
        raise StickyError(f"{what} failed: {name_of(status)}. This is sticky: the process has to be started again.")
    raise BackendError(f"{what} failed: {name_of(status)}.")


def call(function: str, *args: Any) -> Any:
    """One driver call by name, checked: what it returns beside the status."""
    status, *values = getattr(bindings(), function)(*args)
    check(int(status), function)
    return values[0] if len(values) == 1 else tuple(values)


def call_text(function: str, *args: Any) -> str:
    """One driver call that fills a buffer with text: up to the first zero byte, whatever lies behind it."""
    filled: bytes = call(function, *args)
    return filled.split(b"\0", 1)[0].decode()


class Module:
    """Loaded code. It is unloaded when nobody holds it any longer."""

    def __init__(self, code: bytes) -> None:
        image = ctypes.create_string_buffer(code, len(code))
        self._handle = call("cuModuleLoadData", ctypes.addressof(image))
        self._functions: dict[str, ctypes.c_void_p] = {}

    def function(self, name: str) -> ctypes.c_void_p:
        """The kernel's handle, ready for a launch."""
        if name not in self._functions:
            found = call("cuModuleGetFunction", self._handle, name.encode())
            self._functions[name] = ctypes.c_void_p(int(found))
        return self._functions[name]

    def registers(self, name: str) -> int:
        attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        return int(call("cuFuncGetAttribute", attribute, self.function(name).value))

    def allow_shared(self, name: str, size_bytes: int) -> None:
        """More than 48 KB of shared memory have to be asked for."""
        attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", self.function(name).value, attribute, size_bytes)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the driver may be gone
            bindings().cuModuleUnload(self._handle)


class Arguments:
    """A kernel's arguments as the driver wants them: packed once, single slots patched in place afterwards."""

    def __init__(self, slots: Sequence[Any]) -> None:
        self.slots = tuple(slots)  # ctypes objects, kept alive here
        self.pointers = (ctypes.c_void_p * max(1, len(self.slots)))(*map(ctypes.addressof, self.slots))


class Call:
    """One kernel launch, packed."""

    def __init__(
        self,
        name: str,
        function: ctypes.c_void_p,
        shape: tuple[int, int, int],
        arguments: Arguments,
        stream: int = 0,
        *,
        pdl: bool = False,
    ) -> None:
        """`shape` is (grid, block, dynamic shared bytes); `pdl` lets it start before the launch ahead has ended."""
        grid, block, shared_bytes = shape
        self.name, self.function, self.arguments = name, function, arguments
        attribute = LaunchAttribute(id=PROGRAMMATIC_SERIALIZATION)
        attribute.value[0] = 1
        self._attribute = attribute  # kept alive for the pointer below
        self.config = LaunchConfig(
            (ctypes.c_uint * 3)(grid, 1, 1),
            (ctypes.c_uint * 3)(block, 1, 1),
            shared_bytes,
            stream or None,
            ctypes.pointer(attribute) if pdl else None,
            1 if pdl else 0,
        )
        self.reference = ctypes.byref(self.config)
        self.pointers = arguments.pointers

    def launch(self) -> None:
        status = launch_function()(self.reference, self.function, self.pointers, None)
        if status:
            check(status, f"The launch of kernel '{self.name}'")


class Graph:
    """What `body` launches on `stream`, captured and instantiated. The stream must not be the default one."""

    def __init__(self, stream: int, body: Callable[[], None]) -> None:
        self._executable: Any = None
        mode = bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call("cuStreamBeginCapture", stream, mode)
        try:
            body()
        except BaseException:
            bindings().cuStreamEndCapture(stream)
            raise
        graph = call("cuStreamEndCapture", stream)
        try:
            self._executable = call("cuGraphInstantiate", graph, 0)
        finally:
            call("cuGraphDestroy", graph)
        call("cuGraphUpload", self._executable, stream)

    def launch(self, stream: int) -> None:
        call("cuGraphLaunch", self._executable, stream)

    def close(self) -> None:
        if self._executable is not None:
            executable, self._executable = self._executable, None
            call("cuGraphExecDestroy", executable)


class Stopwatch:
    """Two events: the milliseconds that the device needs for what is launched between them."""

    def __init__(self) -> None:
        self._start, self._end = call("cuEventCreate", 0), call("cuEventCreate", 0)

    @contextlib.contextmanager
    def around(self, stream: int) -> Iterator[None]:
        call("cuEventRecord", self._start, stream)
        yield
        call("cuEventRecord", self._end, stream)
        call("cuEventSynchronize", self._end)

    @property
    def elapsed_ms(self) -> float:
        return float(call("cuEventElapsedTime", self._start, self._end))

    def close(self) -> None:
        call("cuEventDestroy", self._start)
        call("cuEventDestroy", self._end)


def pointer(address: int) -> ctypes.c_uint64:
    """A pointer argument."""
    return ctypes.c_uint64(address)


def is_capturing(stream: int) -> bool:
    """Something is being captured on this stream."""
    status = call("cuStreamIsCapturing", stream)
    return int(status) != 0
