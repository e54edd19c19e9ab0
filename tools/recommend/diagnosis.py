"""What limits today's plan, with numbers, from the prediction or from traces, and whether sharding can help.

Options that change numerics are named here and never proposed.
"""

from collections.abc import Sequence
from pathlib import Path

from tools.cost.predict import BOTTLENECKS, Prediction, predict
from tools.cost.terms import Bottleneck
from tools.errors import InputError
from tools.recommend.measured import differing_terms
from tools.recommend.proposal import model_evidence
from tools.recommend.report import Diagnosis, Evidence, NumericsOption, Proposal, Recalibration
from tools.recommend.words import format_same_decimals
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario, TrainingSpec
from tools.trace.compare import check_prediction
from tools.trace.isolate import Check
from tools.trace.match import match_scenario, with_match
from tools.trace.report import Profile, TraceAnalysis, analyse_folder

LOWER = ("fp8", "mxfp8", "nvfp4")


def numerics_changing_options(workload: Workload, winner: Plan, best: Prediction) -> list[NumericsOption]:
    """Tokens per second of the winning plan at lower precision or twice the batch, over today's."""
    training, peaks = workload.scenario.training, workload.device.peak_flops
    options = [
        _option(workload, winner, best, f"precision {name}", training.model_copy(update={"precision": name}))
        for name in LOWER
        if peaks.get(name, 0.0) > peaks[training.precision]
    ]
    twice = training.model_copy(update={"global_batch_size": training.global_batch_size * 2})
    return [*options, _option(workload, winner, best, "twice the global batch", twice)]


def _option(
    workload: Workload, winner: Plan, best: Prediction, name: str, training: TrainingSpec
) -> NumericsOption:
    scenario = workload.with_plan(winner).model_copy(update={"training": training})
    prediction = predict([scenario], workload.calibration)[0]
    grown = training.global_batch_size / workload.scenario.training.global_batch_size
    ratio = best.step_time_s * grown / prediction.step_time_s
    says = f"{name} would give {ratio:.2f}x the tokens per second, but changes the training itself"
    return NumericsOption(lever=name, throughput_ratio=ratio, fits=prediction.fits, says=says)


def read_profile(folder: str, scenario: Scenario | None = None, check: Check | None = None) -> Profile:
    """Analyses the traces and checks them against the scenario they came with.

    A folder without a readable trace is the caller's mistake.
    """
    try:
        analysed = analyse_folder(Path(folder), check=check)
    except InputError as error:
        raise InputError("traces", error.given, error.allowed) from None
    profile = analysed.summary()
    if profile is None:
        first = analysed.report.unreadable[0]
        raise InputError("traces", first.file, f"no trace of the folder can be read; {first.reason}")
    return _compare_with_scenario(profile, analysed, scenario) if scenario else profile


def _compare_with_scenario(profile: Profile, analysed: TraceAnalysis, scenario: Scenario) -> Profile:
    """With what contradicts the scenario, or how its prediction compares."""
    if profile.facts is None:
        return profile
    predicted_s = predict([scenario])[0].step_time_s if scenario.plan else None
    match = match_scenario(profile.facts, scenario, predicted_s)
    if not match.agrees:
        diagnosis = with_match(profile.diagnosis, match, profile.step_time_s)
        return profile.model_copy(update={"match": match, "diagnosis": diagnosis})
    check = (
        check_prediction(analysed.profile.ranks, scenario) if scenario.plan and profile.step_time_s else None
    )
    return profile.model_copy(update={"match": match, "comparison": check.comparison if check else None})


STEP = "step_time_s"
OTHER_LEVERS: dict[Bottleneck, str] = {
    "compute": "kernels and precision: the step is mostly arithmetic, and its rate is what is left to raise",
    "memory": "fused kernels and a larger micro-batch: memory-bound operations take the time",
    "communication": "the network: faster links, or communication that overlaps better",
    "pipeline": "a larger global batch: the bubble shrinks with the number of micro-batches",
    "host": "the host: data loading, launch overhead, CUDA graphs or compilation",
}


def diagnose(workload: Workload, prediction: Prediction) -> Diagnosis:
    parts, whole = prediction.breakdown_s, prediction.step_time_s
    shares = {name: sum(parts[term] for term in terms) / whole for name, terms in BOTTLENECKS.items()}
    return Diagnosis(
        bottleneck=prediction.bottleneck,
        share=shares[prediction.bottleneck],
        shares=shares,
        evidence=model_evidence(workload, prediction),
    )


def with_profile(
    diagnosis: Diagnosis, profile: Profile, prediction: Prediction, recalibrated: Recalibration | None = None
) -> Diagnosis:
    """Adds what the traces show to what the model predicts; the measured bottleneck counts.

    Traces of another job come first and are compared with nothing: the model's bottleneck stays.
    """
    measured = profile.diagnosis.model_copy(update={STEP: profile.step_time_s})
    shown = [Evidence(kind="profile", ref=item.ref, says=item.says) for item in measured.evidence]
    if profile.match is not None and not profile.match.agrees:
        mismatch = [
            Evidence(kind="profile", ref=f"match[about={found.about}]", says=found.says)
            for found in profile.match.contradictions
        ]
        evidence = [*mismatch, *shown, *diagnosis.evidence]
        return diagnosis.model_copy(
            update={"cause": "trace_mismatch", "evidence": evidence, "profile": measured}
        )
    terms = differing_terms(profile.comparison) if profile.comparison else []
    first = [Evidence(kind="profile", ref="causes[0]", says=found.says) for found in measured.causes[:1]]
    differing = [Evidence(kind="profile", ref="comparison.terms", says=says) for says in terms]
    evidence = [
        *_step_evidence(profile.step_time_s, prediction.step_time_s, recalibrated),
        *first,
        *shown,
        *differing,
        *diagnosis.evidence,
    ]
    update = {
        "cause": measured.cause,
        "bottleneck": measured.bottleneck,
        "evidence": evidence,
        "profile": measured,
        "recalibrated": recalibrated,
        "differing_terms": terms,
    }
    return diagnosis.model_copy(update=update)


def _step_evidence(
    took_s: float | None, predicted_s: float, recalibrated: Recalibration | None
) -> list[Evidence]:
    """Empty if the traces mark no steps."""
    if recalibrated:
        return [Evidence(kind="profile", ref=STEP, says=recalibrated.says)]
    if not took_s:
        return []
    took, predicted = format_same_decimals(took_s, predicted_s)
    off = f"{abs(predicted_s / took_s - 1):.0%} {'more' if predicted_s > took_s else 'less'}"
    says = f"a step takes {took} s, {predicted} s were predicted: {off}"
    return [Evidence(kind="profile", ref=STEP, says=says)]


def with_lever(diagnosis: Diagnosis, proposals: Sequence[Proposal], prediction: Prediction) -> Diagnosis:
    """Names another lever if nothing beats today's plan beyond the error of a comparison."""
    gains = [proposal.speedup_low for proposal in proposals if proposal.speedup_low is not None]
    if not prediction.fits or not gains or max(gains) > 1.0:
        return diagnosis
    verdict = "Sharding is not your lever: no plan beats today's beyond the error of a comparison."
    measured = diagnosis.cause not in (None, "trace_mismatch") and diagnosis.profile
    look = measured.lever if measured else OTHER_LEVERS[diagnosis.bottleneck]
    return diagnosis.model_copy(update={"lever": f"{verdict} Look at {look}."})
