"""Predictions, for one scenario or many."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class PredictionPublic(BaseModel):
    """What a step takes under a plan; the parts add up to the whole."""

    model_config = ConfigDict(extra="allow")

    id: str | int | float | None
    fits: bool
    step_time_s: float
    step_time_low_s: float = Field(description="low end of an 80% interval")
    step_time_high_s: float
    parameters: int = Field(description="exact count of the model")
    active_parameters: int = Field(description="those that one token uses; fewer with experts")
    tokens_per_s_per_device: float
    model_tflops_per_device: float
    mfu: float
    peak_memory_gib: float
    bottleneck: str
    breakdown_s: dict[str, float]
    memory_gib: dict[str, float]


class RefusalPublic(BaseModel):
    """In the place of a prediction, for a scenario of a batch that is wrong."""

    id: Any = None
    error: str
    field: str
