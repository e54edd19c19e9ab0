"""The coordinator: a worklist from a closed set, and which step comes next.

The workflow's rules (kb_seed/workflow/steps.toml) are the floor and the stop condition: they decide what must
be done. Once that is done a model may add items, a few times; without a model the rules are all.
"""

import tomllib
from functools import cache
from typing import Literal

from langgraph.types import Command

import kb_seed
from graph.answers import PersonTopic, PlannedItem, Purpose, Question, Task, Worklist
from graph.context import Context
from graph.events import Routed, plain
from graph.evidence import knowing, told_runs
from graph.notes import read_notes
from graph.questions import ReviseWorklist, digest_of
from graph.report import RouteStep
from graph.request import PLAN_ACTIONS
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import State, WorkItem
from graph.tuning import baseline_of, is_current, time_left_s, why_ended
from tools.errors import DataError, InputError
from tools.kb.conditions import Condition, applies, parse_conditions
from tools.physics.encode import scenario_device
from tools.physics.memory import GIB
from tools.recommend.hypotheses import CAUSES
from tools.recommend.report import Fact, PersonQuestion
from tools.recommend.situation import Facts
from tools.scenario import Scenario
from tools.search.constraints import parse_constraints

NODE_OF = {
    "reconcile": "analyzer",
    "test_hypothesis": "analyzer",
    "search": "proposal",
    "compare_ties": "proposal",
}
Step = Literal["analyzer", "proposal", "verify", "approve", "trial", "learn", "report"]
CLOSING = ("approve", "learn", "report")
"""Steps that come once everything is verified."""
PURPOSES: dict[Purpose, str] = {
    "evidence_is_thin": "the evidence for this cause is thin",
    "model_and_measurement_differ": "measured and predicted terms differ and nobody has looked why",
    "no_proposal_has_it": "no proposal satisfies this constraint yet",
    "too_close_to_call": "the proposals are so close that their order needs a reason",
    "only_a_person_knows": "only a person can tell",
    "a_run_would_settle_it": "a run would settle what prediction cannot",
}
PERSON_QUESTIONS: dict[PersonTopic, str] = {
    "may_change": "May {field} change?",
    "batch_may_change": "May the global batch size change?",
    "checkpoints_must_load": "Must today's checkpoints load without a conversion?",
    "memory_kept_free": "How much of a device's memory must stay free for other uses?",
    "network_shared": "Do other jobs share the network while this one runs?",
    "fabric": "Which fabric connects the nodes: InfiniBand, RoCE, EFA or TCP?",
    "clocks": "Do the devices run at their usual clocks and power limits?",
    "data_loading": "Does the data loader keep up, or does the step wait for it?",
    "step_is_steady": "Is the stated step time that of a steady step, without compilation or checkpoints?",
    "traces_of_this_job": "Are the traces of this very job: model, batch, devices, precision?",
}


def coordinator(state: State, services: NodeServices) -> Command[Step]:
    update: State = {} if "scenario" in state else _open(state, services)
    facts = _facts(state, services)
    rule = first_rule(facts)
    listed = update["worklist"] if "worklist" in update else state.get("worklist", [])
    worklist = [_with_status(work, facts, state.get("item")) for work in listed]
    questions = update.get("questions", [])
    if _may_revise(state, rule, facts, worklist, services):
        items, asked = _revise(state, services)
        worklist, questions = [*worklist, *items], [*questions, *asked]
    item = next((work for work in worklist if work.status == "open" and work.by != Rules.name), None)
    if item is not None and rule.step not in CLOSING:
        item = None
    choice = RouteStep(step=NODE_OF[item.task], reason=item.reason) if item else rule
    services.log.emit(Routed(step=choice.step, reason=choice.reason))
    update |= State(worklist=worklist, item=item, questions=questions, route=[choice])
    return Command(goto=choice.step, update=services.done(**update))  # type: ignore[arg-type]


