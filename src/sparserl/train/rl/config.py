"""The settings of reinforcement learning, all in one frozen dataclass, stored with the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from sparserl.errors import SparseRLError
from sparserl.judge.reward import RewardWeights
from sparserl.records import MODES
from sparserl.train.loop import LoopConfig
from sparserl.train.rl.curriculum import CurriculumConfig
from sparserl.train.rl.episodes import PlayConfig
from sparserl.train.rl.explore import ExploreConfig
from sparserl.train.rl.objective import Coefficients

Algorithm = Literal["ppo", "grpo"]
Objective = Literal["mean", "best"]
JudgedOn = Literal["cuda", "sim"]


@dataclass(frozen=True)
class RLConfig:
    """What is played, how it is judged, and how the policy learns from it."""

    algorithm: Algorithm = "grpo"
    """ppo: a value head and token-level advantages; grpo: rollouts are compared within their group"""
    objective: Objective = "best"
    """mean: the mean reward; best: the expected best of k, as the product keeps the best of k"""
    k: int = 8
    """of 'best'; at most the group"""
    mean_share: float = 0.5
    """of 'best': how much the mean reward counts beside it. The best of k alone asks nothing of the other k - 1"""
    rounds: int = 100
    judged_on: JudgedOn = "cuda"
    """whose times the rewards come from; they are never mixed in one run"""

    epochs: int = 1
    """times that a round's rollouts are gone through"""
    minibatch: int = 256
    """rollouts of one optimiser step, at random: lengths go with kinds of programs, so a step needs all of them. Adam's
    steps have one length whatever there is to learn, and most of a small batch's gradient is noise: many of them wear
    the grammar down and teach no more than a few"""
    batch_tokens: int = 65536
    """that go through the model at one time, padding counted; a step adds up as many of these as it needs"""
    unit: float = 0.2
    """a difference of rewards, which are logarithms of speed-ups, that is an advantage of 1 (GRPO). The same for all
    groups: a failure then costs what it costs in the end, a hundred times a percent of speed"""
    shared_blame: float = 1.0
    """so much of a failure's advantage at most falls on all of its tokens; the rest falls on one, the first that no
    right program of its group has. Blame for hundreds that are as good as any other program's unlearns the grammar"""
    noise: float = 0.03
    """advantages (PPO) are not divided by a standard deviation below this: the measured noise of a brief timing"""
    gamma: float = 1.0
    lam: float = 1.0
    """of generalised advantage estimation (PPO); the reward comes with the last token, a thousand after the layout was
    chosen: at 0.98 nothing of it would arrive there"""
    kl_stop: float = 0.1
    """the rest of a round is left out once its policy is so far from the one that played, nats a token"""

    value_rate: float = 1e-3
    """highest learning rate of the value head (PPO)"""
    value_warmup: int = 4
    """times that a fresh value head goes through its first round alone, before it has a say"""

    retimed: int = 2
    """programs a group, the fastest, that are timed again beside the incumbent; 0: none, and then no elites"""
    varied: int = 0
    """mutations of the fastest program known on each matrix of a round that are judged too, for the archive; 0: none"""
    choose_steps: int = 0
    """optimiser steps a round on what layout lines have earned (`choose`); 0: none"""
    choose_batch: int = 48
    """matrices of such a step"""
    imitate_steps: int = 4
    """optimiser steps on verified winners a round; 0: none"""
    imitate_batch: int = 32
    """winners of one such step"""
    imitate_scale: float = 0.5
    """their learning rate, as a part of the other"""
    admit_steps: int = 0
    """optimiser steps a round on what matrices admit, which takes no judge; 0: none"""
    admit_batch: int = 64
    """matrices of one such step"""

    frozen: bool = False
    """the encoder stays as it is: it has read tens of thousands of matrices, a run has hundreds"""
    blind: bool = False
    """control: the encoder reads the same entries for every matrix; sizes and problem are its own"""
    shuffled: bool = False
    """control: the rewards of a round are dealt out among its rollouts at random, and nothing is imitated"""
    play: PlayConfig = field(default_factory=PlayConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    weights: RewardWeights = field(default_factory=RewardWeights)
    coefficients: Coefficients = field(default_factory=Coefficients)
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            learning_rate=3e-5, warmup=60, final=0.3, weight_decay=0.0, clip=0.1, save_every_s=0.0
        )
    )
    """optimiser, schedule and checkpoints; the cosine is over rounds, the warm-up over optimiser steps. The gradient is
    cut at several times its usual norm. A checkpoint is 300 MB: where rounds are short, not after each of them"""

    def __post_init__(self) -> None:
        for name, choices in (("algorithm", Algorithm), ("objective", Objective), ("judged_on", JudgedOn)):
            if getattr(self, name) not in get_args(choices):
                known = " or ".join(get_args(choices))
                raise SparseRLError(
                    f"The '{name}' of reinforcement learning must be {known}. Got {getattr(self, name)!r}."
                )
        for name in ("rounds", "epochs", "minibatch", "batch_tokens", "imitate_batch", "choose_batch", "admit_batch"):
            if getattr(self, name) < 1:
                raise SparseRLError(
                    f"The '{name}' of reinforcement learning must be at least 1. Got {getattr(self, name)}."
                )
        steps = ("choose_steps", "imitate_steps", "admit_steps")
        for name in ("noise", "value_warmup", "retimed", "varied", "imitate_scale", *steps):
            if getattr(self, name) < 0:
                raise SparseRLError(
                    f"The '{name}' of reinforcement learning must not be negative. Got {getattr(self, name)}."
                )
        if not (0 < self.gamma <= 1 and 0 <= self.lam <= 1 and self.kl_stop > 0 and self.value_rate > 0):
            raise SparseRLError(
                "Reinforcement learning needs 'gamma' in (0, 1], 'lam' in [0, 1], 'kl_stop' and 'value_rate' above 0. "
                f"Got {self.gamma}, {self.lam}, {self.kl_stop} and {self.value_rate}."
            )
        if not (self.unit > 0 and self.shared_blame >= 0):
            raise SparseRLError(
                "Reinforcement learning needs a 'unit' above 0 and a 'shared_blame' that is not negative. "
                f"Got {self.unit} and {self.shared_blame}."
            )
        if not 0 <= self.mean_share <= 1:
            raise SparseRLError(f"The 'mean_share' of reinforcement learning must be in [0, 1]. Got {self.mean_share}.")
        if (self.curriculum.far or self.curriculum.shown) and not self.admit_steps:
            raise SparseRLError(
                "The largest of the farther matrices ('far') and those that are shown ('shown') teach what they admit "
                "alone: ask for --admit-steps, too."
            )
        self._check_group()

    def _check_group(self) -> None:
        group = self.play.count
        if group < 2:
            raise SparseRLError(
                f"A group has at least 2 rollouts, to be compared with one another. Got --group {group}."
            )
        if self.objective == "best" and not 1 <= self.k <= group:
            raise SparseRLError(f"The k of best-of-k must be 1..{group}, the rollouts of a group. Got --k {self.k}.")
        if self.play.settings.top_p < 1:
            raise SparseRLError(
                "Reinforcement learning draws from all tokens: what is never drawn would be learnt unseen. "
                f"Got top_p {self.play.settings.top_p}; a lower temperature makes rare tokens rarer, too."
            )
        if not self.play.modes or set(self.play.modes) - set(MODES):
            raise SparseRLError(f"The 'modes' must be some of {', '.join(MODES)}. Got {self.play.modes!r}.")

    @property
    def imitates(self) -> bool:
        return self.imitate_steps > 0 and self.retimed > 0 and not self.shuffled


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes, and who judges."""

    out: Path
    weights: Path
    """the policy to begin with"""
    judge: str = "local"
    """local, replay:FOLDER or ray://…"""
    matrices: Path | None = None
    """folder of the real matrices; None: generated ones alone"""
    samples: Path | None = None
    """file of matrix samples, made once; None: OUT/samples.npz"""
    collection: Path | None = None
    """the best rewards known on its matrices are taken from it"""
    workers: int = 0
    """judging processes; 0: the referee's own choice"""
    resume: bool = False
    known: tuple[Path, ...] = ()
    """runs whose verdicts stand: what they judged, and what this one judges, is not judged again"""
    before: tuple[Path, ...] = ()
    """runs whose winners and results are known from the first round on"""

    @property
    def samples_file(self) -> Path:
        return self.samples or self.out / "samples.npz"

    @property
    def admitted_file(self) -> Path:
        """Which layouts the same matrices admit."""
        return self.samples_file.with_suffix(".jsonl")
