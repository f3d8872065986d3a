"""Numbers as they are stored: rounding to the storage type and back. bfloat16 travels as uint16: NumPy has none."""

from __future__ import annotations

import numpy as np

from sparserl.records import DType

STORAGE: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}


EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""machine epsilon by type"""


def store(data: np.ndarray, dtype: DType) -> np.ndarray:
    """Round real numbers to the storage type (nearest even)."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(data, dtype=STORAGE[dtype])
    wide = np.ascontiguousarray(data, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)


def widen(stored: np.ndarray, dtype: DType) -> np.ndarray:
    """The float64 numbers that a stored array holds."""
    if dtype != "bfloat16":
        return stored.astype(np.float64)
    return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


TIMED_PERIOD = 1 << 18
"""numbers after which those of a timed x repeat"""


def timed_numbers(random: np.random.Generator, count: int, value_bytes: int) -> np.ndarray:
    """x as the clock finds it: magnitude 1/8 to 1, either sign; two-byte ones are harmless as float16 and bfloat16.

    The checks draw from here too, so that a program can't tell a timed x from a checked one.
    """
    bits = random.integers(0, 1 << 32, min(count, TIMED_PERIOD), dtype=np.uint32)
    magnitude = 0.125 + 0.875 / (1 << 31) * (bits >> np.uint32(1))
    numbers = np.where(bits & np.uint32(1), magnitude, -magnitude)
    return np.resize(numbers.astype({2: np.float16, 4: np.float32, 8: np.float64}[value_bytes]), count)


def without_negative_zero(stored: np.ndarray, dtype: DType) -> np.ndarray:
    """-0.0 marks padding in a packed value buffer, so a user's own -0.0 becomes +0.0."""
    if dtype == "bfloat16":
        return np.where(stored == 0x8000, np.uint16(0), stored)
    positive: np.ndarray = stored + STORAGE[dtype].type(0)
    return positive
