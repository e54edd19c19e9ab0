"""Levers beyond the measurement contract: they change numerics, so they are named, never proposed."""

from tools.cost.predict import Prediction, predict
from tools.recommend.words import seconds
from tools.recommend.workload import Workload
from tools.scenario import Plan, TrainingSpec

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
    ratio = seconds(best) * grown / seconds(prediction)
    return {
        "lever": name,
        "throughput_ratio": ratio,
        "fits": prediction["fits"],
        "says": f"{name} would give {ratio:.2f}x the tokens a second, but changes the training itself",
    }
