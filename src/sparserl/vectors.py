"""What a user may multiply: NumPy, torch and CuPy arrays, checked against what an operator takes.

A device array (torch, CuPy) must fit exactly: dtype, shape, device, order, alignment. To convert it would cost memory
and time behind the user's back, so the error says how to. NumPy arrays are rounded to the operator's dtype and copied
where they must be. torch and CuPy are never imported here unless the user already holds one of their arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from sparserl.errors import OperatorError
from sparserl.records import DType, Order

Kind = Literal["numpy", "torch", "cupy"]
Array = np.ndarray[Any, np.dtype[Any]]
ALIGNMENT = 16
"""bytes: the widest single load a kernel may use"""


@dataclass(frozen=True)
class Slot:
    """One side of the product, x or y, as the operator needs it."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    order: Order = "row"
    """of a matrix; a vector is both"""

    @cached_property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * {"float64": 8, "float32": 4}.get(self.dtype, 2)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """in elements"""
        if len(self.shape) == 1:
            return (1,)
        return (self.shape[1], 1) if self.order == "row" else (1, self.shape[0])

    @cached_property
    def torch_dtype(self) -> Any:
        import torch

        return getattr(torch, self.dtype)


def kind_of(x: Any) -> Kind:
    """Which library an array belongs to."""
    home = type(x).__module__.partition(".")[0]
    if home == "torch" and hasattr(x, "data_ptr"):
        return "torch"
    if home == "cupy":
        return "cupy"
    if isinstance(x, np.ndarray):
        return "numpy"
    raise OperatorError(
        f"An operator multiplies NumPy, torch or CuPy arrays. Got {type(x).__module__}.{type(x).__qualname__}; "
        "use numpy.asarray(x)."
    )


def torch_pointer(x: Any, slot: Slot, device: tuple[str, int]) -> int:
    """The address of a torch tensor that fits `slot`, or an OperatorError that says how to make it fit."""
    # an eager product is a few microseconds: every check here is one comparison of things that exist already
    if x.dtype is not slot.torch_dtype:
        raise _wrong("dtype", slot, str(x.dtype), f"{slot.name}.to(torch.{slot.dtype})")
    if x.shape != slot.shape:
        raise wrong_shape(slot, tuple(x.shape))
    place = x.device
    if (place.type, place.index or 0) != device:
        raise _wrong("device", slot, str(place), f"{slot.name}.to('{_place(device)}')", wanted=_place(device))
    strides = x.stride()
    if strides != slot.strides and not _strides_fit(strides, slot):
        raise _wrong_order(slot, f"strides {tuple(strides)}")
    return _aligned(x.data_ptr(), slot)


