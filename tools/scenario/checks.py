"""The vectorised conditions that rules are made of: each returns which plans break it.

Which framework applies a check, its reason and its source are data in `kb_seed/frameworks/`.
"""

import numpy as np

from tools.scenario.columns import BoolArray, Facts, divides, equals, has_schedule


def degrees_multiply(facts: Facts) -> BoolArray:
    # In floating point, so that absurd degrees cannot wrap around to the right product: a product equal
    # to num_devices has small factors and is exact.
    plan = facts.plan
    product = plan.tp.astype(np.float64) * plan.pp * plan.cp * plan.dp
    return ~equals(product, facts.cluster.num_devices)


def shard_divides_data(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.dp_shard, facts.plan.dp * facts.plan.cp)


def batch_divides(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.dp * facts.plan.micro_batch_size, facts.training.global_batch_size)


def experts_need_moe(facts: Facts) -> BoolArray:
    return (facts.plan.ep > 1) & (not facts.model.is_moe)


def ep_divides_experts(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.ep, facts.model.num_experts)


def ep_fits_stage(facts: Facts) -> BoolArray:
    """Experts are laid over the ranks of one stage: ep * etp divides dp * cp * tp. A dense model has none."""
    plan = facts.plan
    return ~divides(plan.ep * plan.etp, plan.dp * plan.cp * plan.tp) & facts.model.is_moe


def ep_fits_data(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.ep, facts.plan.dp * facts.plan.cp)


def ep_fits_shard(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.ep, facts.plan.dp_shard * facts.plan.tp)


def etp_is_one_or_tp(facts: Facts) -> BoolArray:
    return ~equals(facts.plan.etp, 1) & ~equals(facts.plan.etp, facts.plan.tp) & facts.model.is_moe


def etp_divides_expert(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.etp, facts.model.moe_intermediate_size) & facts.model.is_moe


def chunks_are_even(facts: Facts) -> BoolArray:
    """Equal chunks, where the leading dense layers of an MoE model may stay outside the pipeline."""
    chunks, layers = facts.plan.pp * facts.plan.vpp, facts.model.num_hidden_layers
    outside = facts.model.first_k_dense_replace if facts.model.is_moe else 0
    return (facts.plan.pp > 1) & ~divides(chunks, layers) & ~divides(chunks, layers - outside)


def chunks_divide_layers(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.vpp, facts.model.num_hidden_layers)


def vpp_needs_stages(facts: Facts) -> BoolArray:
    return (facts.plan.vpp > 1) & (facts.plan.pp < 2)


def schedule_matches_vpp(facts: Facts) -> BoolArray:
    single = has_schedule(facts, "1f1b") & (facts.plan.vpp > 1)
    return single | (has_schedule(facts, "interleaved") & (facts.plan.vpp < 2))


def zero_bubble_needs_chunks(facts: Facts) -> BoolArray:
    return has_schedule(facts, "zero_bubble") & (facts.plan.vpp < 2)


def interleaved_batches_divide(facts: Facts) -> BoolArray:
    return (facts.plan.vpp > 1) & ~divides(facts.plan.pp, facts.micro_batches)


def rounds_divide_batches(facts: Facts) -> BoolArray:
    """torch.distributed.pipelining runs the micro-batches in max(1, n // pp) equal rounds."""
    rounds = np.maximum(1, facts.micro_batches // facts.plan.pp)
    return (facts.plan.vpp > 1) & ~divides(rounds, facts.micro_batches)


def piped_batches_divide(facts: Facts) -> BoolArray:
    return (facts.plan.pp > 1) & ~divides(facts.plan.pp, facts.micro_batches)


def untied_when_piped(facts: Facts) -> BoolArray:
    return (facts.plan.pp > 1) & facts.model.tie_word_embeddings


def tp_divides_heads(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.tp, facts.model.num_attention_heads)


def tp_divides_kv_heads(facts: Facts) -> BoolArray:
    """MLA has no key/value heads to split: its latent is shared by all heads."""
    return ~divides(facts.plan.tp, facts.model.num_key_value_heads) & (not facts.model.is_mla)


def tp_matches_kv_heads(facts: Facts) -> BoolArray:
    return tp_divides_kv_heads(facts) & ~divides(facts.model.num_key_value_heads, facts.plan.tp)


def tp_divides_mlp(facts: Facts) -> BoolArray:
    """Dense layers and shared experts are split over tp; routed experts over etp."""
    model, tp = facts.model, facts.plan.tp
    dense = ~divides(tp, model.intermediate_size) & (model.num_dense_layers > 0)
    return dense | (~divides(tp, model.shared_expert_intermediate_size) & model.is_moe)


def sp_divides_sequence(facts: Facts) -> BoolArray:
    split = facts.plan.tp * facts.plan.cp
    return facts.plan.sequence_parallel & ~divides(split, facts.training.seq_len)


def moe_needs_sp(facts: Facts) -> BoolArray:
    return (facts.plan.tp > 1) & ~facts.plan.sequence_parallel & facts.model.is_moe


def cp_leaves_heads(facts: Facts) -> BoolArray:
    return facts.plan.tp * facts.plan.cp > facts.model.num_attention_heads


def shard_covers_cp(facts: Facts) -> BoolArray:
    return ~divides(facts.plan.cp, facts.plan.dp_shard)
