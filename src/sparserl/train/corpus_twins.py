"""Near-duplicates: has nearly the same code been seen before?

A file is the set of its runs of WINDOW characters, blanks and comments left out. A MinHash signature estimates how much
two sets share (Jaccard): the run's hash picks one of BINS bins and the smallest hash in each is kept, so one pass over
the file is enough. Files that agree on one band of ROWS bins are compared on all; at similarity 0.7 a pair is missed
once in some thousand. A renaming of every variable is not seen.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from sparserl.train.corpus_files import bare

WINDOW = 32
BINS = 128
ROWS = 4
BASE = 0x9E3779B97F4A7C15
"""odd, so that it has an inverse modulo 2**64 and a window's hash is a difference of two prefix sums"""
Hashes = NDArray[np.uint64]


def signature(text: str) -> Hashes:
    """The smallest hash in each bin.  # (BINS,)"""
    data = np.frombuffer(bare(text).encode().ljust(WINDOW, b"\0"), np.uint8).astype(np.uint64)
    prefix = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(data * _powers(BASE, len(data)), out=prefix[1:])
    many = len(data) - WINDOW + 1
    runs = (prefix[WINDOW:] - prefix[:-WINDOW]) * _powers(pow(BASE, -1, 1 << 64), many)  # modulo 2**64
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        runs = (runs ^ (runs >> np.uint64(shift))) * np.uint64(factor)
    runs ^= runs >> np.uint64(33)
    lowest = np.full(BINS, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(lowest, (runs % np.uint64(BINS)).astype(np.intp), runs)
    return _fill_empty(lowest)


def _powers(base: int, count: int) -> Hashes:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


def _fill_empty(lowest: Hashes) -> Hashes:
    """A bin that no run fell into takes the next one's: two short files would else agree on their empty bins."""
    full = np.flatnonzero(lowest != np.iinfo(np.uint64).max)
    return np.asarray(lowest[full[np.searchsorted(full, np.arange(BINS)) % len(full)]])


class Twins:
    """The files seen so far."""

    def __init__(self, similarity: float) -> None:
        self.similarity = similarity
        self._names: list[str] = []
        self._signatures: list[Hashes] = []
        self._bands: dict[tuple[int, bytes], list[int]] = {}
        self._exact: dict[bytes, str] = {}

    def add(self, name: str, text: str) -> tuple[str, str]:
        """('', '') and the file is remembered; or why not ('duplicate', 'near duplicate') and whose twin it is."""
        digest = hashlib.sha256(bare(text).encode()).digest()
        if digest in self._exact:
            return "duplicate", self._exact[digest]
        own = signature(text)
        bands = [(i, own[i * ROWS : (i + 1) * ROWS].tobytes()) for i in range(BINS // ROWS)]
        for other in sorted({seen for band in bands for seen in self._bands.get(band, ())}):
            if np.mean(own == self._signatures[other]) >= self.similarity:
                return "near duplicate", self._names[other]
        for band in bands:
            self._bands.setdefault(band, []).append(len(self._names))
        self._names.append(name)
        self._signatures.append(own)
        self._exact[digest] = name
        return "", ""
