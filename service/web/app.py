"""Adds the pages to the API's application."""

from fastapi import FastAPI

from service.web import (
    accuracy,
    compare,
    docs,
    forms,
    hardware,
    knowledge,
    new_session,
    nightly,
    pipeline,
    plans,
    rendering,
    session,
    session_figures,
    sessions,
    topology,
    trace,
    trail,
    trials,
    what_if,
)
from service.web.rendering import add_error_pages

ROUTERS = (
    rendering.router,
    forms.router,
    sessions.router,
    new_session.router,  # before a session whose id could be "new"
    session.router,
    session_figures.router,
    pipeline.router,
    plans.fit_router,
    plans.router,
    trail.router,
    trials.router,
    trace.router,
    topology.router,
    what_if.router,
    compare.router,
    knowledge.router,
    hardware.router,
    accuracy.clusters_router,
    accuracy.router,
    docs.router,
    nightly.router,
)


def add_pages(app: FastAPI) -> None:
    """After the API's routes and handlers."""
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False)
    add_error_pages(app)
