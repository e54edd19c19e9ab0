"""The names of what a prediction consists of: terms of the step time and parts of the memory.

The one list: `Breakdown` and `Memory` have these fields, and reports, pages and rules read their names here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Bottleneck = Literal["compute", "memory", "communication", "pipeline", "host"]
"""The resource that limits a training step. Predictions, trace diagnoses and the knowledge base share it."""


@dataclass(frozen=True, slots=True)
class TermName:
    """`short` for a legend in a terminal, `label` for figures and tables, `phrase` for sentences."""

    short: str
    label: str
    phrase: str


STEP_TERMS: Mapping[str, TermName] = {
    "compute": TermName("compute", "compute", "compute"),
    "recompute": TermName("recompute", "recomputation", "recomputation"),
    "memory_bound_ops": TermName("memory-bound", "memory-bound operations", "memory-bound operations"),
    "tp_comm_exposed": TermName(
        "tp", "tensor-parallel communication", "exposed tensor-parallel communication"
    ),
    "cp_comm_exposed": TermName(
        "cp", "context-parallel communication", "exposed context-parallel communication"
    ),
    "ep_comm_exposed": TermName("ep", "expert all-to-all", "exposed expert all-to-all"),
    "dp_comm_exposed": TermName("dp", "data-parallel communication", "exposed data-parallel communication"),
    "pp_comm_exposed": TermName("pp", "pipeline transfers", "exposed pipeline transfers"),
    "pipeline_bubble": TermName("bubble", "pipeline bubble", "the pipeline bubble"),
    "optimizer": TermName("optimizer", "optimizer", "the optimizer step"),
    "host_and_other": TermName("host", "host and other", "host and other overhead"),
}
"""Seconds of one step, in the order in which they are shown."""

MEMORY_PARTS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "buffers": "buffers",
    "runtime": "runtime",
}
"""Bytes on the fullest rank, with their labels."""
