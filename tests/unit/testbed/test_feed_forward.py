"""Routing of tokens to experts, on one rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from testbed.feed_forward import ExpertLayer, deal_out  # noqa: E402
from testbed.layout import Axis  # noqa: E402
from testbed.tensor_parallel import Region  # noqa: E402
from tests.unit.testbed.scenarios import MODEL, MOE  # noqa: E402
from tools.scenario import ModelSpec  # noqa: E402


def layer(balanced: bool) -> ExpertLayer:
    model = ModelSpec(**MODEL | MOE | {"hidden_size": 8})
    torch.manual_seed(0)
    return ExpertLayer(model, Region(Axis(), False), Axis(), balanced)


@pytest.mark.parametrize("balanced", [True, False])
def test_the_layer_is_the_weighted_sum_of_the_chosen_experts(balanced: bool) -> None:
    experts, hidden = layer(balanced), torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1))
    tokens = hidden.flatten(0, 1)
    scores = experts.router(tokens).softmax(-1)
    chosen = deal_out(15, 2, scores) if balanced else scores.topk(2, dim=-1).indices
    weights = scores.gather(-1, chosen)
    weights = weights / weights.sum(-1, keepdim=True)
    networks = list(experts.experts.networks.values())
    rows = [
        sum(weight * networks[int(i)](token) for weight, i in zip(weights[t], chosen[t], strict=True))
        for t, token in enumerate(tokens)
    ]
    assert torch.allclose(experts(hidden).flatten(0, 1), torch.stack(rows), atol=1e-6)


@given(tokens=st.integers(1, 30), experts=st.integers(1, 8), copies=st.integers(1, 4))
def test_dealing_out_gives_every_expert_its_share(tokens: int, experts: int, copies: int) -> None:
    chosen = deal_out(tokens, copies, torch.zeros(tokens, experts))
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    assert int(counts.max() - counts.min()) <= 1


def test_an_expert_without_tokens_has_gradients_of_zero() -> None:
    experts = layer(balanced=False)
    with torch.no_grad():
        experts.router.weight[0] = -1e3
    experts(torch.ones(2, 2, 8)).sum().backward()
    unused, used = (experts.experts.get_parameter(f"networks.{i}.up.weight").grad for i in (0, 1))
    assert used is not None
    assert unused is not None
    assert not unused.any()
