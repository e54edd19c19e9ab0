"""The vectorised conditions that rules are made of: each returns which plans break it.

Which framework applies a check, its reason and its source are data in `kb_seed/frameworks/`.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from tools.scenario.columns import BoolArray, PlanFacts, divides, equals, has_schedule
from tools.scenario.spec import AXES, FULL_SHARDING

CHECKS: Mapping[str, Callable[[PlanFacts], BoolArray]] = {
    # In floating point, so that absurd degrees cannot wrap around to the right product: a product equal
    # to num_devices has small factors and is exact.
    "degrees_multiply": lambda f: (
        ~equals(math.prod(getattr(f.plan, name).astype(np.float64) for name in AXES), f.cluster.num_devices)
    ),
    "shard_divides_data": lambda f: ~divides(f.plan.dp_shard, f.plan.data_ranks),
    "shard_covers_cp": lambda f: ~divides(f.plan.cp, f.plan.dp_shard),
    "shards_over_dp": lambda f: (f.plan.sharding_stage > 0) & ~equals(f.plan.dp_shard, f.plan.dp),
    # Weights lie on every axis that splits the batch or the sequence: only a group over all of them is left.
    "shard_covers_cp_and_ep": lambda f: (
        (f.plan.cp * f.plan.ep > 1)
        & ((f.plan.sharding_stage < FULL_SHARDING) | ~divides(f.plan.cp * f.plan.ep, f.plan.dp_shard))
    ),
    "shards_over_all": lambda f: f.plan.is_hybrid_sharded,
    "batch_divides": lambda f: ~divides(f.plan.dp * f.plan.micro_batch_size, f.training.global_batch_size),
    "experts_need_moe": lambda f: (f.plan.ep > 1) & (not f.model.is_moe),
    "ep_divides_experts": lambda f: ~divides(f.plan.ep, f.model.num_experts),
    # Experts are laid over the ranks of one stage: ep * etp divides dp * cp * tp. A dense model has none.
    "ep_fits_stage": lambda f: (
        ~divides(f.plan.ep * f.plan.etp, f.plan.data_ranks * f.plan.tp) & f.model.is_moe
    ),
    "ep_divides_dp": lambda f: ~divides(f.plan.ep, f.plan.dp),
    "ep_fits_shard": lambda f: ~divides(f.plan.ep, f.plan.dp_shard * f.plan.tp),
    "etp_is_one_or_tp": lambda f: ~equals(f.plan.etp, 1) & ~equals(f.plan.etp, f.plan.tp) & f.model.is_moe,
    "etp_divides_expert": lambda f: ~divides(f.plan.etp, f.model.moe_intermediate_size) & f.model.is_moe,
    # Equal chunks, where the leading dense layers of an MoE model may stay outside the pipeline.
    "chunks_are_even": lambda f: (
        (f.plan.pp > 1)
        & ~divides(f.plan.pp * f.plan.vpp, f.model.num_hidden_layers)
        & ~divides(
            f.plan.pp * f.plan.vpp,
            f.model.num_hidden_layers - (f.model.first_k_dense_replace if f.model.is_moe else 0),
        )
    ),
    "chunks_divide_layers": lambda f: ~divides(f.plan.vpp, f.model.num_hidden_layers),
    "vpp_needs_stages": lambda f: (f.plan.vpp > 1) & (f.plan.pp < 2),
    "schedule_matches_vpp": lambda f: (
        (has_schedule(f, "1f1b") & (f.plan.vpp > 1)) | (has_schedule(f, "interleaved") & (f.plan.vpp < 2))
    ),
    "zero_bubble_needs_chunks": lambda f: has_schedule(f, "zero_bubble") & (f.plan.vpp < 2),
    "interleaved_batches_divide": lambda f: (f.plan.vpp > 1) & ~divides(f.plan.pp, f.micro_batches),
    # torch.distributed.pipelining runs the micro-batches in max(1, n // pp) equal rounds.
    "rounds_divide_batches": lambda f: (
        (f.plan.vpp > 1) & ~divides(np.maximum(1, f.micro_batches // f.plan.pp), f.micro_batches)
    ),
    "piped_batches_divide": lambda f: (f.plan.pp > 1) & ~divides(f.plan.pp, f.micro_batches),
    "untied_when_piped": lambda f: (f.plan.pp > 1) & f.model.tie_word_embeddings,
    "tp_divides_heads": lambda f: ~divides(f.plan.tp, f.model.num_attention_heads),
    # MLA has no key/value heads to split: its latent is shared by all heads.
    "tp_divides_kv_heads": lambda f: ~divides(f.plan.tp, f.model.num_key_value_heads) & (not f.model.is_mla),
    "tp_matches_kv_heads": lambda f: (
        ~divides(f.plan.tp, f.model.num_key_value_heads)
        & ~divides(f.model.num_key_value_heads, f.plan.tp)
        & (not f.model.is_mla)
    ),
    # Dense layers and shared experts are split over tp; routed experts over etp.
    "tp_divides_mlp": lambda f: (
        (~divides(f.plan.tp, f.model.intermediate_size) & (f.model.num_dense_layers > 0))
        | (~divides(f.plan.tp, f.model.shared_expert_intermediate_size) & f.model.is_moe)
    ),
    "sp_divides_sequence": lambda f: (
        f.plan.sequence_parallel & ~divides(f.plan.tp * f.plan.cp, f.training.seq_len)
    ),
    "moe_needs_sp": lambda f: (f.plan.tp > 1) & ~f.plan.sequence_parallel & f.model.is_moe,
    "model_has_mixers": lambda f: np.asarray(f.model.num_mixer_layers > 0),
    # Recurrent layers need the whole sequence in order.
    "cp_meets_mixers": lambda f: (f.plan.cp > 1) & (f.model.num_mixer_layers > 0),
    "cp_meets_windows": lambda f: (
        (f.plan.cp > 1) & (f.model.num_sliding_layers > 0) & (f.model.sliding_window < f.training.seq_len)
    ),
    "model_has_latent_attention": lambda f: np.asarray(f.model.is_mla),
    "cp_leaves_heads": lambda f: f.plan.tp * f.plan.cp > f.model.num_attention_heads,
}
