"""The five questions with small payloads of the shape that the nodes make."""

from collections.abc import Mapping
from typing import Any

from graph.answers import (
    Answer,
    Choice,
    Prose,
    Question,
    Reading,
    SuggestedPlan,
    Suggestions,
    Tools,
    Weighing,
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
PAYLOADS: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {"notes": NOTES, "scenario": SCENARIO},
    "choose_step": {
        "options": [{"step": "learn", "reason": "keep it"}, {"step": "proposal", "reason": "look again"}],
        "facts": {"verified": True},
    },
    "weigh_diagnoses": {
        "competing": [
            {"bottleneck": "communication", "source": "profile", "says": "severity 31%"},
            {"bottleneck": "compute", "source": "model", "says": "60% of the predicted step"},
        ],
        "evidence": DIAGNOSIS["evidence"],
        "facts": {"tp": 8},
    },
    "suggest_plans": {
        "scenario": SCENARIO, "plan": PLAN, "diagnosis": DIAGNOSIS, "proposals": [PROPOSAL],
        "playbooks": [{"id": "tp-smaller", "why": "tensor parallelism costs", "resolved_moves": [{"tp": 4}]}],
        "hits": [], "refused": [],
    },
    "explain": {
        "scenario": SCENARIO, "baseline": PREDICTION, "diagnosis": DIAGNOSIS, "proposals": [PROPOSAL],
        "rejected": [], "sensitivity": [], "considered": [], "playbooks": [],
    },
}  # fmt: skip
TYPES: Mapping[str, type[Answer]] = {
    "read_notes": Reading,
    "choose_step": Choice,
    "weigh_diagnoses": Weighing,
    "suggest_plans": Suggestions,
    "explain": Prose,
}
GOOD: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {
        "statements": [
            {"quote": "2:1 oversubscribed", "kind": "topology", "field": "oversubscription", "value": 2}
        ]
    },
    "choose_step": {"step": "learn", "reason": "nothing is left to try"},
    "weigh_diagnoses": {"bottleneck": "communication", "reason": "it is measured"},
    "suggest_plans": {"suggestions": [{"plan": {"tp": 4}, "origin": "tp-smaller", "reason": "less to send"}]},
    "explain": {
        "verdict": "Communication limits the step.",
        "first_step": "Run proposal 1.",
        "would_change": "A faster network.",
        "rationales": ["Fewer bytes over the links."],
    },
}


def question(name: str, tools: Tools | None = None, **changed: object) -> Question[Answer]:
    return Question(name, {**PAYLOADS[name], **changed}, TYPES[name], tools or {})


def choose_step(**changed: object) -> Question[Choice]:
    return Question("choose_step", {**PAYLOADS["choose_step"], **changed}, Choice)


def suggest_plans(tools: Tools) -> Question[Suggestions]:
    return Question("suggest_plans", PAYLOADS["suggest_plans"], Suggestions, tools)


def explain_plan(plan: SuggestedPlan) -> object:
    """Say what speaks against a plan."""
    return {"accepted": plan.tp == 4, "why": "the slower term is pipeline_bubble"}


def find_knowledge(query: str, limit: int = 3) -> object:
    """Find playbooks by a description."""
    return [{"id": "tp-smaller", "title": query}] * limit


TOOLS: Tools = {"explain_plan": explain_plan, "find_knowledge": find_knowledge}
