"""What the cost model expects of a program: on links of one byte per second, seconds are bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.expected import along, axis_wire_bytes, expected, plus, traffic_of
from tests.unit.testbed.scenarios import fsdp, scenario
from tools.scenario import parse_scenario

LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 2 * 32
PARAMETERS = 4 * LAYER + 2 * 64 * 32
HIDDEN_BYTES = 16 * 32 * 4
"""Of the hidden state of a micro-batch of one sequence, in fp32."""
AMOUNTS = st.dictionaries(st.sampled_from(["flops", "memory.peak"]), st.integers(0, 10**6).map(float))


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


def test_messages_are_counted_the_same_whatever_library_sends_them() -> None:
    """gloo's dearer reduce-scatter is time in a prediction; here a program's messages are compared."""
    assert wire(4, fsdp(4), "cpu") == pytest.approx(wire(4, fsdp(4)))


@given(base=AMOUNTS, slope=AMOUNTS, position=st.integers(0, 50))
def test_two_points_give_every_point_of_a_line(
    base: dict[str, float], slope: dict[str, float], position: int
) -> None:
    exact = plus(base, slope, float(position))
    on_line = along(base, plus(base, slope, 1.0), float(position))
    assert all(abs(on_line[name] - exact[name]) <= 1e-6 * (1 + exact[name]) for name in on_line)


def test_traffic_is_read_back_by_group_and_axis() -> None:
    figures = {
        f"traffic.{group}.all_gather.{what}": amount
        for group, factor in (("dp_shard", 1.0), ("expert_shard", 10.0), ("tp", 100.0), ("pp", 0.0))
        for what, amount in (("messages", factor), ("bytes", 4 * factor), ("wire_bytes", 3 * factor))
    }
    rows = [(row.group, row.total_bytes) for row in traffic_of(figures)]
    assert rows == [("dp_shard", 4.0), ("expert_shard", 40.0), ("tp", 400.0)]
    assert (axis_wire_bytes(figures, "dp"), axis_wire_bytes(figures, "cp")) == (33.0, 0.0)
