"""A report next to the scenario it answers: plans, evidence and trial rows as every format shows them.
Layout is in the templates and tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.request import parse_request
from service.render.terms import SHOWN_SHARE
from service.render.text import seconds, seconds_alike, seconds_span, times
from tools.cost.calibration import Calibration
from tools.recommend.notes import apply_notes
from tools.recommend.optimize import workload_of
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario, parse_scenario

Data = Mapping[str, Any]
NOTHING = "–"
OUTCOMES = {
    "out_of_memory": "out of memory",
    "hang": "hung, ended at its limit",
    "communication_timeout": "a collective timed out",
    "node_down": "a node went down",
    "numerics": "loss not finite",
    "bad_configuration": "refused by the program",
    "wall_limit": "not done within its limit",
    "not_started": "not started in time",
    "no_budget": "not begun, no budget left",
    "cancelled": "cancelled",
    "unknown": "failed",
}


@dataclass(frozen=True)
class TrialRow:
    name: str
    plan: str
    predicted: str
    measured: str
    off: str
    """How far the prediction was from the measurement."""
    gain: str
    outcome: str
    evidence: Sequence[str]
    """Why it failed or was not compared; a job's own words among them."""

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.name, self.plan, self.predicted, self.measured, self.off, self.gain, self.outcome)


COLUMNS = ("trial", "plan", "predicted before", "measured", "prediction off by", "speed", "outcome")


def trial_rows(trials: Sequence[Data]) -> list[TrialRow]:
    return [_row(number, one) for number, one in enumerate(trials)]


def _row(number: int, trial: Data) -> TrialRow:
    step_s, predicted_s = trial.get("step_time_s"), trial["predicted"]["step_time_s"]
    return TrialRow(
        name="baseline" if trial["role"] == "baseline" else f"trial {number}",
        plan=trial["summary"],
        predicted=interval(predicted_s, _low_high(trial["predicted"])),
        measured=interval(step_s, trial["interval_s"]) if step_s else NOTHING,
        off=f"{predicted_s / step_s - 1:+.0%}" if step_s else NOTHING,
        gain=_gain(trial),
        outcome=_outcome(trial),
        evidence=_evidence(trial),
    )


def interval(middle_s: float, ends_s: Sequence[float]) -> str:
    (middle, low, high), unit = seconds_alike(middle_s, *ends_s)
    return f"{middle} {unit} ({low} to {high})"


def _low_high(prediction: Data) -> tuple[float, float]:
    return prediction["step_time_low_s"], prediction["step_time_high_s"]


def _gain(trial: Data) -> str:
    if trial["role"] == "baseline" or trial["speedup"] is None:
        return NOTHING
    return f"{times(trial['speedup'])} ({trial['speedup_low']:.2f} to {trial['speedup_high']:.2f})"


def _outcome(trial: Data) -> str:
    if trial["status"] == "refused":
        return "not comparable"
    if trial["status"] != "measured":
        return OUTCOMES.get(trial["failure"]["kind"], OUTCOMES["unknown"])
    runs = len(trial["runs"])
    return f"measured, {trial['steps']} steps" + (f" in {runs} runs" if runs > 1 else "")


def _evidence(trial: Data) -> list[str]:
    if trial["status"] == "refused":
        return [one["says"] for one in trial["refusals"]]
    return list(trial["failure"]["evidence"]) if trial["failure"] else []


REPEATED_RISK = "the prediction's 80% interval"


@dataclass(frozen=True)
class Planned:
    """Today's plan or a proposal, as it is compared with the others."""

    name: str
    summary: str
    prediction: Data
    proposal: Data | None = None
    """None for today's plan."""
    trial: Data | None = None
    """The trial of today's plan."""

    @property
    def gain(self) -> str | None:
        """How much faster than today, with its interval."""
        if self.proposal is None or self.proposal["speedup"] is None:
            return None
        low, high = self.proposal["speedup_low"], self.proposal["speedup_high"]
        return f"{times(self.proposal['speedup'])} ({low:.2f} to {high:.2f})"

    @property
    def measured(self) -> Data | None:
        """What a trial measured of it, where one did."""
        found: Data | None = self.proposal.get("measured") if self.proposal else self.trial
        return found

    @property
    def interval(self) -> str:
        return seconds_span(self.prediction["step_time_low_s"], self.prediction["step_time_high_s"])

    @property
    def risks(self) -> list[str]:
        """Without the interval, which stands beside the step time."""
        told = self.proposal["risks"] if self.proposal else []
        return [risk for risk in told if not risk.startswith(REPEATED_RISK)]

    @property
    def evidence(self) -> list[Data]:
        """Without what the diagnosis or the rationale has said."""
        found = self.proposal["evidence"] if self.proposal else []
        said = self.proposal["rationale"].lower() if self.proposal else ""
        return [one for one in found if one["ref"] != "baseline" and one["says"].lower() not in said]


