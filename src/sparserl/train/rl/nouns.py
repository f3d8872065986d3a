"""The frozen nouns of reinforcement learning: Prompt, Judged, Turn, Rollout; and a Rollout as JSON and back.

A Rollout holds all that a gradient needs (tokens, their log-probabilities when they were written, the reward of each
turn) and all that a reader needs to replay it without a machine (texts, verdicts, times).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sparserl.errors import StoreError
from sparserl.records import Problem, Verdict
from sparserl.store import content_key


@dataclass(frozen=True)
class Prompt:
    """One matrix under one problem."""

    case: str
    """the name of a `TrainingCase`"""
    source: Mapping[str, Any]
    """its source: `cases.from_source(case, source).load(folder)` makes the matrix anywhere"""
    problem: Problem
    structure: str = ""
    """structure class: regular, block, random, skewed, extreme, real …"""


@dataclass(frozen=True)
class Judged:
    """What the referee says of one program on one prompt."""

    verdict: Verdict
    reason: str = ""
    times_us: Mapping[str, float] = field(default_factory=dict)
    """by mode ('solver', 'chain'); empty unless CORRECT"""
    baseline_us: Mapping[str, float] = field(default_factory=dict)
    """the best baseline in the same process, by mode"""
    floor_us: Mapping[str, float] = field(default_factory=dict)
    """what no program can beat, by mode"""
    registers: int = 0
    sectors: int = 0
    """32-byte sectors of one product, as the simulator counts them; 0 where not counted"""
    retimed: bool = False
    """timed longer, beside the incumbent and the baseline"""
    source: str = "modelled"
    """or 'gpu'; the two are never mixed"""


@dataclass(frozen=True)
class Turn:
    """One program of an episode."""

    text: str
    judged: Judged
    reward: float
    first: int
    """place in Rollout.ids of the first token that the policy wrote in this turn"""
    last: int
    """one past its last token (<eos> included)"""


OWN, EXPLORED, VARIED = "policy", "explore", "varied"
"""who wrote a rollout: the policy, the policy after a given layout, or a mutation"""


@dataclass(frozen=True)
class Rollout:
    """One episode of one to three turns."""

    prompt: Prompt
    group: int
    """rollouts of one group share a prompt (and, in later turns, nothing else)"""
    ids: Sequence[int]
    """all tokens from '<program>' on: given ones, feedback and all turns included"""
    log_probs: Sequence[float]
    """beside ids: under the policy that wrote them (temperature 1, no mask); 0 where given"""
    written: Sequence[bool]
    """beside ids: whether the policy wrote the token; the loss is on these alone"""
    turns: Sequence[Turn]
    origin: str = OWN
    """EXPLORED where the layout was given; VARIED: no tokens, the policy didn't write it"""


def prompt_key(prompt: Prompt) -> str:
    """What tells prompts apart in caches and records: case, source and problem (a class is only a label)."""
    parts = {"case": prompt.case, "source": prompt.source, "problem": asdict(prompt.problem)}
    return content_key(parts)[:16]


def raced_texts(texts: Iterable[str], incumbent: str | None) -> list[str]:
    """What a retiming holds side by side: the texts and the best one known, each once."""
    return list(dict.fromkeys([*texts, *([incumbent] if incumbent else [])]))


def judged_to_record(judged: Judged) -> dict[str, Any]:
    """As JSON takes it; what a field is by default is left out."""
    plain = Judged(judged.verdict)
    told = {each.name: getattr(judged, each.name) for each in fields(judged)}
    kept = {name: value for name, value in told.items() if value != getattr(plain, name)}
    return {"verdict": judged.verdict.name, **{k: dict(v) if isinstance(v, Mapping) else v for k, v in kept.items()}}


def judged_from_record(record: Mapping[str, Any]) -> Judged:
    """The inverse of `judged_to_record`."""
    return Judged(**{**record, "verdict": Verdict[record["verdict"]]})


def prompt_to_record(prompt: Prompt) -> dict[str, Any]:
    """As JSON takes it."""
    return asdict(prompt)


def prompt_from_record(record: Mapping[str, Any]) -> Prompt:
    """The inverse of `prompt_to_record`."""
    return Prompt(**{**record, "problem": Problem(**record["problem"])})


def to_record(rollout: Rollout) -> dict[str, Any]:
    """As JSON takes it; numbers of numpy or torch become plain ones."""
    return {
        "prompt": prompt_to_record(rollout.prompt),
        "group": int(rollout.group),
        "ids": [int(each) for each in rollout.ids],
        "log_probs": [float(each) for each in rollout.log_probs],
        "written": [int(each) for each in rollout.written],
        "turns": [
            {
                "text": turn.text,
                "judged": judged_to_record(turn.judged),
                "reward": float(turn.reward),
                "first": int(turn.first),
                "last": int(turn.last),
            }
            for turn in rollout.turns
        ],
        "origin": rollout.origin,
    }


def from_record(record: Mapping[str, Any]) -> Rollout:
    """The inverse of `to_record`. Raises StoreError where the record is no rollout."""
    try:
        return Rollout(
            prompt=prompt_from_record(record["prompt"]),
            group=record["group"],
            ids=tuple(record["ids"]),
            log_probs=tuple(record["log_probs"]),
            written=tuple(map(bool, record["written"])),
            turns=tuple(
                Turn(each["text"], judged_from_record(each["judged"]), each["reward"], each["first"], each["last"])
                for each in record["turns"]
            ),
            origin=record["origin"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"A stored rollout can't be read ({type(error).__name__}: {error}). "
            "It was written by another version: restore the file, or start a new run."
        ) from error
