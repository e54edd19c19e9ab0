"""Use cases of sessions: submit, cancel, retry, decide, ask, delete, export a proposal.

The API, the pages and nightly runs all call these; nothing here knows about HTTP.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import sqlalchemy as sa
from pydantic import JsonValue, TypeAdapter

from graph.ask import Answered, ask
from graph.context import Context
from graph.report import PendingDecision, Report
from graph.request import parse_decision, parse_request
from service.addresses import parse_target
from service.auth import Caller
from service.db.access import record
from service.db.engine import Database
from service.db.lifecycle import decide, request_cancel, retry
from service.db.models import WAITING, SessionRow, new_id
from service.db.sessions import (
    DEFAULT_PRIORITY,
    NewSession,
    annotate_session,
    count_busy,
    create_session,
    delete_session,
    find_by_key,
    get_session,
    lock_session,
    rename_session,
)
from service.db.traces import COMPLETE, get_trace
from service.errors import ConflictError, NotFoundError, QuotaError
from service.logs import request_id
from service.runtime import check_tune, shared_reasoner
from service.settings import Settings
from service.strict_json import JsonObject
from service.uploads import check_server_path, find_reference
from tools.cost.predict import predict
from tools.errors import InputError
from tools.frameworks import Export, export_plan
from tools.kb import KnowledgeBase
from tools.recommend.notes import apply_statements
from tools.recommend.report import Proposal
from tools.scenario import parse_scenario

MAX_LABELS = 32
MAX_LABEL_CHARACTERS = 200
MAX_NAME_CHARACTERS = 120
MAX_REMARK_CHARACTERS = 4000
LABEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"

SCENARIO_PARTS = ("model", "cluster", "training", "plan", "constraints")
PROPOSALS = TypeAdapter(list[Proposal])


class SessionQueue(Protocol):
    """Where a session's next run is enqueued for the workers."""

    def enqueue(self, conn: sa.Connection, row: SessionRow) -> None:
        """In the transaction that changed the session."""


@dataclass(frozen=True)
class Submission:
    """A session as a caller asks for it."""

    request: JsonObject
    """The body of `asap optimize`, with mode and approval."""
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    priority: int = DEFAULT_PRIORITY
    webhook: str | None = None
    budget: Mapping[str, float] | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True)
