"""The sampler: the model's own distribution, whatever the batch; masks, forced prompts, early ends, seeds, speed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sparserl.matrix import as_matrix
from sparserl.policy import decoding
from sparserl.policy.choosing import Choice, choose, nucleus_floor
from sparserl.policy.encoder import EncoderInput, EncoderSize, collate
from sparserl.policy.language import Shape
from sparserl.policy.model import Policy, Size, make_policy
from sparserl.policy.sample import sample_pattern
from sparserl.policy.sampler import Sampler, SampleSettings, Written
from sparserl.policy.tokenizer import SPECIALS, Tokenizer
from sparserl.recipes import space
from sparserl.records import Problem

VOCABULARY = 64  # small, so that <eos> comes by chance and distributions can be counted
EOS, PROGRAM, LAYOUT = (SPECIALS.index(name) for name in ("<eos>", "<program>", "<layout>"))
SIZE = Size(Shape(48, 3, 6, 2, 80, VOCABULARY, 1024), EncoderSize(inner=32, queries=4))


class Words:
    """A tokenizer of numbers, with the special tokens of the real one."""

    special = {name: index for index, name in enumerate(SPECIALS)}  # noqa: RUF012

    def decode_program(self, ids: Sequence[int]) -> str:
        return " ".join(str(each) for each in ids if each != EOS)


def matrices(count: int) -> EncoderInput:
    made = [sp.random(40 * (k + 1), 200, 0.03, format="csr", random_state=k) for k in range(count)]
    return collate([sample_pattern(as_matrix(each).pattern) for each in made], [Problem()] * count)


def one_of(batch: EncoderInput, index: int) -> EncoderInput:
    return EncoderInput(*(each[index : index + 1] for each in batch))


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Fresh weights made larger: as drawn, every distribution would be flat and every test too easy."""
    made = make_policy(SIZE, seed=1).eval()
    with torch.no_grad():
        for parameter in made.language.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5.0)
    return made


@pytest.fixture(scope="module")
def sampler(policy: Policy) -> Sampler:
    return Sampler(policy, Words())


def logits_of(policy: Policy, batch: EncoderInput, index: int, written: Written) -> torch.Tensor:
    """(tokens - 1, vocabulary): the plain forward pass over what was written; line k is for ids[k + 1]."""
    with torch.no_grad():
        return policy(torch.tensor([written.ids[:-1]]), one_of(batch, index))[0]


def largest_difference(policy: Policy, batch: EncoderInput, written: list[list[Written]]) -> float:
    """Between the sampler's log-probabilities and those of the plain forward pass."""
    worst = 0.0
    for index, programs in enumerate(written):
        for each in programs:
            plain = logits_of(policy, batch, index, each).log_softmax(-1)
            chosen = plain.gather(1, torch.tensor(each.ids[1:])[:, None])[:, 0]
            own = torch.tensor(each.log_probs[1:])
            assert len(each.ids) == len(each.log_probs) == len(each.sampled_log_probs)
            worst = max(worst, float((chosen - own)[each.given - 1 :].abs().max()))
    return worst


# ── The same distribution as the plain forward pass ───────────────────────────


@pytest.mark.parametrize("forced", [(), (LAYOUT, 40, 41), ((LAYOUT, 40), (LAYOUT,), (LAYOUT, 50, 51, 52, 53))])
@pytest.mark.parametrize(("windows", "few"), [(False, 0), (True, 0), (True, 99)], ids=["exact", "windows", "wider"])
def test_log_probabilities_equal_the_forward_pass(
    policy: Policy, forced: tuple[int, ...], windows: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """'windows' keeps to the fixed shapes of a CUDA graph, on the CPU."""
    monkeypatch.setattr(decoding, "windowed", lambda device: windows)
    monkeypatch.setattr(decoding, "WINDOW", 32)
    monkeypatch.setattr(decoding, "FEWEST_ROWS", 2)
    monkeypatch.setattr(decoding, "FEW_ROWS", few)
    batch = matrices(3)
    with torch.autocast("cpu", torch.bfloat16):  # a caller's own must change nothing
        written = Sampler(policy, Words()).sample(batch, 5, SampleSettings(max_tokens=120, temperature=0.9), forced)
    ends = {len(each.ids) for programs in written for each in programs if each.finished}
    assert len(ends) > 3, "sequences that end at different steps were meant to be in this test"
    assert largest_difference(policy, batch, written) < 1e-4


def test_given_tokens_are_kept_and_have_no_log_probability(sampler: Sampler) -> None:
    forced = [[LAYOUT, 40], [LAYOUT, 50, 51, 52]]
    written = sampler.sample(matrices(2), 3, SampleSettings(max_tokens=20), forced)
    for tokens, programs in zip(forced, written, strict=True):
        for each in programs:
            assert each.ids[: each.given] == [PROGRAM, *tokens]
            assert each.log_probs[: each.given] == each.sampled_log_probs[: each.given] == [0.0] * each.given
            assert len(each.ids) - each.given <= 20
            assert each.finished or len(each.ids) - each.given == 20


@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (1.0, 0.8), (1.3, 0.5)])
def test_sampled_log_probabilities_know_temperature_and_top_p(
    policy: Policy, sampler: Sampler, temperature: float, top_p: float
) -> None:
    batch = matrices(1)
    settings = SampleSettings(temperature=temperature, top_p=top_p, max_tokens=40)
    for each in sampler.sample(batch, 6, settings)[0]:
        for line, token, drawn in zip(
            logits_of(policy, batch, 0, each), each.ids[1:], each.sampled_log_probs[1:], strict=True
        ):
            probs = (line / temperature).softmax(-1)
            ordered, order = probs.sort(descending=True)
            kept = set(order[: int((ordered.cumsum(0) - ordered < top_p).sum())].tolist())
            assert token in kept
            assert abs(float(probs[token] / probs[list(kept)].sum()) - np.exp(drawn)) < 1e-3


