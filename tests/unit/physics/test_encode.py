"""From the contract's words to the model's arrays."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from tests.unit.physics.scenes import raw_scenario, scene
from tools.physics.encode import encode, encode_plans
from tools.physics.inputs import Inputs
from tools.scenario import PlanColumns, parse_scenario


@pytest.mark.parametrize(
    ("cluster", "domain"),
    [
        ({}, 8),
        ({"devices_per_node": 4}, 4),
        ({"topology": {"nvlink_domain_size": 32}}, 32),
        ({"overrides": {"fast_domain_devices": 4}}, 4),
    ],
)
def test_the_fast_domain_is_the_node_unless_the_cluster_says_otherwise(
    cluster: dict[str, Any], domain: int
) -> None:
    assert float(scene(cluster=cluster).x.scale_up_size) == domain


def test_oversubscription_divides_the_network() -> None:
    plain, shared = scene(), scene(cluster={"topology": {"oversubscription": 4}})
    assert float(shared.x.scale_out_bandwidth) == pytest.approx(float(plain.x.scale_out_bandwidth) / 4)


def test_zero_stage_0_shards_nothing_whatever_dp_shard_says() -> None:
    assert float(scene(zero_stage=0).x.dp_shard) == 1.0
    assert float(scene(zero_stage=1).x.dp_shard) == 64.0


def test_fp32_computes_and_keeps_in_four_bytes_at_its_own_peak() -> None:
    x = scene(precision="fp32").x
    assert float(x.gemm_bytes) == float(x.value_bytes) == 4.0
    assert float(x.half_peak) == float(x.gemm_peak) == pytest.approx(66.9e12)


def test_a_scenario_without_a_plan_is_not_a_row() -> None:
    given = raw_scenario()
    del given["plan"]
    with pytest.raises(ValueError, match="without a plan"):
        encode([parse_scenario(given, need_plan=False)])


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"model": "deepseek-v3", "device": "gb200", "precision": "mxfp8", "ep": 8},
    ],
)
def test_plans_of_one_scenario_are_encoded_as_the_scenarios_would_be(words: dict[str, object]) -> None:
    """Also where a recipe sets what not all of the plans can run."""
    plans = ((1, None), (2, "none"), (4, "full"))
    scenes = [scene(**words, tp=tp, pp=2, vpp=tp, recompute=r) for tp, r in plans]
    together, _ = encode([s.scenario for s in scenes])
    columns, _ = encode_plans(
        scenes[0].scenario, PlanColumns.of([s.scenario.plan for s in scenes if s.scenario.plan])
    )
    assert len(np.unique(together.version)) > 1
    for f in fields(Inputs):
        expected, given = getattr(together, f.name), getattr(columns, f.name)
        np.testing.assert_array_equal(np.broadcast_to(given, expected.shape), expected, err_msg=f.name)


@pytest.mark.parametrize(
    ("words", "overlaps", "is_fused", "is_graph"),
    [
        ({"flash": False}, False, False, False),
        ({"software_date": "2022-01"}, False, False, False),
        ({"software_date": "2025-11"}, True, False, False),
        ({"model": "deepseek-v3", "device": "gb300", "precision": "mxfp8"}, True, True, True),
        (
            {
                "model": "deepseek-v3",
                "device": "gb300",
                "precision": "mxfp8",
                "software_date": "2025-12",
            },
            True,
            True,
            False,
        ),
        (
            {"model": "deepseek-v3", "device": "gb300", "cuda_graph": False, "moe_dispatcher": "alltoall"},
            True,
            False,
            False,
        ),
        ({"model": "deepseek-v3", "device": "gb300", "cluster": {"fabric": "efa"}}, True, False, False),
    ],
)
def test_what_is_not_stated_is_what_the_release_of_the_framework_does(
    words: dict[str, object], overlaps: bool, is_fused: bool, is_graph: bool
) -> None:
    x = scene(**{"model": "mixtral-8x7b", "ep": 8, **words}).x
    found = (x.data_overlap, x.has_fused_dispatch, x.has_cuda_graph)
    assert tuple(map(bool, found)) == (overlaps, is_fused, is_graph)
