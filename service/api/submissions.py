"""From the body of POST /v1/sessions to a checked session that can be stored."""

import re
from typing import Any

import sqlalchemy as sa

from graph.request import parse_request
from service.api.parts import Parts
from service.api.schemas.sessions import LABEL_NAME, MOST_LABELS, SessionCreate
from service.auth.caller import Caller
from service.errors import ConflictError, NotFoundError
from service.store.sessions import NewSession
from service.store.traces import COMPLETE, get_trace
from service.trials import check_tune
from service.uploads import find_reference
from service.work.addresses import parse_target
from tools.errors import InputError
from tools.scenario import parse_scenario
from tools.scenario.fields import refuse_unknown

EXTRAS = ("labels", "priority", "webhook", "budget")
"""What the service reads; the rest is the request that the agents read."""
MOST_LABEL_CHARACTERS = 200


def new_session(
    parts: Parts, caller: Caller, given: SessionCreate, idempotency_key: str | None
) -> NewSession:
    """Raises InputError for the first thing that is wrong."""
    refuse_unknown(given.body(), SessionCreate.model_fields, "")
    body = {name: value for name, value in given.body().items() if name not in EXTRAS}
    request = parse_request(body, caller.knowledge_tenant)
    check_tune(parts.settings, request)
    scenario = parse_scenario(request.scenario, need_plan=False)
    _check_labels(given.labels)
    _check_webhook(parts, given.webhook)
    _check_traces(caller, scenario.traces)
    return NewSession(
        request=body,
        tenant=caller.tenant,
        owner=caller.name,
        mode=request.mode,
        approval=request.approval,
        priority=given.priority,
        labels=given.labels,
        model=scenario.model.name or None,
        device=scenario.cluster.device,
        num_devices=scenario.cluster.num_devices,
        budget=given.budget.model_dump(exclude_none=True) if given.budget else None,
        webhook=given.webhook,
        idempotency_key=idempotency_key,
    )


def check_upload(conn: sa.Connection, tenant: str, request: dict[str, Any]) -> None:
    """An upload must be the tenant's own, and whole."""
    id = find_reference(str(request.get("traces") or ""))
    if id is None:
        return
    try:
        trace = get_trace(conn, tenant, id)
    except NotFoundError:
        raise InputError("traces", request["traces"], "there is no such upload") from None
    if trace.state != COMPLETE:
        raise ConflictError(f"the upload {id} is {trace.state}; complete it first", field="traces")


def _check_traces(caller: Caller, traces: str | None) -> None:
    if traces is not None and find_reference(traces) is None and not caller.may("admin"):
        allowed = "trace:<id> of an upload (POST /v1/traces); a folder of the server needs the scope admin"
        raise InputError("traces", traces, allowed)


def _check_webhook(parts: Parts, url: str | None) -> None:
    if url is None:
        return
    if parts.settings.webhook_secret is None:
        raise InputError(
            "webhook", url, "this installation sends none: it has no ASAP_WEBHOOK_SECRET to sign with"
        )
    parse_target(url, parts.settings.webhook_private)


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > MOST_LABELS:
        raise InputError("labels", f"{len(labels)} of them", f"at most {MOST_LABELS}")
    for name, value in labels.items():
        if not re.fullmatch(LABEL_NAME, name):
            allowed = "a name has at most 63 letters, digits and . _ / -, first a letter or digit"
            raise InputError("labels", name, allowed)
        if len(value) > MOST_LABEL_CHARACTERS:
            raise InputError(f"labels.{name}", value, f"at most {MOST_LABEL_CHARACTERS} characters")