def cupy_pointer(x: Any, slot: Slot, device: tuple[str, int]) -> int:
    """The address of a CuPy array that fits `slot`."""
    if slot.dtype == "bfloat16":
        raise OperatorError(f"CuPy has no bfloat16: pass {slot.name} as a torch tensor, or tune with dtype='float16'.")
    if str(x.dtype) != slot.dtype:
        raise _wrong("dtype", slot, str(x.dtype), f"{slot.name}.astype('{slot.dtype}')")
    if tuple(x.shape) != slot.shape:
        raise wrong_shape(slot, tuple(x.shape))
    if device != ("cuda", int(x.device.id)):
        raise _wrong("device", slot, f"cuda:{x.device.id}", "an operator tuned for that device", wanted=_place(device))
    if not _strides_fit(tuple(s // x.itemsize for s in x.strides), slot):
        raise _wrong_order(slot, f"strides {x.strides} bytes")
    return _aligned(int(x.data.ptr), slot)


def numpy_target(out: Any, slot: Slot) -> Array:
    """A NumPy array to write into, given by the user: it must fit exactly."""
    if not isinstance(out, np.ndarray):
        raise OperatorError(f"'out' must be of the same kind as x, a NumPy array. Got {type(out).__qualname__}.")
    if slot.dtype == "bfloat16":
        raise OperatorError("NumPy has no bfloat16, so 'out' can't be one: use y = op @ x (float32), or torch tensors.")
    if str(out.dtype) != slot.dtype:
        raise _wrong("dtype", slot, str(out.dtype), f"numpy.empty({slot.shape}, '{slot.dtype}')")
    if out.shape != slot.shape:
        raise wrong_shape(slot, out.shape)
    if not _strides_fit(tuple(s // out.itemsize for s in out.strides), slot) or not out.flags.writeable:
        order = "" if len(slot.shape) == 1 else f", order='{'C' if slot.order == 'row' else 'F'}'"
        got = f"strides {out.strides} bytes" if out.flags.writeable else "a read-only array"
        raise _wrong_order(slot, got, f"numpy.empty({slot.shape}, '{slot.dtype}'{order})")
    return out


def numpy_real(x: Array, name: str) -> Array:
    """A NumPy array of real numbers of any type; they are rounded to the operator's dtype later."""
    if x.dtype.kind not in "fiub":
        advice = "; multiply real and imaginary part apart" if x.dtype.kind == "c" else ""
        raise OperatorError(f"{name} must hold real numbers. Got {x.dtype}{advice}.")
    return x


def no_overlap(x: int, x_slot: Slot, y: int, y_slot: Slot) -> None:
    """A kernel reads x while it writes y: they may not share memory."""
    if x < y + y_slot.size_bytes and y < x + x_slot.size_bytes and x_slot.size_bytes and y_slot.size_bytes:
        raise OperatorError(f"{y_slot.name} overlaps {x_slot.name} in memory; give 'out' an array of its own.")


@cache
def _raw_stream() -> Callable[[int], int]:
    """torch's own way to the handle of the current stream, without an object around it where it has one."""
    import torch

    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def current_stream(device: int) -> int:
    """The handle of torch's current stream on a device."""
    return _raw_stream()(device)


def stream_handle(stream: Any) -> int:
    """The raw handle of an int, a torch or CuPy stream, or anything with `__cuda_stream__` (cuda.core)."""
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    protocol: Callable[[], tuple[int, int]] | None = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    raise OperatorError(
        f"'stream' must be None, a raw handle (int), a torch.cuda.Stream, a cupy.cuda.Stream or a cuda.core Stream. "
        f"Got {type(stream).__qualname__}."
    )


def _strides_fit(strides: tuple[int, ...], slot: Slot) -> bool:
    """A stride along a dimension of length 1 (or of an empty array) means nothing."""
    if 0 in slot.shape:
        return True
    return all(n == 1 or s == t for n, s, t in zip(slot.shape, strides, slot.strides, strict=True))


def _aligned(pointer: int, slot: Slot) -> int:
    if pointer % ALIGNMENT:
        raise OperatorError(
            f"{slot.name} starts at an address that is not a multiple of {ALIGNMENT} bytes (a slice of something?), "
            f"and kernels load {ALIGNMENT} bytes at once. Pass a copy: {slot.name}.clone() in torch, .copy() in CuPy."
        )
    return pointer


def _place(device: tuple[str, int]) -> str:
    return device[0] if device[0] == "cpu" else f"{device[0]}:{device[1]}"


def _wrong(what: str, slot: Slot, got: str, advice: str, wanted: str = "") -> OperatorError:
    return OperatorError(
        f"The {what} of {slot.name} must be {wanted or slot.dtype} for this operator. Got {got}; use {advice}."
    )


def wrong_shape(slot: Slot, got: tuple[int, ...]) -> OperatorError:
    advice = ""
    if len(slot.shape) == 1 and len(got) == 2:
        advice = f"; for a matrix of {got[1]} columns use sparserl.tune(A, op='spmm', columns={got[1]})"
    elif len(slot.shape) == 2 and len(got) == 2 and got[0] == slot.shape[0]:
        advice = f"; for {got[1]} columns use sparserl.tune(A, op='spmm', columns={got[1]})"
    return OperatorError(f"The shape of {slot.name} must be {slot.shape} for this operator. Got {got}{advice}.")


def _wrong_order(slot: Slot, got: str, advice: str = "") -> OperatorError:
    order = "contiguous" if len(slot.shape) == 1 else f"{slot.order}-major and contiguous"
    advice = advice or (f"{slot.name}.contiguous()" if slot.order == "row" else f"{slot.name}.t().contiguous().t()")
    return OperatorError(f"{slot.name} must be {order} (and writable, as a target). Got {got}; use {advice}.")
