"""Builds the FastAPI application: state, middleware from the outside in, one router per resource, and the
OpenAPI document.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic.json_schema import JsonSchemaValue
from starlette.types import Scope

from service import __version__
from service.api import events, knowledge, measurements, middleware, ops, schedules, sessions, tools, traces
from service.api.errors import KINDS, MEDIA_TYPE, Problem, add_problem_handlers
from service.api.middleware import BodyLimits, RequestScope, SecurityHeaders
from service.api.state import AppState, EventWatcher, LazyKnowledge, Metrics, Queue, RateLimit
from service.auth import MEANINGS, Authenticator
from service.db.access import record
from service.db.engine import Database
from service.logs import Redactor, secrets_of
from service.nightly.dispatch import night_queue
from service.nightly.schedules import Schedules
from service.sessions import Sessions
from service.settings import Settings
from service.traces import SWEEP_EVERY_S, Analyses, Traces, sweep
from service.uploads import Uploads
from service.worker.jobs import Loop
from tools.kb import KnowledgeBase

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


OPENAPI_PATH = "/openapi.json"
_METHODS = ("get", "put", "post", "delete", "patch")
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_OPEN_PATHS = ("/healthz", "/readyz")

DESCRIPTION = """\
Predicts, diagnoses and improves how a training job is sharded over its accelerators.

Submit a session, follow its events, fetch its report. Send `Authorization: Bearer <key>` (`asap keys add`
makes one); without any key the server answers its own machine only.

Every error is a problem document (RFC 9457) that names the field at fault. Every answer has `X-Request-Id`,
which is in the server's logs; send your own to find a request again.

Scopes of a key:
"""
TAGS = [
    {"name": "sessions", "description": "Optimizations: submitted, followed, decided upon."},
    {"name": "reports", "description": "What a session found."},
    {"name": "traces", "description": "Profiler traces, uploaded in parts."},
    {"name": "predict", "description": "The cost model alone."},
    {"name": "plans", "description": "The plan search alone, for small workloads."},
    {"name": "hardware", "description": "The device catalogue."},
    {"name": "knowledge", "description": "Playbooks and past cases."},
    {"name": "measurements", "description": "Runs of a named cluster, which its predictions learn from."},
    {"name": "schedules", "description": "Nightly runs by the clock, and what they found."},
    {"name": "audit", "description": "Who did what."},
    {"name": "health", "description": "For load balancers and Prometheus."},
]


def describe(app: FastAPI) -> JsonSchemaValue:
    """Made at the first request for it, then kept."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> JsonSchemaValue:
    document = get_openapi(
        title="ASAP",
        version=__version__,
        openapi_version="3.1.0",
        description=DESCRIPTION + "\n".join(f"- `{scope}`: {says}" for scope, says in MEANINGS.items()),
        routes=app.routes,
        tags=TAGS,
    )
    components = document["components"]
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    schemas = components["schemas"]
    for name in _FASTAPIS_OWN:
        schemas.pop(name, None)
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components["responses"] = {
        "Problem": {"description": "An error", "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
    }
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                _complete(operations[method], is_open=path in _OPEN_PATHS)
    return document


def _complete(operation: JsonSchemaValue, *, is_open: bool) -> None:
    """Any operation may answer with a problem; which statuses there are stands in `KINDS`."""
    responses = operation["responses"]
    responses.pop("422", None)
    statuses = sorted({kind.status for kind in KINDS.values()} - {int(code) for code in responses})
    responses |= {str(status): {"$ref": "#/components/responses/Problem"} for status in statuses}
    if not is_open:
        operation["security"] = [{"key": []}, {}]


ROUTERS = (
    sessions.router,
    events.router,
    sessions.reports_router,
    traces.router,
    knowledge.router,
    measurements.router,
    tools.hardware_router,
    tools.router,
    tools.plans_router,
    schedules.router,
    schedules.runs_router,
    ops.audit_router,
)
DEFAULT_HOST = "127.0.0.1"


def _audit(state: AppState, tenant: str, caller: str, scope: Scope, status: int, request_id: str) -> None:
    target = f"{scope['method']} {scope['path']}"[:MAX_TARGET_CHARACTERS]
    with state.database.begin() as conn:
        record(conn, tenant, caller, "request.failed", target, request_id, status=status)


MAX_TARGET_CHARACTERS = 100
AddPages = Callable[[FastAPI], None]
"""The pages lie above the API: the entry point passes the function that adds them."""


def make_app_state(
    settings: Settings,
    database: Database,
    queue: Queue,
    host: str = DEFAULT_HOST,
    open_knowledge: Callable[[], KnowledgeBase] | None = None,
) -> AppState:
    """`host` is what the server listens on; it decides whether callers without a key are answered."""
    uploads, stopping = Uploads(settings), Event()
    return AppState(
        settings=settings,
        database=database,
        queue=queue,
        sessions=Sessions(settings, database, queue),
        schedules=Schedules(settings, database, night_queue(database)),
        authenticator=Authenticator(settings, database, host),
        rates=RateLimit(settings.requests_per_minute),
        metrics=Metrics(database),
        traces=Traces(settings, database, uploads, Analyses(database, uploads)),
        knowledge=LazyKnowledge(open_knowledge or (lambda: _open_knowledge(settings))),
        stopping=stopping,
        watch=EventWatcher(database, stopping),
    )


def create_app(state: AppState, add_pages: AddPages | None = None, *, only_health: bool = False) -> FastAPI:
    """The schema must be there already. A worker without the API answers the routes of health alone."""
    spans = _open_spans(state.settings)
    app = FastAPI(
        title="ASAP",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        telemetry={
            "tracing": spans is not None,
            "tracer_provider": spans,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.asap, app.state.spans = state, spans
    redactor = Redactor(secrets_of(state.settings))
    add_problem_handlers(app, redactor)
    settings = state.settings
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimits,
        max_bytes=settings.max_body_bytes,
        max_upload_bytes=settings.max_trace_bytes,
        patience_s=settings.request_s,
    )
    app.add_middleware(SecurityHeaders)
    app.add_middleware(
        RequestScope, redactor=redactor, measure=state.metrics.measure, audit=partial(_audit, state)
    )
    app.include_router(ops.router)
    if not only_health:
        for router in ROUTERS:
            app.include_router(router)
        _serve_description(app)
        if add_pages:
            add_pages(app)
    return app


def _open_spans(settings: Settings) -> "TracerProvider | None":
    return middleware.open_provider(settings.otlp_endpoint) if settings.otlp_endpoint else None


def _serve_description(app: FastAPI) -> None:
    async def openapi() -> JSONResponse:
        return JSONResponse(describe(app))

    for path in (OPENAPI_PATH, f"/v1{OPENAPI_PATH}"):
        app.add_api_route(path, openapi, include_in_schema=False)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: AppState = app.state.asap
    retention = Loop(
        "retention", SWEEP_EVERY_S, lambda: sweep(state.database, state.traces.uploads, time.time())
    )
    retention.start()
    try:
        yield
    finally:
        state.stopping.set()
        retention.stop()
        state.traces.analyses.close()
        state.knowledge.close()
        state.schedules.queue.close()
        if app.state.spans:
            app.state.spans.shutdown()


def _open_knowledge(settings: Settings) -> KnowledgeBase:
    from service.runtime import open_knowledge

    return open_knowledge(settings)
