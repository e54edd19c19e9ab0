"""Whether traces are of the scenario's job: every contradiction is named, what is not recorded is none."""

from typing import Any

import pytest

from benchmarks.faults import GPT
from tools.scenario import parse_scenario
from tools.trace.match import TraceFacts, match_scenario

SCENARIO = parse_scenario({**GPT})
FACTS = TraceFacts(
    devices=["NVIDIA A100-SXM4-80GB"],
    on_host=False,
    world_size=8,
    ranks_seen=8,
    groups={"tp": [8]},
    precision="fp16",
    widths=[512, 1536, 2048, 4096, 6400],
    step_time_s=0.62,
)
"""Of a GPT with hidden size 4096, split 8 ways."""


def changed(**facts: Any) -> TraceFacts:  # noqa: ANN401 - fields of the facts
    return FACTS.model_copy(update=facts)


def test_traces_of_the_job_itself_agree_in_everything() -> None:
    match = match_scenario(FACTS, SCENARIO, 0.44)
    assert match.agrees
    assert match.checked == ["device", "ranks", "groups", "precision", "shapes", "step time"]
    assert match.finding(0.62) is None


@pytest.mark.parametrize(
    ("facts", "about", "words"),
    [
        (changed(devices=["NVIDIA H100 80GB HBM3"]), "device", "NVIDIA H100 80GB HBM3"),
        (changed(devices=["NVIDIA A100-SXM4-40GB"]), "device", "40GB"),
        (changed(devices=["AMD Radeon Graphics"]), "device", "AMD"),
        (changed(devices=[], on_host=True), "device", "no device events"),
        (changed(world_size=64), "ranks", "64 ranks, the scenario 8 devices"),
        (changed(world_size=None, ranks_seen=16), "ranks", "16 ranks"),
        (changed(groups={"tp": [4]}), "groups", "tp groups of 4, the scenario tp 8"),
        (changed(groups={"pp": [4]}), "groups", "pp groups of 4"),
        (changed(precision="bf16"), "precision", "bf16, the scenario fp16"),
        (changed(widths=[768, 1024, 3072]), "shapes", "hidden_size 4096"),
        (changed(widths=[1024, 3072, 4096, 8192]), "shapes", "split 4 ways, the scenario tp 8"),
        (changed(step_time_s=22.0), "step time", "22 s per step, the scenario 0.44 s predicted"),
    ],
)
def test_a_contradiction_says_what_both_have(facts: TraceFacts, about: str, words: str) -> None:
    match = match_scenario(facts, SCENARIO, 0.44)
    assert [found.about for found in match.contradictions] == [about]
    assert words in match.contradictions[0].message
    finding = match.finding(0.62)
    assert finding is not None
    assert finding.cause == "trace_mismatch"
    assert words in finding.summary


def test_what_a_trace_does_not_record_contradicts_nothing() -> None:
    nothing = changed(
        devices=[], world_size=None, ranks_seen=1, groups={}, precision=None, widths=[], step_time_s=None
    )
    match = match_scenario(nothing, SCENARIO, 0.44)
    assert (match.agrees, match.checked) == (True, [])
    # a device of unknown memory may be any of its name
    assert match_scenario(changed(devices=["NVIDIA A100-PG509-200"]), SCENARIO, 0.44).agrees


@pytest.mark.parametrize(
    ("step_s", "compute_s", "agrees"),
    [(22.0, 0.4, True), (22.0, 20.0, False), (0.05, 0.04, False)],
    ids=["a slow network", "more work", "less work"],
)
def test_a_longer_step_is_another_jobs_only_if_it_computes_longer(
    step_s: float, compute_s: float, agrees: bool
) -> None:
    """A real network at a fifth of its rate was refused as a trace of another job."""
    match = match_scenario(changed(step_time_s=step_s, compute_s=compute_s), SCENARIO, 0.44)
    assert match.agrees == agrees
