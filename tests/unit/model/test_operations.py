"""What is drawn under the roofline, and the messages shown, are what the prediction was made of."""

import pytest

from tests.unit.physics.scenes import number, scene
from tools.model.calibration import shipped_calibration
from tools.model.constants import resolve
from tools.model.operations import Message, list_messages, list_operations
from tools.physics.layers import attention_block, expert_block, head_block, mlp_block
from tools.physics.sizes import layer_parameters
from tools.physics.traffic import context_s, data_s, pipeline_s, tensor_pair_s


def test_a_dense_layers_operations_add_up_to_its_forward_pass() -> None:
    s = scene(tp=4)
    c = resolve(s.keys, shipped_calibration().shifts)
    *layer, head = list_operations(s.scenario)
    whole = attention_block(s.x, c)[0].forward + mlp_block(s.x, c, s.x.ffn, s.x.wide_mlp).forward
    assert sum(operation.seconds for operation in layer) == pytest.approx(float(whole))
    assert head.seconds == pytest.approx(float(head_block(s.x, c).forward))


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_an_expert_layers_operations_add_up_to_its_forward_pass(model: str) -> None:
    s = scene(model, ep=8)
    c = resolve(s.keys, shipped_calibration().shifts)
    routed = [operation for operation in list_operations(s.scenario) if "expert" in operation.name]
    assert sum(operation.seconds for operation in routed) == pytest.approx(
        float(expert_block(s.x, c).forward)
    )


def by_axis(**words: object) -> dict[str, Message]:
    return {message.axis: message for message in list_messages(scene(**words).scenario)}


def test_each_degree_above_one_sends_its_own() -> None:
    assert set(by_axis(tp=2, pp=2, cp=2)) == {"tp", "pp", "cp", "dp"}
    assert set(by_axis(model="mixtral-8x7b", ep=4)) == {"ep", "dp", "dp of experts"}


def test_seconds_are_those_of_the_prediction() -> None:
    s = scene(tp=2, pp=2, cp=2)
    c, found = resolve(s.keys, shipped_calibration().shifts), by_axis(tp=2, pp=2, cp=2)
    assert found["tp"].seconds == pytest.approx(float(tensor_pair_s(s.x, c)))
    assert 3 * found["cp"].seconds == pytest.approx(float(context_s(s.x, c)))
    assert 2 * found["pp"].seconds == pytest.approx(float(pipeline_s(s.x, c)))


def test_replicas_of_a_hybrid_sharded_tpu_job_are_slices_apart() -> None:
    s = scene("llama-3.1-8b", device="tpu-v5e", framework="maxtext", zero_stage=3, dp_shard=8)
    c = resolve(s.keys, shipped_calibration().shifts)
    shards, replicas = list_messages(s.scenario)
    assert (shards.crosses_nodes, replicas.crosses_nodes) == (False, True)
    dense, expert = layer_parameters(s.x, s.x.stages.moe_share)
    charged = data_s(s.x, c, dense, expert, number(1.0))
    assert replicas.seconds == pytest.approx(float(charged.end_scatter), rel=0.01)
