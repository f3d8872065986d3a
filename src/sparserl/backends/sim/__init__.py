"""The simulator: the same CUDA source on any CPU, checked access by access, with a modelled time."""

from sparserl.backends.sim.backend import SimBackend

__all__ = ["SimBackend"]
