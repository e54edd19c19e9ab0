"""Files as people have them, and what is said about them."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.frameworks.scenarios import MODEL as MODEL_70B
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportOptions, import_plan
from tools.frameworks.python_config import module_finder
from tools.frameworks.shell import parse_arguments
from tools.model.predict import predict
from tools.scenario import parse_scenario

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
    assert [setting.path for setting in imported.unused] == ["lr", "lr_decay_style"]


def test_the_config_of_another_model_than_the_file_s_is_refused() -> None:
    with pytest.raises(InputError, match=r"model: got .*num_hidden_layers 80.*the file describes .* 32"):
        import_plan(LAUNCH_SCRIPT, "megatron", ImportOptions(model=MODEL_70B, device="h100"))
    same = import_plan(LAUNCH_SCRIPT, "megatron", ImportOptions(model=MODEL, device="h100"))
    assert same.scenario["model"]["hidden_size"] == 4096


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
        "torchtitan", LOOPED, BESIDE,
        {"zero_stage": 3, "reshard_after_forward": False, "vpp": 2, "schedule": "interleaved"},
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
    "megatron's silence is what Megatron-LM does, not what a recipe does": (
        "megatron", f"{SPLIT} --bf16", ON_8,
        {"cuda_graph": "none", "optimizer_state": "fp32", "gradient_dtype": "fp32"},
    ),
    "megatron's precision-aware optimizer, graph of the whole iteration and offloaded layers": (
        "megatron", f"{SPLIT} --bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 "
        "--exp-avg-sq-dtype bf16 --main-grads-dtype bf16 --cuda-graph-impl full_iteration "
        "--cpu-offloading-num-layers 4", ON_8,
        {"cuda_graph": "full", "optimizer_state": "bf16", "gradient_dtype": "bf16", "activation_offload": 4},
    ),
    "megatron's layers in bf16, forced routing and graphed modules": (
        "megatron", f"{SPLIT} --bf16 --fp8-format hybrid --first-last-layers-bf16 "
        "--num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 3 --moe-router-force-load-balancing "
        "--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router", MOE_ON_8,
        {"precision_scope": {"bf16_last_layers": 3}, "routing": "forced", "cuda_graph": "scoped",
         "cuda_graph_scopes": ["attn", "moe_router"]},
    ),
    "nemo's gradients and optimizer": (
        "nemo", "model:\n  tensor_model_parallel_size: 2\n  num_layers: 32\n"
        "ddp:\n  grad_reduce_in_fp32: false\noptimizer:\n  use_precision_aware_optimizer: true\n"
        "  exp_avg_dtype: torch.bfloat16\n"
        "  exp_avg_sq_dtype: torch.bfloat16\ntrain:\n  micro_batch_size: 1\n", BESIDE,
        {"optimizer_state": "bf16", "gradient_dtype": "bf16"},
    ),
    "accelerate's files are its own framework, with FSDP 2's resharding": (
        "accelerate", "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_reshard_after_forward: false\ndynamo_config:\n  dynamo_backend: INDUCTOR\n",
        replace(ON_8, seq_len=4096, micro_batch_size=1),
        {"framework": "accelerate", "zero_stage": 3, "reshard_after_forward": False, "compile": True},
    ),
    "TrainingArguments are the Trainer's": (
        "huggingface", '{"per_device_train_batch_size": 1, "bf16": true, "torch_compile": true}',
        replace(ON_8, seq_len=4096), {"framework": "huggingface", "zero_stage": 0, "compile": True},
    ),
    "TRL runs on the Trainer and may offload activations": (
        "trl", "per_device_train_batch_size: 1\nmax_length: 2048\nactivation_offloading: true\n", ON_8,
        {"framework": "huggingface", "activation_offload": True},
    ),
    "automodel computes in bf16 over weights of 32 bits": (
        "automodel", "recipe: TrainFinetuneRecipe\nmodel:\n  torch_dtype: float32\nstep_scheduler:\n"
        "  global_batch_size: 8\n  local_batch_size: 1\n"
        "distributed:\n  strategy: fsdp2\n  enable_compile: true\n",
        replace(ON_8, seq_len=4096),
        {"framework": "automodel", "precision": "bf16", "optimizer_state": "fp32", "compile": True},
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


MISSING = [
    # format, text, options, the path that the error names
    ("torchtitan", "", replace(ON_8, num_devices=None), "cluster.num_devices"),
    ("torchtitan", "", replace(ON_8, device=None), "cluster.device"),
    ("torchtitan", "", replace(ON_8, model=None), "model"),
    ("megatron", "--seq-length 4096", replace(ON_8, num_devices=None), "cluster.num_devices"),
    ("megatron", "--micro-batch-size 1", ON_8, "training.seq_len"),
    ("megatron", "--seq-length 4096 --global-batch-size 8", ON_8, "plan.micro_batch_size"),
    (
        "deepspeed",
        '{"train_micro_batch_size_per_gpu": 1}',
        replace(ON_8, num_devices=None),
        "cluster.num_devices",
    ),
    ("deepspeed", '{"train_micro_batch_size_per_gpu": 1}', ON_8, "training.seq_len"),
    ("maxtext", "steps: 1", replace(ON_8, num_devices=None), "cluster.num_devices"),
]


@pytest.mark.parametrize(("name", "text", "options", "path"), MISSING)
def test_what_is_missing_is_named_by_its_path(
    name: str, text: str, options: ImportOptions, path: str
) -> None:
    with pytest.raises(InputError) as caught:
        import_plan(text, name, options)
    assert caught.value.path == path
    assert "got nothing" in str(caught.value)


WRONG = [
    ("torchtitan", "[parallelism\n", "text", "not TOML"),
    ("torchtitan", "[parallelism]\ntensor_parallel_degree = 0\n",
     "torchtitan: parallelism.tensor_parallel_degree", "from 1"),
    ("torchtitan", "[parallelism]\ntensor_parallel_degree = 3\n", "cluster.num_devices", "multiple of"),
    ("torchtitan", '[activation_checkpoint]\nmode = "most"\n',
     "torchtitan: activation_checkpoint.mode", "selective"),
    ("megatron", "--tensor-model-parallel-size $TP", "variables", "TP=VALUE"),
    ("megatron", "--seq-length 1e99 --micro-batch-size 1", "megatron: seq_length", "an integer"),
    ("megatron", "[1, 2]", "text", "named settings"),
    ("deepspeed", "{", "text", "not JSON"),
    ("deepspeed", "[]", "text", "named settings"),
    ("deepspeed", '{"train_batch_size": true}', "deepspeed: train_batch_size", "an integer"),
    ("maxtext", "a: [1", "text", "not YAML"),
    ("maxtext", "!!python/object/apply:os.system [echo]", "text", "not YAML"),
    ("maxtext", "steps: 1" + ":1" * 400_000, "text", "not a value"),
    ("maxtext", "a: &a [" + "1," * 99 + "]\nb: &b [" + "*a," * 99 + "]\nc: [*b, *b]\n", "text", "aliases"),
    ("megatron", "a: &a {b: *a}\n", "text", "aliases"),
    ("torchtitan", "a" + ".a" * 40_000 + " = 1", "text", "not a name"),
    ("maxtext", "per_device_batch_size: .inf", "maxtext: per_device_batch_size", "a number"),
    ("torchtitan", "[parallelism]\npipeline_parallel_degree = 2000000\ndata_parallel_shard_degree = 1\n",
     "plan.pp", "from 1 to 1,000,000"),
    ("maxtext", "ici_data_parallelism: -1\nper_device_batch_size: 1",
     "maxtext: ici_data_parallelism", "one axis"),
    ("maxtxt", "", "format", "did you mean maxtext"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "field", "reason"), WRONG)
def test_a_wrong_file_is_one_line_that_names_the_setting(
    name: str, text: str, field: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        import_plan(text, name, BESIDE)
    assert caught.value.path == field
    assert reason in caught.value.rule
    assert "\n" not in str(caught.value)


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
        assert caught.value.path == "text"


@pytest.mark.parametrize("filling", ["\n", " ", "\t", "\n \n", "X=1 \n"])
def test_a_script_of_little_but_gaps_takes_no_time(filling: str) -> None:
    """Looking for assignments took hours for a file of empty lines."""
    assert parse_arguments("--a 1\nX=1" + filling * (900_000 // len(filling)) + " x")["a"] == "1"


names = st.from_regex(r"[a-z][a-z0-9-]{0,15}[a-z]", fullmatch=True)


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
    with pytest.raises(InputError, match="CONFIG=NAME, one of small, wide"):
        import_plan(TITAN, "torchtitan", replace(options, variables={}))


def test_a_script_that_does_not_ask_for_overlap_has_none() -> None:
    options = ImportOptions(model=MODEL_70B, device="h100", num_devices=64)
    silent = import_plan(SILENT_SCRIPT, "megatron", options).scenario["training"]
    asking = import_plan(f"{SILENT_SCRIPT} --overlap-grad-reduce --tp-comm-overlap", "megatron", options)
    names = ("overlap_gradient_communication", "overlap_tensor_communication")
    assert [silent[name] for name in names] == [False, False]
    assert [asking.scenario["training"][name] for name in names] == [True, True]


def test_on_torchtitans_main_a_micro_batch_is_one_forward_pass_of_a_pipeline() -> None:
    piped = TITAN.replace("tensor_parallel_degree=4", "pipeline_parallel_degree=4, num_pp_microbatches=8")
    fields = fields_of(piped, "torchtitan", replace(BESIDE, seq_len=None, variables={"CONFIG": "small"}))
    expected = {"pp": 4, "dp": 16, "micro_batch_size": 2, "global_batch_size": 2 * 8 * 16}
    assert {key: fields[key] for key in expected} == expected


def test_a_field_that_may_change_the_shape_is_named() -> None:
    config = {
        "model_type": "llama",
        "architectures": ["X"],
        "num_memory_layers": 4,
        "bos_token_id": 1,
        "rope_theta": 1e6,
    }
    imported = import_plan(json.dumps(config), None, ImportOptions(**STATED))
    assert [(setting.path, setting.value) for setting in imported.unused] == [("num_memory_layers", "4")]


def test_a_config_json_may_list_its_vocabulary() -> None:
    labels = {str(number): "a token" for number in range(80_000)}
    long = json.dumps({"model_type": "llama", "architectures": ["X"], "id2label": labels})
    assert len(long) > 2**20
    assert import_plan(long, None, ImportOptions(**STATED)).scenario["model"]
    with pytest.raises(InputError, match="at most 1,000,000 characters"):
        import_plan(f"# a script\n{long}", None, ImportOptions(**STATED))


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
    with pytest.raises(InputError, match=r"_pretrain_common may set it.*also open: plan.cp, plan.seq"):
        import_plan(RECIPE, None, options)
    options = replace(options, overrides=(("plan.pp", 1), ("plan.cp", 1), ("plan.sequence_parallel", False)))
    imported = import_plan(RECIPE, None, options)
    fields = {**imported.scenario["training"], **imported.scenario["plan"]}
    expected = {"tp": 2, "dp": 8, "zero_stage": 1, "precision": "mxfp8", "global_batch_size": 128}
    assert {key: fields[key] for key in expected} == expected
    assert any("the file changes a recipe" in note for note in imported.notes)
    with pytest.raises(InputError, match="of meta-llama/Meta-Llama-3-8B"):
        import_plan(RECIPE, None, replace(options, model=None))


COMMON = """
def _pretrain_common() -> ConfigContainer:
    return ConfigContainer(
        train=TrainingConfig(global_batch_size=32, micro_batch_size=2),
        dataset=GPTDatasetConfig(seq_length=LENGTH),
    )


