"""The machines that run programs. `open_backend` is the way in; it imports only the one that is asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparserl.backends.backend import Backend

log = logging.getLogger(__name__)

NAMES = ("auto", "cuda", "sim")


def open_backend(name: str = "auto") -> Backend:
    """The backend of this name. 'auto' is cuda where a device is usable, else the simulator, with a warning.

    Raises BackendError where the one that is asked for can't be used; nothing falls back in silence.
    """
    if name not in NAMES:
        raise ValueError(f"The 'name' of a backend must be one of {', '.join(NAMES)}. Got {name!r}.")
    if name in ("auto", "cuda"):
        from sparserl.backends import cuda

        reason = cuda.why_not()
        if name == "cuda" or reason is None:
            return cuda.CudaBackend()
        log.warning("No CUDA device is usable (%s). The simulator is used; its times are modelled.", reason)
    from sparserl.backends.sim import SimBackend

    return SimBackend()
