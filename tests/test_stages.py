"""Pretraining, fine-tuning and the ranking pass, on a tiny policy and a CPU; and the script that walks all stages."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparserl.errors import SparseRLError, StoreError
from sparserl.policy.checkpoint import load_policy, read_config
from sparserl.policy.encoder import collate
from sparserl.policy.model import make_policy
from sparserl.policy.sample import sample_pattern
from sparserl.policy.tokenizer import Tokenizer
from sparserl.recipes import Recipe, space
from sparserl.records import Problem
from sparserl.shares import TIME_IS_UP
from sparserl.store import append_jsonl, read_json, read_jsonl
from sparserl.train import collected, forks, lessons, pretrain, rank, sft, worth
from sparserl.train.batches import (
    Documents,
    EpochRows,
    encode_documents,
    fill_in_the_middle,
    load_documents,
    plain_rows,
    program_batches,
    save_documents,
    spread_draws,
)
from sparserl.train.cases import range_up_to, training_cases
from sparserl.train.chosen import ChoiceRules, Chosen, choose, fraction_of, shares, weighted, with_bodies
from sparserl.train.encode import save_encoder
from sparserl.train.loop import CHECKS, LOSSES, Finished, LoopConfig, Start, Step, compile_layers, open_run, rate, run
from sparserl.train.samples import samples_of
from sparserl.train.withheld import withheld_recipe

ROOT = Path(__file__).parents[1]
QUICK = LoopConfig(learning_rate=2e-3, warmup=2, log_every=1, check_every=1000, device="cpu")


# ── Batches ───────────────────────────────────────────────────────────────────


def some_documents(count: int = 12, seed: int = 0) -> Documents:
    rng = np.random.default_rng(seed)
    return Documents.of([rng.integers(32, 8192, int(rng.integers(5, 120))).tolist() for _ in range(count)])


def test_plain_rows_hold_every_token_in_order_and_overlap_by_one() -> None:
    documents = some_documents()
    stream, _ = documents.joined(np.arange(len(documents)), Tokenizer.bos, Tokenizer.eos)
    rows = plain_rows(documents, np.arange(len(documents)), 16)
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    assert (np.concatenate([rows[0, :1], rows[:, 1:].ravel()]) == stream[: 16 * len(rows) + 1]).all()
    assert len(stream) - 16 * len(rows) <= 17  # only the end of the stream is left out


def undone(row: np.ndarray) -> list[int]:
    """The row before its piece was moved."""
    ids = row.tolist()
    marks = (Tokenizer.fim_prefix, Tokenizer.fim_suffix, Tokenizer.fim_middle)
    begin, suffix, middle = (ids.index(each) for each in marks)
    end = ids.index(Tokenizer.eos, middle)
    return ids[:begin] + ids[begin + 1 : suffix] + ids[middle + 1 : end] + ids[suffix + 1 : middle] + ids[end + 1 :]


def test_filling_in_moves_a_piece_of_one_document_and_nothing_else() -> None:
    stream, owner = some_documents().joined(np.arange(12), Tokenizer.bos, Tokenizer.eos)
    lengths = set()
    for seed in range(60):
        begin = seed % 40
        ids, owners = stream[begin : begin + 150], owner[begin : begin + 150]
        row = fill_in_the_middle(ids, owners, np.random.default_rng(seed))
        assert len(row) == len(ids) + 4
        assert undone(row) == ids.tolist()
        inside = row[row.tolist().index(Tokenizer.fim_prefix) : row.tolist().index(Tokenizer.fim_middle)]
        assert Tokenizer.bos not in inside, "a piece to fill in lies in one document"
        lengths.add(len(row) - row.tolist().index(Tokenizer.fim_middle))
    assert len(lengths) > 20, "pieces of many lengths"


def test_half_of_the_text_of_an_epoch_is_to_be_filled_in_and_epochs_differ() -> None:
    epochs = EpochRows(some_documents(200), 64, 0.5, seed=3)
    rows = epochs.rows(0)
    assert rows.shape == (epochs.count(0), 65)
    assert 0.4 < (rows == Tokenizer.fim_middle).any(axis=1).mean() < 0.6
    assert (rows == epochs.rows(0)).all()
    assert not np.array_equal(rows[:20], epochs.rows(1)[:20])


def test_encoded_documents_come_back_and_another_tokenizer_is_refused(tmp_path: Path) -> None:
    texts = [recipe.text for recipe in space(Problem())[:3]] + ["é\udc80 \r\n"]
    train = encode_documents(texts)
    save_documents(tmp_path / "tokens.npz", train, encode_documents(texts[:1]), "abc")
    again, dev = load_documents(tmp_path / "tokens.npz", "abc")
    assert (again.ids == train.ids).all() and len(dev) == 1
    ends = np.cumsum(again.lengths)
    assert Tokenizer.load().decode(again.ids[ends[2] :].tolist()) == texts[3]
    with pytest.raises(StoreError, match="another tokenizer"):
        load_documents(tmp_path / "tokens.npz", "def")


def test_program_batches_hold_all_that_was_drawn_within_their_tokens() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 500, 300)
    drawn = spread_draws(np.ones(300), 300, rng)
    assert sorted(drawn) == list(range(300)), "even weights draw each once"
    batches = program_batches(lengths, drawn, 2000, rng)
    assert sorted(np.concatenate(batches)) == list(range(300))
    assert all(len(batch) * lengths[batch].max() <= 2000 for batch in batches)
    heavy = spread_draws(np.array([1.0, 3.0]), 400, rng)
    assert abs(int((heavy == 1).sum()) - 300) <= 1


# ── The loop ──────────────────────────────────────────────────────────────────


def test_the_rate_warms_up_falls_and_warms_up_again_after_a_start_from_weights() -> None:
    config = LoopConfig(learning_rate=1.0, warmup=10, final=0.1)
    assert rate(config, 0, 100, 0) < 0.1
    assert 0.9 < rate(config, 11, 100, 0) < 1
    assert rate(config, 100, 100, 0) == pytest.approx(0.1)
    assert rate(config, 50, 100, 50) < 0.1 * rate(config, 50, 100, 0) + 1e-9
    assert rate(config, 62, 100, 50) == rate(config, 62, 100, 0)


def test_a_run_folder_is_not_overwritten_and_not_resumed_with_other_settings(tmp_path: Path) -> None:
    settings = {"size": "tiny", "loop": {"seed": 0, "budget_s": 1.0}}
    assert not open_run(tmp_path, "sft", settings, resume=False)
    with pytest.raises(StoreError, match="holds a run already"):
        open_run(tmp_path, "sft", settings, resume=False)
    assert not open_run(tmp_path, "sft", {**settings, "loop": {"seed": 0, "budget_s": 9.0}}, resume=True)
    with pytest.raises(StoreError, match="another 'seed'"):
        open_run(tmp_path, "sft", {**settings, "loop": {"seed": 1, "budget_s": 1.0}}, resume=True)


def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_to_do(tmp_path: Path) -> None:
    class Astray:
        stage, steps, policy = "astray", 3, make_policy("tiny")

        def loss(self, step: int) -> Step:
            return Step(next(self.policy.parameters()).sum() * float("nan"), 1)

        def check(self) -> dict[str, float]:
            return {}

    with pytest.raises(StoreError, match="lower learning rate"):
        run(Astray(), QUICK, tmp_path, Start())


# ── Pretraining ───────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number, recipe in enumerate(space(Problem())[::400]):
        (folder / f"{number}.cu").write_text(recipe.text)
    return folder


PRETRAIN = pretrain.PretrainConfig(size="tiny", epochs=2, context=64, batch_tokens=256, dev_rows=4, loop=QUICK)


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_jsonl(folder / "loss.jsonl")]


def stopped_after(steps: int) -> Any:
    """A watch that ends the process's part of a run, as Ctrl-C would."""

    def watch(progress: Any) -> None:
        if progress.step == steps:
            raise KeyboardInterrupt

    return watch


