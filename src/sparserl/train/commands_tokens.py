"""`sparserl train tokenizer`: make the tokenizer's file from a corpus, and say how long recipe programs are in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def tokenizer(
    *,
    corpus: Annotated[Path, typer.Option(help="folder that `sparserl train corpus` wrote")],
    out: Annotated[Path, typer.Option(help="the file to write, such as tokenizer.json")],
    size: Annotated[int, typer.Option(help="tokens in all, 32 special ones and 256 bytes among them")] = 8192,
) -> None:
    """Train the byte-level BPE tokenizer: CUDA text of the corpus, recipes as a tenth of the bytes."""
    from sparserl.records import Problem
    from sparserl.train.tokens import TokensConfig, recipe_lengths, train_tokenizer

    made = train_tokenizer(TokensConfig(corpus, size), progress=sys.stderr.isatty())
    made.save(out)
    typer.echo(f"{out}: {made.size} tokens, {out.stat().st_size} bytes")
    for name, problem in (("spmv float32", Problem()), ("spmm float32 64", Problem("spmm", "float32", 64))):
        found = recipe_lengths(made, problem)
        typer.echo(
            f"{name}: {found.programs} recipe programs, tokens: median {found.median}, 90 % at most {found.ninety}, "
            f"longest {found.longest}, {found.over_1500} over 1500"
        )
