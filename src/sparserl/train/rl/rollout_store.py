"""Every rollout on disk: what was written, what was said of it, what it earned, in which round.

    store = RolloutStore(folder)
    store.drop_after(round)              # on resume: what a killed run had begun beyond its checkpoint
    store.add(round, rollouts)
    store.add_retimed(round, prompt, {text: judged})
    for round, rollout in store.rollouts(): …

`programs.jsonl` has each text once, by hash, `prompts.jsonl` each prompt once, by key; `rollouts.jsonl` and
`retimed.jsonl` name them and are written after them, so that a run killed in between loses the line it was writing and
no more. Tokens and their log-probabilities, most of the bytes, are stored only where asked for (`tokens`); without
them a rollout comes back with none.

A round that is broken off has no rollouts yet, and minutes of a GPU are in its verdicts: `Journal` has those as they
were heard, until a checkpoint has the round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparserl.errors import StoreError
from sparserl.store import append_jsonl, keep_jsonl, read_jsonl
from sparserl.train.assess import text_sha
from sparserl.train.rl.nouns import (
    Judged,
    Prompt,
    Rollout,
    from_record,
    judged_from_record,
    judged_to_record,
    prompt_from_record,
    prompt_key,
    prompt_to_record,
    to_record,
)

PROGRAMS, PROMPTS, ROLLOUTS, RETIMED = "programs.jsonl", "prompts.jsonl", "rollouts.jsonl", "retimed.jsonl"
TOKENS = ("ids", "log_probs", "written")
JOURNAL = "heard-{}.jsonl"
"""by process"""
FOLDER = "rollouts"
"""of a run's folder"""


def open_rollouts(folder: Path) -> RolloutStore:
    """Those of a run, named by its folder or by that of the rollouts. Raises StoreError where there are none."""
    found = folder / FOLDER if (folder / FOLDER / ROLLOUTS).exists() else folder
    if not (found / ROLLOUTS).exists():
        raise StoreError(f"{folder} has no {ROLLOUTS}: name the folder of a `sparserl train rl` run.")
    return RolloutStore(found)


