"""Turns: the stage that learns to rewrite, on a tiny policy and a CPU; and `tune --turns` on the simulator."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Bare
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import rl_tiny
import sparserl
from sparserl import cli, store
from sparserl.engine import machine
from sparserl.errors import SparseRLError
from sparserl.families import make
from sparserl.findings import Candidate, Findings
from sparserl.layouts import parse_line
from sparserl.policy.checkpoint import load_policy, read_config, save_policy
from sparserl.policy.encoder import EncoderInput, EncoderSize, collate
from sparserl.policy.feedback import Told, line, line_ids
from sparserl.policy.language import Shape
from sparserl.policy.model import Size, make_policy
from sparserl.policy.rewriting import SPARE, Rewriter
from sparserl.policy.sample import sample_pattern
from sparserl.policy.sampler import Sampler, SampleSettings, Written
from sparserl.policy.tokenizer import Tokenizer
from sparserl.policy.writer import Writer
from sparserl.proposals import _told, first_candidates
from sparserl.recipes import space
from sparserl.records import Outcome, Problem, Timing, Verdict
from sparserl.search import Progress, halve
from sparserl.store import append_jsonl, read_json, read_jsonl
from sparserl.train import collected
from sparserl.train.batches import padded
from sparserl.train.cases import TrainingCase, range_up_to, training_cases
from sparserl.train.chosen import ChoiceRules, is_dev
from sparserl.train.loop import LoopConfig
from sparserl.train.rl.episodes import PlayConfig, Player
from sparserl.train.rl.nouns import Prompt
from sparserl.train.rl.turn_pairs import PairRules, encode_pairs, find_pairs
from sparserl.train.samples import samples_of
from sparserl.train.sft import Places, token_log_probs
from sparserl.train.tokens import merge
from sparserl.train.turns import Rewriting, TurnsConfig, lessons, turns
from sparserl.train.withheld import withheld_text
from sparserl.tune import Settings

ROOT = Path(__file__).parents[1]
TOKENIZER = Tokenizer.load()
TEXTS = sorted(
    (recipe.text for recipe in space(Problem()) if recipe.family == "row_lanes" and not withheld_text(recipe.text)),
    key=lambda text: (len(text), text),
)[:3]
"""three short programs; in the collection below the second was made from the first, the third from the second"""


# ── The stage ─────────────────────────────────────────────────────────────────


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten matrices."""
    folder = tmp_path_factory.mktemp("collection")
    write_collection(folder, training_cases(Problem(), 10, within=range_up_to(Problem(), 2000.0)))
    return folder


def write_collection(folder: Path, cases: Sequence[TrainingCase]) -> None:
    """The first program is slow, its variant fast, and that one's variant wrong."""
    for text, parents in zip(TEXTS, ([], [sha(TEXTS[0])], [sha(TEXTS[1])]), strict=True):
        about = {"program": sha(text), "text": text, "parents": parents, "mutations": [], "binary": sha(text)}
        append_jsonl(folder / "programs.jsonl", about)
    for case in cases:
        for text, time_us in zip(TEXTS, (8.0, 5.0, None), strict=True):
            append_jsonl(folder / "measured.jsonl", {
                "case": case.name, "problem": "spmv float32", "program": sha(text), "family": "row_lanes", "name": "n",
                "origin": "recipe" if text == TEXTS[0] else "variant", "verdict": "CORRECT" if time_us else "WRONG",
                **({} if time_us else {"reason": "row 3 is off"}), "solver_us": time_us, "chain_us": None,
                "retimed": True, "baseline_solver_us": 10.0, "baseline_chain_us": None,
            })  # fmt: skip
        pattern = case.load()
        append_jsonl(folder / "cases.jsonl", {
            "case": case.name, "problem": "spmv float32", "split": "train", "source": case.source, "rows": pattern.rows,
            "columns": pattern.columns, "nonzeros": pattern.nonzeros, "admitted": [], "device": "sim",
        })  # fmt: skip


RULES = PairRules(choice=ChoiceRules(dev_share=0.3))
CONFIG = TurnsConfig(
    target="sim", epochs=1, least_steps=8, batch_tokens=2048, longest=1024, pairs=RULES,
    loop=LoopConfig(learning_rate=3e-3, warmup=2, log_every=1, check_every=1000, device="cpu"),
)  # fmt: skip


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh")
    save_policy(make_policy("tiny"), folder, notes={"stage": "sft", "step": 1, "steps": 1})
    return folder


