"""Every configuration file of ../shared is read as what it is, or refused in one line that says why."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.errors import InputError
from tools.frameworks import ImportedScenario, ImportOptions, import_plan
from tools.frameworks.formats import recognise
from tools.frameworks.reading import UnusedSetting

CONFIGS = Path(__file__).resolve().parents[4] / "shared" / "configs"
FORMATS = {
    "accelerate": {"accelerate"},
    "automodel": {"automodel"},
    "axolotl": {"axolotl"},
    "deepspeed": {"deepspeed"},
    "levanter": {"levanter"},
    "llamafactory": {"llamafactory", "accelerate"},
    "maxtext": {"maxtext"},
    "megatron_bridge": {"nemo"},
    "megatron_yaml": {"megatron"},
    "nanotron": {"nanotron"},
    "nemo": {"nemo"},
    "neox": {"neox"},
    "torchtitan_toml": {"torchtitan"},
    "trl": {"accelerate"},
}
"""By folder; TRL's and one of LLaMA-Factory's files are launch files of Accelerate."""
REFUSED = {
    "speculative__eagle2__phi_eagle2_perfectblend.yaml": "a draft model",
    "llama-3__diffusion__sft-1b.yaml": "a diffusion language model",
    "extras__llama_pro__llama3_freeze_sft.yaml": "layers trained in part",
    "v1__train_lora__export_lora.yaml": "not an export of weights",
    "deepseek-custom.yml": "n-gram memory",
    "local_setup_comet.yml": "the model's part of the GPT-NeoX configuration",
    "nlp__language_modeling__conf__tp_overlap__ub_cfg_a100_h6144_tp4_mbs4_seqlen2048.yaml": "comments only",
    "ds_config_gpt2-medium_2clmetrics_TEMPLATE.json": "GB_SIZE=VALUE",
}
DENSE: dict[str, Any] = {"model_type": "llama", "torch_dtype": "bfloat16"}
EXPERTS: dict[str, Any] = {"model_type": "deepseek_v3", "n_routed_experts": 64}
VARIABLES = {
    "TP": "2",
    "PP": "2",
    "EP": "8",
    "CP": "1",
    "MBS": "1",
    "GBS": "512",
    "SEQ_LEN": "4096",
    "VPP": "1",
}


def files() -> list[str]:
    folders = [CONFIGS / name for name in FORMATS]
    return [
        f"{folder.name}/{file.name}"
        for folder in folders
        if folder.exists()
        for file in sorted(folder.iterdir())
    ]


def is_card(name: str) -> bool:
    return "verification_cards" in name


def read(name: str) -> ImportedScenario:
    """With the options that the refusals ask for, one after the other, as a user would."""
    text = (CONFIGS / name).read_text()
    stated: dict[str, Any] = {"device": "h100-sxm-80gb"}
    offers: dict[str, Any] = {
        "cluster.num_devices": {"num_devices": 64},
        "model": {"model": DENSE},
        "training.seq_len": {"seq_len": 4096},
        "plan.micro_batch_size": {"micro_batch_size": 1},
        "deepspeed: train_micro_batch_size_per_gpu": {"micro_batch_size": 1},
        "model.vocab_size": {"vocab_size": 32000},
        "variables": {"variables": {**VARIABLES, "LAYERS_PER_VP": "4"}},
        "plan.ep": {"model": EXPERTS},
        "plan.vpp": {"variables": {**VARIABLES, "PP": "1", "LAYERS_PER_VP": "4"}},
        "training.global_batch_size": {"global_batch_size": 6144},
        "deepspeed: train_batch_size": {"num_devices": 8, "global_batch_size": 64},
    }
    while True:
        try:
            return import_plan(text, None, ImportOptions(**stated))
        except InputError as error:
            offer = offers.pop(error.path, None)
            if offer is None or "TEMPLATE" in name:
                raise
            stated |= offer


@pytest.mark.skipif(not files(), reason="../shared/configs is absent")
@pytest.mark.parametrize("name", files() or ["absent"])
def test_a_published_file_is_read_as_what_it_is_or_refused_by_name(name: str) -> None:
    folder, file = name.split("/")
    text = (CONFIGS / name).read_text()
    reason = next((why for end, why in REFUSED.items() if file.endswith(end)), None)
    if is_card(file) or reason:
        with pytest.raises(InputError, match=reason or "verification card") as caught:
            import_plan(text, None, ImportOptions(device="h100-sxm-80gb", num_devices=64))
        assert "\n" not in str(caught.value)
        return
    assert recognise(text) in FORMATS[folder]
    assert read(name).parameters.total > 0


EXPECTED: dict[str, dict[str, Any]] = {
    "megatron_yaml/DeepSeek-V3.yaml": {"tp": 2, "pp": 2, "ep": 8, "precision": "bf16", "parameters": 671e9},
    "megatron_yaml/Qwen3-Next-80B-A3B.yaml": {"ep": 8, "moe_dispatcher": "deepep", "parameters": 79.6e9},
    "maxtext/deepseek3-671b-batchsplit.yml": {"parameters": 671e9},
    "maxtext/gpt-oss-20b.yml": {"parameters": 20.9e9},
    "deepspeed/ds_z3_offload_config.json": {"zero_stage": 3, "optimizer_offload": True, "precision": "bf16"},
    "accelerate/tp_hsdp.yaml": {"tp": 2, "dp_shard": 2, "zero_stage": 3, "dp": 4},
    "trl/deepspeed_zero2.yaml": {"zero_stage": 2, "framework": "deepspeed", "num_devices": 8},
    "axolotl/falcon-h1__falcon-h1-1b-qlora.yaml": {
        "lora": {"rank": 32, "targets": ["attention", "mlp"], "weight_bits": 4},
        "seq_len": 2048, "recompute": "full",
    },
    "llamafactory/train_lora__qwen3_lora_pretrain.yaml": {
        "lora": {"rank": 8, "targets": ["attention", "mlp"]},
    },
    "nanotron/config_2.8b_llama.yaml": {"tp": 2, "dp": 8, "zero_stage": 0, "parameters": 2.3e9},
    "neox/llama__30B.yml": {"tp": 4, "pp": 1, "parameters": 32.5e9},
    "levanter/mixtral_8x7b.yaml": {"parameters": 46.7e9, "global_batch_size": 256},
    "torchtitan_toml/llama3_405b.toml": {"tp": 8, "precision": "fp8"},
}  # fmt: skip


@pytest.mark.skipif(not files(), reason="../shared/configs is absent")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_published_file_says(name: str) -> None:
    imported = read(name)
    scenario = imported.scenario
    fields = {**scenario["cluster"], **scenario["training"], **scenario.get("plan", {})}
    for key, value in EXPECTED[name].items():
        if key == "parameters":
            assert imported.parameters.total == pytest.approx(value, rel=0.03)
        else:
            assert fields[key] == value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("apiVersion: v1\nkind: Pod\n", "a Kubernetes manifest"),
        ('{"_class_name": "FluxPipeline"}', "a diffusion model"),
        ("colour: red\n", "settings like colour"),
        ("#!/bin/bash\necho --hello\n", "a script without options"),
        ("[tool.ruff]\nline-length = 110\n", "TOML with tool"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        recognise(text)
    assert what in str(caught.value)


def test_infinity_in_a_configuration_does_not_crash() -> None:
    config = {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "time_step_limit": [0.0, float("inf")],
    }
    options = ImportOptions(
        device="h100", num_devices=8, seq_len=4096, global_batch_size=8, framework="megatron-core"
    )
    json.dumps(import_plan(json.dumps(config), None, options).scenario, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("lr", True),
        ("wandb_project", True),
        ("train.save_interval", True),
        ("datasets", True),
        ("compression_training.weight_quantization", False),
        ("zero_optimization.offload_param.device", False),
        ("moe_expert_capacity_factor", False),
        ("compile.enable", False),
    ],
)
def test_what_is_not_taken_over_is_harmless_or_changes_the_prediction(name: str, harmless: bool) -> None:
    assert (UnusedSetting.of(name, 1).reason == "harmless") is harmless
