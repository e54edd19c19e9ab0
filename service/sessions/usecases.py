"""Use cases of sessions: submit, fork, cancel, retry, decide, ask, delete, export a proposal.

The API, the pages and nightly runs all call these; nothing here knows about HTTP.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa
from pydantic import TypeAdapter

from graph.ask import Answered, ask
from graph.context import Context
from graph.report import PendingDecision, Report
from graph.request import Decision, Fork
from service.access.auth import Caller
from service.access.store import record
from service.addresses import parse_target
from service.db.engine import Database
from service.db.ids import new_id
from service.db.queries import lock_tenant
from service.errors import ConflictError, NotFoundError, QuotaError
from service.logs import request_id
from service.runtime import check_tune, reasoner_for, shared_reasoner
from service.sessions import lifecycle, store
from service.sessions.dispatch import SessionQueue
from service.sessions.event_store import told_events
from service.sessions.forks import fork_origin, tell_fork
from service.sessions.model import WAITING, SessionChoices, SessionCreate, SessionPatch, SessionRow
from service.settings import Settings
from service.strict_json import JsonObject
from service.traces.model import COMPLETE
from service.traces.store import get_trace
from service.traces.uploads import check_server_path, find_reference
from tools.errors import InputError
from tools.frameworks import Export, export_plan
from tools.kb import KnowledgeBase
from tools.model.predict import predict
from tools.recommend.report import Proposal
from tools.scenario import Plan, Scenario, parse_scenario
from tools.scenario.fields import build

SCENARIO_PARTS = ("model", "cluster", "training", "plan", "constraints", "run")
PROPOSALS = TypeAdapter(list[Proposal])


@dataclass(frozen=True)
class Sessions:
    settings: Settings
    database: Database
    queue: SessionQueue

    def submit(self, caller: Caller, body: SessionCreate, idempotency_key: str | None = None) -> SessionRow:
        """Returns when the session is durably enqueued. Idempotent under the same idempotency key."""
        return self._enqueue(caller, self._parse(caller, body, idempotency_key), body.traces)

    def fork(self, caller: Caller, id: str, fork: Fork, idempotency_key: str | None = None) -> SessionRow:
        """Another session, of the same request but for what the fork changes, that goes on from a step of
        this one. It counts against the limits as a submitted one does."""
        if fork.decision:
            caller.check("approve")
            signed = _signed(caller, id, fork.decision, idempotency_key)
            fork = fork.model_copy(update={"decision": signed})
        with self.database.read() as conn:
            parent = store.get_session(conn, caller.tenant, id, report=False)
            origin = fork_origin(parent, told_events(conn, id), fork)
        stated = parent.request | fork.model_dump(include={"notes", "constraints"}, exclude_none=True)
        stated |= {"labels": parent.labels, "priority": parent.priority, "budget": parent.budget}
        body = build(SessionCreate, stated)
        new = self._parse(caller, body, idempotency_key).model_copy(update={"forked_from": origin})
        return self._enqueue(caller, new, body.traces)

    def _enqueue(self, caller: Caller, new: SessionRow, traces: str | None) -> SessionRow:
        with self.database.begin() as conn:
            _check_upload(conn, caller.tenant, traces)
            lock_tenant(conn, caller.tenant)
            row, created = store.create_session(conn, new)
            if created:
                limits = (
                    (caller.name, self.settings.key_queued, f"{caller.name} has"),
                    (None, self.settings.tenant_queued, "this tenant has"),
                )
                for owner, most, who in () if caller.is_local else limits:  # one too many is undone
                    if store.count_busy(conn, caller.tenant, owner) > most:
                        rule = "sessions queued, running or waiting for approval, the maximum"
                        raise QuotaError(f"{who} {most} {rule}; let some end")
                if row.forked_from:
                    tell_fork(conn, row, row.forked_from)
                self.queue.enqueue(conn, row)
        return row

    def check(self, caller: Caller, body: SessionCreate) -> None:
        """Raises what `submit` would raise, and stores nothing."""
        self._parse(caller, body, None)
        with self.database.read() as conn:
            _check_upload(conn, caller.tenant, body.traces)

    def cancel(self, caller: Caller, id: str) -> SessionRow:
        """At once if no worker runs it, else at its next event. Idempotent."""
        return self._change(caller, "session.cancel", id, lifecycle.request_cancel)

    def retry(self, caller: Caller, id: str) -> SessionRow:
        """A failed or cancelled session runs again from the start, as a new attempt."""
        return self._change(caller, "session.retry", id, lifecycle.retry)

    def update(self, caller: Caller, id: str, patch: SessionPatch) -> SessionRow:
        """A name, labels and a remark in place of those it has; what the patch does not set stays."""
        changed = patch.model_dump(exclude_unset=True)
        if "labels" in changed:
            changed["labels"] = patch.labels or {}
        return self._change(
            caller,
            "session.update",
            id,
            lambda conn, row: store.update_session(conn, row, **changed) if changed else row,
            to=changed,
        )

    def decide(
        self, caller: Caller, id: str, decision: Decision, idempotency_key: str | None = None
    ) -> SessionRow:
        """Stores a person's decision and enqueues the run that acts on it. Idempotent by its id."""
        stored = _signed(caller, id, decision, idempotency_key)
        details = {"decision": stored.model_dump(mode="json")}
        return self._change(
            caller, "session.decide", id, lambda conn, row: lifecycle.decide(conn, row, stored), **details
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
        report, request = get_report(row, "questions can be asked when it is completed"), row.request or {}
        described = {name: request[name] for name in SCENARIO_PARTS if request.get(name) is not None}
        scenario = parse_scenario(described, need_plan=False)
        reasoner = reasoner_for(self.settings, caller.tenant, shared_reasoner(self.settings))
        context = Context(knowledge, reasoner, progress=progress)
        return ask(question, report, scenario, context, caller.tenant, turn)

    def delete(self, caller: Caller, id: str) -> None:
        """With its events, decisions and report; one that has not ended must be cancelled first."""
        with self.database.begin() as conn:
            store.delete_session(conn, caller.tenant, id)
            record(conn, caller.tenant, caller.name, "session.delete", id, request_id.get())

    def get(self, caller: Caller, id: str, report: bool = True) -> SessionRow:
        with self.database.read() as conn:
            return store.get_session(conn, caller.tenant, id, report)

    def list_all(
        self, caller: Caller, filters: store.SessionFilter, cursor: str | None, limit: int
    ) -> tuple[list[SessionRow], str | None]:
        with self.database.read() as conn:
            return store.list_sessions(conn, caller.tenant, filters, cursor, limit)

    def find_by_key(self, caller: Caller, idempotency_key: str) -> SessionRow | None:
        with self.database.read() as conn:
            id = store.find_by_key(conn, caller.tenant, idempotency_key)
            return store.get_session(conn, caller.tenant, id) if id else None

    def _parse(self, caller: Caller, body: SessionCreate, idempotency_key: str | None) -> SessionRow:
        """Raises InputError for the first thing that is wrong."""
        request = body.check(caller.knowledge_tenant)
        if request.options.mode == "tune":
            check_tune(self.settings, request)
        scenario = request.scenario
        if body.webhook is not None:
            if self.settings.webhook_secret is None:
                allowed = "this installation sends none: ASAP_WEBHOOK_SECRET, which signs them, is not set"
                raise InputError("webhook", body.webhook, allowed)
            parse_target(body.webhook, self.settings.webhook_private)
        if scenario.traces is not None and find_reference(scenario.traces) is None:
            check_server_path(self.settings, caller, "traces", scenario.traces)
        return SessionRow(
            **{name: getattr(body, name) for name in SessionChoices.model_fields},
            request=body.request,
            tenant=caller.tenant,
            owner=caller.name,
            mode=request.options.mode,
            approval=request.options.approval,
            model=scenario.model.name or None,
            device=scenario.cluster.device,
            num_devices=scenario.cluster.num_devices,
            budget=body.budget.model_dump(exclude_none=True) if body.budget else None,
            idempotency_key=idempotency_key,
        )

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
            before = store.lock_session(conn, id, tenant=caller.tenant)
            after = change(conn, before)
            if after.dispatch_no != before.dispatch_no:
                self.queue.enqueue(conn, after)
            if after is not before:
                record(conn, caller.tenant, caller.name, action, id, request_id.get(), **details)
        return after


def _signed(caller: Caller, session_id: str, decision: Decision, idempotency_key: str | None) -> Decision:
    if decision.by is not None:
        raise InputError("by", decision.by, "not accepted: the key says who decides")
    stated = decision.id or idempotency_key
    # Hashed with the session's id: two tenants may choose the same id.
    digest = hashlib.sha256(f"{session_id}/{stated}".encode()).hexdigest()[:32]
    return decision.model_copy(update={"id": digest if stated else new_id(), "by": caller.name[:200]})


def get_report(row: SessionRow, lacking: str = "it has a report when it is completed") -> Report:
    """ConflictError if there is none yet; `lacking` says when there will be."""
    if row.report is None:
        raise missing_result(row, lacking)
    return Report.model_validate(row.report)


def find_proposals(row: SessionRow) -> list[Proposal]:
    """Those of the report, or those that wait for a decision; ConflictError if there are none yet."""
    if row.report is not None:
        return PROPOSALS.validate_python(row.report["proposals"])
    if row.state != WAITING or row.waiting_for is None:
        raise missing_result(row, "it has no proposals yet")
    waiting = PendingDecision.model_validate(row.waiting_for).proposals
    scenarios = [_with_plan(row, proposal.plan) for proposal in waiting]
    return [
        Proposal.model_validate({**dict(proposal), "plan": scenario.plan, "prediction": prediction})
        for proposal, scenario, prediction in zip(waiting, scenarios, predict(scenarios), strict=True)
    ]


def export_proposal(row: SessionRow, rank: int, format: str) -> Export:
    """The proposal as a configuration file of a training framework."""
    proposal = next((proposal for proposal in find_proposals(row) if proposal.rank == rank), None)
    if proposal is None:
        raise NotFoundError("proposal", str(rank))
    scenario = _with_plan(row, proposal.plan)
    training = scenario.training.model_copy(update=proposal.settings)
    return export_plan(scenario.model_copy(update={"training": training}), format)


def missing_result(row: SessionRow, reason: str) -> ConflictError:
    """A failed session will never have a result: its error is the answer."""
    reason = row.error.message if row.error else reason
    return ConflictError(f"session {row.id} is {row.state}; {reason}", path="state")


def _with_plan(row: SessionRow, plan: Plan) -> Scenario:
    """The session's model, cluster and training with this plan in place of today's."""
    stated = {name: row.request[name] for name in ("model", "cluster", "training")}
    return parse_scenario({**stated, "plan": plan.model_dump()})


def _check_upload(conn: sa.Connection, tenant: str, traces: str | None) -> None:
    """An upload must belong to the tenant and be complete."""
    id = find_reference(str(traces)) if traces else None
    if id is None:
        return
    try:
        trace = get_trace(conn, tenant, id)
    except NotFoundError:
        raise InputError("traces", traces, "there is no such upload") from None
    if trace.state != COMPLETE:
        raise ConflictError(f"the upload {id} is {trace.state}; complete it first", path="traces")