class Sessions:
    settings: Settings
    database: Database
    queue: SessionQueue

    def submit(self, caller: Caller, submission: Submission) -> SessionRow:
        """Returns when the session is durably enqueued. Idempotent under the same idempotency key."""
        new = self._parse(caller, submission)
        with self.database.begin() as conn:
            _check_upload(conn, caller.tenant, submission.request)
            row, created = create_session(conn, new)
            if created:
                self._check_quota(conn, caller)
                self.queue.enqueue(conn, row)
        return row

    def _check_quota(self, conn: sa.Connection, caller: Caller) -> None:
        """After the session was stored, which is undone if it is one too many."""
        if caller.is_local:
            return
        limits = (
            (caller.name, self.settings.key_queued, f"{caller.name} has"),
            (None, self.settings.tenant_queued, "this tenant has"),
        )
        for owner, most, who in limits:
            if count_busy(conn, caller.tenant, owner) > most:
                raise QuotaError(f"{who} {most} sessions queued or running, the maximum; wait for some")

    def check(self, caller: Caller, submission: Submission) -> None:
        """Raises what `submit` would raise, and stores nothing."""
        self._parse(caller, submission)
        with self.database.read() as conn:
            _check_upload(conn, caller.tenant, submission.request)

    def cancel(self, caller: Caller, id: str) -> SessionRow:
        """At once if no worker runs it, else at its next event. Idempotent."""
        return self._change(caller, "session.cancel", id, request_cancel)

    def retry(self, caller: Caller, id: str) -> SessionRow:
        """A failed or cancelled session runs again from the start, as a new attempt."""
        return self._change(caller, "session.retry", id, retry)

    def rename(self, caller: Caller, id: str, name: str | None) -> SessionRow:
        """An empty name takes it away."""
        name = parse_name(name)
        return self._change(
            caller, "session.rename", id, lambda conn, row: rename_session(conn, row, name), to={"name": name}
        )

    def annotate(self, caller: Caller, id: str, labels: Mapping[str, str], remark: str | None) -> SessionRow:
        """Labels and a remark, in place of those it has."""
        _check_labels(labels)
        if remark and len(remark) > MAX_REMARK_CHARACTERS:
            raise InputError("remark", remark, f"at most {MAX_REMARK_CHARACTERS} characters")
        return self._change(
            caller,
            "session.annotate",
            id,
            lambda conn, row: annotate_session(conn, row, labels, remark or None),
            to={"labels": dict(labels), "remark": remark or None},
        )

    def decide(
        self, caller: Caller, id: str, body: Mapping[str, JsonValue], idempotency_key: str | None = None
    ) -> SessionRow:
        """Stores a person's decision and enqueues the run that acts on it. Idempotent by its id."""
        if "by" in body:
            raise InputError("by", body["by"], "not accepted: the key says who decides")
        decision = parse_decision({**body, "by": caller.name[:200]})
        own = decision.id or idempotency_key
        # Hashed with the session's id: two tenants may choose the same id.
        digest = hashlib.sha256(f"{id}/{own}".encode()).hexdigest()[:32]
        stored = decision.model_copy(update={"id": digest if own else new_id()}).model_dump(mode="json")
        return self._change(
            caller,
            "session.decide",
            id,
            lambda conn, row: decide(conn, row, stored, caller.name),
            decision=stored,
        )

    def ask(
        self,
        caller: Caller,
        id: str,
        question: str,
        knowledge: KnowledgeBase,
        progress: Callable[[float], None] | None = None,
        turn: AbstractContextManager[object] | None = None,
    ) -> Answered:
        """A question about a completed session, answered from its report; nothing of it changes.

        `turn` is held while something is computed, and not while a model thinks.
        """
        row = self.get(caller, id)
        if row.report is None:
            raise missing_result(row, "questions can be asked when it is completed")
        report = Report.model_validate(row.report)
        request = row.request or {}
        described = {name: request[name] for name in SCENARIO_PARTS if request.get(name) is not None}
        scenario = parse_scenario(described, need_plan=False)
        if report.notes and report.notes.accepted:
            scenario = apply_statements(report.notes.accepted, scenario).scenario
        context = Context(knowledge, shared_reasoner(self.settings), progress=progress)
        return ask(question, report, scenario, context, caller.tenant, turn)

    def delete(self, caller: Caller, id: str) -> None:
        """With its events, decisions and report; one that has not ended must be cancelled first."""
        with self.database.begin() as conn:
            delete_session(conn, caller.tenant, id)
            record(conn, caller.tenant, caller.name, "session.delete", id, request_id.get())

    def get(self, caller: Caller, id: str, report: bool = True) -> SessionRow:
        with self.database.read() as conn:
            return get_session(conn, caller.tenant, id, report)

    def find_by_key(self, caller: Caller, idempotency_key: str) -> SessionRow | None:
        """The session that was submitted under this key."""
        with self.database.read() as conn:
            id = find_by_key(conn, caller.tenant, idempotency_key)
            return get_session(conn, caller.tenant, id) if id else None

    def _parse(self, caller: Caller, submission: Submission) -> NewSession:
        """Raises InputError for the first thing that is wrong."""
        request = parse_request(submission.request, caller.knowledge_tenant)
        if request.mode == "tune":
            check_tune(self.settings, request)
        scenario = request.scenario
        _check_labels(submission.labels)
        if submission.webhook is not None:
            self._check_webhook(submission.webhook)
        if scenario.traces is not None:
            self._check_traces(caller, scenario.traces)
        return NewSession(
            request=submission.request,
            tenant=caller.tenant,
            owner=caller.name,
            mode=request.mode,
            approval=request.approval,
            priority=submission.priority,
            labels=submission.labels,
            model=scenario.model.name or None,
            device=scenario.cluster.device,
            num_devices=scenario.cluster.num_devices,
            name=parse_name(submission.name),
            budget=dict(submission.budget) if submission.budget is not None else None,
            webhook=submission.webhook,
            idempotency_key=submission.idempotency_key,
        )

    def _check_traces(self, caller: Caller, traces: str) -> None:
        if find_reference(traces) is None:
            check_server_path(self.settings, caller, "traces", traces)

    def _check_webhook(self, url: str) -> None:
        if self.settings.webhook_secret is None:
            allowed = "this installation sends none: ASAP_WEBHOOK_SECRET, which signs them, is not set"
            raise InputError("webhook", url, allowed)
        parse_target(url, self.settings.webhook_private)

    def _change(
        self,
        caller: Caller,
        action: str,
        id: str,
        change: Callable[[sa.Connection, SessionRow], SessionRow],
        **details: JsonObject,
    ) -> SessionRow:
        """A change that needs another run enqueues it; one that changed nothing is not in the audit log."""
        with self.database.begin() as conn:
            before = lock_session(conn, id, tenant=caller.tenant)
            after = change(conn, before)
            if after.dispatch_no != before.dispatch_no:
                self.queue.enqueue(conn, after)
            if after is not before:
                record(conn, caller.tenant, caller.name, action, id, request_id.get(), **details)
        return after


