"""Reports of real sessions, each made once, and the same with text that tries to be more than text."""

import copy
import json
from functools import cache

from graph.report import Report
from graph.request import parse_request
from service.render import report as rendered
from service.render import view
from tests.unit.graph.cases import Raw, report_of, small

SMALL: Raw = small(
    id="small",
    model={
        "name": "small model", "num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 8, "vocab_size": 32000,
    },
    plan={
        "tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 2, "dp_shard": 2, "zero_stage": 1, "micro_batch_size": 1,
        "recompute": "full",
    },
)  # fmt: skip
COLD: Raw = {name: part for name, part in SMALL.items() if name != "plan"}
SCORED: Raw = {"plan": {}, "summary": "s", "accepted": False, "binding": "time", "why": "w"}
BOOK = ("id", "title", "do", "why", "effect")


def session(raw: Raw) -> Raw:
    """The report; a copy, since a test may change it."""
    return copy.deepcopy(_session(json.dumps(raw)))


@cache
def _session(text: str) -> Raw:
    return report_of(json.loads(text))


def view_of(request: Raw, report: Raw) -> view.ReportView:
    return view.view_of(parse_request(request).scenario, Report.model_validate(report))


def html_report(request: Raw, report: Raw) -> str:
    return rendered.html_report(view_of(request, report))


def markdown_report(request: Raw, report: Raw) -> str:
    return rendered.markdown_report(view_of(request, report))


def full(text: str = "plain text") -> tuple[Raw, Raw]:
    """A report in which every section has something to say, and all that came from elsewhere says `text`."""
    scenario, report = copy.deepcopy(SMALL), session(SMALL)
    scenario |= {"notes": "keep it simple", "id": text}
    scenario["model"] = {**scenario["model"], "name": text}
    source = _source(text)
    said = {"ref": text, "says": text}
    return scenario, report | {
        "id": text,
        "verdict": text,
        "first_step": text,
        "would_change": text,
        "diagnosis": report["diagnosis"] | {"weighed": text, "evidence": [{"kind": "profile", **said}]},
        "proposals": [
            proposal | {"rationale": text, "risks": [text], "evidence": [{"kind": "knowledge", **said}]}
            for proposal in report["proposals"]
        ],
        "advice": [dict.fromkeys(BOOK, text) | {"risks": [text], "sources": [source]}],
        "cases": [_case(text, "confirmed"), _case(text, "refuted")],
        "rejected": [
            {"plan": report["proposals"][0]["plan"], "summary": text, "binding": "memory", "why": text}
        ],
        "considered": [{**SCORED, "origin": text, "summary": text, "binding": "rule", "why": text}],
        "notes": {"accepted": [], "refused": [_statement(text)], "says": text},
        "profile": _profile(text),
        "decisions": [
            {"id": None, "by": text, "action": "approve", "proposal": 1, "comment": text, "plan": None}
        ],
        "trials": [trial(text), trial(text, failed=True), trial(text, refused=True)],
        "stopping": {
            "says": text, "expected_gain": 0.01, "noise": 0.02, "device_hours": 8.0, "trials": 4,
            "spent_device_hours": 0.5, "spent_trials": 3,
        },
        "incidents": [{"node": "verify", "kind": text, "says": text}],
        "route": [{"step": "verify", "reason": text}],
        "reasoner": text,
        "case": text,
    }  # fmt: skip


def trial(text: str, *, failed: bool = False, refused: bool = False) -> Raw:
    """The first is a baseline's, measured twice."""
    predicted = {
        "step_time_s": 2.0, "step_time_low_s": 1.8, "step_time_high_s": 2.3, "peak_memory_gib": 40.0,
        "summary": text,
    }  # fmt: skip
    measured: Raw = {
        "key": "a", "status": "measured", "role": "candidate" if failed or refused else "baseline",
        "rank": 1, "plan": session(SMALL)["proposals"][0]["plan"], "predicted": predicted, "summary": text,
        "template": "local", "runs": ["a", "a-r2"], "failure": None, "refusals": [], "device_hours": 0.1,
        "seconds": 60.0, "waited_s": 1.0, "traces": None, "terms": None, "says": text, "steps": 40,
        "speedup": 1.25, "speedup_low": 1.2, "speedup_high": 1.3, "step_time_s": 2.5,
        "interval_s": [2.4, 2.6],
    }  # fmt: skip
    if refused:
        refusal = {"entry": "nodes", "baseline": text, "trial": text, "says": text}
        return measured | {"status": "refused", "refusals": [refusal], "speedup": None}
    if failed:
        failure = {"kind": "out_of_memory", "confidence": 0.9, "evidence": [text]}
        return measured | {"status": "failed", "failure": failure, "speedup": None, "step_time_s": None}
    return measured


def _source(text: str) -> Raw:
    """A source of the knowledge base is never empty and has no control characters."""
    printable = "".join(letter for letter in text if letter.isprintable()).strip() or "source"
    return {"title": printable, "where": printable}


def _case(text: str, status: str) -> Raw:
    case = {"id": text, "title": text, "status": status, "lesson": text, "sources": [_source(text)]}
    return case | {"warning": status == "refuted", "measured": None}


def _statement(text: str) -> Raw:
    return {"kind": "constraint", "field": text, "value": text, "quote": text, "reason": text}


def _profile(text: str) -> Raw:
    times = ("communication", "exposed_communication", "memory", "idle_host", "idle_waiting", "idle_unknown")
    total = {f"{name}_us": 1.0 for name in times} | {"compute_us": 6.0, "idle_us": 1.0, "total_us": 10.0}
    diagnosis = {
        "bottleneck": "compute", "severity": 0.6, "confidence": 0.7, "summary": text,
        "shares": {"compute": 0.6}, "evidence": [],
        "competing_causes": [{"bottleneck": "host", "severity": 0.1, "why": text}],
        "next_to_profile": [text],
    }  # fmt: skip
    straggler = {
        "rank": 0, "arrives_last_ratio": 0.5, "late_by_us": 1.0, "late_total_us": 1.0,
        "share_of_lateness": 1.0, "cause": text,
        "cause_us": {"loader_us": 1.0, "host_us": 1.0, "compute_us": 1.0},
    }  # fmt: skip
    return {
        "step_time_s": None, "diagnosis": diagnosis, "total": total | {"overlap_ratio": 0.5}, "ranks": 2,
        "unreadable": [{"file": text, "reason": text}], "stragglers": [straggler], "collectives": [],
        "top_ops": [],
    }  # fmt: skip
