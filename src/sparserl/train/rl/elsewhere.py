"""Whether the programs that count in `beyond` are right on other matrices too, as the simulator says.

    sparserl train beyond --out results/NAME --elsewhere      # needs no GPU and no rollouts

An operator is made for one pattern and verified on it. A program may be ahead there because it leaves out what that
pattern doesn't have, such as rows of more than 48 entries: right for its operator, but no better way to write a kernel.
So each is judged on a few small patterns of other shapes, as far as its layout admits them. What doesn't compile there
(arrays of no entries) is refused, not wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparserl.bench.archive import read_whole
from sparserl.families import Spec
from sparserl.judge.evaluate import Judge
from sparserl.records import Verdict
from sparserl.store import append_jsonl
from sparserl.train.assess import text_sha
from sparserl.train.assess_report import problem_called

ELSEWHERE = "elsewhere.jsonl"
WRONG = (Verdict.WRONG.name, Verdict.FAILED.name)

PATTERNS: Mapping[str, Spec] = {
    "short rows": Spec("uniform", 1, {"rows": 401, "columns": 907, "per_row": 3.0}),
    "rows of nine": Spec("uniform", 2, {"rows": 257, "columns": 263, "per_row": 9.0}),
    "rows of sixty": Spec("uniform", 3, {"rows": 37, "columns": 701, "per_row": 60.0}),
    "rows of three hundred": Spec("uniform", 4, {"rows": 9, "columns": 1201, "per_row": 300.0}),
    "power law": Spec("powerlaw", 5, {"rows": 301, "columns": 301, "per_row": 8.0}),
    "two long rows": Spec("longrows", 6, {"rows": 157, "columns": 999, "per_row": 5.0, "long": 2, "long_share": 0.5}),
    "empty rows": Spec("emptyrows", 7, {"rows": 331, "columns": 200, "filled": 0.3, "per_row": 12.0}),
    "band": Spec("banded", 8, {"rows": 203, "diagonals": 9, "reach": 40}),
    "stencil": Spec("stencil2d", 9, {"nx": 19, "ny": 17}),
    "tall": Spec("tall", 10, {"rows": 701, "columns": 41, "per_row": 4.0}),
    **{f"blocks of {b}": Spec("fem", 11, {"nx": 24 // b, "ny": 3, "b": b}) for b in (2, 3, 4, 6, 8)},
}


@dataclass(frozen=True)
class Elsewhere:
    """On how many other patterns a program is right, on which it is wrong, and on how many it was tried."""

    right: int
    wrong: tuple[str, ...]
    tried: int

    @property
    def holds(self) -> bool:
        """Right wherever it runs, and it does run somewhere."""
        return self.right > 0 and not self.wrong


def judged_elsewhere(programs: Iterable[tuple[str, str]], out: Path) -> Iterator[str]:
    """Judge (problem, text) pairs on all patterns, what is known left out; yields a line to show for each."""
    known = read_elsewhere(out)
    left: dict[str, list[str]] = {}
    for problem, text in programs:
        if (problem, text_sha(text)) not in known:
            left.setdefault(problem, []).append(text)
    if not left:
        return
    with Judge("sim") as judge:
        for problem, texts in left.items():
            verdicts = _verdicts(judge, problem, list(dict.fromkeys(texts)))
            for text, found in verdicts.items():
                append_jsonl(out / ELSEWHERE, {"problem": problem, "program": text_sha(text), "verdicts": found})
                counts = ", ".join(f"{name} {many}" for name, many in Counter(found.values()).most_common())
                yield f"elsewhere: {problem} {text_sha(text)}: {counts}"


def _verdicts(judge: Judge, problem: str, texts: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {text: {} for text in texts}
    for name, spec in PATTERNS.items():
        case = judge.open(spec.make(), problem_called(problem), seed=0)
        try:
            for text, outcome in zip(texts, case.judge(texts, ("solver",)), strict=True):
                found[text][name] = outcome.verdict.name
        finally:
            case.close()
    return found


def read_elsewhere(out: Path) -> dict[tuple[str, str], Elsewhere]:
    """By problem and program."""
    return {(record["problem"], record["program"]): _of(record) for record in read_whole(out / ELSEWHERE)}


def _of(record: Mapping[str, Any]) -> Elsewhere:
    verdicts: Mapping[str, str] = record["verdicts"]
    right = sum(verdict == Verdict.CORRECT.name for verdict in verdicts.values())
    return Elsewhere(right, tuple(name for name, verdict in verdicts.items() if verdict in WRONG), len(verdicts))
