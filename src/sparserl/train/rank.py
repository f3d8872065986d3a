"""Stage: the ranking pass. Where two measured programs of a matrix part, the way to the better one is made more likely.

    sparserl train rank --collection DIR --weights runs/sft --out runs/rank [--resume]

It is fine-tuning once more, at a lower rate, with a preference at every fork of the programs that are drawn (`forks`
says which, and why there alone). The worse ways come from slower programs of the matrix, from those that failed there
or would (`misfits`), and from layouts that the matrix does not admit. Fine-tuning's own loss is the anchor: what
nothing is known of stays as probable as it was.

The share of dev forks at which the good token is more probable than all worse ones together is written down before and
after (checks.jsonl). Not covered: fresh samples of the policy (that is reinforcement learning).
"""

from __future__ import annotations

from sparserl.errors import SparseRLError
from sparserl.train.loop import Finished, LoopConfig, Watch
from sparserl.train.sft import Places, SFTConfig, sft

RANK = SFTConfig(
    reads="own", epochs=1, least_steps=1, pull=4.0,
    loop=LoopConfig(learning_rate=1e-4, weight_decay=0.0, warmup=20, check_first=True),
)  # fmt: skip
"""as the stage is run"""


def rank(config: SFTConfig, places: Places, watch: Watch | None = None) -> Finished:
    """The whole stage."""
    if places.weights is None:
        raise SparseRLError("The ranking pass needs fine-tuned weights: give --weights DIR, the folder of an SFT run.")
    if not config.pull > 0:
        raise SparseRLError(f"The 'pull' of a ranking pass must be above 0. Got {config.pull}.")
    return sft(config, places, watch, stage="rank")
