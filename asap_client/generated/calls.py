"""Every operation of the API as a function that returns a call.

Written by `make client`: edit scripts/make_client.py.
"""

from collections.abc import Sequence
from typing import Literal

from asap_client.core import (
    Body,
    Call,
    JsonObject,
    as_items,
    as_json,
    as_nothing,
    as_record,
    as_text,
    idempotency_header,
    path,
    stated,
)
from asap_client.generated.models import (
    AgainstCreate,
    Answered,
    AuditPage,
    CaseCreate,
    ClusterList,
    ClusterPublic,
    Decision,
    Entry,
    EntryPage,
    ExplainedPlan,
    ExplainedPrediction,
    Export,
    Fork,
    HealthPublic,
    Hits,
    MarkCreate,
    Place,
    Prediction,
    Proposal,
    ReadyPublic,
    Recommendation,
    RefusalPublic,
    Report,
    Run,
    RunComparison,
    RunPage,
    Schedule,
    ScheduleCreate,
    SchedulePage,
    Session,
    SessionCreate,
    SessionPage,
    SessionPatch,
    SessionWithRequest,
    StatedScenario,
    Trace,
    TraceFile,
    TracePage,
    TraceWithFiles,
    WorkloadPublic,
)

ReportForm = Literal["text/markdown", "text/html"]


def health() -> Call[HealthPublic]:
    return Call("GET", "/healthz", as_json)


def ready() -> Call[ReadyPublic]:
    return Call("GET", "/readyz", as_json)


def metrics() -> Call[str]:
    return Call("GET", "/metrics", as_text)


def submit(session: SessionCreate | Body, idempotency_key: str | None = None) -> Call[Session]:
    return Call(
        "POST",
        "/v1/sessions",
        as_record(Session),
        json=dict(session),
        headers=idempotency_header(idempotency_key),
    )


