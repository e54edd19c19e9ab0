"""Files as people have them, and what is said about them."""

import contextlib
import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.frameworks.scenarios import MODEL as MODEL_70B
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportOptions, import_plan
from tools.frameworks.shell import parse_arguments

MODEL = MODEL_70B | {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
}
BESIDE = ImportOptions(model=MODEL, device="h100", num_devices=64, devices_per_node=8, seq_len=8192)

LAUNCH_SCRIPT = """
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4   # inside a node
PP=2
GPUS_PER_NODE=8
NNODES="16"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes ${NNODES} pretrain_gpt.py \\
    --tensor-model-parallel-size ${TP:-1} --pipeline-model-parallel-size=$PP \\
    --num-layers-per-virtual-pipeline-stage 4
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --vocab-size 128256 --untie-embeddings-and-output-weights
)
TRAINING_ARGS="
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 256
    --bf16 --use-distributed-optimizer --sequence-parallel --recompute-activations
    --lr 3e-4 --lr-decay-style cosine"
"""


def test_a_megatron_launch_script_states_nearly_everything() -> None:
    imported = import_plan(LAUNCH_SCRIPT, "megatron", ImportOptions(device="h100"))
    scenario = imported.scenario
    assert scenario["cluster"] == {"device": "h100", "num_devices": 128}
    assert scenario["model"]["num_hidden_layers"] == 32
    assert scenario["model"]["tie_word_embeddings"] is False
    assert scenario["training"]["global_batch_size"] == 256
    wanted = {"tp": 4, "pp": 2, "vpp": 4, "dp": 16, "dp_shard": 16, "zero_stage": 1, "recompute": "selective"}
    assert {key: scenario["plan"][key] for key in wanted} == wanted
    assert set(imported.notes) == {"not used: lr", "not used: lr_decay_style"}


MOE = MODEL | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 2048}
ON_8 = ImportOptions(model=MODEL, device="h100", num_devices=8)
MOE_ON_8 = replace(ON_8, model=MOE)
SPLIT = "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --seq-length 4096"
LOOPED = (
    '[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
    "[training]\nglobal_batch_size = 256\n"
)
GROUPED = (
    "model_parallel:\n  tensor_model_parallel_size: 2\nlanguage_model:\n  num_layers: 32\n"
    "micro_batch_size: 1\nglobal_batch_size: 64\nseq_length: 4096\nbf16: true\n"
)
BATCHES = (
    '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,'
    ' "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 2}}'
)
READ: dict[str, tuple[str, str, ImportOptions, dict[str, Any]]] = {
    # fact: format, text, options, fields of the plan, the training or the cluster
    "megatron's YAML may group the arguments": (
        "megatron", GROUPED, BESIDE, {"tp": 2, "dp": 32, "zero_stage": 0},
    ),
    "megatron splits experts like the rest": ("megatron", SPLIT, MOE_ON_8, {"etp": 2}),
    "megatron splits experts as stated": (
        "megatron", f"{SPLIT} --expert-tensor-parallel-size 1", MOE_ON_8, {"etp": 1},
    ),
    "megatron's micro-batch may be set by hand": (
        "megatron", "--seq-length 4096", replace(ON_8, overrides=(("plan.micro_batch_size", 2),)),
        {"micro_batch_size": 2, "global_batch_size": 16},
    ),
    "torchtitan fills the devices that are left": (
        "torchtitan", "[parallelism]\ntensor_parallel_degree = 8\n[training]\nlocal_batch_size = 2\n", BESIDE,
        {"dp": 8, "dp_shard": 8, "zero_stage": 3, "micro_batch_size": 2, "global_batch_size": 16},
    ),
    "torchtitan keeps weights gathered under a pipeline, and loops with two chunks": (
        "torchtitan", LOOPED, BESIDE, {"zero_stage": 2, "vpp": 2, "schedule": "interleaved"},
    ),
    "deepspeed's batch sizes determine the devices": (
        "deepspeed", BATCHES, replace(BESIDE, num_devices=None),
        {"num_devices": 16, "dp": 8, "zero_stage": 2},
    ),
    "maxtext has the defaults of base.yml": (
        "maxtext", "per_device_batch_size: 1\n", BESIDE,
        {"dp": 64, "dp_shard": 64, "zero_stage": 3, "recompute": "full", "global_batch_size": 64,
         "precision": "bf16"},
    ),
    "maxtext spreads data over slices": (
        "maxtext", "ici_tensor_parallelism: 4\nper_device_batch_size: 1\n",
        ImportOptions(model=MODEL, device="tpu-v5e", num_devices=512, num_slices=2),
        {"tp": 4, "dp": 128, "dp_shard": 64, "micro_batch_size": 4},
    ),
    "options win over the file, and --set over all": (
        "megatron", "--micro-batch-size 1 --global-batch-size 64 --seq-length 2048 --bf16",
        replace(ON_8, seq_len=4096, precision="fp8",
                overrides=(("plan.recompute", "full"), ("cluster.devices_per_node", 4))),
        {"seq_len": 4096, "precision": "fp8", "recompute": "full", "devices_per_node": 4},
    ),
}  # fmt: skip