def first_rule(facts: Facts) -> RouteStep:
    """The step and its reason."""
    for conditions, step in rules():
        if applies(conditions, facts):
            return step
    raise DataError("kb_seed/workflow/steps.toml: no rule holds; the last one must have no condition")


def _open(state: State, services: NodeServices) -> State:
    """The request with what its notes say, the first facts, and what the rules put on the worklist."""
    update = read_notes(state, services)
    facts = services.run(catalogue_facts, scenario=update["scenario"])
    update["facts"] = [*facts, *update.get("facts", [])]
    request, session = state["request"], state["session"]
    told = services.run(told_runs, scenario=update["scenario"], facts=update["facts"], tenant=session.tenant)
    if told:
        update["calibration"] = knowing(services.context, told).to_data()
    wanted: list[tuple[bool, Task, str]] = [
        (bool(request.notes), "read_notes", "the engineer's words come before any search"),
        (bool(request.traces), "reconcile", "what was measured rules over what is predicted"),
        (True, "search", "every legal plan is searched before anybody argues for one"),
        (True, "compare_ties", "plans within the error of a comparison are ordered by evidence"),
        (session.mode == "tune", "measure", "advice that is never measured is opinion"),
    ]
    update["worklist"] = [
        WorkItem(task=task, reason=reason, by=Rules.name) for is_due, task, reason in wanted if is_due
    ]
    return update


def catalogue_facts(context: Context, scenario: Scenario) -> list[Fact]:
    """What is known of the cluster before anybody looks: the catalogue's figures, or the request's own."""
    device, overrides = scenario_device(scenario.cluster), plain(scenario.cluster.overrides) or {}
    figures = {
        "memory_gib": (device.memory_bytes / GIB, "GiB"),
        "intra_node_gbytes_per_s_per_device": (device.intra_node_bytes_per_s / 1e9, "GB/s"),
        "inter_node_gbps_per_device": (device.inter_node_bytes_per_s * 8 / 1e9, "Gbit/s"),
    }
    return [
        Fact(
            name=name,
            value=float(f"{value:.6g}"),
            unit=unit,
            source="scenario" if name in overrides else "catalogue",
            reference=scenario.cluster.device,
        )
        for name, (value, unit) in figures.items()
    ]


def _facts(state: State, services: NodeServices) -> Facts:
    """What the workflow's rules ask about; what is due is what somebody must allow."""
    decisions, handled, trials = state.get("decisions", []), state.get("handled", 0), state.get("trials", [])
    limits, now = services.context.limits, services.context.clock()
    learnt, texts = state.get("learnt"), state.get("texts")
    ended = why_ended(state, limits, now) is not None
    is_searched = is_current(state, state.get("search"))
    is_explained = texts is not None and texts.decisions_seen == len(decisions)
    tunes, approval = state["session"].mode == "tune", state["session"].approval
    last = decisions[-1].action if decisions else None
    approved = any(decision.action == "approve" for decision in decisions[handled:])
    closed = "search" in state and state["search"].closed
    asks = not approved and not ended if tunes else last not in ("approve", "reject")
    return {
        "time_left_s": time_left_s(state, limits, now),
        "has_plan": state["session"].plan is not None,
        "analysed": is_current(state, state.get("analysis")),
        "searched": is_searched,
        "informed": "knowledge" in state,
        "plan_waiting": any(decision.action in PLAN_ACTIONS for decision in decisions[handled:]),
        "verified": state.get("verification") is not None and is_searched and is_explained,
        "learnt": learnt is not None
        and (learnt.decisions_seen, learnt.trials_seen) == (len(decisions), len(trials)),
        "trial_learnt": (learnt.trials_seen if learnt else 0) == len(trials),
        "baseline_due": tunes and approval != "person" and baseline_of(trials) is None and not ended,
        "trial_due": tunes and (approved or (approval == "none" and not ended)),
        "approval_due": asks and (approval == "person" or (tunes and approval == "policy")),
        "trials_unsettled": tunes and ended and not approved and bool(trials) and not closed,
    }


