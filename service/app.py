"""The composition root: builds the use cases of all features, and the application that serves them."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from threading import Event

from fastapi import FastAPI
from starlette.types import Scope

from service import __version__
from service.access.authenticator import Authenticator
from service.access.store import record
from service.clusters import api as measurements
from service.clusters import pages as cluster_pages
from service.db.engine import Database
from service.http import ops
from service.http.computing import Computing
from service.http.limits import BodyLimits, RateLimit
from service.http.metrics import Metrics, open_spans
from service.http.middleware import RequestScope, SecurityHeaders
from service.http.openapi import serve_description
from service.http.problems import add_problem_handlers
from service.http.state import AppState
from service.jobs.loop import Loop
from service.knowledge import api as knowledge
from service.knowledge import pages as knowledge_pages
from service.logs import Redactor, secrets_of
from service.planner import api as planner
from service.planner import hardware, what_if
from service.runtime import LazyKnowledge, open_knowledge
from service.schedules import api as schedules
from service.schedules import pages as schedule_pages
from service.schedules.dispatch import night_queue
from service.schedules.usecases import Schedules
from service.sessions import api as sessions
from service.sessions import events
from service.sessions.dispatch import SessionQueue
from service.sessions.events import EventStreams
from service.sessions.model import STATES
from service.sessions.pages import (
    compare,
    figures,
    fork,
    listing,
    new,
    pipeline,
    plans,
    session,
    topology,
    trail,
    trials,
)
from service.sessions.store import counts_by_state
from service.sessions.usecases import Sessions
from service.settings import Settings
from service.traces import api as traces
from service.traces import pages as trace_pages
from service.traces.analyses import Analyses
from service.traces.uploads import Uploads
from service.traces.usecases import SWEEP_EVERY_S, Traces, sweep
from service.web import assets, docs, forms
from service.web.errors import add_error_pages
from tools.kb import KnowledgeBase

DEFAULT_HOST = "127.0.0.1"
MAX_TARGET_CHARACTERS = 100
ADDRESS_CALLERS = 3
"""One address may send as many requests as this many keys together."""
ADDRESS_LEAST = 1500
API_ROUTERS = (
    sessions.router,
    events.router,
    sessions.reports_router,
    traces.router,
    knowledge.router,
    measurements.router,
    planner.hardware_router,
    planner.router,
    planner.plans_router,
    schedules.router,
    schedules.runs_router,
    ops.audit_router,
)
PAGE_ROUTERS = (
    assets.router,
    forms.router,
    listing.router,
    new.router,  # before a session whose id could be "new"
    session.router,
    figures.router,
    pipeline.router,
    plans.fit_router,
    plans.router,
    trail.router,
    fork.router,
    trials.router,
    trace_pages.router,
    topology.router,
    what_if.router,
    compare.router,
    knowledge_pages.router,
    hardware.router,
    cluster_pages.clusters_router,
    cluster_pages.router,
    docs.router,
    schedule_pages.router,
)


def make_app_state(
    settings: Settings,
    database: Database,
    queue: SessionQueue,
    host: str = DEFAULT_HOST,
    knowledge_base: Callable[[], KnowledgeBase] | None = None,
    computing: Computing | None = None,
) -> AppState:
    """`host` is what the server listens on; it decides whether callers without a key are answered."""
    uploads, stopping = Uploads(settings), Event()

    def count_sessions() -> dict[str, int]:
        with database.read() as conn:
            counts = counts_by_state(conn)
        return {state: counts.get(state, 0) for state in STATES}

    metrics = Metrics(count_sessions)
    return AppState(
        settings=settings,
        database=database,
        queue=queue,
        authenticator=Authenticator(settings, database, host),
        rates=RateLimit(settings.requests_per_minute),
        metrics=metrics,
        stopping=stopping,
        computing=computing,
        usecases={
            Sessions: Sessions(settings, database, queue),
            EventStreams: EventStreams(settings, database, metrics, stopping),
            Schedules: Schedules(settings, database, night_queue(database)),
            Traces: Traces(settings, database, uploads, Analyses(database, uploads)),
            LazyKnowledge: LazyKnowledge(knowledge_base or partial(open_knowledge, settings)),
        },
    )


def create_app(state: AppState, *, only_health: bool = False, is_inner: bool = False) -> FastAPI:
    """The schema must be there already. A worker without the API answers the routes of health alone. The
    inner application of a process that computes has no middleware: its requests have passed the server's."""
    settings = state.settings
    spans = open_spans(settings.otlp_endpoint) if settings.otlp_endpoint else None
    app = FastAPI(
        title="ASAP sharding service",
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
    redactor = Redactor(secrets_of(settings))
    add_problem_handlers(app, redactor)
    if not is_inner:  # the last one added is the outermost
        app.add_middleware(
            BodyLimits,
            max_bytes=settings.max_body_bytes,
            max_upload_bytes=settings.max_trace_bytes,
            patience_s=settings.request_s,
        )
        app.add_middleware(SecurityHeaders)
        app.add_middleware(
            RequestScope,
            redactor=redactor,
            measure=state.metrics.measure,
            audit=partial(_audit, state.database),
            addresses=RateLimit(max(ADDRESS_LEAST, ADDRESS_CALLERS * settings.requests_per_minute), 2.0),
        )
    app.include_router(ops.router)
    if not only_health:
        for router in API_ROUTERS:
            app.include_router(router)
        serve_description(app)
        for router in PAGE_ROUTERS:
            app.include_router(router, include_in_schema=False)
        add_error_pages(app)
    return app


def _audit(database: Database, tenant: str, caller: str, scope: Scope, status: int, request_id: str) -> None:
    target = f"{scope['method']} {scope['path']}"[:MAX_TARGET_CHARACTERS]
    with database.begin() as conn:
        record(conn, tenant, caller, "request.failed", target, request_id, status=status)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: AppState = app.state.asap
    traces = state.get(Traces)
    retention = Loop("retention", SWEEP_EVERY_S, lambda: sweep(state.database, traces.uploads, time.time()))
    retention.start()
    try:
        yield
    finally:
        state.stopping.set()
        retention.stop()
        traces.analyses.close()
        state.get(LazyKnowledge).close()
        state.get(Schedules).queue.close()
        if app.state.spans:
            app.state.spans.shutdown()
