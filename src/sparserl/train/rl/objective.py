"""The loss of reinforcement learning: clipped ratio, KL to a reference, entropy, value; PPO and GRPO of the same parts.

    ratio   = exp(log p - log p_old)
    policy  = -mean min(ratio · A, clip(ratio, 1 - low, 1 + high) · A)
    kl      = mean (exp(d) - 1 - d),  d = log p - log p_reference                        (the k3 estimator)
    worn    = mean max(0, log q_first - log q)², q at `FLAT`, of tokens that the run's first policy was sure of
    value   = mean (V - return)² / 2
    PPO     = policy + c_kl · kl - c_entropy · entropy + c_keep · worn + c_value · value;  GRPO: without a value

Means are over the tokens that the policy wrote. A step of several batches gives each the `total` of written tokens:
their losses then add up to that of one large batch. k3 is never negative and 0 for equal policies. It is that of
KL(reference ‖ policy), as the tokens were drawn before the step: from them the other one, with d turned round, is an
estimate of nothing, and its exp(d) pulls a thousand times harder at a token that has become a thousand times rarer than
its advantage pushed. So a mistake that had just been unlearnt was learnt again, by heart.

Logits are the largest thing here (tokens × 8192 × 4 bytes), so they are made for written tokens alone, `CHUNK` at a
time, and again in the backward pass. Log-probabilities of the sampler differ from these by the rounding of another
order of sums: take the old ones from `figures` before the first step where the ratio must begin at 1.

Grammar is what a policy is sure of, and steps of any kind wear its margins down: a logit that leads by 28 may lose half
of that before its probability is less than 1.000, so neither the KL nor imitation sees it, until it is drawn. At a high
temperature it is seen: there a token that the first policy was sure of may gain, but not lose.

Probabilities are those at the temperature that the rollouts were drawn at. They must be: were tokens drawn from another
distribution, from the most probable ones alone say, the mean of A · grad log p over what follows a bad choice would no
longer be 0, and every certain token after it would be unlearnt.

Not covered: where advantages come from (`credit`), averaging gradients over several devices (the caller's).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparserl.policy.encoder import EncoderInput
from sparserl.policy.language import Language
from sparserl.policy.model import Policy
from sparserl.train.loop import Step
from sparserl.train.rl.value import ValueHead

CHUNK = 4096
"""tokens whose logits are there at one time: 128 MiB of them"""
FLAT = 4.0
"""the temperature at which margins are seen"""
FARTHEST = 10.0
"""log-ratios are cut here: beyond, exp only makes infinities, and a clipped token has no gradient anyway"""


@dataclass(frozen=True)
class Coefficients:
    """How the parts of the loss are put together."""

    clip_low: float = 0.2
    """a ratio below 1 - this earns nothing more"""
    clip_high: float = 0.28
    """a ratio above 1 + this earns nothing more; a little wider, so that rare tokens can rise"""
    kl: float = 0.02
    """of the KL to the reference"""
    entropy: float = 0.0
    """of the bonus for entropy, nats a token"""
    keep: float = 3.0
    """of what is lost of the margins of tokens that the run's first policy was sure of; 0: that policy isn't asked"""
    value: float = 0.5
    """of the value loss (PPO)"""

    def __post_init__(self) -> None:
        for name in ("kl", "entropy", "keep", "value"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"The '{name}' of Coefficients must be a finite number, not negative. Got {getattr(self, name)}."
                )
        if not (0 < self.clip_low < 1 and 0 < self.clip_high < math.inf):
            raise ValueError(
                "The 'clip_low' of Coefficients must lie between 0 and 1, 'clip_high' above 0. "
                f"Got {self.clip_low} and {self.clip_high}."
            )


@dataclass(frozen=True, eq=False)
class Batch:
    """Rollouts as tensors, filled up on the right; all but the matrices are (batch, tokens), beside `ids`."""

    ids: Tensor
    written: Tensor
    """bool: the policy wrote it; false for given tokens, feedback and padding"""
    old: Tensor
    """log-probability when it was written"""
    advantages: Tensor
    """(batch, tokens), or (batch, 1): one a rollout"""
    matrix: EncoderInput | None = None
    """the matrices; None: a plain language model, or `prefix`"""
    which: Tensor | None = None
    """(batch): the place of each row's matrix in `matrix` or `prefix`; None: one a row. Each is encoded once."""
    prefix: Tensor | None = None
    """what the encoder made of the matrices, in place of `matrix`; it then learns nothing"""
    reference: Tensor | None = None
    """log-probability under the reference; None: no KL"""
    kept: Tensor | None = None
    """log-probability at `FLAT` under the run's first policy where it was sure, very low elsewhere; None: not asked"""
    returns: Tensor | None = None
    """what the value head is to say (PPO)"""
    target: Tensor | None = None
    """(written tokens, vocabulary): how probable all that may stand in their places is to be (`admission`)"""
    total: int = 0
    """written tokens of the whole step; 0: those of this batch"""
    temperature: float = 1.0
    """that the tokens were drawn at"""

    def __post_init__(self) -> None:
        for name in ("written", "old", "advantages", "reference", "kept", "returns"):
            given = getattr(self, name)
            shapes = [self.ids.shape, (self.ids.shape[0], 1)] if name == "advantages" else [self.ids.shape]
            if given is not None and given.shape not in shapes:
                raise ValueError(
                    f"The '{name}' of a Batch must have the shape of its ids, {tuple(self.ids.shape)}. "
                    f"Got {tuple(given.shape)}."
                )
        if self.matrix is not None and self.prefix is not None:
            raise ValueError("A Batch takes 'matrix' or 'prefix', not both.")
        if bool(self.written[:, 0].any()):
            raise ValueError("The first token of a rollout is given ('<program>'): it can't be among the written.")


