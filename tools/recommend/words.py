"""Predictions and plans as text: what changed, from what to what, with matching decimals within a range."""

import math
from collections.abc import Mapping

from tools.cost.predict import Prediction
from tools.cost.terms import STEP_TERMS
from tools.scenario import Plan

DIGITS = 3


def format_same_decimals(*values: float) -> list[str]:
    """Three digits of the largest, and as many decimals of the others: 0.0469 beside 2 is 0.05."""
    largest = max(map(abs, values))
    decimals = max(DIGITS - 1 - math.floor(math.log10(largest)), 0) if largest else 0
    return [f"{value:,.{decimals}f}" for value in values]


def span(start: float, end: float) -> str:
    return " to ".join(format_same_decimals(start, end))


TERMS = {name: term.phrase for name, term in STEP_TERMS.items()}
SHOWN_SHARE = 0.005


def short(plan: Plan) -> str:
    """The degrees above one, sharding, micro-batch and recomputation."""
    degrees = {name: getattr(plan, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")}
    words = [f"{name} {value}" for name, value in degrees.items() if value > 1]
    words += [plan.sharding_text, f"micro-batch {plan.micro_batch_size}", f"recompute {plan.recompute}"]
    if plan.recompute_layers is not None:
        words[-1] += f" of {plan.recompute_layers} layers per stage"
    if plan.recompute_modules is not None:
        words[-1] += f" of {' and '.join(plan.recompute_modules)}"
    return ", ".join(words)


def difference(before: Prediction, after: Prediction) -> str:
    """Which terms shrink and which grow, largest first; those below half a percent are left out."""
    old, new = before.breakdown_s, after.breakdown_s
    by_size = sorted(TERMS, key=lambda term: -abs(new[term] - old[term]))
    moved = [term for term in by_size if abs(new[term] - old[term]) > SHOWN_SHARE * before.step_time_s][:4]
    shrinking = [_from_to(term, old, new) for term in moved if new[term] < old[term]]
    growing = [_from_to(term, old, new) for term in moved if new[term] > old[term]]
    parts = (
        [f"{' and '.join(shrinking)} shrink" if len(shrinking) > 1 else f"{shrinking[0]} shrinks"]
        if shrinking
        else []
    )
    parts += (
        [f"{' and '.join(growing)} grow" if len(growing) > 1 else f"{growing[0]} grows"] if growing else []
    )
    return "; ".join(parts) or "no term moves by more than half a percent of the step"


def _from_to(term: str, old: Mapping[str, float], new: Mapping[str, float]) -> str:
    return f"{TERMS[term]} ({span(old[term], new[term])} s)"


def largest(prediction: Prediction, count: int = 3) -> str:
    """The largest terms with their share of the step."""
    parts, whole = prediction.breakdown_s, prediction.step_time_s
    order = sorted(parts, key=lambda term: -parts[term])[:count]
    return ", ".join(f"{TERMS[term]} {parts[term] / whole:.0%}" for term in order)