def test_tokens_come_as_often_as_the_model_says(policy: Policy, sampler: Sampler) -> None:
    batch, count = matrices(1), 4000
    written = sampler.sample(batch, count, SampleSettings(max_tokens=1, batch=1000))[0]
    with torch.no_grad():
        expected = count * policy(torch.tensor([[PROGRAM]]), batch)[0, 0].softmax(-1).double().numpy()
    seen = np.bincount([each.ids[1] for each in written], minlength=VOCABULARY)
    common = expected >= 5
    chi = float((((seen - expected) ** 2) / expected)[common].sum())
    assert chi < common.sum() + 5 * np.sqrt(2 * common.sum())  # five standard deviations of a chi-squared
    assert seen.max() > 2 * count / VOCABULARY, "a flat distribution would prove little"


def test_samples_of_a_matrix_are_spread_over_its_distribution(policy: Policy, sampler: Sampler) -> None:
    """As many begin with a token as it has parts of the probability, but for what is lost at its ends."""
    batch = matrices(3)
    with torch.no_grad():
        expected = policy(torch.full((3, 1), PROGRAM), batch)[:, 0].softmax(-1).double().numpy()
    for index, programs in enumerate(sampler.sample(batch, 100, SampleSettings(max_tokens=1))):
        seen = np.bincount([each.ids[1] for each in programs], minlength=VOCABULARY)
        assert np.abs(seen - 100 * expected[index]).max() < 1.001
        assert seen.max() > 4, "a flat distribution would prove little"


def test_each_sample_alone_has_the_distribution_of_the_model(policy: Policy, sampler: Sampler) -> None:
    """Of its second token too, which is chosen by what the first left undecided. Every matrix of the batch is one draw
    of four samples, of which the first ones are counted, or the last ones."""
    first, draws, temperature = matrices(1), 1500, 0.5
    batch = EncoderInput(*(each.expand(draws, *each.shape[1:]) for each in first))
    found = sampler.sample(batch, 4, SampleSettings(temperature, max_tokens=2, stop_at_eos=False, batch=2000))
    with torch.no_grad():
        every = torch.arange(VOCABULARY)
        whole = EncoderInput(*(each.expand(VOCABULARY, *each.shape[1:]) for each in first))
        logits = policy(torch.stack((torch.full_like(every, PROGRAM), every), dim=1), whole)
        begin, then = (logits / temperature).softmax(-1).double().unbind(1)
        expected = draws * (begin[0][:, None] * then).numpy()
    for number in (0, 3):
        seen = np.zeros_like(expected)
        np.add.at(seen, tuple(np.array([programs[number].ids[1:3] for programs in found]).T), 1)
        common = expected >= 5
        chi = float((((seen - expected) ** 2) / expected)[common].sum())
        assert common.sum() > 15
        assert chi < common.sum() + 5 * np.sqrt(2 * common.sum())


def test_greedy_takes_the_most_probable_token(policy: Policy, sampler: Sampler) -> None:
    batch = matrices(2)
    for index, programs in enumerate(sampler.sample(batch, 1, SampleSettings(greedy=True, max_tokens=30))):
        assert logits_of(policy, batch, index, programs[0]).argmax(-1).tolist() == programs[0].ids[1:]
        assert set(programs[0].sampled_log_probs) == {0.0}


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_bfloat16_stays_close_to_the_forward_pass_under_autocast(policy: Policy) -> None:
    batch = matrices(2)
    written = Sampler(policy, Words(), precision="bfloat16").sample(batch, 4, SampleSettings(max_tokens=40))
    with torch.autocast("cpu", torch.bfloat16):
        assert largest_difference(policy, batch, written) < 0.2


