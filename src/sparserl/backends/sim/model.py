"""The modelled time of a product, from what the simulator counted: a pure function, the same on every run.

A launch costs its overhead, then the largest of: bytes from memory, sectors from the L2, work that the multiprocessors
must issue, and latency (the longest block alone, or all blocks one after another through the slots that are there); a
part of the second largest is added, since overlap is never perfect. The constants are an H200's, from single
measurements. Not modelled: bank conflicts, the order in which warps meet the L1, clocks that change, atomics that
queue on one address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparserl.backends.sim.native import COUNTERS, SHARED_LIMIT
from sparserl.records import Mode

STRUCTURE, COLUMNS, VECTOR, VALUES, WORKSPACE, OUTPUT = range(6)
"""roles of arrays: reading one's row bounds, then columns, then x, makes a chain of three"""


@dataclass(frozen=True)
class ModelConstants:
    """What the modelled machine costs. Times in microseconds."""

    sms: int = 132
    clock_mhz: float = 1755.0
    l2_bytes: int = 50_000_000
    """footprints up to this stay in the L2 between products"""
    memory_bytes_us: float = 4.3e6
    l2_bytes_us: float = 5.5e6
    launch_us: float = 0.85
    """an empty kernel in a graph"""
    pdl_saves_us: float = 0.40
    """less overhead when the next product may start early, chain mode"""
    pdl_saves_solver_us: float = 0.15
    stage_us: float = 0.28
    """one dependent round trip to the L2"""
    cold_stage_us: float = 0.55
    round_us: float = 0.055
    """one more trip through a loop of loads in one warp, partly overlapped"""
    barrier_us: float = 0.03
    warp_op_us: float = 0.012
    atomic_us: float = 0.5
    """fence, atomic and the re-read behind it"""
    cycles_instruction: float = 5.0
    """a memory instruction with the arithmetic around it, on one of four schedulers"""
    cycles_line: float = 1.0
    """each further 128-byte line that a memory instruction touches"""
    cycles_shared: float = 0.08
    cycles_warp_op: float = 2.0
    cycles_block: float = 60.0
    atomic_sectors: float = 3.0
    """an atomic keeps an L2 slice busy for this many plain sectors"""
    overlap_loss: float = 0.25


@dataclass(frozen=True)
class LaunchCounts:
    """What one launch did."""

    counters: np.ndarray  # (grid, len(COUNTERS))
    block: int
    resident: int
    """blocks that fit on a multiprocessor at once"""
    distinct_bytes: int
    pdl: bool

    def column(self, name: str) -> np.ndarray:
        return self.counters[:, COUNTERS.index(name)]

    def total(self, name: str) -> int:
        return int(self.column(name).sum(dtype=np.int64))


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
    return float(sum(_launch_us(launch, mode, constants) for launch in launches))


def floor_us(mode: Mode, constants: ModelConstants) -> float:
    """The empty kernel in the same mode, launched as cheaply as the mode allows."""
    saved = {"chain": constants.pdl_saves_us, "solver": constants.pdl_saves_solver_us, "cold": 0.0}[mode]
    return constants.launch_us - saved


def _launch_us(launch: LaunchCounts, mode: Mode, c: ModelConstants) -> float:
    overhead = floor_us(mode, c) if launch.pdl else c.launch_us
    sectors = launch.total("l2_read") + launch.total("l2_written") + c.atomic_sectors * launch.total("atomics")
    from_memory = mode == "cold" or launch.distinct_bytes > c.l2_bytes
    latencies = _block_latency_us(launch, mode, c)
    slots = c.sms * launch.resident
    terms = sorted(
        [
            launch.distinct_bytes / c.memory_bytes_us if from_memory else 0.0,
            32.0 * sectors / c.l2_bytes_us,
            _issue_us(launch, c),
            max(float(latencies.max(initial=0.0)), float(latencies.sum()) / slots),
        ]
    )
    return overhead + terms[-1] + c.overlap_loss * terms[-2]


def _block_latency_us(launch: LaunchCounts, mode: Mode, c: ModelConstants) -> np.ndarray:
    stage_us = c.cold_stage_us if mode == "cold" else c.stage_us
    touched = launch.column("stages")
    depth = np.zeros(len(touched))
    for role in (STRUCTURE, COLUMNS, VECTOR, WORKSPACE):
        depth += (touched >> role) & 1
    # Without an index to follow, the values alone are one trip.
    depth = np.maximum(depth, (touched >> VALUES) & 1)
    rounds = launch.column("rounds").astype(np.float64)
    warps = max(1, (launch.block + 31) // 32)
    latency: np.ndarray = (
        depth * stage_us
        + rounds * c.round_us
        + launch.column("barriers") * c.barrier_us
        + launch.column("warp_ops") / warps * c.warp_op_us
        + (launch.column("atomics") > 0) * c.atomic_us
    )
    return latency


def _issue_us(launch: LaunchCounts, c: ModelConstants) -> float:
    cycles = (
        launch.total("instructions") * c.cycles_instruction / 4
        + launch.total("lines") * c.cycles_line
        + launch.total("shared") * c.cycles_shared
        + launch.total("warp_ops") * c.cycles_warp_op / 4
        + len(launch.counters) * c.cycles_block
    )
    return cycles / min(c.sms, max(1, len(launch.counters))) / c.clock_mhz
