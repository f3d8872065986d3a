"""The sampler on a GPU: captured graphs give the log-probabilities of the plain forward pass, fast enough."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sparserl.matrix import as_matrix
from sparserl.policy import decoding
from sparserl.policy.encoder import EncoderInput, EncoderSize, collate
from sparserl.policy.language import Shape
from sparserl.policy.model import Policy, Size, make_policy
from sparserl.policy.sample import sample_pattern
from sparserl.policy.sampler import Sampler, SampleSettings, Written, time_step_ms
from sparserl.policy.tokenizer import SPECIALS
from sparserl.records import Problem

pytestmark = pytest.mark.gpu

SMALL = Size(Shape(128, 3, 4, 2, 256, 64, 1024), EncoderSize(inner=32, queries=4))
EOS, LAYOUT = SPECIALS.index("<eos>"), SPECIALS.index("<layout>")


class Words:
    """A tokenizer of numbers, with the special tokens of the real one."""

    special = {name: index for index, name in enumerate(SPECIALS)}  # noqa: RUF012

    def decode_program(self, ids: Sequence[int]) -> str:
        return " ".join(str(each) for each in ids if each != EOS)


def matrices(count: int) -> EncoderInput:
    made = [sp.random(40 * (k + 1), 200, 0.03, format="csr", random_state=k) for k in range(count)]
    return collate([sample_pattern(as_matrix(each).pattern) for each in made], [Problem()] * count).to("cuda")


def sharp(size: Size | str) -> Policy:
    """Fresh weights made larger, for distributions that are not flat."""
    made = make_policy(size, seed=1).eval()
    with torch.no_grad():
        for parameter in made.language.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3.0)
    return made.to("cuda")


def differences(policy: Policy, batch: EncoderInput, written: list[list[Written]]) -> np.ndarray:
    """Between the sampler's log-probabilities and those of the plain forward pass, token by token."""
    found = []
    for index, programs in enumerate(written):
        one = EncoderInput(*(each[index : index + 1] for each in batch))
        for each in programs:
            ids = torch.tensor([each.ids], device="cuda")
            with torch.no_grad():
                plain = policy(ids[:, :-1], one)[0].log_softmax(-1)
            chosen = plain.gather(1, ids[0, 1:, None])[:, 0].cpu().numpy()
            found.append(np.abs(chosen - np.array(each.log_probs[1:]))[each.given - 1 :])
    return np.concatenate(found)


@pytest.mark.parametrize("forced", [(), ((LAYOUT, 40), (LAYOUT,), (LAYOUT, 50, 51, 52, 53))])
def test_float32_log_probabilities_equal_the_forward_pass(
    forced: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "WINDOW", 32)
    policy, batch = sharp(SMALL), matrices(3)
    sampler = Sampler(policy, Words(), "cuda", precision="float32")
    for seed in (0, 1):  # the second run replays graphs that the first has captured
        written = sampler.sample(batch, 40, SampleSettings(max_tokens=400, temperature=0.9, seed=seed), forced)
        lengths = {len(each.ids) for programs in written for each in programs}
        assert max(lengths) > 64, "more than one window was meant to be used"
        assert len(lengths) > 10
        assert differences(policy, batch, written).max() < 1e-3
    assert len({key[0] for key in sampler.decoder.graphs}) > 1, "the batch was meant to shrink"  # type: ignore[union-attr]


def test_bfloat16_log_probabilities_are_those_of_the_forward_pass_under_autocast() -> None:
    policy, batch = sharp("nano"), matrices(2)
    written = Sampler(policy, Words(), "cuda").sample(batch, 4, SampleSettings(max_tokens=300, stop_at_eos=False))
    with torch.autocast("cuda", torch.bfloat16):
        found = differences(policy, batch, written)
    logging.getLogger(__name__).info("bf16 log-probability differences: mean %.4f, max %.4f", found.mean(), found.max())
    assert found.mean() < 0.03
    assert found.max() < 0.5


def test_a_seed_gives_the_same_tokens_and_top_p_and_greedy_are_captured_too() -> None:
    policy, batch = sharp(SMALL), matrices(2)
    sampler = Sampler(policy, Words(), "cuda")
    for settings in (
        SampleSettings(max_tokens=60, seed=3),
        SampleSettings(max_tokens=60, top_p=0.7, temperature=0.8),
        SampleSettings(max_tokens=60, greedy=True),
    ):
        first = [[each.ids for each in p] for p in sampler.sample(batch, 8, settings)]
        assert first == [[each.ids for each in p] for p in sampler.sample(batch, 8, settings)]


def test_graphs_follow_weights_that_training_changes() -> None:
    policy, batch = sharp(SMALL), matrices(1)
    sampler = Sampler(policy, Words(), "cuda", precision="float32")
    settings = SampleSettings(max_tokens=50, stop_at_eos=False)
    sampler.sample(batch, 16, settings)
    with torch.no_grad():
        for parameter in policy.language.parameters():
            parameter.mul_(1.2)
    assert differences(policy, batch, sampler.sample(batch, 16, settings)).max() < 1e-3


def test_a_mask_holds_on_a_gpu() -> None:
    class OnlyLayout:
        def start(self) -> str:
            return "first"

        def allowed(self, state: object) -> torch.Tensor:
            return torch.arange(64) == LAYOUT

        def advance(self, state: object, token: int) -> None:
            return None

    written = Sampler(sharp(SMALL), Words(), "cuda").sample(
        matrices(2), 20, SampleSettings(max_tokens=20), mask=[OnlyLayout(), None]
    )
    assert all(each.ids[1] == LAYOUT for each in written[0])
    assert not all(each.ids[1] == LAYOUT for each in written[1])


@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_nano_takes_at_most_3_ms_a_token_step_at_batch_512(top_p: float, capsys: pytest.CaptureFixture[str]) -> None:
    sampler = Sampler(make_policy("nano"), Words(), "cuda")
    took = time_step_ms(sampler, matrices(32), 16, SampleSettings(max_tokens=600, top_p=top_p, stop_at_eos=False))
    with capsys.disabled():
        print(f"\nnano, batch 512, 600 tokens, top-p {top_p}: {took:.2f} ms a step on {torch.cuda.get_device_name()}")
    assert took <= 3.0
