"""`asap where`: how long 20 clusters take for a 70B, and how often MLPerf's systems are ordered rightly.

A pair is two submissions of one model on different clusters; each is predicted by the plan that ASAP itself
finds for that cluster, precision and batch, and the two are ordered by tokens per second. The calibration has
seen MLPerf's runs under their own plans.
"""

import time
from collections import defaultdict
from itertools import combinations

from research.published import read_runs
from tools.errors import AsapError
from tools.frameworks.start import preset_models
from tools.model.runs import Run
from tools.recommend.where import CandidateCluster, compare_places
from tools.scenario.parse import StatedScenario

DEVICES = ("h100", "h200", "b200", "a100", "mi300x")
COUNTS = (128, 256, 512, 1024)
TRAINING = {"seq_len": 8192, "global_batch_size": 1024, "precision": "bf16", "framework": "megatron-core"}
CLEAR = 1.05
"""Ratio of throughputs from which the order of a pair is no coin toss."""


def main() -> None:
    scenario = StatedScenario.model_validate(
        {
            "model": preset_models()["Llama 3.1 70B"],
            "cluster": {"device": "h100", "num_devices": 64},
            "training": TRAINING,
            "run": {"tokens": 15 * 10**12},
        }
    )
    candidates = [CandidateCluster(devices=f"{count} x {name}") for name in DEVICES for count in COUNTS]
    start = time.process_time()  # other programs on the machine do not count
    places = compare_places(scenario, candidates)
    taken_s = time.process_time() - start
    print(f"{len(places)} clusters x Llama 3.1 70B: {taken_s:.1f} s of a core")
    by_model = defaultdict[str, list[tuple[str, float, float]]](list)
    failed = 0
    for run in read_runs():
        if run.source.startswith("mlperf") and run.measured.step_time_s:
            try:
                by_model[run.scenario.model.name].append(throughputs(run))
            except AsapError:
                failed += 1
    outcomes = [
        (
            max(a[1], b[1]) / min(a[1], b[1]),
            (a[1] > b[1]) == (a[2] > b[2]),
            a[0].split()[0] == b[0].split()[0],
        )
        for systems in by_model.values()
        for a, b in combinations(systems, 2)
        if a[0] != b[0]
    ]
    for name, chosen in (
        ("all", outcomes),
        (f"apart by {CLEAR - 1:.0%} or more", [pair for pair in outcomes if pair[0] >= CLEAR]),
        ("as many devices of another kind", [pair for pair in outcomes if pair[2]]),
    ):
        right = sum(is_right for _, is_right, _ in chosen)
        print(
            f"MLPerf pairs, {name}: {right} of {len(chosen)} in the right order ({right / len(chosen):.1%})"
        )
    print(f"{sum(map(len, by_model.values()))} submissions, {failed} without a feasible plan")


def throughputs(run: Run) -> tuple[str, float, float]:
    """The cluster, and tokens per second measured and predicted for the best plan there."""
    scenario = run.scenario
    stated = StatedScenario.model_validate(
        {
            "model": scenario.model.model_dump(mode="json", exclude_defaults=True),
            "cluster": {"device": scenario.cluster.device, "num_devices": scenario.cluster.num_devices},
            "training": scenario.training.model_dump(mode="json", exclude_none=True),
        }
    )
    count = scenario.cluster.num_devices
    name = f"{count} x {scenario.cluster.device}"
    framework = scenario.training.framework
    place = compare_places(stated, [CandidateCluster(devices=name, framework=framework)])[0]
    if place.prediction is None:
        raise AsapError(place.reason or name)
    tokens = scenario.training.global_batch_size * scenario.training.seq_len
    return name, tokens / (run.measured.step_time_s or 1.0), tokens / place.prediction.step_time_s


if __name__ == "__main__":
    main()
