"""Whether a workload can be found and read, without keeping anything."""

from pathlib import Path
from typing import Any

from graph.request import parse_request
from service.nightly.config import scenario_of
from service.nightly.definition import Workload
from service.nightly.sources import find_sources
from tools.errors import AsapError, InputError
from tools.nightly.metrics_night import read_metrics_night
from tools.nightly.profile_night import read_profile_night


def check_workload(workload: Workload, base: Path) -> dict[str, Any]:
    """The newest profile, or the reason why there is none."""
    try:
        described = scenario_of(workload, base)
        parse_request(described)
        newest = find_newest(workload, base)
        if workload.metrics:
            night = read_metrics_night(described, newest)
        else:
            night, _ = read_profile_night(described, newest)
    except AsapError as error:
        return {"name": workload.name, "newest": None, "step_time_s": None, "reason": str(error)}
    return {
        "name": workload.name,
        "newest": str(newest),
        "step_time_s": night.step_time_s,
        "reason": None,
    }


def find_newest(workload: Workload, base: Path) -> Path:
    if workload.uploads:
        raise InputError(
            "uploads", workload.uploads, "allowed in schedules of 'asap serve'; here give traces"
        )
    return find_sources(workload, base)[-1].path
