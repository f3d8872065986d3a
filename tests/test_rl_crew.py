"""Several processes that learn together, without starting any: what one adds up is what the others gave."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from sparserl.train.rl.crew import LaunchedCrew


def added(parts: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """`add_gradients` in every process, each with its own copy of the parameters."""
    crew, given = LaunchedCrew.__new__(LaunchedCrew), list[Tensor]()
    for part in parts:  # what each gives
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: given.append(flat.clone()))
        crew.add_gradients([*copy_of(part).parameters()])
    total = torch.stack(given).sum(0)
    for part in parts:
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: flat.copy_(total))
        crew.add_gradients([*part.parameters()])


def copy_of(part: nn.Module) -> nn.Module:
    made = copy.deepcopy(part)
    for ours, theirs in zip(made.parameters(), part.parameters(), strict=True):
        ours.grad = None if theirs.grad is None else theirs.grad.clone()
    return made


def test_what_has_no_gradient_in_any_process_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero in place of none let AdamW move the value head on, in steps that were not about it."""
    torch.manual_seed(0)
    alone = nn.ModuleList([nn.Linear(3, 2), nn.Linear(2, 1)])  # a policy, a value head
    crew = [copy.deepcopy(alone) for _ in range(2)]
    optimisers = [torch.optim.AdamW(each.parameters(), 1e-2, weight_decay=0.1) for each in (alone, *crew)]
    rows = torch.randn(2, 3)
    for about_the_head in (True, False, False):
        for each, optimiser in zip((alone, *crew), optimisers, strict=True):
            optimiser.zero_grad(set_to_none=True)
            own = rows if each is alone else rows[[crew.index(each)]]
            said = each[0](own)
            (each[1](said) if about_the_head else said).square().sum().backward()
        added([*crew], monkeypatch)
        before = [each[1].weight.clone() for each in (alone, *crew)]
        for optimiser in optimisers:
            optimiser.step()
        for each, old in zip((alone, *crew), before, strict=True):
            assert torch.equal(each[1].weight, old) != about_the_head
    for each in crew:
        for ours, theirs in zip(each.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_gradient_that_one_process_alone_has_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = [nn.Linear(3, 2) for _ in range(2)]  # the second one's share of this step is empty
    crew[0].weight.grad = torch.ones(2, 3)
    added([*crew], monkeypatch)
    for each in crew:
        assert each.bias.grad is None and each.weight.grad is not None
        assert torch.equal(each.weight.grad, torch.ones(2, 3))