@dataclass(frozen=True, eq=False)
class Figures:
    """What a policy says of the written tokens, each (batch, tokens); 0 for the others."""

    log_probs: Tensor
    entropy: Tensor
    """nats, of the whole distribution at that place"""
    flat: Tensor
    """log-probabilities at `FLAT`"""
    values: Tensor | None = None


# ── What the policy says ──────────────────────────────────────────────────────


def figures(policy: Policy, batch: Batch, head: ValueHead | None = None, entropy_gradient: bool = False) -> Figures:
    """Log-probabilities, also flat ones, and entropy of the written tokens, and their values where there is a head."""
    chosen = batch.written[:, 1:]
    states = _hidden(policy, batch)[:, :-1][chosen]  # (written, width): the state before each written token
    targets = batch.ids[:, 1:][chosen]
    parts = [
        _token_figures(policy.language, states[piece], targets[piece], batch.temperature, entropy_gradient)
        for piece in (slice(at, at + CHUNK) for at in range(0, max(1, len(states)), CHUNK))
    ]
    log_probs, entropy, flat = (_beside(batch.written, torch.cat(column)) for column in zip(*parts, strict=True))
    values = None if head is None else _beside(batch.written, head(states))
    return Figures(log_probs, entropy, flat, values)


def _hidden(policy: Policy, batch: Batch) -> Tensor:
    """(batch, tokens, width)."""
    prefix = policy.prefix(batch.matrix) if batch.matrix is not None else batch.prefix
    if prefix is not None and batch.which is not None:
        prefix = prefix[batch.which]
    return policy.language.states(batch.ids, prefix)