# ── Batches and seeds ─────────────────────────────────────────────────────────


def test_a_sequence_depends_on_its_seed_matrix_and_number_alone(policy: Policy) -> None:
    batch = matrices(3)

    def ids(count: int, **settings: int) -> list[list[list[int]]]:
        found = Sampler(policy, Words()).sample(batch, count, SampleSettings(max_tokens=60, **settings))
        return [[each.ids for each in programs] for programs in found]

    def begun(found: list[list[list[int]]]) -> list[list[list[int]]]:
        """The first tokens: products of another batch may be rounded otherwise, and an unsure policy drifts apart."""
        return [[each[:4] for each in programs] for programs in found]

    whole = ids(6)
    assert ids(6) == whole
    parts = ids(6, batch=4)
    assert begun(parts) == begun(whole)
    same = [one == other for some in zip(parts, whole, strict=True) for one, other in zip(*some, strict=True)]
    assert sum(same) > len(same) // 2, "most to their end"
    assert begun(ids(6, seed=1)) != begun(whole)
    assert len({tuple(each) for each in whole[0]}) == 6


def test_a_kept_decoder_leaves_nothing_of_the_call_before(policy: Policy, sampler: Sampler) -> None:
    batch = matrices(2)
    forced = [[LAYOUT] * 9, [LAYOUT]]
    fresh = Sampler(policy, Words()).sample(batch, 2, SampleSettings(max_tokens=30))
    sampler.sample(batch, 8, SampleSettings(max_tokens=90), forced)
    assert [[e.ids for e in p] for p in sampler.sample(batch, 2, SampleSettings(max_tokens=30))] == [
        [e.ids for e in p] for p in fresh
    ]


def test_a_decoder_serves_all_turns_once_it_is_large_enough_for_each(policy: Policy) -> None:
    """First turns have more rows, later ones more positions: they threw away each other's decoder, and its graphs."""
    made, few = Sampler(policy, Words()), matrices(1)
    first, later = SampleSettings(max_tokens=8), SampleSettings(max_tokens=40)
    kept = []
    for _ in range(2):
        for batch, settings, given in ((matrices(4), first, 1), (few, later, 60), (few, first, 120)):
            made.sample(batch, 1, settings, [[LAYOUT] * given] * len(batch.sizes))
            kept.append(made.decoder)
    assert kept[0] is not kept[1] and len({id(each) for each in kept[2:]}) == 1


def test_weights_changed_by_training_are_used_at_the_next_call() -> None:
    policy, batch = make_policy(SIZE), matrices(1)
    sampler = Sampler(policy, Words())
    sampler.sample(batch, 2, SampleSettings(max_tokens=5))
    with torch.no_grad():
        for parameter in policy.language.parameters():
            parameter.mul_(3.0)
    policy.train()
    written = sampler.sample(batch, 2, SampleSettings(max_tokens=20))
    assert policy.training
    assert largest_difference(policy.eval(), batch, written) < 1e-4


def test_without_stopping_every_sequence_has_all_its_tokens(sampler: Sampler) -> None:
    for each in sampler.sample(matrices(1), 8, SampleSettings(max_tokens=80, stop_at_eos=False))[0]:
        assert len(each.ids) == 81
        assert not each.finished


def test_text_is_that_of_the_ids(sampler: Sampler) -> None:
    each = sampler.sample(matrices(1), 1, SampleSettings(max_tokens=50))[0][0]
    assert each.text == Words().decode_program(each.ids)


def test_a_forced_header_of_the_real_tokenizer_opens_the_text() -> None:
    tokenizer = Tokenizer.load()
    policy = make_policy("tiny")
    assert policy.size.language.vocabulary == tokenizer.size
    program = space(Problem())[0].text
    ids = tokenizer.encode_program(program)
    header = ids[1 : ids.index(tokenizer.special["<code>"]) + 1]
    written = Sampler(policy, tokenizer).sample(matrices(2), 2, SampleSettings(max_tokens=10), header)
    start = tokenizer.decode_program([PROGRAM, *header])
    assert start.startswith("// layout: ")
    assert program.startswith(start)
    assert all(each.text.startswith(start) for programs in written for each in programs)


# ── Masks ─────────────────────────────────────────────────────────────────────


class Header:
    """After <program>: <layout>, then one of `names`, then anything."""

    def __init__(self, names: Sequence[int]) -> None:
        self.names = list(names)

    def start(self) -> str:
        return "layout"

    def allowed(self, state: object) -> torch.Tensor:
        found = torch.zeros(VOCABULARY, dtype=torch.bool)
        found[[LAYOUT] if state == "layout" else self.names] = True
        return found

    def advance(self, state: object, token: int) -> str | None:
        return "name" if state == "layout" else None


