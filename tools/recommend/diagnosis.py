"""What limits today's plan, with numbers, from the prediction or from traces, and whether sharding can help.

Options that change numerics are named here and never proposed.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tools.errors import InputError
from tools.model.predict import Prediction, predict
from tools.physics.terms import BOTTLENECKS, Bottleneck
from tools.recommend.proposal import model_evidence
from tools.recommend.report import Diagnosis, Evidence, NumericsOption, Proposal, Recalibration
from tools.recommend.words import format_same_decimals
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.trace.compare import check_prediction
from tools.trace.isolate import Check
from tools.trace.links import device_of
from tools.trace.match import match_scenario, with_match
from tools.trace.report import Profile, analyse_folder, build_report

LOWER_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
STEP = "step_time_s"
OTHER_LEVERS: dict[Bottleneck, str] = {
    "compute": "kernels and precision: the step is mostly arithmetic, and its rate is what is left to raise",
    "memory": "fused kernels and a larger micro-batch: memory-bound operations take the time",
    "communication": "the network: faster links, or communication that overlaps better",
    "pipeline": "a larger global batch: the bubble shrinks with the number of micro-batches",
    "host": "launches: CUDA graphs, compilation, a larger micro-batch",
}


def numerics_changing_options(workload: Workload, winner: Plan) -> list[NumericsOption]:
    """Tokens per second of the winning plan at lower precision or twice the batch, over today's. By the
    formulas: what published runs correct in one workload and not in the other is no gain."""
    training, peaks = workload.scenario.training, workload.device.peak_flops
    changes: dict[str, dict[str, str | int]] = {
        f"precision {name}": {"precision": name}
        for name in LOWER_PRECISIONS
        if peaks.get(name, 0.0) > peaks[training.precision]
    }
    changes["twice the global batch"] = {"global_batch_size": training.global_batch_size * 2}
    options, calibration = [], workload.calibration.formulas
    best = predict([workload.with_plan(winner)], calibration)[0]
    for name, change in changes.items():
        changed = training.model_copy(update=change)
        scenario = workload.with_plan(winner).model_copy(update={"training": changed})
        prediction = predict([scenario], calibration)[0]
        grown = changed.global_batch_size / training.global_batch_size
        ratio = best.step_time_s * grown / prediction.step_time_s
        says = f"{name} would give {ratio:.2f}x the tokens per second, but changes the training itself"
        options.append(NumericsOption(lever=name, throughput_ratio=ratio, fits=prediction.fits, summary=says))
    return options


def read_profile(folder: str, scenario: Scenario | None = None, check: Check | None = None) -> Profile:
    """Analyses the traces, and tells what contradicts the scenario they came with or how its prediction
    compares.

    A folder without a readable trace is the caller's mistake.
    """
    try:
        analysed = analyse_folder(Path(folder), check=check)
    except InputError as error:
        raise error.at("traces") from None
    profile = analysed.summary()
    if profile is None:
        first = analysed.report.unreadable[0]
        raise InputError("traces", first.file, f"no trace of the folder can be read; {first.reason}")
    if scenario is None or profile.facts is None:
        return profile
    predicted_s = predict([scenario])[0].step_time_s if scenario.plan else None
    match = match_scenario(profile.facts, scenario, predicted_s)
    if not match.agrees:
        diagnosis = with_match(profile.diagnosis, match, profile.step_time_s)
        return profile.model_copy(update={"match": match, "diagnosis": diagnosis})
    # Now its links are known to be those of the scenario's cluster.
    report = build_report(analysed.profile, device_of(scenario.cluster))
    profile = replace(analysed, report=report).summary() or profile
    comparison = None
    if scenario.plan and profile.step_time_s:
        comparison = check_prediction(analysed.profile.ranks, scenario).comparison
    return profile.model_copy(update={"match": match, "comparison": comparison})


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
    shown = [(item.ref, item.summary) for item in measured.evidence]
    if profile.match is not None and not profile.match.agrees:
        shown[:0] = [(f"match[about={found.about}]", found.message) for found in profile.match.contradictions]
        update = {"cause": "trace_mismatch", "profile": measured}
    else:
        terms = profile.comparison.differing_terms if profile.comparison else []
        shown[:0] = [("causes[0]", found.summary) for found in measured.causes[:1]]
        shown += [("comparison.terms", term) for term in terms]
        far = profile.comparison.far_apart if profile.comparison else None
        took_s, predicted_s = profile.step_time_s, prediction.step_time_s
        if recalibrated:
            shown.insert(0, (STEP, recalibrated.summary))
        elif took_s:
            took, predicted = format_same_decimals(took_s, predicted_s)
            off = f"{abs(predicted_s / took_s - 1):.0%} {'more' if predicted_s > took_s else 'less'}"
            shown.insert(0, (STEP, f"a step takes {took} s, {predicted} s were predicted: {off}"))
        if far:
            shown.insert(0, (STEP, far))
        update = {
            "cause": measured.cause,
            "bottleneck": measured.bottleneck,
            "profile": measured,
            "recalibrated": recalibrated,
            "differing_terms": terms,
        }
    evidence = [Evidence(kind="profile", ref=ref, says=says) for ref, says in shown]
    return diagnosis.model_copy(update={**update, "evidence": [*evidence, *diagnosis.evidence]})


def with_lever(diagnosis: Diagnosis, proposals: Sequence[Proposal], prediction: Prediction) -> Diagnosis:
    """Names another lever if nothing beats today's plan beyond the error of a comparison."""
    gains = [proposal.speedup_low for proposal in proposals if proposal.speedup_low is not None]
    if not prediction.fits or not gains or max(gains) > 1.0:
        return diagnosis
    verdict = "Sharding is not your lever: no plan beats today's beyond the error of a comparison."
    measured = diagnosis.cause not in (None, "trace_mismatch") and diagnosis.profile
    look = measured.lever if measured else OTHER_LEVERS[diagnosis.bottleneck]
    return diagnosis.model_copy(update={"lever": f"{verdict} Look at {look}."})