def find_proposals(row: SessionRow) -> list[Proposal]:
    """Of the report, or those that wait for a decision; ConflictError if there are none yet."""
    if row.report is not None:
        return PROPOSALS.validate_python(row.report["proposals"])
    if row.state != WAITING or row.waiting_for is None:
        raise missing_result(row, "it has no proposals yet")
    waiting = PendingDecision.model_validate(row.waiting_for).proposals
    scenarios = [parse_scenario(_with_plan(row, proposal.plan.model_dump())) for proposal in waiting]
    return [
        Proposal.model_validate({**dict(proposal), "plan": scenario.plan, "prediction": prediction})
        for proposal, scenario, prediction in zip(waiting, scenarios, predict(scenarios), strict=True)
    ]


def export_proposal(row: SessionRow, rank: int, format: str) -> Export:
    """The proposal as a configuration file of a training framework."""
    proposal = next((proposal for proposal in find_proposals(row) if proposal.rank == rank), None)
    if proposal is None:
        raise NotFoundError("proposal", str(rank))
    scenario = parse_scenario(_with_plan(row, proposal.plan.model_dump()))
    training = scenario.training.model_copy(update=proposal.settings)
    try:
        return export_plan(scenario.model_copy(update={"training": training}), format)
    except InputError as error:
        raise InputError(error.field.removeprefix("--"), error.given, error.allowed) from None


def missing_result(row: SessionRow, reason: str) -> ConflictError:
    """A failed session will never have a result: its error is the answer."""
    reason = row.error["message"] if row.error else reason
    return ConflictError(f"session {row.id} is {row.state}; {reason}", field="state")


def _with_plan(row: SessionRow, plan: JsonValue) -> JsonObject:
    """The session's model, cluster and training with this plan in place of today's."""
    request = row.request or {}
    return {**{name: request[name] for name in ("model", "cluster", "training")}, "plan": plan}


def _check_upload(conn: sa.Connection, tenant: str, request: JsonObject) -> None:
    """An upload must belong to the tenant and be complete."""
    traces = request.get("traces")
    id = find_reference(str(traces)) if traces else None
    if id is None:
        return
    try:
        trace = get_trace(conn, tenant, id)
    except NotFoundError:
        raise InputError("traces", traces, "there is no such upload") from None
    if trace.state != COMPLETE:
        raise ConflictError(f"the upload {id} is {trace.state}; complete it first", field="traces")


def parse_name(name: str | None) -> str | None:
    """On one line, with single spaces."""
    name = " ".join((name or "").split())
    if len(name) > MAX_NAME_CHARACTERS:
        raise InputError("name", name, f"at most {MAX_NAME_CHARACTERS} characters")
    return name or None


def _check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise InputError("labels", f"{len(labels)} labels", f"at most {MAX_LABELS}")
    for name, value in labels.items():
        if not re.fullmatch(LABEL_NAME, name):
            allowed = "a name has at most 63 letters, digits and . _ / -, and begins with a letter or digit"
            raise InputError("labels", name, allowed)
        if len(value) > MAX_LABEL_CHARACTERS:
            raise InputError(f"labels.{name}", value, f"at most {MAX_LABEL_CHARACTERS} characters")
