"""The workload that pages begin with where nobody has named one: the API's example, with a plan that fits."""

from typing import Any

from service.api.schemas import scenario

_CHANGED = {"tp": 8, "pp": 4, "vpp": 1, "dp": 2, "dp_shard": 2, "recompute": "full"}
EXAMPLE: dict[str, Any] = {**scenario.EXAMPLE, "plan": {**scenario.PLAN, **_CHANGED}}
