"""Who proposes candidates to `tune`: recipes, a language model turn after turn, or files of a user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparserl import policies
from sparserl.errors import SparseRLError
from sparserl.findings import Candidate, Findings
from sparserl.program import header
from sparserl.records import Verdict
from sparserl.search import choose

if TYPE_CHECKING:
    from sparserl.backends.backend import Device
    from sparserl.matrix import Pattern
    from sparserl.policy.feedback import Told
    from sparserl.search import Rewrite
    from sparserl.tune import Settings


def first_candidates(
    pattern: Pattern, settings: Settings, machine: Callable[[], Device]
) -> tuple[list[Candidate], Rewrite | None]:
    """The first ones, and who makes more of them once they are judged.

    machine: says what they are for, once it may be used.
    """
    if settings.policy == "recipes":
        return recipe_candidates(pattern, settings, machine()), None
    if not policies.is_policy(settings.folder):
        return own_programs(settings.folder)[: settings.candidates], None
    import sparserl.policy.writer  # noqa: F401  # torch takes seconds, and the judge may be starting meanwhile

    turns = Turns(settings.folder, pattern, settings, machine())
    return turns.first(), turns.again if settings.turns > 1 else None


def recipe_candidates(pattern: Pattern, settings: Settings, device: Device) -> list[Candidate]:
    """The cheapest by the cost model, of several layouts."""
    from sparserl.recipes import candidates

    ranked = candidates(pattern, settings.problem, device.sms, settings.mode)
    chosen = choose(ranked, settings.candidates)
    return [Candidate(r.name, str(r.layout), dict(r.params), r.text, r.simplicity, r.cost_us) for r in chosen]


class Turns:
    """What a language model writes for this matrix, turn after turn.

    All turns together write `candidates` programs, each turn an equal share, the first ones one more where that does
    not divide: 16 in three turns are 6, 5 and 5. A later turn rewrites the best programs of all turns so far: the
    fastest right ones first, then those that failed, and round again where there are fewer than its share. What can't
    gain by it, or no longer fits the context, is not rewritten (`policy/feedback`). A text that was written before is
    not judged again, so there may be fewer candidates than were asked for.
    """

    def __init__(self, folder: Path, pattern: Pattern, settings: Settings, device: Device) -> None:
        from sparserl.pieces import pieces_on
        from sparserl.policy.rewriting import Rewriter
        from sparserl.policy.writer import warm_writer

        on_gpu = device.backend == "cuda"
        writer = warm_writer(folder, "cuda" if on_gpu else "cpu", pieces_on)
        machine = writer.machine or (device.name if on_gpu else "sim")
        self._rewriter = Rewriter(
            writer, pattern, settings.problem, machine=machine, seed=settings.seed, mode=settings.mode
        )
        self._left, self._turns = settings.candidates, settings.turns

    def first(self) -> list[Candidate]:
        texts = self._rewriter.write(self._share())
        return [_candidate(f"written {place}", text) for place, text in enumerate(texts, 1)]

    def again(self, found: Findings) -> list[Candidate]:
        """The next turn's; none after the last."""
        if not self._turns:
            return []
        places = {c.text: place for place, c in enumerate(found.candidates, 1)}
        made = self._rewriter.rewrite([(c.text, _told(c)) for c in found.ranked()], self._share())
        return [
            _candidate(f"written {place} after {places[parent]}", text)
            for place, (text, parent) in enumerate(made.items(), len(places) + 1)
        ]

    def _share(self) -> int:
        """Programs of the next turn."""
        share = -(-self._left // self._turns)
        self._left, self._turns = self._left - share, self._turns - 1
        return share


def _told(candidate: Candidate) -> Told:
    """What its writer hears of it."""
    from sparserl.policy.feedback import Told

    c = candidate
    return Told(Verdict[c.verdict.upper()], c.reason, c.speedup, c.floor_share, c.registers, c.sectors)


def _candidate(name: str, text: str) -> Candidate:
    """A program that no recipe made: its layout is what it says, and how it is launched tells it from others."""
    lines, _ = header(text)
    layout, launches = (" ".join(said for key, said in lines if key == asked) for asked in ("layout", "launch"))
    return Candidate(name, layout, {"launch": launches} if launches else {}, text, text.count("\n"))


def own_programs(path: Path) -> list[Candidate]:
    """A user's own programs, as they are. One that can't be read is judged so, like any other."""
    files = sorted(path.glob("*.cu")) if path.is_dir() else [path]
    if not files:
        raise SparseRLError(f"There is no program (*.cu) in {path}. Give a file, or a folder that holds some.")
    found = []
    for file in files:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SparseRLError(f"Can't read the program {file}: {error}.") from error
        found.append(_candidate(file.stem, text))
    return found
