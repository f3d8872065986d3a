"""Stage: train the tokenizer on CUDA text of the corpus, with recipes as at most a tenth of the bytes.

Run it with `sparserl train tokenizer --corpus DIR --out FILE`; it takes minutes. The corpus gives the words of
CUDA at large; the recipes only see to it that the names of this project's layouts and primitives are whole tokens.
Recipes with a withheld combination of features take no part, nor do the held-out packages of the corpus. The same
corpus and the same recipes give the same file. Not covered: choosing the size of the vocabulary, which the model's
budget fixes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from sparserl.errors import SparseRLError
from sparserl.policy.tokenizer import OPERATORS, SPECIALS, UNITS, Tokenizer
from sparserl.recipes import space
from sparserl.records import Problem
from sparserl.train.shards import read_shards
from sparserl.train.withheld import withheld_recipe

LARGEST_SHARE = 0.1
SMALLEST_SIZE = len(SPECIALS) + 256
PROBLEMS = (
    Problem(),
    Problem(dtype="float64"),
    *(Problem("spmm", "float32", columns) for columns in (8, 32, 64, 128)),
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokensConfig:
    """What the tokenizer is made from."""

    corpus: Path
    """folder that `sparserl train corpus` wrote"""
    size: int = 8192
    """tokens in all: 32 special ones, 256 bytes, the rest merges"""
    recipe_share: float = LARGEST_SHARE
    """recipes as a part of all training bytes"""
    problems: tuple[Problem, ...] = PROBLEMS
    """whose recipes"""

    def __post_init__(self) -> None:
        if not SMALLEST_SIZE <= self.size <= 65536:
            raise SparseRLError(f"The 'size' of a tokenizer must be {SMALLEST_SIZE}..65536. Got {self.size}.")
        if not 0 <= self.recipe_share <= LARGEST_SHARE:
            raise SparseRLError(f"The 'recipe_share' must be 0..{LARGEST_SHARE}. Got {self.recipe_share}.")


def train_tokenizer(config: TokensConfig, progress: bool = False) -> Tokenizer:
    """The tokenizer of a corpus. `progress` shows a bar on stderr."""
    corpus = corpus_texts(config.corpus)
    corpus_bytes = sum(len(text.encode()) for text in corpus)
    recipes = recipe_texts(config.problems, corpus_bytes, config.recipe_share)
    recipe_bytes = sum(len(text.encode()) for text in recipes)
    log.info("%d corpus files, %d bytes; %d recipes, %d bytes", len(corpus), corpus_bytes, len(recipes), recipe_bytes)
    made = merge(corpus + recipes, config.size, progress)
    if made.size < config.size:
        log.warning("the text has only %d of the %d tokens asked for: the corpus is small", made.size, config.size)
    missing = [each for each in OPERATORS if len(made.encode(each)) > 1]
    log.info("operators of more than one token: %s", " ".join(missing) or "none")
    return made


def corpus_texts(folder: Path) -> list[str]:
    """The training texts of a corpus: its folder, or the folder of its shards."""
    shards = folder / "shards" if (folder / "shards").is_dir() else folder
    if not shards.is_dir():
        raise SparseRLError(f"There is no corpus folder {folder}. Make one with `sparserl train corpus --out DIR`.")
    texts = [document.text for document in read_shards(shards, "train")]
    if not texts:
        raise SparseRLError(f"The corpus {folder} has no training text. Make it with `sparserl train corpus`.")
    return texts


def merge(texts: Iterable[str], size: int, progress: bool = False) -> Tokenizer:
    """Byte-level BPE inside the units of `texts`."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(UNITS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    library.train_from_iterator(texts, trainer)
    return Tokenizer(library.to_str(pretty=False), "the trained tokenizer")


def recipe_texts(problems: Sequence[Problem], corpus_bytes: int, share: float = LARGEST_SHARE) -> list[str]:
    """Recipes that training may see, in the order of their hashes, while they are at most `share` of all bytes."""
    budget = int(corpus_bytes * share / (1 - share))
    texts = {recipe.text for problem in problems for recipe in space(problem) if not withheld_recipe(recipe)}
    chosen: list[str] = []
    for text in sorted(texts, key=lambda each: hashlib.sha256(each.encode()).digest()):
        budget -= len(text.encode())
        if budget < 0:
            break
        chosen.append(text)
    return chosen


@dataclass(frozen=True)
class Lengths:
    """How many tokens the programs of a problem take."""

    programs: int
    median: int
    ninety: int
    """ninety per cent are at most this long"""
    longest: int
    over_1500: int
    """programs with more than 1500 tokens"""


def recipe_lengths(tokenizer: Tokenizer, problem: Problem) -> Lengths:
    """Tokens of every recipe program of a problem, special ones counted."""
    counts = sorted(len(tokenizer.encode_program(recipe.text)) for recipe in space(problem))
    return Lengths(
        programs=len(counts),
        median=counts[len(counts) // 2],
        ninety=counts[len(counts) * 9 // 10],
        longest=counts[-1],
        over_1500=sum(count > 1500 for count in counts),
    )
