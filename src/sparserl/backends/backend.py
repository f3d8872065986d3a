"""What a machine must offer to the judge and to an Operator. Backends see named arrays and source text, never layouts.

Two machines implement this: `cuda` (the product) and `sim` (the same CUDA source on any CPU). The judge is written once
against this page. Nothing here falls from one to the other in silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import numpy as np

from sparserl.records import Launch, Mode, Order, Param


@dataclass(frozen=True)
class Device:
    """The machine that runs the kernels."""

    backend: Literal["cuda", "sim"]
    name: str
    arch: str
    """'sm_90'; the simulator models an H200 and says so"""
    sms: int
    l2_bytes: int
    memory_tb_s: float
    """the most that memory can move, datasheet: a floor under every time (4.8 on an H200)"""
    l2_tb_s: float
    """the most that the L2 can move, measured once a process: the floor where everything fits"""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A program made ready for a machine: no layout, no policy, just source, names and numbers (`program.assemble`)."""

    source: str
    """one translation unit: preamble, types, baked constants, the program's body"""
    kernels: tuple[str, ...]
    params: tuple[Param, ...]
    """the whole parameter list of every kernel, in order: scalars, structure arrays, 'vals', x and y, workspaces"""
    scalars: Mapping[str, int]
    launches: tuple[Launch, ...]
    workspaces: Mapping[str, tuple[int, str]]
    """name → (bytes, 'zeroed' | 'scratch')"""
    vector_names: tuple[str, str] = ("x", "y")
    """the parameters that change from call to call: ('x', 'y') for spmv, ('b', 'c') for spmm"""

    @property
    def waits(self) -> bool:
        """Some launch overlaps the one before it (programmatic dependent launch)."""
        return any(launch.pdl for launch in self.launches)


@dataclass(frozen=True)
class Binary:
    """What the compiler made. It carries no matrix, so it is cached by `key` across matrices."""

    key: str
    code: bytes
    kernels: Mapping[str, str]
    """name in the source → name in the binary"""
    log: str = ""
    registers: int = 0

    @property
    def code_hash(self) -> str:
        """What tells machine codes apart."""
        return hashlib.sha256(self.code).hexdigest()[:16]


class Buffer(Protocol):
    """Device memory between two guard zones."""

    @property
    def pointer(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True)
class Part:
    """Some columns of a dense matrix as it lies in memory."""

    columns: np.ndarray
    wide: int
    """columns of the whole"""
    order: Order

    def of(self, whole: np.ndarray) -> np.ndarray:
        """They alone, in the same memory order."""
        if self.order == "row":
            return np.ascontiguousarray(whole.reshape(-1, self.wide)[:, self.columns]).ravel()
        return np.asarray(whole.reshape(self.wide, -1)[self.columns]).ravel()


T_co = TypeVar("T_co", covariant=True)


class Later(Protocol[T_co]):
    """An answer to what was asked at its place among all that a machine is told. Calling it waits, the first time."""

    def __call__(self) -> T_co: ...


Inspected = tuple[list[bool], list[str]]
"""whether guard zones are intact, and hashes"""


class Executable(Protocol):
    """One product, ready to launch. Asynchronous, allocation-free, capturable in a CUDA graph on the cuda backend.

    Generated kernels and cuSPARSE stand behind this same Protocol.
    """

    def launch(self, x: int, y: int, stream: int = 0) -> None: ...


@dataclass(frozen=True)
class RunReport:
    """What happened while a product ran. `ok` says nothing about the numbers."""

    ok: bool
    reason: str = ""
    sectors: int = 0
    """32-byte sectors touched (simulator only)"""
    modelled_us: float = 0.0
    """the simulator's modelled time, chain mode (simulator only)"""
    host_us: float = 0.0
    """from the launch to the end by the host's clock (GPU only); the first run of a program also loads its code"""


@dataclass(frozen=True)
class TimingPlan:
    """How a set of executables is timed side by side, all with the same repetitions but those that are far behind."""

    mode: Mode = "chain"
    rounds: int = 7
    graph_ms: float = 2.0
    """each timed graph lasts at least this long"""
    repetitions: int = 0
    """products in a graph; 0: as many as fill `graph_ms`, which has to be found out first"""
    x_elements: int = 0
    y_elements: int = 0
    value_bytes: int = 4
    feed_back: bool = False
    """chain mode: x and y swap roles from product to product (only where their sizes agree)"""


