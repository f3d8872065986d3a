"""What docs/peers.md says of programs as peers is so."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from sparserl.bench import matrices
from sparserl.bench.peer_command import PLACES, parse_peer
from sparserl.bench.peers import Subject
from sparserl.records import Problem

PAGE = (Path(__file__).parents[1] / "docs" / "peers.md").read_text(encoding="utf-8")


def test_the_shortest_peer_of_the_page_is_timed_and_verified(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    option = re.search(r"`--peer '(mine=python mine\.py [^']*)'`", PAGE)
    assert found and option
    (tmp_path / "mine.py").write_text(found[1])
    program = f"{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'mine.py'))}"
    peer = parse_peer(option[1].replace("python mine.py", program))
    (entry,) = matrices.entries(["family:uniform,rows=90,columns=80,per_row=5,seed=3"])
    (reading,) = peer.measure(Subject("a", entry.load(), Problem(), ("solver",)))
    assert reading.verified and not reading.fault and reading.timing is not None and reading.timing.rounds == 5


def test_the_page_names_every_place_that_a_command_may_name() -> None:
    named = {
        word for row in re.findall(r"^\| (`\{.*?) \|", PAGE, re.MULTILINE) for word in re.findall(r"\{(\w+)\}", row)
    }
    assert named == set(PLACES)