@cache
def rules() -> list[tuple[tuple[Condition, ...], RouteStep]]:
    """The conditions of each step, in order."""
    text = kb_seed.folder("workflow").joinpath("steps.toml").read_text("utf-8")
    return [
        (parse_conditions(rule["when"]), RouteStep(step=rule["step"], reason=rule["reason"]))
        for rule in tomllib.loads(text)["rule"]
    ]


def _with_status(item: WorkItem, facts: Facts, sent: WorkItem | None) -> WorkItem:
    """Done if a node was just sent for it, or if the rules' own facts say so."""
    if item.by != Rules.name:
        is_done = item.status == "done" or item == sent
    else:
        is_done = {
            "read_notes": True,
            "reconcile": bool(facts["analysed"]),
            "search": bool(facts["searched"]),
            "compare_ties": bool(facts["verified"]),
            "measure": not facts["trial_due"] and not facts["baseline_due"] and bool(facts["verified"]),
        }[item.task]
    return item.model_copy(update={"status": "done" if is_done else "open"})


def _may_revise(
    state: State, rule: RouteStep, facts: Facts, worklist: list[WorkItem], services: NodeServices
) -> bool:
    """Once all that must be done is verified and nobody has decided; a bounded number of times."""
    name = ReviseWorklist.name
    is_settled = rule.step in CLOSING and facts["verified"]
    is_decided = state.get("decisions") or state.get("learnt")
    has_open = any(entry.status == "open" and entry.by != Rules.name for entry in worklist)
    fell_back = any(name in entry.questions for entry in state.get("incidents", []))
    is_late = float(facts["time_left_s"] or 0) < 0
    revisions = sum(turn.question == name for turn in state.get("turns", []))
    is_allowed = services.is_open(name) and revisions < services.context.limits.rounds
    return bool(is_allowed and is_settled and not (is_decided or has_open or fell_back or is_late))


def _revise(state: State, services: NodeServices) -> tuple[list[WorkItem], list[PersonQuestion]]:
    """What a model adds, each item checked; what is impossible is named and left out."""
    options: list[Task] = ["test_hypothesis", "search", "compare_ties", "ask_person"]
    options += ["reconcile"] if state["scenario"].traces else []
    asked = ReviseWorklist(digest=digest_of(state, "coordinator"), options=options, causes=CAUSES)
    items: list[WorkItem] = []
    questions: list[PersonQuestion] = []
    for planned in services.ask(Question(asked, Worklist)).items:
        if not _is_possible(planned, options, state):
            # Not what exactly it asked for: a model's own words stay out of the report.
            services.report_incident("impossible step", f"{planned.task}: it cannot be done so now; left out")
            continue
        if planned.task == "ask_person" and planned.topic:
            text = PERSON_QUESTIONS[planned.topic].format(field=planned.field)
            questions.append(PersonQuestion(field=planned.field, text=text, by=services.last_author))
            continue
        item = WorkItem(
            task=planned.task,
            about=planned.cause or "",
            constraints=plain(planned.constraints),
            reason=PURPOSES[planned.purpose],
            by=services.last_author,
        )
        items += [] if item.model_copy(update={"status": "done"}) in state.get("worklist", []) else [item]
    return items, questions


def _is_possible(item: PlannedItem, options: list[Task], state: State) -> bool:
    """Whether it can be done now; a search needs a constraint that the first one did not have."""
    if item.task == "test_hypothesis":
        return any(hypothesis.cause == item.cause for hypothesis in state["analysis"].hypotheses)
    if item.task == "search":
        constraints = {**state["scenario"].constraints, **plain(item.constraints)}
        try:
            parse_constraints(constraints, state["session"].plan)
        except InputError:
            return False
        return bool(item.constraints)
    if item.task == "ask_person":
        plan = state["session"].plan
        is_named = hasattr(plan, item.field) if item.topic == "may_change" else not item.field
        return item.topic is not None and is_named
    return item.task in options
