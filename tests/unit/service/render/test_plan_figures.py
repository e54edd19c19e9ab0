"""The figures as data: what is drawn is what was computed, and text in them is only text."""

import json

from hypothesis import given
from hypothesis import strategies as st

from service.clusters.pages import Pair, accuracy_chart
from service.render.charts import Chart, axis, label, log_axis
from service.render.plan_figures import (
    AXES,
    PlanDot,
    SearchedSpace,
    coordinates,
    group_of,
    mesh_chart,
    space_chart,
)
from service.render.trace_figures import (
    RooflinePoint,
    Transfer,
    collectives_chart,
    lateness_chart,
    roofline_chart,
)
from tools.scenario import Plan
from tools.trace.waits import Lateness

EVIL = "<b onmouseover=alert(1)>x</b> & <a href='javascript:alert(2)'>y</a>"


@given(st.text(max_size=2000))
def test_a_label_is_one_line_that_prints_and_not_too_long(text: str) -> None:
    assert label(text).isprintable()
    assert len(label(text)) <= 160


def everything(text: str) -> list[Chart]:
    """Every chart that shows names from elsewhere."""
    dots = [PlanDot(1.0, 2.0, text)]
    return [
        space_chart(SearchedSpace(dots, dots, dots, dots, dots, 3.0)),
        roofline_chart([RooflinePoint(text, 10.0, 1e12, 1.0, text)], None, []),
        collectives_chart([Transfer(text, 1e6, 1e9, text)], []),
        accuracy_chart([Pair(1.0, 1.1, text, text)]),
    ]


def test_names_of_kernels_and_plans_are_kept_as_text_in_one_line() -> None:
    """The browser sets them as text; a line break of theirs would look like one of ours."""
    for drawn in everything(EVIL + "\n\u202e"):
        assert EVIL in json.dumps(drawn)
        texts = [text for layer in drawn["layers"] for text in layer.get("texts", [])]
        assert all("\u202e" not in text and EVIL + "\n\\" not in text for text in texts)


def test_the_space_shows_what_it_was_given_and_leaves_empty_parts_out() -> None:
    figure = space_chart(
        SearchedSpace(
            [PlanDot(1, 5, "a"), PlanDot(2, 4, "b")], [PlanDot(1, 5, "a")], today=[PlanDot(3, 9, "t")]
        )
    )
    assert [layer["name"] for layer in figure["layers"]] == ["plans", "", "front", "today"]
    assert figure["y"]["low"] < 4
    assert figure["y"]["high"] > 9


def test_neither_the_far_end_of_the_front_nor_a_far_limit_flattens_the_plans() -> None:
    plans = [PlanDot(40, 10, "a"), PlanDot(50, 12, "b")]
    figure = space_chart(SearchedSpace(plans, [PlanDot(40, 10, "a"), PlanDot(5, 500, "slow")]))
    assert figure["y"]["high"] < 20
    spaces = [SearchedSpace([PlanDot(2, 5, "a")], [], limit_gib=limit) for limit in (3.0, 70.0)]
    near, far = (space_chart(space)["x"]["high"] for space in spaces)
    assert far < 3 < near


@given(st.lists(st.floats(1e-6, 1e12), max_size=5))
def test_what_an_axis_shows_lies_inside_of_it(values: list[float]) -> None:
    for drawn in (axis("", values), log_axis("", values)):
        assert drawn["low"] < drawn["high"]
        assert all(drawn["low"] <= value <= drawn["high"] for value in values)
    assert log_axis("", values)["low"] > 0


def test_lateness_keeps_a_row_a_rank_and_leaves_what_is_unknown_empty() -> None:
    drawn = lateness_chart(Lateness(ranks=[0, 1], late_us=[[0.0, 5.0], [3.0, None]]))
    (heat,) = drawn["layers"]
    assert drawn["y"]["rows"] == ["rank 0", "rank 1"]
    assert list(zip(heat["y"], heat["x"], heat["strength"], strict=True)) == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 0.6),
    ]
    title = lateness_chart(Lateness(ranks=[0, 1], late_us=[[0.0, 0.0], [3000.0, None]]))["x"]["title"]
    assert "3 ms late" in title


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
        groups = [group_of(one, rank, by) for rank in ranks]
        assert {groups.count(group) for group in groups} == {size}, by


def test_the_mesh_draws_a_row_a_node_names_its_axis_and_is_cut_at_thousands() -> None:
    figure = mesh_chart(plan(tp=4, dp=4, dp_shard=4), 16, 8, "tp")
    (cells,) = figure["layers"]
    assert list(cells["y"]) == [0] * 8 + [1] * 8
    groups = [text.rpartition(" ")[2] for text in cells["texts"]]
    assert groups == [group for group in "0123" for _ in range(4)]
    assert AXES["tp"] in figure["x"]["title"]
    alone = mesh_chart(plan(dp=8, dp_shard=8), 8, 8, "tp")
    assert "each device is its own" in alone["x"]["title"]
    cut = mesh_chart(plan(tp=8, dp=2048, dp_shard=2048), 16384, 8, "tp")
    assert len(cut["y"]["rows"]) == 128
    assert len(cut["layers"][0]["x"]) == 128 * 8
