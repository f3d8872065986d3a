"""`sparserl train pretrain`, `sft`, `worth`, `turns`, `rank`, `ship`: the commands, their progress and what they print.

A run that stopped because its `--budget` was spent ends with exit code 75 (try again): call it again with `--resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

import typer

from sparserl.errors import TRY_AGAIN, SparseRLError

if TYPE_CHECKING:
    from sparserl.train.loop import Finished, LoopConfig, Progress

Switch = Literal["auto", "on", "off"]

UsageError: Any = typer.BadParameter.__mro__[1]
"""of a command line itself; typer brings its own copy of click or uses the installed one, and exports the subclass"""

Out = Annotated[Path, typer.Option(help="Folder of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in OUT, if there is one.")]
Budget = Annotated[float, typer.Option(help="Seconds; then stop cleanly with a checkpoint. 0: no limit.")]
Device = Annotated[str, typer.Option(help="auto, cuda or cpu")]
Compile = Annotated[str, typer.Option(help="torch.compile: auto, on or off")]
Rate = Annotated[float | None, typer.Option(help="learning rate after the warm-up [the stage's own]")]
Warmup = Annotated[int | None, typer.Option(help="steps [the stage's own]")]
Seed = Annotated[int, typer.Option(help="of weights and of the order of the data")]
Frozen = Annotated[bool, typer.Option("--frozen", help="Leave the encoder as it is.")]
BatchTokens = Annotated[int, typer.Option(help="tokens of a step")]
Longest = Annotated[int, typer.Option(help="tokens of a program; longer ones are left out")]
Samples = Annotated[Path | None, typer.Option(help="File of matrix samples, made once [OUT/samples.npz].")]
Matrices = Annotated[Path | None, typer.Option(help="Folder with the real matrices of the collection.")]
Target = Annotated[str, typer.Option(help="machine that the collection was measured on, such as h200 or sim")]
Again = Annotated[Path | None, typer.Option(help="Folder of estimates to be gone over again beside the collection.")]
AgainSamples = Annotated[Path | None, typer.Option(help="Their file of samples, made once [OUT/again.npz].")]
AgainShare = Annotated[float, typer.Option(help="share of the draws that go over them, where there are some")]
FromCollection = Annotated[Path, typer.Option(help="Folder that `sparserl train collect` wrote.")]


def pretrain(
    *,
    out: Out,
    corpus: Annotated[Path | None, typer.Option(help="Corpus folder, or any folder with .cu and .cuh files.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="File of the encoded corpus, made once [OUT/tokens.npz].")] = None,
    only_tokens: Annotated[bool, typer.Option("--only-tokens", help="Make that file and stop.")] = False,
    weights: Annotated[Path | None, typer.Option(help="Begin with these weights, where they broke off.")] = None,
    resume: Resume = False,
    size: Annotated[str, typer.Option(help="tiny or nano")] = "nano",
    epochs: Annotated[int, typer.Option(help="times that the corpus is read")] = 4,
    context: Annotated[int, typer.Option(help="tokens of a row")] = 1024,
    batch_tokens: BatchTokens = 32768,
    learning_rate: Rate = None,
    warmup: Warmup = None,
    budget: Budget = 0.0,
    device: Device = "auto",
    compile: Compile = "auto",
    seed: Seed = 0,
) -> None:
    """Pretrain the language model on CUDA text."""
    from sparserl.train.pretrain import Places, PretrainConfig, documents_of
    from sparserl.train.pretrain import pretrain as run

    config = PretrainConfig(size, epochs, context, batch_tokens)
    config = replace(config, loop=_loop(config.loop, learning_rate, warmup, (budget, device, compile, seed)))
    places = Places(out, corpus, tokens, weights, resume)
    if only_tokens:
        train, dev = documents_of(places)
        typer.echo(f"{tokens or out / 'tokens.npz'}: {len(train.ids)} tokens to learn from, {len(dev.ids)} held out")
        return
    with progress("pretrain") as watch:
        found = run(config, places, watch)
    _say(found)


def sft(
    *,
    out: Out,
    collection: FromCollection,
    weights: Annotated[Path | None, typer.Option(help="Begin with these weights [fresh ones].")] = None,
    encoder: Annotated[Path | None, typer.Option(help="Pretrained encoder [that of the weights].")] = None,
    samples: Samples = None,
    only_samples: Annotated[bool, typer.Option("--only-samples", help="Make that file and stop.")] = False,
    matrices: Matrices = None,
    target: Target = "h200",
    resume: Resume = False,
    blind: Annotated[bool, typer.Option("--blind", help="Control: the encoder sees sizes and problem alone.")] = False,
    features: Annotated[bool, typer.Option("--features", help="Control: it reads named features.")] = False,
    learnt: Annotated[bool, typer.Option("--learnt", help="Control: learnt tables in place of sinusoids.")] = False,
    fraction: Annotated[float, typer.Option(help="of the pairs of matrix and program, at random")] = 1.0,
    again: Again = None,
    again_samples: AgainSamples = None,
    again_share: AgainShare = 0.5,
    frozen: Frozen = False,
    thin: Annotated[float, typer.Option(help="share of a matrix's sample that a step may leave out")] = 0.0,
    pull: Annotated[float, typer.Option(help="what a fork counts, where a token counts 1; 0: no forks")] = 0.0,
    size: Annotated[str, typer.Option(help="tiny or nano, where there are no weights")] = "nano",
    epochs: Annotated[int, typer.Option(help="times that the pairs are gone through")] = 6,
    least_steps: Annotated[int, typer.Option(help="Go through more often where there are fewer steps.")] = 200,
    batch_tokens: BatchTokens = 32768,
    longest: Longest = 2560,
    learning_rate: Rate = None,
    warmup: Warmup = None,
    budget: Budget = 0.0,
    device: Device = "auto",
    compile: Compile = "auto",
    seed: Seed = 0,
) -> None:
    """Fine-tune a policy on the programs that were fast on each matrix."""
    from sparserl.train.collected import load
    from sparserl.train.sft import Places, SFTConfig, matrix_samples
    from sparserl.train.sft import sft as run

    controls = [name for name, on in (("blind", blind), ("features", features), ("learnt", learnt)) if on]
    if len(controls) > 1:
        raise SparseRLError(f"Choose one of --blind, --features and --learnt. Got --{' --'.join(controls)}.")
    reads: Any = controls[0] if controls else "matrix"
    config = SFTConfig(size, reads, target, epochs, least_steps, batch_tokens, longest, fraction)
    config = replace(config, frozen=frozen, thin=thin, pull=pull, again=again_share if again else 0.0)
    config = replace(config, loop=_loop(config.loop, learning_rate, warmup, (budget, device, compile, seed)))
    places = Places(out, collection, weights, encoder, samples, matrices, resume, again, again_samples)
    if only_samples:
        made = matrix_samples(places, load(collection))
        typer.echo(f"{places.samples_file}: {len(made)} matrices")
        return
    with progress("sft") as watch:
        found = run(config, places, watch)
    _say(found)


def worth(
    *,
    out: Out,
    collection: FromCollection,
    weights: Annotated[Path, typer.Option(help="Folder of the pretraining run.")],
    encoder: Annotated[Path, typer.Option(help="Pretrained encoder, or a policy that has one, for all runs.")],
    samples: Samples = None,
    matrices: Matrices = None,
    target: Target = "h200",
    fraction: Annotated[list[float] | None, typer.Option(help="of the pairs; several times [0.01, 0.1, 1]")] = None,
    seeds: Annotated[int, typer.Option(help="runs of each kind")] = 3,
    size: Annotated[str, typer.Option(help="tiny or nano, of those without pretraining")] = "nano",
    epochs: Annotated[int, typer.Option(help="times that the pairs are gone through")] = 3,
    least_steps: Annotated[int, typer.Option(help="Go through more often where there are fewer steps.")] = 200,
    batch_tokens: BatchTokens = 32768,
    share: Annotated[str, typer.Option(help="I/N: every N-th run from the I-th on, for N processes.")] = "0/1",
    budget: Annotated[float, typer.Option(help="Seconds for all of them; then stop cleanly. 0: no limit.")] = 0.0,
    device: Device = "auto",
    compile: Compile = "auto",
) -> None:
    """Fine-tune with and without pretraining, on parts of the pairs, and say what it is worth."""
    from sparserl.shares import TIME_IS_UP, share_of
    from sparserl.store import read_jsonl
    from sparserl.train.sft import Places, SFTConfig
    from sparserl.train.worth import RECORDS, WorthConfig, table
    from sparserl.train.worth import worth as run

    base = SFTConfig(size, target=target, epochs=epochs, least_steps=least_steps, batch_tokens=batch_tokens)
    base = replace(base, loop=_loop(base.loop, None, None, (0.0, device, compile, 0)))
    config = WorthConfig(tuple(fraction or WorthConfig.fractions), tuple(range(seeds)), base)
    places = Places(out, collection, weights, encoder, samples or out / "samples.npz", matrices)
    with progress("worth") as watch:
        for line in run(config, places, share=share_of(share), budget_s=budget, watch=watch):
            typer.echo(line)
            if line == TIME_IS_UP:
                raise typer.Exit(TRY_AGAIN)
    typer.echo(table(read_jsonl(out / RECORDS)))


def turns(
    *,
    out: Out,
    collection: FromCollection,
    weights: Annotated[Path, typer.Option(help="Folder of the fine-tuning run: where to begin.")],
    samples: Samples = None,
    matrices: Matrices = None,
    target: Target = "h200",
    resume: Resume = False,
    alone: Annotated[float, typer.Option(help="share of the draws that are first programs, as in fine-tuning")] = 0.5,
    epochs: Annotated[int, typer.Option(help="times that pairs and programs are gone through")] = 2,
    least_steps: Annotated[int, typer.Option(help="Go through more often where there are fewer steps.")] = 100,
    batch_tokens: BatchTokens = 32768,
    longest: Annotated[int, typer.Option(help="tokens of two programs and the line between; longer: left out")] = 2816,
    learning_rate: Rate = None,
    warmup: Warmup = None,
    budget: Budget = 0.0,
    device: Device = "auto",
    compile: Compile = "auto",
    seed: Seed = 0,
) -> None:
    """Teach a policy to write a program again, told how it fared: for `train rl` and `tune` with --turns."""
    from sparserl.train.sft import Places
    from sparserl.train.turns import TurnsConfig
    from sparserl.train.turns import turns as run

    config = TurnsConfig(target, epochs, least_steps, batch_tokens, longest, alone)
    config = replace(config, loop=_loop(config.loop, learning_rate, warmup, (budget, device, compile, seed)))
    with progress("turns") as watch:
        found = run(config, Places(out, collection, weights, None, samples, matrices, resume), watch)
    _say(found)


def rank(
    *,
    out: Out,
    collection: FromCollection,
    weights: Annotated[Path, typer.Option(help="Folder of the fine-tuning run: where to begin.")],
    samples: Samples = None,
    matrices: Matrices = None,
    target: Target = "h200",
    resume: Resume = False,
    pull: Annotated[float, typer.Option(help="what a fork counts, where a token counts 1")] = 4.0,
    again: Again = None,
    again_samples: AgainSamples = None,
    again_share: AgainShare = 0.5,
    frozen: Frozen = False,
    epochs: Annotated[int, typer.Option(help="times that the programs are gone through")] = 1,
    batch_tokens: BatchTokens = 32768,
    longest: Longest = 2560,
    learning_rate: Rate = None,
    warmup: Warmup = None,
    budget: Budget = 0.0,
    device: Device = "auto",
    compile: Compile = "auto",
    seed: Seed = 0,
) -> None:
    """Where two measured programs of a matrix part, make the way to the better one more likely."""
    from sparserl.store import read_jsonl
    from sparserl.train.loop import CHECKS
    from sparserl.train.rank import RANK
    from sparserl.train.rank import rank as run
    from sparserl.train.sft import Places

    loop = _loop(RANK.loop, learning_rate, warmup, (budget, device, compile, seed))
    config = replace(RANK, target=target, epochs=epochs, batch_tokens=batch_tokens, longest=longest, loop=loop)
    config = replace(config, frozen=frozen, pull=pull, again=again_share if again else 0.0)
    places = Places(out, collection, weights, None, samples, matrices, resume, again, again_samples)
    with progress("rank") as watch:
        found = run(config, places, watch)
    checks = read_jsonl(out / CHECKS)
    if checks and "forks_right" in checks[0] and found.complete:
        before, after = checks[0]["forks_right"], checks[-1]["forks_right"]
        typer.echo(f"dev forks with the better way more probable: {before:.1%} before, {after:.1%} after")
    _say(found)


def ship(
    *,
    policy: Annotated[Path, typer.Option(help="Folder of a policy, such as RUN/policy.")],
    out: Annotated[Path, typer.Option(help="Folder to write: the same policy with weights of 8 bits.")],
    temperature: Annotated[float, typer.Option(help="at which it is to be sampled")] = 1.0,
    top_p: Annotated[float, typer.Option(help="least probability of the tokens that are drawn from")] = 1.0,
    target: Annotated[str, typer.Option(help="the one machine that it was trained for; '' for several")] = "h200",
    problem: Annotated[
        list[str] | None, typer.Option(help="'spmv f32' …: what `tune` takes it for unasked [nothing]; again for more")
    ] = None,
    blend: Annotated[
        Path | None, typer.Option(help="Folder of the policy that it was made of, for weights between the two.")
    ] = None,
    blend_share: Annotated[float, typer.Option(help="how far to go back towards that one, 0 to 1")] = 0.3,
) -> None:
    """Write a policy as small as it is shipped, with how it is to be used."""
    from sparserl.policies import problem_class
    from sparserl.policy.checkpoint import load_policy, read_config, save_policy
    from sparserl.train.blend import blended
    from sparserl.train.commands_collect import problem_of
    from sparserl.train.loop import weights_sha

    known = sorted({problem_class(problem_of(each)) for each in problem or ()})
    sampling = {"temperature": temperature, "top_p": top_p}
    notes = {**read_config(policy)["notes"], "sampling": sampling, "machine": target, "problems": known}
    made = load_policy(policy)
    if blend is not None:
        made = blended(made, load_policy(blend), blend_share)
        notes |= {"blend": {"share": blend_share, "with": weights_sha(blend)}}
    save_policy(made, out, weights="int8", notes=notes)
    typer.echo(f"{out}: {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB")


def _loop(
    own: LoopConfig, learning_rate: float | None, warmup: int | None, rest: tuple[float, str, str, int]
) -> LoopConfig:
    """A stage's loop with what the command line says otherwise."""
    budget, device, compile, seed = rest
    if learning_rate is not None:
        own = replace(own, learning_rate=learning_rate)
    if warmup is not None:
        own = replace(own, warmup=warmup)
    try:
        return replace(own, budget_s=budget, device=device, compile=cast(Switch, compile), seed=seed)
    except ValueError as error:
        raise SparseRLError(str(error)) from error


