"""Values into their slots: what `update_values` does, without packing the pattern again."""

from __future__ import annotations

import numpy as np

from sparserl.errors import LayoutError
from sparserl.records import DType, Packed
from sparserl.values import STORAGE, store, without_negative_zero


def padding_value(dtype: DType) -> np.ndarray:
    """-0.0 in the storage type, as an array of no dimensions."""
    return store(np.array([-0.0]), dtype)[0:1].reshape(())


def place_values(packed: Packed, data: np.ndarray, dtype: DType) -> np.ndarray:
    """The 'vals' buffer: numbers of the canonical CSR at their slots, rounded to the storage type; padding is -0.0.

    A number that is -0.0, or rounds to it, is stored as +0.0, because -0.0 marks padding.
    """
    if data.shape != (packed.nonzeros,):
        raise LayoutError(
            f"The 'data' of a packed matrix must hold its {packed.nonzeros} nonzeros in CSR order. Got {data.shape}."
        )
    stored = without_negative_zero(store(data, dtype), dtype)
    if packed.slot_of is None:
        return stored
    vals = np.full(packed.slots, padding_value(dtype), dtype=STORAGE[dtype])
    vals[packed.slot_of] = stored
    return vals
