"""The messages shown are those that the prediction charges for."""

import pytest

from tests.unit.cost.scenes import number, scene
from tools.cost.calibration import shipped_calibration
from tools.cost.constants import resolve
from tools.cost.operations import Message, list_messages
from tools.cost.sizes import layer_parameters
from tools.cost.traffic import context_s, data_s, expert_s, pipeline_s, tensor_pair_s


def by_axis(**words: object) -> dict[str, Message]:
    return {message.axis: message for message in list_messages(scene(**words).scenario)}


def test_a_degree_of_one_sends_nothing() -> None:
    assert list_messages(scene(devices=1, batch=1).scenario) == []


def test_each_degree_above_one_sends_its_own() -> None:
    assert set(by_axis(tp=2, pp=2, cp=2)) == {"tp", "pp", "cp", "dp"}
    assert set(by_axis(model="mixtral-8x7b", ep=4)) == {"ep", "dp", "dp of experts"}


def test_seconds_are_those_of_the_prediction() -> None:
    s = scene(tp=2, pp=2, cp=2)
    c, found = resolve(s.keys, shipped_calibration().shifts), by_axis(tp=2, pp=2, cp=2)
    assert found["tp"].seconds == pytest.approx(float(tensor_pair_s(s.x, c)))
    assert 3 * found["cp"].seconds == pytest.approx(float(context_s(s.x, c)))
    assert 2 * found["pp"].seconds == pytest.approx(float(pipeline_s(s.x, c)))


def test_sequence_parallelism_over_gloo_is_shown_with_its_third_pass() -> None:
    words = {"device": "cpu", "devices": 4, "batch": 8, "precision": "fp32", "framework": "torch-fsdp2"}
    s = scene("llama-3.1-8b", tp=4, zero_stage=0, sequence_parallel=True, **words)
    c = resolve(s.keys, shipped_calibration().shifts)
    assert list_messages(s.scenario)[0].seconds == pytest.approx(float(tensor_pair_s(s.x, c)))


def test_replicas_of_a_hybrid_sharded_tpu_job_are_slices_apart() -> None:
    s = scene("llama-3.1-8b", device="tpu-v5e", framework="maxtext", zero_stage=3, dp_shard=8)
    c = resolve(s.keys, shipped_calibration().shifts)
    shards, replicas = list_messages(s.scenario)
    assert (shards.crosses_nodes, replicas.crosses_nodes) == (False, True)
    dense, expert = layer_parameters(s.x, s.x.stages.moe_share)
    charged = data_s(s.x, c, dense, expert, number(1.0))
    assert replicas.seconds == pytest.approx(float(charged.end_scatter), rel=0.01)


def test_an_exchange_of_experts_is_dispatched_and_combined_both_ways() -> None:
    s = scene("mixtral-8x7b", ep=8)
    c = resolve(s.keys, shipped_calibration().shifts)
    sent = next(message for message in list_messages(s.scenario) if message.axis == "ep")
    assert 4 * sent.seconds == pytest.approx(float(expert_s(s.x, c)))


def test_bus_bandwidth_stays_below_the_link_that_the_group_uses() -> None:
    s = scene(tp=8, pp=2)
    for message in list_messages(s.scenario):
        inside = s.x.scale_up_bandwidth
        assert message.bus_bytes_per_s <= float(inside), message
        assert message.crosses_nodes == (message.axis != "tp")
