"""Turns: what a policy is told of a program that it wrote, and when it is asked to write it again.

    <program> … <eos> <feedback> right 124% floor 83% registers 40
    <program> … <eos> …

The line (`line`) says of a right program its speed beside the baseline, how near it is to the floor, its registers and
its sectors, as far as they are known; of any other the verdict and the beginning of the reason. Another turn is played
where there is something to gain and room for it: not after a program without <eos>, not after the same program twice,
not within `ENOUGH` of the floor, and not where a program as long as the last would no longer fit the context. It is
written from the last program and its line alone (`read_from`), as pairs are what is learnt from: with all before it to
read, third programs had the header of the first and the body of the second (11 of 24 compiled; 19 of 24 without).

Learning (`train/rl/episodes`, `train/rl/turn_pairs`) and tuning (`rewriting`) follow these rules alike, so what is
learnt is what is played. Not covered: how a program is judged, and how it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from sparserl.errors import SparseRLError
from sparserl.policy.model import Policy
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Verdict

MOST_TURNS = 3
FEEDBACK_TOKENS = 24
"""the most that a line comes to, its newline counted"""
ENOUGH = 0.9
"""a right program this near to the floor (1: at it) is not written again"""
SPARE = 1.25
"""a rewritten program may be this much longer than the one before"""
WORDS = {
    Verdict.UNREADABLE: "unreadable",
    Verdict.SCREENED: "refused",
    Verdict.INADMISSIBLE: "not admitted",
    Verdict.UNCOMPILABLE: "does not compile",
    Verdict.FAILED: "failed",
    Verdict.WRONG: "wrong",
    Verdict.IMPLAUSIBLE: "too fast",
    Verdict.CORRECT: "right",
}


@dataclass(frozen=True)
class Told:
    """All that a line is made of."""

    verdict: Verdict
    reason: str = ""
    speedup: float | None = None
    """baseline over its time; None where it is not right, or one of them not known"""
    floor_share: float | None = None
    """floor over its time: 1 is there"""
    registers: int = 0
    sectors: int = 0
    """0: not counted"""


# ---- the line


def line(told: Told, tokenizer: Tokenizer | None = None) -> str:
    """One short line, without its newline; at most `FEEDBACK_TOKENS` tokens with it (None: of the shipped tokenizer).

    What comes last is left out first: sectors, then registers; of a reason its end.
    """
    tokenizer = tokenizer or _shipped()
    parts = [WORDS[told.verdict]]
    if told.verdict is Verdict.CORRECT:
        parts += _figures(told)
    elif gist := _gist(told.reason):
        parts[0] += ":"
        parts += gist.split(" ")
    while len(parts) > 1 and len(tokenizer.encode(" ".join(parts) + "\n")) > FEEDBACK_TOKENS:
        parts.pop()
    return " ".join(parts).rstrip(":")


def line_ids(told: Told, tokenizer: Tokenizer) -> list[int]:
    """What stands between two programs: '<feedback>', the line, '<program>'."""
    return [tokenizer.feedback, *tokenizer.encode(line(told, tokenizer) + "\n"), tokenizer.program]


@cache
def _shipped() -> Tokenizer:
    return Tokenizer.load()


def _figures(told: Told) -> list[str]:
    found = []
    if told.speedup is not None:
        found.append(f"{round(100 * told.speedup)}%")
    if told.floor_share is not None:
        found.append(f"floor {round(100 * told.floor_share)}%")
    if told.registers:
        found.append(f"registers {told.registers}")
    if told.sectors:
        found.append(f"sectors {_short(told.sectors)}")
    return found


def _short(count: int) -> str:
    """Three digits at most, with a letter for thousands or millions: 950, 12k, 3M."""
    for scale, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= scale:
            return f"{count // scale}{letter}"
    return str(count)


def _gist(reason: str) -> str:
    """The first line that names an error, from that word on, or the first line; plain ASCII, single spaces."""
    rows = [row for row in reason.splitlines() if row.strip()]
    row = next((each for each in rows if "error:" in each), rows[0] if rows else "")
    plain = row.rpartition("error:")[2].encode("ascii", "ignore").decode()
    return " ".join(plain.split())[:200]


# ---- whether there is another turn, and room for it


def read_from(firsts: Sequence[int]) -> int:
    """Where the program begins, at '<program>', that the next one is written from: the last one.

    firsts: where in the sequence the tokens of each program begin that was written so far. Of the first program, which
    may have been given a beginning, all is read.
    """
    return firsts[-1] - 1 if len(firsts) > 1 else 0


def last_text(ids: Sequence[int], given: int, tokenizer: Tokenizer) -> str:
    """The last program of a sequence, of which `given` tokens were not written: it begins in these, at '<program>'."""
    begin = max(place for place, token in enumerate(ids[:given]) if token == tokenizer.program)
    return tokenizer.decode_program(ids[begin:])


def worth_another(texts: Sequence[str], finished: bool, told: Told, enough: float = ENOUGH) -> bool:
    """Whether there is something to gain. texts: of all turns; finished, told: of the last."""
    if not finished or texts[-1] in texts[:-1]:
        return False
    near = told.floor_share is not None and told.floor_share >= enough
    return not (told.verdict is Verdict.CORRECT and near)


def need(tokens: int) -> int:
    """Tokens that a program may have after one of `tokens`: as many, and some."""
    return int(SPARE * tokens) + 1


def room(policy: Policy, given: int) -> int:
    """Tokens that fit the context after `given` ones."""
    return policy.size.language.context - policy.prefix_length - given


def fits(policy: Policy, given: int, last: int) -> bool:
    """Whether a line and another program find room after `given` tokens, of which the last program has `last`."""
    return need(last) <= room(policy, given + FEEDBACK_TOKENS + 2)


def together(policy: Policy, given: Sequence[int], needs: Sequence[int], most: int) -> Iterator[tuple[list[int], int]]:
    """(which are written together, room for each): the longest prompt sets the room, so those of similar length.

    given: tokens of each prompt; needs: what each should have room for; most: that are written together.
    """
    rest = sorted(range(len(given)), key=lambda place: -given[place])
    while rest:
        first = rest[0]
        left = room(policy, given[first])
        if left < 1:
            raise SparseRLError(
                f"A prompt of {given[first]} tokens leaves no room in the policy's context "
                f"({policy.size.language.context} positions). Use a policy with a longer one."
            )
        part = [place for place in rest if needs[place] <= left or place == first][:most]
        taken = set(part)
        rest = [place for place in rest if place not in taken]
        yield part, left