def apply_experts(cfg, ep=4):
    cfg.model.expert_model_parallel_size = ep


def moe_provider(tp):
    provider = Provider(tensor_model_parallel_size=tp)
    provider.pipeline_model_parallel_size = 2
    provider.sequence_parallel = True
    return provider


LENGTH: int = 4096
"""
DEEP_RECIPE = """
from bridge.training import ConfigContainer
from bridge.recipes.middle import _pretrain_common, apply_experts, moe_provider


def moe_pretrain_config() -> ConfigContainer:
    wide = 2
    cfg = _pretrain_common()
    length = 2 * cfg.dataset.seq_length
    cfg.model = moe_provider(wide * 2)
    cfg.dataset.seq_length = length if wide == 2 else 1
    apply_experts(cfg, ep=8)
    return cfg
"""


def test_a_recipe_is_followed_through_the_helpers_of_its_checkout(tmp_path: Path) -> None:
    """Two levels down, through local variables; what a helper sets is not replaced by a default."""
    folder = tmp_path / "src" / "bridge" / "recipes"
    (folder / "moe").mkdir(parents=True)
    (folder / "common.py").write_text(COMMON)
    (folder / "middle.py").write_text("from .common import _pretrain_common, apply_experts, moe_provider")
    file = folder / "moe" / "h100.py"
    file.write_text(DEEP_RECIPE)
    options = ImportOptions(
        model=MODEL | MOE, device="h100", num_devices=64, find_module=module_finder(str(file))
    )
    fields = fields_of(DEEP_RECIPE, "nemo", options)
    expected = {"tp": 4, "pp": 2, "ep": 8, "seq_len": 8192, "global_batch_size": 32, "micro_batch_size": 2}
    assert {key: fields[key] for key in expected} == expected


SILENT_SCRIPT = """torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --micro-batch-size 1 \\
    --global-batch-size 128 --seq-length 8192 --bf16 --use-distributed-optimizer --sequence-parallel"""
TUNING_RECIPE = """
def _common() -> ConfigContainer:
    opt_cfg, scheduler_cfg = fused_adam(max_lr=1e-4)
    return ConfigContainer(
        model=GPTProvider(tensor_model_parallel_size=2, sequence_parallel=True),
        train=TrainingConfig(global_batch_size=32, micro_batch_size=1),
        dataset=GPTDatasetConfig(seq_length=4096),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=False, grad_reduce_in_fp32=False),
        optimizer=opt_cfg,
        mixed_precision="bf16_mixed",
        peft=LoRA(dim=32),
    )


