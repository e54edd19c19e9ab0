"""Memory: the papers' own examples, in bytes."""

import pytest

from tests.unit.physics.scenes import MODELS, Scene, scene
from tools.physics.memory import Memory, memory_bytes, read_bytes
from tools.physics.sizes import total_parameters
from tools.physics.traits import held_bytes
from tools.scenario.spec import StateType

GB = 1e9


def parts(s: Scene) -> Memory:
    return memory_bytes(s.x, s.settings)


@pytest.mark.parametrize(
    ("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)], ids=["DP", "Pos", "Pos+g", "Pos+g+p"]
)
def test_zero_leaves_on_a_rank_what_figure_1_of_its_paper_shows(zero: int, gigabytes: float) -> None:
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5e9 parameters on 64 ranks, each 2 bytes and
    2 of gradient and 12 of optimizer state."""
    s = scene("llama-3.1-8b", zero_stage=zero, framework="deepspeed")
    memory = parts(s)
    state = float(memory.parameters + memory.gradients + memory.optimizer)
    assert state / float(total_parameters(s.x)) * 7.5e9 / GB == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("stated", "bytes_each"),
    [
        ({"gradient_dtype": "fp32"}, [2.0, 4.0, 12.0]),
        ({"precision": "fp32"}, [4.0, 4.0, 8.0]),
        ({"gradient_dtype": "bf16"}, [2.0, 2.0, 12.0]),
        ({"gradient_dtype": "bf16", "optimizer_state": "bf16"}, [2.0, 2.0, 8.0]),
    ],
    ids=str,
)
def test_megatron_keeps_what_its_documentation_says_per_parameter(
    stated: dict[str, str], bytes_each: list[float]
) -> None:
    """Megatron-LM, docs/source/api-guide/dist_optimizer.md: with bf16 parameters and fp32 gradients 18, of
    them 6 + 12 / d with d data ranks; in fp32 16, 8 + 8 / d. The precision-aware optimizer (exp_avg_dtype,
    exp_avg_sq_dtype, main_grads_dtype) has moments and gradients of 2 bytes each."""
    for ranks in (1, 8):
        memory = parts(scene("llama-3.1-8b", devices=ranks, zero_stage=1, **stated))
        found = [float(part) / 8.03026e9 for part in (memory.parameters, memory.gradients, memory.optimizer)]
        assert found == pytest.approx([*bytes_each[:2], bytes_each[2] / ranks], rel=1e-4)


@pytest.mark.parametrize(("moments", "optimizer"), [(None, 4.0), ("bf16", 4.0), ("fp32", 8.0)])
def test_automodel_keeps_moments_like_its_bf16_parameters(
    moments: StateType | None, optimizer: float
) -> None:
    """torch.optim.AdamW: exp_avg and exp_avg_sq are zeros_like the parameter."""
    held = held_bytes("automodel", "bf16", moments)
    assert held == (2.0, optimizer)


def test_deepspeed_sums_16_bit_gradients_in_fp32_beside_them() -> None:
    """DeepSpeed, runtime/bf16_optimizer.py: lp gradients and fp32_groups_gradients."""
    memory = parts(scene("llama-3.1-8b", framework="deepspeed", gradient_dtype="fp32", devices=8))
    assert float(memory.gradients) / 8.03026e9 == pytest.approx(6.0, rel=1e-4)


@pytest.mark.parametrize(
    ("framework", "bytes_each"),
    [("huggingface", 4.0), ("accelerate", 4.0), ("automodel", 2.0), ("nanotron", 2.0), ("deepspeed", 0.0)],
)
def test_ddp_holds_all_gradients_a_second_time_in_its_buckets(framework: str, bytes_each: float) -> None:
    """PyTorch, pull request 41954: views of the buckets instead of copies took 8250 MB to 7183 of a model
    with 1 GB of parameters; DistributedDataParallel has gradient_as_bucket_view = False."""
    alone, many = (parts(scene("llama-3.1-8b", framework=framework, zero_stage=0, devices=n)) for n in (1, 8))
    copies = float(many.gradients - alone.gradients) / 8.03026e9
    assert copies == pytest.approx(bytes_each, rel=1e-4)


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "per_value"),
    [(1, False, 34.0), (8, False, 10.0 + 24.0 / 8.0), (8, True, 34.0 / 8.0)],
)
def test_a_layer_of_gpt_3_keeps_what_table_2_says(tp: int, sequence_parallel: bool, per_value: float) -> None:
    """Korthikanti et al., arXiv 2205.05198, table 2: s b h (34 + 5 a s / h), with tensor parallelism
    s b h (10 + 24 / t + 5 a s / h t), with sequence parallelism s b h / t (34 + 5 a s / h), where 5 a s / h
    is 80. PyTorch before expandable segments reserved a quarter more."""
    words = {"seq_len": 2048, "flash": False, "devices": tp, "tp": tp, "batch": 1}
    memory = parts(scene("gpt-3-175b", sequence_parallel=sequence_parallel, **words))
    assert float(memory.activations) == pytest.approx(96 * 2048 * 12288 * (per_value + 80 / tp) * 1.25)


def test_full_recomputation_keeps_2_sbh_bytes_of_a_layer() -> None:
    """Korthikanti et al., arXiv 2205.05198, table 2: of GPT-3 (s 2,048, b 1, h 12,288) 50,331,648 bytes."""
    s = scene("gpt-3-175b", seq_len=2048, recompute="full", devices=1, batch=1)
    assert float(parts(s).activations) == 96 * 50_331_648


def test_scores_without_flash_attention_take_80_sbh_bytes_of_a_layer_of_gpt_3() -> None:
    """Korthikanti et al., arXiv 2205.05198, section 5: 5 a s / h is 80 for GPT-3, which selective
    recomputation does not keep. PyTorch before expandable segments reserved a quarter more."""
    none, selective = (
        parts(scene("gpt-3-175b", seq_len=2048, recompute=r, flash=False, devices=1, batch=1))
        for r in ("none", "selective")
    )
    saved = float(none.activations - selective.activations)
    assert saved == pytest.approx(96 * 80 * 2048 * 12288 * 1.25)


def test_a_stage_of_1f1b_holds_p_micro_batches_and_an_interleaved_one_more() -> None:
    """Narayanan et al., arXiv 2104.04473, section 2.2, and Korthikanti et al., equation 5: the first stage
    holds the activations of L layers of one micro-batch, with m chunks a stage L (1 + (p - 1) / (p m))."""
    plain = [float(parts(scene(tp=4, pp=pp, batch=256, vpp=1)).activations) for pp in (1, 2, 4, 8)]
    assert plain == pytest.approx([plain[0]] * 4, rel=1e-9)
    interleaved = parts(scene(tp=4, pp=4, vpp=5, batch=256)).activations
    assert float(interleaved) == pytest.approx(1.15 * plain[0], rel=1e-9)


@pytest.mark.parametrize(("pp", "layers"), [(1, 32), (2, 18), (4, 9), (8, 5), (16, 3), (32, 2)])
def test_nanotron_gives_the_first_stage_layers_until_it_has_more_than_its_share(pp: int, layers: int) -> None:
    """nanotron, models/base.py, build_model, with the costs of models/llama.py: 8 billion parameters have 32
    layers, and a head that costs 131,072 / (4 x 4,096 + 3 x 14,336) = 2.2 of them."""
    model = MODELS["llama-3.1-8b"] | {"vocab_size": 131072, "num_key_value_heads": 32}
    words = {"framework": "nanotron", "devices": 64, "zero_stage": 1, "batch": 256 * 64, "schedule": "1f1b"}
    one, stage = (float(parts(scene(model, pp=n, vpp=1, **words)).activations) for n in (1, pp))
    assert stage / one == pytest.approx(layers * pp / 32)


@pytest.mark.parametrize(
    ("model", "words", "gib"),
    [
        ("llama-3.1-70b", {"tp": 8}, 28.3),
        ("llama-3.1-70b", {"tp": 4}, 39.1),
        ("llama-3.1-70b", {"tp": 2}, 60.7),
        ("llama-3.1-70b", {"pp": 2}, 66.5),
        ("llama-3.1-70b", {"tp": 2, "cp": 4, "seq_len": 131072}, 112.7),
        ("deepseek-v3", {"ep": 8}, 104.3),
        ("deepseek-v3", {"pp": 2, "ep": 4}, 114.0),
    ],
    ids=str,
)
def test_megatron_allocates_what_simumax_measured(model: str, words: dict[str, int], gib: float) -> None:
    """SimuMax, its table of B200 runs: 8 devices, 12 layers of Llama 3 70B or 4 of DeepSeek-V3, micro-batches
    of one sequence, fp32 gradients."""
    layers = {"llama-3.1-70b": 12, "deepseek-v3": 4}[model]
    cut = MODELS[model] | {"num_hidden_layers": layers, "first_k_dense_replace": 1}
    batch = 4 * 8 // (words.get("tp", 1) * words.get("pp", 1) * words.get("cp", 1))
    types = {"gradient_dtype": "fp32", "optimizer_state": "fp32"}
    s = scene(cut, device="b200", devices=8, batch=batch, vpp=1, **types, **words)
    assert float(read_bytes(s.x, s.settings, "allocated")) / 2**30 == pytest.approx(gib, rel=0.03)


@pytest.mark.parametrize(("vpp", "chunks"), [(1, 1), (2, 5), (5, 17)])
def test_the_last_stage_holds_the_chunks_that_warm_up_the_interleaved_schedule(vpp: int, chunks: int) -> None:
    """(vpp - 1) * pp chunks of warm-up and the one at work (Megatron-LM, get_pp_rank_microbatches). The
    vocabulary is so large that the last stage, with the logits, is the fullest."""
    model = scene().scenario.model.model_dump(exclude_defaults=True) | {"vocab_size": 30_000_000}
    whole_stage = float(parts(scene(model, tp=4, pp=1, batch=256)).activations) / 4
    held = float(parts(scene(model, tp=4, pp=4, vpp=vpp, batch=256)).activations)
    assert held == pytest.approx(whole_stage * chunks / vpp, rel=1e-9)


def test_quantized_weights_of_llama_8b_take_4_127_bits_but_for_the_vocabulary() -> None:
    """Dettmers et al., arXiv 2305.14314, section 3: NF4 and twice quantized scales, 0.127 bits. 6.98e9
    weights of the layers, and twice 128,256 x 4,096 in 16 bits."""
    words = {"devices": 8, "zero_stage": 0}
    whole, four = (
        float(parts(scene("llama-3.1-8b", lora={"rank": 1, "weight_bits": bits}, **words)).parameters)
        for bits in (16, 4)
    )
    assert whole == pytest.approx(16.06 * GB, rel=0.001)
    assert four == pytest.approx((3.601 + 2.101) * GB, rel=0.002)


def test_training_8b_with_adam_does_not_fit_one_80_gb_device() -> None:
    """18 bytes of 8.03e9 parameters are 144.5 GB."""
    s = scene("llama-3.1-8b", devices=1, recompute="full", gradient_dtype="fp32")
    assert not s.costs().fits[0]
    assert float(parts(s).total) > 144.5 * GB