def test_pretraining_learns_and_a_resumed_run_has_the_losses_of_an_unbroken_one(corpus: Path, tmp_path: Path) -> None:
    whole = pretrain.pretrain(PRETRAIN, pretrain.Places(tmp_path / "whole", corpus))
    assert whole.complete and whole.tokens == whole.steps * 256
    curve = losses(tmp_path / "whole")
    assert curve[-1][1] < curve[0][1] - 0.5
    assert whole.checks["dev_loss"] < curve[0][1]

    often = replace(PRETRAIN, loop=replace(QUICK, save_every_s=0.0))  # a checkpoint after every step
    places = pretrain.Places(tmp_path / "broken", corpus, tmp_path / "whole" / "tokens.npz", resume=True)
    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain(often, places, stopped_after(whole.steps // 2))
    assert read_config(tmp_path / "broken" / "policy")["notes"]["step"] == whole.steps // 2 - 1
    assert pretrain.pretrain(PRETRAIN, places).complete
    assert losses(tmp_path / "broken") == curve
    one, other = (load_policy(tmp_path / name / "policy").state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    again = pretrain.pretrain(PRETRAIN, places)  # finished: nothing is left to do
    assert again.complete and again.tokens == 0


def test_a_spent_budget_stops_cleanly_and_the_weights_alone_go_on_elsewhere(corpus: Path, tmp_path: Path) -> None:
    short = replace(PRETRAIN, loop=replace(QUICK, budget_s=1e-9))
    first = pretrain.pretrain(short, pretrain.Places(tmp_path / "first", corpus))
    assert not first.complete and first.step == 0
    often = replace(PRETRAIN, loop=replace(QUICK, save_every_s=0.0))
    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain(often, pretrain.Places(tmp_path / "half", corpus), stopped_after(4))
    places = pretrain.Places(tmp_path / "second", corpus, weights=tmp_path / "half")
    second = pretrain.pretrain(PRETRAIN, places)
    assert second.complete and second.tokens == (second.steps - 3) * 256
    assert losses(tmp_path / "second")[0][0] == 4
    assert second.checks["dev_loss"] < 7
    longer = replace(PRETRAIN, epochs=PRETRAIN.epochs + 1)
    with pytest.raises(StoreError, match=r"broke off at step 3 of .* so it is another one"):
        pretrain.pretrain(longer, pretrain.Places(tmp_path / "third", corpus, weights=tmp_path / "half"))


def test_a_corpus_that_is_missing_or_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SparseRLError, match="no corpus folder"):
        pretrain.pretrain(PRETRAIN, pretrain.Places(tmp_path / "a", tmp_path / "nowhere"))
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "x.cu").write_text("int x;")
    with pytest.raises(SparseRLError, match="too few"):
        pretrain.pretrain(PRETRAIN, pretrain.Places(tmp_path / "b", tmp_path / "small"))


# ── A collection with known times ─────────────────────────────────────────────

CASES = 12


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record(case: str, text: str, time_us: float, origin: str = "recipe", verdict: str = "CORRECT") -> dict[str, Any]:
    return {
        "case": case, "problem": "spmv float32", "program": sha(text), "origin": origin, "family": "rows", "name": "n",
        "verdict": verdict, "solver_us": time_us if verdict == "CORRECT" else None, "chain_us": None, "retimed": True,
        "baseline_solver_us": 10.0, "baseline_chain_us": None,
    }  # fmt: skip


def variant_of(recipe: Recipe) -> str:
    """A changed text, where it can be as long in tokens as the recipe's."""
    changed = re.sub(r"(blockIdx\.x \* \d+) \+ threadIdx\.x", r"threadIdx.x + \1", recipe.text)
    return changed if changed != recipe.text else recipe.text.rstrip("\n") + "  // changed\n"


def write_collection(folder: Path, recipes: list[Recipe], cases: int = CASES) -> None:
    """Recipe k takes 1 + k / 100 us; each has a variant one per cent slower; the last variant fails."""
    seen: set[str] = set()
    for case in training_cases(Problem(), cases, within=range_up_to(Problem(), 2000.0)):
        rows = []
        for number, recipe in enumerate(recipes):
            last = number == len(recipes) - 1
            rows.append(record(case.name, recipe.text, 1 + number / 100))
            rows.append(
                record(case.name, variant_of(recipe), 1.01 + number / 100, "variant", "WRONG" if last else "CORRECT")
            )
            for text in (recipe.text, variant_of(recipe)):
                if sha(text) not in seen:
                    seen.add(sha(text))
                    line = {"program": sha(text), "text": text, "parents": [], "mutations": [], "binary": sha(text)}
                    append_jsonl(folder / "programs.jsonl", line)
        append_jsonl(folder / "measured.jsonl", *rows)
        pattern = case.load()
        append_jsonl(folder / "cases.jsonl", {
            "case": case.name, "problem": "spmv float32", "split": "train", "source": case.source, "rows": pattern.rows,
            "columns": pattern.columns, "nonzeros": pattern.nonzeros, "admitted": [], "device": "sim",
        })  # fmt: skip


@pytest.fixture(scope="module")
def short_recipes() -> list[Recipe]:
    """The shortest, all of one length in tokens: whether one is more probable does not hang on that."""
    alike = [recipe for recipe in space(Problem()) if recipe.family == "row_lanes" and not recipe.setting("late")]
    allowed = [recipe for recipe in alike if not withheld_recipe(recipe)]
    return sorted(allowed, key=lambda recipe: len(recipe.text))[:6]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, short_recipes: list[Recipe]) -> Path:
    folder = tmp_path_factory.mktemp("collection")
    write_collection(folder, short_recipes)
    return folder


