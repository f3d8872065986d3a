"""The rooms of the package: an import may only point down, and the referee doesn't know the player."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "sparserl"

# The floor of every module or folder of the package. A module imports from its own floor or from one below.
FLOORS: dict[str, int] = {
    **dict.fromkeys(("errors", "records", "values", "version", "store", "lifetime", "shares", "phases"), 0),
    **dict.fromkeys(("matrix", "reading", "suitesparse", "features", "families", "value_order"), 1),
    **dict.fromkeys(("evaluation", "splits"), 1),
    "layouts": 2,
    # the nouns between a program and a machine (Job, Binary, the Backend Protocol) hold no machine themselves
    "backends.backend": 2,
    **dict.fromkeys(("lexer", "outline", "vocabulary", "expression", "program", "assemble"), 3),
    **dict.fromkeys(("screen", "screen_pointers", "screen_rules"), 3),
    "recipes": 3,
    "report.source": 3,
    "backends": 4,
    **dict.fromkeys(("judge", "policy"), 5),
    "policies": 1,
    **dict.fromkeys(("vectors", "engine", "operator", "srl", "findings", "search", "referee", "proposals", "tune"), 6),
    **dict.fromkeys(("pieces", "report.notebook"), 6),
    **dict.fromkeys(("train", "agents", "bench", "report", "doctor", "display"), 7),
    **dict.fromkeys(("cli", "__main__", "__init__"), 8),
}

# Who may not import whom, whatever the floor.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "judge": ("policy",),
    "policy": ("judge", "backends"),
    "recipes": ("judge", "policy"),
    "backends": ("layouts", "program", "screen", "assemble", "recipes"),
    "operator": ("judge", "policy", "recipes", "tune"),
    "engine": ("judge", "policy", "recipes", "tune"),
    "srl": ("judge", "policy", "recipes", "tune"),
    "search": ("judge", "policy", "backends"),
    "findings": ("judge", "policy", "backends"),
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """'judge.worker' for judge/worker.py, 'judge' for judge/__init__.py, '__init__' for the package's own."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def floor_of(module: str) -> int | None:
    while module:
        if module in FLOORS:
            return FLOORS[module]
        module = module.rpartition(".")[0]
    return None


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports anywhere in it, also inside functions and for types alone."""
    start = "sparserl."
    found: set[str] = set()
    names = {name_of(p) for p in MODULES}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name.removeprefix(start) for a in node.names if a.name.startswith(start)}
        elif isinstance(node, ast.ImportFrom) and node.module == "sparserl":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sparserl."):
            base = (node.module or "").removeprefix("sparserl.")
            # `from sparserl.backends import backend` names a module, `from sparserl.matrix import Matrix` does not
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in names else base for a in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path.name} has a relative import"
    return found


def test_every_module_has_a_floor() -> None:
    homeless = [name_of(p) for p in MODULES if floor_of(name_of(p)) is None]
    assert not homeless, f"give these a floor in tests/test_rooms.py: {homeless}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    here = name_of(path)
    floor = floor_of(here)
    assert floor is not None
    for module in sorted(imports_of(path)):
        below = floor_of(module)
        assert below is not None, f"{here} imports {module}, which has no floor"
        assert below <= floor, f"{here} (floor {floor}) imports {module} (floor {below}): an arrow may only point down"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_imports_what_it_must_not_know(path: Path) -> None:
    here = name_of(path)
    for owner, forbidden in FORBIDDEN.items():
        if here == owner or here.startswith(owner + "."):
            for module in imports_of(path):
                root = module.partition(".")[0]
                assert root not in forbidden, f"{here} must not import {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