def _token_figures(
    language: Language, states: Tensor, targets: Tensor, temperature: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(written) each. With gradients on, the logits are not kept but made again in the backward pass."""
    given = (language, states, targets, temperature, gradient)
    if not torch.is_grad_enabled():
        return _from_logits(*given)
    out: tuple[Tensor, Tensor, Tensor] = checkpoint(_from_logits, *given, use_reentrant=False)
    return out


def _from_logits(
    language: Language, states: Tensor, targets: Tensor, temperature: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    plain = language.head(states)
    chosen = plain.gather(-1, targets[:, None]).squeeze(-1)
    flat = chosen / FLAT - (plain / FLAT).logsumexp(-1)
    logits = plain / temperature
    log_total = logits.logsumexp(-1)
    log_probs = chosen / temperature - log_total
    with torch.set_grad_enabled(gradient and torch.is_grad_enabled()):
        mean_logit = ((logits - log_total[:, None]).exp() * logits).sum(-1)
        entropy = log_total - mean_logit
    return log_probs, entropy, flat


def _beside(written: Tensor, flat: Tensor) -> Tensor:
    """(batch, tokens) with the flat figures at the written tokens, in order."""
    return torch.zeros(written.shape, dtype=flat.dtype, device=flat.device).masked_scatter(written, flat)


# ── The parts of the loss ─────────────────────────────────────────────────────


def masked_mean(values: Tensor, mask: Tensor, total: int = 0) -> Tensor:
    """Over the tokens of the mask; `total` in place of their number. 0 where there are none."""
    return (values * mask).sum() / (total or mask.sum().clamp(min=1))


def ratios(log_probs: Tensor, old: Tensor) -> Tensor:
    return (log_probs - old).clamp(-FARTHEST, FARTHEST).exp()


def clipped(ratio: Tensor, advantages: Tensor, coefficients: Coefficients) -> Tensor:
    """The clipped surrogate of each token, to be made large."""
    within = ratio.clamp(1 - coefficients.clip_low, 1 + coefficients.clip_high)
    return torch.minimum(ratio * advantages, within * advantages)


def k3(log_probs: Tensor, others: Tensor) -> Tensor:
    """Of each token, an estimate of KL(one ‖ other) from tokens that the one drew: exp(d) - 1 - d."""
    apart = (others - log_probs).clamp(-FARTHEST, FARTHEST)
    return torch.expm1(apart) - apart


def with_worn(loss: Tensor, found: Figures, batch: Batch, keep: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and what tokens lost that the first policy was sure of: the mean square, over all that were written."""
    if batch.kept is None:
        return loss, {}
    worn = masked_mean((batch.kept - found.flat).clamp(min=0.0) ** 2, batch.written, batch.total)
    return loss + keep * worn, {"worn": worn}


def policy_parts(found: Figures, batch: Batch, coefficients: Coefficients) -> tuple[Tensor, dict[str, Tensor]]:
    """What PPO and GRPO have in common: the loss of the policy, and the figures worth a curve."""
    mask, total = batch.written, batch.total
    ratio = ratios(found.log_probs, batch.old)
    surrogate = -masked_mean(clipped(ratio, batch.advantages, coefficients), mask, total)
    entropy = masked_mean(found.entropy, mask, total)
    loss = surrogate
    parts = {"policy_loss": surrogate, "entropy": entropy}
    if batch.reference is not None:
        parts["kl"] = masked_mean(k3(batch.reference, found.log_probs), mask, total)
        if coefficients.kl:
            loss = loss + coefficients.kl * parts["kl"]
    if coefficients.entropy:
        loss = loss - coefficients.entropy * entropy
    loss, lost = with_worn(loss, found, batch, coefficients.keep)
    parts |= lost
    with torch.no_grad():
        higher, lower = ratio > 1 + coefficients.clip_high, ratio < 1 - coefficients.clip_low
        cut = (higher & (batch.advantages > 0)) | (lower & (batch.advantages < 0))
        parts["clip_fraction"] = masked_mean(cut.float(), mask, total)
        parts["kl_old"] = masked_mean(k3(batch.old, found.log_probs), mask, total)
        parts["ratio"] = masked_mean(ratio, mask, total)
    return loss, parts


# ── The two algorithms ────────────────────────────────────────────────────────


def grpo(policy: Policy, batch: Batch, coefficients: Coefficients) -> Step:
    """Advantages are those of turns in their group (`credit`); nothing else is learnt."""
    found = figures(policy, batch, entropy_gradient=coefficients.entropy > 0)
    loss, parts = policy_parts(found, batch, coefficients)
    return _step(loss, parts, batch)


def ppo(policy: Policy, head: ValueHead, batch: Batch, coefficients: Coefficients) -> Step:
    """Advantages are those of tokens (`advantages.gae`); the value head learns their returns."""
    if batch.returns is None:
        raise ValueError("PPO needs the 'returns' of a Batch: make them with advantages.gae.")
    found = figures(policy, batch, head, entropy_gradient=coefficients.entropy > 0)
    loss, parts = policy_parts(found, batch, coefficients)
    assert found.values is not None
    parts["value_loss"] = masked_mean((found.values - batch.returns) ** 2 / 2, batch.written, batch.total)
    return _step(loss + coefficients.value * parts["value_loss"], parts, batch)


def imitation(policy: Policy, batch: Batch, keep: float = 0.0) -> Step:
    """Self-imitation: minus the mean log-probability of the written tokens, by weight; `keep`: as in Coefficients."""
    found = figures(policy, batch)
    loss = -masked_mean(found.log_probs * batch.advantages, batch.written, batch.total)
    whole, lost = with_worn(loss, found, batch, keep)
    return _step(whole, {"imitation_loss": loss, **lost}, batch)


def admission(policy: Policy, batch: Batch) -> Step:
    """The mean KL of the written tokens, from their `target` to what the policy says of all tokens.

    The target is what the policy would say, were all that may not stand there impossible: the loss is least where
    nothing of that is written, and all else as often, in proportion, as before.
    """
    if batch.target is None:
        raise ValueError("Admission needs the 'target' of a Batch, made before the first step.")
    target = batch.target
    apart = target * (target.clamp(min=1e-30).log() - log_probs_of(policy, batch))
    loss = apart.sum() / (batch.total or max(1, len(target)))
    return _step(loss, {"admission_loss": loss}, batch)


def log_probs_of(policy: Policy, batch: Batch) -> Tensor:
    """(written tokens, vocabulary), of a few tokens: nothing is made again in the backward pass."""
    states = _hidden(policy, batch)[:, :-1][batch.written[:, 1:]]
    out: Tensor = (policy.language.head(states) / batch.temperature).log_softmax(-1)
    return out


def _step(loss: Tensor, parts: dict[str, Tensor], batch: Batch) -> Step:
    return Step(loss, batch.ids.numel(), {name: part.detach() for name, part in parts.items()})
