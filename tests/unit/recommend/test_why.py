"""Each proposal says why it has its slot; today's plan stays if nothing beats it beyond the error."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.graph.cases import run
from tests.unit.recommend.cases import (
    MIXTRAL,
    TOO_LARGE,
    Raw,
    llama,
    plan_of,
    recommendation,
    workload_for,
)
from tools.model.observations import with_seen
from tools.model.runs import Measured, Run
from tools.recommend.measured import memory_questions
from tools.recommend.report import Evidence, Recommendation
from tools.recommend.why import WEIGHTS, why, why_not_fastest


def kept() -> tuple[Raw, Recommendation]:
    """A job that runs what ASAP would propose, with its settings."""
    best = recommendation(llama()).proposals[0]
    raw = llama(plan=best.plan.model_dump(mode="json", exclude_none=True))
    raw["training"] = {**raw["training"], **best.settings}
    return raw, recommendation(raw)


@pytest.mark.parametrize("raw", [llama(), llama(plan=None), MIXTRAL, kept()[0]], ids=str)
def test_every_slot_has_its_reason_in_twenty_words_with_a_number(raw: Raw) -> None:
    proposals = recommendation(raw).proposals
    for proposal in proposals:
        assert 0 < len(proposal.why.split()) <= 20
        assert any(character.isdigit() for character in proposal.why)
    first, fastest = proposals[0], min(proposals, key=lambda entry: entry.prediction.step_time_s)
    assert fastest.why in why_not_fastest(proposals)
    gap = first.prediction.step_time_s / fastest.prediction.step_time_s - 1
    assert f"{gap:.1%} behind the fastest" in first.why or first is fastest or not first.changes


def test_the_long_reason_names_what_speaks_for_the_first_alone_each_once() -> None:
    first, second, *_ = recommendation(llama()).proposals
    shared, own = (
        Evidence(kind="knowledge", ref=f"case:{name}", says=f"It {name}.") for name in ("is", "ran")
    )
    slower = first.prediction.model_copy(update={"step_time_s": 2 * second.prediction.step_time_s})
    told = why_not_fastest(
        [
            first.model_copy(update={"prediction": slower, "evidence": [shared, own]}),
            second.model_copy(update={"evidence": [shared]}),
        ]
    )
    assert "It ran. Proposal 2:" in told
    assert "It is" not in told


@given(
    steps=st.lists(st.floats(0.9, 100.0), min_size=1, max_size=3),
    memory=st.lists(st.floats(1.0, 200.0), min_size=3, max_size=3),
    chances=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
    kind=st.sampled_from(["", *WEIGHTS]),
    has_today=st.booleans(),
)
def test_no_reason_is_longer_than_twenty_words_whatever_the_figures(
    steps: list[float], memory: list[float], chances: list[float], kind: str, has_today: bool
) -> None:
    start = recommendation(llama()).proposals[0]
    proposals = [
        start.model_copy(
            update={
                "speedup": 30.0 / step_s if has_today else None,
                "speedup_high": 33.0 / step_s if has_today else None,
                "evidence": [Evidence(kind="knowledge", ref=f"{kind}:a", says="checked")]
                if not place
                else [],
                "prediction": start.prediction.model_copy(
                    update={"step_time_s": step_s, "peak_memory_gib": gib, "fit_probability": chance}
                ),
            }
        )
        for place, (step_s, gib, chance) in enumerate(zip(steps, memory, chances, strict=False))
    ]
    reasons = [why(entry, proposals) for entry in proposals]
    assert all(0 < len(reason.split()) <= 20 for reason in reasons), reasons


def test_the_first_names_what_put_it_before_a_faster_plan() -> None:
    first, *others = recommendation(llama()).proposals
    faster = others[0].prediction.model_copy(
        update={"step_time_s": first.prediction.step_time_s / 1.02, "fit_probability": 0.9}
    )
    second = others[0].model_copy(update={"prediction": faster, "evidence": []})
    assert why(first.model_copy(update={"evidence": []}), [first, second]).startswith("2.0% behind")
    bare = first.model_copy(update={"evidence": []})
    assert why(bare, [bare, second]).endswith("; practice decides.")
    confirmed = Evidence(kind="knowledge", ref="case:a", says="checked")
    backed = first.model_copy(update={"evidence": [confirmed]})
    assert why(backed, [backed, second]).endswith("; a confirmed case decides.")
    risky = second.model_copy(update={"prediction": faster.model_copy(update={"fit_probability": 0.5})})
    assert why(bare, [bare, risky]).endswith("; safety decides.")


def test_nothing_beats_what_runs_so_it_stays_and_the_others_say_what_they_would_need() -> None:
    raw, result = kept()
    first, *others = result.proposals
    assert (first.role, first.changes, first.settings, first.speedup) == ("recommended", [], {}, 1.0)
    assert first.why.startswith("Keep today's plan: the best other is predicted at ")
    assert others
    for other in others:
        assert other.speedup
        assert math.log(other.speedup) <= workload_for(raw).pair_error
        assert "to win" in other.why
        assert other.role == "alternative" or other.speedup >= 1.0


def test_a_plan_that_runs_though_it_does_not_fit_is_asked_about() -> None:
    report = run(llama(plan=TOO_LARGE))[0].report
    assert report is not None
    assert report.baseline is not None
    assert not report.baseline.fits
    (question,) = [entry for entry in report.questions if entry.field == "plan"]
    assert f"{report.baseline.peak_memory_gib:.1f} GiB" in question.text
    assert report.proposals[0].changes


def test_a_plan_that_runs_is_priced_with_the_memory_it_evidently_has_and_nothing_slower_is_sold() -> None:
    report = run(llama(plan=TOO_LARGE, notes="the step takes 15.9 s"))[0].report
    assert report is not None
    assert report.baseline is not None
    assert report.headline is not None
    capacity_gib = workload_for(llama()).capacity_gib
    assert report.baseline.fits
    assert report.baseline.peak_memory_gib == pytest.approx(capacity_gib)
    assert sum(report.baseline.memory_gib.values()) == pytest.approx(capacity_gib)
    assert report.verification.holds
    (question,) = [entry for entry in report.questions if entry.field == "plan"]
    assert f"priced with {capacity_gib:.1f} GiB" in question.text
    assert report.headline.stance == "keep"
    assert report.headline.gain is None
    assert report.proposals[0].changes == []


def test_a_measured_peak_is_the_memory_of_a_plan_that_should_not_fit_and_no_other_plans() -> None:
    raw = llama(plan=TOO_LARGE)
    start = workload_for(raw)
    today = plan_of(raw)
    other = today.model_copy(update={"zero_stage": 1, "dp_shard": 2})
    measured = Measured(step_time_s=20.0, peak_memory_gib=70.0)
    run_here = Run(scenario=start.with_plan(today), measured=measured, id="a")
    workload = replace(start, calibration=with_seen(start.calibration, [run_here]))
    assert workload.predict([today])[0].peak_memory_gib == pytest.approx(70.0)
    assert workload.predict([other])[0].peak_memory_gib == start.predict([other])[0].peak_memory_gib
    assert memory_questions(workload, today)
    assert memory_questions(workload, recommendation(llama()).proposals[0].plan) == []


def test_a_recommendation_asks_too_and_counts_no_gain_over_a_plan_that_cannot_run() -> None:
    result = recommendation(llama(plan=TOO_LARGE))
    assert result.questions
    assert all(entry.speedup is None and entry.two_runs is None for entry in result.proposals)
    assert recommendation(llama()).questions == []


def test_each_proposal_has_its_step_if_things_are_worse_and_one_is_the_most_robust() -> None:
    proposals = recommendation(llama()).proposals
    for proposal in proposals:
        told = proposal.robustness
        assert told is not None
        assert told.expected_s == proposal.prediction.step_time_s
        assert min(told.worst_s, told.half_network_s, told.slow_node_s) >= told.expected_s
        assert 0 < told.fits_less_memory <= proposal.prediction.fit_probability
    assert sum(reason.ref == "robust" for entry in proposals for reason in entry.evidence) == 1