def all_regular(collection: collected.Collection) -> dict[str, str]:
    return {case.name: "regular" for case in collection.cases}


RULES = ChoiceRules(dev_share=0.3)


def test_programs_are_chosen_by_speed_at_most_eight_and_two_in_five_are_variants(collection: Path) -> None:
    found = collected.load(collection)
    train, dev = choose(found, all_regular(found), RULES)
    assert {each.case for each in train} | {each.case for each in dev} == {case.name for case in found.cases}
    assert not {each.case for each in train} & {each.case for each in dev}, "no matrix is on both sides"
    first = [each for each in train if each.case == train[0].case]
    assert len(first) == 8
    assert all(each.behind <= 4 * RULES.tau for each in train)
    said = shares(train)
    assert said["variant_share"] >= 0.4 and said["variant_draws"] >= 0.4 - 1e-3
    assert sum(each.weight for each in train) == pytest.approx(1)
    fast, slow = (next(e for e in first if e.behind == pytest.approx(b) and not e.variant) for b in (0, np.log(1.02)))
    assert fast.weight / slow.weight == pytest.approx(np.exp(np.log(1.02) / RULES.tau), rel=1e-6)


def test_a_matrix_is_asked_for_in_both_modes_where_both_were_timed(tmp_path: Path, short_recipes: list[Recipe]) -> None:
    write_collection(tmp_path, short_recipes, cases=4)
    lines = read_jsonl(tmp_path / "measured.jsonl")
    (tmp_path / "measured.jsonl").unlink()
    last = 2 * max(line["solver_us"] or 0.0 for line in lines)
    # what is slow is fast there
    both = [{**line, "chain_us": line["solver_us"] and last - line["solver_us"]} for line in lines]
    alone = lines[0]["case"]
    append_jsonl(tmp_path / "measured.jsonl", *({**b, "chain_us": None} if b["case"] == alone else b for b in both))
    found = collected.load(tmp_path)
    train, dev = choose(found, all_regular(found), RULES)
    everything = [*train, *dev]
    assert {each.case for each in everything if each.mode == "solver"} == {case.name for case in found.cases}
    assert {each.case for each in everything if each.mode == "chain"} == {c.name for c in found.cases} - {alone}
    one = next(each.case for each in train if each.mode == "chain")
    parts = {m: [each for each in train if (each.case, each.mode) == (one, m)] for m in ("solver", "chain")}
    weights = {mode: sum(each.weight for each in part) for mode, part in parts.items()}
    assert weights["chain"] / sum(weights.values()) == pytest.approx(RULES.chain)
    first = {mode: min(part, key=lambda each: each.behind).program for mode, part in parts.items()}
    assert first["solver"] != first["chain"]
    ids = lessons.encode_programs({name: each.text for name, each in found.texts.items()}, 1024)
    forked = forks.all_forks(found, train, ids, {}, 0.02)
    assert {key.mode for key in forked if key.case == one} == {"solver", "chain"}
    only = choose(found, all_regular(found), replace(RULES, chain=0.0))
    assert {each.mode for part in only for each in part} == {"solver"}