def fused_adam(max_lr):
    optimizer = OptimizerConfig(lr=max_lr, use_distributed_optimizer=True)
    return optimizer, SchedulerConfig()


def default_peft_config(peft_scheme, **kwargs):
    if isinstance(peft_scheme, PEFT):
        return peft_scheme
    if isinstance(peft_scheme, str) and peft_scheme.lower() == "lora":
        return LoRA(**kwargs)


def adapter_config(peft_scheme="lora") -> ConfigContainer:
    cfg = _common()
    cfg.model.moe_token_dispatcher_type = "alltoall"
    cfg.model.moe_flex_dispatcher_backend = "deepep"
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    if cfg.comm_overlap is not None:
        cfg.comm_overlap.tp_comm_overlap = False
    adapter = default_peft_config(peft_scheme, target_modules=["linear_qkv"])
    cfg.peft = adapter
    if peft_scheme.lower() in ["lora", "dora"]:
        adapter.dim = 8
    return cfg


def whole_config() -> ConfigContainer:
    cfg = _common()
    cfg.peft = None
    cfg.model.moe_flex_dispatcher_backend = "deepep"
    apply_flex_dispatcher_backend(cfg.model, cfg.model.moe_flex_dispatcher_backend)
    low = get_mixed_precision_config("bf16_with_mxfp8_mixed")
    low.grad_reduce_in_fp32 = False
    cfg.mixed_precision = low
    return cfg
