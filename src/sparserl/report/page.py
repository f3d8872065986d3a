"""The page of a benchmark: one HTML file with its style, script, plots and records inside; no network, no framework.

    sparserl report results/NAME [--beside results/OTHER …]      → results/NAME/index.html

It is made from records alone (`bench.jsonl`). Its own policy (Content-Security-Policy) forbids every request and every
script but the one inside. Without scripts all headlines, plots and tables are there; sorting and opening a matrix need
them. `single` is the same view for the one matrix of a tuning.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sparserl.bench.provenance import differing
from sparserl.errors import StoreError
from sparserl.evaluation import CLASSES
from sparserl.report import board as boards
from sparserl.report import matrix_view, peers, sections
from sparserl.report.board import Board, Entry, Record
from sparserl.report.script import SCRIPT
from sparserl.report.style import STYLE, all_at_once, hidden_modes, only_classes
from sparserl.report.words import problem_short
from sparserl.store import write_atomic
from sparserl.version import VERSION

MEASURED_LEAD = (
    "The operator and every variant of cuSPARSE were verified and timed side by side in one run, in turns, after "
    "cuSPARSE’s preprocessing; it is never a candidate of ours."
)
MODELLED_LEAD = "Every operator was verified, and its time was counted by the simulator beside that of a plain program."


def write(folder: Path, today: datetime.date | None = None, beside: Sequence[Path] = ()) -> Path:
    """Make FOLDER/index.html from FOLDER/bench.jsonl and say where it is.

    beside: folders of the same benchmark with other numbers of candidates; their cost of tuning is shown too.
    """
    path, others = folder / "index.html", [boards.read(other) for other in beside]
    write_atomic(path, page(boards.read(folder), today or datetime.date.today(), others).encode())
    return path


def page(board: Board, today: datetime.date, beside: Sequence[Board] = ()) -> str:
    """The whole page."""
    title = f"SparseRL benchmark on {_device(board)}"
    mixed = [other for other in beside if other.modelled != board.modelled]
    if mixed:
        raise StoreError("Measured and modelled times can't stand side by side: choose benchmarks of one kind.")
    parts = "".join(sections.section(board, problem, beside) for problem in board.problems)
    return _whole(
        board,
        title,
        f"{_head(board)}{_switches(board)}<main>{parts}</main>{_made(board, today)}{_dialog()}{_views(board)}",
    )


def single(records: Iterable[Record]) -> str:
    """The page of one matrix: what its view in a benchmark shows, with nothing around it."""
    board = boards.board(records)
    first = board.entries[0]
    warning = _warning(board)
    results = [matrix_view.result(e, board.modes_of(e.problem), board.modelled) for e in board.entries]
    inner = matrix_view.structure(first) + "".join(f'<section class="part">{each}</section>' for each in results)
    brow = f'<div class="brow"><b>SparseRL</b>{_pills(board)}</div>'
    head = f"<header>{brow}<h1>{escape(first.matrix)}</h1>{warning}</header>"
    return _whole(board, f"{first.matrix} · SparseRL", f'{head}<main class="alone">{inner}</main>{_made(board, None)}')


def _whole(board: Board, title: str, body: str) -> str:
    style = STYLE + hidden_modes(board.modes) + only_classes(list(CLASSES))
    plain = f"<noscript><style>{all_at_once(board.modes)}</style></noscript>"
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    policy += f"script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style>{plain}</head>\n'
        f'<body>{body}<div id="tip" role="tooltip" hidden></div>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _device(board: Board) -> str:
    return str(board.about.get("device") or "an unnamed device")


def _pills(board: Board) -> str:
    about = board.about
    facts = [_device(board), about.get("date")]
    if about.get("policy"):
        facts.append(f"policy {about['policy']}")
    if about.get("candidates"):
        facts.append(f"{about['candidates']} candidates")
    return "".join(f'<span class="pill">{escape(str(fact))}</span>' for fact in facts if fact)


def _head(board: Board) -> str:
    matrices = len({e.matrix for e in board.entries})
    against, how = ("plain CSR", MODELLED_LEAD) if board.modelled else ("cuSPARSE", MEASURED_LEAD)
    return (
        f'<header><div class="brow"><b>SparseRL benchmark</b>{_pills(board)}</div>'
        f"<h1>A kernel written for each matrix, against {against}</h1>"
        f'<p class="lead">{matrices} matrices. {how}</p>{_other_peers(board)}'
        f"{_warning(board)}</header>"
    )


def _other_peers(board: Board) -> str:
    """Who else was timed, and who could not be."""
    there, missing = peers.took_part(board)
    said = f"Other peers, each timed in its own way: {', '.join(there)}." if there else "There are no other peers here."
    reasons = {why: ", ".join(name for name in missing if missing[name] == why) for why in missing.values()}
    said += f" Missing: {'; '.join(f'{names} ({why})' for why, names in reasons.items())}." if missing else ""
    return f'<p class="lead others">{escape(said)}</p>'


def _warning(board: Board) -> str:
    made = ""
    if board.modelled:
        made = '<p class="warning"><b>Modelled, not measured.</b> These times were counted by the simulator on a '
        made += "machine without a GPU. They rank programs; they are no claim about any device.</p>"
    mixed = "; ".join(f"{name} {' and '.join(values)}" for name, values in differing(board.abouts).items())
    if mixed:
        made += f'<p class="warning"><b>Several versions.</b> Not all was measured with one: {escape(mixed)}.</p>'
    return made


def _switches(board: Board) -> str:
    made = '<nav class="bar-of-switches" aria-label="What is shown"><div>'
    if len(board.problems) > 1:
        made += f'<span class="switch-name">Problem</span>{problem_switch(board)}'
    if len(board.modes) > 1:
        first = board.modes_of(board.problems[0])[0]
        buttons = "".join(_button("mode", mode, mode, mode == first) for mode in board.modes)
        made += f'<span class="switch-name">Mode</span>{_group("Mode", buttons)}'
    return f'{made}<span class="jump"><a href="#made">How it was made</a></span></div></nav>'


def problem_switch(board: Board) -> str:
    """A button a problem."""
    buttons = "".join(_button("problem", str(at), problem_short(p), not at) for at, p in enumerate(board.problems))
    return _group("Problem", buttons)


def _group(name: str, buttons: str) -> str:
    return f'<span class="switch" role="group" aria-label="{name}">{buttons}</span>'


def _button(group: str, value: str, words: str, pressed: bool) -> str:
    state = "true" if pressed else "false"
    return (
        f'<button type="button" data-{group}-switch="{escape(value)}" aria-pressed="{state}">{escape(words)}</button>'
    )


def _dialog() -> str:
    return (
        '<dialog aria-labelledby="view-name"><div class="view-head"><h2 id="view-name"></h2>'
        f"{_step('data-step=-1', 'Previous matrix', '‹')}{_step('data-step=1', 'Next matrix', '›')}"
        f'{_step("data-close", "Close", "×")}</div><div class="inner"></div></dialog>'
    )


def _step(action: str, label: str, sign: str) -> str:
    return f'<button type="button" class="step" {action} aria-label="{label}">{sign}</button>'


def _views(board: Board) -> str:
    """The view of every matrix, compressed: a browser unpacks the one that is opened, and loads the page fast."""
    by_name: dict[str, list[Entry]] = {}
    for entry in board.entries:
        by_name.setdefault(entry.matrix, []).append(entry)
    switch = problem_switch(board) if len(board.problems) > 1 else ""
    made = ""
    for name, entries in by_name.items():
        inner = matrix_view.structure(entries[0]) + switch
        for entry in sorted(entries, key=lambda e: board.problems.index(e.problem)):
            at = board.problems.index(entry.problem)
            shown = matrix_view.result(entry, board.modes_of(entry.problem), board.modelled)
            inner += f'<section class="part" data-part="{at}">{shown}</section>'
        made += f'<script type="text/plain" data-matrix="{escape(name)}">{pack(inner)}</script>\n'
    return made


def pack(text: str) -> str:
    """Deflated (zlib) and in base64."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _made(board: Board, today: datetime.date | None) -> str:
    known: dict[str, dict[str, None]] = {}  # by name, what the runs say, each once
    for about in board.abouts:
        for name, value in about.items():
            if value not in (None, "", {}, []):
                known.setdefault(name, {})[_said(value)] = None
    commands = "\n".join(known.pop("command", ()))
    rows = [
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape('; '.join(said))}</dd>" for name, said in known.items()
    ]
    on = f" on {today.isoformat()}" if today else ""
    return (
        '<footer id="made"><h2>How it was made</h2><p class="quiet"><b>Solver</b>: a plain kernel rewrites x between '
        "products, its own time taken off. <b>Chain</b>: products back to back, each reading what the last one wrote. "
        "<b>Cold</b>: the L2 is emptied before each. Times are medians of a product in microseconds; means are "
        "geometric. <b>Break-even</b>: seconds of tuning over what a product saves. <b>Floor</b>: the least a program "
        f"could take, an empty kernel or its packed bytes at full bandwidth.</p><dl>{''.join(rows)}</dl>"
        f"{f'<pre>{escape(commands)}</pre>' if commands else ''}"
        f'<p class="quiet">Page made{on} by sparserl {escape(VERSION)} from the records in its folder.</p></footer>'
    )


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
