"""`sparserl train rl` and `rl-many`: the commands. What they do is in `rl.loop` and `rl.several`; every setting that
they lack is in `rl.config`.

A run that stopped because its `--budget` was spent ends with exit code 75 (try again): call it again with `--resume`.
"""

from __future__ import annotations

import functools
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparserl.errors import SparseRLError
from sparserl.train.commands_stages import (
    Budget,
    Frozen,
    Matrices,
    Out,
    Rate,
    Resume,
    Samples,
    UsageError,
    Warmup,
    progress,
    time_is_up,
)

if TYPE_CHECKING:
    from sparserl.train.loop import Finished
    from sparserl.train.rl.config import Places, RLConfig

TOGETHER = 2048
"""programs that are written at one time"""
REWARDS = {"hierarchical": "hierarchical", "speed": "speed", "correct": "correctness"}


def rl(
    *,
    weights: Annotated[Path, typer.Option(help="Folder of the policy to begin with, such as a fine-tuning run.")],
    out: Out,
    algorithm: Annotated[str, typer.Option(help="ppo or grpo")] = "grpo",
    objective: Annotated[str, typer.Option(help="mean reward, or best: of k, as the product keeps the best")] = "best",
    k: Annotated[int, typer.Option(help="of the objective 'best'")] = 8,
    mean_share: Annotated[float, typer.Option(help="of the mean reward in the objective 'best', 0 to 1")] = 0.5,
    rounds: Annotated[int, typer.Option(help="of playing and learning")] = 100,
    save_every: Annotated[float, typer.Option(help="least seconds from one checkpoint to the next")] = 0.0,
    prompts: Annotated[int, typer.Option(help="matrices a round, in all processes together")] = 64,
    group: Annotated[int, typer.Option(help="programs a matrix and round")] = 16,
    turns: Annotated[int, typer.Option(help="most programs an episode, 1 to 3")] = 1,
    judge: Annotated[str, typer.Option(help="local, replay:FOLDER or ray://HOST:PORT")] = "local",
    device: Annotated[str, typer.Option(help="cuda or sim: where programs are judged")] = "cuda",
    learn_on: Annotated[str, typer.Option(help="auto, cuda or cpu: where the policy is trained")] = "auto",
    matrices: Matrices = None,
    collection: Annotated[Path | None, typer.Option(help="Collection with the best times known.")] = None,
    samples: Samples = None,
    only_samples: Annotated[
        bool, typer.Option("--only-samples", help="Make that file and the one of what is admitted beside it, and stop.")
    ] = False,
    cases: Annotated[int, typer.Option(help="generated matrices for SpMV; half as many for SpMM")] = 800,
    large: Annotated[int, typer.Option(help="also so many of more than two million nonzeros, for SpMV")] = 0,
    drawn: Annotated[
        int, typer.Option(help="also so many of those that the encoder learns from; half as many for SpMM")
    ] = 0,
    large_drawn: Annotated[int, typer.Option(help="also so many of these that are large, for SpMV")] = 0,
    twisted: Annotated[
        int, typer.Option(help="also so many that real ones of --matrices are made into; half as many for SpMM")
    ] = 0,
    strewn: Annotated[
        int, typer.Option(help="also so many generated ones with a few entries anywhere; half as many for SpMM")
    ] = 0,
    far: Annotated[
        int, typer.Option(help="also so many of farther sizes, the largest for --admit-steps alone; half for SpMM")
    ] = 0,
    shown: Annotated[
        int, typer.Option(help="also so many small ones of each of five kinds, for SpMV and --admit-steps alone")
    ] = 0,
    most_nonzeros: Annotated[float, typer.Option(help="Smaller matrices only, such as 5e3 for the simulator.")] = 0.0,
    count: Annotated[int, typer.Option(help="only so many of all matrices and problems, by the seed; 0: all")] = 0,
    problem: Annotated[list[str] | None, typer.Option(help="'spmv f32', 'spmm f32 64' … [all the tested ones]")] = None,
    reward: Annotated[str, typer.Option(help="hierarchical, speed or correct")] = "hierarchical",
    mode: Annotated[list[str] | None, typer.Option(help="whose times count; several: their mean [solver]")] = None,
    even: Annotated[
        float, typer.Option(help="share of a round in turn; 1: hard matrices don't come more often")
    ] = 0.25,
    explored: Annotated[float, typer.Option(help="share of a group that starts from a layout drawn for it")] = 0.5,
    varied: Annotated[int, typer.Option(help="mutations of each matrix's winner that are judged too, a round")] = 0,
    imitate_steps: Annotated[int, typer.Option(help="supervised steps on verified winners a round")] = 4,
    choose_steps: Annotated[int, typer.Option(help="steps a round on what layouts have earned on each matrix")] = 0,
    admit_steps: Annotated[int, typer.Option(help="steps a round on which layouts matrices admit, no judge asked")] = 0,
    kl: Annotated[float | None, typer.Option(help="weight of the KL to the round's first policy [its own]")] = None,
    entropy: Annotated[float | None, typer.Option(help="weight of the entropy bonus [none]")] = None,
    keep: Annotated[
        float | None, typer.Option(help="weight of what is lost of what the run's first policy was sure of [its own]")
    ] = None,
    epochs: Annotated[int, typer.Option(help="times that a round's rollouts are gone through")] = 1,
    minibatch: Annotated[int, typer.Option(help="rollouts of an optimiser step")] = 256,
    max_tokens: Annotated[int, typer.Option(help="most tokens of a program")] = 1536,
    temperature: Annotated[float, typer.Option(help="that programs are drawn at, and that counts in learning")] = 0.7,
    target: Annotated[str | None, typer.Option(help="machine that the policy is told of [h200, or sim]")] = None,
    workers: Annotated[int, typer.Option(help="judging processes; 0: as many as fit")] = 0,
    known: Annotated[
        list[Path] | None, typer.Option(help="Run whose verdicts stand: what was judged before is not judged again.")
    ] = None,
    before: Annotated[
        list[Path] | None, typer.Option(help="Run that came before: its winners are imitated from the start.")
    ] = None,
    frozen: Frozen = False,
    blind: Annotated[bool, typer.Option("--blind", help="Control: every matrix looks the same but for sizes.")] = False,
    shuffled: Annotated[bool, typer.Option("--shuffled", help="Control: rewards are dealt out at random.")] = False,
    resume: Resume = False,
    learning_rate: Rate = None,
    warmup: Warmup = None,
    budget: Budget = 0.0,
    seed: Annotated[int, typer.Option(help="of what is played, drawn and learnt")] = 0,
) -> None:
    """Learn from the compiler's verdict and the clock."""
    given = dict(locals())
    from sparserl.train.rl.crew import open_crew
    from sparserl.train.rl.loop import rl as run
    from sparserl.train.rl.table import read_prompts

    config, places = _asked(given)
    if only_samples:
        made = read_prompts(config, places, open_crew(cpu=True))
        typer.echo(f"{places.samples_file}: {len(made.sampled)} matrices; {len(made.played)} prompts are played")
        return
    with progress("rl") as watch:
        found = run(config, places, watch)
    _say(found)
    if not found.complete:
        time_is_up()


