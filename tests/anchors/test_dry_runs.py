"""What PyTorch itself computes, launches and sends, counted without a GPU: on the meta device, or with a
process group that moves nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.physics.scenes import number, scene
from tools.physics.sizes import model_flops_per_token
from tools.physics.stage import layer_time
from tools.physics.traffic import data_s
from tools.physics.traits import CONTEXT_EXCHANGES

ZERO, ONE, FREE = number(0.0), number(1.0), number(1e30)
NVLINK = 450e9
WIDTH, LAYERS = 64, 4
SHAPE = (1, 4096, 4096)
NO_KERNEL = {"view", "transpose", "split", "t", "slice", "detach", "_unsafe_view", "expand", "unsqueeze"}


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation of PyTorch with its tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, str, list[Tensor]]] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
        self.calls.append((func.namespace, func._opname, tensors))
        return func(*args, **(kwargs or {}))

    @property
    def launches(self) -> int:
        return sum(name not in NO_KERNEL for _, name, _ in self.calls)


class Layer(nn.Module):
    """A layer of Mixtral; each expert gets its share of the routed tokens."""

    def __init__(self, hidden: int, heads: int, kv: int, ffn: int, experts: int = 1, chosen: int = 1) -> None:
        super().__init__()
        self.heads, self.kv, self.dim, self.share = heads, kv, hidden // heads, chosen / experts
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.qkv = nn.Linear(hidden, (heads + 2 * kv) * self.dim, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.ModuleList(nn.Linear(hidden, 2 * ffn, bias=False) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(ffn, hidden, bias=False) for _ in range(experts))
        self.router = nn.Linear(hidden, experts, bias=False) if experts > 1 else None

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, tokens, -1, self.dim).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv, self.kv), 1)
        q, k = (turned * 0.5 + torch.cat((-turned, turned), -1)[..., : self.dim] * 0.5 for turned in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + projected

    def feed_forward(self, x: Tensor) -> Tensor:
        normed, rows = self.norms[1](x), int(x.shape[1] * self.share)
        made: list[Tensor] = []
        scores = self.router(normed).mean(-1, keepdim=True)[:, :rows] if self.router else 1.0
        for up, down in zip(self.up, self.down, strict=True):
            gate, value = up(normed[:, :rows]).chunk(2, -1)
            made.append(down(functional.silu(gate) * value))
        return x[:, :rows] + sum(made[1:], made[0]) * scores

    def forward(self, x: Tensor) -> Tensor:
        return self.feed_forward(self.attend(x))


def flops(x: Tensor, run: Callable[[Tensor], Tensor]) -> float:
    """Forward and backward, causal attention counted half: what a fused kernel computes."""
    with FlopCounterMode(display=False) as counter:
        run(x).sum().backward()  # type: ignore[no-untyped-call]
    counts = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    return float(counts["aten.mm"] + counts["aten.bmm"] / 2)


def test_a_layer_of_llama_8b_computes_the_flops_that_the_model_counts() -> None:
    """FlopCounterMode of PyTorch 2.13 on a layer on the meta device. With the whole square of attention the
    formula would give 7% more, without the backward pass's two products a third."""
    x = scene("llama-3.1-8b", seq_len=4096, devices=1, batch=1).x
    one = replace(x, layers=ONE, vocab=ZERO)
    with torch.device("meta"):
        layer, tokens = Layer(4096, 32, 8, 14336), torch.empty(SHAPE, requires_grad=True)
    assert float(model_flops_per_token(one)) * 4096 == pytest.approx(flops(tokens, layer), rel=1e-6)


def repeated_flops(model: str, **words: object) -> float:
    """What a layer's recomputation takes on a device where time is FLOPs: no traffic, tiles, exponentials."""
    s = scene(model, devices=8, batch=8, **words)
    facts = {"memory_bandwidth": FREE, "exponentials_per_s": FREE}
    x = replace(s.x, **facts, **dict.fromkeys(("tile_m", "tile_n", "power_share", "attention_kernel"), ONE))
    ones = ("gemm_efficiency", "attention_efficiency", "grouped_gemm_ratio")
    c = replace(s.c, **dict.fromkeys(ones, ONE), gemm_depth_half=ZERO, gemm_wave_weight=ZERO)
    return float(layer_time(x, c, x.is_moe).recompute * x.half_peak)


@pytest.mark.parametrize("device", ["h100-sxm-80gb", "tpu-v6e"])
def test_recomputing_the_experts_repeats_their_part_of_the_forward_pass(device: str) -> None:
    """A layer of Mixtral 8x7B on the meta device, under torch.utils.checkpoint and not: of the 3.37e12 FLOPs
    that full recomputation repeats 0.86 are the experts'; 0.80 where a compiler leaves the products down out,
    which nothing needs. On TPU v6e the experts alone were dearer than everything."""
    with torch.device("meta"):
        layer, x = Layer(4096, 32, 8, 14336, experts=8, chosen=2), torch.empty(SHAPE, requires_grad=True)
    plain = flops(x, layer)
    with set_checkpoint_early_stop(False):
        whole = flops(x, lambda value: checkpoint(layer, value, use_reentrant=False)) - plain
    experts = (plain - flops(x, layer.attend)) / 3
    words: dict[str, object] = {"device": device}
    if device == "tpu-v6e":
        words |= {"framework": "maxtext", "zero_stage": 3}
        router = 2.0 * SHAPE[0] * SHAPE[1] * 8 * 4096
        down = (experts - router) / 3
        whole, experts = whole - down, experts - down
    assert repeated_flops("mixtral-8x7b", recompute="full", **words) == pytest.approx(whole, rel=1e-6)
    words |= {"recompute": "selective", "recompute_modules": ["moe"]}
    assert repeated_flops("mixtral-8x7b", **words) == pytest.approx(experts, rel=1e-6)