def fields_of(text: str, name: str, options: ImportOptions) -> dict[str, Any]:
    scenario = import_plan(text, name, options).scenario
    return {**scenario["cluster"], **scenario["training"], **scenario["plan"]}


@pytest.mark.parametrize(("name", "text", "options", "expected"), READ.values(), ids=READ)
def test_a_file_is_read_as(name: str, text: str, options: ImportOptions, expected: dict[str, Any]) -> None:
    fields = fields_of(text, name, options)
    assert {key: fields[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("layout", "vpp"), [("Et*16|t*16L", 1), ("Ettt|(tt|)*14tL", 8), ("Et*8|(t*8|)*2t*8L", 2)]
)
@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_the_bars_of_a_megatron_layout_count_the_chunks(layout: str, vpp: int, quote: str) -> None:
    text = (
        f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout {quote}{layout}{quote} "
        "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096"
    )
    assert fields_of(text, "megatron", BESIDE)["vpp"] == vpp


def test_deepspeed_s_auto_counts_as_not_stated() -> None:
    text = (
        '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",'
        ' "zero_optimization": {"stage": 3}}'
    )
    with pytest.raises(InputError, match="--micro-batch-size"):
        import_plan(text, "deepspeed", BESIDE)
    imported = import_plan(text, "deepspeed", replace(BESIDE, num_devices=16, micro_batch_size=2))
    assert imported.scenario["training"]["global_batch_size"] == 32
    assert imported.scenario["plan"]["recompute"] is None
    assert any("recompute" in note for note in imported.notes)


MISSING = [
    # format, text, options, the option that the error names
    ("torchtitan", "", replace(ON_8, num_devices=None), "--num-devices"),
    ("torchtitan", "", replace(ON_8, device=None), "--device"),
    ("torchtitan", "", replace(ON_8, model=None), "--model"),
    ("megatron", "--seq-length 4096", replace(ON_8, num_devices=None), "--num-devices"),
    ("megatron", "--micro-batch-size 1", ON_8, "--seq-len"),
    ("megatron", "--seq-length 4096 --global-batch-size 8", ON_8, "--micro-batch-size"),
    ("deepspeed", '{"train_micro_batch_size_per_gpu": 1}', replace(ON_8, num_devices=None), "--num-devices"),
    ("deepspeed", '{"train_micro_batch_size_per_gpu": 1}', ON_8, "--seq-len"),
    ("maxtext", "steps: 1", replace(ON_8, num_devices=None), "--num-devices"),
]


@pytest.mark.parametrize(("name", "text", "options", "option"), MISSING)
def test_what_is_missing_is_named_by_its_option(
    name: str, text: str, options: ImportOptions, option: str
) -> None:
    with pytest.raises(InputError) as caught:
        import_plan(text, name, options)
    assert caught.value.field == option
    assert "got nothing" in str(caught.value)


WRONG = [
    ("torchtitan", "[parallelism\n", "FILE", "not TOML"),
    ("torchtitan", "[parallelism]\ntensor_parallel_degree = 0\n",
     "torchtitan: parallelism.tensor_parallel_degree", "from 1"),
    ("torchtitan", "[parallelism]\ntensor_parallel_degree = 3\n", "--num-devices", "multiple of"),
    ("torchtitan", '[activation_checkpoint]\nmode = "most"\n',
     "torchtitan: activation_checkpoint.mode", "selective"),
    ("megatron", "--tensor-model-parallel-size $TP", "--set", "--set TP=VALUE"),
    ("megatron", "--seq-length 1e99 --micro-batch-size 1", "megatron: seq_length", "an integer"),
    ("megatron", "[1, 2]", "FILE", "named settings"),
    ("deepspeed", "{", "FILE", "not JSON"),
    ("deepspeed", "[]", "FILE", "named settings"),
    ("deepspeed", '{"train_batch_size": true}', "deepspeed: train_batch_size", "an integer"),
    ("maxtext", "a: [1", "FILE", "not YAML"),
    ("maxtext", "!!python/object/apply:os.system [echo]", "FILE", "not YAML"),
    ("maxtext", "steps: 1" + ":1" * 400_000, "FILE", "not a value"),
    ("maxtext", "a: &a {b: 1}\nc: *a\n", "FILE", "alias"),
    ("megatron", "a: &a {b: 1}\nc:\n  <<: [*a, *a]\n", "FILE", "alias"),
    ("torchtitan", "a" + ".a" * 40_000 + " = 1", "FILE", "not a name"),
    ("maxtext", "per_device_batch_size: .inf", "maxtext: per_device_batch_size", "a number"),
    ("torchtitan", "[parallelism]\npipeline_parallel_degree = 2000000\ndata_parallel_shard_degree = 1\n",
     "plan.pp", "from 1 to 1,000,000"),
    ("maxtext", "ici_data_parallelism: -1\nper_device_batch_size: 1",
     "maxtext: ici_data_parallelism", "one axis"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "field", "reason"), WRONG)
def test_a_wrong_file_is_one_line_that_names_the_setting(
    name: str, text: str, field: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        import_plan(text, name, BESIDE)
    assert caught.value.field == field
    assert reason in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_an_unknown_format_gets_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean maxtext"):
        import_plan("", "maxtxt", BESIDE)


@pytest.mark.parametrize("name", IMPORT_FORMATS)
@given(
    text=st.text(st.sampled_from("{}[]:,=-\"'#&*!|>%@ \n\tab1.$()\\é"), max_size=60) | st.text(max_size=60)
)
def test_no_text_does_worse_than_an_input_error(name: str, text: str) -> None:
    with contextlib.suppress(InputError):
        import_plan(text, name, BESIDE)


NESTED = {
    "torchtitan": "a=" + "[" * 5000,
    "deepspeed": "[" * 100_000,
    "maxtext": "[" * 5000,
    "megatron": "{" * 5000,
    "huggingface": "[" * 5000,
}


@pytest.mark.parametrize("name", IMPORT_FORMATS)
def test_deep_nesting_and_long_texts_are_refused(name: str) -> None:
    for text in (NESTED.get(name, "[" * 5000), "a" * 1_000_001):
        with pytest.raises(InputError) as caught:
            import_plan(text, name, BESIDE)
        assert caught.value.field == "FILE"


@pytest.mark.parametrize("filling", ["\n", " ", "\t", "\n \n", "X=1 \n"])
def test_a_script_of_little_but_gaps_takes_no_time(filling: str) -> None:
    """Looking for assignments took hours for a file of empty lines."""
    before_s = time.process_time()
    found = parse_arguments("--a 1\nX=1" + filling * (900_000 // len(filling)) + " x")
    assert found["a"] == "1"
    assert time.process_time() - before_s < 20


names = st.from_regex(r"[a-z][a-z0-9-]{0,15}[a-z]", fullmatch=True)


@given(
    st.dictionaries(names, st.integers(0, 10**6) | st.none(), max_size=6),
    st.sampled_from([" ", " \\\n  ", "\n"]),
)
def test_arguments_are_read_however_they_are_laid_out(options: dict[str, int | None], gap: str) -> None:
    words = [f"--{name}" if value is None else f"--{name}{gap}{value}" for name, value in options.items()]
    found = parse_arguments(gap.join(words))
    expected = {
        re.sub("-", "_", name): True if value is None else str(value) for name, value in options.items()
    }
    assert found == expected


STATED: dict[str, Any] = {
    "device": "h100",
    "num_devices": 64,
    "seq_len": 8192,
    "global_batch_size": 128,
    "framework": "torchtitan",
}
"""What a model's config.json cannot say."""


def test_a_models_config_becomes_a_cold_start() -> None:
    imported = import_plan(json.dumps(MODEL), "huggingface", ImportOptions(**STATED))
    assert imported.scenario["model"] == {
        **MODEL,
        "head_dim": 128,
        "gated_mlp": True,
        "tie_word_embeddings": False,
    }
    assert imported.scenario["training"]["framework"] == "torchtitan"
    assert "plan" not in imported.scenario


@pytest.mark.parametrize("missing", STATED)
def test_what_a_models_config_cannot_say_is_asked_for(missing: str) -> None:
    with pytest.raises(InputError, match="--" + missing.replace("_", "-")):
        import_plan(json.dumps(MODEL), "huggingface", ImportOptions(**(STATED | {missing: None})))


def test_a_frameworks_file_is_not_another_frameworks() -> None:
    with pytest.raises(InputError, match="--framework"):
        import_plan("", "torchtitan", replace(BESIDE, framework="deepspeed"))


TITAN = """
from torchtitan.config import ParallelismConfig, TrainingConfig


def small() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096),
        parallelism=ParallelismConfig(tensor_parallel_degree=4),
        activation_checkpoint=FullAC.Config(),
    )


def wide() -> Trainer.Config:
    config = small()
    config.parallelism.tensor_parallel_degree = 8
    return config
"""


def test_a_python_configuration_of_torchtitan_is_read_without_running_it() -> None:
    options = replace(BESIDE, num_devices=64, seq_len=None, variables={"CONFIG": "small"})
    fields = fields_of(TITAN, "torchtitan", options)
    expected = {"tp": 4, "dp": 16, "seq_len": 4096, "micro_batch_size": 2, "recompute": "full"}
    assert {key: fields[key] for key in expected} == expected
    assert fields_of(TITAN, "torchtitan", replace(options, variables={"CONFIG": "wide"}))["tp"] == 8
    with pytest.raises(InputError, match="--set CONFIG=NAME, one of small, wide"):
        import_plan(TITAN, "torchtitan", replace(options, variables={}))


def test_a_field_that_may_change_the_shape_is_named() -> None:
    config = {
        "model_type": "llama",
        "architectures": ["X"],
        "num_memory_layers": 4,
        "bos_token_id": 1,
        "rope_theta": 1e6,
    }
    imported = import_plan(json.dumps(config), None, ImportOptions(**STATED))
    assert "not used: num_memory_layers" in imported.notes
    assert len([note for note in imported.notes if note.startswith("not used")]) == 1


RECIPE = """
from megatron.bridge.training.config import ConfigContainer


def llama_pretrain_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 2
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    cfg.dataset.sequence_length = 8192
    cfg.mixed_precision = "bf16_with_mxfp8_mixed"
    return cfg
"""


def test_a_recipe_of_megatron_bridge_says_what_it_leaves_to_others() -> None:
    options = ImportOptions(model=MODEL, device="b200", num_devices=16)
    imported = import_plan(RECIPE, None, options)
    fields = {**imported.scenario["training"], **imported.scenario["plan"]}
    expected = {"tp": 2, "dp": 8, "zero_stage": 1, "precision": "mxfp8", "global_batch_size": 128}
    assert {key: fields[key] for key in expected} == expected
    assert any("the file changes a recipe" in note for note in imported.notes)
    with pytest.raises(InputError, match="of meta-llama/Meta-Llama-3-8B"):
        import_plan(RECIPE, None, replace(options, model=None))
