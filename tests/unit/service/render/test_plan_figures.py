"""The figures as data: what is drawn is what was computed, and text in them is only text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.render.plan_figures import (
    AXES,
    GROUPS,
    Dot,
    Space,
    axes_of,
    coordinates,
    mesh_figure,
    space_figure,
)
from service.render.plotly import Figure, label, log_axis, marks
from service.render.trace_figures import (
    Point,
    Transfer,
    collectives_figure,
    lateness_figure,
    roofline_figure,
    terms_figure,
    timeline_figure,
)
from service.web.accuracy import Pair, accuracy_figure
from tools.hardware import get_device
from tools.scenario import Plan
from tools.trace.alignment import Lateness
from tools.trace.breakdown import Breakdown
from tools.trace.rank_profile import RankProfile
from tools.trace.report import Strip

EVIL = "<b onmouseover=alert(1)>x</b> & <a href='javascript:alert(2)'>y</a>"


@given(st.text(max_size=200))
def test_a_label_holds_no_tag(text: str) -> None:
    assert "<" not in label(text)
    assert ">" not in label(text)
    assert len(label(text)) <= 5 * 160


def everything(text: str) -> list[Figure]:
    """Every figure that shows names from elsewhere."""
    dots = [Dot(1.0, 2.0, text)]
    return [
        space_figure(Space(dots, dots, dots, dots, dots, 3.0)),
        roofline_figure([Point(text, 10.0, 1e12, 1.0, text)], None, []),
        collectives_figure([Transfer(text, 1e6, 1e9, text)], []),
        accuracy_figure([Pair(1.0, 1.1, text, text)]),
    ]


def test_names_of_kernels_and_plans_stay_text() -> None:
    for figure in everything(EVIL):
        said = json.dumps(figure)
        assert "<a" not in said
        assert "<b " not in said
        assert "&lt;b onmouseover" in said


def test_a_text_that_looks_like_a_field_of_plotly_is_not_filled_in() -> None:
    for figure in everything("%{x} %{customdata}"):
        templates = [str(trace.get("hovertemplate", "")) for trace in figure["data"]]
        assert not any(
            "%{customdata} %{" in template or "%{x} %{customdata}" in template for template in templates
        )


def test_the_space_shows_what_it_was_given_and_leaves_empty_parts_out() -> None:
    figure = space_figure(Space([Dot(1, 5, "a"), Dot(2, 4, "b")], [Dot(1, 5, "a")], today=[Dot(3, 9, "t")]))
    assert [trace["name"] for trace in figure["data"]] == ["plans", "front", "today"]
    low, high = figure["layout"]["yaxis"]["range"]
    assert low < 4
    assert high > 9


def test_the_far_end_of_the_front_does_not_flatten_the_rest() -> None:
    plans = [Dot(40, 10, "a"), Dot(50, 12, "b")]
    figure = space_figure(Space(plans, [Dot(40, 10, "a"), Dot(5, 500, "slow")]))
    assert figure["layout"]["yaxis"]["range"][1] < 20


def test_a_limit_far_from_every_plan_does_not_flatten_them() -> None:
    near, far = (space_figure(Space([Dot(2, 5, "a")], [], limit_gib=limit)) for limit in (3.0, 70.0))
    assert near["layout"]["xaxis"]["range"][1] > 3
    assert far["layout"]["xaxis"]["range"][1] < 3


@given(st.floats(-9, 12), st.floats(0.3, 12))
def test_marks_of_a_logarithmic_axis_lie_on_it_and_are_few(low: float, span: float) -> None:
    found = marks(low, low + span)
    assert found == sorted(found)
    assert all(10 ** (low - 1e-9) <= value <= 10 ** (low + span + 1e-9) for value in found)
    assert len(found) <= 14


def test_marks_are_written_out_in_their_unit() -> None:
    axis = log_axis("size", [2e6, 4e9], lambda value: f"{value / 1e6:g} MB")
    assert axis["ticktext"] == ["10 MB", "100 MB", "1000 MB"]
    assert axis["range"][0] < 6.31
    assert axis["range"][1] > 9.6


def test_operations_have_a_shape_by_name_and_the_rest_share_one() -> None:
    points = [Point(f"op {number}", 10.0, 1e12, 1.0 + number, "") for number in range(9)]
    data = roofline_figure(points, None, [])["data"]
    assert [trace["name"] for trace in data] == [*(f"op {number}" for number in range(8, 1, -1)), "others"]
    assert len({trace["marker"]["symbol"] for trace in data}) == 8


def test_the_roof_bends_where_peak_meets_bandwidth() -> None:
    device = get_device("h100-sxm-80gb")
    roof, points = roofline_figure([Point("op", 100.0, 2e14, 1e-3, "")], device, ["bf16"])["data"]
    peak, bandwidth = device.peak_flops["bf16"], device.memory_bandwidth_bytes_per_s
    assert roof["x"][1] == pytest.approx(peak / bandwidth)
    assert roof["y"][1] == pytest.approx(peak / 1e12)
    assert points["y"] == [200.0]


def test_links_are_drawn_across_all_sizes() -> None:
    transfers = [Transfer("tp", 1e6, 1e11, ""), Transfer("dp", 1e9, 2e10, "")]
    figure = collectives_figure(transfers, [("inside", 4.5e11), ("between", 5e10)])
    names = [trace["name"] for trace in figure["data"]]
    assert names == ["dp", "tp", "inside, 450 GB/s", "between, 50 GB/s"]
    assert figure["data"][2]["x"][0] < 1e6 < 1e9 < figure["data"][2]["x"][1]


RANK = RankProfile(
    file="f",
    rank=3,
    basis="device",
    breakdown=Breakdown(
        compute_ns=5_000_000, exposed_communication_ns=2_000_000, memory_ns=1_000_000, idle_ns=2_000_000
    ),
).report()
STRIP = Strip(
    rank=3, start_ms=100, end_ms=102, compute=[900, 100], exposed_communication=[0, 800], memory=[0, 0]
)


def test_a_ranks_terms_are_in_milliseconds() -> None:
    figure = terms_figure([RANK])
    assert [trace["x"][0] for trace in figure["data"]] == [5.0, 2.0, 1.0, 2.0]
    assert figure["data"][0]["y"] == ["rank 3"]


def test_a_stretch_has_the_colour_of_what_filled_most_of_it() -> None:
    (strip,) = timeline_figure([STRIP])["data"]
    assert strip["z"] == [[0, 1]]
    assert strip["x"] == [0.5, 1.5]
    assert strip["zsmooth"] is False


def test_lateness_keeps_a_row_a_rank() -> None:
    (heat,) = lateness_figure(Lateness(ranks=[0, 1], late_us=[[0.0, 5.0], [3.0, None]]))["data"]
    assert heat["y"] == ["rank 0", "rank 1"]
    assert heat["z"][1] == [3.0, None]
    (heat,) = lateness_figure(Lateness(ranks=[0, 1], late_us=[[0.0, 0.0], [3000.0, None]]))["data"]
    assert heat["z"][1] == [3.0, None]
    assert heat["colorbar"]["title"]["text"] == "ms late"


def plan(**degrees: int) -> Plan:
    ones = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size"), 1)
    rest = {"zero_stage": 1, "sequence_parallel": False, "recompute": "none", "schedule": "1f1b"}
    return Plan.model_validate({**ones, **rest, **degrees})


degrees = st.sampled_from([1, 2, 4])


@given(degrees, degrees, degrees, degrees)
def test_every_group_has_as_many_ranks_as_its_degree(tp: int, cp: int, dp: int, pp: int) -> None:
    one = plan(tp=tp, cp=cp, dp=dp, pp=pp, dp_shard=dp * cp)
    ranks = range(tp * cp * dp * pp)
    places = {coordinates(one, rank) for rank in ranks}
    assert len(places) == len(ranks)
    sizes = {"tp": tp, "cp": cp, "dp": dp * cp, "pp": tp * cp * dp, "dp_shard": dp * cp}
    for by, size in sizes.items():
        groups = [GROUPS[by](one, rank) for rank in ranks]
        assert {groups.count(group) for group in groups} == {size}, by


def test_the_mesh_draws_a_row_a_node_and_names_its_axis() -> None:
    figure = mesh_figure(plan(tp=4, dp=4, dp_shard=4), 16, 8, "tp")
    (heat,) = figure["data"]
    assert [len(row) for row in heat["z"]] == [8, 8]
    assert heat["customdata"] == [[0, 0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 3, 3, 3, 3]]
    assert AXES["tp"] in figure["layout"]["xaxis"]["title"]["text"]


def test_a_degree_of_one_is_drawn_as_devices_on_their_own() -> None:
    figure = mesh_figure(plan(dp=8, dp_shard=8), 8, 8, "tp")
    assert "each device is its own" in figure["layout"]["xaxis"]["title"]["text"]
    assert figure["data"][0]["customdata"] == [list(range(8))]


def test_a_mesh_of_thousands_of_nodes_is_cut() -> None:
    (heat,) = mesh_figure(plan(tp=8, dp=2048, dp_shard=2048), 16384, 8, "tp")["data"]
    assert len(heat["z"]) == 128


def test_only_degrees_above_one_are_offered() -> None:
    assert list(axes_of(plan(tp=2, dp=4, dp_shard=2))) == ["tp", "dp", "dp_shard"]
    assert list(axes_of(plan())) == ["tp"]


def test_equal_is_a_line_from_corner_to_corner() -> None:
    figure = accuracy_figure([Pair(1.0, 1.2, "dense"), Pair(10.0, 9.0, "trials here", "mine")])
    assert figure["data"][0]["x"] == figure["data"][0]["y"]
    assert "+20.0%" in figure["data"][3]["text"][0]
    assert figure["data"][4]["marker"]["color"] == "--ink"
