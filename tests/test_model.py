"""The model: Llama's logits, a prefix that is seen, sizes within their bars; checkpoints that are whole or refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sparserl.errors import StoreError
from sparserl.matrix import as_matrix
from sparserl.policy.checkpoint import load_policy, quantise, read_config, save_policy
from sparserl.policy.encoder import EncoderInput, collate
from sparserl.policy.language import Language, Shape
from sparserl.policy.model import SIZES, Policy, Size, count_parameters, make_policy
from sparserl.policy.sample import sample_pattern
from sparserl.records import Problem


def matrices(count: int = 2) -> EncoderInput:
    """A batch of matrices that look nothing like each other."""
    rng = np.random.default_rng(0)
    made = [sp.random(60 * (k + 1), 300, 0.02 * (k + 1), format="csr", random_state=rng) for k in range(count)]
    return collate([sample_pattern(as_matrix(each).pattern) for each in made], [Problem()] * count)


def tokens(*shape: int, vocabulary: int = 8192, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return make_policy("tiny").eval()


@pytest.fixture(scope="module")
def nano() -> Policy:
    return make_policy("nano").eval()


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A file that stands for a tokenizer: a checkpoint only copies and hashes it."""
    path = tmp_path / "words.json"
    path.write_text('{"words": 1}')
    return path


# ── The model ─────────────────────────────────────────────────────────────────


def test_logits_equal_those_of_transformers_llama() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    shape = Shape(width=48, layers=3, heads=6, kv_heads=2, inner=80, vocabulary=97, context=64)
    language = Language(shape)
    with torch.no_grad():
        for parameter in language.parameters():  # norms other than one, logits far from flat
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape.llama_config())).eval()
    theirs.load_state_dict(language.state_dict())
    ids = tokens(3, 50, vocabulary=97)
    with torch.no_grad():
        difference = (language(ids) - theirs(ids).logits).abs().max()
    assert difference < 1e-4


def test_nano_has_12_to_20_million_parameters_and_room_for_2560_tokens(nano: Policy, tiny: Policy) -> None:
    assert 12e6 <= count_parameters(nano) <= 20e6
    assert count_parameters(tiny) < 1e6
    for policy in (nano, tiny):
        assert policy.size.language.context >= 2560 + policy.prefix_length


def test_a_prefix_stands_before_the_tokens_and_logits_are_for_the_tokens(tiny: Policy) -> None:
    ids, batch = tokens(2, 7), matrices()
    with torch.no_grad():
        seen, blind = tiny(ids, batch), tiny(ids)
        by_prefix = tiny(ids, prefix=tiny.prefix(batch))
        swapped = tiny(ids.flip(0), EncoderInput(*(each.flip(0) for each in batch))).flip(0)
    assert seen.shape == blind.shape == (2, 7, 8192)
    assert (seen - blind).abs().max() > 1e-3
    assert torch.equal(seen, by_prefix)
    assert (seen - swapped).abs().max() < 1e-5


def test_a_later_token_does_not_change_an_earlier_logit(tiny: Policy) -> None:
    ids = tokens(2, 9)
    other = ids.clone()
    other[:, 6] = (other[:, 6] + 1) % 8192
    with torch.no_grad():
        first, second = tiny(ids, matrices()), tiny(other, matrices())
    assert (first[:, :6] - second[:, :6]).abs().max() < 1e-6
    assert (first[:, 6:] - second[:, 6:]).abs().max() > 1e-3


def test_a_loss_on_the_tokens_reaches_the_encoder(tiny: Policy) -> None:
    tiny(tokens(2, 5), matrices()).logsumexp(-1).sum().backward()
    gradients = [p.grad for p in tiny.encoder.parameters()]
    assert any(each is not None and bool(each.abs().max() > 0) for each in gradients)
    tiny.zero_grad()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_logits_stay_in_float32_under_autocast(tiny: Policy) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        short = tiny(tokens(2, 5), matrices())
    with torch.no_grad():
        whole = tiny(tokens(2, 5), matrices())
    assert short.dtype is torch.float32
    assert (short - whole).abs().max() < 0.05


def test_the_same_seed_makes_the_same_policy_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = make_policy("tiny", 3), make_policy("tiny", 3), make_policy("tiny", 4)
    assert torch.equal(torch.rand(1), expected)
    states = [each.state_dict() for each in (first, second, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["language.lm_head.weight"], states[2]["language.lm_head.weight"])


def test_what_does_not_fit_is_refused_with_its_numbers(tiny: Policy) -> None:
    with pytest.raises(ValueError, match="context 3072 was given 3073"):
        tiny(tokens(1, 3073))
    with pytest.raises(ValueError, match="nano"):
        make_policy("huge")
    with pytest.raises(ValueError, match="not both"):
        tiny(tokens(2, 3), matrices(), prefix=tiny.prefix(matrices()))
    with pytest.raises(ValueError, match="multiple of 'kv_heads'"):
        Shape(width=64, layers=1, heads=4, kv_heads=3, inner=64)


# ── Checkpoints ───────────────────────────────────────────────────────────────


def test_a_float_checkpoint_gives_back_every_number(tiny: Policy, tmp_path: Path, words: Path) -> None:
    save_policy(tiny, tmp_path / "p", tokenizer=words, notes={"step": 7})
    again = load_policy(tmp_path / "p")
    assert read_config(tmp_path / "p")["notes"] == {"step": 7}
    assert again.size == tiny.size
    assert again.language.lm_head.weight is again.language.model.embed_tokens.weight
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in tiny.state_dict().items())
    with torch.no_grad():
        assert torch.equal(tiny(tokens(2, 6), matrices()), again(tokens(2, 6), matrices()))


