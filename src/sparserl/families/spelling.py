"""A synthetic matrix as a user writes it: 'family:NAME,key=value…,seed=N'."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparserl.errors import MatrixError
from sparserl.families import FAMILIES, Spec, values_for
from sparserl.matrix import Matrix

START = "family:"
NONZEROS, PER_ROW = 1e5, 10.0
"""about, of a family without settings"""


def parse_spec(text: str) -> Spec:
    """The Spec of 'family:NAME,key=value…,seed=N'; without settings, one of about 100 thousand nonzeros."""
    family, *settings = text.removeprefix(START).split(",")
    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not (key and equals and value):
            raise MatrixError(f"A setting of {START}{family} must be key=value. Got {setting!r} in {text!r}.")
        params[key] = _number(value)
    seed = params.pop("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise MatrixError(f"The seed of {text!r} must be a whole number from 0. Got {seed!r}.")
    if family not in FAMILIES:
        raise MatrixError(f"There is no family {family!r}. Families: {', '.join(sorted(FAMILIES))}.")
    return Spec(family, seed, params or FAMILIES[family].plan(np.random.default_rng(seed), NONZEROS, PER_ROW))


def make_matrix(spec: Spec) -> Matrix:
    """The matrix, with values that its seed decides."""
    try:
        pattern = spec.make()
        return Matrix(pattern, values_for(pattern, spec.seed))
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        # the families check few of their settings; what they stumble over is a setting
        raise MatrixError(f"'{spec}' can't be made ({error}). `sparserl families` lists the settings.") from error


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
