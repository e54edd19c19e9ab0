"""The questions with small payloads of the shape that the nodes make."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from graph.answers import (
    Answer,
    Asked,
    Confirmation,
    Explained,
    Explanation,
    Finding,
    Question,
    Reading,
    SuggestedPlan,
    Suggestions,
    Tools,
    Worklist,
)

SCENARIO = {"model": {"name": "Llama-3.1-70B"}, "cluster": {"device": "h100-sxm-80gb", "num_devices": 64}}
DIAGNOSIS = {"bottleneck": "communication", "evidence": [{"ref": "breakdown_s", "says": "it takes 31%"}]}
PROPOSAL = {"rank": 1, "plan": {"tp": 4, "pp": 2}, "speedup": 1.34, "speedup_low": 1.21, "speedup_high": 1.46}
CAUSES = [
    {"cause": "exposed_tp", "source": "profile", "says": "31% of the step", "evidence": [{"ref": "p.tp"}]},
    {"cause": "compute", "source": "model", "says": "60% of the step", "evidence": [{"ref": "breakdown_s"}]},
]
PAYLOADS: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {"notes": "The spine is 2:1 oversubscribed. Keep tp.", "scenario": SCENARIO},
    "confirm_reading": {"quote": "Keep tp", "statement": "tp keep 8"},
    "revise_worklist": {"digest": {}, "options": ["search", "compare_ties"], "causes": ["compute"]},
    "find_cause": {"digest": {}, "hypotheses": CAUSES, "competing": CAUSES, "diagnosis": DIAGNOSIS},
    "propose_plans": {"scenario": SCENARIO, "plan": {"tp": 8}, "playbooks": [], "hits": [], "confirmed": []},
    "explain": {"scenario": SCENARIO, "diagnosis": DIAGNOSIS, "proposals": [PROPOSAL], "sensitivity": []},
    "answer_question": {"question": "why not tp 8?", "digest": {}, "by_rules": "It costs more."},
}
TYPES: Mapping[str, type[Answer]] = {
    "read_notes": Reading,
    "confirm_reading": Confirmation,
    "revise_worklist": Worklist,
    "find_cause": Finding,
    "propose_plans": Suggestions,
    "explain": Explained,
    "answer_question": Explanation,
}
GOOD: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {
        "statements": [
            {"quote": "2:1 oversubscribed", "field": "oversubscription", "operator": "=", "value": 2}
        ]
    },
    "confirm_reading": {"verdict": "yes"},
    "revise_worklist": {
        "items": [{"task": "compare_ties", "constraints": {}, "purpose": "too_close_to_call"}]
    },
    "find_cause": {"cause": "exposed_tp", "references": ["p.tp"]},
    "propose_plans": {"suggestions": [{"plan": {"tp": 4}, "references": ["playbook:tp-smaller"]}]},
    "explain": {
        "verdict": [{"subject": "p1", "relation": "fits"}],
        "would_change": [],
        "rationales": [[{"subject": "p1", "relation": "fits"}]],
    },
    "answer_question": {"claims": [{"subject": "p1", "relation": "fits"}]},
}


class AnyData(Asked):
    model_config = ConfigDict(extra="allow")


def asked(name: str, **changed: object) -> Asked:
    kind: type[Asked] = type(name, (AnyData,), {"name": name})
    return kind.model_validate({**PAYLOADS[name], **changed})


def question(name: str, tools: Tools | None = None, **changed: object) -> Question[Answer]:
    return Question(asked(name, **changed), TYPES[name], tools or {})


def find_cause(**changed: object) -> Question[Finding]:
    return Question(asked("find_cause", **changed), Finding)


def propose_plans(tools: Tools) -> Question[Suggestions]:
    return Question(asked("propose_plans"), Suggestions, tools)


def explain_plan(plan: SuggestedPlan) -> object:
    """Say what speaks against a plan."""
    return {"accepted": plan.tp == 4, "why": "the slower term is pipeline_bubble"}


def find_knowledge(query: str, limit: int = 3) -> object:
    """Find playbooks by a description."""
    return [{"id": "tp-smaller", "title": query}] * limit


TOOLS: Tools = {"explain_plan": explain_plan, "find_knowledge": find_knowledge}
