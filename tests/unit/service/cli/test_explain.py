"""`asap explain`: what speaks against a plan, asked for by pairs or JSON, and what it cannot read."""

import pytest

from tests.unit.graph.cases import small
from tests.unit.service.cli.commands import Asap
from tests.workloads import SMALL

SCENARIO = small(
    model={
        "num_hidden_layers": 16, "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32000,
    },
    cluster={"device": "h100-sxm-80gb", "num_devices": 16},
    training=SMALL["training"] | {"seq_len": 4096, "global_batch_size": 32},
    plan=None,
)  # fmt: skip


def test_pairs_and_json_ask_for_the_same(asap: Asap) -> None:
    texts = (
        " tp = 4, pp=2,recompute=full ,sequence_parallel=false",
        '{"tp": 4, "pp": 2, "recompute": "full", "sequence_parallel": false}',
    )
    pairs, as_json = (asap("explain", SCENARIO, "--plan", text, "--json").answer for text in texts)
    assert pairs == as_json
    expected = {"tp": 4, "pp": 2, "dp": 2, "recompute": "full", "sequence_parallel": False}
    assert pairs["plan"].items() >= expected.items()


SCRIPT = b"""\
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --use-mcore-models --bf16 --use-flash-attn \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --num-layers 80 --hidden-size 8192 \\
  --ffn-hidden-size 28672 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --seq-length 8192 \\
  --max-position-embeddings 8192 --vocab-size 128256 --micro-batch-size 1 --global-batch-size 128 \\
  --use-distributed-optimizer --sequence-parallel --recompute-granularity full --recompute-method uniform \\
  --recompute-num-layers 1 --position-embedding-type rope --normalization RMSNorm
"""


def test_a_launch_script_is_compared_with_a_run_by_any_measured_figure(asap: Asap) -> None:
    asked = ("explain", SCRIPT, "--devices", "64 x h100", "--against", "dgxc2503-013", "--json")
    known = asap(*asked, "--measured-step-s", "30").answer
    assert known["is_measured"]
    assert known["settings"][0]["differences"] == [
        {"field": "recompute", "theirs": "not stated", "yours": "full"}
    ]
    mfu = known["tflops"] / 989.4
    for option, value in (
        ("--measured-tflops", known["tflops"]),
        ("--measured-tokens-per-s", 128 * 8192 / 64 / 30),
        ("--measured-mfu", mfu),
    ):
        assert asap(*asked, option, str(value)).answer["tflops"] == pytest.approx(known["tflops"], rel=1e-3)
    first = asap(*asked[:-1], "--measured-step-s", "30").out.splitlines()
    assert first[0].endswith("times as fast")
    assert any(line.startswith("recompute full -> not stated: +") for line in first[1:3])