def test_nano_in_int8_is_at_most_25_mb_and_keeps_its_logits(nano: Policy, tmp_path: Path, words: Path) -> None:
    save_policy(nano, tmp_path / "p", "int8", words)
    size_bytes = sum(path.stat().st_size for path in (tmp_path / "p").iterdir())
    assert size_bytes <= 24e6  # and a tokenizer of less than 1 MB
    again = load_policy(tmp_path / "p")
    with torch.no_grad():
        whole, short = nano(tokens(2, 64), matrices()), again(tokens(2, 64), matrices())
    assert (whole - short).square().mean().sqrt() < 0.03 * whole.std()


def test_nano_loads_within_a_second_of_one_core_the_first_time(nano: Policy, tmp_path: Path, words: Path) -> None:
    """In a process of its own, since a first load may import more; processor time, so a busy machine doesn't decide."""
    save_policy(nano, tmp_path / "p", "int8", words)
    script = (
        "import sys, time, torch, pathlib, sparserl.policy.checkpoint as c\n"
        "torch.set_num_threads(1)\n"
        "begin = time.process_time()\n"
        "c.load_policy(pathlib.Path(sys.argv[1]))\n"
        "print(time.process_time() - begin)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "p")], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(done.stdout) < 1.0


def test_int8_is_off_by_at_most_half_a_step_and_a_second_time_by_nothing() -> None:
    matrix = torch.randn(50, 80, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 2, 50)[:, None]
    matrix[3] = 0
    whole, scale = quantise(matrix)
    back = whole.float() * scale
    assert bool(((back - matrix).abs() <= 0.5001 * scale).all())
    assert torch.equal(quantise(back)[0], whole)


def test_bfloat16_is_half_the_size_and_comes_back_rounded(tiny: Policy, tmp_path: Path, words: Path) -> None:
    for kind in ("float32", "bfloat16"):
        save_policy(tiny, tmp_path / kind, kind, words)  # type: ignore[arg-type]
    sizes = [(tmp_path / kind / "model.safetensors").stat().st_size for kind in ("float32", "bfloat16")]
    assert sizes[1] < 0.6 * sizes[0]
    back = load_policy(tmp_path / "bfloat16").state_dict()
    for name, tensor in tiny.state_dict().items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor) or torch.equal(back[name], tensor.bfloat16().float())


def test_a_policy_that_was_loaded_can_be_trained(tiny: Policy, tmp_path: Path, words: Path) -> None:
    save_policy(tiny, tmp_path / "p", "int8", words)
    policy = load_policy(tmp_path / "p").train()
    optimiser = torch.optim.SGD(policy.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        logits = policy(tokens(2, 6), matrices())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens(2, 6, seed=1).flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    assert policy.language.lm_head.weight is policy.language.model.embed_tokens.weight


def test_a_folder_that_is_not_whole_is_refused(tiny: Policy, tmp_path: Path, words: Path) -> None:
    good = tmp_path / "good"
    save_policy(tiny, good, "int8", words)
    for name, break_it in {
        "unfinished": lambda folder: (folder / "manifest.json").unlink(),
        "cut": lambda folder: (folder / "model.safetensors").write_bytes(b"half"),
        "bare": lambda folder: (folder / "tokenizer.json").unlink(),
    }.items():
        shutil.copytree(good, tmp_path / name)
        break_it(tmp_path / name)
        with pytest.raises(StoreError, match=r"never finished|missing or has changed"):
            load_policy(tmp_path / name)
    with pytest.raises(StoreError, match="no policy folder"):
        load_policy(tmp_path / "nowhere")


def test_another_tokenizer_is_refused(tiny: Policy, tmp_path: Path, words: Path) -> None:
    save_policy(tiny, tmp_path / "p", "int8", words)
    other = tmp_path / "other.json"
    other.write_text('{"words": 2}')
    load_policy(tmp_path / "p", tokenizer=words)
    with pytest.raises(StoreError, match=r"other\.json"):
        load_policy(tmp_path / "p", tokenizer=other)


def test_a_control_encoder_comes_back_as_it_was(tmp_path: Path, words: Path) -> None:
    stored = SIZES["tiny"].as_dict() | {"encoder": {"inner": 64, "source": "blind"}}
    size = Size.from_dict(json.loads(json.dumps(stored)))
    save_policy(make_policy(size), tmp_path / "p", tokenizer=words)
    assert load_policy(tmp_path / "p").encoder.size.source == "blind"
