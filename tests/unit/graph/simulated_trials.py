"""A cluster that answers at once: what each plan takes is a rule of the test's, and every order is kept."""

from collections.abc import Callable
from typing import Any

from tools.scenario import Scenario
from tools.trials.order import TrialObserver, TrialOrder, TrialProgress, TrialResult

Data = dict[str, Any]
FINGERPRINT = {"model": "small", "precision": "bf16", "nodes": {"n1": 8}}
LOSSES = [10.0, 9.5, 9.1]


class SimulatedTrials:
    """`takes` gives a plan's step time, or a whole outcome where it does not run."""

    def __init__(self, takes: Callable[[Data], float | Data], device_hours: float = 0.1) -> None:
        self.takes, self.device_hours = takes, device_hours
        self.orders: list[TrialOrder] = []

    def check(self, scenario: Scenario, template: str | None = None) -> None:
        """Runs everything."""

    def run(self, order: TrialOrder, observer: TrialObserver) -> TrialResult:
        self.orders.append(order)
        observer.emit(TrialProgress("launched", order.key))
        outcome = self.takes(order.plan.model_dump())
        common = {
            "key": order.key, "template": "simulated", "runs": [order.key], "traces": None, "failure": None,
            "device_hours": self.device_hours, "seconds": 1.0,
        }  # fmt: skip
        own = measured(outcome) if isinstance(outcome, float) else outcome
        return TrialResult.model_validate({**common, **own})


def measured(step_time_s: float, **changed: object) -> Data:
    """What a runner returns from a quiet cluster."""
    result: Data = {
        "status": "measured", "step_time_s": step_time_s, "noise": 0.004, "uncertainty": 0.005,
        "interval_s": [step_time_s * 0.995, step_time_s * 1.005], "confidence": 0.96, "steps": 20,
        "peak_memory_bytes": 2**30, "nodes": ["n1"], "losses": LOSSES, "fingerprint": FINGERPRINT,
        "terms": None,
    }  # fmt: skip
    return {**result, **changed}


def failed(kind: str, evidence: str = "") -> Data:
    return {"status": "failed", "failure": {"kind": kind, "confidence": 0.9, "evidence": [evidence]}}
