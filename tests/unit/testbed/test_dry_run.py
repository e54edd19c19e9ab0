"""Arithmetic on figures by name."""

from hypothesis import given
from hypothesis import strategies as st

from testbed.expected import along, axis_wire_bytes, plus, traffic_of

AMOUNTS = st.dictionaries(st.sampled_from(["flops", "memory.peak"]), st.integers(0, 10**6).map(float))


@given(base=AMOUNTS, slope=AMOUNTS, position=st.integers(0, 50))
def test_two_points_give_every_point_of_a_line(
    base: dict[str, float], slope: dict[str, float], position: int
) -> None:
    low, high = base, plus(base, slope, 1.0)
    expected = plus(base, slope, float(position))
    found = along(low, high, float(position))
    assert all(abs(found[name] - expected[name]) <= 1e-6 * (1 + expected[name]) for name in found)


def test_traffic_is_read_back_by_group_and_axis() -> None:
    figures = {
        f"traffic.{group}.all_gather.{what}": amount
        for group, factor in (("dp_shard", 1.0), ("expert_shard", 10.0), ("tp", 100.0), ("pp", 0.0))
        for what, amount in (("messages", factor), ("bytes", 4 * factor), ("wire_bytes", 3 * factor))
    }
    assert [(row.group, row.total_bytes) for row in traffic_of(figures)] == [
        ("dp_shard", 4.0),
        ("expert_shard", 40.0),
        ("tp", 400.0),
    ]
    assert axis_wire_bytes(figures, "dp") == 33.0
    assert axis_wire_bytes(figures, "cp") == 0.0