def rl_many(
    plan: Annotated[Path, typer.Argument(help="File of runs: a line is what follows `sparserl train rl`.")],
    budget: Annotated[float, typer.Option(help="Seconds for all of them; then stop cleanly. 0: no limit.")] = 0.0,
) -> None:
    """Runs of `train rl` one after the other, with one judge, which remembers what it has judged."""
    from sparserl.train.rl.several import several

    runs = read_plan(plan)
    complete = True
    with progress("rl") as watch:
        for found in several(runs, watch, budget):
            _say(found)
            complete = found.complete
    if not complete:
        time_is_up("call again to go on")
    typer.echo(f"{plan}: all of its {len(runs)} runs are done.")


def read_plan(path: Path) -> list[tuple[RLConfig, Places]]:
    """The runs of a plan; empty lines and comments count for nothing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SparseRLError(f"The plan {path} can't be read ({error}).") from error
    app = typer.Typer(add_completion=False)
    app.command()(functools.wraps(rl)(lambda **given: _of_a_plan(given)))
    command = typer.main.get_command(app)
    found = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                found.append(command.main(words, prog_name=f"{path}, line {number}", standalone_mode=False))
        except (UsageError, ValueError) as error:
            said = error.format_message() if isinstance(error, UsageError) else str(error)
            raise SparseRLError(f"{path}, line {number}: {said}") from error
    return found


def _of_a_plan(given: dict[str, Any]) -> tuple[RLConfig, Places]:
    if given["only_samples"]:
        raise SparseRLError("The runs of a plan are trained: give --only-samples to `sparserl train rl`.")
    return _asked(given)


def _asked(given: dict[str, Any]) -> tuple[RLConfig, Places]:
    """What the words of a command line make."""
    from sparserl.train.rl.config import Places

    names = ("out", "weights", "judge", "matrices", "samples", "collection", "workers", "resume")
    known, before = (tuple(given[name] or ()) for name in ("known", "before"))
    return _config(given), Places(**{name: given[name] for name in names}, known=known, before=before)


def _config(given: dict[str, Any]) -> RLConfig:
    """The settings that the command line asks for."""
    from sparserl.judge.reward import RewardWeights
    from sparserl.policy.sampler import SampleSettings
    from sparserl.train.commands_collect import problem_of
    from sparserl.train.rl.config import RLConfig
    from sparserl.train.rl.curriculum import CurriculumConfig
    from sparserl.train.rl.episodes import PlayConfig
    from sparserl.train.rl.explore import ExploreConfig
    from sparserl.train.rl.objective import Coefficients

    if given["reward"] not in REWARDS:
        raise SparseRLError(f"The '--reward' must be {', '.join(REWARDS)}. Got {given['reward']!r}.")
    target = given["target"] or ("sim" if given["device"] == "sim" else "h200")
    own = RLConfig()
    named = {name: given[name] for name in ("kl", "entropy", "keep") if given[name] is not None}
    loop = {name: given[name] for name in ("learning_rate", "warmup") if given[name] is not None}
    loop |= {"save_every_s": given["save_every"], "budget_s": given["budget"], "device": given["learn_on"]}
    same = ("algorithm", "objective", "k", "mean_share", "rounds", "epochs", "minibatch", "varied", "choose_steps",
            "imitate_steps", "admit_steps", "frozen", "blind", "shuffled")  # fmt: skip
    curriculum = CurriculumConfig(
        prompts=given["prompts"], spmv_cases=given["cases"], spmm_cases=(given["cases"] + 1) // 2,
        large=given["large"], drawn=given["drawn"], real=given["matrices"] is not None, twisted=given["twisted"],
        large_drawn=given["large_drawn"], strewn=given["strewn"], most_nonzeros=given["most_nonzeros"],
        far=given["far"], shown=given["shown"], count=given["count"], even=given["even"], seed=given["seed"],
    )  # fmt: skip
    if given["problem"]:
        problems = tuple(problem_of(text) for text in given["problem"])
        curriculum = replace(curriculum, problems=problems, shares=(1.0,) * len(problems))
    try:
        play = PlayConfig(
            count=given["group"], explored=given["explored"], turns=given["turns"], machine=target,
            modes=tuple(given["mode"] or own.play.modes),
            settings=SampleSettings(given["temperature"], max_tokens=given["max_tokens"], batch=TOGETHER),
        )  # fmt: skip
        return RLConfig(
            judged_on=given["device"],
            play=play,
            explore=ExploreConfig(machine=target),
            curriculum=curriculum,
            weights=RewardWeights(form=REWARDS[given["reward"]]),  # type: ignore[arg-type]  # checked above
            coefficients=replace(Coefficients(), **named),
            loop=replace(own.loop, seed=given["seed"], **loop),
            **{name: given[name] for name in same},
        )
    except ValueError as error:
        raise SparseRLError(str(error)) from error


def _say(found: Finished) -> None:
    checks = ", ".join(f"{name.replace('/', ' ')} {value:.4f}" for name, value in found.checks.items())
    typer.echo(
        f"{found.folder}/policy: round {found.step} of {found.steps}, {found.tokens} tokens written "
        f"in {found.seconds:.0f} s{'; ' + checks if checks else ''}"
    )
