"""What limits today's plan, with numbers, from the prediction or from traces, and whether sharding can help.

Options that change numerics are named here and never proposed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tools.cost.predict import BOTTLENECKS, Prediction, predict
from tools.errors import InputError
from tools.recommend.words import alike, largest
from tools.recommend.workload import Workload
from tools.scenario import Plan, TrainingSpec
from tools.trace.report import analyse_folder

LOWER = ("fp8", "mxfp8", "nvfp4")


def beyond_contract(workload: Workload, winner: Plan, best: Prediction) -> list[dict[str, object]]:
    """Tokens a second of the winning plan under lower precision or twice the batch, over today's contract."""
    training, peaks = workload.scenario.training, workload.device.peak_flops
    options: list[tuple[str, dict[str, object]]] = [
        (f"precision {name}", {"precision": name})
        for name in LOWER
        if peaks.get(name, 0.0) > peaks[training.precision]
    ]
    options.append(("twice the global batch", {"global_batch_size": training.global_batch_size * 2}))
    return [_lever(workload, winner, best, name, update) for name, update in options]


def _lever(
    workload: Workload, winner: Plan, best: Prediction, name: str, update: dict[str, object]
) -> dict[str, object]:
    training: TrainingSpec = workload.scenario.training.model_copy(update=update)
    scenario = workload.with_plan(winner).model_copy(update={"training": training})
    prediction = predict([scenario], workload.calibration)[0]
    grown = training.global_batch_size / workload.scenario.training.global_batch_size
    ratio = best.step_time_s * grown / prediction.step_time_s
    return {
        "lever": name,
        "throughput_ratio": ratio,
        "fits": prediction.fits,
        "says": f"{name} would give {ratio:.2f}x the tokens a second, but changes the training itself",
    }


def read_profile(folder: str) -> dict[str, Any]:
    """Analyses the traces; a folder without a readable one is the caller's mistake."""
    try:
        analysed = analyse_folder(Path(folder))
    except InputError as error:
        raise InputError("traces", error.given, error.allowed) from None
    profile = analysed.summary()
    if profile is None:
        first = analysed.report.unreadable[0]
        raise InputError("traces", first.file, f"no trace of the folder can be read; {first.reason}")
    return profile.model_dump()


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
    parts, whole = prediction.breakdown_s, prediction.step_time_s
    kind = prediction.bottleneck
    shares = {name: sum(parts[term] for term in terms) / whole for name, terms in BOTTLENECKS.items()}
    evidence = [
        {"kind": "model", "ref": "breakdown_s", "says": largest(prediction)},
        {
            "kind": "model",
            "ref": "memory_gib",
            "says": f"peak memory {prediction.peak_memory_gib:.1f} of {workload.capacity_gib:.1f} GiB",
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
        *_step_evidence(profile.get(STEP), prediction.step_time_s),
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
    if not prediction.fits or not gains or max(gains) > 1.0:
        return diagnosis
    where = OTHER_LEVERS[str(diagnosis["bottleneck"])]
    verdict = "Sharding is not your lever: no plan beats today's beyond the error of a comparison."
    return {**diagnosis, "lever": f"{verdict} Look at {where}."}
