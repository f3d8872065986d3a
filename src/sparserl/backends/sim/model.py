"""The modelled time of a product, from what the simulator counted: a pure function, the same on every run.

A launch costs its overhead and then five things that overlap only in part, so they are joined by a norm that lies
between their sum and their maximum: how long the longest block waits (dependent loads, loop steps, barriers); the same
for all blocks, through the slots that there are; what the multiprocessors issue; sectors from the L2, or bytes from
memory where they do not stay in the L2; and blocks, which are started one by one.

The constants are an H200's, fitted on half of the matrices of `results/agreement` (bench/calibration.py); those of
traffic past the L2 are not fitted, and come from single measurements. bench/agreement.py says how well the model ranks
programs and what it misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparserl.backends.sim.native import COUNTERS, SHARED_LIMIT
from sparserl.records import Mode

STRUCTURE, COLUMNS, VECTOR, VALUES, WORKSPACE, OUTPUT = range(6)
"""roles of arrays, as trips.h has them: reading row bounds, then columns, then x, makes a chain of three"""

Column = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class ModelConstants:
    """What the modelled machine costs. Times in microseconds."""

    sms: int = 132
    clock_mhz: float = 1755.0
    l2_bytes: int = 50_000_000
    """footprints up to this stay in the L2 between products"""
    memory_bytes_us: float = 4.3e6
    cold_trip_us: float = 0.3
    """more for a dependent round trip that goes past the L2"""
    launch_us: float = 1.2
    """an ordinary launch in a graph"""
    pdl_launch_us: float = 0.828
    """a dependent launch behind a kernel that does not let it start early"""
    pdl_chain_us: float = 0.341
    """a dependent launch behind the same program's last product, which does"""
    trip_us: float = 0.148
    """a dependent round trip to the L2"""
    early_trip_us: float = 0.234
    """one before the dependency wait"""
    loop_us: float = 0.0369
    """one more step of a loop of loads that can be unrolled"""
    round_us: float = 0.0483
    """one more pass of a warp over a load"""
    barrier_us: float = 0.251
    shared_step_us: float = 0.00815
    """an access to shared memory in the thread that has most of them"""
    cycles_instruction: float = 0.606
    """a warp's memory instruction, on one of four schedulers"""
    cycles_line: float = 0.273
    """each 128-byte line that it touches"""
    cycles_shared: float = 0.267
    """a thread's access to shared memory"""
    cycles_warp_op: float = 1.7
    l2_bytes_us: float = 6.98e6
    atomic_sectors: float = 0.806
    """an atomic keeps an L2 slice busy for this many plain sectors"""
    block_us: float = 0.518e-3
    """starting one block, all multiprocessors together"""
    pdl_block_us: float = 1.01e-3
    overlap: float = 1.95
    """the norm that joins the five terms: 1 adds them up, a large one takes the largest"""


@dataclass(frozen=True)
class LaunchCounts:
    """What one launch did: sums over its blocks, and the largest of any block, counter by counter (COUNTERS)."""

    totals: tuple[int, ...]
    longest: tuple[int, ...]
    grid: int
    block: int
    resident: int
    """blocks that fit on a multiprocessor at once"""
    distinct_bytes: int
    pdl: bool

    @classmethod
    def of(cls, counters: np.ndarray, block: int, resident: int, distinct_bytes: int, pdl: bool) -> LaunchCounts:
        """From what each block counted, (grid, COUNTERS)."""
        totals, longest = counters.sum(axis=0, dtype=np.int64).tolist(), counters.max(axis=0, initial=0).tolist()
        return cls(tuple(totals), tuple(longest), len(counters), block, resident, distinct_bytes, pdl)

    def total(self, name: str) -> int:
        return self.totals[COUNTERS.index(name)]


