"""Names of the parts of a step, of memory and of evidence that every format shares."""

from collections.abc import Mapping, Sequence

from tools.cost.terms import MEMORY_PARTS, STEP_TERMS

STEP = {name: term.label for name, term in STEP_TERMS.items()}
MEMORY = dict(MEMORY_PARTS)
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
