"""The loss of PPO and GRPO: its gradients against textbook ones, what is masked, what is clipped, what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparserl.families import make
from sparserl.policy.encoder import EncoderSize, collate
from sparserl.policy.language import Shape
from sparserl.policy.model import Policy, Size, make_policy
from sparserl.policy.sample import sample_pattern
from sparserl.records import Problem
from sparserl.train.rl import objective
from sparserl.train.rl.objective import FLAT, Batch, Coefficients, figures, grpo, imitation, k3, ppo
from sparserl.train.rl.value import ValueHead, make_value_head

SIZE = Size(
    Shape(width=32, layers=1, heads=2, kv_heads=1, inner=48, vocabulary=40, context=128),
    EncoderSize(inner=32, queries=4),
)
PLAIN = Coefficients(kl=0.0, entropy=0.0)


@pytest.fixture
def policy() -> Policy:
    return make_policy(SIZE, seed=1)


def some_batch(policy: Policy, seed: int = 0) -> Batch:
    """Three rows over two prefixes; row 2 has feedback between two turns; `old` is what the policy says now."""
    make = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 40, (3, 9), generator=make)
    written = torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 1, 1, 1]]) > 0
    prefix = torch.randn(2, 5, 32, generator=make)
    advantages = torch.randn(3, 9, generator=make)
    batch = Batch(ids, written, torch.zeros(3, 9), advantages, which=torch.tensor([0, 1, 1]), prefix=prefix)
    with torch.no_grad():
        return replace(batch, old=figures(policy, batch).log_probs)


def plain_log_probs(policy: Policy, batch: Batch) -> Tensor:
    """The textbook way: all logits at once."""
    assert batch.prefix is not None
    logits = policy(batch.ids[:, :-1], prefix=batch.prefix[batch.which])
    found = logits.log_softmax(-1).gather(-1, batch.ids[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(found, (1, 0)) * batch.written


def gradients(policy: Policy, loss: Tensor) -> Tensor:
    own = list(policy.language.parameters())
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, own, retain_graph=True)])


def test_log_probabilities_and_entropy_are_those_of_the_whole_logits(policy: Policy) -> None:
    batch = some_batch(policy)
    found = figures(policy, batch)
    assert torch.allclose(found.log_probs, plain_log_probs(policy, batch), atol=1e-6)
    assert batch.prefix is not None
    spread = torch.distributions.Categorical(logits=policy(batch.ids[:, :-1], prefix=batch.prefix[batch.which]))
    assert torch.allclose(found.entropy[:, 1:], spread.entropy() * batch.written[:, 1:], atol=1e-5)
    assert not found.entropy[~batch.written].any()


def test_probabilities_are_those_at_the_temperature_that_tokens_were_drawn_at(policy: Policy) -> None:
    batch = replace(some_batch(policy), temperature=0.7)
    found = figures(policy, batch)
    assert batch.prefix is not None
    logits = policy(batch.ids[:, :-1], prefix=batch.prefix[batch.which]) / 0.7
    drawn = torch.distributions.Categorical(logits=logits)
    assert torch.allclose(found.log_probs[:, 1:], drawn.log_prob(batch.ids[:, 1:]) * batch.written[:, 1:], atol=1e-5)
    assert torch.allclose(found.entropy[:, 1:], drawn.entropy() * batch.written[:, 1:], atol=1e-5)


@pytest.mark.parametrize(("how", "unlearns"), [("all at 0.7", False), ("all at 1", True), ("the most probable", True)])
def test_what_follows_a_bad_choice_is_not_unlearnt_where_tokens_are_drawn_as_they_count(
    policy: Policy, how: str, unlearns: bool
) -> None:
    """One place, all tokens, each as often as it is drawn and all blamed alike, for a choice that was made before."""
    make = torch.Generator().manual_seed(0)
    prefix = torch.randn(1, 5, 32, generator=make)
    with torch.no_grad():
        logits = policy(torch.tensor([[1]]), prefix=prefix)[0, 0]
    often = (logits / (1.0 if how == "all at 1" else 0.7)).softmax(-1)
    if how == "the most probable":
        often = torch.where(often >= often.topk(20).values[-1], often, 0.0)
        often = often / often.sum()
    ids = torch.stack((torch.ones(40, dtype=torch.int64), torch.arange(40)), dim=1)
    written = torch.tensor([[False, True]]).expand(40, 2)
    which = torch.zeros(40, dtype=torch.int64)
    batch = Batch(ids, written, torch.zeros(40, 2), -40 * often[:, None], which=which, prefix=prefix, temperature=0.7)
    with torch.no_grad():
        batch = replace(batch, old=figures(policy, batch).log_probs)
    moved = gradients(policy, grpo(policy, batch, PLAIN).loss).norm()
    assert (moved > 1e-3) == unlearns, moved


def test_matrices_are_encoded_once_each_and_their_encoder_learns(policy: Policy) -> None:
    patterns = [make("stencil2d", 0, nx=8, ny=8), make("uniform", 1, rows=90, columns=90, per_row=4.6)]
    matrix = collate([sample_pattern(each) for each in patterns], [Problem()] * 2)
    batch = replace(some_batch(policy), prefix=None, matrix=matrix)
    found = figures(policy, batch)
    with torch.no_grad():
        same = replace(batch, matrix=None, prefix=policy.prefix(matrix))
    assert torch.allclose(found.log_probs, figures(policy, same).log_probs, atol=1e-6)
    (gradient,) = torch.autograd.grad(grpo(policy, batch, PLAIN).loss, [policy.encoder.project.weight])
    assert bool(gradient.any())
    with pytest.raises(ValueError, match="not both"):
        replace(batch, prefix=same.prefix)


def test_at_ratio_one_the_gradient_is_the_plain_policy_gradient(policy: Policy) -> None:
    batch = some_batch(policy)
    mask = batch.written
    plain = -(plain_log_probs(policy, batch) * batch.advantages * mask).sum() / mask.sum()
    found = grpo(policy, batch, PLAIN)
    assert torch.allclose(gradients(policy, found.loss), gradients(policy, plain), atol=1e-6)
    assert float(found.parts["ratio"]) == pytest.approx(1.0, abs=1e-5)
    assert float(found.parts["clip_fraction"]) == 0.0


@pytest.mark.parametrize(
    ("shift", "sign", "cut"), [(1.0, 1, True), (1.0, -1, False), (-1.0, -1, True), (-1.0, 1, False)]
)
def test_a_token_has_no_gradient_just_where_it_went_too_far_its_own_way(
    policy: Policy, shift: float, sign: int, cut: bool
) -> None:
    batch = some_batch(policy)
    batch = replace(batch, old=batch.old - shift, advantages=torch.full((3, 1), float(sign)))
    found = grpo(policy, batch, PLAIN)
    assert float(found.parts["clip_fraction"]) == float(cut)
    assert bool(gradients(policy, found.loss).abs().max() < 1e-9) == cut


def test_clipping_is_token_by_token(policy: Policy) -> None:
    """With one token cut, the gradient is that of the others."""
    batch = some_batch(policy)
    old, advantages = batch.old.clone(), batch.advantages.abs()
    old[1, 4] -= 1.0
    found = grpo(policy, replace(batch, old=old, advantages=advantages), PLAIN)
    spared = advantages.clone()
    spared[1, 4] = 0.0
    rest = grpo(policy, replace(batch, advantages=spared), PLAIN)
    assert torch.allclose(gradients(policy, found.loss), gradients(policy, rest.loss), atol=1e-7)
    assert float(found.parts["clip_fraction"]) == pytest.approx(1 / int(batch.written.sum()))


def test_the_kl_of_equal_policies_is_0_and_pulls_nowhere(policy: Policy) -> None:
    batch = some_batch(policy)
    batch = replace(batch, reference=batch.old, advantages=torch.zeros(3, 1))
    found = grpo(policy, batch, Coefficients(kl=1.0))
    assert float(found.parts["kl"]) == pytest.approx(0.0, abs=1e-10)
    assert float(gradients(policy, found.loss).abs().max()) < 1e-6


def test_k3_is_never_negative_and_its_mean_is_the_kl() -> None:
    make = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(50, generator=make, dtype=torch.float64).log_softmax(0) for _ in range(2))
    each = k3(ours, theirs)
    assert bool((each >= 0).all())
    truth = (ours.exp() * (ours - theirs)).sum()
    assert float((ours.exp() * each).sum()) == pytest.approx(float(truth))
    assert torch.isfinite(k3(torch.tensor(0.0), torch.tensor(-500.0)))


def test_the_kl_does_not_bring_back_with_force_what_has_become_rare(policy: Policy) -> None:
    """A token a thousand times rarer than when it was drawn is pulled at no harder than by one unit of advantage."""
    batch = some_batch(policy)
    row, place = 1, 4
    assert bool(batch.written[row, place])
    reference = batch.old.clone()
    reference[row, place] += 7.0
    batch = replace(batch, reference=reference, advantages=torch.zeros(3, 1))
    pulled = gradients(policy, grpo(policy, batch, Coefficients(kl=1.0)).loss)
    one = torch.zeros(batch.ids.shape)
    one[row, place] = 1.0
    pushed = gradients(policy, grpo(policy, replace(batch, advantages=one), PLAIN).loss)
    assert float((pulled @ pushed) / (pushed @ pushed)) == pytest.approx(1.0, abs=0.01)


def test_the_kl_pulls_towards_the_reference(policy: Policy) -> None:
    batch = some_batch(policy)
    with torch.no_grad():
        other = figures(make_policy(SIZE, seed=2), batch).log_probs
    batch = replace(batch, reference=other, advantages=torch.zeros(3, 1))
    optimiser = torch.optim.SGD(policy.parameters(), lr=0.1)
    before = float(grpo(policy, batch, PLAIN).parts["kl"])
    for _ in range(10):
        optimiser.zero_grad()
        grpo(policy, batch, Coefficients(kl=1.0)).loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert float(grpo(policy, batch, PLAIN).parts["kl"]) < 0.9 * before


def test_the_entropy_bonus_raises_the_entropy_and_without_it_nothing_does(policy: Policy) -> None:
    for each in policy.parameters():  # fresh weights are all but uniform already
        each.data *= 8
    batch = replace(some_batch(policy), advantages=torch.zeros(3, 1))
    assert not gradients(policy, grpo(policy, batch, PLAIN).loss).any()
    before = float(grpo(policy, batch, PLAIN).parts["entropy"])
    step = gradients(policy, grpo(policy, batch, Coefficients(entropy=1.0)).loss)
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(
            torch.nn.utils.parameters_to_vector(policy.language.parameters()) - 0.02 * step / step.norm(),
            policy.language.parameters(),
        )
    assert float(grpo(policy, batch, PLAIN).parts["entropy"]) > before


def test_tokens_that_the_policy_did_not_write_do_not_count(policy: Policy) -> None:
    batch = some_batch(policy)
    given_away = torch.where(batch.written, 0.0, 7.0)
    other = replace(batch, advantages=batch.advantages + given_away, old=batch.old - given_away, reference=batch.old)
    same = replace(batch, reference=batch.old)
    one, two = grpo(policy, same, Coefficients()), grpo(policy, other, Coefficients())
    assert one.loss.item() == pytest.approx(two.loss.item())
    assert {k: float(v) for k, v in one.parts.items()} == pytest.approx({k: float(v) for k, v in two.parts.items()})
    ids = batch.ids.clone()
    ids[0, 5:] = 0  # what stands after the last written token
    assert float(grpo(policy, replace(same, ids=ids), Coefficients()).loss.detach()) == pytest.approx(one.loss.item())


def test_parts_of_a_step_add_up_to_the_whole(policy: Policy) -> None:
    batch = some_batch(policy)
    total = int(batch.written.sum())
    assert batch.which is not None
    rows = [
        replace(
            batch, ids=batch.ids[i : i + 1], written=batch.written[i : i + 1], old=batch.old[i : i + 1],
            advantages=batch.advantages[i : i + 1], which=batch.which[i : i + 1], total=total,
        )
        for i in range(3)
    ]  # fmt: skip
    whole = gradients(policy, grpo(policy, batch, PLAIN).loss)
    parts = sum(gradients(policy, grpo(policy, row, PLAIN).loss) for row in rows)
    assert isinstance(parts, Tensor)
    assert torch.allclose(whole, parts, atol=1e-6)


def test_chunks_change_no_gradient_and_keep_no_logits(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = some_batch(policy)
    weights = Coefficients(entropy=0.1)
    whole = gradients(policy, grpo(policy, batch, weights).loss)
    monkeypatch.setattr(objective, "CHUNK", 4)
    kept: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(tuple(x.shape)), x)[1], lambda x: x):
        loss = grpo(policy, batch, weights).loss
    assert kept
    assert not [shape for shape in kept if len(shape) == 2 and shape[-1] == SIZE.language.vocabulary]
    assert torch.allclose(gradients(policy, loss), whole, atol=1e-6)


def test_ppo_is_grpo_with_a_value_that_leaves_the_policy_alone_unless_shared(policy: Policy) -> None:
    batch = some_batch(policy)
    batch = replace(batch, returns=torch.randn(3, 9, generator=torch.Generator().manual_seed(5)))
    expected = gradients(policy, grpo(policy, batch, Coefficients()).loss)
    for shared in (False, True):
        head = make_value_head(32, shared=shared)
        torch.nn.init.normal_(head.last.weight)  # a fresh head passes no gradient on
        found = ppo(policy, head, batch, Coefficients())
        assert torch.allclose(gradients(policy, found.loss), expected, atol=1e-7) != shared
        assert bool(torch.autograd.grad(found.loss, [head.first.weight])[0].any())


def test_the_value_head_learns_its_returns(policy: Policy) -> None:
    batch = replace(some_batch(policy), returns=torch.full((3, 9), 1.5) + some_batch(policy).ids / 40)
    head = make_value_head(32, start=1.0)
    with torch.no_grad():
        fresh = figures(policy, batch, head).values
        assert fresh is not None
        assert bool((fresh[batch.written] == 1.0).all())
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-2)
    first = None
    for _ in range(40):
        found = ppo(policy, head, batch, Coefficients())
        first = float(found.parts["value_loss"]) if first is None else first
        optimiser.zero_grad()
        found.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert float(found.parts["value_loss"]) < 0.1 * (first or 0.0)


def test_ppo_without_returns_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="'returns'"):
        ppo(policy, ValueHead(32), some_batch(policy), Coefficients())


def test_imitation_is_the_weighted_negative_log_likelihood(policy: Policy) -> None:
    batch = replace(some_batch(policy), advantages=torch.ones(3, 1))
    expected = -plain_log_probs(policy, batch).sum() / batch.written.sum()
    assert imitation(policy, batch).loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_flat_probabilities_are_those_at_a_high_temperature(policy: Policy) -> None:
    batch = replace(some_batch(policy), temperature=0.7)
    assert batch.prefix is not None
    logits = policy(batch.ids[:, :-1], prefix=batch.prefix[batch.which]) / FLAT
    flat = torch.distributions.Categorical(logits=logits).log_prob(batch.ids[:, 1:])
    assert torch.allclose(figures(policy, batch).flat[:, 1:], flat * batch.written[:, 1:], atol=1e-5)


@pytest.mark.parametrize("what", ["grpo", "ppo", "imitation"])
def test_what_was_kept_may_rise_and_costs_its_square_where_it_fell(policy: Policy, what: str) -> None:
    batch = some_batch(policy)
    batch = replace(batch, returns=torch.zeros(3, 9))

    def loss(keep: float, kept: Tensor | None) -> Tensor:
        held = replace(batch, kept=kept)
        if what == "imitation":
            return imitation(policy, held, keep).loss
        coefficients = replace(PLAIN, keep=keep)
        head = make_value_head(32, 0)
        return (ppo(policy, head, held, coefficients) if what == "ppo" else grpo(policy, held, coefficients)).loss

    with torch.no_grad():
        flat = figures(policy, batch).flat
    without = loss(0.0, None)
    assert loss(3.0, flat - 0.5).item() == pytest.approx(without.item(), abs=1e-6)
    assert torch.allclose(gradients(policy, loss(3.0, flat - 0.5)), gradients(policy, without), atol=1e-7)
    fell = torch.zeros(3, 9)
    fell[0, 2], fell[1, 0] = 0.5, 9.0  # the latter is nothing that the policy wrote
    expected = 3.0 * 0.25 / int(batch.written.sum())
    assert loss(3.0, flat + fell).item() - without.item() == pytest.approx(expected, rel=1e-3)
    assert not torch.allclose(gradients(policy, loss(3.0, flat + fell)), gradients(policy, without), atol=1e-5)


def test_margins_stay_where_the_first_policy_is_asked() -> None:
    """A sure policy is blamed for all that it wrote, as for a failure that lies elsewhere: how much of it is lost?"""
    lost = {}
    for keep in (0.0, 3.0):
        policy = make_policy(SIZE, seed=1)
        batch = replace(some_batch(policy), advantages=torch.ones(3, 1))
        adam = torch.optim.Adam(policy.language.parameters(), 3e-3)
        for _ in range(400):
            _step(adam, imitation(policy, batch).loss)
        with torch.no_grad():
            sure = figures(policy, batch)
        assert bool((sure.log_probs[batch.written] > -0.01).all())
        blamed = replace(batch, old=sure.log_probs, advantages=-torch.ones(3, 1), kept=sure.flat)
        adam = torch.optim.Adam(policy.language.parameters(), 3e-3)
        for _ in range(10):
            _step(adam, grpo(policy, blamed, replace(PLAIN, keep=keep)).loss)
        with torch.no_grad():
            lost[keep] = float((sure.flat - figures(policy, batch).flat)[batch.written].mean())
    assert lost[0.0] > 0.1 and lost[3.0] < 0.5 * lost[0.0], lost


def _step(adam: torch.optim.Adam, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    adam.step()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": torch.zeros(3, 8)}, "'old' of a Batch must have the shape of its ids"),
        ({"advantages": torch.zeros(1, 9)}, "'advantages'"),
        ({"written": torch.ones(3, 9) > 0}, "first token"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(policy: Policy, changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(some_batch(policy), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"clip_low": 1.0}, {"clip_high": 0.0}, {"kl": -1.0}, {"value": float("nan")}])
def test_bad_coefficients_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="of Coefficients"):
        Coefficients(**changes)