def test_the_bodies_of_other_right_programs_are_learnt_for_a_share_of_the_draws(collection: Path) -> None:
    found = collected.load(collection)
    train, dev = choose(found, all_regular(found), RULES)
    everything = with_bodies(train, found, all_regular(found), RULES)
    bodies = [each for each in everything if each.body]
    assert bodies and [each.program for each in everything if not each.body] == [each.program for each in train]
    assert sum(each.weight for each in bodies) == pytest.approx(RULES.bodies)
    assert sum(each.weight for each in everything) == pytest.approx(1)
    names = [each.program for each in bodies]
    assert len(set(names)) == len(names) and not set(names) & {each.program for each in train}
    right = {(case.name, each.program) for case in found.cases for each in case.correct}
    assert all((each.case, each.program) in right and each.case not in {d.case for d in dev} for each in bodies)
    half = [with_bodies(train, found, all_regular(found), RULES, fraction=f, seed=3) for f in (0.3, 0.6)]
    few, more = ({each.program for each in part if each.body} for part in half)
    assert few < more < set(names)
    assert with_bodies(train, found, all_regular(found), replace(RULES, bodies=0.0)) == train


def test_a_given_header_is_read_and_not_learnt(short_recipes: list[Recipe]) -> None:
    ids = lessons.encode_programs({"a": short_recipes[0].text}, 2560)["a"]
    body = int(np.flatnonzero(ids == Tokenizer.code)[0]) + 1
    rows = torch.from_numpy(ids[None].astype(np.int64))
    targets = sft.learnt(rows, torch.tensor([True]))
    assert (targets[0, : body - 1] == Tokenizer.pad).all() and torch.equal(targets[0, body - 1 :], rows[0, body:])
    assert torch.equal(sft.learnt(rows, torch.tensor([False])), rows[:, 1:])
    policy = make_policy("tiny")
    case = training_cases(Problem(), 1, within=range_up_to(Problem(), 500))[0]
    matrix = collate([sample_pattern(case.load())], [Problem()])
    with torch.no_grad():
        nats, _ = sft.program_loss(policy, rows, targets, matrix)
        each = sft.token_log_probs(policy, rows, matrix)[0]
    assert float(nats) == pytest.approx(-float(each[body - 1 :].sum()), rel=1e-5)


def test_recipes_give_way_where_a_collection_has_few_variants() -> None:
    def made(case: str, number: int, variant: bool) -> Chosen:
        return Chosen(case, "spmv float32", "regular", f"{case}{number}", variant, number / 100)

    from sparserl.train.chosen import _enough_variants

    chosen = [made("a", k, k >= 6) for k in range(8)] + [made("b", k, False) for k in range(5)]
    kept = _enough_variants(chosen, RULES)
    assert shares(kept)["variant_share"] >= 0.4
    assert {each.case for each in kept} == {"a", "b"}
    assert min(each.behind for each in kept if each.case == "b") == 0, "the fastest one stays"


def test_equal_machine_code_is_merged_and_withheld_combinations_never_enter(
    tmp_path: Path, short_recipes: list[Recipe]
) -> None:
    withheld = next(recipe for recipe in space(Problem()) if withheld_recipe(recipe))
    write_collection(tmp_path, [withheld, *short_recipes[:3]], cases=4)
    lines = read_jsonl(tmp_path / "programs.jsonl")
    (tmp_path / "programs.jsonl").unlink()
    append_jsonl(tmp_path / "programs.jsonl", *({**line, "binary": "same"} for line in lines))
    found = collected.load(tmp_path)
    train, dev = choose(found, all_regular(found), ChoiceRules(variant_share=0.0))
    texts = [found.texts[each.program].text for each in (*train, *dev)]
    assert len(texts) == 4 * 3, "of a recipe and its twin, one"
    assert not {withheld.text, variant_of(withheld)} & set(texts)
    ids = lessons.encode_programs({name: each.text for name, each in found.texts.items()}, 2560)
    for case in found.cases:
        known = [each.tolist() for each, _ in forks.known_of_case(case, found, ids, [sha(withheld.text)], "solver")]
        assert known and ids[sha(withheld.text)].tolist() not in known


def test_structure_classes_are_even_within_a_problem_but_a_rare_one_has_a_limit() -> None:
    classes = ["regular"] * 6 + ["skewed"] * 2
    chosen = [Chosen(f"m{k}", "spmv float32", name, f"p{k}", False, 0.0) for k, name in enumerate(classes)]
    weights = weighted(chosen, RULES)
    assert sum(w.weight for w in weights if w.structure == "skewed") == pytest.approx(0.5)
    rare = weighted([*chosen, *(replace(chosen[0], case=f"r{k}") for k in range(90))], RULES)
    assert max(w.weight for w in rare) == pytest.approx(4 * 98 / (96 * 98 / (2 * 96) + 2 * 4 * 1) / 98, rel=1e-6)


def test_fractions_of_the_pairs_are_nested_and_their_weights_sum_to_one(collection: Path) -> None:
    found = collected.load(collection)
    train, _ = choose(found, all_regular(found), RULES)
    tenth, half = (fraction_of(train, f, 1, RULES) for f in (0.1, 0.5))
    names = [{(each.case, each.program) for each in part} for part in (tenth, half)]
    assert names[0] < names[1] and len(half) == round(len(train) / 2)
    assert sum(each.weight for each in tenth) == pytest.approx(1)
    assert names[0] != {(each.case, each.program) for each in fraction_of(train, 0.1, 2, RULES)}


def test_samples_are_computed_once(collection: Path, tmp_path: Path) -> None:
    cases = collected.load(collection).cases
    told: list[int] = []
    first = samples_of(cases[:3], tmp_path / "s.npz", told=lambda done, total: told.append(total))
    again = samples_of(cases[:4], tmp_path / "s.npz", told=lambda done, total: told.append(total))
    assert told == [3, 3, 3, 1]
    name = cases[0].name
    assert (first[name].sample.entries == again[name].sample.entries).all()
    assert first[name].structure == again[name].structure == "small"
    assert first[name].sample.nonzeros == cases[0].nonzeros


