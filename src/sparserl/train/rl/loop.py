"""Stage: reinforcement learning. The compiler's verdict and the clock teach the policy to write faster programs.

    sparserl train rl --weights runs/sft --out runs/rl [--algorithm ppo|grpo] [--objective mean|best] [--resume]
    accelerate launch --num_processes 4 -m sparserl train rl …      # a process a GPU, each with a judge of its own

A round: draw prompts → play (half of each group from a layout drawn for it) → judge → time the winners again → vary
them, where asked for → imitate verified winners → policy gradient → what layouts have earned → what matrices admit →
figures → checkpoint. A run folder holds

    config.json     the settings
    rounds.jsonl    one line a round: rewards, verdicts, entropy, KL, losses, seconds (of judging by phase, added up
                    over its processes); tensorboard/ has the same
    rollouts/       every rollout and every retiming (`rollout_store`); `--judge replay:RUN/rollouts` judges from them.
                    What was heard since the last checkpoint is there too: a round that was broken off, killed or given
                    up because the `--budget` was spent, is played again with the verdicts that it has paid for
    policy/         the weights, with the round in their notes
    elites.json, results.json    the archive, and what the curriculum knows of each matrix
    resume.pt       weights, optimiser, archive and results of the same round, for an exact `--resume`

A run is a function of its settings and of what the referee says: on the simulator, a run that was killed and resumed
has the curve of an unbroken one. Without the (large) resume.pt `--resume` goes on from the other files, with a fresh
optimiser and value head, whose warm-ups (`loop.warmup` steps, `value_warmup` passes) are done again. Weights alone go
on elsewhere (`--weights OUT`), as well with a warm-up: at their round, with an empty archive, or with the winners of
other runs (`--before RUN`), and what *they* are sure of is kept, no longer what the very first policy was sure of.

Not covered: policies of other kinds than `sparserl.policy`; overlap of playing and learning.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sparserl.errors import StoreError
from sparserl.pieces import pieces_on
from sparserl.policy.checkpoint import load_policy, read_config, save_policy
from sparserl.policy.sampler import Sampler
from sparserl.policy.tokenizer import Tokenizer
from sparserl.store import append_jsonl, keep_jsonl, read_json, read_jsonl, write_atomic, write_json
from sparserl.train.loop import (
    POLICY,
    RESUME,
    Finished,
    Progress,
    Watch,
    board,
    device_of,
    open_run,
    policy_folder,
    start_from,
)
from sparserl.train.rl.admission import Admission
from sparserl.train.rl.choose import choose
from sparserl.train.rl.config import Places, RLConfig
from sparserl.train.rl.crew import Crew, open_crew
from sparserl.train.rl.curriculum import Curriculum, Results
from sparserl.train.rl.diagnostics import summary
from sparserl.train.rl.episodes import Player
from sparserl.train.rl.explore import Elites, Explorer
from sparserl.train.rl.found_lines import FoundLines
from sparserl.train.rl.imitate import imitate
from sparserl.train.rl.learner import Learner
from sparserl.train.rl.nouns import Rollout
from sparserl.train.rl.referee import Counts
from sparserl.train.rl.remembering import TimeUpError, heard_by
from sparserl.train.rl.rollout_store import FOLDER, Journal, RolloutStore
from sparserl.train.rl.rounds import (
    Played,
    Retiming,
    Round,
    may_teach,
    play_round,
    recall,
    reward_of,
    seed_of,
    shuffled,
)
from sparserl.train.rl.table import Table, open_table
from sparserl.train.rl.update import learn, lines_of, look_back, warm_up
from sparserl.train.rl.vary import Varied, vary

log = logging.getLogger(__name__)

ROUNDS = "rounds.jsonl"
ELITES, RESULTS = "elites.json", "results.json"
HEADLINES = ("reward/mean", "reward/best", "share/correct")
SECONDS, JUDGING = "seconds/", "judging/"
PLAY, VARY = "play", "vary"
"""of the seconds, those in which verdicts are waited for"""
CLOCKED = (SECONDS, JUDGING)
"""what begins so in a line of rounds.jsonl depends on the machine's mood"""