class RolloutStore:
    """The rollouts of one run. One writer; any number of readers."""

    def __init__(self, folder: Path, tokens: bool = False) -> None:
        self.folder, self.tokens = folder, tokens
        self._programs = {record["program"] for record in read_jsonl(folder / PROGRAMS)}
        self._prompts = {record["prompt"] for record in read_jsonl(folder / PROMPTS)}

    def add(self, round_: int, rollouts: Sequence[Rollout]) -> None:
        """Append rollouts of a round, in this order."""
        self._name([each.prompt for each in rollouts], [turn.text for each in rollouts for turn in each.turns])
        append_jsonl(self.folder / ROLLOUTS, *(self._record(round_, each) for each in rollouts))

    def add_retimed(self, round_: int, prompt: Prompt, judged: Mapping[str, Judged]) -> None:
        """Append what a retiming said, by text."""
        self._name([prompt], list(judged))
        said = {text_sha(text): judged_to_record(each) for text, each in judged.items()}
        append_jsonl(self.folder / RETIMED, {"round": round_, "prompt": prompt_key(prompt), "judged": said})

    def drop_after(self, round_: int) -> int:
        """Forget the rounds behind this one; returns how many lines that were. Texts stay: they may come again."""
        return sum(
            keep_jsonl(self.folder / name, lambda record: record["round"] <= round_) for name in (ROLLOUTS, RETIMED)
        )

    def rollouts(self) -> Iterator[tuple[int, Rollout]]:
        """All of them with their rounds, in the order they were added."""
        texts, prompts = self._texts(), self._prompt_records()
        for record in read_jsonl(self.folder / ROLLOUTS):
            turns = [{**turn, "text": self._found(texts, turn["program"], PROGRAMS)} for turn in record["turns"]]
            prompt = self._found(prompts, record["prompt"], PROMPTS)
            yield (
                record["round"],
                from_record({**dict.fromkeys(TOKENS, ()), **record, "turns": turns, "prompt": prompt}),
            )

    def retimed(self) -> Iterator[tuple[int, Prompt, dict[str, Judged]]]:
        """All retimings with their rounds, in the order they were added."""
        texts, prompts = self._texts(), self._prompt_records()
        for record in read_jsonl(self.folder / RETIMED):
            prompt = prompt_from_record(self._found(prompts, record["prompt"], PROMPTS))
            said = {self._found(texts, sha, PROGRAMS): judged_from_record(j) for sha, j in record["judged"].items()}
            yield record["round"], prompt, said

    def _record(self, round_: int, rollout: Rollout) -> dict[str, Any]:
        record = {"round": round_, **to_record(rollout), "prompt": prompt_key(rollout.prompt)}
        record["turns"] = [
            {"program": text_sha(turn["text"]), **{k: v for k, v in turn.items() if k != "text"}}
            for turn in record["turns"]
        ]
        return record if self.tokens else {k: v for k, v in record.items() if k not in TOKENS}

    def _name(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:
        """Write down what has no line yet."""
        named = {text_sha(text): text for text in texts}
        new = {sha: text for sha, text in named.items() if sha not in self._programs}
        if new:
            append_jsonl(self.folder / PROGRAMS, *({"program": sha, "text": text} for sha, text in new.items()))
            self._programs |= new.keys()
        keyed = {prompt_key(prompt): prompt for prompt in prompts}
        unknown = {key: prompt for key, prompt in keyed.items() if key not in self._prompts}
        if unknown:
            records = ({"prompt": key, **prompt_to_record(prompt)} for key, prompt in unknown.items())
            append_jsonl(self.folder / PROMPTS, *records)
            self._prompts |= unknown.keys()

    def _texts(self) -> dict[str, str]:
        return {record["program"]: record["text"] for record in read_jsonl(self.folder / PROGRAMS)}

    def _prompt_records(self) -> dict[str, dict[str, Any]]:
        return {record.pop("prompt"): record for record in read_jsonl(self.folder / PROMPTS)}

    def _found(self, named: Mapping[str, Any], key: str, file: str) -> Any:
        if key not in named:
            raise StoreError(f"{self.folder / file} has no line '{key}', which a rollout names. Restore the file.")
        return named[key]


class Journal:
    """What a referee said since the last checkpoint, on disk as it is heard, with the round that it was heard in.

    A round that is played again is told it again, each answer once: what was judged twice has two. One writer.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.path, self.round = folder / JOURNAL.format(rank), 0
        self._judged: dict[tuple[int, str, str], deque[Judged]] = {}
        self._retimed: dict[tuple[int, str, tuple[str, ...]], deque[dict[str, Judged]]] = {}
        for record in read_jsonl(self.path):
            round_, key = record["round"], record["prompt"]
            said = {text: judged_from_record(each) for text, each in record["judged"].items()}
            if "raced" in record:
                self._retimed.setdefault((round_, key, tuple(record["raced"])), deque()).append(said)
                continue
            for text, judged in said.items():
                self._judged.setdefault((round_, key, text), deque()).append(judged)

    def judged(self, key: str, texts: Sequence[str], take: bool = True) -> dict[str, Judged]:
        """What was said of these texts on the prompt of this key, in this round. take: it is not told again."""
        there = {text: said for text in dict.fromkeys(texts) if (said := self._judged.get((self.round, key, text)))}
        return {text: said.popleft() if take else said[0] for text, said in there.items()}

    def retimed(self, key: str, raced: Sequence[str]) -> dict[str, Judged] | None:
        """What the retiming of just these texts came to. It is not told again."""
        said = self._retimed.get((self.round, key, tuple(raced)))
        return said.popleft() if said else None

    def hear(self, key: str, judged: Mapping[str, Judged], raced: Sequence[str] | None = None) -> None:
        """Write down an answer. raced: the texts of a retiming, which may have said nothing of some."""
        record: dict[str, Any] = {"round": self.round, "prompt": key}
        record |= {"judged": {text: judged_to_record(each) for text, each in judged.items()}}
        append_jsonl(self.path, record if raced is None else {**record, "raced": list(raced)})

    def drop_before(self, round_: int) -> None:
        """A checkpoint has the rounds before this one."""
        if keep_jsonl(self.path, lambda record: record["round"] >= round_) and not read_jsonl(self.path):
            self.path.unlink()
