"""The names that conditions and moves of playbooks may use, and what kind of value stands behind each.

The values are computed elsewhere (the situation of a scenario, its plan, prediction and profile); here is
only the vocabulary, so that a misspelt fact is refused when it is read instead of never holding.
"""

PLAN_FLAGS = ("sequence_parallel",)
PLAN_COUNTS = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "zero_stage", "micro_batch_size")
PLAN_WORDS = {
    "recompute": ("none", "selective", "full"),
    "schedule": ("1f1b", "interleaved", "zero_bubble", "gpipe"),
}
PLAN_FIELDS = (*PLAN_COUNTS, *PLAN_FLAGS, *PLAN_WORDS)
MOVE_WORDS = ("x2", "/2", "devices_per_node", "num_devices", "all_data_ranks")
"""Values of a move that depend on the plan it is applied to; all_data_ranks is dp * cp."""

TEXTS = frozenset({
    "architecture", "vendor", "device", "framework", "precision", "recompute", "bottleneck",
    "profile.bottleneck", "profile.straggler_cause",
})  # fmt: skip
FLAGS = frozenset({
    "sliding_window", "fp8_capable", "flash_attention", "sequence_parallel", "fits",
    "tp_spans_nodes", "cp_spans_nodes", "ep_spans_nodes", "dp_shard_spans_nodes",
    "profiled", "profile.straggler",
})  # fmt: skip
STEP_PARTS = (
    "compute", "memory_bound_ops", "tp_comm_exposed", "cp_comm_exposed", "ep_comm_exposed",
    "dp_comm_exposed", "pp_comm_exposed", "pipeline_bubble", "optimizer", "host_and_other",
)  # fmt: skip
NUMBERS = frozenset({
    "parameters_b", "layers", "hidden_size", "kv_heads", "num_experts", "experts_per_token",
    "num_devices", "devices_per_node", "nodes", "oversubscription", "memory_gib",
    "seq_len", "global_batch_size", *PLAN_COUNTS,
    "micro_batches", "heads_per_tp", "tokens_per_micro_batch",
    "mfu", "memory_fraction", "activation_fraction", *(f"share.{part}" for part in STEP_PARTS),
    "profile.exposed_communication_ratio", "profile.idle_ratio", "profile.memory_ratio",
    "profile.overlap_ratio",
})  # fmt: skip
FACTS = TEXTS | FLAGS | NUMBERS
