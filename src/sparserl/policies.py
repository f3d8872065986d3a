"""What may stand for a policy: 'auto', 'nano' (the language model that is shipped), 'recipes', or a path.

The shipped model says in its config (`notes`, under 'problems') what it is known to write well for; 'auto' takes it for
those problems, and the recipes for others. This module is loaded by `import sparserl`, so it imports little.
"""

from __future__ import annotations

import json
from pathlib import Path

from sparserl.records import Problem

SHIPPED = Path(__file__).parent / "policy" / "nano"
NAMES = ("auto", "nano", "recipes")


def settled(name: str, problem: Problem) -> str:
    """The same, but 'nano' or 'recipes' for 'auto'."""
    if name != "auto":
        return name
    return "nano" if problem_class(problem) in problems() else "recipes"


def folder_of(name: str) -> Path:
    """Where a policy lies that is not 'recipes'."""
    return SHIPPED if name == "nano" else Path(name)


def is_policy(path: Path) -> bool:
    """Whether a language model lies there."""
    return (path / "model.safetensors").is_file()


def origin(candidate: str, policy: str) -> str:
    """Whose a candidate of this name is: 'policy' for what a language model wrote, 'recipe', or 'file'."""
    if candidate.startswith("written "):
        return "policy"
    return "recipe" if policy in NAMES else "file"


def problem_class(problem: Problem) -> str:
    """'spmv float32', 'spmm float32 row row': what was learnt for some numbers of columns is known for all."""
    if problem.op == "spmv":
        return f"spmv {problem.dtype}"
    return f"spmm {problem.dtype} {problem.b_order} {problem.c_order}"


def problems() -> tuple[str, ...]:
    """The problem classes that the shipped policy is taken for unasked; none where none is shipped."""
    try:
        notes = json.loads((SHIPPED / "config.json").read_text())["notes"]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple(notes.get("problems", ()))
