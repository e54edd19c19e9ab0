"""To which parallel axis a collective belongs."""

import pytest

from tools.scenario import Plan
from tools.trace.collectives import GroupTime
from tools.trace.terms import find_axis


def _plan(**sizes: int) -> Plan:
    ones = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard"), 1)
    return Plan(
        **{**ones, **sizes},
        zero_stage=1,
        micro_batch_size=1,
        sequence_parallel=False,
        recompute=None,
        schedule="1f1b",
    )


def _group(kind: str = "all_reduce", ranks: tuple[int, ...] | None = None) -> GroupTime:
    return GroupTime(kind, "key", None, ranks, 1, 1)


def test_the_only_axis_needs_no_hint() -> None:
    assert find_axis(_group(), "", _plan(dp=2)) == "dp"
    assert find_axis(_group(), "default_pg", _plan(tp=8)) == "tp"


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("mesh_tp", "tp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_fsdp", "dp"),
        ("pp", "pp"),
    ],
)
def test_a_description_of_the_group_decides(description: str, axis: str) -> None:
    assert find_axis(_group(), description, _plan(tp=2, pp=2, cp=2, dp=4, ep=2)) == axis


def test_send_and_receive_serve_the_pipeline_or_the_ring() -> None:
    assert find_axis(_group("send_recv"), "", _plan(pp=2, dp=4)) == "pp"
    assert find_axis(_group("send_recv"), "", _plan(cp=2, dp=4)) == "cp"


def test_all_to_all_serves_the_experts() -> None:
    assert find_axis(_group("all_to_all"), "", _plan(dp=8, ep=8)) == "ep"


@pytest.mark.parametrize(
    ("ranks", "axis"),
    [((0, 1), "tp"), ((4, 5), "tp"), ((0, 2, 4, 6), "dp"), ((1, 9), "pp"), ((0, 3), "other")],
)
def test_ranks_are_ordered_tensor_data_pipeline(ranks: tuple[int, ...], axis: str) -> None:
    assert find_axis(_group(ranks=ranks), "", _plan(tp=2, dp=4, pp=2)) == axis


def test_a_group_that_fits_two_axes_is_not_guessed() -> None:
    assert find_axis(_group(ranks=(0, 1)), "", _plan(tp=2, ep=2, dp=4)) == "other"


def test_nothing_told_is_other() -> None:
    assert find_axis(_group(), "", _plan(tp=2, dp=4)) == "other"