@dataclass(frozen=True)
class View:
    title: str
    contract: str
    """What is trained and how, in one line: two plans are comparable only where it is equal."""
    plans: Sequence[Planned]
    limit_gib: float
    """Memory a plan may fill."""
    capacity_gib: float
    report: Data

    @property
    def proposals(self) -> Sequence[Planned]:
        return [one for one in self.plans if one.proposal]

    @property
    def evidence(self) -> Sequence[Data]:
        found: Sequence[Data] = self.report["diagnosis"]["evidence"]
        return found

    @property
    def other_clusters(self) -> list[tuple[str, str]]:
        """What the cluster might be instead, and which plan would then be the fastest."""
        return [(one["if"], _answer(one, self.report["proposals"])) for one in self.report["sensitivity"]]

    @property
    def rejected(self) -> list[tuple[str, str, str]]:
        return [(one["summary"], one["binding"], one["why"]) for one in self.report["rejected"]]

    @property
    def brought(self) -> list[tuple[str, str, str]]:
        """Plans that a playbook, a model or an engineer brought: from whom, which, and what became of it."""
        ranks = [(one["plan"], one["rank"]) for one in self.report["proposals"]]
        return [(one["origin"], one["summary"], _fate(one, ranks)) for one in self.report["considered"]]

    @property
    def warnings(self) -> list[Data]:
        """Past cases that a measurement refuted."""
        return [one for one in self.report["cases"] if one["warning"]]

    @property
    def precedents(self) -> list[Data]:
        return [one for one in self.report["cases"] if not one["warning"]]

    @property
    def trials(self) -> list[TrialRow]:
        return trial_rows(self.report["trials"])

    @property
    def has_measured(self) -> bool:
        return any(one.measured for one in self.plans)

    def shown(self, names: Mapping[str, str], part: str) -> dict[str, str]:
        """Those of the names that are large enough in some plan to be seen."""
        kept = {}
        for key, name in names.items():
            shares = (
                one.prediction[part][key] / (sum(one.prediction[part].values()) or 1) for one in self.plans
            )
            if max(shares) >= SHOWN_SHARE:
                kept[key] = name
        return kept


def view_of(scenario: Data, report: Data) -> View:
    workload = read_workload(scenario, report)
    s = workload.scenario
    return View(
        title=_title(s),
        contract=_contract(s),
        plans=_plans(report, s.plan),
        limit_gib=workload.limit_gib,
        capacity_gib=workload.capacity_gib,
        report=report,
    )


def _title(s: Scenario) -> str:
    place = f" in {s.cluster.name}" if s.cluster.name else ""
    return f"{s.model.name or 'Model'} on {s.cluster.num_devices:,} x {s.cluster.device}{place}"


def _contract(s: Scenario) -> str:
    parts = [
        s.training.framework,
        s.training.precision,
        f"global batch {s.training.global_batch_size:,}",
        f"sequence length {s.training.seq_len:,}",
        *(f"{name} {value}" for name, value in s.training.options().items()),
    ]
    return ", ".join(parts)


def read_workload(scenario: Data, report: Data) -> Workload:
    """The scenario as the session took it: with what was accepted of the engineer's notes,
    and the cost model as it was in the end."""
    described = parse_request(scenario).scenario
    if report["notes"] and report["notes"]["accepted"]:
        described = apply_notes(described["notes"], report["notes"]["accepted"], described)["scenario"]
    return workload_of(parse_scenario(described, need_plan=False), learned_of(report))


def learned_of(report: Data) -> Calibration | None:
    """The cost model as the session's trials have made it; None where it had none."""
    data = report.get("calibration")
    return Calibration.from_data(data) if data else None


def _plans(report: Data, stated: Plan | None) -> list[Planned]:
    proposals = [
        Planned(f"proposal {one['rank']}", short(Plan.model_validate(one["plan"])), one["prediction"], one)
        for one in report["proposals"]
    ]
    known = report.get("baseline_plan")
    today = Plan.model_validate(known["plan"]) if known else stated
    if today is None or report["baseline"] is None:
        return proposals
    name = "default" if stated is None else "today"
    measured = [
        one for one in report["trials"] if one.get("role") == "baseline" and one["status"] == "measured"
    ]
    trial = measured[0] if measured else None
    return [Planned(name, short(today), report["baseline"], trial=trial), *proposals]


def _answer(case: Data, proposals: Sequence[Data]) -> str:
    if case["best"] is None:
        return str(case["says"])
    same = next((one["rank"] for one in proposals if one["plan"] == case["best"]), None)
    plan = f"proposal {same}" if same else short(Plan.model_validate(case["best"]))
    return f"{plan} ({seconds(case['step_time_s'])})"


def _fate(brought: Data, ranks: Sequence[tuple[Data, int]]) -> str:
    rank = next((rank for plan, rank in ranks if plan == brought["plan"]), None)
    if rank:
        return f"proposal {rank}"
    if brought["binding"] == "time":
        return f"a step {brought['step_time_ratio'] - 1:.1%} longer than proposal 1's"
    return str(brought["why"])