@pytest.fixture(scope="module")
def samples(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "samples.npz"
    samples_of(collected.load(collection).cases, path)
    return path


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_jsonl(folder / "loss.jsonl")]


def test_the_loss_falls_and_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(
    collection: Path, samples: Path, fresh: Path, tmp_path: Path
) -> None:
    whole = turns(CONFIG, Places(tmp_path / "whole", collection, fresh, samples=samples))
    curve = losses(tmp_path / "whole")
    assert whole.complete and len(curve) == whole.steps >= 8
    assert curve[-1][1] < curve[0][1] - 0.5
    assert whole.checks["dev_loss"] < curve[0][1] and whole.checks["dev_first_loss"] < curve[0][1]
    counts = read_json(tmp_path / "whole" / "data.json")
    assert counts["train"]["pairs"] == 2 * counts["train"]["matrices"] and counts["dev"]["pairs"] > 0
    assert read_config(tmp_path / "whole" / "policy")["notes"]["stage"] == "turns"

    def stop(progress: Any) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    places = Places(tmp_path / "broken", collection, fresh, samples=samples, resume=True)
    with pytest.raises(KeyboardInterrupt):
        turns(replace(CONFIG, loop=replace(CONFIG.loop, save_every_s=0.0)), places, stop)
    assert turns(CONFIG, places).complete
    assert losses(tmp_path / "broken") == curve
    one, other = (load_policy(tmp_path / name / "policy").state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_of_a_pair_the_second_program_alone_is_learnt(collection: Path, samples: Path) -> None:
    stored = collected.load(collection)
    known = samples_of(stored.cases, samples)
    train, dev = lessons(replace(CONFIG, alone=0.0), stored, known, 1024)
    assert not train.programs and dev.programs
    task = Rewriting(replace(CONFIG, batch_tokens=1024), make_policy("tiny"), train, dev, known)
    batch = task.batch(train.pairs[:1])
    child = TOKENIZER.encode_program(TEXTS[1])[1:]
    assert batch.ids[batch.written].tolist() == child, "faster or repaired, it is the second text"
    assert batch.matrix is not None
    with torch.no_grad():
        log_probs = token_log_probs(task.policy, batch.ids, batch.matrix)
        expected = -float(log_probs[batch.written[:, 1:]].mean())
    only = Rewriting(CONFIG, task.policy, replace(train, pairs=train.pairs[:1]), dev, known)
    assert float(only.loss(0).loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_first_programs_have_their_share_of_the_draws(collection: Path, samples: Path) -> None:
    stored = collected.load(collection)
    known = samples_of(stored.cases, samples)
    train, _ = lessons(replace(CONFIG, alone=0.25), stored, known, 1024)
    assert sum(each.weight for each in train.pairs) == pytest.approx(0.75)
    assert sum(each.weight for each in train.programs) == pytest.approx(0.25)
    assert all(each.ids.tolist() == TOKENIZER.encode_program(TEXTS[1]) for each in train.programs), "the fast ones"


class Scripted(Sampler):
    """Writes given programs, the k-th in turn k, and remembers what it was given."""

    def __init__(self, scripts: Sequence[str]) -> None:
        size = Size(Shape(64, 2, 4, 2, 128, TOKENIZER.size, 2048), EncoderSize(inner=32, queries=4))
        super().__init__(make_policy(size), TOKENIZER)
        self.scripts, self.given = scripts, list[list[int]]()

    def sample(
        self, matrix: EncoderInput, count: int, settings: SampleSettings, forced: Any = (), mask: Any = None
    ) -> Any:
        prompts = [list(one) for one in forced] or [[]] * len(matrix.sizes)
        self.given += prompts
        found = []
        for prompt in prompts:
            text = self.scripts[prompt.count(TOKENIZER.program)]
            ids = [TOKENIZER.program, *prompt, *TOKENIZER.encode_program(text)[1:]]
            shown = [0.0] * len(ids)
            found.append([Written(ids, shown, shown, 1 + len(prompt), TOKENIZER.decode_program(ids), True)] * count)
        return found


def scripted_writer(scripts: Sequence[str]) -> Writer:
    writer = Writer.__new__(Writer)
    writer.sampler = Scripted(scripts)
    writer.settings, writer.tokenizer, writer.policy = SampleSettings(), TOKENIZER, writer.sampler.policy
    return writer


def test_training_playing_and_tuning_write_the_same_tokens(collection: Path) -> None:
    stored = collected.load(collection)
    pair = next(each for each in find_pairs(stored, RULES)[0] if each.kind == "faster")
    (learnt,) = encode_pairs([pair], stored, 1024, TOKENIZER)

    class Table:
        def judge(self, groups: Any) -> Any:
            yield from ((at, [pair.judged] * len(texts)) for at, (_, texts) in enumerate(groups))

    pattern = make("stencil2d", 0, nx=8, ny=10, points=5)
    player = Player(
        Scripted(TEXTS), Table(), lambda judged: 0.0, lambda prompt: sample_pattern(pattern),  # type: ignore[arg-type]
        PlayConfig(count=1, turns=2),
    )  # fmt: skip
    (played,) = player.play([Prompt("a", {}, Problem())], 0)
    assert list(played.ids) == learnt.ids.tolist()
    assert list(played.written[played.turns[1].first :]) == learnt.written[played.turns[1].first :].tolist()

    writer = scripted_writer(TEXTS)
    rewriter = Rewriter(writer, pattern, Problem(), machine="sim", seed=0)
    assert rewriter.write(4) == TEXTS[:1]
    said = Told(Verdict.CORRECT, speedup=10.0 / 8.0)
    assert rewriter.rewrite([(TEXTS[0], said)], 1) == {TEXTS[1]: TEXTS[0]}
    given = writer.sampler.given[-1]  # type: ignore[attr-defined]
    assert [TOKENIZER.program, *given] == learnt.ids[~learnt.written].tolist()


def test_a_collection_without_pairs_and_a_run_without_weights_are_refused(
    collection: Path, samples: Path, fresh: Path, tmp_path: Path
) -> None:
    with pytest.raises(SparseRLError, match="--variants"):
        short = replace(CONFIG, longest=200)
        turns(short, Places(tmp_path / "a", collection, fresh, samples=samples))
    with pytest.raises(SparseRLError, match="--weights"):
        turns(CONFIG, Places(tmp_path / "b", collection, samples=samples))
    with pytest.raises(SparseRLError, match="'alone'"):
        replace(CONFIG, alone=1.0)


def test_a_script_makes_what_arms_of_an_ablation_begin_with(fresh: Path, tmp_path: Path) -> None:
    """`runs/arms.sh`: its four trainings, side by side."""
    out, held = tmp_path / "arms", tmp_path / "collection"
    drawn = training_cases(Problem(), 40, within=range_up_to(Problem(), 2000.0))
    write_collection(held, [*drawn[:3], next(case for case in drawn if is_dev(case, ChoiceRules()))])  # type: ignore[arg-type]  # its name counts
    words = ("--weights", fresh, "--collection", held, "--pretrain", fresh, "--size", "tiny")
    options = ("--target", "sim", "--device", "cpu", "--least-steps", "2", "--batch-tokens", "2816")

    def script(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(ROOT / "runs" / "arms.sh"), str(out), *map(str, words), *more], check=False,
            capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    assert script("--none").returncode == 2
    wrong = script("within")
    assert wrong.returncode == 2 and "blind turns with without" in wrong.stderr
    assert script("--prepare").stdout == f"{out}/samples.npz: 4 matrices\n" and not (out / "turns").exists()
    done = script("--epochs", "1", "--", *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert read_json(out / "without" / "1-0-without" / "config.json")["epochs"] == 1
    begun = {"blind": "sft", "turns": "turns", "with/1-0-with": "sft", "without/1-0-without": "sft"}
    told = {folder: read_config(out / folder / "policy") for folder in begun}
    assert {folder: each["notes"]["stage"] for folder, each in told.items()} == begun
    assert [told[folder]["size"]["encoder"]["source"] for folder in ("blind", "turns")] == ["blind", "matrix"]
    lines = [read_jsonl(out / each / "worth.jsonl") for each in ("with", "without")]
    assert [[each["pretrained"] for each in some] for some in lines] == [[True], [False]]
    assert script("--epochs", "1", "--budget", "600", "--", *options).returncode == 0
    assert [read_jsonl(out / each / "worth.jsonl") for each in ("with", "without")] == lines, "nothing is done twice"


def test_the_script_of_arms_hands_its_time_on_and_says_whether_it_was_enough(tmp_path: Path) -> None:
    """`runs/arms.sh` before a command that writes down its words, and ends as it is told."""
    (tmp_path / "samples.npz").touch()
    command = tmp_path / "command.sh"
    command.write_text('echo "$@"; case $2 in turns) exit "${TURNS:-0}" ;; worth) exit "${WORTH:-0}" ;; esac\n')

    def script(*more: str, **codes: str) -> int:
        words = ("--weights", "w", "--collection", "c", "--pretrain", "p", "--budget", "90")
        return subprocess.run(
            ["bash", str(ROOT / "runs" / "arms.sh"), str(tmp_path), *words, *more], check=False,
            capture_output=True, text=True, env={**os.environ, **codes, "SPARSERL": f"bash {command}"},
        ).returncode  # fmt: skip

    assert script() == 0
    told = {stage: (tmp_path / f"{stage}.log").read_text().split() for stage in ("blind", "turns", "with", "without")}
    assert {stage: words[1] for stage, words in told.items()} == {
        "blind": "sft", "turns": "turns", "with": "worth", "without": "worth",
    }  # fmt: skip
    assert all(0 < int(words[words.index("--budget") + 1]) <= 90 for words in told.values())
    epochs = {stage: words[words.index("--epochs") + 1] for stage, words in told.items()}
    assert epochs == {"blind": "2", "turns": "1", "with": "4", "without": "4"}
    assert script(TURNS="75") == 75 and script("turns", TURNS="75") == 75
    assert script("blind", "with", TURNS="75") == 0, "turns is not asked for"
    assert script(TURNS="75", WORTH="1") == 1 and script(TURNS="1", WORTH="75") == 1, "a fault is no lack of time"


def test_the_command_runs_the_stage(collection: Path, samples: Path, fresh: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(cli.app, [
        "train", "turns", "--out", str(tmp_path / "run"), "--collection", str(collection), "--weights", str(fresh),
        "--samples", str(samples), "--target", "sim", "--epochs", "1", "--least-steps", "1", "--device", "cpu",
    ])  # fmt: skip
    assert said.exit_code == 0, said.output
    assert "turns/" not in said.output and f"{tmp_path / 'run'}/policy: step" in said.output


# ── Rewriting ─────────────────────────────────────────────────────────────────


def test_programs_are_rewritten_in_the_order_given_and_round_again() -> None:
    pattern = make("stencil2d", 0, nx=8, ny=10, points=5)
    writer = scripted_writer(TEXTS)
    rewriter = Rewriter(writer, pattern, Problem(), machine="sim", seed=0)
    rewriter.write(1)
    rewriter.rewrite([(TEXTS[0], Told(Verdict.WRONG, "row 3 is off"))], 2)
    given = writer.sampler.given  # type: ignore[attr-defined]
    first = TOKENIZER.encode_program(TEXTS[0])
    wrong = line_ids(Told(Verdict.WRONG, "row 3 is off"), TOKENIZER)
    del given[:1]
    assert given == [(first + wrong)[1:]] * 2, "one program, two places: it is written again twice"
    fast, slow = Told(Verdict.CORRECT, speedup=1.5), Told(Verdict.CORRECT, speedup=0.5)
    rewriter.rewrite([(TEXTS[1], fast), (TEXTS[0], slow)], 3)
    second = TOKENIZER.encode_program(TEXTS[1])
    after = [second + line_ids(fast, TOKENIZER), first + line_ids(slow, TOKENIZER)]
    assert sorted(given[2:]) == sorted(each[1:] for each in (after[0], after[0], after[1]))


def test_first_programs_are_different_ones_and_those_that_the_matrix_admits_come_first(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted = ["// layout: rows index=int32\n" + tail for tail in ("one", "two")]
    refused = "// layout: blocks b=8 order=row index=int32\nthree"
    read = "sparserl.policy.rewriting.parse"
    monkeypatch.setattr(read, lambda text: Bare(layout=parse_line(text.split("\n")[0][11:])))
    writer = scripted_writer([refused])
    drawn = [refused, admitted[0], refused, admitted[0], admitted[1], "unreadable"]
    asked: list[int] = []

    def write(patterns: Any, problem: Any, count: int, **named: Any) -> list[list[Any]]:
        asked.append(count)
        return [[Bare(text=text, ids=(), given=0, finished=True) for text in drawn]]

    monkeypatch.setattr(writer, "write", write)
    pattern = make("uniform", 0, rows=400, columns=400, per_row=2.0)
    for count, texts in ((2, admitted), (3, [*admitted, refused]), (9, [*admitted, refused, "unreadable"])):
        assert Rewriter(writer, pattern, Problem(), machine="sim", seed=0).write(count) == texts
    assert asked == [2 * SPARE, 3 * SPARE, 9 * SPARE]


def test_what_is_near_the_floor_or_has_no_room_is_left_alone() -> None:
    pattern = make("stencil2d", 0, nx=8, ny=10, points=5)
    rewriter = Rewriter(scripted_writer(TEXTS), pattern, Problem(), machine="sim", seed=0)
    rewriter.write(1)
    assert rewriter.rewrite([(TEXTS[0], Told(Verdict.CORRECT, speedup=2.0, floor_share=0.95))], 4) == {}
    writer = scripted_writer(TEXTS)
    size = writer.policy.size
    short = int(2.2 * len(TOKENIZER.encode_program(TEXTS[0])))
    writer.policy.size = Size(replace(size.language, context=short), size.encoder)
    rewriter = Rewriter(writer, pattern, Problem(), machine="sim", seed=0)
    rewriter.write(1)
    assert rewriter.rewrite([(TEXTS[0], Told(Verdict.WRONG))], 4) == {}


# ── Halving with a writer that answers ────────────────────────────────────────


class Clock:
    """A referee with the times of names; baselines take 10 us."""

    repeatable = True

    def __init__(self, times: dict[str, float]) -> None:
        self.times, self.judged = times, list[list[str]]()

    def judge(self, texts: Sequence[str], rounds: int, told: Callable[[int, Outcome], None]) -> None:
        self.judged.append(list(texts))
        for index, text in enumerate(texts):
            timing = Timing("solver", "modelled", self.times[text], floor_us=1.0)
            told(index, Outcome(Verdict.CORRECT, timings={"solver": timing}, registers=40, sectors=1234))

    def race(self, texts: Sequence[str], rounds: int, baselines: bool) -> tuple[list[Outcome], dict[str, Timing]]:
        return [], {"plain:csr": Timing("solver", "modelled", 10.0)}


def candidate(text: str) -> Candidate:
    return Candidate(text, "rows index=int32", {}, text)


def test_what_is_rewritten_is_judged_too_and_may_win() -> None:
    heard: list[list[tuple[str, str]]] = []

    def rewrite(found: Findings) -> list[Candidate]:
        heard.append([(c.text, line(_told(c), TOKENIZER)) for c in found.ranked()])
        return [candidate(f"turn {len(heard)}")] if len(heard) < 3 else []

    referee = Clock({"a": 8.0, "b": 4.0, "turn 1": 3.0, "turn 2": 2.0})
    found = Findings("solver", "modelled", [candidate("a"), candidate("b")])
    steps: list[Progress] = []
    halve(found, referee, steps.append, rewrite)
    assert referee.judged == [["a", "b"], ["turn 1"], ["turn 2"]]
    assert found.best is not None and found.best.text == "turn 2" and found.best.speedup == pytest.approx(5.0)
    assert heard[0] == [
        ("b", "right 250% floor 25% registers 40 sectors 1k"),
        ("a", "right 125% floor 12% registers 40 sectors 1k"),
    ]
    assert [text for text, _ in heard[2]] == ["turn 2", "turn 1", "b", "a"]
    judging = [(step.done, step.total) for step in steps if step.stage == "judging"]
    assert judging == [(0, 2), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4)]
    assert "rewrite" in found.phases_s and all(c.stage == "final" for c in found.candidates)


# ── tune --turns ──────────────────────────────────────────────────────────────


WRONG, RIGHT = rl_tiny.PROGRAMS["skips an entry"], rl_tiny.PROGRAMS["four lanes"]


def answering(folder: Path, steps: int = 160) -> Path:
    """A tiny policy that writes the wrong program first, and the right one after a line that says so."""
    tokenizer = merge([WRONG, RIGHT], 4096)
    tokenizer.save(folder / "words.json")
    first, second = (tokenizer.encode_program(text) for text in (WRONG, RIGHT))
    reasons = [f"y[{row}] is {row * 0.37:.3g} where {row * 0.61:.3g} is right" for row in range(6)]
    lines = [line_ids(Told(Verdict.WRONG, reason), tokenizer) for reason in ("", *reasons)]
    ids = [np.array(first + said + second[1:]) for said in lines]
    written = [[True] * len(first) + [False] * len(said) + [True] * (len(second) - 1) for said in lines]
    shape = Shape(width=64, layers=2, heads=2, kv_heads=1, inner=128, vocabulary=tokenizer.size, context=768)
    policy = make_policy(Size(shape, EncoderSize(inner=32, queries=4)))
    matrix = collate(
        [sample_pattern(make("stencil2d", 0, nx=8, ny=10, points=5))] * len(ids), [Problem()] * len(ids), "sim"
    )
    tokens = torch.from_numpy(padded(ids, 8)[0])
    targets = torch.full_like(tokens, Tokenizer.pad)
    for row, (own, learnt) in enumerate(zip(ids, written, strict=True)):
        targets[row, : len(own)] = torch.where(torch.tensor(learnt), torch.from_numpy(own), Tokenizer.pad)
    with torch.no_grad():
        prefix = policy.prefix(matrix)
    optimiser = torch.optim.AdamW(policy.language.parameters(), lr=2e-2, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-2, steps, pct_start=0.15)
    for _ in range(steps):
        logits = policy(tokens[:, :-1], prefix=prefix)
        loss = cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=Tokenizer.pad)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.language.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    notes = {"stage": "test", "sampling": {"temperature": 0.2}}
    save_policy(policy, folder / "policy", tokenizer=folder / "words.json", notes=notes)
    return folder / "policy"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"turns": 2}, "needs a 'policy' that writes programs.*turns=2 with 'recipes'"),
        ({"turns": 4}, "1..3.*4"),
        ({"turns": 0}, "1..3.*0"),
        ({"turns": 1.5}, "'turns'.*whole number"),
    ],
)
def test_turns_that_can_not_be_played_are_refused_before_anything_is_read(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SparseRLError, match=said):
        sparserl.tune("no such file.mtx", **given)


