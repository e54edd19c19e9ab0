"""The report: what leaves the graph, assembled from verified parts only."""

from dataclasses import asdict

from graph.services import NodeServices
from graph.state import Data, State
from graph.tuning import budget_of, public_trial, why_ended

MAX_ADVICE = 6
FROM_SEARCH = ("rejected", "searched", "sensitivity", "beyond_contract", "pareto", "considered")


def report(state: State, services: NodeServices) -> State:
    analysis, found, prose = state["analysis"], state["found"], state["prose"]
    usage = state.get("usage", {})
    whole: Data = {
        "id": state["request"].get("id"),
        **{name: prose[name] for name in ("verdict", "first_step", "would_change")},
        "diagnosis": analysis["diagnosis"],
        "baseline": analysis["prediction"] if analysis["subject"] == "today" else None,
        "baseline_plan": _baseline_plan(state),
        "proposals": [_told(one, state, services) for one in found["proposals"]],
        **{name: found[name] for name in FROM_SEARCH},
        "advice": _advice(state),
        "cases": _cases(state),
        "notes": _notes(state),
        "profile": analysis["profile"],
        "decisions": state.get("decisions", []),
        "trials": [public_trial(one) for one in state.get("trials", [])],
        "stopping": _stopping(state, services),
        "calibration": state.get("calibration"),
        "verification": state["verification"],
        "incidents": [*state.get("incidents", []), *services.incidents],
        "route": state["route"],
        "usage": {name: usage.get(name, 0) for name in ("tokens", "cost", "answered", "fell_back")},
        "case": state.get("learnt", {}).get("case"),
        "reasoner": services.context.reasoner.name,
    }
    return services.done(report=whole)


def _baseline_plan(state: State) -> Data | None:
    """What gains are counted from, and whether somebody runs it or the framework would take it."""
    session = state["session"]
    if session["plan"] is None:
        return None
    name = "the framework's default" if session.get("plan_is_default") else "today"
    return {"plan": session["plan"], "name": name}


def _stopping(state: State, services: NodeServices) -> Data | None:
    """Why the trials ended, and what they took of the budget."""
    trials = state.get("trials", [])
    if state["session"]["mode"] != "tune":
        return None
    limits, known = services.context.limits, state.get("stopping") or {}
    says = why_ended(state, limits, services.context.clock()) or "no trial was due"
    figures = {name: known.get(name) for name in ("expected_gain", "noise")}
    return {"says": says, **figures, **asdict(budget_of(limits, trials))}


def _told(proposal: Data, state: State, services: NodeServices) -> Data:
    """With its reasons in words, and the playbooks that say the same."""
    before = state["session"]["plan"]
    books = state.get("knowledge", {}).get("playbooks", [])
    support = (
        services.call(
            "supporting_playbooks",
            scenario=state["reading"]["scenario"],
            before=before,
            after=proposal["plan"],
            playbooks=books,
        )
        if before and books
        else []
    )
    rationale = state["prose"][f"rationale {proposal['rank']}"]
    return {**proposal, "rationale": rationale, "evidence": [*proposal["evidence"], *support]}


def _advice(state: State) -> list[Data]:
    """Playbooks that apply but change no field of the plan: flags, settings, what to look at."""
    books = [book for book in state.get("knowledge", {}).get("playbooks", []) if not book.get("moves")]
    near = [hit["id"] for hit in state.get("knowledge", {}).get("hits", [])]
    books.sort(key=lambda book: near.index(book["id"]) if book["id"] in near else len(near))
    names = ("id", "title", "do", "why", "effect", "risks", "sources")
    return [{name: book[name] for name in names} for book in books[:MAX_ADVICE]]


def _cases(state: State) -> list[Data]:
    """Past cases nearest to this one; those a measurement refuted are warnings."""
    hits = [hit for hit in state.get("knowledge", {}).get("hits", []) if hit["kind"] == "case"]
    return [
        {
            **{name: hit[name] for name in ("id", "title", "status", "warning")},
            "lesson": hit["body"]["lesson"],
            "measured": hit["body"].get("measured"),
            "sources": hit["body"]["sources"],
        }
        for hit in hits
    ]


def _notes(state: State) -> Data | None:
    """What was read from the engineer's notes, and what was not taken up and why."""
    if not state["request"].get("notes"):
        return None
    return {name: state["reading"].get(name) for name in ("accepted", "refused", "says")}
