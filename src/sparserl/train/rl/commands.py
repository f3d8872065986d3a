"""`sparserl train climb`, `play`, `beyond` and `curves`: the commands. What they do is in `climbing`, `playing`, …

A command that stopped because its `--budget` was spent ends with exit code 75 (try again): call it again, with the same
arguments, and it goes on.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparserl.errors import TRY_AGAIN, SparseRLError

if TYPE_CHECKING:
    from sparserl.train.rl.climbing import Wanted
    from sparserl.train.rl.fitted import FitConfig
    from sparserl.train.rl.referee import Referee
    from sparserl.train.rl.tried import Tried

Out = Annotated[Path, typer.Option(help="Folder of the records; a run that was stopped goes on there.")]
Matrices = Annotated[Path | None, typer.Option(help="Folder with the real matrices.")]
Device = Annotated[str, typer.Option(help="cuda or sim")]
Modes = Annotated[list[str] | None, typer.Option(help="whose times count; several: their mean [solver]")]
Count = Annotated[int, typer.Option(help="matrices, drawn at random by the seed; 0: all")]
First = Annotated[int, typer.Option(help="recipes a matrix that the search for the best begins with")]
Workers = Annotated[int, typer.Option(help="processes side by side; 0: as many as fit")]
Budget = Annotated[float, typer.Option(help="Seconds; what is left is done by the next call. 0: no limit.")]
Seed = Annotated[int, typer.Option(help="of what is drawn")]


def climb(
    *,
    out: Out,
    like: Annotated[list[Path] | None, typer.Option(help="RL run: its matrices, as many judged tries on each.")] = None,
    tries: Annotated[int, typer.Option(help="programs judged on a matrix; 0: as many as the run --like")] = 0,
    cases: Annotated[
        int, typer.Option(help="without --like: generated matrices for SpMV; half as many for SpMM")
    ] = 100,
    problem: Annotated[list[str] | None, typer.Option(help="'spmv f32', 'spmm f32 64' … [all the tested ones]")] = None,
    most_nonzeros: Annotated[float, typer.Option(help="without --like: smaller matrices only")] = 0.0,
    count: Count = 0,
    batch: Annotated[int, typer.Option(help="variants judged between two looks at the incumbent")] = 8,
    together: Annotated[int, typer.Option(help="climbs side by side, that are broken off or kept together")] = 32,
    device: Device = "cuda",
    matrices: Matrices = None,
    mode: Modes = None,
    first: First = 240,
    workers: Workers = 0,
    budget: Budget = 0.0,
    seed: Seed = 0,
) -> None:
    """Hill-climbing from the best recipe, with as many judged tries: the control of reinforcement learning."""
    from sparserl.train.rl.climb import ClimbConfig
    from sparserl.train.rl.climbing import CLIMBS as CLIMBED
    from sparserl.train.rl.climbing import ClimbingConfig, begun_with, climbing, complete

    given = dict(locals())
    modes = tuple(mode or ("solver",))
    fit = _fit(given, modes)
    wanted = begun_with(out, lambda: _wanted(given, modes))
    if complete(list(wanted), out):
        _leave(True, str(out / CLIMBED))
        return
    own = ClimbConfig(tries=tries or 1, batch=batch, modes=modes, seed=seed)
    with closing(_referee(given, modes)) as referee:
        for line in climbing(wanted, referee, ClimbingConfig(own, fit, together), out, budget or float("inf")):
            typer.echo(line)
    _leave(complete(list(wanted), out), str(out / CLIMBED))


def _wanted(given: dict[str, Any], modes: tuple[str, ...]) -> Wanted:
    from sparserl.train.commands_collect import problem_of
    from sparserl.train.rl.climbing import read_wanted
    from sparserl.train.rl.curriculum import PROBLEMS, CurriculumConfig, every_prompt
    from sparserl.train.rl.nouns import prompt_key
    from sparserl.train.rl.tried import drawn, from_rollouts

    problems = tuple(problem_of(text) for text in given["problem"] or ()) or PROBLEMS
    tries = given["tries"]
    if given["like"]:
        climbs = {folder: read_wanted(folder) for folder in given["like"]}
        held = {key: (prompt, tries or count) for each in climbs.values() for key, (prompt, count) in each.items()}
        runs = [folder for folder in given["like"] if not climbs[folder]]
        found = from_rollouts(runs, modes)
        held |= {key: (each.prompt, tries or each.tries) for key, each in found.items()}
        return drawn(
            {k: each for k, each in held.items() if each[0].problem in problems}, given["count"], given["seed"]
        )
    if tries < 1:
        raise SparseRLError("Say how many programs are judged on a matrix: --tries, or --like with an RL run.")
    config = CurriculumConfig(
        problems=problems, shares=(1.0,) * len(problems), spmv_cases=given["cases"],
        spmm_cases=(given["cases"] + 1) // 2, real=given["matrices"] is not None,
        most_nonzeros=given["most_nonzeros"],
    )  # fmt: skip
    prompts = every_prompt(config)
    return drawn({prompt_key(prompt): (prompt, tries) for prompt in prompts}, given["count"], given["seed"])


def _referee(given: dict[str, Any], modes: tuple[str, ...]) -> Referee:
    from sparserl.train.rl.referee import RefereeConfig, open_referee

    settings = {name: given[name] for name in ("device", "workers", "seed")}
    settings |= {"modes": modes, "folder": str(given["matrices"] or "")}
    try:
        return open_referee(given["device"], RefereeConfig(**settings))
    except ValueError as error:
        raise SparseRLError(str(error)) from error


def play(
    *,
    out: Out,
    weights: Annotated[Path, typer.Option(help="Folder of the policy that plays.")],
    like: Annotated[list[Path], typer.Option(help="RL run, or climbs: its matrices, as many judged tries on each.")],
    tries: Annotated[int, typer.Option(help="programs judged on a matrix; 0: as many as --like")] = 0,
    problem: Annotated[list[str] | None, typer.Option(help="'spmv f32', 'spmm f32 64' … [all the tested ones]")] = None,
    count: Count = 0,
    group: Annotated[int, typer.Option(help="programs of a matrix that are written together")] = 32,
    draws: Annotated[int, typer.Option(help="so many times as many are written; those that differ are judged")] = 1,
    prompts: Annotated[int, typer.Option(help="matrices a round")] = 64,
    temperature: Annotated[float | None, typer.Option(help="in place of the policy's own")] = None,
    device: Device = "cuda",
    learn_on: Annotated[str, typer.Option(help="auto, cuda or cpu: where the policy runs")] = "auto",
    matrices: Matrices = None,
    samples: Annotated[Path | None, typer.Option(help="File of matrix samples, made once [OUT/samples.npz]")] = None,
    mode: Modes = None,
    target: Annotated[str | None, typer.Option(help="machine that the policy is told of [h200, or sim]")] = None,
    workers: Workers = 0,
    budget: Budget = 0.0,
    seed: Seed = 0,
) -> None:
    """A policy writes for the matrices of a run again and learns nothing: what it finds now, with as many tries."""
    from sparserl.train.rl.playing import ROUNDS, PlayingConfig, complete, playing

    given = dict(locals())
    modes = tuple(mode or ("solver",))
    told = target or ("sim" if device == "sim" else "h200")
    own = PlayingConfig(
        weights, device, group, draws, prompts, temperature, told,  # type: ignore[arg-type]  # it checks the device itself
        modes=modes, learn_on=learn_on, seed=seed,
    )  # fmt: skip
    wanted = _wanted(given, modes)
    places = {"matrices": matrices, "samples": samples, "budget_s": budget or float("inf")}
    with closing(_referee(given, modes)) as referee:
        for line in playing(wanted, referee, own, out, **places):  # type: ignore[arg-type]
            typer.echo(line)
    _leave(complete(wanted, own, out), str(out / ROUNDS))


def beyond(
    *,
    out: Out,
    rollouts: Annotated[list[Path] | None, typer.Option(help="RL run whose programs are looked at.")] = None,
    evaluation: Annotated[Path | None, typer.Option(help="Or what `sparserl eval` wrote.")] = None,
    writer: Annotated[str, typer.Option(help="of --evaluation: whose samples")] = "",
    climb: Annotated[
        Path | None, typer.Option(help="What `sparserl train climb` wrote, raced beside: its matrices alone.")
    ] = None,
    within: Annotated[int, typer.Option(help="only the last so many programs of each matrix; 0: all")] = 0,
    count: Count = 0,
    few: Annotated[int, typer.Option(help="new programs a matrix in the heat")] = 4,
    processes: Annotated[int, typer.Option(help="fresh processes of the final, at least 3")] = 3,
    rounds: Annotated[int, typer.Option(help="times that each program is timed, in turns, at least 7")] = 11,
    ahead: Annotated[float, typer.Option(help="how far ahead a new program must be in the heat")] = 1.0,
    device: Device = "cuda",
    matrices: Matrices = None,
    mode: Modes = None,
    first: First = 240,
    workers: Workers = 0,
    budget: Budget = 0.0,
    seed: Seed = 0,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="Only try what counts on other patterns, on the simulator.")
    ] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Only make the tables again.")] = False,
) -> None:
    """Race structurally new programs against the best recipes, in fresh processes, and count who wins."""
    from sparserl.train.rl import beyond_report
    from sparserl.train.rl.beyond import BeyondConfig, complete
    from sparserl.train.rl.beyond import beyond as run
    from sparserl.train.rl.climbing import from_climbs, read_wanted
    from sparserl.train.rl.elsewhere import judged_elsewhere
    from sparserl.train.rl.side_by_side import RaceConfig
    from sparserl.train.rl.tried import drawn

    given = dict(locals())
    if elsewhere:
        found, _ = beyond_report.read_standings(out)
        for line in judged_elsewhere([(each.problem, each.text) for each in found if each.beyond], out):
            typer.echo(line)
    if elsewhere or report_only:
        _say_beyond(beyond_report.write(out), out)
        return
    modes = tuple(mode or ("solver",))
    race = RaceConfig(device, modes, rounds, workers=workers, folder=str(matrices or ""))  # type: ignore[arg-type]
    config = BeyondConfig(_fit(given, modes), race, few, processes=processes, ahead=ahead)
    climbs = from_climbs(climb) if climb is not None else {}
    climbed = read_wanted(climb) if climb is not None else {}
    tried = {key: each for key, each in _tried(given, modes).items() if not climbed or key in climbed}
    tried = drawn(tried, count, seed)
    for line in run(tried, climbs, config, out, budget or float("inf")):
        typer.echo(line)
    _say_beyond(beyond_report.write(out), out)
    _leave(complete(tried, config, out), str(out / "beyond.md"))


def _tried(given: dict[str, Any], modes: tuple[str, ...]) -> dict[str, Tried]:
    from sparserl.train.rl.tried import from_evaluation, from_rollouts

    if bool(given["rollouts"]) == bool(given["evaluation"]):
        raise SparseRLError("Name either --rollouts, an RL run, or --evaluation, a folder of `sparserl eval`.")
    if given["rollouts"]:
        return from_rollouts(given["rollouts"], modes, given["within"])
    return from_evaluation(given["evaluation"], given["writer"], modes)


def _say_beyond(found: dict[str, Any], out: Path) -> None:
    every, climb = found["all"], found["climb"]
    line = (
        f"{out}/beyond.md: beyond the best recipe by {100 * (found['margin'] - 1):.0f} % on {every['beyond']} of "
        f"{every['matrices']} matrices ({100 * every['share']:.1f} %)"
    )
    if climb is not None:
        line += f"; against climbing {climb['wins']} won, {climb['losses']} lost, {climb['ties']} ties"
    typer.echo(line)


def curves(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders called NAME-SEED, or an ablations.json; the first is the base.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="Folder of the table and the curves, such as results/NAME.")],
    k: Annotated[int, typer.Option(help="of best-of-k, judged programs")] = 8,
    mode: Modes = None,
    note: Annotated[str, typer.Option(help="a sentence that is to stand below the table")] = "",
) -> None:
    """Hold RL runs against each other: a table with the spread over seeds, and curves over judged programs."""
    from sparserl.train.rl.curves import write

    typer.echo(write(runs, out, k, tuple(mode or ("solver",)), note))


def _fit(given: dict[str, Any], modes: tuple[str, ...]) -> FitConfig:
    from sparserl.train.rl.fitted import FitConfig

    second = max(1, min(24, given["first"]))
    return FitConfig(
        given["device"], given["first"], second, modes=modes, workers=given["workers"],
        folder=str(given["matrices"] or ""),
    )  # fmt: skip


def _leave(done: bool, where: str) -> None:
    if done:
        typer.echo(where)
        return
    typer.echo("Not everything is measured yet: call again with the same arguments to go on.")
    raise typer.Exit(TRY_AGAIN)
