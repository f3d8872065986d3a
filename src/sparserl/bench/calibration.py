"""Fits the constants of the simulator's model to measured times, on the half of the matrices that `agreement` names.

Least squares on the logarithm of modelled over measured time, both modes at once, with large misses damped. Half of a
matrix's own mean error is taken off, since ranking programs on one matrix matters more than the scale between matrices;
a weak pull keeps constants that the sample says nothing about where they were. Constants of the machine (number of
multiprocessors, clock, L2 size) and of traffic past the L2 are left alone: the sample has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from sparserl.backends.sim.model import ModelConstants
from sparserl.bench.agreement import MODES, Sample, halves

FITTED = (
    "launch_us", "pdl_launch_us", "pdl_chain_us", "trip_us", "early_trip_us", "loop_us", "round_us", "barrier_us",
    "shared_step_us", "cycles_instruction", "cycles_line", "cycles_shared", "cycles_warp_op", "l2_bytes_us",
    "atomic_sectors", "block_us", "pdl_block_us", "overlap",
)  # fmt: skip
OWN_MEAN = 0.5
PULL = 0.004
ROUNDS = 60


def calibrate(pairs: Sample, start: ModelConstants | None = None) -> ModelConstants:
    """The constants that fit the first half of the sample's matrices best, to three digits."""
    begin = start or ModelConstants()
    fitted, _ = halves(pairs.matrices())
    chosen = np.isin(pairs.matrix, fitted)
    _, group = np.unique(pairs.matrix[chosen], return_inverse=True)
    sizes = np.bincount(group)
    origin = np.log([getattr(begin, name) for name in FITTED])

    def misses(logs: np.ndarray) -> np.ndarray:
        constants = _with(begin, np.exp(logs))
        parts = []
        for mode in MODES:
            off = np.log(pairs.modelled_us(mode, constants)[chosen] / pairs.measured_us[mode][chosen])
            parts.append(off - OWN_MEAN * (np.bincount(group, off) / sizes)[group])
        parts.append(PULL * np.sqrt(chosen.sum()) * (logs - origin))
        return np.concatenate(parts)

    found = least_squares(misses, origin, loss="soft_l1", f_scale=0.2, max_nfev=ROUNDS)
    return _with(begin, np.array([float(f"{value:.3g}") for value in np.exp(found.x)]))


def _with(base: ModelConstants, values: np.ndarray) -> ModelConstants:
    changed: dict[str, Any] = {name: float(value) for name, value in zip(FITTED, values, strict=True)}
    return replace(base, **changed)
