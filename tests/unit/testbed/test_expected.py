"""What the cost model expects of a program: on links of one byte per second, seconds are bytes."""

import pytest

from testbed.expected import expected
from tests.unit.testbed.scenarios import fsdp, scenario
from tools.scenario import parse_scenario

LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 2 * 32
PARAMETERS = 4 * LAYER + 2 * 64 * 32
HIDDEN_BYTES = 16 * 32 * 4
"""Of the hidden state of a micro-batch of one sequence, in fp32."""


def wire(ranks: int, plan: dict[str, object], device: str = "h100-sxm-80gb") -> dict[str, float]:
    return expected(parse_scenario(scenario(ranks, plan, device=device))).wire_bytes


@pytest.mark.parametrize(
    ("axis", "ranks", "plan", "sent"),
    [
        ("dp", 8, {"dp": 8}, 2 * 7 / 8 * PARAMETERS * 4),
        ("dp", 4, fsdp(4), 2 * 3 * 3 / 4 * PARAMETERS * 4),
        ("tp", 2, {"tp": 2}, 8 * (4 * 4 + 1) * HIDDEN_BYTES),
        ("pp", 4, {"pp": 4}, 8 * 2 * HIDDEN_BYTES),
    ],
    ids=[
        "all-reduce of all gradients",
        "two gathers and a scatter per micro-batch",
        "four all-reduces per layer, one of the head",
        "activation and gradient per micro-batch",
    ],
)
def test_an_axis_sends_the_bytes_of_the_textbook_and_others_nothing(
    axis: str, ranks: int, plan: dict[str, object], sent: float
) -> None:
    nothing = dict.fromkeys(("tp", "cp", "ep", "dp", "pp"), 0.0)
    assert wire(1, {}) == nothing
    assert wire(ranks, plan) == pytest.approx(nothing | {axis: sent})