"""


def test_a_recipe_trains_what_its_parts_say() -> None:
    """Adapters, gradients and the optimizer as the run has them, not as the first mention of each says."""
    options = ImportOptions(model=MODEL | MOE, device="b200", num_devices=16)
    tuned = fields_of(TUNING_RECIPE, "nemo", replace(options, variables={"CONFIG": "adapter_config"}))
    expected = {
        "lora": {"rank": 8, "targets": ["attention"]}, "gradient_dtype": "fp32",
        "zero_stage": 1, "overlap_tensor_communication": False, "moe_dispatcher": "alltoall",
    }  # fmt: skip
    assert {key: tuned[key] for key in expected} == expected
    whole = fields_of(TUNING_RECIPE, "nemo", replace(options, variables={"CONFIG": "whole_config"}))
    expected = {"gradient_dtype": "bf16", "precision": "mxfp8", "zero_stage": 1, "moe_dispatcher": "deepep"}
    assert {key: whole[key] for key in expected} == expected
    assert "lora" not in whole
    unknown = TUNING_RECIPE.replace("def default_peft_config", "def another")
    with pytest.raises(InputError, match=r"nemo: peft.*default_peft_config.*training\.lora"):
        import_plan(unknown, "nemo", replace(options, variables={"CONFIG": "adapter_config"}))


KEYWORD_RECIPE = """
def llama_pretrain_config(**user_kwargs) -> ConfigContainer:
    recommended = {"hf_path": "meta-llama/Meta-Llama-3-8B", "tensor_model_parallel_size": 4}
    recommended = recommended | {"seq_length": 4096}
    recommended["pipeline_model_parallel_size"] = 2
    recommended.update(micro_batch_size=2)
    combined = {**recommended, **user_kwargs} | dict(global_batch_size=max(256, 8))
    return _llama_common(**combined)


