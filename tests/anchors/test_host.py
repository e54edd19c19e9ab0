"""The host's time as NVIDIA's guide has it: NVIDIA-NeMo/Megatron-Bridge@067f987d, docs/performance-guide.md,
"Lowering Host Overhead and Jitters". It names a larger micro-batch, less tensor and context parallelism,
garbage collection at the same time everywhere, CUDA graphs and bound CPUs, and not data loading."""

import pytest

from tests.unit.physics.scenes import scene
from tests.unit.recommend.cases import llama, plan_of, workload_for
from tools.kb import Playbook, matching, open_seed
from tools.model.predict import predict
from tools.physics.stage import layer_time
from tools.recommend.diagnosis import OTHER_LEVERS
from tools.recommend.hypotheses import predicted_hypotheses
from tools.recommend.situation import situation

QWEN3_30B = {
    "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}  # fmt: skip
LOADING = ("num_workers", "num-workers", "grain_worker")


def test_a_step_bound_by_launches_is_not_called_data_loading() -> None:
    """Qwen3 30B-A3B on 64 H100 on EFA, eager: the host is predicted to take most. It was called data loading,
    with more loader workers as its lever; a scenario says nothing of data, so no prediction can show that."""
    s = scene(QWEN3_30B, ep=16, cluster={"fabric": "efa"})
    first = predicted_hypotheses(predict([s.scenario])[0])[0]
    assert (first.cause, first.bottleneck) == ("late_host", "host")
    for lever in (first.lever, OTHER_LEVERS["host"]):
        assert "CUDA graphs" in lever
        assert "larger micro-batch" in lever
        assert "load" not in lever


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "google", "aws"])
def test_no_playbook_speeds_up_loading_where_host_time_is_only_predicted(vendor: str) -> None:
    workload, plan = workload_for(llama()), plan_of(llama())
    facts = situation(workload, plan, workload.predict([plan])[0], None)
    knowledge = open_seed()
    found = matching({**facts, "vendor": vendor, "share.host_and_other": 0.5}, knowledge.entries("playbook"))
    bodies = [entry.body for entry in found if isinstance(entry.body, Playbook)]
    assert any("host" in body.id for body in bodies)
    assert [body.id for body in bodies if any(word in body.do for word in LOADING)] == []


def test_a_larger_micro_batch_or_less_splitting_is_launched_as_often() -> None:
    """Item 2 of the guide: larger tensors for the same launches. Host time in proportion to tokens, or
    divided by the tensor ranks as the work is, would gain nothing by that."""
    one, two, split = (scene("llama-3.1-8b", **words) for words in ({}, {"micro_batch_size": 2}, {"tp": 8}))
    times = [float(layer_time(s.x, s.c, s.x.is_moe).host) for s in (one, two, split)]
    assert times == pytest.approx([times[0]] * 3)