class Run:
    """One run under way: `round` plays and learns once, `save` makes a checkpoint."""

    def __init__(self, config: RLConfig, places: Places, table: Table, crew: Crew, weights: Path | None = None) -> None:
        """weights: those to go on from, where they are not those that the run began with."""
        self.config, self.places, self.crew = config, places, crew
        policy, begun = start_from(weights or places.weights, "rl")
        self.number = begun.step
        folder = policy_folder(places.weights)
        first = load_policy(folder) if config.coefficients.keep else None
        self.tokenizer, self.words = Tokenizer.load(folder / "tokenizer.json"), folder / "tokenizer.json"
        device = device_of(config.loop.device)
        piece = pieces_on(device)
        self.learner = Learner(config, policy, device, table.look, crew, first=first, piece=piece)
        self.played = Played(Elites(config.play.modes), Results())
        for pair, best in table.known.items():
            self.played.results.known(pair, best)
        self.curriculum = Curriculum(table.prompts, config.curriculum)
        self.admitted = FoundLines(table.admitted)
        mode = config.play.mode
        openings = Explorer(policy, self.tokenizer, table.look, self.admitted, config.explore, mode=mode, piece=piece)
        sampler = Sampler(policy, self.tokenizer, device, piece=piece)
        earned = reward_of(config.weights, config.play.modes)
        self.player = Player(sampler, table.referee, earned, table.look, config.play, openings=openings)
        self.admission = Admission(sampler, self.tokenizer, [*table.prompts, *table.unplayed], self.admitted)
        self.store = RolloutStore(places.out / FOLDER) if crew.first else None
        self.journal = Journal(places.out / FOLDER, crew.rank)
        self.seconds: dict[str, float] = {}
        self._counted = self._counts()

    def hear(self, until_s: float) -> tuple[Round, Varied]:
        """Play and judge once. Raises TimeUpError at `until_s` (`monotonic`); then the run is as it was before."""
        played = self.played.copy()
        self.admitted.look_through(played.elites)
        self.journal.round = self.number
        with heard_by(self.journal, self.player.referee, until_s):
            with self._clock(PLAY):
                found = play_round(
                    self.number, self.curriculum, self.player, played, config=self.config, crew=self.crew
                )
            with self._clock(VARY):
                varied = vary(self.number, found, played, self.player, config=self.config, crew=self.crew)
        self.played = played
        self._store(found.brief, found.retimings)
        self._store(varied.rollouts, varied.retimings)
        return found, varied

    def round(self, until_s: float = math.inf) -> dict[str, Any]:
        """Play, judge and learn once; the figures of the round."""
        number, learner = self.number, self.learner
        found, varied = self.hear(until_s)
        rollouts: Sequence[Rollout] = found.rollouts
        figures: dict[str, Any] = {"round": number, "rollouts": len(rollouts)}
        figures["tokens"] = sum(sum(each.written) for each in rollouts)
        figures |= summary(rollouts, self.tokenizer.special) | varied.figures
        rollouts = may_teach(rollouts)
        figures["withheld"] = len(found.rollouts) - len(rollouts)
        if self.config.shuffled:
            rollouts = shuffled(rollouts, seed_of(self.config.loop.seed, number, 3))
        with self._clock("look back"):
            lines = warm_up(learner, rollouts, look_back(learner, lines_of(rollouts)), number)
        with self._clock("imitate"):
            figures |= imitate(learner, self.played.elites, self.tokenizer, number)
        with self._clock("learn"):
            figures |= learn(learner, rollouts, lines, number)
        with self._clock("choose"):
            figures |= choose(learner, self.played.results, self.curriculum.prompts, self.tokenizer, number)
        with self._clock("admit"):
            figures |= self.admission.teach(learner, number)
        self.number += 1
        figures |= {f"{SECONDS}{name}": round(spent, 2) for name, spent in self.seconds.items()}
        return figures | {f"{JUDGING}{name}": round(value, 2) for name, value in self._judging().items()}

    def _judging(self) -> dict[str, float]:
        """What the referee counted in this round; empty where it doesn't count."""
        before, self._counted = self._counted, self._counts()
        return {name: value - before.get(name, 0.0) for name, value in self._counted.items()}

    def _counts(self) -> dict[str, float]:
        """Since the referee was opened, which may have served other runs."""
        counts = getattr(self.player.referee, "counts", None)
        return counts.figures() if isinstance(counts, Counts) else {}

    def _store(self, rollouts: Sequence[Rollout], retimings: Sequence[Retiming]) -> None:
        if self.store is not None:
            self.store.add(self.number, rollouts)
            for prompt, judged in retimings:
                self.store.add_retimed(self.number, prompt, judged)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began

    # ---- checkpoints

    def save(self) -> None:
        """A checkpoint after a round; what was heard until then is nothing that a kill could lose any more."""
        if self.crew.first:
            self._save()
        self.journal.drop_before(self.number)

    def _save(self) -> None:
        """The exact one first, then the weights for others to read."""
        out = self.places.out
        self.played.elites.save(out / ELITES)
        known = {"round": self.number, "results": self.played.results.to_record()}
        write_json(out / RESULTS, known)
        buffer = io.BytesIO()
        state = {**known, "elites": (out / ELITES).read_text()}
        with self.learner.piece():
            torch.save({**state, "learner": self.learner.state()}, buffer)
        write_atomic(out / RESUME, buffer.getvalue())
        notes = {"stage": "rl", "step": self.number, "steps": self.config.rounds, "sampling": self._sampling()}
        with self.learner.piece():
            save_policy(self.learner.policy, out / POLICY, tokenizer=self.words, notes=notes)

    def _sampling(self) -> dict[str, Any]:
        """How the policy was drawn from, and is to be."""
        settings = self.config.play.settings
        return {name: getattr(settings, name) for name in ("temperature", "top_p", "max_tokens")}

    def restore(self) -> None:
        """Go on from the folder's checkpoint; what lies behind it is played again."""
        out = self.places.out
        state = torch.load(out / RESUME, map_location=self.learner.device, weights_only=True)
        self.learner.restore(state["learner"])
        if self.crew.first:
            write_atomic(out / ELITES, state["elites"].encode())
        self._take_up(int(state["round"]), state["results"])

    def restore_without_optimiser(self) -> None:
        """Go on from the folder's weights, which this run has begun with, its archive and its results."""
        known = read_json(self.places.out / RESULTS)
        log.warning("No %s in %s: the optimiser starts anew, with its warm-up.", RESUME, self.places.out)
        self._take_up(int(known["round"]), known["results"])

    def _take_up(self, number: int, results: Sequence[Mapping[str, Any]]) -> None:
        self.crew.gather([0])  # the others read what the first one wrote
        elites = Elites.load(self.places.out / ELITES)
        elites.forget_all_but(self.curriculum.prompts)
        self.number, self.played = number, Played(elites, Results.from_record(results))

    def drop_unsaved(self) -> None:
        """Forget what is on disk of rounds that are still to be played: a run that died had begun them."""
        if self.store is None:
            return
        keep_jsonl(self.places.out / ROUNDS, lambda line: line["round"] < self.number)
        self.store.drop_after(self.number - 1)