def sessions(
    *,
    state: Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"] | None = None,
    device: str | None = None,
    model: str | None = None,
    label: str | list[str] | None = None,
    text: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Call[SessionPage]:
    return Call(
        "GET",
        "/v1/sessions",
        as_record(SessionPage),
        params=stated(
            state=state, device=device, model=model, label=label, text=text, cursor=cursor, limit=limit
        ),
    )


def session(id: str) -> Call[SessionWithRequest]:
    return Call("GET", f"/v1/sessions/{path(id)}", as_record(SessionWithRequest))


def update(id: str, changes: SessionPatch | Body) -> Call[Session]:
    return Call("PATCH", f"/v1/sessions/{path(id)}", as_record(Session), json=dict(changes))


def delete(id: str) -> Call[None]:
    return Call("DELETE", f"/v1/sessions/{path(id)}", as_nothing)


def cancel(id: str) -> Call[Session]:
    return Call("POST", f"/v1/sessions/{path(id)}/cancel", as_record(Session))


def retry(id: str) -> Call[Session]:
    return Call("POST", f"/v1/sessions/{path(id)}/retry", as_record(Session), idempotent=False)


def decide(id: str, decision: Decision | Body, idempotency_key: str | None = None) -> Call[Session]:
    return Call(
        "POST",
        f"/v1/sessions/{path(id)}/decision",
        as_record(Session),
        json=dict(decision),
        headers=idempotency_header(idempotency_key),
    )


def fork(id: str, fork: Fork | Body, idempotency_key: str | None = None) -> Call[Session]:
    return Call(
        "POST",
        f"/v1/sessions/{path(id)}/fork",
        as_record(Session),
        json=dict(fork),
        headers=idempotency_header(idempotency_key),
    )


def ask(id: str, question: str) -> Call[Answered]:
    return Call("POST", f"/v1/sessions/{path(id)}/ask", as_json, json={"question": question})


def report(id: str) -> Call[Report]:
    return Call("GET", f"/v1/sessions/{path(id)}/report", as_json, headers={"Accept": "application/json"})


def report_text(id: str, form: ReportForm) -> Call[str]:
    return Call("GET", f"/v1/sessions/{path(id)}/report", as_text, headers={"Accept": form})


def proposals(id: str) -> Call[list[Proposal]]:
    return Call("GET", f"/v1/sessions/{path(id)}/proposals", as_items)


def export(
    id: str,
    rank: int,
    format: Literal[
        "torchtitan",
        "megatron",
        "nemo",
        "deepspeed",
        "maxtext",
        "accelerate",
        "nanotron",
        "automodel",
        "huggingface",
    ],
) -> Call[Export]:
    return Call(
        "GET",
        f"/v1/sessions/{path(id)}/proposals/{path(rank)}/export",
        as_record(Export),
        params=stated(format=format),
        headers={"Accept": "application/json"},
    )


def create_trace(name: str = "") -> Call[Trace]:
    return Call("POST", "/v1/traces", as_record(Trace), json={"name": name}, idempotent=False)


def traces(*, cursor: str | None = None, limit: int | None = None) -> Call[TracePage]:
    return Call("GET", "/v1/traces", as_record(TracePage), params=stated(cursor=cursor, limit=limit))


def trace(id: str) -> Call[TraceWithFiles]:
    return Call("GET", f"/v1/traces/{path(id)}", as_record(TraceWithFiles))


def delete_trace(id: str) -> Call[None]:
    return Call("DELETE", f"/v1/traces/{path(id)}", as_nothing)


def complete_trace(id: str, files: dict[str, str]) -> Call[TraceWithFiles]:
    return Call("POST", f"/v1/traces/{path(id)}/complete", as_record(TraceWithFiles), json={"files": files})


def put_part(id: str, name: str, content: bytes, *, offset: int | None = None) -> Call[TraceFile]:
    return Call(
        "PUT",
        f"/v1/traces/{path(id)}/files/{path(name)}",
        as_record(TraceFile),
        params=stated(offset=offset),
        content=content,
    )


def knowledge_entries(
    *,
    kind: Literal["playbook", "case"] | None = None,
    status: Literal["confirmed", "hypothesis", "refuted"] | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Call[EntryPage]:
    return Call(
        "GET",
        "/v1/knowledge",
        as_record(EntryPage),
        params=stated(kind=kind, status=status, cursor=cursor, limit=limit),
    )


def add_case(case: CaseCreate | Body) -> Call[Entry]:
    return Call("POST", "/v1/knowledge", as_record(Entry), json=dict(case))


def search_knowledge(
    query: str,
    *,
    limit: int | None = None,
    device: str | None = None,
    architecture: str | None = None,
    bottleneck: str | None = None,
    topic: str | None = None,
    framework: str | None = None,
    vendor: str | None = None,
    num_devices: int | None = None,
) -> Call[Hits]:
    return Call(
        "GET",
        "/v1/knowledge/search",
        as_record(Hits),
        params=stated(
            q=query,
            limit=limit,
            device=device,
            architecture=architecture,
            bottleneck=bottleneck,
            topic=topic,
            framework=framework,
            vendor=vendor,
            num_devices=num_devices,
        ),
    )


def knowledge(id: str) -> Call[Entry]:
    return Call("GET", f"/v1/knowledge/{path(id)}", as_record(Entry))


def mark_case(id: str, mark: MarkCreate | Body) -> Call[Entry]:
    return Call("POST", f"/v1/knowledge/{path(id)}/mark", as_record(Entry), json=dict(mark))


def report_runs(rows: Sequence[Body] | Body) -> Call[ClusterList]:
    return Call("POST", "/v1/measurements", as_json, json=rows)


def clusters(*, cursor: str | None = None, limit: int | None = None) -> Call[ClusterList]:
    return Call("GET", "/v1/measurements", as_json, params=stated(cursor=cursor, limit=limit))


def cluster(name: str) -> Call[ClusterPublic]:
    return Call("GET", f"/v1/measurements/{path(name)}", as_json)


def undo_runs(name: str) -> Call[ClusterPublic]:
    return Call("DELETE", f"/v1/measurements/{path(name)}", as_json)


def hardware() -> Call[list[JsonObject]]:
    return Call("GET", "/v1/hardware", as_json)


def device(name: str) -> Call[JsonObject]:
    return Call("GET", f"/v1/hardware/{path(name)}", as_json)


def predict(statedscenario: StatedScenario | Body) -> Call[ExplainedPrediction]:
    return Call("POST", "/v1/predict", as_json, json=dict(statedscenario))


def predict_batch(scenarios: Sequence[Body]) -> Call[list[Prediction | RefusalPublic]]:
    return Call("POST", "/v1/predict/batch", as_json, json=[dict(item) for item in scenarios])


def search_plans(statedscenario: StatedScenario | Body) -> Call[Recommendation]:
    return Call("POST", "/v1/plans/search", as_json, json=dict(statedscenario))


def explain_plan(scenario: StatedScenario | Body, plan: Body) -> Call[ExplainedPlan]:
    return Call("POST", "/v1/plans/explain", as_json, json={"scenario": dict(scenario), "plan": dict(plan)})


def create_against(against: AgainstCreate | Body) -> Call[RunComparison]:
    return Call("POST", "/v1/plans/against", as_json, json=dict(against))


def compare_clusters(scenario: StatedScenario | Body, clusters: Sequence[Body]) -> Call[list[Place]]:
    return Call(
        "POST",
        "/v1/plans/where",
        as_json,
        json={"scenario": dict(scenario), "clusters": [dict(item) for item in clusters]},
    )


def add_schedule(schedule: ScheduleCreate | Body) -> Call[Schedule]:
    return Call("POST", "/v1/schedules", as_record(Schedule), json=dict(schedule), idempotent=False)


def schedules(*, cursor: str | None = None, limit: int | None = None) -> Call[SchedulePage]:
    return Call("GET", "/v1/schedules", as_record(SchedulePage), params=stated(cursor=cursor, limit=limit))


def schedule(id: str) -> Call[Schedule]:
    return Call("GET", f"/v1/schedules/{path(id)}", as_record(Schedule))


def remove_schedule(id: str) -> Call[None]:
    return Call("DELETE", f"/v1/schedules/{path(id)}", as_nothing)


def pause_schedule(id: str) -> Call[Schedule]:
    return Call("POST", f"/v1/schedules/{path(id)}/pause", as_record(Schedule))


def resume_schedule(id: str) -> Call[Schedule]:
    return Call("POST", f"/v1/schedules/{path(id)}/resume", as_record(Schedule))


def run_schedule(id: str) -> Call[Run]:
    return Call("POST", f"/v1/schedules/{path(id)}/run", as_record(Run), idempotent=False)


def runs(id: str, *, cursor: str | None = None, limit: int | None = None) -> Call[RunPage]:
    return Call(
        "GET", f"/v1/schedules/{path(id)}/runs", as_record(RunPage), params=stated(cursor=cursor, limit=limit)
    )


def run(id: str, run_id: str) -> Call[Run]:
    return Call("GET", f"/v1/schedules/{path(id)}/runs/{path(run_id)}", as_record(Run))


def run_report(id: str, run_id: str) -> Call[JsonObject]:
    return Call(
        "GET",
        f"/v1/schedules/{path(id)}/runs/{path(run_id)}/report",
        as_json,
        headers={"Accept": "application/json"},
    )


def run_report_text(id: str, run_id: str, form: ReportForm) -> Call[str]:
    return Call(
        "GET", f"/v1/schedules/{path(id)}/runs/{path(run_id)}/report", as_text, headers={"Accept": form}
    )


def workload_report(id: str, run_id: str, name: str) -> Call[JsonObject]:
    return Call(
        "GET",
        f"/v1/schedules/{path(id)}/runs/{path(run_id)}/workloads/{path(name)}",
        as_json,
        headers={"Accept": "application/json"},
    )


def workload_report_text(id: str, run_id: str, name: str, form: ReportForm) -> Call[str]:
    return Call(
        "GET",
        f"/v1/schedules/{path(id)}/runs/{path(run_id)}/workloads/{path(name)}",
        as_text,
        headers={"Accept": form},
    )


def workloads() -> Call[list[WorkloadPublic]]:
    return Call("GET", "/v1/workloads", as_items)


def workload(name: str) -> Call[WorkloadPublic]:
    return Call("GET", f"/v1/workloads/{path(name)}", as_json)


def forget_workload(name: str) -> Call[None]:
    return Call("DELETE", f"/v1/workloads/{path(name)}", as_nothing)


def audit(
    *, target: str | None = None, cursor: str | None = None, limit: int | None = None
) -> Call[AuditPage]:
    return Call("GET", "/v1/audit", as_json, params=stated(target=target, cursor=cursor, limit=limit))
