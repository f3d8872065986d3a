"""The table of a benchmark for a README, with its picture where there is one, between the markers of `digest`.

`python -m sparserl.bench goals results/NAME --into README.md` puts it there; `runs/bench.sh … report` does so for
results/bench.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sparserl.bench import archive
from sparserl.bench.digest import BEGIN, END, figure
from sparserl.bench.figures import Standing, groups, standings, summary
from sparserl.bench.tables import GROUPS, Record, problems

RECORDS, PICTURE = "bench", "picture.svg"
NOTE = "`over CSR`, `won` (by more than 2 %) and `lowest` (the worst matrix, 0 where one failed) are in solver mode."


def block(folder: Path, beside: Path) -> str:
    """All that belongs between the markers of a file, of the records in a folder. beside: the file's own folder."""
    records = archive.read(folder, RECORDS)
    about: Record = next((r for r in reversed(records) if r["kind"] == "about"), {})
    picture = folder / PICTURE
    drawn = Path(os.path.relpath(picture, beside)).as_posix() if picture.is_file() else ""
    return markdown(standings(records), about, drawn)


def markdown(found: Sequence[Standing], about: Record, picture: str = "") -> str:
    """Groups of held-out matrices down, problems across, between the markers; what training saw comes last."""
    names = problems(found)  # type: ignore[arg-type]  # it reads `problem` alone
    chained = {s.problem for s in found if s.mode == "chain"}
    head = ["matrices", "count"]
    for first, problem in enumerate(names):
        head += [problem.removesuffix(" row row")] + ["chain"] * (problem in chained)
        head += ["over CSR", "won", "lowest"] * (not first)
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for title, members in _rows(found):
        count, cells = 0, []
        for first, problem in enumerate(names):
            here = [s for s in members if s.problem == problem]
            solver = summary([s for s in here if s.mode == "solver"])
            cells.append(figure(solver.speedup.value if solver.speedup else None))
            if problem in chained:
                chain = summary([s for s in here if s.mode == "chain"]).speedup
                cells.append(figure(chain.value if chain else None))
            if not first:
                count = solver.count + solver.failed
                won = "–" if solver.wins is None else f"{100 * solver.wins:.0f} %"
                cells += [figure(solver.over_csr.value if solver.over_csr else None), won, figure(solver.worst)]
        lines.append("| " + " | ".join([title, str(count), *cells]) + " |")
    said = (
        f"Speed-up over the best cuSPARSE variant in solver mode, geometric means, {about.get('policy')} with "
        f"{about.get('candidates')} candidates on {about.get('device')}:"
    )
    drawn = [f"![Speed-up of every matrix by structure class]({picture})", ""] if picture else []
    return "\n".join([BEGIN, *drawn, said, "", *lines, "", NOTE, END])


def _rows(found: Sequence[Standing]) -> list[tuple[str, list[Standing]]]:
    held = [s for s in found if s.headline]
    rows = [(group.title, [s for s in held if group.holds(s)]) for group in GROUPS]
    solver = [s for s in found if s.mode == "solver"]
    seen = {s.matrix for title, members in groups(solver) if title == "trained on" for s in members}
    rows.append(("trained on", [s for s in found if s.matrix in seen]))
    return [(title, members) for title, members in rows if members]
