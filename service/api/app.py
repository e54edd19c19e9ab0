"""Wires the API: middleware from the outside in, then one router per resource."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Event

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from service import __version__
from service.api.analyses import Analyses
from service.api.body_limits import BodyLimits
from service.api.metrics import Metrics
from service.api.openapi import PATH, describe
from service.api.parts import Lazy, Parts, Queue
from service.api.problem_handlers import add_problem_handlers
from service.api.rates import RateLimit
from service.api.request_scope import RequestScope
from service.api.retention import Retention
from service.api.routes import (
    audit,
    events,
    hardware,
    health,
    knowledge,
    plans,
    predict,
    reports,
    schedule_runs,
    schedules,
    session_actions,
    sessions,
    trace_files,
    traces,
)
from service.api.security_headers import SecurityHeaders
from service.api.watch import Watch
from service.auth.authenticator import Authenticator
from service.logs import Redactor, secrets_of
from service.settings import Settings
from service.store.database import Database
from service.uploads import Uploads
from service.web.mount import add_pages
from tools.kb import KnowledgeBase

RESOURCES = (
    sessions,
    session_actions,
    events,
    reports,
    traces,
    trace_files,
    knowledge,
    hardware,
    predict,
    plans,
    schedules,
    schedule_runs,
    audit,
)
DEFAULT_HOST = "127.0.0.1"


def make_parts(
    settings: Settings,
    database: Database,
    queue: Queue,
    host: str = DEFAULT_HOST,
    open_knowledge: Callable[[], KnowledgeBase] | None = None,
) -> Parts:
    """`host` is what the server listens on; it decides whether callers without a key are answered."""
    uploads, stopping = Uploads(settings), Event()
    return Parts(
        settings=settings,
        database=database,
        queue=queue,
        authenticator=Authenticator(settings, database, host),
        rates=RateLimit(settings.requests_per_minute),
        metrics=Metrics(database),
        uploads=uploads,
        analyses=Analyses(database, uploads),
        knowledge=Lazy(open_knowledge or (lambda: _open_knowledge(settings))),
        stopping=stopping,
        watch=Watch(database, stopping),
    )


def create_app(parts: Parts, *, only_health: bool = False) -> FastAPI:
    """The schema must be there already. A worker without the API answers the routes of health alone."""
    app = FastAPI(
        title="ASAP", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, lifespan=_lifespan
    )
    app.state.parts = parts
    redactor = Redactor(secrets_of(parts.settings))
    add_problem_handlers(app, redactor)
    settings = parts.settings
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimits,
        most_bytes=settings.max_body_bytes,
        most_upload_bytes=settings.max_trace_bytes,
        patience_s=settings.request_s,
    )
    app.add_middleware(SecurityHeaders)
    if settings.otlp_endpoint:
        _add_spans(app, settings.otlp_endpoint)
    app.add_middleware(RequestScope, redactor=redactor, measure=parts.metrics.measure)
    app.include_router(health.router)
    if not only_health:
        for resource in RESOURCES:
            app.include_router(resource.router)
        _serve_description(app)
        add_pages(app)
    return app


def _add_spans(app: FastAPI, endpoint: str) -> None:
    from service.api.telemetry import Spans, open_provider

    app.state.spans = open_provider(endpoint)
    app.add_middleware(Spans, provider=app.state.spans)


def _serve_description(app: FastAPI) -> None:
    async def openapi() -> JSONResponse:
        return JSONResponse(describe(app))

    for path in (PATH, f"/v1{PATH}"):
        app.add_api_route(path, openapi, include_in_schema=False)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    retention = Retention(parts.database, parts.uploads)
    retention.start()
    try:
        yield
    finally:
        parts.stopping.set()
        retention.stop()
        parts.analyses.close()
        parts.knowledge.close()
        if parts.settings.otlp_endpoint:
            app.state.spans.shutdown()


def _open_knowledge(settings: Settings) -> KnowledgeBase:
    from service.context import open_knowledge

    return open_knowledge(settings)
