"""The simulator's device memory: NumPy bytes between two guard zones of a known pattern, 256-byte aligned."""

from __future__ import annotations

import hashlib

import numpy as np

from sparserl.errors import BackendError

GUARD_BYTES = 512
GUARD_BYTE = 0xA5
ALIGNMENT = 256


class SimMemory:
    """One allocation. `data` is what kernels may touch; the guards around it are not."""

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < 0:
            raise BackendError(f"The size of a buffer must be at least 0 bytes. Got {size_bytes}.")
        whole = np.empty(size_bytes + 2 * GUARD_BYTES + ALIGNMENT, dtype=np.uint8)
        start = (-(whole.ctypes.data + GUARD_BYTES)) % ALIGNMENT
        self._whole = whole[start : start + size_bytes + 2 * GUARD_BYTES]
        self.data = self._whole[GUARD_BYTES : GUARD_BYTES + size_bytes]
        self._before = self._whole[:GUARD_BYTES]
        self._after = self._whole[GUARD_BYTES + size_bytes :]
        self._before[:] = GUARD_BYTE
        self._after[:] = GUARD_BYTE

    @property
    def pointer(self) -> int:
        return int(self._whole.ctypes.data) + GUARD_BYTES

    @property
    def size_bytes(self) -> int:
        return int(self.data.size)

    def guards_intact(self) -> bool:
        return bool((self._before == GUARD_BYTE).all() and (self._after == GUARD_BYTE).all())

    def digest(self) -> str:
        return hashlib.blake2b(self.data.data, digest_size=16).hexdigest()

    def write(self, array: np.ndarray, first_byte: int = 0) -> None:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if first_byte + raw.size > self.size_bytes:
            raise BackendError(f"An array of {raw.size} bytes does not fit into a buffer of {self.size_bytes}.")
        self.data[first_byte : first_byte + raw.size] = raw

    def view(self, dtype: np.dtype, count: int) -> np.ndarray:
        """The first `count` numbers, not copied."""
        size = np.dtype(dtype).itemsize * count
        if size > self.size_bytes:
            raise BackendError(
                f"{count} numbers of {np.dtype(dtype)} are more than a buffer of {self.size_bytes} bytes holds."
            )
        return self.data[:size].view(dtype)