def test_a_mask_holds_for_the_header_and_lets_go_after_it(policy: Policy, sampler: Sampler) -> None:
    batch = matrices(3)
    masks = [Header([40, 41, 42]), None, Header([50])]
    written = sampler.sample(batch, 6, SampleSettings(max_tokens=40), mask=masks)
    assert largest_difference(policy, batch, written) < 1e-4
    for index, names in ((0, {40, 41, 42}), (2, {50})):
        for each in written[index]:
            assert each.ids[1] == LAYOUT
            assert each.ids[2] in names
            probs = logits_of(policy, batch, index, each)[1].softmax(-1)
            share = float(probs[each.ids[2]] / probs[sorted(names)].sum())
            assert abs(np.exp(each.sampled_log_probs[2]) - share) < 1e-4
            assert each.sampled_log_probs[3:] == pytest.approx(each.log_probs[3:], abs=1e-4)
    free = sampler.sample(batch, 6, SampleSettings(max_tokens=40))
    assert [each.ids for each in written[1]] == [each.ids for each in free[1]]


def test_a_mask_follows_forced_tokens(sampler: Sampler) -> None:
    for forced in ([LAYOUT], [[LAYOUT], [LAYOUT, 40]]):
        written = sampler.sample(matrices(2), 4, SampleSettings(max_tokens=3), forced, Header([44]))
        assert all(each.ids[2] == 44 for each in written[0])


def test_a_mask_that_allows_nothing_is_an_error(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="allows no token at all in state 'name'"):
        sampler.sample(matrices(1), 2, SampleSettings(max_tokens=5), mask=Header([]))


# ── Choosing ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
def test_the_short_list_gives_the_floor_of_a_whole_sort(top_p: float) -> None:
    logits = 4 * torch.randn(20, 2000, generator=torch.Generator().manual_seed(0))
    probs = logits.softmax(-1)
    for row in probs:
        ordered = row.sort(descending=True).values
        needed = int((ordered.double().cumsum(0) - ordered < top_p).sum())
        assert nucleus_floor(row[None], top_p)[0, 0] == ordered[needed - 1]


def test_the_ends_of_the_unit_interval_choose_allowed_tokens() -> None:
    logits = torch.zeros(2, 10)
    allowed = torch.zeros(2, 10, dtype=torch.bool)
    allowed[:, 3:5] = True
    uniform = torch.tensor([0.0, float(np.nextafter(np.float32(1), np.float32(0)))])
    found = choose(logits, uniform, Choice(1.0, 1.0, False, EOS, 0), allowed)
    assert found.token.tolist() == [3, 4]
    assert found.log_prob.tolist() == pytest.approx([-np.log(10)] * 2)
    assert found.sampled_log_prob.tolist() == pytest.approx([-np.log(2)] * 2)
    assert found.rest.tolist() == pytest.approx([0.0, 1.0], abs=1e-6)


# ── What is refused ───────────────────────────────────────────────────────────


def test_settings_that_make_no_sense_are_refused_with_their_value(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match=r"greedy=True.*Got 0"):
        SampleSettings(temperature=0)
    with pytest.raises(ValueError, match=r"\(0, 1\].*Got 1.5"):
        SampleSettings(top_p=1.5)
    with pytest.raises(ValueError, match="lower 'max_tokens' by"):
        sampler.sample(matrices(1), 1, SampleSettings(max_tokens=2000))
    with pytest.raises(ValueError, match="2 lists for 1 matrices"):
        sampler.sample(matrices(1), 1, SampleSettings(), [[1], [2]])
    with pytest.raises(ValueError, match="1 for 2 matrices"):
        sampler.sample(matrices(2), 1, SampleSettings(), mask=[None])


# ── Speed ─────────────────────────────────────────────────────────────────────


def test_nano_writes_16_candidates_of_500_tokens_in_a_minute_on_one_core() -> None:
    """In processor time of one thread, so that a busy machine does not decide. The last 24 steps stand for 500."""
    sampler = Sampler(make_policy("nano"), Words())
    forced = [40] * 476
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sampler.sample(matrices(1), 16, SampleSettings(max_tokens=1, stop_at_eos=False), forced)
        took = []
        for tokens in (1, 25):
            begin = time.process_time()
            sampler.sample(matrices(1), 16, SampleSettings(max_tokens=tokens, stop_at_eos=False), forced)
            took.append(time.process_time() - begin)
    finally:
        torch.set_num_threads(threads)
    assert (took[1] - took[0]) / 24 * 500 < 60
