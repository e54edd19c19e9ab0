"""A whole run from the time of one step: days, device-hours, cost, and what interruptions take of it."""

import math

from pydantic import Field

from tools.physics.interruptions import checkpoint_interval_s, goodput
from tools.scenario.spec import ClosedModel, Scenario

HOUR_S, DAY_S = 3600.0, 86_400.0
SIZES = {"T": 1e12, "B": 1e9, "M": 1e6}


class RunForecast(ClosedModel):
    """The whole run of a plan: how long it takes and what it costs, in the currency of the price."""

    tokens: int
    steps: int
    days: float
    days_low: float = Field(description="with days_high the 80% interval of the step time")
    days_high: float
    device_hours: float
    cost: float | None = None
    goodput: float | None = Field(
        None, description="share of the time that is progress, if failures are stated"
    )
    checkpoint_interval_s: float | None = Field(
        None, description="work between two checkpoints that loses least"
    )
    one_percent_device_hours: float = Field(description="what 1% of the step time is worth")
    one_percent_cost: float | None = None

    @property
    def summary(self) -> str:
        """In one line."""
        cost = f", cost {self.cost:,.0f}" if self.cost is not None else ""
        kept = ""
        if self.goodput is not None and self.checkpoint_interval_s is not None:
            interval = f"{self.checkpoint_interval_s / 60:.3g} minutes"
            kept = f"; {self.goodput:.1%} of it is progress, with a checkpoint every {interval}"
        saved = f"{self.one_percent_cost:,.0f}" if self.one_percent_cost is not None else ""
        worth = saved or f"{self.one_percent_device_hours:,.0f} device-hours"
        unit = next((name for name, size in SIZES.items() if self.tokens >= size), "")
        tokens = f"{self.tokens / SIZES.get(unit, 1):g}{unit}"
        return (
            f"{self.days:,.1f} days ({self.days_low:,.1f} to {self.days_high:,.1f}) to {tokens} "
            f"tokens, {self.device_hours:,.0f} device-hours{cost}{kept}; 1% is worth {worth}"
        )


def forecast(scenario: Scenario, step_s: float, low_s: float, high_s: float) -> RunForecast | None:
    """What the scenario's `run` asks for; None without one, or if failures leave no progress."""
    run, training, devices = scenario.run, scenario.training, scenario.cluster.num_devices
    if run is None:
        return None
    steps = math.ceil(run.tokens / (training.global_batch_size * training.seq_len))
    interval_s = kept = None
    if run.device_hours_between_failures:
        mean_s = run.device_hours_between_failures * HOUR_S / devices
        interval_s = checkpoint_interval_s(run.checkpoint_s, mean_s)
        kept = goodput(interval_s, run.checkpoint_s, run.restart_s, mean_s)
        if not kept:
            return None
    days, low, high = (steps * each / (kept or 1.0) / DAY_S for each in (step_s, low_s, high_s))
    device_hours, price = days * 24 * devices, run.price_per_device_hour
    cost = device_hours * price if price else None
    return RunForecast(
        tokens=run.tokens,
        steps=steps,
        days=days,
        days_low=low,
        days_high=high,
        device_hours=device_hours,
        cost=cost,
        goodput=kept,
        checkpoint_interval_s=interval_s,
        one_percent_device_hours=device_hours / 100,
        one_percent_cost=cost and cost / 100,
    )
