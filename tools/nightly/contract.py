"""Which nights may be compared: those that train the same model in the same way on as many devices.

The plan is not part of it: that a change of plan made the step slower is exactly what is to be found.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tools.scenario import Scenario


def contract_of(scenario: Scenario) -> str:
    """A digest, equal where nights are comparable."""
    parts = {
        "model": scenario.model.model_dump(mode="json", exclude={"name"}),
        "training": scenario.training.model_dump(mode="json"),
        "device": scenario.cluster.device,
        "num_devices": scenario.cluster.num_devices,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def as_run(described: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The workload with what the job says of its plan; a cold start takes the job's plan as a whole."""
    if not plan:
        return dict(described)
    return {**described, "plan": {**(described.get("plan") or {}), **plan}}
