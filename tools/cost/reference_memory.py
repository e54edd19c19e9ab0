"""Peak memory of one scenario, for the reference cost model.

Plain Python, written from docs/cost-model.md; shares no formula with `memory.py`, only its data file.
"""

import math
import tomllib
from functools import cache, cached_property

import kb_seed
from tools.cost.reference_case import ReferenceCase

UNFUSED_RESERVED = 1.25


@cache
def _memory_table() -> dict[str, dict[str, float | dict[str, float]]]:
    return tomllib.loads(kb_seed.folder("calibration").joinpath("memory.toml").read_text())


class ReferenceMemory(ReferenceCase):
    """Bytes on the fullest rank."""

    @cached_property
    def keep(self) -> dict[str, float]:
        """What the framework keeps, at the run's precision."""
        table, t = _memory_table(), self.training
        entries = {**table["default"], **table.get(t.framework, {})}
        values = {
            k: v.get(t.precision, v["default"]) if isinstance(v, dict) else v for k, v in entries.items()
        }
        factor = math.exp(self.measured.memory_shift) if self.measured else 1.0
        state = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
        scaled = (*state, "fragmentation_ratio", "runtime_bytes")
        return {name: value * factor if name in scaled else value for name, value in values.items()}

    def memory(self) -> dict[str, float]:
        """Bytes on the fuller of the first stage and the last."""
        p, k, m = self.plan, self.keep, self.micro_batches
        piped = p.pp > 1
        deep = (2 * (p.pp - 1) + (self.vpp - 1) * p.pp + 1) / self.vpp if self.vpp > 1 else p.pp
        warmed_up = ((self.vpp - 1) * p.pp + 1) / self.vpp
        if p.schedule == "gpipe":
            deep = warmed_up = m
        first = self._stage_memory(self.inner, min(deep, m) if piped else 1.0, logits=not piped)
        last = self._stage_memory(self.last, min(warmed_up, m) if piped else min(1.0, m), logits=True)
        fuller = first if sum(first.values()) >= sum(last.values()) else last
        if p.zero_stage == 3:
            gathered = sum(self.layer_parameters()) * k["gathered_layers"]
            matrix = self.model.vocab_size * self.h / p.tp
            fuller["buffers"] += (gathered * self.stored + matrix * self.b) * k["fragmentation_ratio"]
        return {**fuller, "runtime": k["runtime_bytes"]}

    def _stage_memory(self, layers: int, in_flight: float, logits: bool) -> dict[str, float]:
        p, k = self.plan, self.keep
        dense, expert = self.parameters(layers)
        whole, sharded = dense + expert, dense / self.dense_shards + expert / self.expert_shards
        gradients = sharded if p.zero_stage >= k["gradients_sharded_from"] else whole
        on_device = 0.0 if self.training.optimizer_offload else sharded
        hidden = self.tokens * self.h * self.b
        received = hidden if p.tp > 1 else 0.0
        received += self.model.num_experts_per_tok / p.tp * hidden if p.ep > 1 else 0.0
        scores = self.tokens * self.model.vocab_size / p.tp * k["logits_bytes"] if logits else 0.0
        working = self._layer_activations() if self.recompute != "none" else 0.0
        reserved = k["fragmentation_ratio"]
        reserved *= 1.0 if self.training.flash_attention else UNFUSED_RESERVED
        return {
            "parameters": self._parameter_bytes(dense, expert),
            "gradients": gradients * self.trained * k["gradient_bytes"],
            "optimizer": on_device * self.trained * k["optimizer_bytes"],
            "activations": layers * self._kept_activations() * in_flight * reserved,
            "buffers": (max(scores, working) + k["buffer_copies"] * received) * reserved,
        }

    def _parameter_bytes(self, dense: float, expert: float) -> float:
        """Of a stage on a rank; quantized are the layers, not the embedding and the output matrix."""
        p, size = self.plan, self.keep["parameter_bytes"]
        of_dense, of_expert = (self.dense_shards, self.expert_shards) if p.zero_stage >= 3 else (1, 1)
        held = dense / of_dense + expert / of_expert
        if self.stored >= self.b:
            return held * size
        matrices = self.model.vocab_size * self.h / p.tp / of_dense
        if p.pp == 1 and not self.model.tie_word_embeddings:
            matrices *= 2
        return (held - matrices) * (self.stored + self.trained * size) + matrices * size

    @property
    def _narrow(self) -> float:
        """Bytes of a value that a product reads."""
        return min(self.b, self.operand)

    @property
    def _residual_split(self) -> int:
        return self.plan.tp if self.keep["residual_split"] else self.split

    def _scores(self) -> float:
        """Bytes of the scores that a layer without FlashAttention keeps."""
        if self.training.flash_attention:
            return 0.0
        scores = self.tokens * self.heads / self.plan.tp * self.training.seq_len
        return 5 * scores * self.kinds.attention

    def _inner_values(self) -> float:
        """Bytes per element of a feed-forward part's inner width."""
        return self.up * self.b + self._narrow

    def _layer_activations(self) -> float:
        """All that one layer and micro-batch needs for backward, in bytes."""
        m, p, k, narrow = self.model, self.plan, self.keep, self._narrow
        hidden = (k["hidden_kept"] * self.b + k["hidden_cast_kept"] * narrow) * self.h / self._residual_split
        if p.sequence_parallel:  # kept as gathered over the tensor ranks
            hidden += k["gathered_inputs_kept"] * narrow * self.h
        qkv = self.heads * self.d_qk + self.kv_heads * (self.d_qk + self.d_v)
        mixing = (qkv * self.b + self.heads * self.d_v * (self.b + narrow)) * self.kinds.attention
        if self.mixer:
            kept = self.mixer.columns * self.b + self.mixer.rows * (self.b + narrow)
            mixing += self.kinds.mixed * kept
        width = self.dense * m.intermediate_size + self.moe * self.shared
        routed = self._inner_values() * m.moe_intermediate_size + k["routed_kept"] * narrow * self.expert_h
        routed *= self.moe * m.num_experts_per_tok
        divided = mixing + width * self._inner_values() + routed
        return self.tokens * (hidden + divided / p.tp) + self._scores()

    def _kept_activations(self) -> float:
        """Of one layer and micro-batch on average over a stage, after recomputation."""
        k, everything = self.keep, self._layer_activations()
        inputs = self.tokens * self.h * self.b / self._residual_split
        if self.recompute == "none":
            return everything * k["none_kept"]
        if self.recompute == "full":
            whole = everything * k["none_kept"]
            return inputs * self.repeated_share + whole * (1 - self.repeated_share)
        if self.modules is not None:
            return max(everything - self._saved_by_modules(self.modules), inputs)
        if not self.training.flash_attention:
            return everything - self._scores()
        return inputs * k["input_kept"] + (everything - inputs) * k["selective_kept"]

    def _saved_by_modules(self, modules: frozenset[str]) -> float:
        """Inner values of the modules that are named, and outputs that only products read."""
        m, narrow = self.model, self._narrow
        routed = self.moe * m.num_experts_per_tok * m.moe_intermediate_size
        divided = 0.0
        if "mlp" in modules:
            divided += self.dense * m.intermediate_size * self._inner_values()
        if modules & {"moe", "shared_experts"}:
            divided += self.moe * self.shared * self._inner_values()
        if "moe" in modules:
            divided += routed * self._inner_values()
        elif "moe_act" in modules:
            divided += routed * narrow
        if "mla_up_proj" in modules and self.latent:
            qkv = self.heads * self.d_qk + self.kv_heads * (self.d_qk + self.d_v)
            divided += qkv * self.b * self.kinds.attention
        saved = self.tokens * divided / self.plan.tp
        if "layernorm" in modules:
            saved += self.tokens * self.keep["hidden_cast_kept"] * narrow * self.h / self._residual_split
        return saved + (self._scores() if "core_attn" in modules else 0.0)
