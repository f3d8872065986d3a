"""The frozen nouns that travel between the rooms: Problem, LayoutLine, Program, Packed, Launch, Timing, Outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np

Op = Literal["spmv", "spmm"]
DType = Literal["float32", "float64", "float16", "bfloat16"]
Order = Literal["row", "col"]
Mode = Literal["chain", "solver", "cold"]
MODES: tuple[Mode, ...] = ("chain", "solver", "cold")

VALUE_BYTES: Mapping[str, int] = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
SHORT_DTYPES: Mapping[str, DType] = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Problem:
    """What is to be computed, apart from the matrix: y = A x (spmv) or C = A B (spmm, `columns` wide)."""

    op: Op = "spmv"
    dtype: DType = "float32"
    """storage type of A, x and y; f16 and bf16 accumulate in float32"""
    columns: int = 1
    """N: columns of B and C; 1 for spmv"""
    b_order: Order = "row"
    c_order: Order = "row"

    def __post_init__(self) -> None:
        if self.op not in ("spmv", "spmm"):
            raise ValueError(f"The 'op' of a Problem must be 'spmv' or 'spmm'. Got {self.op!r}.")
        if self.dtype not in VALUE_BYTES:
            raise ValueError(f"The 'dtype' of a Problem must be one of {sorted(VALUE_BYTES)}. Got {self.dtype!r}.")
        if self.op == "spmv" and self.columns != 1:
            raise ValueError(f"The 'columns' of an spmv Problem must be 1. Got {self.columns}.")
        if not 1 <= self.columns <= 512:
            raise ValueError(f"The 'columns' of a Problem must be in 1..512. Got {self.columns}.")

    @property
    def value_bytes(self) -> int:
        return VALUE_BYTES[self.dtype]

    @property
    def accumulator(self) -> Literal["float32", "float64"]:
        return "float64" if self.dtype == "float64" else "float32"


@dataclass(frozen=True)
class LayoutLine:
    """The layout line of a program: a partition's name, its parameters in the order written, the index codec last."""

    name: str
    params: tuple[tuple[str, str], ...] = ()
    index: str = "int32"

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.params), f"index={self.index}"])

    def get(self, key: str, default: str = "") -> str:
        return dict(self.params).get(key, default)

    def number(self, key: str) -> int:
        return int(dict(self.params)[key])


@dataclass(frozen=True)
class Param:
    """One parameter of a kernel's contract. `length` says what an array holds, in words, for docs and messages."""

    name: str
    ctype: str
    """'int', or a pointer: 'const int*', 'const int4*', 'const index_t*', 'const value_t*', 'value_t*' …"""
    length: str = ""

    @property
    def is_array(self) -> bool:
        return self.ctype.endswith("*")


@dataclass(frozen=True)
class Workspace:
    """Memory that a program asks for. The host owns it, one per stream.

    zeroed: zero before the first launch; the program must leave it zero.  scratch: holds garbage at every launch.
    """

    name: str
    ctype: str
    """'int', 'acc_t' or 'value_t'"""
    count: str
    """a launch expression"""
    kind: Literal["zeroed", "scratch"]


@dataclass(frozen=True)
class LaunchLine:
    """One kernel launch as written; grid, block and shared bytes are launch expressions."""

    kernel: str
    grid: str
    block: str
    shared: str = "0"
    pdl: bool = False


@dataclass(frozen=True)
class Program:
    """What the policy writes, parsed. `program.parse` and `program.render` are exact inverses on canonical text."""

    layout: LayoutLine
    bake: tuple[str, ...]
    workspaces: tuple[Workspace, ...]
    launches: tuple[LaunchLine, ...]
    body: str


@dataclass(frozen=True)
class Packed:
    """A pattern packed by a layout. It holds structure only; values go through `slot_of`, so they can change."""

    layout: LayoutLine
    shape: tuple[int, int]
    nonzeros: int
    scalars: Mapping[str, int]
    """the contract's int parameters, by name; upper-cased they are what `bake` may name"""
    arrays: Mapping[str, np.ndarray]
    """the contract's structure arrays, by name ('vals' is not among them)"""
    slots: int
    """length of the 'vals' buffer, padding included"""
    slot_of: np.ndarray | None
    """vals[slot_of[k]] is nonzero k of the canonical CSR; None means slot k is nonzero k and slots == nonzeros"""
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """short integer tables that `bake` may name as arrays (OFFSETS)"""

    @property
    def size_bytes_without_values(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


@dataclass(frozen=True)
class Launch:
    """One kernel launch with its numbers filled in."""

    kernel: str
    grid: int
    block: int
    shared_bytes: int = 0
    pdl: bool = False


@dataclass(frozen=True)
class Timing:
    """Microseconds of one product. 'gpu' and 'modelled' times are never mixed or compared."""

    mode: Mode
    source: Literal["gpu", "modelled"]
    median_us: float
    quantiles_us: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """10, 25, 75 and 90 per cent over rounds"""
    rounds: int = 1
    repetitions: int = 1
    """products in one timed graph"""
    floor_us: float = 0.0
    clock_mhz: int = 0


class Verdict(IntEnum):
    """How far a program came; a later one is better. Everything below CORRECT is a failure."""

    UNREADABLE = 0
    SCREENED = 1
    INADMISSIBLE = 2
    UNCOMPILABLE = 3
    FAILED = 4
    """crashed, touched memory that is not its own, raced, hung or ran past the time limit"""
    WRONG = 5
    IMPLAUSIBLE = 6
    """right, but faster than the machine can move the bytes: something was not measured"""
    CORRECT = 7


@dataclass(frozen=True)
class Outcome:
    """All that the judge says of one program on one matrix."""

    verdict: Verdict
    reason: str = ""
    timings: Mapping[str, Timing] = field(default_factory=dict)
    """by mode"""
    registers: int = 0
    packed_bytes: int = 0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """seconds by phase: pack, compile, verify, time"""
    sectors: int = 0
    """32-byte sectors one product touches, as the simulator counts them; 0 where not counted"""

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.CORRECT