# ── The loop ──────────────────────────────────────────────────────────────────


def train(
    config: RLConfig,
    places: Places,
    table: Table,
    crew: Crew,
    watch: Watch | None = None,
    *,
    clock_s: float | None = None,
) -> Finished:
    """Rounds until the last, or until the time is up: a round that is still being judged then is given up.

    clock_s: since when the budget is spent (`monotonic`), where that is before this began.
    """
    began_s = time.monotonic()
    until_s = (began_s if clock_s is None else clock_s) + (config.loop.budget_s or math.inf)
    if device_of(config.loop.device).type == "cuda":
        torch.set_float32_matmul_precision("high")
    goes_on = crew.told(open_run(places.out, "rl", asdict(config), places.resume) if crew.first else False)
    light = not goes_on and crew.told(places.resume and (places.out / RESULTS).exists())
    run = Run(config, places, table, crew, places.out if light else None)
    if goes_on:
        run.restore()
    elif light:
        run.restore_without_optimiser()
    else:
        for folder in places.before:
            recall(folder, table.prompts, run.played, config)
    run.drop_unsaved()
    curves = board(places.out / "tensorboard", run.number) if crew.first else None
    figures: dict[str, Any] = {}
    tokens, saved, saved_s = 0, run.number, time.monotonic()
    learnt_s = crew.told(_learnt_s([{}, *read_jsonl(places.out / ROUNDS)][-1]))
    time_is_up = False
    while run.number < config.rounds and not time_is_up:
        try:
            figures = run.round(until_s - min(learnt_s, config.loop.budget_s / 2))
        except TimeUpError:
            break
        tokens += int(figures["tokens"])
        learnt_s = _learnt_s(figures)
        if crew.first:
            _note(places.out, curves, figures)
        time_is_up = crew.told(time.monotonic() > until_s)
        if time.monotonic() - saved_s > config.loop.save_every_s:
            run.save()
            saved, saved_s = run.number, time.monotonic()
        if watch is not None and crew.first:
            spent = sum(value for name, value in figures.items() if name.startswith(SECONDS))
            told = {"reward": figures["reward/mean"], "right": figures["share/correct"]}
            told["rollouts_per_s"] = figures["rollouts"] / max(spent, 1e-9)
            loss = figures.get("loss/policy_loss", 0.0)
            watch(Progress("rl", run.number, config.rounds, loss, figures["tokens"] / max(spent, 1e-9), told))
    if run.number > saved:
        run.save()
    if curves is not None:
        curves.close()
    checks: dict[str, float] = {name: figures[name] for name in HEADLINES if name in figures}
    return Finished(places.out, run.number, config.rounds, tokens, time.monotonic() - began_s, checks)


