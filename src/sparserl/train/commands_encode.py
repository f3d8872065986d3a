"""`sparserl train encoder` and `probe`: the command lines of the encoder's pretraining and of what it came to know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

if TYPE_CHECKING:
    from sparserl.train.probes import ProbeReport

Split = Literal["dev", "unseen"]


def encoder(
    *,
    out: Annotated[Path, typer.Option(help="folder of the run; a run that was stopped goes on there")],
    matrices: Annotated[int, typer.Option(min=1, help="generated matrices to learn from")] = 50_000,
    withheld: Annotated[int, typer.Option(min=2, help="matrices of withheld families for the probes")] = 2_000,
    epochs: Annotated[float, typer.Option(min=0.0, help="passes over the matrices")] = 20.0,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    largest: Annotated[float, typer.Option(min=1e3, help="nonzeros of the largest matrix, about")] = 3e6,
    width: Annotated[int, typer.Option(min=8, help="width of the language model")] = 384,
    inner: Annotated[int, typer.Option(min=8, help="width inside the encoder")] = 256,
    queries: Annotated[int, typer.Option(min=1, help="pooled vectors")] = 32,
    embedding: Annotated[str, typer.Option(help="sinusoidal, or learnt (the control)")] = "sinusoidal",
    source: Annotated[str, typer.Option(help="matrix, or a control: blind, features")] = "matrix",
    collection: Annotated[Path | None, typer.Option(help="folder of a collection, for measured times")] = None,
    real: Annotated[Path | None, typer.Option(help="folder of the real matrices of that collection")] = None,
    samples: Annotated[Path | None, typer.Option(help="file of matrix samples, made once [OUT/samples.npz]")] = None,
    probe_split: Annotated[str, typer.Option(help="dev, or unseen once a released checkpoint")] = "dev",
    also_withheld: Annotated[str, typer.Option(help="further families to leave out and probe, by commas")] = "",
    workers: Annotated[int, typer.Option(min=0, help="processes that make matrices; 0: one a core")] = 0,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Pretrain the matrix encoder on generated matrices, then probe it on withheld families."""
    from sparserl.errors import SparseRLError
    from sparserl.policy.encoder import EncoderSize, Source
    from sparserl.policy.indices import Embedding
    from sparserl.train.collected import load
    from sparserl.train.encode import EncodeConfig, train_encoder
    from sparserl.train.encode_times import Timed, timed_of
    from sparserl.train.samples import samples_of

    try:
        size = EncoderSize(
            inner, queries, embedding=cast(Embedding, embedding), source=cast(Source, source), overall=True
        )
        config = EncodeConfig(
            matrices=matrices, withheld_matrices=withheld, probe_matrices=min(matrices, 4_000), largest=largest,
            width=width, size=size, epochs=epochs, batch=batch, probe_split=cast(Split, probe_split),
            also_withheld=tuple(also_withheld.split(",")) if also_withheld else (),
            workers=workers or os.cpu_count() or 1, seed=seed,
        )  # fmt: skip
    except ValueError as error:
        raise SparseRLError(str(error)) from None
    timed: Timed | None = None
    if collection:
        collected = load(collection)
        timed = timed_of(collected, samples_of(collected.cases, samples or out / "samples.npz", real))
    with _progress() as told:
        _, report = train_encoder(config, out, timed, told)
    _say(report, probe_split)
    typer.echo(f"Encoder in {out / 'encoder'}; all probes in {out / 'probes.json'}.")


def probe(
    *,
    out: Annotated[Path, typer.Option(help="folder for the drawn matrices and probes.json")],
    policy: Annotated[
        Path | None, typer.Option(help="folder of a policy or of an encoder [the shipped policy]")
    ] = None,
    split: Annotated[str, typer.Option(help="dev, or unseen once a released checkpoint")] = "dev",
    matrices: Annotated[int, typer.Option(min=10, help="of kept families, to fit the probes on")] = 4_000,
    withheld: Annotated[int, typer.Option(min=2, help="of withheld families, to score them on")] = 2_000,
    largest: Annotated[float, typer.Option(min=1e3, help="nonzeros of the largest matrix, about")] = 3e6,
    workers: Annotated[int, typer.Option(min=0, help="processes that make matrices; 0: one a core")] = 0,
) -> None:
    """Probe an encoder, alone or a policy's: what can be read from it, linearly, on families it never saw."""
    from sparserl.errors import SparseRLError
    from sparserl.policies import SHIPPED
    from sparserl.train.encode import EncodeConfig, load_encoder, probe_policy

    try:
        config = EncodeConfig(
            matrices=matrices, withheld_matrices=withheld, probe_matrices=matrices, largest=largest,
            probe_split=cast(Split, split), workers=workers or os.cpu_count() or 1,
        )  # fmt: skip
    except ValueError as error:
        raise SparseRLError(str(error)) from None
    encoder = load_encoder(policy or SHIPPED)
    with _progress() as told:
        report = probe_policy(encoder, config, out, told)
    _say(report, split)
    typer.echo(f"All probes in {out / 'probes.json'}.")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """One bar a stage."""
    import rich.progress

    with rich.progress.Progress(transient=True) as bars:
        tasks: dict[str, rich.progress.TaskID] = {}

        def told(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield told


def _say(report: ProbeReport, split: str) -> None:
    from sparserl.train.probes import BAR

    typer.echo(f"R² on {report.tested} matrices of withheld families ({split}), bar {BAR}:")
    for name, score in report.barred.items():
        typer.echo(f"  {name:24s} {score:6.3f}")