class Backend(Protocol):
    """A machine. All methods block unless they say otherwise."""

    name: str
    bounded: bool
    """whether a program that reaches for what it was not given is stopped there"""

    def device(self) -> Device: ...

    def compile(self, source: str, kernels: Sequence[str]) -> Binary:
        """Raises `errors.CompileError` with the log."""

    def alloc(self, size_bytes: int) -> Buffer:
        """Memory with a guard zone of at least 256 known bytes on either side; contents undefined; 256-byte aligned."""

    def upload(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Buffer]:
        """Each in memory of its own, as `alloc` gives it."""

    def room_bytes(self) -> int:
        """What could still be allocated, about."""

    def give_back(self) -> None:
        """Let others have memory that was used here and is no more."""

    def most_bytes(self) -> int | None:
        """The most memory that was allocated here at one moment since this was last asked; None: not counted."""

    def write(self, buffer: Buffer, array: np.ndarray, first_byte: int = 0) -> None:
        """Into `buffer`, from this byte of it on."""

    def copy(self, target: Buffer, source: Buffer) -> None:
        """All of `source` to the beginning of `target`, on the device."""

    def read(self, buffer: Buffer, dtype: np.dtype, count: int, part: Part | None = None) -> np.ndarray:
        """The first `count` numbers; of a dense matrix of so many, this part alone."""

    def read_later(self, buffer: Buffer, dtype: np.dtype, count: int, part: Part | None = None) -> Later[np.ndarray]:
        """The same without waiting for it."""

    def fill(self, buffer: Buffer, byte: int) -> None: ...

    def scatter(
        self, buffer: Buffer, values: np.ndarray, slot_of: Buffer | None, padding: np.ndarray,
        staged: Buffer | None = None,
    ) -> None:  # fmt: skip
        """vals[slot_of[k]] = values[k]; every other slot gets the scalar `padding` (-0.0). slot_of holds int32.

        staged: has the numbers on the device; of `values` only type and count are then used.
        """

    def inspect(self, guarded: Sequence[Buffer], digested: Sequence[Buffer]) -> Inspected:
        """Whether the guard zones of some are intact, and hashes of the contents of others, which tell after a run
        whether inputs are unchanged. All at once, because a GPU that others use as well makes each answer a wait.
        """

    def inspect_later(self, guarded: Sequence[Buffer], digested: Sequence[Buffer]) -> Later[Inspected]:
        """The same without waiting for it."""

    def guards_intact(self, buffer: Buffer) -> bool: ...

    def digest(self, buffer: Buffer) -> str: ...

    def prepare(self, binary: Binary, job: Job, arrays: Mapping[str, Buffer]) -> Executable:
        """Bind arrays, scalars and workspaces (allocated here, per stream) into something to launch."""

    def workspaces(self, executable: Executable) -> Mapping[str, Buffer]:
        """The workspaces of an executable made by `prepare`, for the judge to poison and inspect."""

    def run(self, executable: Executable, x: Buffer, y: Buffer, *, plain: bool = True, wait: bool = True) -> RunReport:
        """One product, to the end. `plain` launches without the pdl attribute.

        wait=False: perhaps not to the end; then a fault shows in the answer that is waited for next.
        """

    def run_chain(
        self, executable: Executable, buffers: Sequence[Buffer], steps: int, *, wait: bool = True
    ) -> RunReport:
        """`steps` dependent products with the pdl attribute behind a slow writer of buffers[0].

        The writer copies buffers[-1] (prepared by the caller) into buffers[0] slowly, on the same stream, just before
        the first product. Product i reads buffers[i % 2] and writes buffers[(i + 1) % 2] when all are the same size
        (three buffers: 0, 1 and the source); otherwise x is buffers[0], y is buffers[1], and the writer runs before
        every product, so that each must wait for it. `wait` is that of `run`.
        """

    def time(self, executables: Sequence[Executable], plan: TimingPlan) -> list[list[float]]:
        """Microseconds a product, by executable and round, interleaved round by round; the plan's mode."""

    @property
    def repetitions(self) -> tuple[int, ...]:
        """Products in the graphs of the last timing, by executable; 1 where times are modelled."""

    def clock_mhz(self) -> int:
        """Of the multiprocessors, now; 0: not known."""

    def floor_us(self, plan: TimingPlan) -> float:
        """The empty kernel in the same mode."""

    def close(self) -> None: ...
