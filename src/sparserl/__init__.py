"""SparseRL: a sparse matrix goes in; a verified, measured CUDA operator made for that matrix comes out.

    import sparserl
    op = sparserl.tune(A)          # A: SciPy, torch or CuPy sparse matrix, a path, 'suitesparse:Group/Name'
    y = op @ x                     # NumPy, torch, CuPy in → the same kind out
    op.save("a.srl"); op = sparserl.load("a.srl")

`import sparserl` itself loads next to nothing; a stage is imported when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparserl.errors import SparseRLError
from sparserl.tune import tune
from sparserl.version import VERSION

if TYPE_CHECKING:
    from sparserl.operator import Operator
    from sparserl.srl import load

__version__ = VERSION
__all__ = ["Operator", "SparseRLError", "__version__", "load", "tune"]


def __getattr__(name: str) -> Any:
    if name == "Operator":
        from sparserl.operator import Operator

        return Operator
    if name == "load":
        from sparserl.srl import load

        return load
    raise AttributeError(f"module 'sparserl' has no attribute {name!r}")
