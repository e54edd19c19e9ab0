"""`asap optimize` of a model's config.json: what it needs besides is assumed, printed, and may be stated."""

import json
from pathlib import Path

import pytest

from tests.unit.service.cli.commands import Asap

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    return str(file)


def test_a_model_and_devices_are_enough_and_assumptions_are_printed(asap: Asap, config: str) -> None:
    result = asap("optimize", config, "--devices", "8 x H100", "--json")
    assert result.status == 0
    assert [line for line in result.err.splitlines() if "assumed" in line] == [
        "asap: assumed: seq_len 4096 (--seq-len states another)",
        "asap: assumed: global_batch_size 1024 (--global-batch-size states another)",
        "asap: assumed: framework megatron-core (--framework states another)",
    ]
    assert "parameters: 1,235,814,400" in result.err
    assert result.answer["proposals"]


def test_a_file_of_training_states_its_own_framework_and_what_it_leaves_open_has_an_option(
    asap: Asap, config: str, tmp_path: Path
) -> None:
    trainer, launcher = tmp_path / "args.json", tmp_path / "fsdp.yaml"
    trainer.write_text(
        json.dumps(
            {"per_device_train_batch_size": 2, "bf16": True, "fsdp": True, "fsdp_config": {"version": 2}}
        )
    )
    launcher.write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    )
    stated = ("--model", config, "--devices", "8 x H100", "--seq-len", "4096")
    told = asap("optimize", str(trainer), *stated, "--json").answer["scenario"]
    assert (told["training"]["framework"], told["training"]["global_batch_size"]) == ("huggingface", 16)
    batch = ("--global-batch-size", "16")
    refused = asap("optimize", str(launcher), *stated, *batch)
    assert (refused.status, "--micro-batch-size" in refused.err) == (2, True)
    told = asap("optimize", str(launcher), *stated, *batch, "--micro-batch-size", "2", "--json").answer
    assert told["scenario"]["plan"]["micro_batch_size"] == 2


def test_proposals_that_a_prediction_cannot_order_are_called_a_tie(asap: Asap, config: str) -> None:
    options = ("--devices", "8 x H100", "--framework", "torchtitan")
    text = " ".join(asap("optimize", config, *options).out.split())
    assert "Proposal 2 ties with the first: within" in text
    assert "Proposal 3 ties" not in text