def _llama_common(hf_path, tensor_model_parallel_size=1, **rest) -> ConfigContainer:
    model_cfg = AutoBridge.from_hf_pretrained(hf_path).to_megatron_provider(load_weights=False)
    model_cfg.tensor_model_parallel_size = tensor_model_parallel_size
    setattr(model_cfg, "pipeline_model_parallel_size", rest["pipeline_model_parallel_size"])
    model_cfg.seq_length = rest["seq_length"]
    cfg = ConfigContainer(
        model=model_cfg,
        train=TrainingConfig(
            global_batch_size=rest.get("global_batch_size", 32), micro_batch_size=rest["micro_batch_size"]
        ),
    )
    cfg.train.global_batch_size *= 2
    return cfg
"""


def test_a_recipe_s_keyword_arguments_reach_the_helper() -> None:
    options = ImportOptions(model=MODEL, device="h100", num_devices=64)
    fields = fields_of(KEYWORD_RECIPE, "nemo", options)
    expected = {"tp": 4, "pp": 2, "seq_len": 4096, "global_batch_size": 512, "micro_batch_size": 2}
    assert {key: fields[key] for key in expected} == expected


def test_keyword_arguments_that_only_the_program_knows_are_asked_for() -> None:
    text = KEYWORD_RECIPE.replace("{**recommended, **user_kwargs}", "{**load_settings(), **user_kwargs}")
    with pytest.raises(InputError, match=r"\*\*combined"):
        import_plan(text, "nemo", ImportOptions(model=MODEL, device="h100", num_devices=64))


def test_what_a_helper_that_is_not_at_hand_may_set_is_asked_for() -> None:
    options = ImportOptions(model=MODEL | MOE, device="h100", num_devices=64, seq_len=4096)
    alone = DEEP_RECIPE.replace("2 * cfg.dataset.seq_length", "4096")
    asked = {"training.global_batch_size": 64, "plan.micro_batch_size": 1, "plan.tp": 2}
    asked |= {"plan.pp": 1, "plan.cp": 1, "plan.sequence_parallel": True, "plan.ep": 8}
    for path, value in asked.items():
        with pytest.raises(InputError, match="_pretrain_common, moe_provider, apply_experts") as refused:
            import_plan(alone, "nemo", options)
        assert refused.value.path == path
        options = replace(options, overrides=(*options.overrides, (path, value)))
    assert import_plan(alone, "nemo", options).scenario["plan"]["ep"] == 8


def test_the_depths_of_a_hybrid_s_prediction_are_as_many_layers_as_their_pattern_runs() -> None:
    """Of Nemotron 3: one set of weights, whose attention and experts run once for each further token."""
    text = (
        "--hidden-size 2688 --num-attention-heads 32 --group-query-attention --num-query-groups 2 "
        "--kv-channels 128 --num-experts 128 --moe-router-topk 6 --moe-ffn-hidden-size 1856 "
        "--vocab-size 131072 --hybrid-override-pattern MEM*E --mamba-num-heads 64 --mamba-head-dim 64 "
        "--mamba-num-groups 8 --mamba-state-dim 128 --expert-model-parallel-size 8 --micro-batch-size 1 "
        "--global-batch-size 64 --seq-length 8192 --bf16 --mtp-num-layers 2 "
    )
    once, repeated = (
        import_plan(text + more, "megatron", replace(ON_8, model=None))
        for more in ("", "--mtp-hybrid-override-pattern *E --mtp-use-repeated-layer")
    )
    assert not {"mtp_hybrid_override_pattern", "mtp_use_repeated_layer"} & {*repeated.unused}
    layers = [parse_scenario(imported.scenario).model.num_nextn_layers for imported in (once, repeated)]
    assert layers == [2, 4]
    times = [predict([parse_scenario(i.scenario)])[0].step_time_s for i in (once, repeated)]
    assert times[1] > times[0]


def test_anchors_and_what_is_merged_under_them_are_read() -> None:
    text = "sizes: &s {micro_batch_size: 2}\nmodel:\n  <<: *s\n  tensor_model_parallel_size: 4\n"
    plan = import_plan(text, "megatron", BESIDE).scenario["plan"]
    assert (plan["tp"], plan["micro_batch_size"]) == (4, 2)


PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: small.yaml
    overrides:
      tensor_model_parallel_size: 4
      seq_length: ${LENGTH:4096}
"""


