"""The questions with small payloads of the shape that the nodes make."""

from collections.abc import Mapping
from typing import Any

from graph.answers import (
    Answer,
    Confirmation,
    Explanation,
    Finding,
    Prose,
    Question,
    Reading,
    SuggestedPlan,
    Suggestions,
    Tools,
    Worklist,
)

PLAN = {"tp": 8, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 8, "dp_shard": 8, "zero_stage": 1}
SCENARIO = {
    "model": {"name": "Llama-3.1-70B"},
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 64},
    "plan": PLAN,
}
NOTES = "The spine is 2:1 oversubscribed. Keep tp, we have checkpoints."
PREDICTION = {"fits": True, "step_time_s": 9.8, "step_time_low_s": 8.9, "step_time_high_s": 10.9, "mfu": 0.39}
DIAGNOSIS = {
    "bottleneck": "communication",
    "evidence": [{"kind": "model", "ref": "breakdown_s", "says": "tensor-parallel communication takes 31%"}],
    "lever": None,
}
PROPOSAL = {
    "rank": 1, "plan": {**PLAN, "tp": 4, "pp": 2}, "prediction": PREDICTION, "summary": "tp 4, pp 2",
    "speedup": 1.34, "speedup_low": 1.21, "speedup_high": 1.46, "rationale": "less communication",
}  # fmt: skip
CAUSES = [
    {"cause": "exposed_tp", "source": "profile", "says": "31% of the step", "evidence": [{"ref": "p.tp"}]},
    {"cause": "compute", "source": "model", "says": "60% of the step", "evidence": [{"ref": "breakdown_s"}]},
]
PAYLOADS: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {"notes": NOTES, "scenario": SCENARIO},
    "confirm_reading": {"quote": "Keep tp", "statement": "tp keep 8"},
    "revise_worklist": {"digest": {}, "options": ["search", "compare_ties"], "causes": ["compute"]},
    "find_cause": {"digest": {}, "hypotheses": CAUSES, "competing": CAUSES, "diagnosis": DIAGNOSIS},
    "propose_plans": {
        "scenario": SCENARIO, "plan": PLAN, "diagnosis": DIAGNOSIS, "proposals": [PROPOSAL],
        "playbooks": [{"id": "tp-smaller", "why": "tensor parallelism costs", "resolved_moves": [{"tp": 4}]}],
        "hits": [], "confirmed": [],
    },
    "explain": {
        "scenario": SCENARIO, "baseline": PREDICTION, "diagnosis": DIAGNOSIS, "proposals": [PROPOSAL],
        "sensitivity": [], "slots": {"p1.plan": "tp 4, pp 2"},
    },
    "answer_question": {"question": "why not tp 8?", "digest": {}, "by_rules": "It costs more."},
}  # fmt: skip
TYPES: Mapping[str, type[Answer]] = {
    "read_notes": Reading,
    "confirm_reading": Confirmation,
    "revise_worklist": Worklist,
    "find_cause": Finding,
    "propose_plans": Suggestions,
    "explain": Prose,
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
        "items": [{"task": "compare_ties", "about": "", "constraints": {}, "reason": "they are near"}]
    },
    "find_cause": {"cause": "exposed_tp", "references": ["p.tp"], "reason": "it is measured"},
    "propose_plans": {
        "suggestions": [{"plan": {"tp": 4}, "references": ["playbook:tp-smaller"], "reason": "less to send"}]
    },
    "explain": {
        "verdict": "Communication limits the step.",
        "first_step": "Run {p1.plan}.",
        "would_change": "A wider network.",
        "rationales": ["Fewer bytes over the links."],
    },
    "answer_question": {"text": "It costs more."},
}


def question(name: str, tools: Tools | None = None, **changed: object) -> Question[Answer]:
    return Question(name, {**PAYLOADS[name], **changed}, TYPES[name], tools or {})


def find_cause(**changed: object) -> Question[Finding]:
    return Question("find_cause", {**PAYLOADS["find_cause"], **changed}, Finding)


def propose_plans(tools: Tools) -> Question[Suggestions]:
    return Question("propose_plans", PAYLOADS["propose_plans"], Suggestions, tools)


def explain_plan(plan: SuggestedPlan) -> object:
    """Say what speaks against a plan."""
    return {"accepted": plan.tp == 4, "why": "the slower term is pipeline_bubble"}


def find_knowledge(query: str, limit: int = 3) -> object:
    """Find playbooks by a description."""
    return [{"id": "tp-smaller", "title": query}] * limit


TOOLS: Tools = {"explain_plan": explain_plan, "find_knowledge": find_knowledge}
