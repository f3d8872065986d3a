"""The frozen list of evaluation matrices: 55 real ones by name, 60 generated ones by family, parameters and seed.

The list was fixed before any kernel was timed on it and doesn't change: `evaluation.json` holds size, nonzeros and the
beginning of the fingerprint of every pattern, and `Case.load` refuses a matrix that isn't the one listed. Classes of
generated matrices are given by design, ten of each; those of real ones by `features.structure_class`. Real files are
not shipped: `load` takes the folder that has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from sparserl import families
from sparserl.errors import MatrixError
from sparserl.matrix import Pattern, read_matrix

CLASSES = ("small", "regular", "block", "random", "skewed", "extreme")


@dataclass(frozen=True)
class Case:
    """One matrix of the list."""

    name: str
    structure: str
    """its class, one of CLASSES"""
    kind: Literal["real", "generated"]
    group: str
    """where it comes from: real matrices of one collection and problem set, or the family; keep groups together"""
    rows: int
    columns: int
    nonzeros: int
    fingerprint: str
    """the first 16 digits of the pattern's fingerprint"""
    full_search: bool = False
    """one of the 24 on which every recipe is tried"""
    family: str = ""
    seed: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """As CSR in float32, the measure of what fits in the L2."""
        return 8 * self.nonzeros + 4 * self.rows

    def load(self, folder: str | Path | None = None) -> Pattern:
        """Make it, or read NAME.mtx.gz or NAME.mtx from `folder`; refused unless it is the pattern that is listed."""
        if self.kind == "generated":
            pattern = families.make(self.family, self.seed, **self.params)
        else:
            pattern = read_matrix(self._file(folder)).pattern
        if pattern.fingerprint()[:16] != self.fingerprint:
            raise MatrixError(
                f"The evaluation matrix {self.name!r} must be {self.rows} x {self.columns} with {self.nonzeros} "
                f"nonzeros and fingerprint {self.fingerprint}. Got {pattern.rows} x {pattern.columns} with "
                f"{pattern.nonzeros} and {pattern.fingerprint()[:16]}: another version of the file?"
            )
        return pattern

    def _file(self, folder: str | Path | None) -> Path:
        if folder is None:
            raise MatrixError(
                f"The evaluation matrix {self.name!r} is a real one: name the folder with {self.name}.mtx.gz."
            )
        for ending in (".mtx.gz", ".mtx"):
            path = Path(folder) / f"{self.name}{ending}"
            if path.is_file():
                return path
        raise MatrixError(
            f"The evaluation matrix {self.name!r} is not in {folder}: there is no {self.name}.mtx.gz or .mtx."
        )


@cache
def evaluation_list() -> tuple[Case, ...]:
    """All cases: real ones first, then generated ones by class."""
    text = resources.files("sparserl").joinpath("evaluation.json").read_text(encoding="utf-8")
    return tuple(Case(**entry) for entry in json.loads(text)["cases"])


def stratified(count: int = 24) -> tuple[Case, ...]:
    """The fixed selection for the full search: 8 real and 16 generated matrices over all classes and sizes."""
    chosen = tuple(case for case in evaluation_list() if case.full_search)
    if count != len(chosen):
        raise MatrixError(f"The stratified selection has {len(chosen)} matrices, fixed. Got a request for {count}.")
    return chosen
