"""The driver's own memory, in the order of one stream: what torch's is elsewhere, without the seconds that torch takes.

For a process in which nothing but one backend works on the device: the judge's worker, of which a spare starts beside
every timing. What is freed stays with the process and serves the next one, until `give_back`.
"""

from __future__ import annotations

from sparserl.backends import driver
from sparserl.backends.driver import call

KEPT_BYTES = 2**62
"""what the pool keeps when nobody holds it: all"""
SPARED_BYTES = 256 << 20
"""what it keeps when a matrix is done with: enough for most, so that many small ones one after another cost nothing"""


class Pooled:
    """A piece of it, which goes back when nobody holds it. Like a torch tensor of bytes, as far as that is needed."""

    def __init__(self, pool: Pool, address: int, size_bytes: int) -> None:
        self._pool, self._address, self._size_bytes = pool, address, size_bytes

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return self._size_bytes

    def __del__(self) -> None:
        # Only noted: this may run at any moment, in the middle of a graph's capture too.
        self._pool.dead.append(self._address)


class Pool:
    """Memory on one device, allocated and freed on one stream."""

    def __init__(self, device: int, stream: int) -> None:
        self._stream = stream
        self.dead: list[int] = []
        """addresses that nobody holds any longer"""
        self._sizes: dict[int, int] = {}
        """bytes by address, of those that are not freed"""
        self._held_bytes = self._most_bytes = 0
        kept = driver.bindings().CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._pool = call("cuDeviceGetDefaultMemPool", call("cuDeviceGet", device))
        call("cuMemPoolSetAttribute", self._pool, kept, driver.bindings().cuuint64_t(KEPT_BYTES))

    def take(self, size_bytes: int) -> Pooled:
        """So many bytes. Raises BackendError where there is no room."""
        self._free()
        address = int(call("cuMemAllocAsync", size_bytes, self._stream))
        self._sizes[address] = size_bytes
        self._held_bytes += size_bytes
        self._most_bytes = max(self._most_bytes, self._held_bytes)
        return Pooled(self, address, size_bytes)

    def most_bytes(self) -> int:
        """The most that was taken and not freed at one moment since this was last asked. The driver isn't."""
        most, dead = self._most_bytes, list(self.dead)
        self._most_bytes = self._held_bytes - sum(self._sizes[address] for address in dead)
        return most

    def give_back(self) -> None:
        """To the device what nobody holds, but for `SPARED_BYTES`: others work there too."""
        self._free()
        call("cuStreamSynchronize", self._stream)
        call("cuMemPoolTrimTo", self._pool, SPARED_BYTES)

    def _free(self) -> None:
        while self.dead:
            address = self.dead.pop()
            call("cuMemFreeAsync", address, self._stream)
            self._held_bytes -= self._sizes.pop(address)
