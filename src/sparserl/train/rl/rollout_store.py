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
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparserl.errors import StoreError
from sparserl.store import append_jsonl, read_jsonl, write_atomic
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
        dropped = 0
        for name in (ROLLOUTS, RETIMED):
            path = self.folder / name
            records = read_jsonl(path)
            kept = [record for record in records if record["round"] <= round_]
            dropped += len(records) - len(kept)
            if len(kept) < len(records):
                lines = (json.dumps(each, separators=(",", ":"), allow_nan=False) + "\n" for each in kept)
                write_atomic(path, "".join(lines).encode())
        return dropped

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
