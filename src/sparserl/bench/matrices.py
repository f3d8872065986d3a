"""What `sparserl bench --matrices` may name, as Entries that are read or made when their turn comes.

    DIR               every .mtx, .mtx.gz and .npz in it, small files first
    FILE.mtx(.gz)     one matrix
    LIST              a text file: a path, a name or a spec a line, also `NAME = SPEC`; '#' begins a comment
    evaluation        the evaluation list; also a split: train, dev, seen, unseen, real
    NAME              a matrix of these lists; real ones are looked for in the folder that is named beside it
    family:NAME,k=v,seed=N      a synthetic matrix; suitesparse:Group/Name   a downloaded one

A pattern that is on a list is known by its fingerprint, whatever its file is called, so that a matrix that trained the
policy is never shown as one that tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sparserl import splits
from sparserl.errors import MatrixError
from sparserl.evaluation import Case, evaluation_list
from sparserl.families import Spec, values_for
from sparserl.families.spelling import START as FAMILY
from sparserl.families.spelling import make_matrix, parse_spec
from sparserl.features import structure_class
from sparserl.matrix import Matrix, Pattern, as_matrix, read_matrix

ENDINGS = (".mtx", ".mtx.gz", ".npz")
DOWNLOADED = "suitesparse:"
FRESH = "fresh"
"""the split of a matrix that is on no list and that no training seed can draw"""
TRAINED = ("train", "dev")
"""splits that training or a choice has seen"""


@dataclass(frozen=True)
class Entry:
    """One matrix of a benchmark."""

    name: str
    origin: str
    """'real' or 'generated'"""
    load: Callable[[], Matrix]
    spec: Spec | None = None
    """what a generated matrix that is on no list was made from"""
    case: Case | None = None
    """what is on a list"""
    collection: str = ""
    """of a downloaded one"""

    @property
    def nonzeros(self) -> int:
        """0 where no list says it before the matrix is loaded."""
        return self.case.nonzeros if self.case else 0


@dataclass(frozen=True)
class Place:
    """Where a matrix belongs."""

    origin: str
    """'real' or 'generated': of what is listed, whatever the file is called"""
    split: str
    structure: str
    headline: bool
    """real and outside of training, or generated and unknown to training and to the work on recipes"""
    group: str
    """of one origin or family, whose matrices are alike: a file that nobody knows is a group of its own"""


def entries(wanted: Iterable[str], folder: Path | None = None) -> list[Entry]:
    """All that is named, in the order of naming, each once. `folder` holds the real matrices of the lists."""
    found: dict[str, Entry] = {}
    for text in wanted:
        for entry in _resolved(text, folder):
            there = found.setdefault(entry.name, entry)
            if there is not entry and (there.origin, there.spec) != (entry.origin, entry.spec):
                raise MatrixError(f"Two different matrices are called {entry.name!r}: rename one of them.")
    if not found:
        raise MatrixError(f"There is no matrix in {', '.join(map(repr, wanted)) or 'nothing'}.")
    return list(found.values())


def of_cases(cases: Iterable[Case], folder: Path | None) -> list[Entry]:
    """Matrices of the lists, small ones first."""
    return [_of(case, folder) for case in sorted(cases, key=lambda case: case.nonzeros)]


def place(entry: Entry, pattern: Pattern | None = None) -> Place:
    """Split, structure class and whether it may stand in a headline.

    Without the pattern it is what its list or its spec says; a file is then taken for one that nobody knows.
    """
    case = entry.case if pattern is None else _listed().get(pattern.fingerprint()[:16])
    if case is not None:
        split: str = splits.split_of(case)
        held_out = split not in TRAINED and (case.kind == "real" or case not in evaluation_list())
        group = _origin_group()[case.name] if case.kind == "real" else splits.base_family(case.family, case.params)
        return Place(case.kind, split, case.structure, held_out, group)
    split, group = FRESH, entry.collection or entry.name
    if entry.spec is not None:
        split, group = _split_of(entry.spec), splits.base_family(entry.spec.family, entry.spec.params)
    structure = "" if pattern is None else structure_class(pattern)
    return Place(entry.origin, split, structure, split not in TRAINED, group)


def _resolved(text: str, folder: Path | None) -> Iterator[Entry]:
    path = Path(text)
    if text.startswith(FAMILY):
        yield _generated(text)
    elif text.startswith(DOWNLOADED):
        collection, _, name = text.removeprefix(DOWNLOADED).rpartition("/")
        yield Entry(name, "real", lambda: as_matrix(text), collection=f"SuiteSparse {collection}")
    elif text == "evaluation" or text in splits.SPLITS:
        cases = evaluation_list() if text == "evaluation" else splits.cases(text)  # type: ignore[arg-type]
        yield from of_cases(cases, folder)
    elif path.is_dir():
        yield from (_file(file) for file in sorted(_matrix_files(path), key=lambda file: file.stat().st_size))
    elif path.is_file() and text.endswith(ENDINGS):
        yield _file(path)
    elif path.is_file():
        yield from _of_list(path, folder)
    elif text in _by_name():
        yield _of(_by_name()[text], folder)
    else:
        raise MatrixError(
            f"{text!r} is no folder, file, list, name of a listed matrix, 'evaluation', split "
            f"({', '.join(splits.SPLITS)}), {FAMILY}… or {DOWNLOADED}…"
        )


def _of_list(path: Path, folder: Path | None) -> Iterator[Entry]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise MatrixError(f"The list {path} is not a text file: {error}.") from error
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, named, spec = text.partition(" = ")
        if named and spec.startswith(FAMILY):
            yield replace(_generated(spec), name=name)
            continue
        beside = path.parent / text  # a list may travel with its files
        yield from _resolved(str(beside) if beside.exists() else text, folder)


def _generated(text: str) -> Entry:
    spec = parse_spec(text)
    return Entry(text.removeprefix(FAMILY), "generated", lambda: make_matrix(spec), spec)


def _of(case: Case, folder: Path | None) -> Entry:
    def load() -> Matrix:
        pattern = case.load(folder)
        return Matrix(pattern, values_for(pattern, case.seed))  # a product's time knows no values

    return Entry(case.name, case.kind, load, case=case)


def _file(path: Path) -> Entry:
    name = path.name
    for ending in (".gz", ".mtx", ".npz"):
        name = name.removesuffix(ending)
    return Entry(name, "real", lambda: read_matrix(path))


def _matrix_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file() and path.name.endswith(ENDINGS)]


@cache
def _by_name() -> dict[str, Case]:
    return {case.name: case for split in splits.SPLITS for case in splits.cases(split)}


@cache
def _origin_group() -> dict[str, str]:
    """By the name of a real matrix."""
    return {name: group for group, names in splits.origin_groups().items() for name in names}


@cache
def _listed() -> dict[str, Case]:
    """By the first digits of the fingerprint."""
    return {case.fingerprint: case for case in _by_name().values()}


def _split_of(spec: Spec) -> str:
    """Of a generated matrix that is on no list."""
    if splits.may_train(spec):
        return "train"
    base = splits.base_family(spec.family, spec.params)
    if base not in splits.withheld_families():
        return FRESH
    tested = {splits.base_family(case.family, case.params) for case in splits.cases("unseen")}
    return "unseen" if base in tested else "dev"
