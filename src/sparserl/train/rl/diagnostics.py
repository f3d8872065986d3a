"""What is watched beside the loss: figures of a round's rollouts, each a plain number for a curve.

    share/…        of all programs by verdict, all turns counted
    surprise/…     minus the mean log-probability, at temperature 1, of what the policy wrote in the header, the launch
                   lines and the body, nats a token. No entropy, as samples are drawn at a lower temperature
    entropy/…      that of the distribution drawn from, in the same parts: what the learner's look back finds at each
                   token that was written (`update.learn` adds it), so it takes no forward pass of its own
    reward/…       mean, and mean of the best of each group
    own/correct    share that is right of the programs whose layout was not given
    own/behind     how far their mean reward is behind the best of their group, mean over groups: what is left to learn
    skeletons      distinct skeletons a group, mean over groups; unreadable programs have none
    novelty        share of the right programs whose skeleton no recipe for that problem has, at any parameters

KL and clip fraction come with the loss (`objective.policy_parts`). Pure over records, but for a table of the recipes'
skeletons, made once a problem (about a second). Not covered: whether new is faster, which needs the clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from sparserl import recipes
from sparserl.errors import ProgramError
from sparserl.matrix import Array
from sparserl.policy.tokenizer import Tokenizer
from sparserl.records import Problem, Verdict
from sparserl.train import rules
from sparserl.train.rl.nouns import OWN, Rollout
from sparserl.train.skeleton import skeleton

PARTS: Mapping[str, str] = {
    "layout": "header", "bake": "header", "workspace": "header", "launch": "launch", "code": "body",
}  # fmt: skip
"""a part of `rules.PARTS` → the curve that it counts to; the first is that of what comes before any of them"""
_NUMBER = re.compile(r"(?<![\w.])\.?\d(?:[eEpP][+-]|[\w.])*")
"""a number, as `lexer` cuts it"""


# ── Structure ─────────────────────────────────────────────────────────────────


@lru_cache(maxsize=1 << 16)
def skeleton_of(text: str) -> str | None:
    """A program's skeleton; None where it can't be read."""
    try:
        return skeleton(text)
    except ProgramError:
        return None


@lru_cache(maxsize=64)
def recipe_skeletons(problem: Problem) -> frozenset[str]:
    """The skeletons of every recipe for a problem."""
    # Texts that differ in numbers alone have one skeleton: reading one of each is ten times as fast as reading all.
    distinct = {_NUMBER.sub("#", recipe.text): recipe.text for recipe in recipes.space(problem)}
    return frozenset(map(skeleton, distinct.values()))


def is_new(text: str, problem: Problem) -> bool:
    """Whether no recipe for this problem has the program's skeleton; False for what can't be read."""
    found = skeleton_of(text)
    return found is not None and found not in recipe_skeletons(problem)


def distinct_skeletons(texts: Iterable[str]) -> int:
    return len({skeleton_of(text) for text in texts} - {None})


# ── Figures ───────────────────────────────────────────────────────────────────


def explained_variance(values: Array, returns: Array) -> float:
    """1: the head says exactly what came; 0: no better than a constant (or all returns are equal); below: worse."""
    spread = float(np.var(returns)) if np.size(returns) else 0.0
    return 1.0 - float(np.var(np.asarray(returns) - values)) / spread if spread > 0 else 0.0


def shares(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """By verdict; all of them, so that a curve has no gaps."""
    counts = rules.failures(verdicts)
    return {verdict.name.lower(): counts.get(verdict.name, 0) / max(1, len(verdicts)) for verdict in Verdict}


def surprise_by_part(rollouts: Sequence[Rollout], special: Mapping[str, int] = Tokenizer.special) -> dict[str, float]:
    """Nats a token of what was written, at temperature 1."""
    return _by_part(rollouts, [-np.asarray(each.log_probs) for each in rollouts], special)


def entropy_by_part(
    rollouts: Sequence[Rollout], entropies: Sequence[Array], special: Mapping[str, int] = Tokenizer.special
) -> dict[str, float]:
    """Nats a token. entropies: of the policy before each token of each rollout, beside its ids."""
    return _by_part(rollouts, entropies, special)


def _by_part(rollouts: Sequence[Rollout], figures: Sequence[Array], special: Mapping[str, int]) -> dict[str, float]:
    """The mean over the written tokens of the header, the launch lines and the body; 0 where there are none.

    As `rules.by_part` tells parts, but whole turns at once: a round has a million tokens.
    """
    names = [*dict.fromkeys(PARTS.values())]
    begins = np.full(max(special.values()) + 1, -1)
    begins[[special[f"<{part}>"] for part in PARTS]] = [names.index(name) for name in PARTS.values()]
    sums, counts = np.zeros(len(names)), np.zeros(len(names))
    for rollout, said in zip(rollouts, figures, strict=True):
        begin = 0
        for turn in rollout.turns:  # what stands before a turn's own tokens was given, and says which part it is in
            ids = np.asarray(rollout.ids[begin : turn.last], dtype=np.int64)
            opened = np.where(ids < len(begins), begins[ids.clip(max=len(begins) - 1)], -1)
            last = np.maximum.accumulate(np.where(opened >= 0, np.arange(len(ids)), -1))
            # A token that opens a part counts to the one before.
            part = np.concatenate(([0], np.where(last >= 0, opened[last], 0)))[: len(ids)]
            own = part[turn.first - begin :]
            sums += np.bincount(own, said[turn.first : turn.last], len(names))
            counts += np.bincount(own, minlength=len(names))
            begin = turn.last
    return dict(zip(names, (sums / counts.clip(min=1)).tolist(), strict=True))


def summary(rollouts: Sequence[Rollout], special: Mapping[str, int] = Tokenizer.special) -> dict[str, float]:
    """All of it for the rollouts of a round."""
    turns = [(rollout, turn) for rollout in rollouts for turn in rollout.turns]
    if not turns:
        return {}
    groups: dict[int, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group].append(rollout)
    right = [(rollout, turn) for rollout, turn in turns if turn.judged.verdict is Verdict.CORRECT]
    new = sum(is_new(turn.text, rollout.prompt.problem) for rollout, turn in right)
    best = [max(turn.reward for one in group for turn in one.turns) for group in groups.values()]
    kinds = [distinct_skeletons(turn.text for one in group for turn in one.turns) for group in groups.values()]
    own = [[turn for one in group if one.origin == OWN for turn in one.turns] for group in groups.values()]
    behind = [top - np.mean([turn.reward for turn in part]) for top, part in zip(best, own, strict=True) if part]
    chosen = [turn.judged.verdict is Verdict.CORRECT for part in own for turn in part]
    return {
        "reward/mean": float(np.mean([turn.reward for _, turn in turns])),
        "reward/best": float(np.mean(best)),
        **({"own/correct": float(np.mean(chosen)), "own/behind": float(np.mean(behind))} if chosen else {}),
        **{f"share/{name}": share for name, share in shares([turn.judged.verdict for _, turn in turns]).items()},
        **{f"surprise/{name}": nats for name, nats in surprise_by_part(rollouts, special).items()},
        "skeletons": float(np.mean(kinds)),
        "novelty": new / max(1, len(right)),
    }
