"""What is drawn under the roofline is what the prediction was made of."""

import pytest

from tests.unit.cost.scenes import scene
from tools.cost.calibration import shipped_calibration
from tools.cost.constants import resolve
from tools.cost.layers import attention_block, expert_block, head_block, mlp_block
from tools.cost.operations import list_operations


def test_a_dense_layers_operations_add_up_to_its_forward_pass() -> None:
    s = scene(tp=4)
    c = resolve(s.keys, shipped_calibration().shifts)
    *layer, head = list_operations(s.scenario)
    whole = attention_block(s.x, c)[0].forward + mlp_block(s.x, c, s.x.ffn).forward
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


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-3-175b", "mixtral-8x7b", "deepseek-v3"])
def test_no_operation_is_above_the_roof(model: str) -> None:
    s = scene(model, tp=8)
    for operation in list_operations(s.scenario):
        roof = min(float(s.x.gemm_peak), operation.intensity * float(s.x.memory_bandwidth))
        assert 0 < operation.flops_per_s <= roof, operation