def test_a_folder_of_programs_or_too_few_candidates_allow_one_turn(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(TEXTS[0])
    with pytest.raises(SparseRLError, match="can't answer a verdict"):
        sparserl.tune("no such file.mtx", policy=tmp_path, turns=2)
    with pytest.raises(SparseRLError, match="3 turns and 2 candidates"):
        sparserl.tune("no such file.mtx", policy=fresh, turns=3, candidates=2)


def test_turns_of_recipes_end_the_command_with_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["sparserl", "tune", "--policy", "recipes", "--turns", "2"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert "'policy' that writes programs" in capsys.readouterr().err


@pytest.mark.parametrize(("candidates", "turns", "shares"), [(16, 1, [16]), (16, 2, [8, 8]), (16, 3, [6, 5, 5])])
def test_turns_share_the_candidates(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, candidates: int, turns: int, shares: list[int]
) -> None:
    asked: list[int] = []

    class Counting:
        def __init__(self, *given: Any, **named: Any) -> None: ...

        def write(self, count: int) -> list[str]:
            asked.append(count)
            return [f"first {k}" for k in range(count)]

        def rewrite(self, told: Sequence[tuple[str, Told]], count: int) -> dict[str, str]:
            asked.append(count)
            return {f"turn {len(asked)} {k}": told[k][0] for k in range(count)}

    monkeypatch.setattr("sparserl.policy.rewriting.Rewriter", Counting)
    pattern = make("stencil2d", 0, nx=8, ny=10, points=5)
    settings = Settings(Problem(), "sim", candidates, str(fresh), turns=turns)
    first, rewrite = first_candidates(pattern, settings, machine("sim").device)
    assert (rewrite is None) == (turns == 1)
    found = Findings("solver", "modelled", first)
    for each in first:
        each.verdict = "wrong"
    while rewrite is not None and (more := rewrite(found)):
        for each in more:
            each.verdict = "wrong"
        found.candidates += more
    assert asked == shares and len(found.candidates) == candidates
    assert len({c.name for c in found.candidates}) == candidates
    if turns > 1:
        assert found.candidates[shares[0]].name == f"written {shares[0] + 1} after 1"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tune_lets_a_policy_answer_its_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "cache_root", lambda: tmp_path / "cache")
    folder = answering(tmp_path / "answers")
    A = sp.random(60, 60, 0.08, format="csr", random_state=np.random.default_rng(0))
    with pytest.raises(SparseRLError, match="None of 1 candidates"):
        sparserl.tune(A, device="sim", policy=folder, candidates=4)
    op = sparserl.tune(A, device="sim", policy=folder, candidates=4, turns=2)
    assert np.allclose(op @ np.ones(60), A @ np.ones(60), atol=1e-4)
    assert op.source == RIGHT and op.report["settings"]["turns"] == 2
    names = {c["name"]: c["verdict"] for c in op.report["candidates"]}
    assert names == {"written 1": "wrong", "written 2 after 1": "correct"}