def test_a_primus_run_is_its_trainer_its_model_and_what_it_changes_of_them(tmp_path: Path) -> None:
    configs = tmp_path / "primus" / "configs"
    base = "micro_batch_size: 2\nglobal_batch_size: 16\nbert_embedder_type: megatron\n"
    sizes = "num_layers: 4\nhidden_size: 512\nnum_attention_heads: 8\nvocab_size: 32000\n"
    files = {
        "modules/megatron/pre_trainer.yaml": "extends: [base.yaml]\nglobal_batch_size: 128\nbf16: true\n",
        "modules/megatron/base.yaml": base,
        "models/megatron/small.yaml": "extends: sizes.yaml\nnum_layers: 8\n",
        "models/megatron/sizes.yaml": sizes,
    }
    for name, text in files.items():
        (configs / name).parent.mkdir(parents=True, exist_ok=True)
        (configs / name).write_text(text)
    run = tmp_path / "examples" / "run.yaml"
    options = ImportOptions(device="mi300x", num_devices=64, find_module=module_finder(str(run)))
    scenario = import_plan(PRIMUS, None, options).scenario
    assert scenario["model"]["num_hidden_layers"] == 8
    assert (scenario["training"]["global_batch_size"], scenario["training"]["seq_len"]) == (128, 4096)
    assert (scenario["plan"]["tp"], scenario["plan"]["micro_batch_size"]) == (4, 2)
    with pytest.raises(InputError, match=r"pre_trainer\.yaml, small\.yaml may set it"):
        import_plan(PRIMUS, None, replace(BESIDE, global_batch_size=128))


VEOMNI = """
model: {model_path: Qwen3-8B-Base, lora_config: {rank: 16, lora_modules: [q_proj, v_proj]}}
data: {max_seq_len: 4096}
train:
  accelerator: {ulysses_size: 2, ep_size: 1, dp_replicate_size: 4, fsdp_config: {fsdp_mode: fsdp2}}
  global_batch_size: 64
  gradient_checkpointing: {enable: false}
"""


def test_a_veomni_run_splits_sequences_and_shards_inside_its_replicas() -> None:
    imported = import_plan(VEOMNI, None, replace(BESIDE, seq_len=None))
    wanted = {"tp": 1, "cp": 2, "dp": 32, "dp_shard": 16, "zero_stage": 3, "recompute": "none"}
    assert {name: imported.scenario["plan"][name] for name in wanted} == wanted
    assert imported.scenario["training"]["lora"] == {"rank": 16, "targets": ["attention"]}
    assert any("ulysses" in note for note in imported.notes)


REFUSED = [
    ("swift sft --model Qwen/Qwen3-8B --per_device_train_batch_size 1\n", "ms-swift"),
    ("llamafactory-cli train --model_name_or_path Qwen/Qwen3-8B --cutoff_len 2048\n", "LLaMA-Factory"),
    ("actor_rollout_ref: {model: {path: Qwen/Qwen3-8B}}\n", "verl"),
    ("from torchtitan.experiments.rl import T\ndef grpo():\n    return T(TrainingConfig(seq_len=8))\n", "RL"),
    ("name: megatron_t5_glue\nmodel: {micro_batch_size: 1}\ntrainer: {devices: 8}\n", "T5"),
    ("model: Qwen/Qwen3-8B\ncutoff_len: 2048\ndist_config: {name: fsdpturbo, ep_size: 16}\n", "ep_size"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name"), REFUSED)
def test_what_is_not_read_is_refused_by_its_name(text: str, name: str) -> None:
    with pytest.raises(InputError, match=name):
        import_plan(text, None, BESIDE)


def test_a_levanter_run_that_starts_from_a_checkpoint_keeps_its_own_length() -> None:
    text = "model: {type: olmo2, seq_len: 4096}\ntrainer: {train_batch_size: 64}\nmodel_name_or_path: x\n"
    assert import_plan(text, None, replace(BESIDE, seq_len=None)).scenario["training"]["seq_len"] == 4096


def test_a_section_of_a_recipe_may_be_made_under_a_name_of_its_own() -> None:
    text = """
def create_config() -> ConfigContainer:
    train_config = TrainingConfig(micro_batch_size=4, global_batch_size=256)
    return ConfigContainer(model=GPTProvider(tensor_model_parallel_size=2), train=train_config)
"""
    scenario = import_plan(text, "nemo", BESIDE).scenario
    assert (scenario["plan"]["tp"], scenario["plan"]["micro_batch_size"]) == (2, 4)
    assert scenario["training"]["global_batch_size"] == 256


def test_changes_to_a_nemo_recipe_that_is_elsewhere_are_not_read_as_megatron_s_defaults() -> None:
    text = "MODEL_ARGS:\n  trainer.strategy.tensor_model_parallel_size: 2\n  data.micro_batch_size: 1\n"
    with pytest.raises(InputError, match="NeMo recipe"):
        import_plan(text, None, BESIDE)