# ── Fine-tuning and ranking ───────────────────────────────────────────────────

SFT = sft.SFTConfig(
    size="tiny", target="sim", epochs=1, least_steps=8, batch_tokens=1024, longest=1024, thin=0.2, rules=RULES,
    loop=replace(QUICK, learning_rate=3e-3),
)  # fmt: skip


@pytest.fixture(scope="module")
def samples(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "samples.npz"
    samples_of(collected.load(collection).cases, path)
    return path


@pytest.fixture(scope="module")
def tuned(collection: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    out = tmp_path_factory.mktemp("sft")
    return out, sft.sft(SFT, sft.Places(out, collection, samples=samples))


def test_fine_tuning_learns_and_a_resumed_run_has_the_losses_of_an_unbroken_one(
    tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path
) -> None:
    out, whole = tuned
    curve = losses(out)
    assert whole.complete and curve[-1][1] < curve[0][1] - 0.5
    assert whole.checks["dev_loss"] < curve[0][1]
    assert read_json(out / "data.json")["train"]["variant_share"] >= 0.4
    places = sft.Places(tmp_path / "o", collection, samples=samples, resume=True)
    with pytest.raises(KeyboardInterrupt):
        sft.sft(replace(SFT, loop=replace(SFT.loop, save_every_s=0.0)), places, stopped_after(5))
    sft.sft(SFT, places)
    assert losses(tmp_path / "o") == curve


def test_the_loss_counts_program_tokens_alone_and_the_encoder_learns(
    tuned: tuple[Path, Finished], collection: Path, samples: Path
) -> None:
    policy = load_policy(tuned[0] / "policy")
    fresh = make_policy("tiny", SFT.loop.seed)
    both = zip(policy.encoder.parameters(), fresh.encoder.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in both)
    found = collected.load(collection)
    case = found.cases[0]
    known = samples_of([case], samples)
    asked = sft.Asked(case.name, case.problem)
    prompts = sft.Prompts([asked], known, "sim", torch.device("cpu"))
    text = found.texts[case.programs[0].program].text
    ids = np.array(Tokenizer.load().encode_program(text))
    alone, matrix = prompts.batch([asked], [ids])
    with torch.no_grad():
        log_probs = sft.token_log_probs(policy, alone, matrix)
        nats, _ = sft.program_loss(policy, alone, alone[:, 1:], matrix)
    assert torch.equal(log_probs[0, len(ids) - 1 :], torch.zeros(alone.shape[1] - len(ids)))
    assert float(nats) == pytest.approx(-float(log_probs.sum()), rel=1e-5)


def test_a_checkpoint_of_other_parameters_is_refused_and_a_finished_run_is_left_alone(
    tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path
) -> None:
    def older(folder: Path) -> None:
        state = torch.load(folder / "resume.pt", weights_only=True)
        state["optimiser"]["param_groups"][0]["params"].pop()
        torch.save(state, folder / "resume.pt")

    shutil.copytree(tuned[0], tmp_path / "finished")
    older(tmp_path / "finished")
    places = sft.Places(tmp_path / "finished", collection, samples=samples, resume=True)
    assert sft.sft(SFT, places).complete
    half = replace(places, out=tmp_path / "half")
    with pytest.raises(KeyboardInterrupt):
        sft.sft(replace(SFT, loop=replace(SFT.loop, save_every_s=0.0)), half, stopped_after(5))
    older(tmp_path / "half")
    with pytest.raises(SparseRLError, match="other parameters"):
        sft.sft(SFT, half)


def test_a_kill_while_a_run_is_taken_up_leaves_its_curve(
    tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*rest: Any) -> None:
        raise KeyboardInterrupt

    shutil.copytree(tuned[0], tmp_path / "run")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in (LOSSES, CHECKS)}
    monkeypatch.setattr("sparserl.train.loop.append_jsonl", killed)
    with suppress(KeyboardInterrupt):
        sft.sft(SFT, sft.Places(tmp_path / "run", collection, samples=samples, resume=True))
    assert all(before.values()) and before == {name: (tmp_path / "run" / name).read_bytes() for name in before}


def test_a_frozen_encoder_stays_as_it_is_while_the_language_model_learns(
    tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path
) -> None:
    config = replace(SFT, frozen=True, least_steps=2)
    sft.sft(config, sft.Places(tmp_path / "f", collection, weights=tuned[0], samples=samples))
    before, after = (load_policy(folder / "policy").state_dict() for folder in (tuned[0], tmp_path / "f"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any(name.startswith("encoder.") for name in changed)


def test_an_earlier_collection_is_gone_over_again_for_a_share_of_the_draws(
    tuned: tuple[Path, Finished], short_recipes: list[Recipe], samples: Path, tmp_path: Path
) -> None:
    write_collection(tmp_path / "guessed", short_recipes)
    write_collection(
        tmp_path / "timed", short_recipes[::-1], CASES // 2
    )  # half of those matrices, and all is otherwise
    config = replace(SFT, pull=1.0, gap=0.02, again=0.4)
    places = sft.Places(tmp_path / "o", tmp_path / "timed", tuned[0], samples=samples)
    alone = sft.lessons_of(config, places, sft.known_of(places))
    places = replace(places, again=tmp_path / "guessed", again_samples=samples)
    both = sft.lessons_of(config, places, sft.known_of(places))
    own = {each.case for each in alone.train}
    assert [replace(each, weight=0.0) for each in both.train if each.case in own] == [
        replace(each, weight=0.0) for each in alone.train
    ], "of matrices that both have, the later collection alone is learnt from"
    learnt = {each.case for each in both.train}
    assert learnt > own and not learnt & {each.case for each in both.dev}
    assert sum(each.weight for each in both.train) == pytest.approx(1)
    assert sum(each.weight for each in both.train if each.case not in own) == pytest.approx(0.4)
    assert both.draws == round(alone.draws / 0.6) and both.dev == alone.dev
    assert alone.forked is not None and both.forked is not None
    assert all(both.forked[key] == some for key, some in alone.forked.items())
    assert {key.case for key in both.forked} > own
    assert sft.sft(replace(config, least_steps=1), places).complete
    with pytest.raises(SparseRLError, match=r"'again' .* below 1"):
        sft.SFTConfig(again=1.0)
    with pytest.raises(SparseRLError, match=r"'thin' .* below 1"):
        sft.SFTConfig(thin=-0.1)


@pytest.mark.parametrize("reads", ["features", "learnt"])
def test_a_pretrained_encoder_of_another_kind_is_stored_as_what_it_is(
    reads: Any, tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path
) -> None:
    quick = replace(SFT, reads=reads, least_steps=1, fraction=0.1)
    sft.sft(quick, sft.Places(tmp_path / "a", collection, tuned[0], samples=samples))
    save_encoder(load_policy(tmp_path / "a" / "policy").encoder, tmp_path / "encoder")
    sft.sft(quick, sft.Places(tmp_path / "b", collection, tuned[0], tmp_path / "encoder", samples))
    sft.sft(quick, sft.Places(tmp_path / "c", collection, tmp_path / "b", samples=samples))
    sizes = [load_policy(tmp_path / name / "policy").size.encoder for name in "abc"]
    assert sizes[0] == sizes[1] == sizes[2] != load_policy(tuned[0] / "policy").size.encoder


@pytest.mark.parametrize("reads", ["blind", "features", "learnt"])
def test_control_encoders_are_trained_on_the_same_data(
    reads: Any, tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path
) -> None:
    config = replace(SFT, reads=reads, least_steps=1, fraction=0.1)
    places = sft.Places(tmp_path / reads, collection, weights=tuned[0], samples=samples)
    assert sft.sft(config, places).complete
    policy = load_policy(tmp_path / reads / "policy")
    size = policy.size.encoder
    assert (size.embedding == "learnt") if reads == "learnt" else (size.source == reads)
    if reads == "features":
        assert policy.encoder.reader.mean.abs().sum() > 0, "features are standardised over the training matrices"


def test_what_pretraining_is_worth_is_told_run_by_run_and_no_run_is_done_twice(
    tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off = Finished(tmp_path / "run", 1, 2, 9, 1.0, {})
    config = worth.WorthConfig((0.2, 1.0), (0,), replace(SFT, least_steps=2))
    save_encoder(load_policy(tuned[0] / "policy").encoder, tmp_path / "encoder")
    places = sft.Places(tmp_path / "o", collection, tuned[0], tmp_path / "encoder", samples)
    first = list(worth.worth(config, places, share=(0, 2)))  # those with pretraining
    assert len(first) == 2 and all("with pretraining" in line for line in first)
    assert list(worth.worth(config, places, budget_s=1e-9)) == [TIME_IS_UP]
    given: list[float] = []
    with monkeypatch.context() as context:
        context.setattr(worth, "sft", lambda own, *rest: (given.append(own.loop.budget_s), broken_off)[1])
        assert list(worth.worth(config, places, budget_s=100.0)) == [TIME_IS_UP]
    assert 0 < given[0] < 100 and len(given) == 1, "a run has what is left of the time, and no line before its end"
    assert len(list(worth.worth(config, places))) == 2 and not list(worth.worth(config, places))
    records = read_jsonl(tmp_path / "o" / "worth.jsonl")
    by = {(each["fraction"], each["pretrained"]): each for each in records}
    assert len(by) == 4 and by[0.2, True]["pairs"] == by[0.2, False]["pairs"] < by[1.0, True]["pairs"]
    for fraction in config.fractions:
        better, worse = by[fraction, True], by[fraction, False]
        assert better["dev_loss"] < worse["dev_loss"], "the weights it began with had seen these programs"
        assert f"{worse['dev_loss'] - better['dev_loss']:6.4f}" in worth.table(records)
    with pytest.raises(SparseRLError, match="pretrained weights"):
        list(worth.worth(config, replace(places, weights=None)))
    with pytest.raises(SparseRLError, match="another 'epochs'"):
        list(worth.worth(replace(config, sft=replace(config.sft, epochs=2)), places))
    with pytest.raises(SparseRLError, match="size 'nano'"):
        list(worth.worth(replace(config, sft=replace(config.sft, size="nano")), replace(places, out=tmp_path / "p")))
    with pytest.raises(SparseRLError, match="kept from training"):
        none = replace(config, sft=replace(config.sft, rules=replace(RULES, dev_share=0.0)))
        list(worth.worth(none, replace(places, out=tmp_path / "q")))
    with pytest.raises(SparseRLError, match="fractions"):
        worth.WorthConfig((0.0,))


RANK = replace(SFT, pull=4.0, gap=0.02, least_steps=24, loop=replace(QUICK, learning_rate=1e-3, check_first=True))


def test_ranking_raises_the_share_of_dev_forks_at_which_the_better_way_is_ahead(
    tuned: tuple[Path, Finished], short_recipes: list[Recipe], samples: Path, tmp_path: Path
) -> None:
    collection = tmp_path / "turned"  # what was fast when the policy was tuned is slow here: it has all to learn
    write_collection(collection, short_recipes[::-1])
    places = sft.Places(tmp_path / "rank", collection, weights=tuned[0], samples=samples)
    done = rank.rank(RANK, places)
    before, *_, after = read_jsonl(tmp_path / "rank" / "checks.jsonl")
    assert done.complete and after["forks_right"] > before["forks_right"] + 0.2
    assert after["dev_fork_loss"] < before["dev_fork_loss"] and after["dev_loss"] < before["dev_loss"]
    assert read_json(tmp_path / "rank" / "data.json")["forked"]["forks"] > 0
    with pytest.raises(SparseRLError, match="fine-tuned weights"):
        rank.rank(RANK, replace(places, out=tmp_path / "no", weights=None))
    with pytest.raises(SparseRLError, match="'pull' of a ranking pass"):
        rank.rank(replace(RANK, pull=0.0), replace(places, out=tmp_path / "far"))
    with pytest.raises(SparseRLError, match="negative"):
        sft.SFTConfig(pull=-1.0)


@pytest.mark.parametrize("reads", ["blind", "features"])
def test_what_a_control_reads_and_its_scales_stay_in_the_stages_after(
    reads: Any, collection: Path, samples: Path, tmp_path: Path
) -> None:
    quick = replace(SFT, reads=reads, least_steps=1)
    sft.sft(quick, sft.Places(tmp_path / "a", collection, samples=samples))
    part = tmp_path / "part"  # other matrices, other scales
    shutil.copytree(collection, part)
    lines = (collection / "cases.jsonl").read_text().splitlines(keepends=True)
    (part / "cases.jsonl").write_text("".join(lines[: len(lines) // 2]))
    sft.sft(quick, sft.Places(tmp_path / "b", part, weights=tmp_path / "a", samples=samples))
    last = sft.Places(tmp_path / "c", part, tmp_path / "b", samples=samples)
    rank.rank(replace(RANK, reads="own", least_steps=1), last)
    first, *others = (load_policy(tmp_path / name / "policy") for name in "abc")
    for each in others:
        assert each.size.encoder == first.size.encoder and each.size.encoder.source == reads
        if reads == "features":
            assert torch.equal(each.encoder.reader.mean, first.encoder.reader.mean)  # type: ignore[union-attr, arg-type]


def test_a_ranking_pass_that_was_stopped_has_the_losses_of_an_unbroken_one(
    tuned: tuple[Path, Finished], collection: Path, samples: Path, tmp_path: Path
) -> None:
    config = replace(RANK, least_steps=6)
    often = replace(config, loop=replace(config.loop, save_every_s=0.0))
    places = sft.Places(tmp_path / "a", collection, weights=tuned[0], samples=samples, resume=True)
    whole = rank.rank(config, places)
    broken = replace(places, out=tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        rank.rank(often, broken, stopped_after(3))
    again = rank.rank(config, broken)
    assert whole.complete and again.complete and losses(tmp_path / "a") == losses(tmp_path / "b")


def test_layers_are_compiled_where_the_switch_says_so_and_keep_their_names() -> None:
    policy, names = make_policy("tiny"), list(make_policy("tiny").state_dict())
    compile_layers(policy, LoopConfig(device="cpu"))
    assert all(layer._compiled_call_impl is None for layer in policy.language.model.layers), "auto: on a GPU alone"
    compile_layers(policy, LoopConfig(device="cpu", compile="on"))
    assert all(layer._compiled_call_impl is not None for layer in policy.language.model.layers)
    assert list(policy.state_dict()) == names


NO_LINES = forks.Fit(forks.Lines((), np.zeros((0, 0), dtype=np.int32)), ())


def test_a_fork_is_where_every_known_way_on_is_worse() -> None:
    good = np.array([1, 9, 20, 21, 50, 51])
    ways = forks.ways_of(
        [
            (good, (0.0, 0.0)),
            (np.array([1, 9, 20, 21, 50, 52]), (0.5, 0.5)),  # slower
            (np.array([1, 9, 20, 21, 50, 53]), (0.05, 0.05)),  # within the noise
            (np.array([1, 9, 30, 31, 50]), (0.9, 0.9)),  # slow, but its layout has a faster one:
            (np.array([1, 9, 30, 32, 50]), (0.01, 0.01)),
            (np.array([1, 9, 40, 50]), (inf, inf)),  # failed
            (np.array([1, 9, 20, 22, 50]), (-0.02, -0.02)),  # better: nothing is known against it
            (np.array([1, 9, 20, 21, 50, 54]), (-0.3, inf)),  # a brief time: no better for sure
        ],
        NO_LINES,
    )
    assert forks.forks(good, ways, 0.06) == [forks.Fork(2, (40,)), forks.Fork(5, (52,))]
    other = np.array([1, 9, 30, 31, 50])
    assert forks.forks(other, ways, 0.06) == [forks.Fork(2, (40,))], "30 leads to a good one, 31 does not"
    assert forks.forks(ways.programs[4][:5], ways, 0.06) == [forks.Fork(2, (40,)), forks.Fork(3, (31,))]


def test_layouts_that_a_matrix_does_not_admit_are_worse_from_where_none_is_left() -> None:
    tokenizer = Tokenizer.load()
    lines = forks.Lines.of(["ell c=4", "ell c=8", "rows index=int32", "tiles steps=4", "tiles steps=8"], tokenizer)
    good = np.array([*forks.line_ids("ell c=4", tokenizer), 50, 51])
    fit = forks.Fit(lines, ["ell c=4", "tiles steps=8"])
    four, eight, rows = (tokenizer.encode(each)[0] for each in ("4", "8", "rows"))
    found = forks.forks(good, forks.ways_of([(good, (0.0, 0.0))], fit), 0.06)
    assert [(fork.at, fork.worse) for fork in found] == [(2, (rows,)), (good.tolist().index(four), (eight,))]
    with_rows = np.array([*forks.line_ids("rows index=int32", tokenizer), 60])
    ways = forks.ways_of([(good, (0.0, 0.0)), (with_rows, (0.01, 0.01))], fit)
    assert 2 not in [fork.at for fork in forks.forks(good, ways, 0.06)], "what is as good is no worse way"
    recipe = next(iter(space(Problem())))
    ids = forks.line_ids(str(recipe.layout), tokenizer).tolist()
    assert tokenizer.encode_program(recipe.text)[: len(ids)] == ids


def test_brief_times_count_as_shorter_and_failures_as_endless(collection: Path) -> None:
    case = collected.load(collection).cases[0]
    times = forks.log_times(case, "solver")
    assert (inf, inf) in times.values() and len(times) == len(case.programs)
    one = next(each for each in case.programs if each.correct)
    brief, long = (replace(case, programs=(replace(one, retimed=retimed),)) for retimed in (False, True))
    (soonest, surely), (late, sure) = (forks.log_times(each, "solver")[one.program] for each in (brief, long))
    assert late == sure == surely and late - soonest == pytest.approx(forks.BRIEF)
    other = replace(one, program="other", retimed=True)
    beside = forks.log_times(replace(case, programs=(replace(one, retimed=False), other)), "solver")
    assert beside[one.program] == (soonest, inf) and beside["other"] == (late, sure), "the least of many is luck"
    assert forks.log_times(replace(case, programs=(one,)), "chain") == {}


def test_a_fork_moves_its_own_tokens_alone() -> None:
    logits = torch.zeros(2, 5, 12, requires_grad=True)
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7]])
    pulls = forks.pull_of(logits, ids, [(forks.Fork(2, (8, 9)),), (forks.Fork(1, (4,)), forks.Fork(5, (6,)))])
    assert pulls.tolist() == pytest.approx([np.log(3), np.log(2), np.log(2)]), "the worse ones count together"
    pulls.sum().backward()
    assert logits.grad is not None
    moved = {tuple(place) for place in logits.grad.nonzero().tolist()}
    assert moved == {(0, 1, 3), (0, 1, 8), (0, 1, 9), (1, 0, 2), (1, 0, 4), (1, 4, 7), (1, 4, 6)}
    assert float(logits.grad[0, 1, 3]) < 0 < float(logits.grad[0, 1, 8]), "a step down makes the good one likelier"
    assert len(forks.pull_of(logits, ids, [(), ()])) == 0


# ── The script ────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cpu_script_walks_all_stages_and_prints_a_sample(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "SPARSERL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        ["bash", str(ROOT / "runs" / "cpu.sh"), str(tmp_path / "run")],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for folder, stage in (*((each, each) for each in ("pretrain", "sft", "turns", "rank")), ("guess", "sft")):
        assert read_config(tmp_path / "run" / folder / "policy")["notes"]["stage"] == stage
    assert read_config(tmp_path / "run" / "nano")["notes"]["stage"] == "rank"
    said = done.stdout.split("as it would be shipped")[1]
    assert " MB\n" in said and len(said.splitlines()) > 2


@pytest.mark.parametrize(("words", "said"), [(["nonsense"], "no stage 'nonsense'"), (["--nonsense"], "no option")])
def test_the_gpu_script_refuses_what_it_does_not_know(words: list[str], said: str, tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "runs" / "one_gpu.sh"), str(tmp_path / "run"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr


@pytest.mark.parametrize(("says", "code"), [("done", 0), ("the time is up; call again", 75)])
def test_the_gpu_script_collects_every_problem_in_every_share(tmp_path: Path, says: str, code: int) -> None:
    asked, stand_in = tmp_path / "asked", tmp_path / "stand-in.sh"
    stand_in.write_text(f'echo "$@" >> {asked}\necho "{says}"\n')
    environment = {**os.environ, "SPARSERL": f"bash {stand_in}", "RACES": "2"}
    command = ["bash", str(ROOT / "runs" / "one_gpu.sh"), str(tmp_path / "run"), "--budget", "3", "collect"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stderr
    lines = sorted(asked.read_text().splitlines(), key=lambda line: line[line.index("--share") :])
    assert [share in line for share, line in zip(("0/2", "1/2"), lines, strict=True)] == [True, True]
    assert all(line.count("--problem") == 5 and "--budget 3" in line for line in lines)


def test_the_gpu_script_trains_the_controls_like_the_policy(tmp_path: Path) -> None:
    asked, stand_in, out = tmp_path / "asked", tmp_path / "stand-in.sh", tmp_path / "run"
    stand_in.write_text(f'echo "$@" >> {asked}\n')
    (out / "estimated").mkdir(parents=True)
    (out / "estimated" / "cases.jsonl").touch()
    command = ["bash", str(ROOT / "runs" / "one_gpu.sh"), str(out), "--study", "sft", "rank"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "SPARSERL": f"bash {stand_in}"}, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = asked.read_text().splitlines()
    made = [line.split("--out ")[1].split()[0].removeprefix(f"{out}/") for line in lines]
    each = ("", "-blind", "-features", "-learnt")
    chains = [f"{stage}{name}" for name in each for stage in ("guess", "sft")]
    assert made == [*chains, "worth", *(f"rank{name}" for name in each)]
    for name in each[1:]:
        own = [line.replace(f"{name} ", " ") for line in lines if f"{name} " in line]
        mine = [line for line, to in zip(lines, made, strict=True) if "-" not in to and to != "worth"]
        same = [line.replace(f" -{name}", "").replace(f"encoder{name}/", "encoder/") for line in own]
        assert mine == same
    after = [line for line, to in zip(lines, made, strict=True) if to.startswith(("sft", "rank"))]
    kept = f"--frozen --again {out}/estimated --again-samples {out}/estimated.npz"
    assert len(after) == 8 and all(kept in line for line in after), "what taught reading is gone over again"
