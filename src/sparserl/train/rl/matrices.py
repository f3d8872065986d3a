"""The matrix of a prompt: one that may train, or one of the evaluation, by the list of its split."""

from __future__ import annotations

from pathlib import Path

from sparserl import splits
from sparserl.matrix import Pattern
from sparserl.train.cases import from_source
from sparserl.train.rl.nouns import Prompt

EVALUATION = "evaluation"
"""in a prompt's source: the split whose list has the matrix"""


def pattern_of(prompt: Prompt, folder: Path | None = None) -> Pattern:
    """Make or read it; `folder` has the real ones. Nothing may be learnt from what comes through here."""
    split = prompt.source.get(EVALUATION)
    if split is None:
        return from_source(prompt.case, prompt.source).load(folder)
    return next(case for case in splits.cases(split) if case.name == prompt.case).load(folder)
