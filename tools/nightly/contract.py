"""Which nights may be compared: those that train the same model in the same way on as many devices.

The plan is not part of it: that a change of plan made the step slower is exactly what is to be found.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tools.scenario import Scenario
from tools.scenario.fields import Record
from tools.scenario.spec import TRAINING_OPTIONS

ROUTING_GROUPS = ("n_group", "topk_group")


def contract_of(scenario: Scenario) -> str:
    """A digest, equal where nights are comparable.

    Optional fields that are not stated are left out, so that stored digests stay valid when one is added.
    """
    model, training = scenario.model, scenario.training
    parts = {
        "model": model.model_dump(mode="json", exclude={"name", *_unstated(model, ROUTING_GROUPS)}),
        "training": training.model_dump(mode="json", exclude=_unstated(training, TRAINING_OPTIONS)),
        "device": scenario.cluster.device,
        "num_devices": scenario.cluster.num_devices,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _unstated(part: Record, names: Sequence[str]) -> set[str]:
    return {name for name in names if getattr(part, name) == type(part).model_fields[name].default}


def as_run(described: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The workload with what the job says of its plan; a cold start takes the job's plan as a whole."""
    if not plan:
        return dict(described)
    return {**described, "plan": {**(described.get("plan") or {}), **plan}}
