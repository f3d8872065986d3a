"""Self-imitation: a few supervised steps on verified winners, before the policy gradient of a round.

Winners come from the archive (`explore.Elites`), the best of every kind and of every matrix: programs that were timed
twice and lead the policy's own mean on their matrix, drawn the more often the more they lead. Programs that are too
long for the policy are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparserl.policy.tokenizer import Tokenizer
from sparserl.train.lessons import encode_programs
from sparserl.train.loop import Step
from sparserl.train.rl.explore import Elite, Elites
from sparserl.train.rl.learner import Learner, Line
from sparserl.train.rl.objective import Batch, imitation
from sparserl.train.rl.rounds import seed_of
from sparserl.train.rl.update import keep


def imitate(learner: Learner, elites: Elites, tokenizer: Tokenizer, number: int) -> dict[str, float]:
    """The supervised steps of round `number`; returns figures for the curves."""
    config = learner.config
    if not config.imitates:
        return {}
    drawn = elites.draw(config.imitate_steps * config.imitate_batch, seed_of(config.loop.seed, number, 9))
    room = learner.policy.size.language.context - learner.policy.prefix_length
    lines = keep(learner, lines_of(drawn, tokenizer, room))
    learner.policy.train()

    def loss(batch: Batch) -> Step:
        return imitation(learner.policy, batch, config.coefficients.keep)

    losses, worn = [], []
    for at in range(0, len(lines), config.imitate_batch):
        batch = lines[at : at + config.imitate_batch]
        found = learner.step(batch, loss, number, config.imitate_scale)
        losses.append(found["imitation_loss"])
        worn.append(found.get("worn", 0.0))
    curves = {"imitate/programs": float(len(lines)), "imitate/elites": float(len(elites))}
    if losses:
        curves |= {"imitate/loss": float(np.mean(losses)), "imitate/worn": float(np.mean(worn))}
    return curves


def lines_of(drawn: Sequence[Elite], tokenizer: Tokenizer, longest: int) -> list[Line]:
    """The programs as sequences; all but '<program>' is learnt."""
    ids = encode_programs({each.text: each.text for each in drawn}, longest, tokenizer)
    return [
        Line(each.prompt, ids[each.text].astype(np.int64), np.arange(len(ids[each.text])) > 0, {})
        for each in drawn
        if each.text in ids
    ]
