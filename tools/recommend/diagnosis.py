"""What limits today's plan, with the numbers, and whether sharding can help."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tools.cost.predict import BOTTLENECKS, Prediction
from tools.recommend.span import alike
from tools.recommend.words import breakdown, largest, memory_gib, seconds
from tools.recommend.workload import Workload

STEP = "step_time_s"
COMPETING_SHARE = 0.5
DOES_NOT_FIT = "the plan needs more memory than a device has"
OTHER_LEVERS = {
    "compute": "kernels and precision: the step is mostly arithmetic, and its rate is what is left to raise",
    "memory": "fused kernels and a larger micro-batch: memory-bound operations take the time",
    "communication": "the network: faster links, or communication that overlaps better",
    "pipeline": "a larger global batch: the bubble shrinks with the number of micro-batches",
    "host": "the host: data loading, launch overhead, CUDA graphs or compilation",
}


def diagnose(workload: Workload, prediction: Prediction) -> dict[str, object]:
    parts, whole = breakdown(prediction), seconds(prediction)
    kind = str(prediction["bottleneck"])
    shares = {name: sum(parts[term] for term in terms) / whole for name, terms in BOTTLENECKS.items()}
    evidence = [
        {"kind": "model", "ref": "breakdown_s", "says": largest(prediction)},
        {
            "kind": "model",
            "ref": "memory_gib",
            "says": f"peak memory {memory_gib(prediction):.1f} of {workload.capacity_gib:.1f} GiB",
        },
    ]
    return {"bottleneck": kind, "share": shares[kind], "shares": shares, "evidence": evidence, "lever": None}


def with_profile(
    diagnosis: dict[str, object], profile: Mapping[str, Any], prediction: Prediction
) -> dict[str, object]:
    """Sets what the traces show beside what the model says; the measured bottleneck counts."""
    measured = {**profile["diagnosis"], STEP: profile.get(STEP)}
    profiled = [
        {"kind": "profile", "ref": str(one["ref"]), "says": str(one["says"])} for one in measured["evidence"]
    ]
    evidence = [
        *_step_evidence(profile.get(STEP), seconds(prediction)),
        *profiled,
        *cast("list[dict[str, str]]", diagnosis["evidence"]),
    ]
    return {**diagnosis, "bottleneck": measured["bottleneck"], "evidence": evidence, "profile": measured}


def _step_evidence(took_s: float | None, predicted_s: float) -> list[dict[str, str]]:
    """None where the traces mark no steps."""
    if not took_s:
        return []
    took, predicted = alike(took_s, predicted_s)
    off = f"{abs(predicted_s / took_s - 1):.0%} {'more' if predicted_s > took_s else 'less'}"
    return [
        {
            "kind": "profile",
            "ref": STEP,
            "says": f"a step takes {took} s, {predicted} s were predicted: {off}",
        }
    ]


def competing(diagnosis: Mapping[str, Any]) -> list[dict[str, str]]:
    """Bottlenecks that deserve a look, the one that counts by default first.

    A measured one outranks any computed one. Of the computed ones those count whose share of the step is at
    least half the largest: what is smaller cannot be the main thing to change.
    """
    shares: Mapping[str, float] = diagnosis["shares"]
    enough = COMPETING_SHARE * max(shares.values())
    order = sorted((kind for kind in shares if shares[kind] >= enough), key=lambda kind: -shares[kind])
    found = [
        {"bottleneck": kind, "source": "model", "says": f"{shares[kind]:.0%} of the predicted step"}
        for kind in order
    ]
    measured = diagnosis.get("profile")
    if measured:
        says = f"severity {measured['severity']:.0%}, confidence {measured['confidence']:.0%}"
        found.insert(0, {"bottleneck": measured["bottleneck"], "source": "profile", "says": says})
    elif diagnosis["bottleneck"] != order[0]:
        found.insert(0, {"bottleneck": diagnosis["bottleneck"], "source": "model", "says": DOES_NOT_FIT})
    return found


def with_lever(
    diagnosis: dict[str, object], proposals: Sequence[dict[str, object]], prediction: Prediction
) -> dict[str, object]:
    """Says so where nothing beats today's plan beyond the error of a comparison."""
    gains = [float(str(p["speedup_low"])) for p in proposals if p["speedup_low"] is not None]
    if not prediction["fits"] or not gains or max(gains) > 1.0:
        return diagnosis
    where = OTHER_LEVERS[str(diagnosis["bottleneck"])]
    verdict = "Sharding is not your lever: no plan beats today's beyond the error of a comparison."
    return {**diagnosis, "lever": f"{verdict} Look at {where}."}