def _learnt_s(figures: Mapping[str, Any]) -> float:
    """What a round took once all of it was judged: judging the next one must leave as much."""
    heard = (SECONDS + PLAY, SECONDS + VARY)
    return float(sum(value for name, value in figures.items() if name.startswith(SECONDS) and name not in heard))


def _note(out: Path, curves: Any, figures: Mapping[str, Any]) -> None:
    """The round on disk and on TensorBoard."""
    for name, value in figures.items():
        if not math.isfinite(value):
            raise StoreError(
                f"The figure '{name}' of round {figures['round']} is {value}: training went astray. Go on from the "
                f"last checkpoint (--weights {out} with another --out) with a lower --learning-rate."
            )
    append_jsonl(out / ROUNDS, figures)
    for name, value in figures.items():
        if curves is not None and name != "round":
            curves.add_scalar(f"rl/{name}", value, figures["round"])
    log.info("rl round %d: %s", figures["round"], {k: round(v, 4) for k, v in figures.items() if "/" in k})


def rl(config: RLConfig, places: Places, watch: Watch | None = None) -> Finished:
    """The whole stage, as the command line calls it. Its budget pays for samples and for the judge's start, too."""
    clock_s = time.monotonic()
    read_config(policy_folder(places.weights))  # before minutes are spent on matrices
    crew = open_crew(cpu=device_of(config.loop.device).type == "cpu")
    with open_table(config, places, crew) as table:
        return train(config, places, table, crew, watch, clock_s=clock_s)
