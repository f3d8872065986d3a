"""Judging on this machine: processes that judge group after group, watched from here.

    with closing(LocalReferee(RefereeConfig(device="cuda"))) as referee:
        for which, verdicts in referee.judge([(prompt, texts), …]): …

A process that dies, or says nothing for too long, is replaced, and what it had not yet judged goes to its successor:
one text at a time, so that the next death has a culprit. The culprit alone is FAILED, also among winners that were
being timed again side by side: each is then timed by itself beside the baseline. Of winners that can't be timed again
because of a fault of the judge nothing is said, and their first times stand.

Groups of a prompt go to the process that has its matrix and its baseline while that is free; another one that has
nothing else to do measures them again.

Not covered: several threads of one caller. Groups get done while the caller asks for the next one, not in between.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from sparserl.errors import BackendError
from sparserl.records import Verdict
from sparserl.train.rl.nouns import Judged, Prompt, prompt_key, raced_texts
from sparserl.train.rl.referee_worker import Job, OpenJudge, RefereeConfig, open_judge, right

log = logging.getLogger(__name__)

CLOSE_S = 5.0
"""how long a process has to clear up behind itself"""
START_S = 300.0
"""how long a process may take to be ready"""
DEATHS = 3
"""deaths that nothing can be blamed for, one after the other, before the machine is given up"""

Request = tuple[Prompt, Sequence[str], str | None]
"""prompt, texts and incumbent of one retiming"""
Heard = Callable[[int, dict[str, Judged]], None]
"""hears (which request, its answer) of a retiming as soon as that is done"""


@dataclass
class _Task:
    """A job on its way, and what is known of it."""

    place: int
    """among the groups of one call"""
    job: Job
    finished: deque[_Task]
    """where it goes in the end"""
    judged: dict[int, Judged] = field(default_factory=dict)
    began: int | None = None
    """the text that is being judged on its own"""
    retimed: dict[str, Judged] = field(default_factory=dict)
    heard: Heard | None = None
    deaths: int = 0

    @property
    def key(self) -> str:
        return prompt_key(self.job.prompt)


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    pipe: Connection
    folder: Path
    ready: bool = False
    task: _Task | None = None
    heard: float = field(default_factory=time.monotonic)
    prompts: set[str] = field(default_factory=set)


@dataclass
class Counts:
    """What a referee has done so far."""

    judged: int = 0
    """texts that were judged by a process"""
    remembered: int = 0
    """texts whose verdict was at hand"""
    retimed: int = 0
    deaths: int = 0
    wall_s: float = 0.0
    """while something was being judged"""
    seconds: dict[str, float] = field(default_factory=dict)
    """of all processes together, by phase"""

    @property
    def per_second(self) -> float:
        return (self.judged + self.remembered) / self.wall_s if self.wall_s else 0.0

    def figures(self) -> dict[str, float]:
        """All of it by name, to be told apart from what it was a round ago."""
        plain = {name: float(getattr(self, name)) for name in ("judged", "remembered", "retimed", "deaths", "wall_s")}
        return plain | {f"{phase}_s": spent for phase, spent in self.seconds.items()}


class LocalReferee:
    """Implements `referee.Referee`. Processes start at once, in the background."""

    eager = True
    """what is asked for begins at once, whether or not the answers are looked at"""

    def __init__(self, config: RefereeConfig, opener: OpenJudge = open_judge) -> None:
        self.config, self._opener = config, opener
        self.counts = Counts()
        self._waiting: deque[_Task] = deque()
        self._crew = [self._start() for _ in range(config.places)]
        self._lost = 0

    @property
    def places(self) -> int:
        return self.config.places

    def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
        """Verdicts by group, as groups get done. The first groups are handed out before this returns."""
        finished: deque[_Task] = deque()
        tasks = []
        for place, (prompt, texts) in enumerate(groups):
            once = {text: at for at, text in reversed(list(enumerate(texts)))}
            job = Job(prompt, {at: text for text, at in sorted(once.items(), key=lambda item: item[1])})
            tasks.append(_Task(place, job, finished))
        self._enqueue(tasks)
        return ((task.place, _in_order(task, groups[task.place][1])) for task in self._done(len(tasks), finished))

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        """By text, the incumbent's too: longer, side by side with each other and the baseline; none after a fault."""
        return next(self.retime_many([(prompt, texts, incumbent)]))[1]

    def retime_many(
        self, requests: Sequence[Request], heard: Heard | None = None
    ) -> Iterator[tuple[int, dict[str, Judged]]]:
        """Several at once, as they get done: every process can have one."""
        finished: deque[_Task] = deque()
        raced = [(prompt, dict(enumerate(raced_texts(texts, best)))) for prompt, texts, best in requests]
        jobs = [Job(prompt, texts, retime=True) for prompt, texts in raced]
        self._enqueue([_Task(place, job, finished, heard=heard) for place, job in enumerate(jobs)])
        return ((task.place, dict(task.retimed)) for task in self._done(len(jobs), finished))

    def close(self) -> None:
        """All are told before anyone is waited for: a round that was given up leaves every one of them busy."""
        until_s = time.monotonic() + CLOSE_S
        for each in self._crew:
            each.pipe.close()
        for each in self._crew:
            _dismiss(each, max(0.0, until_s - time.monotonic()))
        self._crew.clear()

    # ---- jobs

    def _enqueue(self, tasks: Sequence[_Task]) -> None:
        if not self._crew:
            raise BackendError("The referee is closed. Open a new one.")
        self._waiting.extend(tasks)
        self._hand_out()

    def _done(self, count: int, finished: deque[_Task]) -> Iterator[_Task]:
        """The tasks of one call, as they finish."""
        try:
            for _ in range(count):
                began = time.monotonic()
                while not finished:
                    self._listen()
                self.counts.wall_s += time.monotonic() - began
                yield finished.popleft()
        finally:  # the caller may have lost interest: what has begun is finished and not looked at
            self._waiting = deque(task for task in self._waiting if task.finished is not finished)

    def _hand_out(self) -> None:
        for each in self._crew:
            if not each.ready or each.task is not None or not self._waiting:
                continue
            task = self._next_for(each)
            self._waiting.remove(task)
            each.task, each.heard = task, time.monotonic()
            each.prompts.add(task.key)
            with suppress(OSError):  # it has died; that is noticed when it is listened to
                each.pipe.send(task.job)

    def _next_for(self, process: _Process) -> _Task:
        """One whose prompt the process knows, else one that nobody knows who is free, else the last in the queue."""
        others = [each for each in self._crew if each is not process]
        busy = {each.task.key for each in others if each.task is not None}
        elsewhere = set().union(*(each.prompts for each in others)) - busy
        own = (task for task in self._waiting if task.key in process.prompts)
        new = (task for task in self._waiting if task.key not in elsewhere)
        return next(own, None) or next(new, None) or self._waiting[-1]

    # ---- messages

    def _listen(self) -> None:
        """Wait for messages, or until the time of a silent process has run out.

        Work is handed out before, not after: who hears that a group is done may have more for the process that has its
        matrix, such as its winners.
        """
        self._hand_out()
        late = min(each.heard + self._patience_s(each) for each in self._crew)
        heard = wait([each.pipe for each in self._crew], max(0.0, late - time.monotonic()))
        for each in list(self._crew):
            if each.pipe in heard:
                try:
                    message = each.pipe.recv()
                except (EOFError, OSError):
                    self._bury(each, _last_words(each))
                else:
                    each.heard = time.monotonic()
                    self._hear(each, *message)
            elif each.task is None and each.ready:
                each.heard = time.monotonic()
            elif time.monotonic() - each.heard > self._patience_s(each):
                self._bury(each, f"said nothing for {self._patience_s(each):g} s")

    def _patience_s(self, process: _Process) -> float:
        return self.config.silence_s if process.ready else START_S

    def _hear(self, process: _Process, kind: str, *said: Any) -> None:
        task = process.task
        if kind == "ready":
            process.ready = True
        elif kind == "unavailable":
            self.close()
            raise BackendError(f"The referee can't judge here: {said[0]}")
        elif kind == "fault":
            log.error("A judging process failed and is replaced: %s", said[0])
            self._bury(process, str(said[0]).strip().splitlines()[-1], fault=True)
        elif kind == "refused":
            process.task = None
            raise said[0]
        elif task is not None and kind == "began":
            task.began = said[0]
        elif task is not None and kind == "judged":
            self._settle(task, *said)
        elif task is not None and kind == "done":
            process.task, self._lost = None, 0
            self._finish(task, *said)

    def _settle(self, task: _Task, place: int, judged: Judged) -> None:
        task.judged[place] = judged
        task.began = None
        task.deaths = self._lost = 0
        if task.job.retime:
            task.retimed[task.job.texts[place]] = judged
        else:
            self.counts.judged += 1

    def _finish(self, task: _Task, answer: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
        for phase, spent in seconds.items():
            self.counts.seconds[phase] = self.counts.seconds.get(phase, 0.0) + spent
        if task.job.retime:
            task.retimed |= answer
            self.counts.retimed += len(task.retimed)
            if task.heard is not None:
                task.heard(task.place, dict(task.retimed))
        else:
            for place, judged in task.judged.items():
                if right(judged):
                    task.judged[place] = replace(judged, baseline_us=answer)
        task.finished.append(task)

    # ---- deaths

    def _bury(self, process: _Process, reason: str, fault: bool = False) -> None:
        """Replace a process; what it had goes on, less the text that is to blame. fault: the judge owned up to it."""
        task = process.task
        log.warning("A judging process is replaced: %s", reason)
        _dismiss(process, 0.0)
        self.counts.deaths += 1
        self._lost += 1
        if self._lost > max(DEATHS, len(self._crew)):
            self.close()
            raise BackendError(f"The judging processes keep dying, last: {reason}. See the log; is there memory left?")
        self._crew[self._crew.index(process)] = self._start()
        if task is None:
            return
        task.deaths += 1
        if task.job.retime and (fault or task.began is None):  # no program is to blame
            task.began = None
            if task.job.careful:
                self._finish(task, {}, {})
                return
        elif task.began is not None:
            self._settle(task, task.began, self._failed(reason))
        elif task.deaths > DEATHS:
            raise BackendError(f"The prompt {task.job.prompt.case!r} ended {DEATHS} judging processes: {reason}")
        left = {place: text for place, text in task.job.texts.items() if place not in task.judged}
        if task.job.retime and not left:
            self._finish(task, {}, {})
            return
        wanted = any(map(right, task.judged.values()))
        task.job = replace(task.job, texts=left, careful=True, baseline=wanted)
        self._waiting.appendleft(task)

    def _failed(self, reason: str) -> Judged:
        source = "gpu" if self.config.device == "cuda" else "modelled"
        return Judged(Verdict.FAILED, f"ended the process that judged it: {reason}", source=source)

    def _start(self) -> _Process:
        ours, theirs = Pipe()
        folder = Path(tempfile.mkdtemp(prefix="sparserl-referee-"))
        code = f"from sparserl.train.rl.referee_worker import serve; serve({theirs.fileno()})"
        with (folder / "said.txt").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the caller; it ends its processes itself
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        theirs.close()
        ours.send((self.config, self._opener))
        return _Process(process, ours, folder)


def _in_order(task: _Task, texts: Sequence[str]) -> list[Judged]:
    """A verdict for every text of the group, those that came twice included."""
    by_text: dict[str, Judged] = {}
    for place, judged in task.judged.items():
        by_text[texts[place]] = judged
    return [by_text[text] for text in texts]


def _dismiss(process: _Process, patience_s: float) -> None:
    """Its pipe closed, a process ends its own judge and itself; one that doesn't is killed."""
    process.pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.process.wait(patience_s)
    process.process.kill()
    process.process.wait()
    shutil.rmtree(process.folder, ignore_errors=True)


def _last_words(process: _Process) -> str:
    """How a process ended, and the last line it wrote."""
    with suppress(subprocess.TimeoutExpired):
        process.process.wait(CLOSE_S)
    said = (process.folder / "said.txt").read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
    code = process.process.poll()
    how = "closed its connection" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
    return how + (f": {said[-1]}" if said else "")
