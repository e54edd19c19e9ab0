"""Names of the parts of a step, of memory and of evidence that every format shares."""

from collections.abc import Mapping, Sequence

STEP = {
    "compute": "compute",
    "memory_bound_ops": "memory-bound operations",
    "tp_comm_exposed": "tensor-parallel communication",
    "cp_comm_exposed": "context-parallel communication",
    "ep_comm_exposed": "expert all-to-all",
    "dp_comm_exposed": "data-parallel communication",
    "pp_comm_exposed": "pipeline transfers",
    "pipeline_bubble": "pipeline bubble",
    "optimizer": "optimizer",
    "host_and_other": "host and other",
}
MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "buffers": "buffers",
    "runtime": "runtime",
}
MEASURED = {
    "compute_us": "compute",
    "exposed_communication_us": "exposed communication",
    "memory_us": "copies",
    "idle_us": "idle",
}
EVIDENCE = {
    "profile": "measured",
    "roofline": "roofline",
    "model": "predicted",
    "knowledge": "knowledge",
    "trial": "trial",
}
SHOWN_SHARE = 0.001
"""A part below a thousandth of every bar is not named: it could not be seen."""


def visible_terms(names: Mapping[str, str], parts: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Those of the names whose part is large enough in some bar to be seen."""
    totals = [sum(bar.values()) or 1.0 for bar in parts]
    return {
        key: name
        for key, name in names.items()
        if any(bar[key] / total >= SHOWN_SHARE for bar, total in zip(parts, totals, strict=True))
    }
