"""A generated program on the GPU: buffers, arguments packed once a stream, and a launch that does as little as it can.

Made by `CudaBackend.prepare`. Workspaces belong to a stream, so products on different streams do not meet in them. The
first launch after preparing, and after the host wrote to an array, carries no pdl attribute.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from sparserl.backends import driver
from sparserl.backends.backend import Binary, Job
from sparserl.backends.driver import Arguments, Call, Module
from sparserl.errors import BackendError

if TYPE_CHECKING:
    from sparserl.backends.cuda import CudaBackend

GUARD_BYTES = 512


class Watcher(Protocol):
    """Something to be told when a buffer's contents were changed by the host."""

    def changed(self) -> None: ...


class CudaBuffer:
    """Device memory between two guard zones, the second one beginning at the very next byte."""

    def __init__(self, raw: Any, size_bytes: int) -> None:
        self._raw = raw  # who owns the memory: a torch tensor, or `cuda_pool.Pooled`
        self.start: int = raw.data_ptr()
        self.pointer = self.start + GUARD_BYTES
        self.size_bytes = size_bytes
        self.end: int = self.start + raw.numel()
        self.watchers: WeakSet[Watcher] = WeakSet()


class _Bound:
    """The packed launches of one Executable on one stream."""

    def __init__(self, executable: CudaExecutable, stream: int, workspaces: Mapping[str, CudaBuffer]) -> None:
        job = executable.job
        slots = [executable.slot(param.name, param.is_array, workspaces) for param in job.params]
        by_name = {param.name: slot for param, slot in zip(job.params, slots, strict=True)}
        unused = ctypes.c_uint64()  # a vector that no kernel takes
        self.x, self.y = (by_name.get(name, unused) for name in job.vector_names)
        self.workspaces = workspaces
        arguments = Arguments(slots)
        self.pointers = arguments.pointers
        self._calls: list[Call] = []  # owns what the references below point to
        self.plain = self._pack(executable, arguments, stream, overlap=False)
        self.overlapped = self._pack(executable, arguments, stream, overlap=True)

    def _pack(
        self, executable: CudaExecutable, arguments: Arguments, stream: int, overlap: bool
    ) -> tuple[tuple[Any, ctypes.c_void_p], ...]:
        calls = [
            Call(
                launch.kernel,
                executable.module.function(executable.binary.kernels[launch.kernel]),
                (launch.grid, launch.block, launch.shared_bytes),
                arguments,
                stream,
                pdl=overlap and launch.pdl,
            )
            for launch in executable.job.launches
            if launch.grid > 0
        ]
        self._calls += calls
        return tuple((each.reference, each.function) for each in calls)


class CudaExecutable:
    """A generated program, bound to its arrays. Made by `CudaBackend.prepare`."""

    def __init__(
        self, backend: CudaBackend, binary: Binary, module: Module, job: Job, arrays: Mapping[str, CudaBuffer]
    ) -> None:
        self._backend, self.binary, self.module, self.job, self.arrays = backend, binary, module, job, arrays
        self._bound: dict[int, _Bound] = {}
        self._send = driver.launch_function()
        self.plain_next = True
        """the next launch carries no pdl attribute: set after preparing and after new values"""
        for launch in job.launches:
            if launch.shared_bytes > 0:
                most = max(other.shared_bytes for other in job.launches if other.kernel == launch.kernel)
                module.allow_shared(binary.kernels[launch.kernel], most)
        self._spare = self._new_workspaces()
        for buffer in arrays.values():
            buffer.watchers.add(self)
        self.ready(backend.stream)

    def launch(self, x: int, y: int, stream: int = 0) -> None:
        bound = self._bound.get(stream)
        if bound is None:
            bound = self.ready(stream)
        bound.x.value = x
        bound.y.value = y
        for config, function in bound.plain if self.plain_next else bound.overlapped:
            status = self._send(config, function, bound.pointers, None)
            if status:
                self._retry(status, config, function, bound)
        self.plain_next = False

    def _retry(self, status: int, config: Any, function: ctypes.c_void_p, bound: _Bound) -> None:
        if status == driver.INVALID_CONTEXT:  # a thread that never used CUDA before
            self._backend.enter()
            status = self._send(config, function, bound.pointers, None)
        driver.check(status, "The launch of a kernel")

    def changed(self) -> None:
        """The host wrote to one of the arrays: a kernel that overlaps could read them too early."""
        self.plain_next = True

    def ready(self, stream: int) -> _Bound:
        """Bind to a stream without launching. While it captures, nothing can be allocated: the spare set serves."""
        bound = self._bound.get(stream)
        if bound is not None:
            return bound
        workspaces: Mapping[str, CudaBuffer] = {}
        if self.job.workspaces:
            if not driver.is_capturing(stream):
                workspaces = self._new_workspaces()
            elif self._spare:
                workspaces, self._spare = self._spare, {}
            else:
                raise BackendError(
                    "This operator needs a workspace on a second stream that is being captured. "
                    "Launch it once on that stream before the capture."
                )
        bound = self._bound[stream] = _Bound(self, stream, workspaces)
        return bound

    def slot(self, name: str, is_array: bool, workspaces: Mapping[str, CudaBuffer]) -> Any:
        """One argument as a ctypes object."""
        if name in self.job.vector_names:
            return driver.pointer(0)
        if name in workspaces:
            return driver.pointer(workspaces[name].pointer)
        known: Mapping[str, Any] = self.arrays if is_array else self.job.scalars
        if name not in known:
            kind = "array" if is_array else "scalar"
            raise BackendError(f"The program's parameter '{name}' has no {kind}. There are: {', '.join(known)}.")
        return driver.pointer(self.arrays[name].pointer) if is_array else ctypes.c_int(self.job.scalars[name])

    def _new_workspaces(self) -> Mapping[str, CudaBuffer]:
        made = {}
        for name, (size_bytes, kind) in self.job.workspaces.items():
            made[name] = self._backend.alloc(size_bytes)
            if kind == "zeroed":
                self._backend.fill(made[name], 0)
        return made