@contextmanager
def progress(stage: str) -> Iterator[Callable[[Progress], None]]:
    """A live bar on stderr; where that is no terminal, a line ten times a run."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = [TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Bar(*columns, TimeRemainingColumn(), TextColumn("{task.fields[now]}"), console=console) as bar:
        task = bar.add_task(stage, total=None, now="")

        def watch(step: Progress) -> None:
            bar.update(task, completed=step.step, total=step.steps, now=_now(step))

        yield watch


def _lines(console: Any) -> Callable[[Progress], None]:
    tenths: set[int] = set()

    def watch(step: Progress) -> None:
        tenth = 10 * step.step // max(1, step.steps)
        if tenth not in tenths:
            tenths.add(tenth)
            console.print(f"{step.stage} {step.step} of {step.steps}: {_now(step)}", soft_wrap=True)

    return watch


def _now(step: Progress) -> str:
    checks = "".join(f", {name.replace('_', ' ')} {value:.3f}" for name, value in step.checks.items())
    return f"loss {step.loss:.3f}{checks}, {step.tokens_per_s:,.0f} tokens/s"


def _say(found: Finished) -> None:
    checks = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.checks.items())
    speed = found.tokens / max(1e-9, found.seconds)
    typer.echo(
        f"{found.folder}/policy: step {found.step} of {found.steps}, {found.tokens} tokens in {found.seconds:.0f} s "
        f"({speed:,.0f} a second){'; ' + checks if checks else ''}"
    )
    if not found.complete:
        time_is_up()


def time_is_up(how: str = "call again with --resume to go on, or elsewhere with --weights") -> NoReturn:
    """Say so and leave with the code that asks to be called again."""
    typer.echo(f"The time is up: {how}.")
    raise typer.Exit(TRY_AGAIN)
