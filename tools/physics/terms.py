"""The names of what a prediction consists of: terms of the step time and parts of the memory.

The one list: `StepTerms` and `Memory` have these fields, and reports, pages and rules read their names here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Bottleneck = Literal["compute", "memory", "communication", "pipeline", "host"]
"""The resource that limits a training step. Predictions, trace diagnoses and the knowledge base share it."""

MEMORY_PARTS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "buffers": "buffers",
    "runtime": "runtime",
}
"""Bytes on the fullest rank, with their labels."""


@dataclass(frozen=True, slots=True)
class TermName:
    """`short` for a legend in a terminal, `label` for figures and tables, `phrase` for sentences."""

    bottleneck: Bottleneck
    """What limits the step if terms of this kind take most of it."""
    short: str
    label: str
    phrase: str


STEP_TERMS: Mapping[str, TermName] = {
    "compute": TermName("compute", "compute", "compute", "compute"),
    "recompute": TermName("compute", "recompute", "recomputation", "recomputation"),
    "memory_bound_ops": TermName(
        "memory", "memory-bound", "memory-bound operations", "memory-bound operations"
    ),
    "tp_comm_exposed": TermName(
        "communication", "tp", "tensor-parallel communication", "exposed tensor-parallel communication"
    ),
    "cp_comm_exposed": TermName(
        "communication", "cp", "context-parallel communication", "exposed context-parallel communication"
    ),
    "ep_comm_exposed": TermName("communication", "ep", "expert all-to-all", "exposed expert all-to-all"),
    "dp_comm_exposed": TermName(
        "communication", "dp", "data-parallel communication", "exposed data-parallel communication"
    ),
    "pp_comm_exposed": TermName("communication", "pp", "pipeline transfers", "exposed pipeline transfers"),
    "pipeline_bubble": TermName("pipeline", "bubble", "pipeline bubble", "the pipeline bubble"),
    "optimizer": TermName("memory", "optimizer", "optimizer", "the optimizer step"),
    "host_and_other": TermName("host", "host", "host and other", "host and other overhead"),
}
"""Seconds of one step, in the order in which they are shown."""
BOTTLENECKS: Mapping[Bottleneck, list[str]] = {
    kind: [name for name, term in STEP_TERMS.items() if term.bottleneck == kind]
    for kind in get_args(Bottleneck)
}
"""The terms of each kind."""