def test_pytorch_s_checkpoint_does_not_repeat_the_last_product_of_a_layer() -> None:
    """A layer of Llama 3.1 8B under torch.utils.checkpoint, which stops once backward has what it needs:
    without the product down it repeats 25% less than Megatron's full recomputation."""
    with torch.device("meta"):
        layer, x = Layer(4096, 32, 8, 14336), torch.empty(SHAPE, requires_grad=True)
    again = flops(x, lambda value: checkpoint(layer, value, use_reentrant=False)) - flops(x, layer)
    words = {"framework": "torch-fsdp2", "zero_stage": 3, "recompute": "full"}
    assert repeated_flops("llama-3.1-8b", **words) == pytest.approx(again, rel=1e-6)


def test_recomputation_repeats_the_launches_of_the_forward_pass() -> None:
    """Operations of an eager layer on the CPU, views left out: 24 forward and 32 backward, with fused
    norms and attention; full recomputation launches the forward ones again, those of the experts too. Without
    that the launches of an expert layer would grow by 2%, and they grow by two fifths."""
    layer, x = Layer(64, 4, 4, 128), torch.randn(1, 16, 64, requires_grad=True)
    with Counted() as forward:
        made = layer(x)
    with Counted() as backward:
        made.backward(torch.ones_like(made))
    again = forward.launches / (forward.launches + backward.launches)
    for model in ("llama-3.1-8b", "mixtral-8x7b"):
        s, full = (scene(model, devices=8, batch=8, recompute=recompute) for recompute in ("none", "full"))
        once_s, twice_s = (float(layer_time(it.x, it.c, it.x.stages.moe_share).host) for it in (s, full))
        assert twice_s / once_s == pytest.approx(1.0 + again, abs=0.05)
    # a framework adds casts, dropout and the kernels of its optimizer's hooks
    assert forward.launches + backward.launches <= float(s.x.kernels_per_layer) <= 90


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Two replicas of four shards, in this process alone."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    dist.destroy_process_group()


def wrapped(framework: str, mesh: DeviceMesh, reduced: torch.dtype) -> nn.Module:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    if framework == "torch-fsdp":
        return FullyShardedDataParallel(
            model,
            device_mesh=mesh,
            device_id=torch.device("cpu"),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduced),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        )
    for part in (*model, model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduced))
    return model


@pytest.mark.parametrize(
    ("framework", "gradient_dtype"),
    [("torch-fsdp", "fp32"), ("torch-fsdp2", "fp32"), ("torch-fsdp2", "bf16"), ("torchtitan", None)],
)
def test_hybrid_sharding_sends_what_pytorch_s_own_calls_send(
    framework: str, gradient_dtype: str | None, mesh: DeviceMesh
) -> None:
    """FSDP and fully_shard of PyTorch 2.13, three micro-batches: each gathers twice, scatters, and sums over
    the replicas, in the bytes of reduce_dtype. Summing once a step would send 10% less."""
    model = wrapped(framework, mesh, torch.bfloat16 if gradient_dtype == "bf16" else torch.float32)
    with Counted() as counted:
        for _ in range(3):
            model(torch.randn(2, WIDTH)).sum().backward()
    sent = 0.0
    for namespace, name, tensors in counted.calls:
        if namespace == "c10d":
            sizes = [it.numel() * it.element_size() for it in tensors]
            whole = sum(sizes[:-1]) if name == "allgather_" else max(sizes)
            sent += whole * (2 * 1 / 2 if name == "allreduce_" else 3 / 4)
    words = {"devices": 8, "batch": 24, "zero_stage": 3, "dp_shard": 4, "framework": framework}
    s = scene("llama-3.1-8b", **words, gradient_dtype=gradient_dtype)
    x = replace(s.x, scale_up_latency=ZERO)
    c = replace(s.c, fast_link_efficiency=ONE, rank_latency_s=ZERO)
    traffic = data_s(x, c, number(LAYERS * WIDTH * WIDTH), ZERO, number(LAYERS))
    spent_s = float(3 * traffic.every_micro_batch + traffic.end_scatter + traffic.end_gather)
    assert spent_s * NVLINK == pytest.approx(sent)


def test_pytorch_s_context_parallelism_gathers_keys_and_values() -> None:
    """The default of PyTorch 2.13, which torchtitan keeps; a ring is the other choice."""
    assert _attention._cp_options.rotate_method.name == "ALL_GATHER"
    s = scene(devices=8, cp=8, batch=8, framework="torchtitan", zero_stage=3)
    assert CONTEXT_EXCHANGES[int(s.x.context_exchange)] == "gather"
