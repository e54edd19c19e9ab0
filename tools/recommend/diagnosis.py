"""What limits today's plan, with numbers, from the prediction or from traces, and whether sharding can help.

Options that change numerics are named here and never proposed.
"""

from collections.abc import Sequence
from pathlib import Path

from tools.cost.predict import BOTTLENECKS, Bottleneck, Prediction, predict
from tools.errors import InputError
from tools.recommend.proposal import model_evidence
from tools.recommend.report import CompetingCause, Diagnosis, Evidence, NumericsOption, Proposal
from tools.recommend.words import format_same_decimals
from tools.recommend.workload import Workload
from tools.scenario import Plan, TrainingSpec
from tools.trace.report import Profile, analyse_folder

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


def read_profile(folder: str) -> Profile:
    """Analyses the traces; a folder without a readable one is the caller's mistake."""
    try:
        analysed = analyse_folder(Path(folder))
    except InputError as error:
        raise InputError("traces", error.given, error.allowed) from None
    profile = analysed.summary()
    if profile is None:
        first = analysed.report.unreadable[0]
        raise InputError("traces", first.file, f"no trace of the folder can be read; {first.reason}")
    return profile


STEP = "step_time_s"
COMPETING_SHARE = 0.5
DOES_NOT_FIT = "the plan needs more memory than a device has"
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


def with_profile(diagnosis: Diagnosis, profile: Profile, prediction: Prediction) -> Diagnosis:
    """Adds what the traces show to what the model predicts; the measured bottleneck counts."""
    measured = profile.diagnosis.model_copy(update={STEP: profile.step_time_s})
    evidence = [
        *_step_evidence(profile.step_time_s, prediction.step_time_s),
        *(Evidence(kind="profile", ref=item.ref, says=item.says) for item in measured.evidence),
        *diagnosis.evidence,
    ]
    update = {"bottleneck": measured.bottleneck, "evidence": evidence, "profile": measured}
    return diagnosis.model_copy(update=update)


def _step_evidence(took_s: float | None, predicted_s: float) -> list[Evidence]:
    """Empty if the traces mark no steps."""
    if not took_s:
        return []
    took, predicted = format_same_decimals(took_s, predicted_s)
    off = f"{abs(predicted_s / took_s - 1):.0%} {'more' if predicted_s > took_s else 'less'}"
    says = f"a step takes {took} s, {predicted} s were predicted: {off}"
    return [Evidence(kind="profile", ref=STEP, says=says)]


def competing(diagnosis: Diagnosis) -> list[CompetingCause]:
    """Bottlenecks that deserve a look, the one that counts by default first.

    A measured one outranks any computed one. Of the computed ones those count whose share of the step is at
    least half the largest: what is smaller cannot be the main thing to change.
    """
    shares = diagnosis.shares
    enough = COMPETING_SHARE * max(shares.values())
    order = sorted((kind for kind in shares if shares[kind] >= enough), key=lambda kind: -shares[kind])
    causes = [
        CompetingCause(bottleneck=kind, source="model", says=f"{shares[kind]:.0%} of the predicted step")
        for kind in order
    ]
    measured = diagnosis.profile
    if measured:
        says = f"severity {measured.severity:.0%}, confidence {measured.confidence:.0%}"
        return [CompetingCause(bottleneck=measured.bottleneck, source="profile", says=says), *causes]
    if diagnosis.bottleneck != order[0]:
        return [CompetingCause(bottleneck=diagnosis.bottleneck, source="model", says=DOES_NOT_FIT), *causes]
    return causes


def with_lever(diagnosis: Diagnosis, proposals: Sequence[Proposal], prediction: Prediction) -> Diagnosis:
    """Names another lever if nothing beats today's plan beyond the error of a comparison."""
    gains = [proposal.speedup_low for proposal in proposals if proposal.speedup_low is not None]
    if not prediction.fits or not gains or max(gains) > 1.0:
        return diagnosis
    verdict = "Sharding is not your lever: no plan beats today's beyond the error of a comparison."
    return diagnosis.model_copy(update={"lever": f"{verdict} Look at {OTHER_LEVERS[diagnosis.bottleneck]}."})