def resident_blocks(block: int, shared_bytes: int, registers: int) -> int:
    """Blocks of one kernel that share a multiprocessor: by threads, registers and shared memory."""
    limits = [2048 // max(block, 1), 32, 65536 // max(1, max(registers, 16) * block)]
    if shared_bytes:
        limits.append(SHARED_LIMIT // (shared_bytes + 1024))
    return max(1, min(limits))


def l1_sectors(resident: int, shared_bytes: int) -> int:
    """A block's share of the L1, as a power of two of 32-byte sectors that sectors.h can hold."""
    free = max(262_144 - resident * (shared_bytes + 1024), 32_768)
    sectors = max(64, min(8192, free // resident // 32))
    return int(1 << (sectors.bit_length() - 1))


def modelled_us(launches: Sequence[LaunchCounts], mode: Mode, constants: ModelConstants) -> float:
    """Microseconds of one product in a mode."""
    first = np.arange(len(launches)) == 0
    return float(launch_us(Table.of(launches), first, mode, constants).sum()) if launches else 0.0


def floor_us(mode: Mode, constants: ModelConstants) -> float:
    """The empty kernel in the same mode, launched as cheaply as the mode allows."""
    return constants.pdl_chain_us if mode == "chain" else min(constants.launch_us, constants.pdl_launch_us)


@dataclass(frozen=True)
class Table:
    """Many launches side by side, so that a calibration can price thousands at once."""

    totals: np.ndarray  # (launches, COUNTERS)
    longest: np.ndarray
    grid: np.ndarray  # (launches,)
    resident: np.ndarray
    distinct_bytes: np.ndarray
    pdl: np.ndarray

    @classmethod
    def of(cls, launches: Sequence[LaunchCounts]) -> Table:
        return cls(
            totals=np.array([each.totals for each in launches], dtype=np.float64),
            longest=np.array([each.longest for each in launches], dtype=np.float64),
            grid=np.array([each.grid for each in launches], dtype=np.float64),
            resident=np.array([each.resident for each in launches], dtype=np.float64),
            distinct_bytes=np.array([each.distinct_bytes for each in launches], dtype=np.float64),
            pdl=np.array([each.pdl for each in launches], dtype=bool),
        )

    def total(self, name: str) -> np.ndarray:
        column: np.ndarray = self.totals[:, COUNTERS.index(name)]
        return column

    def most(self, name: str) -> np.ndarray:
        column: np.ndarray = self.longest[:, COUNTERS.index(name)]
        return column


def launch_us(t: Table, first: np.ndarray, mode: Mode, c: ModelConstants) -> np.ndarray:
    """Microseconds of each launch; `first` says which ones are the first of their product."""
    overlapped = np.where(first, floor_us(mode, c), c.pdl_launch_us)
    overhead = np.where(t.pdl, overlapped, c.launch_us)
    terms = (
        _waiting_us(t.most, mode, c),
        _waiting_us(t.total, mode, c) / (c.sms * t.resident),
        np.maximum(_cycles(t.most, c), _cycles(t.total, c) / np.minimum(c.sms, np.maximum(1, t.grid))) / c.clock_mhz,
        _traffic_us(t, mode, c),
        t.grid * np.where(t.pdl, c.pdl_block_us, c.block_us),
    )
    joined: np.ndarray = overhead + sum(term**c.overlap for term in terms) ** (1 / c.overlap)
    return joined


def _waiting_us(of: Column, mode: Mode, c: ModelConstants) -> np.ndarray:
    """A block's time from its first load to its last store, if it had the machine to itself."""
    more_us = c.cold_trip_us if mode == "cold" else 0.0
    return (
        of("trips") * (c.trip_us + more_us)
        + of("early_trips") * (c.early_trip_us + more_us)
        + of("loops") * c.loop_us
        + of("rounds") * c.round_us
        + of("barriers") * c.barrier_us
        + of("serial_shared") * c.shared_step_us
    )


def _cycles(of: Column, c: ModelConstants) -> np.ndarray:
    """Cycles that a multiprocessor spends on issuing."""
    return (
        of("instructions") * c.cycles_instruction
        + of("lines") * c.cycles_line
        + of("shared") * c.cycles_shared
        + of("warp_ops") * c.cycles_warp_op
    )


def _traffic_us(t: Table, mode: Mode, c: ModelConstants) -> np.ndarray:
    sectors = t.total("l2_read") + t.total("l2_written") + c.atomic_sectors * t.total("atomics")
    from_memory = t.distinct_bytes > (0 if mode == "cold" else c.l2_bytes)
    slower: np.ndarray = np.maximum(32 * sectors / c.l2_bytes_us, from_memory * t.distinct_bytes / c.memory_bytes_us)
    return slower
