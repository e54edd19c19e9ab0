"""A trial's profile in the terms of a prediction's breakdown: what `calibrate` reads beside the step time."""

from pathlib import Path

from tools.errors import InputError
from tools.scenario import Plan
from tools.trace.collectives import align
from tools.trace.folder import profile_folder
from tools.trace.terms import measure_terms


def read_terms(traces: Path, plan: Plan) -> dict[str, float] | None:
    """Seconds a step; nothing where no trace shows a whole step, and where traces cannot be read."""
    try:
        profiles = [one for one in profile_folder(traces).ranks if one.breakdown.total_ns]
    except InputError:  # nothing to read there
        return None
    measured = measure_terms(profiles, align(profiles), plan) if profiles else None
    return measured.terms_s if measured and measured.num_steps else None
